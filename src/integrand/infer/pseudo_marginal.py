"""Metropolis with an unbiased estimate of the likelihood: exact all the same (Beaumont 2003; Andrieu & Roberts 2009).

The chain runs over φ and the random numbers of its estimate p̂(y | φ): a proposal brings an estimate of its own and is
accepted with probability min(1, p̂' p(φ') / p̂ p(φ)), as Metropolis would with the estimates for truths. The estimate of
the point where the chain stands is kept and never made anew: that is what makes p(φ | y) its marginal. Where the
estimate is a mean of weights of latent draws, one of them taken in proportion to its weight goes with φ, and the two
are a draw from p(φ, latent | y).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from integrand.errors import NumericalError
from integrand.infer.chains import SampledRun, Watcher
from integrand.infer.metric import Whitening
from integrand.infer.side_by_side import run_side_by_side
from integrand.infer.slots import Slot, Span, chain_key, slots
from integrand.infer.threads import compiler_options, one_blas_thread
from integrand.precision import float64_scope

# The logarithm of the step size moves by (acceptance - target) times the number of the step to minus this power.
_FORGETTING = 0.6


class Estimated(NamedTuple):
    """The target, as functions that JAX traces; the same objects for equal models, so that programs are found again."""

    log_prior: Callable[[Any, Any], Any]  # (φ, data)
    log_estimate: Callable[[Any, Any, Any], tuple[Any, Any]]  # (key, φ, data) -> log p̂(y | φ) and a latent draw
    data: Any


class _State(NamedTuple):
    phi: Any
    latent: Any
    log_density: Any  # log p̂(y | φ) + log p(φ), as it was when φ was proposed
    log_step: Any
    tuned: Any  # steps that moved `log_step`


def sample_pseudo_marginal(
    target: Estimated,
    n_latent: int,
    starts: Float[np.ndarray, "C P"],
    whitening: Whitening,
    *,
    tune: int,
    draws: int,
    seed: Sequence[int],
    thin: int | None = None,
    parallel: int = 2,
    watch: Watcher | None = None,
) -> SampledRun:
    """Draw φ and the latent values that go with it, one chain for each row of `starts`.

    Parameters
    ----------
    n_latent
        Length of the latent draw; draws hold φ and then it.
    whitening
        Of φ: proposals are its standard normal times a step size, which is tuned (Robbins & Monro) and then frozen.
    thin
        Proposals for each kept draw: 4 P unless told.
    tune, draws, seed, parallel, watch
        As for `sample_nuts`. `n_steps` of a draw counts estimates.
    """
    n = len(whitening.centre)
    thin = 4 * n if thin is None else thin
    keys = [chain_key([*seed, c]) for c in range(len(starts))]
    factor = np.asarray(whitening.factor, float)
    program = _program(target.log_prior, target.log_estimate, 1 if parallel > 1 else 0)

    def advance(chain: int, state: _State, first: int, count: int) -> tuple[_State, Slot]:
        return program(keys[chain], state, Span(first, count, tune, thin), factor, target.data)

    states = []
    with float64_scope(), one_blas_thread(parallel > 1):
        for key, start in zip(keys, starts, strict=True):
            state = _estimated(program, key, start, n_latent, target.data, tune + draws)
            if not np.isfinite(state.log_density):
                raise NumericalError("the likelihood cannot be estimated where a chain should start: try other priors")
            states.append(state._replace(log_step=np.log(2.38 / np.sqrt(n))))
    return run_side_by_side(
        advance, states, n + n_latent, tune=tune, draws=draws, parallel=parallel, watch=watch, evaluations=len(states)
    )


def fresh_estimates(
    target: Estimated,
    n_latent: int,
    phis: Float[np.ndarray, "S P"],
    *,
    repeats: int,
    seed: Sequence[int],
    parallel: int,
) -> Float[np.ndarray, "S repeats"]:
    """Log p̂(y | φ) + log p(φ), some times for each φ; by the program of the chains, so none is compiled."""
    program = _program(target.log_prior, target.log_estimate, 1 if parallel > 1 else 0)
    key, every = chain_key([*seed]), np.repeat(phis, repeats, axis=0)
    with float64_scope(), one_blas_thread(parallel > 1):
        found = [_estimated(program, key, phi, n_latent, target.data, i).log_density for i, phi in enumerate(every)]
        return np.array([float(value) for value in found]).reshape(len(phis), repeats)


def _estimated(program, key, phi, n_latent: int, data, number: int) -> _State:
    """A chain at φ with an estimate: a step of length zero from a density of zero, which is accepted.

    `number` says which random numbers it takes, as that of a slot does.
    """
    none = np.float64(-np.inf)
    nowhere = _State(np.asarray(phi, float), np.zeros(n_latent), none, none, np.float64(0.0))
    return program(key, nowhere, Span(number, 1, 0, 1), np.eye(len(phi)), data)[0]


@functools.lru_cache(maxsize=64)
def _program(log_prior, log_estimate, threads: int):
    """The compiled chain. JAX keeps one for each shape of the arguments."""

    def program(key, state, span, factor, data):
        def step(key, state: _State, tuning):
            key_move, key_estimate, key_accept = jax.random.split(key, 3)
            size = jnp.exp(state.log_step)
            phi = state.phi + size * (factor @ jax.random.normal(key_move, state.phi.shape))
            estimate, latent = log_estimate(key_estimate, phi, data)
            value = estimate + log_prior(phi, data)
            value = jnp.where(jnp.isfinite(value), value, -jnp.inf)
            ratio = jnp.where(value > -jnp.inf, value - state.log_density, -jnp.inf)
            acceptance = jnp.exp(jnp.minimum(ratio, 0.0))
            accepted = jax.random.uniform(key_accept) < acceptance
            # Best for a random walk: 0.44 in one dimension to 0.234 in many (Gelman et al. 1996).
            surplus = acceptance - 0.234 - 0.206 / phi.shape[0]
            log_step = state.log_step + jnp.where(tuning, surplus * (1.0 + state.tuned) ** -_FORGETTING, 0.0)
            state = _State(
                jnp.where(accepted, phi, state.phi),
                jnp.where(accepted, latent, state.latent),
                jnp.where(accepted, value, state.log_density),
                log_step,
                state.tuned + tuning,
            )
            return state, Slot(
                x=jnp.concatenate([state.phi, state.latent]),
                log_density=state.log_density,
                energy=jnp.asarray(jnp.nan),
                acceptance=acceptance,
                n_steps=jnp.asarray(1),
                diverging=jnp.asarray(False),
                step_size=size,
            )

        return slots(step, key, state, span)

    return jax.jit(program, compiler_options=compiler_options(threads))
