"""Independence proposals and HMC transitions draw from the right density, however poor proposal and coordinates are.

What every sampler owes is in tests/contracts/test_samplers.py.
"""

import threading

import numpy as np
import pytest
from scipy import stats

from integrand.errors import NumericalError
from integrand.infer.base import Plan, Run, keep_going
from integrand.infer.convergence import convergence
from integrand.infer.coordinates import Coordinates, TailWarp
from integrand.infer.independence_mh import Adapted, IndependenceMH, Mix
from integrand.infer.mixture import Mixture
from known_posteriors import FunctionTarget, assert_mean, shifted

# The densities are called a hundred thousand times, and so is what leads to them.
pytestmark = pytest.mark.usefixtures("as_users_see_it")

MEAN = np.array([2.0, -1.0])
COVARIANCE = np.array([[1.0, 0.8], [0.8, 2.0]])
PRECISION = np.linalg.inv(COVARIANCE)
WHITE = Coordinates(MEAN, np.linalg.cholesky(COVARIANCE))
# Nearly straight around the mean, logarithmic far out on one side of each coordinate.
WARP = TailWarp(np.array([1.0, -1.0]), MEAN + np.array([-2.5, 3.5]))
WARPED = Coordinates(WARP.to_psi(MEAN), WHITE.factor / WARP.slope(WARP.to_psi(MEAN))[:, None], WARP)
SEEDED = shifted(Plan(warmup=0, draws=600, seed=(3,)))


def normal(x):
    d = x - MEAN
    return -0.5 * float(d @ PRECISION @ d), -PRECISION @ d


def value(x):
    return normal(x)[0]


NORMAL = FunctionTarget(normal, value, dimension=2)


def starts_in(coordinates, chains=4):
    return coordinates.to_x(np.random.default_rng(9).standard_normal((chains, coordinates.dimension)))


def adapted_to(coordinates, target=NORMAL, acceptance=0.9, step=0.7, chains=4, ends=None) -> Adapted:
    """What warm-up could have given: these coordinates and this share of accepted proposals."""
    ends = starts_in(coordinates, chains) if ends is None else ends
    return Adapted(coordinates, Mixture.over([coordinates], [0.0]), step, ends, target.values(ends), acceptance)


def sample(coordinates=WHITE, target=NORMAL, plan=SEEDED, sampler=IndependenceMH(), **adapted) -> Run:
    """Draws in these coordinates, without warm-up."""
    return sampler.sample(target, adapted_to(coordinates, target, **adapted), plan, keep_going)


def warm_up(coordinates=WHITE, target=NORMAL, callback=keep_going, sampler=IndependenceMH(), **plan) -> Adapted | Run:
    plan = shifted(Plan(**({"warmup": 100, "draws": 0, "seed": (5,)} | plan)))
    return sampler.warm_up(target, starts_in(coordinates), coordinates, plan, callback)


# --- the right density


@pytest.mark.parametrize(
    "coordinates",
    [
        pytest.param(WHITE, marks=pytest.mark.slow),
        Coordinates(MEAN + np.array([0.7, -0.7]), WHITE.factor),
        pytest.param(Coordinates(MEAN, 0.6 * WHITE.factor), marks=pytest.mark.slow),
        pytest.param(Coordinates(MEAN, 2.0 * WHITE.factor), marks=pytest.mark.slow),
        pytest.param(Coordinates(MEAN, np.eye(2)), marks=pytest.mark.slow),
        WARPED,
    ],
    ids=["right", "shifted", "narrow", "wide", "uncorrelated", "warped"],
)
@pytest.mark.parametrize(
    "acceptance", [0.9, pytest.param(0.1, marks=pytest.mark.slow)], ids=["few HMC transitions", "many"]
)
def test_moments_of_a_gaussian(coordinates, acceptance):
    x = sample(coordinates, acceptance=acceptance).chains.x
    for i in range(2):
        assert assert_mean(x[:, :, i], MEAN[i]) < 0.1 * np.sqrt(COVARIANCE[i, i])
        for j in range(i + 1):
            assert_mean((x[:, :, i] - MEAN[i]) * (x[:, :, j] - MEAN[j]), COVARIANCE[i, j])


