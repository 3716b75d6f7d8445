"""Chains that move by a surrogate and are accepted by the exact density draw from the exact one.

What every sampler owes is in tests/contracts/test_samplers.py.
"""

import numpy as np
import pytest
from scipy import stats

from integrand.errors import NumericalError
from integrand.infer.base import Plan, Run, Target, keep_going
from integrand.infer.coordinates import Coordinates
from integrand.infer.delayed_acceptance import (
    DelayedAcceptance,
    Expansion,
    ThirdOrder,
    centred_at_mode,
    expansion_around,
    heavier_tails,
)
from known_posteriors import FunctionTarget, assert_mean, assert_same, shifted

# The densities are called a hundred thousand times, and so is what leads to them.
pytestmark = pytest.mark.usefixtures("as_users_see_it")

MEAN = np.array([2.0, -1.0])
COVARIANCE = np.array([[1.0, 0.8], [0.8, 2.0]])
PRECISION = np.linalg.inv(COVARIANCE)
WHITE = Coordinates(MEAN, np.linalg.cholesky(COVARIANCE))


def normal(mean=MEAN, precision=PRECISION) -> FunctionTarget:
    """A normal log density."""

    def log_density(x):
        d = x - mean
        return -0.5 * float(d @ precision @ d), -precision @ d

    return FunctionTarget(log_density, lambda x: log_density(x)[0], dimension=len(mean))


EXACT = normal()


def of_value(value, dimension=2) -> FunctionTarget:
    """An exact density whose gradient nobody may ask for."""

    def log_density(x):
        raise AssertionError("a gradient of the exact density")

    return FunctionTarget(log_density, value, dimension=dimension)


def sample(
    surrogate: Target = EXACT,
    exact: Target | None = None,
    coordinates=WHITE,
    chains=4,
    starts=None,
    steps=None,
    callback=keep_going,
    **plan,
) -> Run:
    if starts is None:
        starts = coordinates.to_x(np.random.default_rng(9).standard_normal((chains, coordinates.dimension)))
    exact = of_value(lambda x: EXACT.value(x)) if exact is None else exact
    plan = shifted(Plan(**({"warmup": 100, "draws": 600, "seed": (3,)} | plan)))
    return DelayedAcceptance(exact).sample(surrogate, starts, coordinates, plan, callback, steps)


# --- the right density, however wrong the surrogate is


@pytest.mark.parametrize(
    ("surrogate", "draws"),
    [
        pytest.param(normal(), 300, marks=pytest.mark.slow),
        (normal(mean=MEAN + np.array([0.7, -0.7])), 600),
        pytest.param(normal(precision=2.0 * PRECISION), 600, marks=pytest.mark.slow),
        pytest.param(normal(precision=0.5 * PRECISION), 600, marks=pytest.mark.slow),
        (normal(precision=np.diag([1.0, 0.5])), 600),
    ],
    ids=["right", "shifted", "narrow", "wide", "uncorrelated"],
)
def test_moments_of_a_gaussian(surrogate, draws):
    x = sample(surrogate, draws=draws).chains.x
    for i in range(2):
        assert assert_mean(x[:, :, i], MEAN[i]) < 0.15 * np.sqrt(COVARIANCE[i, i])
        for j in range(i + 1):
            assert_mean((x[:, :, i] - MEAN[i]) * (x[:, :, j] - MEAN[j]), COVARIANCE[i, j])


@pytest.mark.parametrize(
    ("shift", "width"), [(0.5, 1.0), *(pytest.param(*at, marks=pytest.mark.slow) for at in ((0.0, 1.0), (0.0, 1.4)))]
)
def test_moments_of_a_skewed_density(shift, width):
    """The logarithm of a gamma variable, proposed by a normal that is near it, beside it, or wider."""
    truth = stats.loggamma(2.0)
    mean, sd = truth.mean() + shift, width * truth.std()
    surrogate = normal(np.array([mean]), np.array([[sd**-2]]))
    exact = of_value(lambda x: float(truth.logpdf(x[0])), dimension=1)
    x = sample(surrogate, exact, Coordinates(np.array([mean]), np.array([[sd]])), draws=700)
    first = x.chains.x[:, :, 0]
    assert assert_mean(first, truth.mean()) < 0.1
    assert_mean((first - truth.mean()) ** 2, truth.var())
    assert_mean((first - truth.mean()) ** 3, float(truth.stats("s")) * truth.std() ** 3)
    for p in (0.05, 0.5, 0.95):
        assert_mean((first < truth.ppf(p)).astype(float), p)


