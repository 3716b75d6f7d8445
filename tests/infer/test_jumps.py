"""Jumps and drifts draw from the right density, however poor the proposal and the coordinates are."""

import threading

import arviz
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from integrand.errors import NumericalError
from integrand.infer.chains import Chains, SampledRun
from integrand.infer.diagnostics import convergence
from integrand.infer.jumps import Proposal, Tuned, refitted, sample_jumps, tune_jumps
from integrand.infer.metric import Whitening

# The densities are called a hundred thousand times, and so is what leads to them.
pytestmark = pytest.mark.usefixtures("as_users_see_it")

MEAN = np.array([2.0, -1.0])
COVARIANCE = np.array([[1.0, 0.8], [0.8, 2.0]])
PRECISION = np.linalg.inv(COVARIANCE)
WHITE = Whitening(MEAN, np.linalg.cholesky(COVARIANCE))


def normal(x):
    d = x - MEAN
    return -0.5 * float(d @ PRECISION @ d), -PRECISION @ d


def value(x):
    return normal(x)[0]


def each(of):
    """A log density of one x as one of several."""
    return lambda x: np.array([of(row) for row in x])


def ends(whitening, chains=4):
    return whitening.to_x(np.random.default_rng(9).standard_normal((chains, len(whitening.centre))))


def run(whitening=WHITE, at=normal, of=value, draws=600, seed=(3,), step=0.7, acceptance=0.9, chains=4, **keywords):
    """Draws in these coordinates, without tuning."""
    starts = ends(whitening, chains)
    tuned = Tuned(whitening, step, starts, np.array([of(x) for x in starts]), acceptance)
    return sample_jumps(at, each(of), tuned, draws=draws, seed=seed, **keywords)


def tune(whitening=WHITE, at=normal, of=value, draws=100, **keywords):
    options = {"seed": [5], "bent": True} | keywords
    return tune_jumps(at, each(of), ends(whitening), whitening, draws=draws, **options)


def assert_mean(draws, truth, errors=4.0):
    """The mean of the draws (chain, draw) is the truth within so many Monte Carlo standard errors."""
    mcse = draws.std() / np.sqrt(float(arviz.ess(draws, method="mean")))
    assert abs(draws.mean() - truth) < errors * mcse, (draws.mean(), truth, mcse)
    return mcse


# --- the right density


@pytest.mark.parametrize(
    "whitening",
    [
        WHITE,
        Whitening(MEAN + np.array([0.7, -0.7]), WHITE.factor),
        Whitening(MEAN, 0.6 * WHITE.factor),
        Whitening(MEAN, 2.0 * WHITE.factor),
        Whitening(MEAN, np.eye(2)),
    ],
    ids=["right", "shifted", "narrow", "wide", "uncorrelated"],
)
@pytest.mark.parametrize("acceptance", [0.9, 0.1], ids=["seldom drifts", "often drifts"])
def test_moments_of_a_gaussian(whitening, acceptance):
    x = run(whitening, acceptance=acceptance).chains.x
    for i in range(2):
        assert assert_mean(x[:, :, i], MEAN[i]) < 0.1 * np.sqrt(COVARIANCE[i, i])
        for j in range(i + 1):
            assert_mean((x[:, :, i] - MEAN[i]) * (x[:, :, j] - MEAN[j]), COVARIANCE[i, j])


def test_a_proposal_that_is_fitted_to_more_draws_is_accepted_more_often():
    narrow = Whitening(MEAN, 0.3 * WHITE.factor)
    starts = ends(narrow)
    tuned = Tuned(narrow, 0.7, starts, np.array([value(x) for x in starts]), 0.1)
    first = sample_jumps(normal, each(value), tuned, draws=200, seed=(3,))
    again = refitted(tuned, first, bent=False, burn_in=50)
    assert again.seen.shape == (4, 150, 2)
    np.testing.assert_allclose(again.values, each(value)(again.ends), rtol=1e-10)
    later = sample_jumps(normal, each(value), again, draws=600, seed=(4,))
    assert later.chains.acceptance.mean() > 1.5 * first.chains.acceptance.mean()
    for i in range(2):
        assert_mean(later.chains.x[:, :, i], MEAN[i])


