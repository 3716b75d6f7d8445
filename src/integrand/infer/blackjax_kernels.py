"""HMC, MALA, random-walk Metropolis and slice sampling of a density that JAX can trace, with BlackJAX's transitions.

BlackJAX supplies the transitions. This file adds what a fit needs: a point without a finite density is rejected, the
step size adapts in warm-up, and every draw has its statistics. The whole chain runs inside XLA (`chain_runner.py`), in
one program for each kernel, pair of functions and shapes.

All kernels work in whitened coordinates η, where the density is close to a standard normal. The first step sizes and
the targets of the adaptation are those that are best for a normal. A new kernel is one more entry of `_KERNELS`.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from integrand.compilation import compiler_options, one_blas_thread
from integrand.errors import InputError, NumericalError, need
from integrand.infer.base import Callback, Matrix, Plan, Run, Sampler, Target
from integrand.infer.chain_runner import DrawRange, DrawRecord, arrays, chain_key, run_chains, run_draws
from integrand.infer.coordinates import Coordinates
from integrand.precision import float64_scope

# Length of a trajectory of HMC: a quarter of the period of a standard normal. After it, position and start are
# independent.
TRAJECTORY = 0.5 * math.pi
# Leapfrog steps of such a trajectory: with fewer than three it hardly turns; the upper limit bounds the cost of a draw.
MIN_LEAPFROG, MAX_LEAPFROG = 3, 64
# At the smallest number of leapfrog steps the acceptance aimed for is higher by this much. The steps then shrink until
# three of them are a quarter of the period that the density really has.
EXTRA_ACCEPTANCE = 0.18
# Univariate slices: how often an interval may be widened (the limit m of Neal 2003), or cut. A hundred cuts shrink an
# interval to nothing: that limit only ends a loop whose density is nowhere acceptable.
MAX_EXPANSIONS, MAX_CUTS = 10, 100
# Log density of a start that has not been evaluated: any transition from there is accepted.
_UNKNOWN: Any = np.asarray(-np.inf)
# Length of the first transition, which so evaluates the start where it is. A program for that alone would double the
# time of compiling.
_NO_MOVE = 1e-150


class TransitionOptions(NamedTuple):
    """Options of a transition; arguments of the compiled program, so that others do not recompile it."""

    n_leapfrog: Any  # 0: as many as make up a quarter of a period
    jitter: Any  # the step size varies by up to this share, so that no trajectory closes on itself


class Info(NamedTuple):
    """The statistics of a transition."""

    acceptance: Any
    adapted: Any  # warm-up moves the step size until the mean of this is at its target; it falls with the step size
    energy: Any
    diverging: Any
    evaluations: Any
    step_size: Any
    failed: Any  # the density was not finite at the proposal, or a slice gave up


class Kernel(NamedTuple):
    """First state, transition, and defaults as functions of the dimension."""

    start: Callable[[Any], Any]  # eta -> a state of density zero, from which any transition is accepted
    transition: Callable[..., tuple[Any, Info]]  # (key, state, log_density, step_size, options)
    step_size: Callable[[int], float]
    target: Callable[[int], float]  # of `Info.adapted`
    thin: Callable[[int], int]


@functools.cache
def kernel_named(name: str) -> Kernel:
    """The kernel of that name; BlackJAX is imported here, when it is first needed."""
    need("blackjax", "samplers", f"the sampler {name}")
    return _KERNELS[name]()


def finite_or_rejected(log_density: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Log density that is -inf wherever it is not a finite number: such a proposal is rejected."""

    def safe(eta):
        value = log_density(eta)
        return jnp.where(jnp.isfinite(value), value, -jnp.inf)

    return safe