def test_equal_densities_accept_every_proposal():
    chains = sample(draws=100).chains
    np.testing.assert_allclose(chains.acceptance, 1.0, atol=1e-9)
    np.testing.assert_allclose(chains.log_density, [EXACT.values(x) for x in chains.x])
    assert np.isnan(chains.energy).all()  # momenta belong to the surrogate


def test_a_constant_between_the_densities_changes_nothing():
    """Neither is normalised: only differences of each count."""
    shifted = sample(exact=of_value(lambda x: EXACT.value(x) + 1e3), draws=100).chains
    np.testing.assert_allclose(shifted.x, sample(draws=100).chains.x)


def test_a_worse_surrogate_is_accepted_less():
    shares = [sample(normal(mean=MEAN + shift), draws=100).chains.acceptance.mean() for shift in (0.0, 0.5, 2.0)]
    assert shares[0] > shares[1] > shares[2]
    assert shares[1] < 0.95


def test_given_step_sizes_stay_and_there_is_no_warm_up():
    steps = np.array([0.2, 0.5, 0.7, 1.0])
    result = sample(steps=steps, draws=20)
    assert result.warmup == 0
    np.testing.assert_allclose(result.chains.step_size, np.tile(steps[:, None], 20))
    adapted = sample(draws=20).chains.step_size
    assert np.all(np.ptp(adapted, axis=1) == 0.0)
    assert len(np.unique(adapted)) == 4


# --- what it costs


def test_a_draw_takes_one_value_and_warm_up_none():
    exact = of_value(lambda x: EXACT.value(x))  # and no gradient
    result = sample(exact=exact, warmup=50, draws=40, chains=3)
    assert exact.counter.values == 3 * (40 + 1)  # one more for where each chain begins
    assert result.evaluations == 0  # the exact target has counted
    exact = of_value(lambda x: EXACT.value(x))
    sample(exact=exact, warmup=50, draws=0)
    assert exact.counter.values == 0


# --- values of no use

WRONG = [np.nan, *(pytest.param(infinite, marks=pytest.mark.slow) for infinite in (np.inf, -np.inf))]


@pytest.mark.parametrize("wrong", WRONG)
def test_an_exact_value_that_is_no_number_is_never_accepted(wrong):
    """A normal cut off at its mean: beyond it there is no value, and no draw."""
    exact = of_value(lambda x: wrong if x[0] > MEAN[0] else EXACT.value(x))
    result = sample(exact=exact, starts=np.array([MEAN - 1.0] * 4), warmup=0, draws=400, seed=(1,))
    x = result.chains.x[:, :, 0]
    assert x.max() <= MEAN[0]
    assert np.isfinite(result.chains.log_density).all()
    assert exact.counter.failures > 50
    assert_mean(x, MEAN[0] + stats.truncnorm(-np.inf, 0.0).mean(), errors=5.0)


@pytest.mark.parametrize("wrong", WRONG)
def test_where_a_chain_starts_without_a_value_it_leaves_at_once(wrong):
    """Warm-up knows nothing of the exact density, so a chain may begin its draws where that has no value."""
    exact = of_value(lambda x: wrong if x[0] > MEAN[0] else EXACT.value(x))
    starts = np.array([MEAN + np.array([0.5, 0.0])] * 4)
    chains = sample(exact=exact, starts=starts, warmup=0, draws=100, seed=(1,)).chains
    assert np.isfinite(chains.log_density[:, 20:]).all()
    assert chains.x[:, 20:, 0].max() <= MEAN[0]


@pytest.mark.parametrize("wrong", WRONG)
def test_the_surrogate_may_have_holes(wrong):
    def holed(x):
        return (wrong, np.full(2, np.nan)) if x[1] > MEAN[1] + 1.0 else EXACT.log_density(x)

    starts = np.array([MEAN - 1.0] * 4)
    chains = sample(FunctionTarget(holed, dimension=2), starts=starts, warmup=60, draws=300, seed=(1,)).chains
    assert chains.x[:, :, 1].max() <= MEAN[1] + 1.0
    assert np.isfinite(chains.x).all()


def test_a_start_in_a_hole_is_refused():
    with pytest.raises(NumericalError, match="not finite where a chain should start"):
        sample(FunctionTarget(lambda x: (np.nan, np.zeros(2)), dimension=2))


class Mine(LookupError):
    pass


def test_an_error_of_either_density_reaches_the_caller():
    def raises(x):
        raise Mine

    with pytest.raises(Mine):
        sample(exact=of_value(raises), draws=5)
    with pytest.raises(Mine):
        sample(FunctionTarget(raises, dimension=2), draws=5)


