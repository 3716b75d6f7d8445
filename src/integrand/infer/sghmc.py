"""Stochastic-gradient HMC (Chen, Fox & Guestrin 2014): each step sees a few rows of the data.

In whitened coordinates η with momentum p, step size ε, friction α and a gradient g from a minibatch whose noise has
the variance V (Algorithm 2 of the paper, in the scaling of Ma, Chen & Fox 2015):

    η ← η + ε p
    p ← (1 - αε) p + ε g(η) + N(0, ε (2α - εV))

There is no rejection: the draws have a bias of order ε². The rows' own noise counts as part of the noise that the
friction asks for; V is estimated while tuning from the two halves of each minibatch, which costs nothing.
"""

import functools
import math
from collections.abc import Callable, Sequence
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
from integrand.precision import float64_scope


class TracedRows(NamedTuple):
    """A log density with a sum over rows: log_prior(x, data) + log_likelihood_rows(x, rows, data).

    `rows` is a pytree of arrays with a leading axis of N; `log_likelihood_rows` gives the sum over those that it gets.
    The functions must be the same objects from run to run: compiled programs are kept for them.
    """

    log_prior: Callable[[Any, Any], Any]
    log_likelihood_rows: Callable[[Any, Any, Any], Any]
    rows: Any
    data: Any

    @property
    def n_rows(self) -> int:
        """Rows in all."""
        return len(jax.tree.leaves(self.rows)[0])


class _State(NamedTuple):
    position: Any
    momentum: Any
    noise: Any  # V, the variance of the gradient of each coordinate, as known so far
    seen: Any  # minibatches that it was estimated from
    value: Any  # log density at the position, by the minibatch that was seen there


class _Setting(NamedTuple):
    step_size: Any
    friction: Any


