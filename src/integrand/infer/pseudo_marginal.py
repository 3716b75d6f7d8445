"""Metropolis with an unbiased estimate of the likelihood, which is exact (Beaumont 2003; Andrieu & Roberts 2009).

The chain runs over φ and the random numbers of its estimate p̂(y | φ). A proposal φ' comes with its own estimate p̂'. It
is accepted with probability min(1, p̂' p(φ') / p̂ p(φ)), as by Metropolis if the estimates were exact. The estimate of
the current point is kept and never renewed: that is what makes p(φ | y) the marginal of the chain. If the estimate is a
mean of weights of latent draws, one of them, taken in proportion to its weight, is kept with φ. The two together are a
draw from p(φ, latent | y).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from integrand.compilation import compiler_options, one_blas_thread
from integrand.errors import NumericalError
from integrand.infer.base import Callback, Matrix, Plan, Run, Sampler, Target
from integrand.infer.chain_runner import DrawRange, DrawRecord, chain_key, run_chains, run_draws
from integrand.infer.coordinates import Coordinates
from integrand.precision import float64_scope

# Exponent of the Robbins-Monro gains, by which the logarithm of the step size follows acceptance - target.
_STEP_DECAY = 0.6


class Estimated(NamedTuple):
    """The density, as functions that JAX traces; the same objects for equal models, so that they are compiled once."""

    log_prior: Callable[[Any, Any], Any]  # (φ, data)
    log_estimate: Callable[[Any, Any, Any], tuple[Any, Any]]  # (key, φ, data) -> log p̂(y | φ) and a latent draw
    data: Any


class _State(NamedTuple):
    phi: Any
    latent: Any
    log_density: Any  # log p̂(y | φ) + log p(φ), as it was when φ was proposed
    log_step: Any
    adaptations: Any  # transitions that moved `log_step`


@dataclass(frozen=True)
class PseudoMarginal(Sampler):
    """Chains of φ with the latent values of each draw; draws hold φ and then the latent values.

    Proposals are standard normal in the coordinates of φ, times a step size that adapts in warm-up (Robbins & Monro)
    and is then frozen.

    Parameters
    ----------
    estimated
        The density. The target of `run`, a density of φ, is not evaluated.
    n_latent
        Length of the latent draw.
    thin
        Proposals per draw: by default 4 P.
    """

    estimated: Estimated
    n_latent: int
    thin: int | None = None

    def run(self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback) -> Run:
        """Warm up and draw, in parallel chains that start with fresh estimates; `n_steps` counts estimates."""
        n, data = coordinates.dimension, self.estimated.data
        thin = 4 * n if self.thin is None else self.thin
        keys = [chain_key([*plan.seed, c]) for c in range(len(starts))]
        factor, program = np.asarray(coordinates.factor, float), self._program(plan.parallel)

        def advance(chain: int, state: _State, first: int, count: int) -> tuple[_State, DrawRecord]:
            return program(keys[chain], state, DrawRange(first, count, plan.warmup, thin), factor, data)

        states = []
        with float64_scope(), one_blas_thread(plan.parallel > 1):
            for key, start in zip(keys, starts[:, :n], strict=True):
                state = self._estimate(program, key, start, plan.warmup + plan.draws)
                if not np.isfinite(state.log_density):
                    raise NumericalError(
                        "the likelihood cannot be estimated where a chain should start: try other priors"
                    )
                # The best step size of a random walk in n dimensions (Gelman et al. 1996) without noise.
                states.append(state._replace(log_step=np.log(2.38 / np.sqrt(n))))
        return run_chains(
            advance,
            states,
            n + self.n_latent,
            warmup=plan.warmup,
            draws=plan.draws,
            parallel=plan.parallel,
            callback=callback,
            evaluations=len(states),
        )

    def fresh_estimates(
        self, phis: Float[np.ndarray, "S P"], repeats: int, plan: Plan
    ) -> Float[np.ndarray, "S repeats"]:
        """Log p̂(y | φ) + log p(φ), several times for each φ; by the program of the chains, so none is compiled."""
        program, key = self._program(plan.parallel), chain_key(plan.seed)
        with float64_scope(), one_blas_thread(plan.parallel > 1):
            repeated = enumerate(np.repeat(phis, repeats, axis=0))
            estimates = [self._estimate(program, key, phi, i).log_density for i, phi in repeated]
            return np.array([float(value) for value in estimates]).reshape(len(phis), repeats)

    def _program(self, parallel: int) -> Callable:
        return _compiled(self.estimated.log_prior, self.estimated.log_estimate, 1 if parallel > 1 else 0)

    def _estimate(self, program: Callable, key: np.ndarray, phi: np.ndarray, number: int) -> _State:
        """A chain at φ with an estimate: a step of length zero from a density of zero, which is accepted.

        `number` selects the random numbers, as that of a draw does.
        """
        zero_density = np.float64(-np.inf)
        state = _State(np.asarray(phi, float), np.zeros(self.n_latent), zero_density, zero_density, np.float64(0.0))
        return program(key, state, DrawRange(number, 1, 0, 1), np.eye(len(phi)), self.estimated.data)[0]


@functools.lru_cache(maxsize=64)
def _compiled(log_prior, log_estimate, threads: int):
    """The compiled chain. JAX keeps one for each shape of the arguments."""

    def program(key, state, draws, factor, data):
        def step(key, state: _State, in_warmup):
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
            log_step = state.log_step + jnp.where(in_warmup, surplus * (1.0 + state.adaptations) ** -_STEP_DECAY, 0.0)
            state = _State(
                jnp.where(accepted, phi, state.phi),
                jnp.where(accepted, latent, state.latent),
                jnp.where(accepted, value, state.log_density),
                log_step,
                state.adaptations + in_warmup,
            )
            return state, DrawRecord(
                x=jnp.concatenate([state.phi, state.latent]),
                log_density=state.log_density,
                energy=jnp.asarray(jnp.nan),
                acceptance=acceptance,
                n_steps=jnp.asarray(1),
                diverging=jnp.asarray(False),
                step_size=size,
            )

        return run_draws(step, key, state, draws)

    return jax.jit(program, compiler_options=compiler_options(threads))