# --- the third order of a log density around its mode, from gradients

RNG = np.random.default_rng(5)
CENTRE = np.array([2.0, -1.0, 0.5])
F = np.linalg.inv(np.linalg.cholesky(np.linalg.inv(np.cov(RNG.standard_normal((3, 9)))))).T
WHITENED = Coordinates(CENTRE, F)
SHAPES = np.array([6.0, 15.0, 40.0])


def gamma(x):
    """Logs of three gamma variables, skewed but no more than third order can tell nearby."""
    return float(np.sum(SHAPES * x - SHAPES * np.exp(x))), SHAPES - SHAPES * np.exp(x)


GAMMA_WHITENED = Coordinates(np.zeros(3), np.diag(SHAPES**-0.5))


def gradient_by_differences(f, x, step=1e-5):
    return np.array([(f(x + d)[0] - f(x - d)[0]) / (2 * step) for d in step * np.eye(len(x))])


def test_the_gradient_is_that_of_the_value():
    H, W = -np.eye(3) - 0.1 * np.ones((3, 3)), 0.3 * RNG.standard_normal((3, 3))
    c = Expansion(WHITENED, 1.0, RNG.standard_normal(3), H, W, np.array([4.0, 2.0, 0.5])).value_and_gradient
    for scale in (0.0, 0.1, 1.0, 3.0, 10.0):
        x = CENTRE + scale * F @ RNG.standard_normal(3)
        np.testing.assert_allclose(c(x)[1], gradient_by_differences(c, x), rtol=1e-5, atol=1e-5)


def test_a_polynomial_without_products_of_three_is_found_exactly():
    """In whitened coordinates: any quadratic, and third-order terms in at most two coordinates."""
    H, W, g = -np.eye(3) + 0.2 * np.ones((3, 3)), 0.1 * RNG.standard_normal((3, 3)), np.array([0.1, -0.3, 0.2])

    def f(x):
        d = WHITENED.to_eta(x)
        value = 7.0 + g @ d + 0.5 * d @ H @ d + (d * d) @ W @ d
        return float(value), np.linalg.solve(F.T, g + H @ d + 2.0 * d * (W @ d) + W.T @ (d * d))

    found = expansion_around(f, WHITENED)
    assert found.value == pytest.approx(7.0)
    for wanted, got in ((g, found.gradient), (H, found.H), (W, found.W)):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)
    x = CENTRE + 0.05 * F @ np.ones(3)
    assert found.value_and_gradient(x)[0] == pytest.approx(f(x)[0], abs=1e-7)


@pytest.mark.slow
def test_it_has_no_mode_but_the_one_it_was_made_at():
    """Among twenty coordinates one is the log of an exponential variable, as skewed as a hyperparameter gets."""
    P = 20

    def f(x):
        return float(x[0] - np.exp(x[0]) - 0.5 * x[1:] @ x[1:]), np.r_[1.0 - np.exp(x[0]), -x[1:]]

    c = expansion_around(f, Coordinates(np.zeros(P), np.eye(P)))
    for _ in range(50):
        others = RNG.standard_normal(P - 1)
        along = [c.value_and_gradient(np.r_[r, others])[0] for r in np.linspace(-0.5, -30.0, 60)]
        assert np.all(np.diff(along) < 0.0)  # on the side with the long tail it falls all the way
    there = np.r_[-2.0, np.zeros(P - 1)]
    gaussian = c._replace(W=0.0 * c.W)
    miss, miss_gaussian = (abs(e.value_and_gradient(there)[0] - f(there)[0]) for e in (c, gaussian))
    assert miss < miss_gaussian


def test_a_density_that_rises_on_both_sides_is_made_to_fall():
    def saddle(x):
        return float(0.5 * x[0] ** 2 - 0.5 * x[1] ** 2), np.array([x[0], -x[1]])

    found = expansion_around(saddle, Coordinates.identity(2))
    assert np.linalg.eigvalsh(found.H).max() < 0.0
    np.testing.assert_allclose(found.H[1, 1], -1.0)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_gradient_without_a_number_tells_nothing(bad):
    """Beyond x_0 = 1/2 the density cannot be computed: only from x_1 is it known how the two go together."""
    H = np.array([[-1.5, 0.4], [0.4, -0.7]])

    def f(x):
        return (0.5 * float(x @ H @ x), H @ x) if x[0] < 0.5 else (bad, np.zeros(2))

    found = expansion_around(f, Coordinates.identity(2))
    np.testing.assert_allclose(found.H, [[-1.0, 0.4], [0.4, -0.7]])
    np.testing.assert_allclose(found.W, 0.0)


