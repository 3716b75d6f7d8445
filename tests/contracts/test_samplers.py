"""What every sampler owes whoever calls it, on posteriors whose moments are known: a new one is added to a list."""

import importlib
import pkgutil
import signal
import threading
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

import integrand.infer
from integrand.errors import InputError, NumericalError
from integrand.infer.base import Plan, Run, Sampler, Target, keep_going
from integrand.infer.blackjax_kernels import BlackJaxKernel
from integrand.infer.convergence import convergence
from integrand.infer.coordinates import Coordinates
from integrand.infer.default_sampler import DefaultSampler
from integrand.infer.delayed_acceptance import DelayedAcceptance, ThirdOrder
from integrand.infer.independence_mh import IndependenceMH
from integrand.infer.nuts import NUTS
from known_posteriors import (
    COVARIANCE,
    MEAN,
    SHAPE,
    SKEWED,
    SLOPE,
    WHITE,
    WIDTH,
    FunctionTarget,
    TracedTarget,
    assert_mean,
    assert_same,
    normal,
    shifted,
    starts,
    z_of_mean,
    z_of_sd,
)

# The densities are called a hundred thousand times, and so is what leads to them.
pytestmark = pytest.mark.usefixtures("as_users_see_it")

IN_PYTHON = ("default", "nuts", "independence", "delayed acceptance")
INSIDE_XLA = ("hmc", "mala", "metropolis", "slice")
SAMPLERS = (*IN_PYTHON, *INSIDE_XLA)
# Those inside XLA share all but one step, which has tests of its own: one shows what is around it. Delayed acceptance
# draws by NUTS. The slow suite has all.
SOME = (*IN_PYTHON[:3], INSIDE_XLA[0])
ONE_INSIDE_XLA = [pytest.param(n, marks=() if n in SOME else pytest.mark.slow) for n in SAMPLERS]


SHORT = Plan(warmup=60, draws=60, seed=(3,))


def run(
    name: str,
    target: Target | None = None,
    coordinates: Coordinates = WHITE,
    plan: Plan = SHORT,
    callback=keep_going,
    chains: int = 2,
    at: np.ndarray | None = None,
) -> Run:
    target = TracedTarget(normal(), 3) if target is None else target
    at, plan = starts(coordinates, chains) if at is None else at, shifted(plan)
    samplers = {"default": DefaultSampler(), "nuts": NUTS(), "independence": IndependenceMH()}
    if name == "delayed acceptance":
        moved = ThirdOrder(target, coordinates)
        return DelayedAcceptance(target).run(moved, at, coordinates, plan, callback)
    return (samplers.get(name) or BlackJaxKernel(name)).run(target, at, coordinates, plan, callback)


# Those that do not draw from the target they are given, and where they are tested.
ELSEWHERE = {
    "PseudoMarginal": "tests/infer/test_noisy_likelihood.py: the likelihood is estimated",
    "LatentSlice": "tests/infer/test_latent_slice.py: a Gaussian prior and a likelihood, apart",
    "SGHMC": "tests/infer/test_sghmc.py: from batches of rows, of a density near the posterior",
    "SafeStepSGHMC": "tests/infer/test_sghmc.py: the same with a step size that is found",
}


def test_every_sampler_has_its_place():
    for module in pkgutil.iter_modules(integrand.infer.__path__, "integrand.infer."):
        importlib.import_module(module.name)
    library = {kind.__name__ for kind in subclasses(Sampler) if kind.__module__.startswith("integrand.infer.")}
    here = {"DefaultSampler", "NUTS", "IndependenceMH", "DelayedAcceptance", "BlackJaxKernel"}
    assert library == here | set(ELSEWHERE)
    assert not here & set(ELSEWHERE)


def subclasses(kind):
    for direct in kind.__subclasses__():
        yield direct
        yield from subclasses(direct)


# --- the right draws


class Posterior(NamedTuple):
    """A target with the marginal distributions that its draws have, for as many coordinates as have a known one."""

    target: Target
    coordinates: Coordinates
    sds: np.ndarray
    marginals: list


LOG_GAMMA = stats.loggamma(SHAPE)
SECOND_SD = float(np.hypot(SLOPE * LOG_GAMMA.std(), WIDTH))
POSTERIORS = {
    "gaussian": Posterior(
        TracedTarget(normal(), 3),
        Coordinates(MEAN + 0.3, np.diag([1.5, 1.0, 0.6])),
        np.sqrt(np.diag(COVARIANCE)),
        [stats.norm(m, s) for m, s in zip(MEAN, np.sqrt(np.diag(COVARIANCE)), strict=True)],
    ),
    "skewed": Posterior(
        TracedTarget(SKEWED, 2),
        Coordinates(np.array([LOG_GAMMA.mean(), 0.0]), np.diag([LOG_GAMMA.std(), SECOND_SD])),
        np.array([LOG_GAMMA.std(), SECOND_SD]),
        [LOG_GAMMA],
    ),
}
MEANS = {"gaussian": MEAN, "skewed": np.array([1.0, SLOPE]) * LOG_GAMMA.mean()}