def skewed():
    """The logarithm of a gamma variable, which has a long tail to the left."""
    a = 0.7
    truth = stats.loggamma(a)
    target = FunctionTarget(
        lambda x: (float(truth.logpdf(x[0])), a - np.exp(x)), lambda x: float(truth.logpdf(x[0])), dimension=1
    )
    return truth, target, Coordinates(np.array([truth.mean()]), np.array([[truth.std()]]))


@pytest.fixture(scope="module")
def adapted_to_skewed():
    _, target, coordinates = skewed()
    return warm_up(coordinates, target, warmup=300)


def test_moments_of_a_skewed_density_after_warm_up(adapted_to_skewed):
    truth, target, _ = skewed()
    assert np.any(adapted_to_skewed.coordinates.warp.side)
    plan = shifted(Plan(warmup=0, draws=1200, seed=(8,)))
    x = IndependenceMH().sample(target, adapted_to_skewed, plan, keep_going).chains.x[:, :, 0]
    assert assert_mean(x, truth.mean()) < 0.05
    assert_mean((x - truth.mean()) ** 2, truth.var())
    for p in (0.01, 0.05, 0.5, 0.95, 0.99):
        assert_mean((x < truth.ppf(p)).astype(float), p)


def test_more_proposals_are_accepted_in_warped_coordinates(adapted_to_skewed):
    _, target, coordinates = skewed()
    plan = shifted(Plan(warmup=0, draws=300, seed=(8,)))
    warped = adapted_to_skewed.coordinates
    shares = [sample(c, target, plan).chains.acceptance.mean() for c in (coordinates, warped)]
    assert shares[1] > shares[0]


@pytest.mark.slow
def test_hmc_leads_where_no_proposal_is_accepted():
    """A proposal seven times too narrow: away from the middle hardly one is accepted, and draws are right still."""
    narrow = Coordinates(MEAN, WHITE.factor / 7.0)
    chains = sample(narrow, step=4.0, acceptance=0.1, plan=SEEDED.but(draws=2500)).chains
    away = np.linalg.norm(narrow.to_eta(chains.x), axis=2) > 7.0
    assert away.mean() > 0.4
    assert chains.acceptance[away].mean() < 0.1
    for i in range(2):
        assert assert_mean(chains.x[:, :, i], MEAN[i]) < 0.15 * np.sqrt(COVARIANCE[i, i])
        assert_mean((chains.x[:, :, i] - MEAN[i]) ** 2, COVARIANCE[i, i])


@pytest.mark.slow
def test_options_that_cost_acceptances_do_not_cost_rightness():
    """A Gaussian proposal of twice the width, and HMC with one leapfrog step."""
    odd = IndependenceMH(max_leapfrog=1, step_jitter=0.0, mixes=((0.0, Mix(2, 4)),))
    chains = sample(Coordinates(MEAN, 2.0 * WHITE.factor), sampler=odd).chains
    assert chains.acceptance.mean() < sample().chains.acceptance.mean()
    assert set(np.unique(chains.n_steps)) == {0, 1}
    for i in range(2):
        assert_mean(chains.x[:, :, i], MEAN[i])


def test_all_proposals_of_the_kept_draws_come_back():
    result = sample(plan=SEEDED.but(draws=60))
    proposals = result.proposals
    assert proposals is not None
    assert proposals.x.shape == (4 * 60 * IndependenceMH().mixes[0][1].proposals, 2)
    np.testing.assert_allclose(proposals.log_density, [value(x) for x in proposals.x])
    mixture = adapted_to(WHITE).mixture
    np.testing.assert_allclose(proposals.log_q, mixture.log_density(proposals.x), rtol=1e-12)
    ended = IndependenceMH().sample(NORMAL, adapted_to(WHITE), SEEDED, lambda s: 7 if s.chains.n_draws > 7 else None)
    assert ended.proposals is not None
    assert len(ended.proposals.x) == 4 * 7 * IndependenceMH().mixes[0][1].proposals