def _hmc() -> Kernel:
    """Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011): leapfrog steps of H = -log p(η) + pᵀp/2.

    By default as many steps of the adapted size as make up a quarter of a standard normal's period. Where that is no
    more than the smallest number, as with coordinates that are too narrow, the acceptance aimed for is near 1.
    """
    from blackjax.mcmc import hmc

    kernel: Any = hmc.build_kernel()

    def transition(key, state, log_density, step_size, options):
        steps = jnp.clip(jnp.ceil(TRAJECTORY / step_size), MIN_LEAPFROG, MAX_LEAPFROG)
        n = jnp.where(options.n_leapfrog > 0, options.n_leapfrog, steps.astype(int))
        key_jitter, key = jax.random.split(key)
        jittered = step_size * (1.0 + options.jitter * jax.random.uniform(key_jitter, minval=-1.0, maxval=1.0))
        new, info = kernel(key, state, log_density, jittered, jnp.ones_like(state.position), n)
        # BlackJAX gives the proposal's energy, also of one that was rejected.
        energy = jnp.where(info.is_accepted, info.energy, -state.logdensity + 0.5 * jnp.sum(info.momentum**2))
        fewest = (options.n_leapfrog == 0) & (n == MIN_LEAPFROG)
        adapted = info.acceptance_rate - jnp.where(fewest, EXTRA_ACCEPTANCE, 0.0)
        failed = ~jnp.isfinite(info.proposal.logdensity)
        return new, Info(info.acceptance_rate, adapted, energy, info.is_divergent, n, step_size, failed)

    return Kernel(
        lambda eta: hmc.HMCState(eta, _UNKNOWN, np.zeros_like(eta)),
        transition,
        step_size=lambda n: n**-0.25,
        target=lambda n: Plan.target_accept,
        thin=lambda n: 1,
    )


def _mala() -> Kernel:
    """Langevin proposals η + ε ∇log p + √(2ε) ξ, accepted or not (Roberts & Tweedie 1996); best accepted at 0.574."""
    from blackjax.mcmc import mala

    kernel = mala.build_kernel()

    def transition(key, state, log_density, step_size, options):
        new, info = kernel(key, state, log_density, step_size)
        acceptance = info.acceptance_rate
        # BlackJAX does not return the proposal's density. An acceptance of exactly 0 is one of 0, or smaller by e^745.
        return new, Info(acceptance, acceptance, jnp.nan, False, 1, step_size, acceptance == 0.0)

    return Kernel(
        lambda eta: mala.MALAState(eta, _UNKNOWN, np.zeros_like(eta)),
        transition,
        step_size=lambda n: 1.36 * n ** (-1.0 / 3.0),
        target=lambda n: 0.574,
        thin=lambda n: math.ceil(3.0 * n ** (1.0 / 3.0)),  # transitions to an independent draw grow as n^(1/3)
    )


def _metropolis() -> Kernel:
    """Random-walk Metropolis, η + ε ξ; best accepted at 0.44 in one dimension to 0.234 in many (Gelman et al. 1996)."""
    from blackjax.mcmc import random_walk

    kernel = random_walk.build_additive_step()

    def transition(key, state, log_density, step_size, options):
        walk = random_walk.normal(jnp.full(state.position.shape, step_size))
        new, info = kernel(key, state, log_density, walk)
        acceptance = info.acceptance_rate
        return new, Info(acceptance, acceptance, jnp.nan, False, 1, step_size, acceptance == 0.0)  # as for MALA

    return Kernel(
        lambda eta: random_walk.RWState(eta, _UNKNOWN),
        transition,
        step_size=lambda n: 2.38 / math.sqrt(n),
        target=lambda n: 0.234 + 0.206 / n,
        thin=lambda n: 4 * n,  # transitions to an independent draw grow as n
    )


def _slice() -> Kernel:
    """Univariate slices along each coordinate in random order (Neal 2003); the step size is the first interval's width.

    The width adapts until intervals are widened as often as cut (Tibbits et al. 2014); any width gives right draws.
    """
    from blackjax.mcmc import slice as slices

    def transition(key, state, log_density, step_size, options):
        kernel = slices.build_coordinate_kernel(
            interval=stepping_out,
            initial_widths=step_size,
            max_expansions=MAX_EXPANSIONS,
            max_shrinkage=MAX_CUTS,
        )
        new, info = kernel(key, state, log_density)
        n = state.position.size
        widened, cut = info.num_expansions, info.num_shrink - n
        balance = jnp.where(widened + cut > 0, widened / jnp.maximum(widened + cut, 1), 0.5)
        evaluations = 2 * n + info.num_expansions + info.num_shrink
        accepted = info.is_accepted
        return new, Info(accepted.astype(float), balance, jnp.nan, False, evaluations, step_size, ~accepted)

    return Kernel(
        lambda eta: slices.SliceState(eta, _UNKNOWN),
        transition,
        step_size=lambda n: 2.0,
        target=lambda n: 0.5,
        thin=lambda n: 1,
    )


