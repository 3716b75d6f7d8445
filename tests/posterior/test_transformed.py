"""Mixtures of a transformed target in the units of y: proper densities, with quantiles, moments and scores that fit."""

import jax
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import kstest, lognorm

from integrand.data.scaling import Standardiser
from integrand.metrics import evaluate
from integrand.posterior.mixture import GaussianMixture
from integrand.posterior.transformed import TransformedMixture
from integrand.transforms import BoxCox, Log, SinhArcsinh

DRAWS, ROWS = 7, 3
PLAIN = SinhArcsinh(skewness=0.0, tails=1.0)
SCALER = Standardiser(np.zeros(1), np.ones(1), 0.4, 0.8)


def of_draws(transform, *parameters):
    """The transform with an array of parameters for its draws in place of each number."""
    return jax.tree.unflatten(jax.tree.structure(transform), parameters)


def mixture(kind, seed=0, spread=0.5):
    rng = np.random.default_rng(seed)
    column = (DRAWS, 1)
    transform = {
        "log": Log(),
        "box-cox": of_draws(BoxCox(power=0.0), rng.uniform(-0.2, 0.6, column)),
        "sinh-arcsinh": of_draws(PLAIN, rng.normal(0.5, 0.3, column), rng.uniform(0.6, 1.2, column)),
    }[kind]
    means = rng.normal(0.0, 0.6, (DRAWS, ROWS))
    variances = (spread * rng.uniform(0.5, 1.5, (DRAWS, ROWS))) ** 2
    return TransformedMixture(means, variances, transform, SCALER)


KINDS = ("log", "box-cox", "sinh-arcsinh")
LEVELS = np.array([1e-9, 1e-4, 0.025, 0.3, 0.5, 0.9, 1.0 - 1e-4, 1.0 - 1e-9])


def one_row(m, t):
    return TransformedMixture(m.means[:, [t]], m.variances[:, [t]], m.transform, m.scaler)


