"""Coverage of predictive intervals through the whole of `fit` and `predict`, on data from the prior.

One test point for each simulated set, so that the sets are independent: the share of points inside an interval is then
binomial, and must equal the interval's level within three standard errors.
"""

import warnings

import numpy as np
import pytest
from test_sbc import JITTER, MODEL, X_NEW, X, simulated

from integrand import ConvergenceWarning, fit
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows

pytestmark = pytest.mark.slow

SETS = 400
LEVELS = np.array([0.5, 0.8, 0.95])


def covered_by_one(seed: int, noise_factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Whether each central interval of y, and of f alone, holds a new y."""
    rng = np.random.default_rng([12, seed])
    theta, y, f_new = simulated(rng, noise_factor)
    y_new = f_new + np.sqrt(noise_factor) * theta["noise"] * rng.standard_normal()
    posterior = fit(
        ArrayRows(X, y, scaler=Standardiser.identity(1)),
        kernel=MODEL.kernel,
        noise=MODEL.noise,
        method="sgpr-hmc-fixed-z",
        Z=X,
        jitter=JITTER,
        chains=2,
        max_draws=150,
        target_ess=100.0,
        target_accept=0.85,
        predictive_draws=200,
        seed=seed,
    )
    inside = []
    for include_noise in (True, False):
        pit = posterior.predict(X_NEW, include_noise=include_noise).cdf(np.array([y_new]))[0]
        inside.append(np.abs(pit - 0.5) <= LEVELS / 2)
    return inside[0], inside[1]


def coverage(sets: int, noise_factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 300 draws are enough here, not for the verdict
        inside = np.array([covered_by_one(seed, noise_factor) for seed in range(sets)])
    return inside.mean(axis=0)[0], inside.mean(axis=0)[1]


def test_intervals_hold_what_they_promise():
    of_y, of_f = coverage(SETS)
    error = np.sqrt(LEVELS * (1 - LEVELS) / SETS)
    print("coverage", dict(zip(LEVELS, of_y, strict=True)), "z", ((of_y - LEVELS) / error).round(2))
    assert np.all(np.abs(of_y - LEVELS) < 3 * error), of_y
    # Intervals that forget the noise hold too little: the test can fail.
    print("without noise", dict(zip(LEVELS, of_f, strict=True)))
    assert np.all(LEVELS - of_f > 3 * error), of_f
