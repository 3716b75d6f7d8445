"""One transition of each sampler, by BlackJAX, with what this library adds: rejections, tuning, the whole story.

All work on whitened coordinates η, where the density is close to a standard normal; the first step sizes and targets
below are those that are best for a normal. A new sampler is one more row of `_ROWS`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# A quarter of the period of a standard normal: after it, position and start are independent.
TRAJECTORY = 0.5 * math.pi
LEAST_LEAPFROG, MOST_LEAPFROG = 3, 64
# By how much acceptance at the least number of leapfrog steps must be higher than its target.
FEW = 0.18
# Univariate slices: times that an interval may be widened, or cut.
MOST_EXPANSIONS, MOST_CUTS = 10, 100
# Log density of a start that has not been evaluated.
_NOTHING: Any = np.asarray(-np.inf)


class Setting(NamedTuple):
    """Settings of a transition; arguments of the compiled program, so that others compile nothing."""

    n_leapfrog: Any  # 0: as many as make up a quarter of a period
    jitter: Any  # the step size varies by up to this share, so that no trajectory closes on itself


class Told(NamedTuple):
    """What a transition says of itself."""

    acceptance: Any
    tuned: Any  # tuning moves the step size until this has its target as mean; it falls with the step size
    energy: Any
    diverging: Any
    evaluations: Any
    step_size: Any
    failed: Any  # the density was not finite where the transition led, or a slice gave up


class Sampler(NamedTuple):
    """A sampler: its first state, its transition, and its defaults as functions of the dimension."""

    start: Callable[[Any], Any]  # eta -> a state of density zero, from which any transition is accepted
    transition: Callable[..., tuple[Any, Told]]  # (key, state, log_density, step_size, setting)
    step_size: Callable[[int], float]
    target: Callable[[int], float]  # of `Told.tuned`
    thin: Callable[[int], int]


@functools.cache
def sampler_named(name: str) -> Sampler:
    """The sampler of that name; BlackJAX is imported here, when it is first needed."""
    return _ROWS[name]()


def finite_or_rejected(log_density: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Log density that is -inf wherever it is not a finite number: such a proposal is rejected."""

    def safe(eta):
        value = log_density(eta)
        return jnp.where(jnp.isfinite(value), value, -jnp.inf)

    return safe


def _hmc() -> Sampler:
    """Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011): leapfrog steps of H = -log p(η) + pᵀp/2.

    Unless told otherwise, as many steps of the tuned size as make up a quarter of a standard normal's period. Where
    that is no more than the least number, as when the whitening was too narrow, the steps grow for an acceptance near
    1 instead, at which three of them are a quarter of the period that the density really has.
    """
    from blackjax.mcmc import hmc

    kernel: Any = hmc.build_kernel()

    def transition(key, state, log_density, step_size, setting):
        wanted = jnp.clip(jnp.ceil(TRAJECTORY / step_size), LEAST_LEAPFROG, MOST_LEAPFROG)
        n = jnp.where(setting.n_leapfrog > 0, setting.n_leapfrog, wanted.astype(int))
        key_jitter, key = jax.random.split(key)
        jittered = step_size * (1.0 + setting.jitter * jax.random.uniform(key_jitter, minval=-1.0, maxval=1.0))
        new, info = kernel(key, state, log_density, jittered, jnp.ones_like(state.position), n)
        # BlackJAX gives the proposal's energy, also of one that was rejected.
        energy = jnp.where(info.is_accepted, info.energy, -state.logdensity + 0.5 * jnp.sum(info.momentum**2))
        few = (setting.n_leapfrog == 0) & (n == LEAST_LEAPFROG)
        tuned = info.acceptance_rate - jnp.where(few, FEW, 0.0)
        failed = ~jnp.isfinite(info.proposal.logdensity)
        return new, Told(info.acceptance_rate, tuned, energy, info.is_divergent, n, step_size, failed)

    return Sampler(
        lambda eta: hmc.HMCState(eta, _NOTHING, np.zeros_like(eta)),
        transition,
        step_size=lambda n: n**-0.25,
        target=lambda n: 0.8,
        thin=lambda n: 1,
    )