def test_a_centre_without_a_number_is_an_error():
    with pytest.raises(NumericalError, match="not finite where its mode should be"):
        expansion_around(lambda x: (np.nan, x), WHITENED)


def test_it_takes_two_gradients_a_direction_and_one():
    calls = []
    expansion_around(lambda x: calls.append(x) or gamma(x), GAMMA_WHITENED)
    assert len(calls) == 2 * 3 + 1


def test_it_is_nearer_to_a_skewed_density_than_a_gaussian_is():
    c = expansion_around(gamma, GAMMA_WHITENED)
    gaussian = c._replace(W=np.zeros((3, 3)))
    draws = np.log(RNG.gamma(SHAPES, size=(400, 3)) / SHAPES)
    miss, miss_gaussian = (np.std([e.value_and_gradient(x)[0] - gamma(x)[0] for x in draws]) for e in (c, gaussian))
    assert miss < 0.4 * miss_gaussian


def test_chains_that_move_by_it_are_accepted():
    c = expansion_around(gamma, GAMMA_WHITENED)
    exact = of_value(lambda x: gamma(x)[0], dimension=3)

    def accepted(e):
        surrogate = FunctionTarget(e.value_and_gradient, dimension=3)
        run = sample(surrogate, exact, GAMMA_WHITENED, starts=np.zeros((4, 3)), warmup=50, draws=100, seed=(1,))
        return run.chains.acceptance.mean()

    assert accepted(c) > 0.9 > accepted(c._replace(W=np.zeros((3, 3))))


# --- its mode


def test_newton_finds_the_mode():
    off = Coordinates(np.array([0.4, -0.5, 0.2]), GAMMA_WHITENED.factor)
    calls = []
    found = centred_at_mode(lambda x: calls.append(x) or gamma(x), off)
    assert gamma(found.centre)[0] > gamma(np.zeros(3))[0] - 0.02
    assert len(calls) <= 8
    np.testing.assert_array_equal(found.factor, off.factor)


def test_newton_never_goes_downhill():
    def cliff(x):  # steps as long as the whitening says lead nowhere
        return (float(x[0]), np.ones(1)) if x[0] < 0.01 else (-np.inf, np.zeros(1))

    np.testing.assert_array_equal(centred_at_mode(cliff, Coordinates.identity(1)).centre, [0.0])


def test_a_mode_at_the_end_of_a_curved_valley():
    """The curvature at the start says nothing of the way: Newton's method gives up and L-BFGS goes on."""
    calls = []

    def valley(x):
        calls.append(x)
        off = x[1] - x[0] ** 2
        value = -50.0 * off**2 - 2.0 * (x[0] - 1.5) ** 2
        return value, np.array([200.0 * x[0] * off - 4.0 * (x[0] - 1.5), -100.0 * off])

    start = np.array([-1.0, 1.0])
    white = Coordinates(start, np.diag([0.3, 0.1]))
    found = centred_at_mode(valley, white)
    assert valley(found.centre)[0] > -0.5 > valley(start)[0] + 10.0
    np.testing.assert_array_equal(found.factor, white.factor)
    assert len(calls) < 60


# --- a trial first, and NUTS where it fails

STARTS = GAMMA_WHITENED.to_x(0.5 * np.random.default_rng(0).standard_normal((2, 3)))
PLAN = shifted(Plan(warmup=50, draws=60, seed=(1,)))


def exact_gamma() -> FunctionTarget:
    return FunctionTarget(gamma, lambda x: gamma(x)[0], dimension=3)


def run(sampler=None, exact=None, callback=keep_going, starts=STARTS, plan=PLAN) -> tuple[Run, FunctionTarget]:
    exact = exact_gamma() if exact is None else exact
    sampler = DelayedAcceptance(exact) if sampler is None else sampler(exact)
    return sampler.run(ThirdOrder(exact, GAMMA_WHITENED), starts, GAMMA_WHITENED, plan, callback), exact


def test_after_a_good_trial_all_draws_are_accepted_by_the_exact_density():
    result, exact = run()
    assert any("moves were accepted by all rows" in note for note in result.notes)
    # To the mode and around it; one value per draw and chain, and one more at each of their two beginnings.
    assert exact.counter.gradients <= 2 * 3 + 1 + 2
    assert exact.counter.values == 2 * (8 + 1) + 2 * (60 + 1)
    np.testing.assert_allclose(result.chains.log_density, [exact.values(x) for x in result.chains.x])