def skewed():
    """The logarithm of a gamma variable, which has a long tail to the left."""
    a = 0.7
    truth = stats.loggamma(a)

    def at(x):
        return float(truth.logpdf(x[0])), a - np.exp(x)

    return truth, at, Whitening(np.array([truth.mean()]), np.array([[truth.std()]]))


@pytest.mark.parametrize("bent", [False, True])
def test_moments_of_a_skewed_density_after_tuning(bent):
    truth, at, whitening = skewed()
    found = tune(whitening, at, lambda x: at(x)[0], bent=bent, draws=150)
    assert isinstance(found, Tuned)
    assert (found.whitening.bend is not None and np.any(found.whitening.bend.side)) == bent
    x = sample_jumps(at, each(lambda x: at(x)[0]), found, draws=1200, seed=[8]).chains.x[:, :, 0]
    assert assert_mean(x, truth.mean()) < 0.05
    assert_mean((x - truth.mean()) ** 2, truth.var())
    for p in (0.01, 0.05, 0.5, 0.95, 0.99):
        assert_mean((x < truth.ppf(p)).astype(float), p)


def test_a_bend_makes_jumps_more_acceptable():
    _, at, whitening = skewed()
    shares = [tune(whitening, at, lambda x: at(x)[0], bent=bent, draws=300).acceptance for bent in (False, True)]
    assert shares[1] > shares[0]


def test_drifts_do_what_jumps_cannot():
    """A proposal seven times too narrow: hardly a jump is accepted away from the middle, and draws are right still."""
    narrow = Whitening(MEAN, WHITE.factor / 7.0)
    chains = run(narrow, step=4.0, acceptance=0.1, draws=2500).chains
    away = np.linalg.norm(narrow.to_eta(chains.x), axis=2) > 7.0
    assert away.mean() > 0.4
    assert chains.acceptance[away].mean() < 0.1
    for i in range(2):
        assert assert_mean(chains.x[:, :, i], MEAN[i]) < 0.15 * np.sqrt(COVARIANCE[i, i])
        assert_mean((chains.x[:, :, i] - MEAN[i]) ** 2, COVARIANCE[i, i])


def test_the_proposal_is_a_density():
    one = Proposal(1)
    total, _ = quad(lambda e: np.exp(one.log_density(np.array([e]))), -np.inf, np.inf)
    assert total == pytest.approx(1.1, rel=1e-6)  # of η / s, so s in all: the constant cancels in every ratio
    rng = np.random.default_rng(0)
    drawn = np.array([one.draw(rng)[0] for _ in range(20_000)])
    inside, _ = quad(lambda e: np.exp(one.log_density(np.array([e]))) / 1.1, -1.0, 1.0)
    assert np.mean(np.abs(drawn) < 1.0) == pytest.approx(inside, abs=0.015)
    assert np.abs(drawn).max() > 6.0  # tails longer than a Gaussian's


def test_log_densities_and_acceptance_are_those_of_the_draws():
    chains = run(draws=60).chains
    np.testing.assert_allclose(chains.log_density, [[value(x) for x in chain] for chain in chains.x])
    assert ((chains.acceptance > 0.0) & (chains.acceptance <= 1.0)).all()
    assert not chains.diverging.any()
    numbers = convergence(chains.x)
    assert numbers.ess_bulk.min() > 0.3 * chains.x.shape[0] * chains.x.shape[1]


# --- tuning


def test_tuning_finds_coordinates_and_a_step():
    poor = Whitening(MEAN + 1.0, np.diag([3.0, 0.4]))
    found = tune(poor, draws=200, target_accept=0.8)
    assert isinstance(found, Tuned)
    np.testing.assert_allclose(found.whitening.middle, MEAN, atol=0.5)
    np.testing.assert_allclose(found.whitening.straightened().covariance, COVARIANCE, atol=0.9)
    assert found.acceptance > 0.5
    assert 0.3 < found.step < 3.0
    assert found.latest is not None
    assert found.latest.chains.n_draws == 100
    np.testing.assert_array_equal(found.ends, found.latest.chains.x[:, -1])


def test_tuning_that_is_cut_short_says_so():
    """Of its first stage, which comes from where chains were put, nothing is kept."""
    found = tune(watch=lambda w: 0 if w.done >= 10 else None, draws=100_000)
    assert isinstance(found, SampledRun)
    assert found.chains.n_draws == 0
    later = tune(watch=lambda w: 0 if w.done >= 3010 else None, draws=6000)
    assert isinstance(later, SampledRun)
    assert 0 < later.chains.n_draws < 3000