@pytest.mark.parametrize(
    ("name", "posterior"),
    [
        # Both are dear to the surrogate's many steps in Python; its own tests have skewed densities, too.
        pytest.param(n, p, marks=() if n in IN_PYTHON[:3] or (n, p) == ("hmc", "gaussian") else pytest.mark.slow)
        for n in SAMPLERS
        for p in POSTERIORS
    ],
)
def test_mean_sd_and_quantiles(name, posterior):
    target, coordinates, sds, marginals = POSTERIORS[posterior]
    result = run(name, target, coordinates, Plan(warmup=150, draws=800, seed=(1,)), chains=4)
    x = result.chains.x
    assert x.shape == (4, 800, len(sds))
    assert not result.interrupted
    found = convergence(x)
    assert found.r_hat.max() < 1.02
    assert min(found.ess_bulk.min(), found.ess_tail.min()) > 300  # or the errors below say little
    for i, (mean, sd) in enumerate(zip(MEANS[posterior], sds, strict=True)):
        assert abs(z_of_mean(x[:, :, i], mean)) < 4
        assert abs(z_of_sd(x[:, :, i], sd)) < 4
    for i in range(3) if posterior == "gaussian" else ():
        for j in range(i):
            assert abs(z_of_mean((x[:, :, i] - MEAN[i]) * (x[:, :, j] - MEAN[j]), COVARIANCE[i, j])) < 4
    for i, marginal in enumerate(marginals):
        for p in (0.05, 0.25, 0.5, 0.75, 0.95):
            assert_mean((x[:, :, i] < marginal.ppf(p)).astype(float), p)


@pytest.mark.parametrize("name", SAMPLERS)
def test_log_densities_are_those_of_the_draws(name):
    target = TracedTarget(normal(), 3)
    chains = run(name, target).chains
    np.testing.assert_allclose(chains.log_density, [target.values(x) for x in chains.x], rtol=1e-9, atol=1e-9)
    assert np.all((chains.acceptance >= 0.0) & (chains.acceptance <= 1.0 + 1e-12))
    assert np.all(chains.step_size > 0.0)
    assert chains.n_steps.dtype.kind == "i"
    assert chains.diverging.dtype == bool


@pytest.mark.parametrize("name", SAMPLERS)
def test_it_says_how_long_it_warmed_up_and_counts_what_it_evaluated(name):
    target = TracedTarget(normal(), 3)
    result = run(name, target)
    assert result.warmup >= (0 if name == "delayed acceptance" else 60)
    evaluations = result.evaluations + target.counter.gradients + target.counter.values
    assert evaluations > 2 * 60
    assert result.failures + target.counter.failures <= 0.01 * evaluations  # of MALA, a move far down is one, too


@pytest.mark.parametrize("name", ONE_INSIDE_XLA)
def test_a_pilot_shows_the_shape(name):
    posterior = POSTERIORS["gaussian"]
    sampler = {"default": DefaultSampler(), "nuts": NUTS(), "independence": IndependenceMH()}.get(name)
    if name == "delayed acceptance":
        pytest.skip("the chains that show the shape are those of its surrogate, by NUTS")
    at = starts(posterior.coordinates)
    plan = Plan(warmup=60, draws=50, seed=(2,))
    chains = (
        (sampler or BlackJaxKernel(name)).pilot(posterior.target, at, posterior.coordinates, plan, keep_going).chains
    )
    assert chains.x.shape == (4, 50, 3)
    sd = chains.x.std(axis=(0, 1))
    assert np.all((sd > 0.4 * posterior.sds) & (sd < 2.5 * posterior.sds))


# --- the same seed


@pytest.mark.parametrize("name", ONE_INSIDE_XLA)
def test_same_seed_same_draws_however_many_run_at_once(name):
    plan = Plan(warmup=60, draws=130, seed=(3,), parallel=2)
    first = run(name, plan=plan, chains=3).chains
    for parallel in (1, 3):
        assert_same(first, run(name, plan=plan.but(parallel=parallel), chains=3).chains)
    other = run(name, plan=plan.but(seed=(4,)), chains=3).chains
    assert np.mean(np.all(first.x == other.x, axis=2)) < 0.01
    assert not np.any(np.all(first.x[0] == first.x[1], axis=1))


# --- callbacks


