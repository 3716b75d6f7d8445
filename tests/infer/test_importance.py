"""Smoothed weights and k̂ are those of ArviZ, and mean what they should."""

import math
import warnings

import numpy as np
import pytest

from integrand.errors import InputError
from integrand.infer.importance import pareto_smoothed

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import arviz


def psislw(x, efficiency=1.0):
    """Smoothed log weights and k̂ by the installed ArviZ."""
    if arviz.__version__.startswith("0."):
        return arviz.psislw(x.copy(), efficiency)
    from arviz_stats.base import array_stats

    return array_stats.psislw(-x, r_eff=efficiency)  # it takes log likelihoods, whose ratios are one over them


@pytest.mark.parametrize("efficiency", [1.0, 0.4])
@pytest.mark.parametrize("n", [30, 400, 1001])
@pytest.mark.parametrize("spread", [1e-3, 0.5, 2.0, 8.0])
def test_the_numbers_are_those_of_arviz(spread, n, efficiency):
    x = spread * np.random.default_rng(n).standard_t(4, (3, n))
    expected, k_hat = psislw(x, efficiency)
    found = pareto_smoothed(x, efficiency)
    np.testing.assert_allclose(found.log_weights, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.k_hat, k_hat, rtol=1e-9, atol=1e-9)


def test_repeated_draws_and_weights_of_zero():
    rng = np.random.default_rng(1)
    x = np.repeat(rng.standard_normal(150), 4)
    x[::9] = -np.inf
    expected, k_hat = psislw(x)
    found = pareto_smoothed(x)
    np.testing.assert_allclose(np.exp(found.log_weights), np.exp(expected), rtol=1e-9, atol=1e-12)
    assert found.k_hat == pytest.approx(float(k_hat), abs=1e-9)
    assert np.sum(np.exp(found.log_weights)) == pytest.approx(1.0)


def test_k_hat_is_the_shape_of_the_tail():
    """Weights u^-k have a Pareto tail of shape k."""
    u = np.random.default_rng(2).random(40_000)
    for k in (0.2, 0.5, 0.9):
        assert pareto_smoothed(-k * np.log(u)).k_hat == pytest.approx(k, abs=0.12)


def test_weighted_draws_are_those_of_the_other_density():
    x = 1.5 * np.random.default_rng(3).standard_normal(20_000)
    weights, k_hat = pareto_smoothed(-0.5 * x**2 + 0.5 * (x / 1.5) ** 2)
    assert k_hat < 0.7
    assert np.exp(weights) @ x**2 == pytest.approx(1.0, abs=0.05)


def test_equal_weights_stay_equal():
    found = pareto_smoothed(np.full((2, 100), -3.0) + 1e-9 * np.arange(100))
    np.testing.assert_allclose(found.log_weights, -math.log(100), atol=1e-6)
    assert np.all(found.k_hat == 0.0)


def test_few_draws_say_nothing_about_the_tail():
    found = pareto_smoothed(np.array([0.0, 1.0, 2.0]))
    assert found.k_hat == math.inf
    np.testing.assert_allclose(np.exp(found.log_weights), np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum())
    assert pareto_smoothed(np.zeros(1)).log_weights == 0.0


@pytest.mark.parametrize("bad", [[0.0, math.nan], [0.0, math.inf], [-math.inf, -math.inf], []])
def test_weights_that_are_none_are_refused(bad):
    with pytest.raises(InputError, match="weights"):
        pareto_smoothed(np.array(bad))