def stepping_out(key, in_slice, width, max_expansions):
    """Neal's (2003) stepping-out procedure, figure 3, with the arguments of BlackJAX's, and both ends in one loop.

    BlackJAX's own contains the density four times, which is four times the compilation.
    """
    key_place, key_share = jax.random.split(key)
    left = -width * jax.random.uniform(key_place)
    j = jnp.floor(max_expansions * jax.random.uniform(key_share)).astype(int)
    budget = jnp.stack([j, max_expansions - 1 - j])
    steps = jnp.stack([-width, width])

    def widen(carry):
        ends, remaining, side = carry
        wider = in_slice(ends[side]) & (remaining[side] > 0)
        ends = ends.at[side].add(jnp.where(wider, steps[side], 0.0))
        return ends, remaining.at[side].add(-wider.astype(int)), side + (~wider).astype(int)

    first = (jnp.stack([left, left + width]), budget, jnp.asarray(0))
    ends, remaining, _ = jax.lax.while_loop(lambda carry: carry[2] < 2, widen, first)
    return ends[0], ends[1], jnp.sum(budget - remaining), lambda t: jnp.asarray(True)


_KERNELS: dict[str, Callable[[], Kernel]] = {"hmc": _hmc, "mala": _mala, "metropolis": _metropolis, "slice": _slice}
NAMES = tuple(_KERNELS)


class _StepSize(NamedTuple):
    """The step size: `fixed` if that is positive, else by dual averaging towards `target`."""

    fixed: Any
    target: Any


class _State(NamedTuple):
    chain: Any  # BlackJAX's state
    averaging: Any  # BlackJAX's dual averaging of the step size (Nesterov 2009, Hoffman & Gelman 2014)