def sample_sghmc(
    target: TracedRows,
    starts: Float[np.ndarray, "C P"],
    whitening: Whitening,
    *,
    tune: int,
    draws: int,
    seed: Sequence[int],
    batch_size: int | None = None,
    step_size: float | None = None,
    friction: float = 1.0,
    thin: int | None = None,
    parallel: int = 2,
    watch: Watcher | None = None,
) -> SampledRun:
    """Draw from (nearly) exp(log_prior + Σ log_likelihood_rows), one chain for each row of `starts`.

    Of the result, `log_density` is the estimate from the draw's last minibatch, `acceptance` is 1, and `diverging` are
    draws on whose way a step left the region where the density is finite: it was taken back, with its momentum
    reversed.

    Parameters
    ----------
    tune, draws
        Tuning steps (which find V and let the chain forget its start) and draws kept, for each chain.
    batch_size
        Rows seen by a step, drawn with replacement, an even number: N/10 by default, at least 32 and at most 1024.
        With N or more there are no minibatches: each step sees all rows.
    step_size
        ε. A whitened posterior has V near N/B, so min(0.2, 0.3 √(B/N)) keeps ε²V small; halving it quarters the bias.
    friction
        α, at least; it is raised to εV where the rows' noise is larger than what this friction balances.
    thin
        Steps for each tuning step and each kept draw: by default enough to cross the posterior, 2 max(α, εN/B) / ε.
    parallel, watch
        As in `sample_traced`.
    """
    n, dimension = target.n_rows, starts.shape[1]
    batch_size = min(max(32, 2 * (n // 20)), 1024) if batch_size is None else batch_size
    if batch_size < 1 or (batch_size < n and batch_size % 2):
        raise InputError(f"batch_size must be an even number of rows or at least all of them, not {batch_size}")
    share = min(1.0, batch_size / n)
    step_size = min(0.2, 0.3 * math.sqrt(share)) if step_size is None else step_size
    if not (0.0 < step_size < math.inf and 0.0 < friction < 1.0 / step_size):
        raise InputError(f"step_size ({step_size}) times friction ({friction}) must lie between 0 and 1")
    noise = 0.0 if batch_size >= n else 1.0 / share
    thin = math.ceil(2.0 * max(friction, step_size * noise) / step_size) if thin is None else thin
    keys = [chain_key([*seed, c]) for c in range(len(starts))]
    program = _program(
        target.log_prior, target.log_likelihood_rows, batch_size if batch_size < n else 0, 1 if parallel > 1 else 0
    )
    setting = arrays(_Setting(float(step_size), float(friction)))

    def advance(chain: int, state: _State, first: int, count: int) -> tuple[_State, Slot]:
        return program(keys[chain], state, arrays(Span(first, count, tune, thin)), setting, *fixed)

    with float64_scope(), one_blas_thread(parallel > 1):
        fixed = jax.tree.map(jnp.asarray, (whitening.centre, whitening.factor, target.rows, target.data))
        states = []
        for key, start in zip(keys, starts, strict=True):
            momentum = np.random.default_rng(key).standard_normal(dimension)
            state = _State(
                whitening.to_eta(start), momentum, np.full(dimension, noise), np.asarray(0.0), np.asarray(0.0)
            )
            # One step of length (nearly) zero says whether the density is finite at the start.
            still = arrays((Span(0, 1, 0, 1), _Setting(1e-150, float(friction))))
            _, told = program(key, state, *still, *fixed)
            if np.asarray(told.diverging)[0]:
                raise NumericalError(
                    "the log density is not finite where a chain should start: try other priors or another start"
                )
            states.append(state._replace(value=np.asarray(told.log_density)[0]))
    return run_side_by_side(
        advance, states, dimension, tune=tune, draws=draws, parallel=parallel, watch=watch, evaluations=len(starts)
    )


@functools.lru_cache(maxsize=64)
def _program(log_prior, log_likelihood_rows, batch_size: int, threads: int):
    """The compiled chain; a `batch_size` of 0 means all rows at every step."""
    # BlackJAX's kernel forgets the momentum and keeps one minibatch for all its steps: its integrator alone is used,
    # with the gradient where the position has gone to, as in the paper (BlackJAX has it where the step began).
    from blackjax.sgmcmc.diffusions import sghmc

    integrator: Any = sghmc

    def program(key, state, span, setting, centre, factor, rows, data):
        n = len(jax.tree.leaves(rows)[0])

        def estimate(eta, some, weight):
            x = centre + factor @ eta
            return log_prior(x, data) + weight * log_likelihood_rows(x, some, data)

        def gradient(key, eta):
            """Value, gradient, and the square of the gradient's noise."""
            if batch_size == 0:
                return *jax.value_and_grad(estimate)(eta, rows, 1.0), jnp.zeros_like(eta)
            chosen = jax.random.randint(key, (2, batch_size // 2), 0, n)
            halves = jax.tree.map(lambda a: a[chosen], rows)
            both = jax.vmap(jax.value_and_grad(estimate), (None, 0, None))
            values, gradients = both(eta, halves, 2.0 * n / batch_size)
            return jnp.mean(values), jnp.mean(gradients, 0), 0.25 * (gradients[0] - gradients[1]) ** 2

        def step(key, state, now_tuning):
            key_rows, key_noise = jax.random.split(key)
            epsilon = setting.step_size
            value, slope, squared = gradient(key_rows, state.position + epsilon * state.momentum)
            friction = jnp.maximum(setting.friction, epsilon * state.noise)
            friction = jnp.minimum(friction, 1.0 / epsilon)
            noise = jnp.minimum(state.noise, friction / epsilon)
            move = integrator(friction, noise)
            position, momentum = move(key_noise, state.position, state.momentum, slope, epsilon)
            fine = jnp.isfinite(value) & jnp.all(jnp.isfinite(slope)) & jnp.all(jnp.isfinite(momentum))
            position = jnp.where(fine, position, state.position)
            momentum = jnp.where(fine, momentum, -state.momentum)
            learn = now_tuning & fine
            # The mean of the latest half, roughly: early minibatches saw the gradient far from the posterior.
            weight = jnp.where(learn, 1.0 / (0.5 * state.seen + 1.0), 0.0)
            squared = jnp.where(fine, squared, 0.0)
            known = state.noise + weight * (squared - state.noise)
            value = jnp.where(fine, value, state.value)
            new = _State(position, momentum, known, state.seen + learn, value)
            return new, Slot(
                x=centre + factor @ position,
                log_density=value,
                energy=jnp.asarray(jnp.nan, float),
                acceptance=jnp.asarray(1.0, float),
                n_steps=jnp.asarray(1, int),
                diverging=~fine,
                step_size=jnp.asarray(epsilon, float),
            )

        return slots(step, key, state, span)

    return jax.jit(program, compiler_options=compiler_options(threads))
