"""Chains that move by a wrong density and are accepted by the right one draw from the right one."""

import threading

import arviz
import numpy as np
import pytest
from scipy import stats

from integrand.errors import NumericalError
from integrand.infer.chains import Chains
from integrand.infer.metric import Whitening
from integrand.infer.surrogate import sample_with_surrogate

# The densities are called a hundred thousand times, and so is what leads to them.
pytestmark = pytest.mark.usefixtures("as_users_see_it")

MEAN = np.array([2.0, -1.0])
COVARIANCE = np.array([[1.0, 0.8], [0.8, 2.0]])
PRECISION = np.linalg.inv(COVARIANCE)
WHITE = Whitening(MEAN, np.linalg.cholesky(COVARIANCE))


def normal(mean=MEAN, precision=PRECISION):
    """Value and gradient of a normal log density."""

    def at(x):
        d = x - mean
        return -0.5 * float(d @ precision @ d), -precision @ d

    return at


def value(x):
    return normal()(x)[0]


def run(cheap=None, dear=value, whitening=WHITE, chains=4, tune=100, draws=600, seed=(3,), **keywords):
    starts = whitening.to_x(np.random.default_rng(9).standard_normal((chains, len(whitening.centre))))
    cheap = normal() if cheap is None else cheap
    return sample_with_surrogate(cheap, dear, starts, whitening, tune=tune, draws=draws, seed=seed, **keywords)


def assert_mean(draws, truth, errors=4.0):
    """The mean of the draws (chain, draw) is the truth within so many Monte Carlo standard errors."""
    mcse = draws.std() / np.sqrt(float(arviz.ess(draws, method="mean")))
    assert abs(draws.mean() - truth) < errors * mcse, (draws.mean(), truth, mcse)
    return mcse


def assert_same(a: Chains, b: Chains):
    for name, left, right in zip(Chains._fields, a, b, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=name)


# --- the right density, however wrong the cheap one is


@pytest.mark.parametrize(
    ("cheap", "draws"),
    [
        (normal(), 300),
        (normal(mean=MEAN + np.array([0.7, -0.7])), 600),
        (normal(precision=2.0 * PRECISION), 600),
        (normal(precision=0.5 * PRECISION), 600),
        (normal(precision=np.diag([1.0, 0.5])), 600),
    ],
    ids=["right", "shifted", "narrow", "wide", "uncorrelated"],
)
def test_moments_of_a_gaussian(cheap, draws):
    x = run(cheap, draws=draws).chains.x
    for i in range(2):
        assert assert_mean(x[:, :, i], MEAN[i]) < 0.15 * np.sqrt(COVARIANCE[i, i])
        for j in range(i + 1):
            assert_mean((x[:, :, i] - MEAN[i]) * (x[:, :, j] - MEAN[j]), COVARIANCE[i, j])


@pytest.mark.parametrize(("shift", "width"), [(0.0, 1.0), (0.5, 1.0), (0.0, 1.4)])
def test_moments_of_a_skewed_density(shift, width):
    """The logarithm of a gamma variable, proposed by a normal that is near it, beside it, or wider."""
    truth = stats.loggamma(2.0)
    mean, sd = truth.mean() + shift, width * truth.std()

    def cheap(x):
        return -0.5 * float((x[0] - mean) / sd) ** 2, -(x - mean) / sd**2

    x = run(cheap, lambda x: float(truth.logpdf(x[0])), Whitening(np.array([mean]), np.array([[sd]])), draws=700)
    first = x.chains.x[:, :, 0]
    assert assert_mean(first, truth.mean()) < 0.1
    assert_mean((first - truth.mean()) ** 2, truth.var())
    assert_mean((first - truth.mean()) ** 3, float(truth.stats("s")) * truth.std() ** 3)
    for p in (0.05, 0.5, 0.95):
        assert_mean((first < truth.ppf(p)).astype(float), p)


def test_equal_densities_accept_every_proposal():
    chains = run(draws=100).chains
    np.testing.assert_allclose(chains.acceptance, 1.0, atol=1e-9)
    np.testing.assert_allclose(chains.log_density, [[value(x) for x in chain] for chain in chains.x])