def integral(m, value, low, high):
    """∫ value(y) dy from one y to another, over log y where that is what the transform takes."""
    middle = m.quantile([0.01, 0.5, 0.99])[:, 0]
    if not m.transform.of_log:
        inner = [p for p in middle if low < p < high]
        return quad(value, low, high, points=inner, limit=400, epsabs=1e-10)[0]
    low, high, inner = np.log(low), np.log(high), np.log(middle)
    inner = [p for p in inner if low < p < high]
    return quad(lambda u: value(np.exp(u)) * np.exp(u), low, high, points=inner, limit=400, epsabs=1e-10)[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_the_density_integrates_to_one_and_to_F(kind, spread):
    for t in range(ROWS):
        m = one_row(mixture(kind, spread=spread), t)
        low, high = m.quantile([1e-12, 1.0 - 1e-12])[:, 0]
        if kind == "box-cox" and spread == 1.0:  # a little of the mass is where numbers end
            low = max(low, 1e-200)
        covered = 1.0 - float(m.cdf(np.array([low]))[0])
        assert covered > 1.0 - 1e-4

        def density(y, m=m):
            return float(m.density(np.array([y]))[0])

        assert abs(integral(m, density, low, high) - covered) < 1e-6
        middle = float(m.quantile(0.7)[0])
        assert abs(integral(m, density, low, middle) - (covered - 0.3)) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_quantiles_invert_F(kind, spread):
    m = mixture(kind, spread=spread)
    quantiles = m.quantile(LEVELS)
    assert np.all(np.diff(quantiles, axis=0) > 0)
    for level, q in zip(LEVELS, quantiles, strict=True):
        np.testing.assert_allclose(m.cdf(q), level, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(m.quantile(0.3), quantiles[3])


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_from_F(kind):
    m = mixture(kind)
    drawn = m.sample(np.random.default_rng(3), 4_000)
    for t in range(ROWS):
        row = one_row(m, t)
        assert kstest(drawn[:, t], lambda y, row=row: row.cdf(np.reshape(y, (-1, 1)))[:, 0]).pvalue > 1e-6
    error = m.sd / np.sqrt(len(drawn))
    assert np.all(np.abs(drawn.mean(axis=0) - m.mean) < 6.0 * error)


@pytest.mark.parametrize("kind", KINDS)
def test_moments_are_those_of_the_density(kind):
    m = one_row(mixture(kind, spread=0.3), 0)
    low, high = m.quantile([1e-14, 1.0 - 1e-14])[:, 0]
    first = integral(m, lambda y: y * float(m.density(np.array([y]))[0]), low, high)
    second = integral(m, lambda y: (y - first) ** 2 * float(m.density(np.array([y]))[0]), low, high)
    np.testing.assert_allclose([m.mean[0], m.variance[0]], [first, second], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_score_is_the_integral_that_it_is_said_to_be(kind):
    m = one_row(mixture(kind), 1)
    low, high = m.quantile([1e-13, 1.0 - 1e-13])[:, 0]
    for y in (float(m.quantile(0.2)[0]), float(m.quantile(0.97)[0])):
        below = integral(m, lambda x: float(m.cdf(np.array([x]))[0]) ** 2, low, y)
        above = integral(m, lambda x: (1.0 - float(m.cdf(np.array([x]))[0])) ** 2, y, high)
        np.testing.assert_allclose(m.crps(np.array([y]))[0], below + above, rtol=1e-6)
    far = high + 10.0
    np.testing.assert_allclose(m.crps(np.array([far + 1.0])) - m.crps(np.array([far])), 1.0, rtol=1e-6)


def test_logarithms_have_the_numbers_of_the_log_normal():
    m = TransformedMixture(np.array([[0.3]]), np.array([[0.25]]), Log(), SCALER)
    exact, y = lognorm(s=0.5 * 0.8, scale=np.exp(0.4 + 0.8 * 0.3)), np.array([1.7])
    np.testing.assert_allclose(m.mean, exact.mean(), rtol=1e-12)
    np.testing.assert_allclose(m.sd, exact.std(), rtol=1e-12)
    np.testing.assert_allclose(m.cdf(y), exact.cdf(y), rtol=1e-12)
    np.testing.assert_allclose(m.log_density(y), exact.logpdf(y), rtol=1e-12)
    np.testing.assert_allclose(m.quantile(0.9), exact.ppf(0.9), rtol=1e-12)


def test_a_transform_that_changes_nothing_is_a_mixture_of_gaussians():
    plain = mixture("sinh-arcsinh")
    identity = of_draws(PLAIN, np.zeros((DRAWS, 1)), np.ones((DRAWS, 1)))
    m = TransformedMixture(plain.means, plain.variances, identity, SCALER)
    wanted = GaussianMixture(0.4 + 0.8 * plain.means, 0.64 * plain.variances)
    y = np.array([[0.1, 0.5, 2.0], [-3.0, 0.0, 5.0]])
    for name in ("cdf", "log_density", "expected_log_density", "crps"):
        np.testing.assert_allclose(getattr(m, name)(y), getattr(wanted, name)(y), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(m.quantile(LEVELS), wanted.quantile(LEVELS), rtol=1e-10)
    np.testing.assert_allclose([m.mean, m.variance], [wanted.mean, wanted.variance], rtol=1e-12)


def test_there_is_nothing_below_zero_where_logarithms_are_taken():
    m, y = mixture("box-cox"), np.array([-1.0, 0.0, 1.0])
    assert np.all(m.cdf(y)[:2] == 0.0)
    assert np.all(np.isneginf(m.log_density(y)[:2]))
    np.testing.assert_allclose(m.crps(y - 4.0) - m.crps(y - 3.0), 1.0, rtol=1e-6)


def test_all_metrics_take_it():
    m = mixture("sinh-arcsinh")
    scores = evaluate(m, m.quantile(0.4))
    assert all(np.isfinite(value) for value in scores.values())


def test_point_masses_have_quantiles_and_scores():
    """f at a row where nothing is open."""
    m = mixture("sinh-arcsinh")
    m = TransformedMixture(m.means, np.zeros_like(m.variances), m.transform, SCALER)
    values = np.sort(m.transform.inverse(m.means), axis=0) * 0.8 + 0.4
    np.testing.assert_allclose(m.quantile(0.5), values[DRAWS // 2], rtol=1e-9)
    np.testing.assert_allclose(m.mean, values.mean(axis=0), rtol=1e-9)
    y = values[0] - 1.0
    pairs = np.abs(values[:, None] - values[None, :]).mean(axis=(0, 1))
    np.testing.assert_allclose(m.crps(y), np.abs(values - y).mean(axis=0) - 0.5 * pairs, rtol=1e-9)