def test_a_watcher_sees_no_draws_while_tuning():
    seen = []
    tune(watch=lambda w: seen.append((w.chains.n_draws, w.done)), draws=60)
    assert {n for n, _ in seen} == {0}
    assert seen[-1][1] == 60


# --- what it costs


@pytest.mark.parametrize(("acceptance", "jumps", "every"), [(0.5, 3, 8), (0.3, 4, 6), (0.1, 3, 1)])
def test_a_draw_takes_a_few_values_and_a_drift_a_few_gradients(acceptance, jumps, every):
    lock, values, gradients = threading.Lock(), [], []

    def counted(x):
        with lock:
            values.append(x)
        return value(x)

    def counted_at(x):
        with lock:
            gradients.append(x)
        return normal(x)

    result = run(at=counted_at, of=counted, draws=48, chains=3, acceptance=acceptance)
    assert len(values) == 3 * (jumps * 48 + 1)  # one more for where each chain begins, by this test
    steps, drifts = result.chains.n_steps, 3 * 48 // every
    assert (steps > 0).sum() == drifts
    assert steps.max() <= 4
    assert steps.sum() <= len(gradients) <= steps.sum() + drifts  # a slope where a jump was accepted before


# --- the same seed


def assert_same(a: Chains, b: Chains):
    for name, left, right in zip(Chains._fields, a, b, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=name)


def test_same_seed_same_draws_however_many_run_at_once():
    first = run(parallel=1, chains=3, draws=80).chains
    assert_same(first, run(parallel=2, chains=3, draws=80).chains)
    assert_same(first, run(parallel=5, chains=3, draws=80).chains)


def test_another_seed_gives_other_draws_and_so_does_another_chain():
    first, second = run(draws=50).chains.x, run(draws=50, seed=(4,)).chains.x
    assert not np.any(np.all(first == second, axis=2))
    assert not np.any(np.all(first[0] == first[1], axis=1))


def test_a_shorter_run_is_the_beginning_of_a_longer_one():
    np.testing.assert_array_equal(run(draws=40).chains.x, run(draws=90).chains.x[:, :40])


# --- values of no use


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_where_there_is_no_value_there_is_no_draw(wrong):
    """A normal cut off at its mean."""

    def cut(x):
        return wrong if x[0] > MEAN[0] else value(x)

    def cut_at(x):
        return cut(x), normal(x)[1]

    starts = np.array([MEAN - 1.0] * 4)
    tuned = Tuned(WHITE, 0.7, starts, np.array([cut(x) for x in starts]), 0.4)
    x = sample_jumps(cut_at, each(cut), tuned, draws=600, seed=[1]).chains.x[:, :, 0]
    assert x.max() <= MEAN[0]
    assert_mean(x, MEAN[0] + stats.truncnorm(-np.inf, 0.0).mean(), errors=5.0)


def test_a_start_without_a_value_is_refused():
    with pytest.raises(NumericalError, match="not finite where a chain should start"):
        tune(at=lambda x: (np.nan, np.zeros(2)), of=lambda x: np.nan)


def test_a_place_where_one_of_the_two_fails_holds_no_chain():
    """Value and gradient come from two programs, which need not fail at the same places."""

    def at(x):
        return (np.nan, np.zeros(2)) if x[0] > MEAN[0] + 0.8 else normal(x)

    def of(x):
        return np.nan if x[0] > MEAN[0] + 1.2 else value(x)

    chains = run(at=at, of=of, acceptance=0.1, draws=1000, chains=4).chains
    assert np.isfinite(chains.log_density).all()
    assert chains.x[:, :, 0].max() <= MEAN[0] + 1.2
    assert_mean(chains.x[:, :, 0], MEAN[0] + stats.truncnorm(-np.inf, 1.2).mean())


def test_an_error_of_either_density_reaches_the_caller():
    class Mine(LookupError):
        pass

    def raises(x):
        raise Mine

    with pytest.raises(Mine):
        run(of=raises, draws=5)
    with pytest.raises(Mine):
        run(at=raises, draws=8)  # the eighth has a drift