def test_a_constant_between_the_densities_changes_nothing():
    """Neither is normalised: only differences of each count."""
    shifted = run(normal(), lambda x: value(x) + 1e3, draws=100).chains
    np.testing.assert_allclose(shifted.x, run(draws=100).chains.x)


def test_a_worse_surrogate_is_accepted_less():
    shares = [run(normal(mean=MEAN + shift), draws=100).chains.acceptance.mean() for shift in (0.0, 0.5, 2.0)]
    assert shares[0] > shares[1] > shares[2]
    assert shares[1] < 0.95


# --- what it costs


def test_a_draw_takes_one_value_and_tuning_none():
    lock, calls = threading.Lock(), []

    def counted(x):
        with lock:
            calls.append(x)
        return value(x)

    result = run(dear=counted, tune=50, draws=40, chains=3)
    assert len(calls) == 3 * (40 + 1)  # one more for where each chain begins
    assert result.evaluations == 0  # gradients of the dear density
    calls.clear()
    run(dear=counted, tune=50, draws=0)
    assert not calls


# --- the same seed


def test_same_seed_same_draws_however_many_run_at_once():
    cheap = normal(mean=MEAN + 0.5)
    first = run(cheap, parallel=1, chains=3, draws=80).chains
    assert_same(first, run(cheap, parallel=2, chains=3, draws=80).chains)
    assert_same(first, run(cheap, parallel=5, chains=3, draws=80).chains)


def test_another_seed_gives_other_draws_and_so_does_another_chain():
    first, second = run(draws=50).chains.x, run(draws=50, seed=(4,)).chains.x
    assert not np.any(np.all(first == second, axis=2))
    assert not np.any(np.all(first[0] == first[1], axis=1))


def test_a_shorter_run_is_the_beginning_of_a_longer_one():
    cheap = normal(mean=MEAN + 0.5)
    np.testing.assert_array_equal(run(cheap, draws=40).chains.x, run(cheap, draws=90).chains.x[:, :40])


# --- values of no use


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_dear_value_that_is_no_number_is_never_accepted(wrong):
    """A normal cut off at its mean: beyond it there is no value, and no draw."""

    def cut(x):
        return wrong if x[0] > MEAN[0] else value(x)

    starts = np.array([MEAN - 1.0] * 4)
    result = sample_with_surrogate(normal(), cut, starts, WHITE, tune=0, draws=400, seed=[1])
    x = result.chains.x[:, :, 0]
    assert x.max() <= MEAN[0]
    assert np.isfinite(result.chains.log_density).all()
    assert result.failures > 50
    assert_mean(x, MEAN[0] + stats.truncnorm(-np.inf, 0.0).mean(), errors=5.0)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_where_a_chain_starts_without_a_value_it_leaves_at_once(wrong):
    """Tuning knows nothing of the dear density, so a chain may begin its draws where that has no value."""

    def cut(x):
        return wrong if x[0] > MEAN[0] else value(x)

    starts = np.array([MEAN + np.array([0.5, 0.0])] * 4)
    chains = sample_with_surrogate(normal(), cut, starts, WHITE, tune=0, draws=100, seed=[1]).chains
    assert np.isfinite(chains.log_density[:, 20:]).all()
    assert chains.x[:, 20:, 0].max() <= MEAN[0]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_the_cheap_density_may_have_holes(wrong):
    def holed(x):
        at, slope = normal()(x)
        return (wrong, np.full(2, np.nan)) if x[1] > MEAN[1] + 1.0 else (at, slope)

    starts = np.array([MEAN - 1.0] * 4)
    chains = sample_with_surrogate(holed, value, starts, WHITE, tune=60, draws=300, seed=[1]).chains
    assert chains.x[:, :, 1].max() <= MEAN[1] + 1.0
    assert np.isfinite(chains.x).all()


def test_a_start_in_a_hole_is_refused():
    with pytest.raises(NumericalError, match="not finite where a chain should start"):
        run(lambda x: (np.nan, np.zeros(2)))


def test_an_error_of_either_density_reaches_the_caller():
    class Mine(LookupError):
        pass

    def raises(x):
        raise Mine

    with pytest.raises(Mine):
        run(dear=raises, draws=5)
    with pytest.raises(Mine):
        run(cheap=raises, draws=5)