def test_draws_are_effective_and_have_no_energy():
    chains = sample(plan=SEEDED.but(draws=60)).chains
    np.testing.assert_allclose(chains.log_density, [[value(x) for x in chain] for chain in chains.x])
    assert not chains.diverging.any()
    assert np.isnan(chains.energy).all()  # there is no momentum whose mixing could be judged
    assert convergence(chains.x).ess_bulk.min() > 0.3 * chains.x[:, :, 0].size


# --- warm-up


def test_warm_up_finds_coordinates_and_a_step():
    poor = Coordinates(MEAN + 1.0, np.diag([3.0, 0.4]))
    adapted = warm_up(poor, warmup=200, target_accept=0.8)
    assert isinstance(adapted, Adapted)
    np.testing.assert_allclose(adapted.coordinates.middle, MEAN, atol=0.5)
    np.testing.assert_allclose(adapted.coordinates.unwarped().covariance, COVARIANCE, atol=0.9)
    assert adapted.acceptance > 0.5
    assert 0.3 < adapted.step < 3.0
    assert adapted.latest is not None
    assert adapted.latest.chains.n_draws == 100
    np.testing.assert_array_equal(adapted.ends, adapted.latest.chains.x[:, -1])


def test_a_proposal_that_is_fitted_to_more_draws_is_accepted_more_often():
    adapted = adapted_to(Coordinates(MEAN, 0.3 * WHITE.factor), acceptance=0.1)
    first = IndependenceMH().sample(NORMAL, adapted, SEEDED.but(draws=200), keep_going)
    again = adapted.refitted(first, burn_in=50)
    assert again.draws.shape == (4, 150, 2)
    np.testing.assert_allclose(again.values, NORMAL.values(again.ends), rtol=1e-10)
    later = IndependenceMH().sample(NORMAL, again, SEEDED.but(seed=(4,)), keep_going)
    assert later.chains.acceptance.mean() > 1.5 * first.chains.acceptance.mean()
    for i in range(2):
        assert_mean(later.chains.x[:, :, i], MEAN[i], errors=5.0)


@pytest.mark.slow
def test_warm_up_that_is_cut_short_says_so():
    """Of its first stage, which comes from where chains were put, nothing is kept."""
    two_stages = IndependenceMH(well_accepted=2.0)
    found = warm_up(sampler=two_stages, callback=lambda s: 0 if s.done >= 10 else None, warmup=100_000)
    assert isinstance(found, Run)
    assert found.chains.n_draws == 0
    later = warm_up(sampler=two_stages, callback=lambda s: 0 if s.done >= 3010 else None, warmup=6000)
    assert isinstance(later, Run)
    assert 0 < later.chains.n_draws < 3000


def test_a_callback_sees_no_draws_of_warm_up():
    seen = []
    two_stages = IndependenceMH(well_accepted=2.0)
    warm_up(sampler=two_stages, callback=lambda s: seen.append((s.chains.n_draws, s.done)), warmup=60)
    assert {n for n, _ in seen} == {0}
    assert seen[-1][1] == 60


def test_one_stage_is_enough_where_most_proposals_are_accepted():
    well, poor = warm_up(warmup=60), warm_up(coordinates=Coordinates(MEAN, 0.2 * WHITE.factor), warmup=60)
    assert len(well.stages) == 1
    assert len(poor.stages) >= 2


