"""Ten blocks of rows by weights, against draws from the posterior of all rows."""

import warnings

import numpy as np
import pytest

import integrand as ig

pytestmark = pytest.mark.slow


def test_ten_updates_give_the_posterior_of_all_rows():
    """The same Z and scale, so that both are about the same density; differences in combined Monte Carlo errors."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (1_000, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.3 * rng.standard_normal(len(X))
    new = rng.uniform(-2.0, 2.0, (50, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ig.ConvergenceWarning)
        first = ig.fit(X[:500], y[:500], n_inducing=40, target_ess=2_000, predictive_draws=2_000)
        rows = ig.ArrayRows(X, y, scaler=first.scaler)
        whole = ig.fit(rows, method="sgpr-hmc-fixed-z", Z=first.Z, target_ess=2_000, predictive_draws=2_000, seed=1)
    updated = first
    for start in range(500, 1_000, 50):
        updated = updated.update(X[start : start + 50], y[start : start + 50])
    assert updated.updates.n_updates == 10
    moments = []
    for posterior in (updated, whole):
        x = posterior.chains.x.reshape(-1, posterior.chains.x.shape[2])
        ess = np.minimum(posterior.verdict.convergence.ess_bulk, posterior.verdict.convergence.ess_tail)
        moments.append((x.mean(axis=0), x.std(axis=0), ess))
    (m1, s1, n1), (m2, s2, n2) = moments
    assert np.all(np.abs(m1 - m2) < 4.5 * np.hypot(s1 / np.sqrt(n1), s2 / np.sqrt(n2)))
    assert np.all(np.abs(np.log(s1 / s2)) < 4.5 * np.hypot(1.0 / np.sqrt(n1), 1.0 / np.sqrt(n2)))
    f, g = (posterior.predict(new, include_noise=False) for posterior in (updated, whole))
    assert np.max(np.abs(f.mean - g.mean) / g.sd) < 0.3
    np.testing.assert_allclose(f.sd, g.sd, rtol=0.1)
