"""Sparse draws by importance weights: those of the exact posterior, or a refusal."""

import warnings
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import integrand
from integrand import Dataset, InputError, UnreliableWeightsError, log_marginal_likelihood
from integrand.infer.importance import pareto_smoothed
from integrand.precision import float64_scope

rng = np.random.default_rng(5)
X = rng.uniform(-3.0, 3.0, (40, 1))
Y = 5.0 + 2.0 * (np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(40))
NEW = np.linspace(-3.5, 3.5, 9)[:, None]


def fit(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", integrand.ConvergenceWarning)
        return integrand.fit(X, Y, **{"target_ess": 100, "chains": 2, "predictive_draws": 100} | options)


@pytest.fixture(scope="module")
def sparse():
    return fit(n_inducing=40, bound="tight")  # as many as rows: weights are alike


def test_draws_that_are_worth_little_are_refused(monkeypatch):
    draws = fit(n_inducing=8, bound="tight")
    monkeypatch.setattr("integrand.posterior.reweighting.K_HAT_LIMIT", np.inf)
    monkeypatch.setattr("integrand.posterior.reweighting.LEAST_EFFICIENCY", 0.999)
    with pytest.raises(UnreliableWeightsError, match=r"would be worth \d+% of their number, below 100%.*than 8"):
        draws.reweighted(X, Y)


def log_p(posterior, phi):
    scaler, model = posterior.scaler, posterior.model
    with float64_scope():
        gp = model.gp(model.theta(jnp.asarray(phi)))
        return float(log_marginal_likelihood(gp, scaler.transform_X(X), scaler.transform_y(Y)))


def test_draws_are_resampled_by_their_exact_density(monkeypatch):
    monkeypatch.setattr("integrand.posterior.reweighting.K_HAT_LIMIT", np.inf)
    monkeypatch.setattr("integrand.posterior.reweighting.LEAST_EFFICIENCY", 0.0)
    sparse = fit(n_inducing=8, bound="tight")  # so few that weights differ
    exact = sparse.reweighted(X, Y)
    assert "re-weighted" in exact.verdict.codes
    assert "k-hat is" in str(exact.verdict)
    assert exact.verdict.ok == sparse.verdict.ok
    assert np.all(exact.verdict.convergence.ess_bulk <= 100.0)
    # Densities are those of the exact posterior, and rare draws are rare by their weights.
    phis, chains = sparse.conditional.phis, exact.chains
    phi, density = chains.x[0, 0], chains.log_density[0, 0]
    with float64_scope():
        prior = float(sparse.model.log_prior(jnp.asarray(phi)))
    assert density == pytest.approx(log_p(sparse, phi) + prior, rel=1e-7)
    flat = {
        x.tobytes(): d for x, d in zip(sparse.chains.x.reshape(-1, 3), sparse.chains.log_density.ravel(), strict=True)
    }
    with float64_scope():
        slack = [log_p(sparse, x) + float(sparse.model.log_prior(jnp.asarray(x))) - flat[x.tobytes()] for x in phis]
    expected = len(phis) * np.exp(pareto_smoothed(np.array(slack)).log_weights)
    kept = np.array([np.sum(np.all(chains.x.reshape(-1, 3) == phi, axis=1)) for phi in phis])
    assert np.all(np.abs(kept - expected) < 1.01)
    assert np.max(expected) > 1.2
    assert exact.conditional.phis.shape == phis.shape


@pytest.mark.slow
def test_predictions_may_be_exact(sparse):
    exact = sparse.reweighted(X, Y, exact_predictions=True)
    assert exact.conditional.kind == "exact"
    mean, sd = (getattr(exact.predict(NEW, include_noise=True), name) for name in ("mean", "sd"))
    by_hmc = fit(method="gpr-hmc").predict(NEW, include_noise=True)
    np.testing.assert_allclose(mean, by_hmc.mean, atol=0.35 * np.max(by_hmc.sd))
    np.testing.assert_allclose(sd, by_hmc.sd, rtol=0.35)


@pytest.mark.slow
def test_exact_predictions_can_be_saved(sparse, tmp_path):
    exact = sparse.reweighted(X, Y, exact_predictions=True)
    integrand.save_model(exact, tmp_path / "m")
    loaded = integrand.load_model(tmp_path / "m").posterior
    means = (p.predict(NEW, include_noise=True).mean for p in (loaded, exact))
    np.testing.assert_allclose(*means, rtol=1e-9)


@pytest.mark.slow
def test_a_sparse_posterior_that_is_far_away_is_refused():
    far = fit(n_inducing=2)
    with pytest.raises(UnreliableWeightsError, match=r"k-hat is .* above 0.7. Fit with more inducing points than 2"):
        far.reweighted(X, Y)


@pytest.mark.slow
def test_what_cannot_be_reweighted_is_refused(sparse):
    with pytest.raises(InputError, match="one optimised point"):
        fit(method="ml2", n_inducing=5).reweighted(X, Y)
    with pytest.raises(InputError, match="limit 39"):
        sparse.reweighted(X, Y, max_exact_rows=39)
    with pytest.raises(InputError, match="only draws with the collapsed bound"):
        sparse.reweighted(X, Y, exact_predictions=True).reweighted(X, Y)
    with pytest.raises(InputError, match="from a Gaussian"):
        replace(sparse, method="vi-collapsed").reweighted(X, Y)
    with pytest.raises(InputError, match="X has 2 columns"):
        sparse.reweighted(np.c_[X, X], Y)
    for other in ((X, Y + 0.01 * np.arange(40)), (X[:-1], Y[:-1]), (np.r_[X, X[:1]], np.r_[Y, Y[:1]])):
        with pytest.raises(InputError, match="not the rows that the posterior has seen: give all those of the fit"):
            sparse.reweighted(*other)


@pytest.mark.slow
def test_leave_one_out_of_a_fit(sparse):
    loo = sparse.loo(X, Y)
    assert loo.n_rows == 40
    assert loo.elpd_rows.shape == (40,)
    # Worse than the density of rows that took part in the fit, and better than a constant.
    inside = sparse.predict(X, include_noise=True).log_density(Y).sum()
    constant = -0.5 * 40 * (np.log(2 * np.pi * Y.var()) + 1.0)
    assert constant < loo.elpd < inside
    with pytest.raises(InputError, match="not the rows"):
        sparse.loo(X, Y + 0.01 * np.arange(40))
    straight = fit(kernel=integrand.Linear(), n_inducing=2)
    compared = integrand.compare({"smooth": sparse, "straight": straight}, X, Y)
    assert compared.best == "smooth"
    assert compared.models[0].elpd == pytest.approx(loo.elpd)
    assert Dataset.of(X, Y).n_rows == 40