@pytest.mark.parametrize(("dimension", "wanted", "warmup"), [(3, 60, 60), (3, 15, 22), (20, 60, 140), (90, 31, 200)])
def test_warm_up_is_long_enough_for_a_covariance_matrix(dimension, wanted, warmup):
    assert IndependenceMH().warmup(dimension, wanted) == warmup


# --- what it costs


@pytest.mark.parametrize(("acceptance", "mix"), [(0.5, Mix(1, 32)), (0.3, Mix(2, 12)), (0.1, Mix(3, 1))])
def test_a_draw_takes_a_few_values_and_an_hmc_transition_a_few_gradients(acceptance, mix):
    target = FunctionTarget(normal, value, dimension=2)
    result = sample(target=target, plan=SEEDED.but(draws=48), chains=3, acceptance=acceptance)
    assert target.counter.values == 3 * (mix.proposals * 48 + 1)  # one more for where each chain begins, by this test
    steps, transitions = result.chains.n_steps, 3 * (48 // mix.hmc_every)
    assert (steps > 0).sum() == transitions
    assert steps.max() <= 4
    # A gradient more where a proposal was accepted before.
    assert steps.sum() <= target.counter.gradients <= steps.sum() + transitions
    assert result.evaluations == 0  # the target has counted


# --- values of no use


@pytest.mark.parametrize(
    "wrong", [np.nan, *(pytest.param(infinite, marks=pytest.mark.slow) for infinite in (np.inf, -np.inf))]
)
def test_where_there_is_no_value_there_is_no_draw(wrong):
    """A normal cut off at its mean."""

    def cut(x):
        return wrong if x[0] > MEAN[0] else value(x)

    target = FunctionTarget(lambda x: (cut(x), normal(x)[1]), cut, dimension=2)
    ends = np.array([MEAN - 1.0] * 4)
    x = sample(target=target, ends=ends, acceptance=0.4).chains.x[:, :, 0]
    assert x.max() <= MEAN[0]
    assert_mean(x, MEAN[0] + stats.truncnorm(-np.inf, 0.0).mean(), errors=5.0)


def test_a_start_needs_a_value_from_one_of_the_two_ways():
    nowhere = FunctionTarget(lambda x: (np.nan, np.zeros(2)), lambda x: np.nan, dimension=2)
    with pytest.raises(NumericalError, match="not finite where a chain should start"):
        warm_up(target=nowhere)
    calls = []

    def only_later(x):  # rounding made the first values fail
        calls.append(1)
        return np.nan if len(calls) <= 4 else value(x)

    assert isinstance(warm_up(target=FunctionTarget(normal, only_later, dimension=2)), Adapted)


@pytest.mark.slow
def test_a_place_where_one_of_the_two_fails_holds_no_chain():
    """Value and gradient come from two programs, which need not fail at the same places."""

    def with_gradient(x):
        return (np.nan, np.zeros(2)) if x[0] > MEAN[0] + 0.8 else normal(x)

    def alone(x):
        return np.nan if x[0] > MEAN[0] + 1.2 else value(x)

    target = FunctionTarget(with_gradient, alone, dimension=2)
    chains = sample(target=target, acceptance=0.1, plan=SEEDED.but(draws=1000)).chains
    assert np.isfinite(chains.log_density).all()
    assert chains.x[:, :, 0].max() <= MEAN[0] + 1.2
    assert_mean(chains.x[:, :, 0], MEAN[0] + stats.truncnorm(-np.inf, 1.2).mean())


class Mine(LookupError):
    pass


@pytest.mark.parametrize("where", ["values", "gradients"])
def test_an_error_of_either_way_reaches_the_caller(where):
    lock = threading.Lock()

    def raises(x):
        with lock:
            raise Mine

    target = FunctionTarget(*((normal, raises) if where == "values" else (raises, value)), dimension=2)
    adapted = adapted_to(WHITE)
    with pytest.raises(Mine):
        IndependenceMH().sample(target, adapted, SEEDED.but(draws=32), keep_going)  # the last has an HMC transition