def test_the_expansion_is_made_once_and_only_if_it_is_needed():
    exact = exact_gamma()
    target = ThirdOrder(exact, GAMMA_WHITENED)
    assert exact.counter.gradients == 0
    value, gradient = target.value_and_gradient(np.array([0.1, 0.0, -0.1]))
    made = exact.counter.gradients
    assert 2 * 3 + 1 <= made <= 2 * 3 + 1 + 8
    np.testing.assert_allclose((value, *gradient), np.r_[gamma(np.array([0.1, 0.0, -0.1]))], rtol=0.05, atol=0.2)
    target.value_and_gradient(np.zeros(3))
    assert exact.counter.gradients == made
    assert (target.n_theta, target.dimension, target.parallel) == (3, 3, 2)


def test_where_few_moves_are_accepted_nuts_draws_from_the_exact_density():
    result, exact = run(lambda exact: DelayedAcceptance(exact, min_accepted=1.1))
    assert any("accepted too seldom" in note and "NUTS on all rows" in note for note in result.notes)
    assert exact.counter.gradients > 2 * 60
    assert not np.isnan(result.chains.energy).any()
    assert result.chains.x.shape == (2, 60, 3)


def lost_target() -> FunctionTarget:
    """The exact density is far below the surrogate everywhere but at the mode: no draw can be there."""
    return FunctionTarget(gamma, lambda x: gamma(x)[0] - 1e4, dimension=3)


def test_chains_that_were_led_astray_begin_again_at_the_mode_by_nuts():
    """As at a saddle, where the Hessian says nothing of how wide the density is."""
    result, _ = run(exact=lost_target())
    assert any("left the posterior: NUTS on all rows" in note for note in result.notes)
    assert np.abs(result.chains.x).max() < 3.0


@pytest.mark.parametrize("how", ["Ctrl-C", "time"])
@pytest.mark.parametrize("lost", [False, True])
def test_an_end_while_the_surrogate_is_tried_out_keeps_the_draws_of_the_trial_unless_they_are_lost(how, lost):
    def callback(s):
        assert s.chains.n_draws == 0  # draws of a trial are not shown
        if how == "Ctrl-C":
            raise KeyboardInterrupt
        return 0

    result, _ = run(exact=lost_target() if lost else None, callback=callback, plan=PLAN.but(warmup=0))
    assert result.interrupted == (how == "Ctrl-C")
    assert any("ended while the third order was tried out" in note for note in result.notes)
    assert result.chains.n_draws <= (0 if lost else 8)


def test_the_draws_after_a_trial_are_those_of_its_step_sizes():
    result, _ = run()
    assert np.all(np.ptp(result.chains.step_size, axis=1) == 0.0)
    again, _ = run()
    assert_same(result.chains, again.chains)


def test_heavier_tails_have_their_gradient_and_end():
    z = np.array([-6.0, -3.0, -0.2, 0.0, 1.5, 4.0])
    value, slope = heavier_tails(z)
    steps = 1e-6 * np.eye(len(z))
    numerical = [(heavier_tails(z + d)[0] - heavier_tails(z - d)[0]) / 2e-6 for d in steps]
    np.testing.assert_allclose(slope, numerical, atol=1e-6)
    assert slope[0] == 0.0
    # As a density it is a mixture: a tenth of it is a t.
    grid = np.linspace(-4.9, 4.9, 2_001)
    mixture = np.exp([heavier_tails(np.array([g]))[0] for g in grid]) * stats.norm.pdf(grid)
    np.testing.assert_allclose(mixture, 0.9 * stats.norm.pdf(grid) + 0.1 * stats.t(3).pdf(grid), rtol=1e-10)
    assert value > 0.0


@pytest.mark.slow
def test_chains_reach_a_long_tail():
    """One coordinate has the tail of an exponential; its 99 % quantile is passed as often as it should be."""
    truth = stats.genlogistic(1.0, scale=0.6)

    def f(x):
        return float(truth.logpdf(x[0])), np.array([-np.tanh(x[0] / 1.2) / 0.6])

    exact = FunctionTarget(f, lambda x: f(x)[0], dimension=1)
    coordinates = Coordinates(np.zeros(1), np.array([[np.sqrt(2.0) * 0.6]]))
    surrogate = ThirdOrder(exact, coordinates)
    plan = shifted(Plan(warmup=60, draws=1_500, seed=(4,)))
    starts = np.linspace(-1.0, 1.0, 4)[:, None]
    x = DelayedAcceptance(exact).sample(surrogate, starts, coordinates, plan, keep_going).chains.x[:, :, 0]
    for p in (0.01, 0.99):
        assert_mean((x < truth.ppf(p)).astype(float), p)
