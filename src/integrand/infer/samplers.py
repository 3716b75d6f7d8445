"""HMC, MALA, random-walk Metropolis and slice sampling of a log density that JAX can trace, through BlackJAX.

The whole chain runs in XLA, in one program for each sampler, pair of functions and shapes; see `slots.py`.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from integrand.errors import InputError, NumericalError
from integrand.infer.chains import SampledRun, Watcher
from integrand.infer.metric import Whitening
from integrand.infer.side_by_side import run_side_by_side
from integrand.infer.slots import Slot, Span, arrays, chain_key, slots
from integrand.infer.threads import compiler_options, one_blas_thread
from integrand.infer.traced import Traced
from integrand.infer.transitions import NAMES, Setting, finite_or_rejected, sampler_named
from integrand.precision import float64_scope

# The first transition is this long and starts from a density of zero, so it is accepted and evaluates the start where
# it is: a program for that alone would double the time of compiling.
_STILL = 1e-150


class _Tuning(NamedTuple):
    """How the step size comes about: `step_size` if that is positive, else by dual averaging towards `target`."""

    step_size: Any
    target: Any


class _State(NamedTuple):
    chain: Any  # BlackJAX's state
    step_size: Any  # BlackJAX's dual averaging (Nesterov 2009, Hoffman & Gelman 2014)


def sample_traced(
    sampler: str,
    target: Traced,
    starts: Float[np.ndarray, "C P"],
    whitening: Whitening,
    *,
    tune: int,
    draws: int,
    seed: Sequence[int],
    target_accept: float | None = None,
    step_size: float | None = None,
    thin: int | None = None,
    n_leapfrog: int | None = None,
    jitter: float = 0.2,
    parallel: int = 2,
    watch: Watcher | None = None,
) -> SampledRun:
    """Draw from exp(log_prior + log_likelihood) in whitened coordinates, one chain for each row of `starts`.

    Parameters
    ----------
    sampler
        `hmc`, `mala`, `metropolis` or `slice`.
    tune, draws
        Tuning steps (of the step size alone, which is then frozen) and draws kept, for each chain.
    seed
        Numbers that, with the chain's position, determine the draws.
    target_accept
        Mean acceptance to tune for: 0.8 for hmc, 0.574 for mala, 0.234 + 0.206/P for metropolis; slice accepts all.
    step_size
        A fixed step size (for slice, width of the first interval): tuning steps are then just steps.
    thin
        Transitions for each tuning step and each kept draw: 1 for hmc and slice, 3 P^(1/3) for mala, 4 P for
        metropolis. `n_steps` of a draw counts the evaluations in all of them.
    n_leapfrog, jitter
        For hmc: leapfrog steps (by default as many as make up a quarter of a period, at least 3 and at most 64), and
        the share by which the step size varies at random.
    parallel
        Chains that run at the same time; 1 also leaves all threads to the evaluation.
    watch
        Sees the draws while they come and may end the run; what it keeps depends on the draws alone.
    """
    dimension = starts.shape[1]
    _check(sampler, thin, step_size, n_leapfrog, target_accept)
    row = sampler_named(sampler)
    accept = row.target(dimension) if target_accept is None or sampler == "slice" else target_accept
    tuning = _Tuning(0.0 if step_size is None else float(step_size), float(accept))
    setting = Setting(n_leapfrog or 0, float(jitter))
    thin = row.thin(dimension) if thin is None else thin
    keys = [chain_key([*seed, c]) for c in range(len(starts))]
    program = _program(sampler, target.log_prior, target.log_likelihood, 1 if parallel > 1 else 0)

    def advance(chain: int, state: _State, first: int, count: int) -> tuple[_State, Slot]:
        return program(keys[chain], state, *arrays((Span(first, count, tune, thin), tuning, setting)), *fixed)

    with float64_scope(), one_blas_thread(parallel > 1):
        fixed = jax.tree.map(jnp.asarray, (whitening.centre, whitening.factor, target.data))
        states, evaluations = [], 0
        for key, start in zip(keys, starts, strict=True):
            state = _State(row.start(whitening.to_eta(start)), _first_step_size(row.step_size(dimension)))
            still = (Span(0, 1, 0, 1), tuning._replace(step_size=_STILL), setting._replace(n_leapfrog=1))
            state, told = program(key, state, *arrays(still), *fixed)
            if not all(np.all(np.isfinite(a)) for a in jax.tree.leaves(state.chain)):
                raise NumericalError(
                    "the log density is not finite where a chain should start: try other priors or another start"
                )
            states.append(state)
            evaluations += int(np.asarray(told.n_steps)[0])
    return run_side_by_side(
        advance, states, dimension, tune=tune, draws=draws, parallel=parallel, watch=watch, evaluations=evaluations
    )


@functools.lru_cache(maxsize=64)
def _program(name: str, log_prior, log_likelihood, threads: int):
    """The compiled chain. JAX keeps one for each shape of the arguments."""
    from blackjax.optimizers.dual_averaging import dual_averaging

    row = sampler_named(name)
    _, update, _ = dual_averaging()

    def program(key, state, span, tuning, setting, centre, factor, data):
        @finite_or_rejected
        def log_density(eta):
            x = centre + factor @ eta
            return log_prior(x, data) + log_likelihood(x, data)

        def step(key, state, now_tuning):
            averaged = state.step_size
            tuned = jnp.exp(jnp.where(now_tuning, averaged.log_x, averaged.log_x_avg))
            size = jnp.where(tuning.step_size > 0.0, tuning.step_size, tuned)
            chain, told = row.transition(key, state.chain, log_density, size, setting)
            moved = update(averaged, tuning.target - told.tuned)
            averaged = jax.tree.map(lambda new, old: jnp.where(now_tuning, new, old), moved, averaged)
            return _State(chain, averaged), Slot(
                x=centre + factor @ chain.position,
                log_density=chain.logdensity,
                energy=jnp.asarray(told.energy, float),
                acceptance=told.acceptance,
                n_steps=jnp.asarray(told.evaluations, int),
                diverging=jnp.asarray(told.diverging),
                step_size=told.step_size,
                failures=jnp.asarray(told.failed, int),
            )

        return slots(step, key, state, span)

    return jax.jit(program, compiler_options=compiler_options(threads))


def _first_step_size(size: float):
    """Dual averaging that starts at and shrinks towards a size right for a normal; BlackJAX's: ten times it."""
    from blackjax.optimizers.dual_averaging import DualAveragingState

    return DualAveragingState(*arrays((np.log(size), np.log(size), 1.0, 0.0, np.log(size))))


def _check(sampler: str, thin, step_size, n_leapfrog, target_accept) -> None:
    if sampler not in NAMES:
        raise InputError(f"no sampler is called {sampler!r}: it is one of {', '.join(NAMES)}")
    for what, value in (("thin", thin), ("n_leapfrog", n_leapfrog)):
        if value is not None and value < 1:
            raise InputError(f"{what} must be at least 1, not {value}")
    if step_size is not None and not 0.0 < step_size < np.inf:
        raise InputError(f"step_size must be a positive number, not {step_size}")
    if target_accept is not None and not 0.0 < target_accept < 1.0:
        raise InputError(f"target_accept must lie between 0 and 1, not {target_accept}")
