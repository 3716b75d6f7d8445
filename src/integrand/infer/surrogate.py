"""Draws from a density that is dear to evaluate, with a cheap one near it that proposes (Christen & Fox 2005).

A proposal is the end of some HMC transitions that leave the cheap density c invariant and reversible; it is accepted
with probability min(1, [d(x') c(x)] / [d(x) c(x')]), which leaves the dear density d invariant, however poor c is: a
poor one only costs acceptances. A draw takes one value of d and no gradient.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from integrand.errors import NumericalError
from integrand.infer.chains import LogDensity, SampledRun, Watcher
from integrand.infer.leapfrog import transition
from integrand.infer.metric import Whitening
from integrand.infer.side_by_side import run_side_by_side
from integrand.infer.slots import Slot

# Transitions of the cheap chain to a proposal, and leapfrog steps of one (drawn anew each time) at most.
_TRANSITIONS, _MOST_LEAPS = 3, 8
_TARGET_ACCEPT = 0.85

Value = Callable[[Float[np.ndarray, " P"]], float]


class _State(NamedTuple):
    eta: np.ndarray
    cheap: float
    slope: np.ndarray  # of the cheap log density in eta
    dear: float | None  # None until the first draw asks for it
    log_step: float
    kept: int  # transitions so far, for the pace of tuning


def sample_with_surrogate(
    cheap: LogDensity,
    dear: Value,
    starts: Float[np.ndarray, "C P"],
    whitening: Whitening,
    *,
    tune: int,
    draws: int,
    seed: Sequence[int],
    parallel: int = 1,
    watch: Watcher | None = None,
    steps: Float[np.ndarray, " C"] | None = None,
) -> SampledRun:
    """Draw from exp(dear), one chain for each row of `starts`, moving by `cheap`.

    Tuning needs no value of the dear density: the step size is that of the cheap one. Where it is known from an earlier
    run, `steps` has it for each chain and nothing is tuned.
    """
    tune = tune if steps is None else 0

    def here(eta: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = cheap(whitening.to_x(eta))
        if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
            return -np.inf, np.zeros_like(eta)
        return value, gradient @ whitening.factor

    states = []
    for start, step in zip(starts, np.full(len(starts), 0.5) if steps is None else steps, strict=True):
        eta = whitening.to_eta(start)
        value, slope = here(eta)
        if not np.isfinite(value):
            raise NumericalError(
                "the density is not finite where a chain should start: try fewer inducing points, or NUTS with all "
                "rows (grow=False)"
            )
        states.append(_State(eta, value, slope, None, float(np.log(step)), 0))
    advance = functools.partial(_advance, here, dear, whitening, tune, tuple(seed))
    return run_side_by_side(advance, states, starts.shape[1], tune=tune, draws=draws, parallel=parallel, watch=watch)


def _advance(
    here: LogDensity,
    dear: Value,
    whitening: Whitening,
    tune: int,
    seed: tuple,
    chain: int,
    state: _State,
    first: int,
    count: int,
) -> tuple[_State, Slot]:
    """`count` more slots of a chain; what a slot draws depends on its number alone."""
    told = []
    for number in range(first, first + count):
        rng = np.random.default_rng([*seed, chain, number])
        state, slot = _slot(here, dear, whitening, state, rng, number < tune)
        told.append(slot)
    return state, Slot(*(np.array(a) for a in zip(*told, strict=True)))


def _slot(
    here: LogDensity, dear: Value, whitening: Whitening, state: _State, rng: np.random.Generator, tuning: bool
) -> tuple[_State, Slot]:
    eta, cheap, slope, log_step, kept = state.eta, state.cheap, state.slope, state.log_step, state.kept
    for _ in range(_TRANSITIONS):
        leaps = int(rng.integers(1, _MOST_LEAPS + 1))
        eta, cheap, slope, chance = transition(here, eta, cheap, slope, float(np.exp(log_step)), leaps, rng)
        if tuning:
            kept += 1
            log_step += (chance - _TARGET_ACCEPT) / kept**0.6
    if tuning:
        state = _State(eta, cheap, slope, None, log_step, kept)
        return state, _told(whitening, state, cheap, chance, 0, 0)
    before = dear(whitening.to_x(state.eta)) if state.dear is None else state.dear
    before = before if np.isfinite(before) else -np.inf  # where a chain begins without a value it does not stay
    after = dear(whitening.to_x(eta))
    failed = not np.isfinite(after)
    # [d(x') c(x)] / [d(x) c(x')] on the log scale.
    log_ratio = -np.inf if failed else (after - cheap) - (before - state.cheap)
    chance = float(np.exp(min(0.0, log_ratio)))
    moved = _State(eta, cheap, slope, after, log_step, kept) if rng.random() < chance else state._replace(dear=before)
    assert moved.dear is not None
    return moved, _told(whitening, moved, moved.dear, chance, 0, int(failed))


def _told(whitening: Whitening, state: _State, value: float, chance: float, steps: int, failures: int) -> Slot:
    step = float(np.exp(state.log_step))
    # Its momenta belong to the cheap density: there is no energy whose mixing could be judged.
    return Slot(whitening.to_x(state.eta), value, np.nan, chance, steps, False, step, failures)