def _mala() -> Sampler:
    """Langevin proposals η + ε ∇log p + √(2ε) ξ, accepted or not (Roberts & Tweedie 1996); best accepted at 0.574."""
    from blackjax.mcmc import mala

    kernel = mala.build_kernel()

    def transition(key, state, log_density, step_size, setting):
        new, info = kernel(key, state, log_density, step_size)
        acceptance = info.acceptance_rate
        # BlackJAX does not tell the proposal's density. An acceptance of exactly 0 is one of 0, or smaller by e^745.
        return new, Told(acceptance, acceptance, jnp.nan, False, 1, step_size, acceptance == 0.0)

    return Sampler(
        lambda eta: mala.MALAState(eta, _NOTHING, np.zeros_like(eta)),
        transition,
        step_size=lambda n: 1.36 * n ** (-1.0 / 3.0),
        target=lambda n: 0.574,
        thin=lambda n: math.ceil(3.0 * n ** (1.0 / 3.0)),  # transitions to an independent draw grow as n^(1/3)
    )


def _metropolis() -> Sampler:
    """Random-walk Metropolis, η + ε ξ; best accepted at 0.44 in one dimension to 0.234 in many (Gelman et al. 1996)."""
    from blackjax.mcmc import random_walk

    kernel = random_walk.build_additive_step()

    def transition(key, state, log_density, step_size, setting):
        walk = random_walk.normal(jnp.full(state.position.shape, step_size))
        new, info = kernel(key, state, log_density, walk)
        acceptance = info.acceptance_rate
        return new, Told(acceptance, acceptance, jnp.nan, False, 1, step_size, acceptance == 0.0)  # as for MALA

    return Sampler(
        lambda eta: random_walk.RWState(eta, _NOTHING),
        transition,
        step_size=lambda n: 2.38 / math.sqrt(n),
        target=lambda n: 0.234 + 0.206 / n,
        thin=lambda n: 4 * n,  # transitions to an independent draw grow as n
    )


def _slice() -> Sampler:
    """Univariate slices along each coordinate in random order (Neal 2003); the step size is the first interval's width.

    The width is tuned until intervals are widened as often as cut (Tibbits et al. 2014); any width gives right draws.
    """
    from blackjax.mcmc import slice as slices

    def transition(key, state, log_density, step_size, setting):
        kernel = slices.build_coordinate_kernel(
            interval=stepping_out,
            initial_widths=step_size,
            max_expansions=MOST_EXPANSIONS,
            max_shrinkage=MOST_CUTS,
        )
        new, info = kernel(key, state, log_density)
        n = state.position.size
        widened, cut = info.num_expansions, info.num_shrink - n
        balance = jnp.where(widened + cut > 0, widened / jnp.maximum(widened + cut, 1), 0.5)
        evaluations = 2 * n + info.num_expansions + info.num_shrink
        accepted = info.is_accepted
        return new, Told(accepted.astype(float), balance, jnp.nan, False, evaluations, step_size, ~accepted)

    return Sampler(
        lambda eta: slices.SliceState(eta, _NOTHING),
        transition,
        step_size=lambda n: 2.0,
        target=lambda n: 0.5,
        thin=lambda n: 1,
    )


def stepping_out(key, in_slice, width, max_expansions):
    """Neal's (2003) stepping-out procedure, figure 3, as BlackJAX wants it, with both ends in one loop.

    BlackJAX's own contains the density four times, which is four times the compilation.
    """
    key_place, key_share = jax.random.split(key)
    left = -width * jax.random.uniform(key_place)
    j = jnp.floor(max_expansions * jax.random.uniform(key_share)).astype(int)
    budget = jnp.stack([j, max_expansions - 1 - j])
    steps = jnp.stack([-width, width])

    def widen(carry):
        ends, left_over, side = carry
        wider = in_slice(ends[side]) & (left_over[side] > 0)
        ends = ends.at[side].add(jnp.where(wider, steps[side], 0.0))
        return ends, left_over.at[side].add(-wider.astype(int)), side + (~wider).astype(int)

    first = (jnp.stack([left, left + width]), budget, jnp.asarray(0))
    ends, left_over, _ = jax.lax.while_loop(lambda carry: carry[2] < 2, widen, first)
    return ends[0], ends[1], jnp.sum(budget - left_over), lambda t: jnp.asarray(True)


_ROWS: dict[str, Callable[[], Sampler]] = {"hmc": _hmc, "mala": _mala, "metropolis": _metropolis, "slice": _slice}
NAMES = tuple(_ROWS)