@dataclass(frozen=True)
class BlackJaxKernel(Sampler):
    """Chains of one kernel, `hmc`, `mala`, `metropolis` or `slice`, in whitened coordinates.

    Warm-up adapts the step size alone, which is then frozen. `n_steps` of a draw counts the evaluations in all of its
    transitions.

    Parameters
    ----------
    name
        Of the kernel.
    step_size
        A fixed step size (for slice, width of the first interval), instead of one that adapts.
    target_accept
        Mean acceptance that warm-up aims for. By default that of the plan for hmc, 0.574 for mala and 0.234 + 0.206/P
        for metropolis. Slice accepts every draw.
    thin
        Transitions per draw: by default 1 for hmc and slice, 3 P^(1/3) for mala, 4 P for metropolis.
    n_leapfrog, jitter
        For hmc: leapfrog steps (by default as many as make up a quarter of a period, between 3 and 64), and the share
        by which the step size varies at random.
    min_warmup
        Draws of warm-up at least: these kernels take more draws than NUTS to find their step size. After 200 draws
        coordinates ten times too wide or narrow do no harm (`tests/infer/test_blackjax_kernels.py`).
    """

    name: str
    step_size: float | None = None
    target_accept: float | None = None
    thin: int | None = None
    n_leapfrog: int | None = None
    jitter: float = 0.2
    min_warmup: int = 300

    def __post_init__(self):
        if self.name not in NAMES:
            raise InputError(f"no sampler is called {self.name!r}: it is one of {', '.join(NAMES)}")
        for what, value in (("thin", self.thin), ("n_leapfrog", self.n_leapfrog)):
            if value is not None and value < 1:
                raise InputError(f"{what} must be at least 1, not {value}")
        if self.step_size is not None and not 0.0 < self.step_size < np.inf:
            raise InputError(f"step_size must be a positive number, not {self.step_size}")
        if self.target_accept is not None and not 0.0 < self.target_accept < 1.0:
            raise InputError(f"target_accept must lie between 0 and 1, not {self.target_accept}")

    def warmup(self, dimension: int, wanted: int) -> int:
        """At least `min_warmup`."""
        return max(wanted, self.min_warmup)

    def run(self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback) -> Run:
        """Warm up and draw, in parallel chains."""
        dimension = starts.shape[1]
        kernel, density = kernel_named(self.name), target.traced()
        step_size = _StepSize(0.0 if self.step_size is None else float(self.step_size), self._target(plan, dimension))
        options = TransitionOptions(self.n_leapfrog or 0, float(self.jitter))
        thin = kernel.thin(dimension) if self.thin is None else self.thin
        warmup = self.warmup(dimension, plan.warmup)
        keys = [chain_key([*plan.seed, c]) for c in range(len(starts))]
        program = _program(self.name, density.log_prior, density.log_likelihood, 1 if plan.parallel > 1 else 0)

        def advance(chain: int, state: _State, first: int, count: int) -> tuple[_State, DrawRecord]:
            draws = DrawRange(first, count, warmup, thin)
            return program(keys[chain], state, *arrays((draws, step_size, options)), *fixed)

        with float64_scope(), one_blas_thread(plan.parallel > 1):
            fixed = jax.tree.map(jnp.asarray, (coordinates.centre, coordinates.factor, density.data))
            no_move = DrawRange(0, 1, 0, 1), step_size._replace(fixed=_NO_MOVE), options._replace(n_leapfrog=1)
            states, evaluations = [], 0
            for key, start in zip(keys, starts, strict=True):
                first = _State(kernel.start(coordinates.to_eta(start)), _dual_averaging(kernel.step_size(dimension)))
                state, record = program(key, first, *arrays(no_move), *fixed)
                if not all(np.all(np.isfinite(a)) for a in jax.tree.leaves(state.chain)):
                    raise NumericalError(
                        "the log density is not finite where a chain should start: try other priors or another start"
                    )
                states.append(state)
                evaluations += int(np.asarray(record.n_steps)[0])
        return run_chains(
            advance,
            states,
            dimension,
            warmup=warmup,
            draws=plan.draws,
            parallel=plan.parallel,
            callback=callback,
            evaluations=evaluations,
        )

    def _target(self, plan: Plan, dimension: int) -> float:
        """What the statistic that adapts the step size should be on average."""
        if self.target_accept is not None and self.name != "slice":
            return float(self.target_accept)
        return float(plan.target_accept if self.name == "hmc" else kernel_named(self.name).target(dimension))


@functools.lru_cache(maxsize=64)
def _program(name: str, log_prior, log_likelihood, threads: int):
    """The compiled chain. JAX keeps one for each shape of the arguments."""
    from blackjax.optimizers.dual_averaging import dual_averaging

    kernel = kernel_named(name)
    _, update, _ = dual_averaging()

    def program(key, state, draws, step_size, options, centre, factor, data):
        @finite_or_rejected
        def log_density(eta):
            x = centre + factor @ eta
            return log_prior(x, data) + log_likelihood(x, data)

        def step(key, state, in_warmup):
            before = state.averaging
            adapted = jnp.exp(jnp.where(in_warmup, before.log_x, before.log_x_avg))
            size = jnp.where(step_size.fixed > 0.0, step_size.fixed, adapted)
            chain, info = kernel.transition(key, state.chain, log_density, size, options)
            updated = update(before, step_size.target - info.adapted)
            averaging = jax.tree.map(lambda new, old: jnp.where(in_warmup, new, old), updated, before)
            return _State(chain, averaging), DrawRecord(
                x=centre + factor @ chain.position,
                log_density=chain.logdensity,
                energy=jnp.asarray(info.energy, float),
                acceptance=info.acceptance,
                n_steps=jnp.asarray(info.evaluations, int),
                diverging=jnp.asarray(info.diverging),
                step_size=info.step_size,
                failures=jnp.asarray(info.failed, int),
            )

        return run_draws(step, key, state, draws)

    return jax.jit(program, compiler_options=compiler_options(threads))


def _dual_averaging(size: float):
    """Dual averaging that starts at and shrinks towards a size right for a normal; BlackJAX's: ten times it."""
    from blackjax.optimizers.dual_averaging import DualAveragingState

    return DualAveragingState(*arrays((np.log(size), np.log(size), 1.0, 0.0, np.log(size))))