@pytest.mark.parametrize("name", ONE_INSIDE_XLA)
def test_a_callback_ends_the_run_at_a_number_that_the_draws_determine(name):
    plan = Plan(warmup=60, draws=400, seed=(3,))
    everything, seen = run(name, plan=plan).chains, []
    assert everything.n_draws == 400

    def callback(s):
        seen.append((s.done, s.chains, s.seconds))
        return 37 if s.chains.n_draws >= 37 else None

    result = run(name, plan=plan, callback=callback)
    assert not result.interrupted
    assert_same(result.chains, everything.first(37))
    assert all(seconds >= 0.0 for _, _, seconds in seen)
    done, n_draws = (np.array(column) for column in zip(*((d, c.n_draws) for d, c, _ in seen), strict=True))
    assert np.all(np.diff(n_draws) >= 0)
    assert np.all(np.diff(done) >= 0)
    assert np.all(n_draws <= done)
    for chains in [c for _, c, _ in seen][:: max(1, len(seen) // 5)]:
        assert_same(chains, everything.first(chains.n_draws))


def slow_normal():
    """Some 5 000 evaluations a second at most, so that a callback sees a run while it goes on."""
    precision = np.linalg.inv(COVARIANCE)

    def log_density(x):
        threading.Event().wait(1e-4)
        return -0.5 * float((x - MEAN) @ precision @ (x - MEAN)), -precision @ (x - MEAN)

    return FunctionTarget(log_density, dimension=3)


def long_run(name, callback, warmup=60):
    """One that would take minutes."""
    if name in INSIDE_XLA:
        return run(name, plan=Plan(warmup=warmup, draws=1_000_000, seed=(3,)), callback=callback)
    return run(name, slow_normal(), plan=Plan(warmup=warmup, draws=50_000, seed=(3,)), callback=callback)


@pytest.mark.parametrize("how", ["raise", "signal"])
@pytest.mark.parametrize("name", ONE_INSIDE_XLA)
def test_ctrl_c_returns_the_draws_so_far(name, how):
    seen = []

    def callback(s):
        if s.chains.n_draws >= 20:
            seen.append(s.chains)
            if how == "raise":
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)

    result = long_run(name, callback)
    n = result.chains.n_draws
    assert result.interrupted
    assert 20 <= n < 50_000
    assert result.chains.x.shape == (2, n, 3)
    assert np.all(np.isfinite(result.chains.x))
    assert_same(result.chains.first(20), seen[0].first(20))


@pytest.mark.parametrize("name", ONE_INSIDE_XLA)
def test_ctrl_c_before_the_first_draw_returns_none(name):
    def callback(s):
        assert s.chains.n_draws == 0
        raise KeyboardInterrupt

    warmup = 2_000_000 if name in INSIDE_XLA else 50_000  # not over when a callback is first called
    result = long_run(name, callback, warmup=warmup)
    assert result.interrupted
    assert result.chains.x.shape == (2, 0, 3)
    assert 0 <= result.warmup < warmup or name in ("independence", "default")


@pytest.mark.parametrize("name", ONE_INSIDE_XLA)
def test_an_error_in_the_callback_reaches_the_caller_and_the_threads_end(name):
    def callback(s):
        raise OSError("disk full")

    before = threading.active_count()
    with pytest.raises(OSError, match="disk full"):
        long_run(name, callback)
    assert threading.active_count() <= before + (name == "nuts")  # nutpie's pool


# --- failures


class Mine(LookupError):
    pass


@pytest.mark.parametrize("name", IN_PYTHON)
def test_an_error_in_the_density_reaches_the_caller(name):
    calls, inner = [], slow_normal().log_density

    def log_density(x):
        calls.append(1)
        if len(calls) > 80:
            raise Mine("in the density")
        return inner(x)

    with pytest.raises(Mine, match="in the density"):
        run(name, FunctionTarget(log_density, dimension=3), plan=Plan(warmup=60, draws=10_000, seed=(3,)))
    assert run(name).chains.n_draws == 60  # and the next run is not hurt


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_start_without_density_is_a_numerical_error(name):
    with pytest.raises(NumericalError, match=r"where (a chain should start|its mode should be)"):
        run(name, TracedTarget(normal(wall=-50.0), 3))


@pytest.mark.parametrize("name", [n for n in SAMPLERS if n != "delayed acceptance"])
@pytest.mark.parametrize(
    "beyond", [np.nan, *(pytest.param(infinite, marks=pytest.mark.slow) for infinite in (-np.inf, np.inf))]
)
def test_a_hole_is_a_rejected_proposal(name, beyond):
    """A normal cut off half a standard deviation above its mean: beyond, the density is not a number of any use."""
    first = np.tile(MEAN - [0.5, 0.0, 0.0], (4, 1))
    plan = Plan(warmup=150, draws=600, seed=(2,))
    chains = run(name, TracedTarget(normal(wall=2.5, beyond=beyond), 3), plan=plan, at=first).chains
    assert chains.x[:, :, 0].max() <= 2.5 + 1e-12
    assert np.all(np.isfinite(chains.x))
    assert np.all(np.isfinite(chains.log_density))
    assert_mean(chains.x[:, :, 0], 2.0 + stats.truncnorm(-np.inf, 0.5).mean(), errors=5.0)


@pytest.mark.parametrize("name", INSIDE_XLA)
def test_a_density_that_cannot_be_traced_is_refused(name):
    with pytest.raises(InputError, match="cannot be traced by JAX"):
        run(name, slow_normal())
