"""Stochastic-gradient HMC (Chen, Fox & Guestrin 2014): each step uses a minibatch of the rows.

In whitened coordinates η with momentum p, step size ε, friction α and a gradient g from a minibatch whose noise has
the variance V (Algorithm 2 of the paper, in the scaling of Ma, Chen & Fox 2015):

    η ← η + ε p
    p ← (1 - αε) p + ε g(η) + N(0, ε (2α - εV))

There is no rejection: the draws have a bias of order ε². The noise of the minibatch counts as part of the noise that
the friction needs. V is estimated in warm-up from the two halves of each minibatch, which costs nothing.

A gradient longer than any of a posterior is shortened, as in the tamed Langevin algorithm (Brosse et al. 2019). Without
that one step is enough to lose a chain. Where two inducing inputs coincide, a density of Z has a notch only as wide as
the jitter, and a step from inside of it would be hundreds of standard deviations long.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from integrand.compilation import compiler_options, one_blas_thread
from integrand.errors import InputError, NumericalError, need
from integrand.infer.base import Callback, Finding, Matrix, Plan, Run, Sampler, Target, TracedRows, Vector, keep_going
from integrand.infer.chain_runner import DrawRange, DrawRecord, arrays, chain_key, run_chains, run_draws
from integrand.infer.coordinates import Coordinates
from integrand.precision import float64_scope

# By default a step uses a tenth of the rows, but no fewer and no more than these.
MIN_BATCH, MAX_BATCH = 32, 1024
# Default step size, at most and for each root of the share of rows in a minibatch. A whitened posterior has V near
# N/B, so that ε²V is at most 0.09. With all rows the bias is 0.06 standard deviations (`tests/methods/test_bsgp.py`).
MAX_STEP_SIZE, STEP_SIZE_OF_SHARE = 0.2, 0.3
# Length of the step that only evaluates a start.
_NO_MOVE = 1e-150


class _State(NamedTuple):
    position: Any
    momentum: Any
    noise: Any  # V, the estimated variance of the gradient in each coordinate
    batches: Any  # minibatches that V was estimated from
    value: Any  # log density at the position, by the minibatch evaluated there


class _StepOptions(NamedTuple):
    step_size: Any
    friction: Any


@dataclass(frozen=True)
class SGHMC(Sampler):
    """Chains of (nearly) exp(log_prior + Σ log_likelihood_rows).

    Of a run, `log_density` is the estimate from the draw's last minibatch and `acceptance` is 1. A draw is `diverging`
    if one of its steps left the region where the density is finite: that step was taken back, with its momentum
    reversed. Warm-up estimates V and lets chains forget their starts.

    Parameters
    ----------
    rows
        The density as a sum over rows. The target of `run` is not evaluated.
    batch_size
        Rows of a step, drawn with replacement, an even number: N/10 by default, at least 32 and at most 1024. With N or
        more there are no minibatches: each step uses all rows.
    step_size
        ε: by default min(0.2, 0.3 √(B/N)), which keeps ε²V small; half of it makes the bias a quarter.
    friction
        α, at least; it is raised to εV where the noise of minibatches is larger than this friction balances.
    thin
        Steps per draw: by default enough to cross the posterior, 2 max(α, εN/B) / ε.
    """

    rows: TracedRows
    batch_size: int | None = None
    step_size: float | None = None
    friction: float = 1.0
    thin: int | None = None

    def run(self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback) -> Run:
        """Warm up and draw, in parallel chains."""
        rows, n, dimension = self.rows, self.rows.n_rows, starts.shape[1]
        batch_size, step_size, thin = self._choices()
        keys = [chain_key([*plan.seed, c]) for c in range(len(starts))]
        batch, threads = batch_size if batch_size < n else 0, 1 if plan.parallel > 1 else 0
        program = _program(rows.log_prior, rows.log_likelihood_rows, batch, threads)
        options = arrays(_StepOptions(float(step_size), float(self.friction)))

        def advance(chain: int, state: _State, first: int, count: int) -> tuple[_State, DrawRecord]:
            draws = arrays(DrawRange(first, count, plan.warmup, thin))
            return program(keys[chain], state, draws, options, *fixed)

        with float64_scope(), one_blas_thread(plan.parallel > 1):
            fixed = jax.tree.map(jnp.asarray, (coordinates.centre, coordinates.factor, rows.rows, rows.data))
            no_move = arrays((DrawRange(0, 1, 0, 1), _StepOptions(_NO_MOVE, float(self.friction))))
            first_noise, zero = np.full(dimension, _first_noise(batch_size, n)), np.asarray(0.0)
            states = []
            for key, start in zip(keys, starts, strict=True):
                momentum = np.random.default_rng(key).standard_normal(dimension)
                state = _State(coordinates.to_eta(start), momentum, first_noise, zero, zero)
                _, record = program(key, state, *no_move, *fixed)
                if np.asarray(record.diverging)[0]:
                    raise NumericalError(
                        "the log density is not finite where a chain should start: try other priors or another start"
                    )
                states.append(state._replace(value=np.asarray(record.log_density)[0]))
        return run_chains(
            advance,
            states,
            dimension,
            warmup=plan.warmup,
            draws=plan.draws,
            parallel=plan.parallel,
            callback=callback,
            evaluations=len(starts),
        )

    def _choices(self) -> tuple[int, float, int]:
        """Batch size, step size and steps per draw: the options, or their defaults."""
        n, batch_size, step_size, thin = self.rows.n_rows, self.batch_size, self.step_size, self.thin
        if batch_size is None:
            batch_size = min(max(MIN_BATCH, 2 * (n // 20)), MAX_BATCH)
        if batch_size < 1 or (batch_size < n and batch_size % 2):
            raise InputError(f"batch_size must be an even number of rows or at least all of them, not {batch_size}")
        share = min(1.0, batch_size / n)
        if step_size is None:
            step_size = min(MAX_STEP_SIZE, STEP_SIZE_OF_SHARE * math.sqrt(share))
        if not (0.0 < step_size < math.inf and 0.0 < self.friction < 1.0 / step_size):
            raise InputError(f"step_size ({step_size}) times friction ({self.friction}) must lie between 0 and 1")
        if thin is None:
            noise = _first_noise(batch_size, n)
            thin = math.ceil(2.0 * max(self.friction, step_size * noise) / step_size)
        return batch_size, step_size, thin


def _first_noise(batch_size: int, n: int) -> float:
    """V before it is estimated: N/B, that of a whitened posterior."""
    return 0.0 if batch_size >= n else 1.0 / (batch_size / n)


@dataclass(frozen=True)
class SafeStepSGHMC(Sampler):
    """SG-HMC with a step size at which a short trial stays in the posterior.

    Nothing rejects a step that went too far. Where the density is not the Gaussian of the coordinates, the default step
    size may lead a chain away for good. So the step size is halved until a trial neither diverges nor leaves. If no
    step size that was tried is short enough, the shortest is used, with a finding for the verdict.
    """

    sghmc: SGHMC
    min_log_density: float  # of the target; a draw below it is outside the posterior
    trial_draws: int = 30  # draws of a trial, as many as of its warm-up: a chain that leaves does so within some tens
    max_trials: int = 6  # down to 1/32 of the first step size, where a draw takes 32 times as many steps
    max_diverging: float = 0.01  # divergences per trial draw

    def run(self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback) -> Run:
        """Trials, and then all draws."""
        sghmc, evaluations, findings = self.sghmc, 0, ()
        trial_plan = plan.but(warmup=self.trial_draws, draws=self.trial_draws, seed=(*plan.seed, 1))
        for _ in range(self.max_trials):
            trial = sghmc.run(target, starts, coordinates, trial_plan, keep_going)
            evaluations += trial.evaluations
            if trial.interrupted:
                return trial._replace(chains=trial.chains.first(0), evaluations=evaluations)
            if self._stays(trial, target):
                break
            sghmc = replace(sghmc, step_size=0.5 * float(trial.chains.step_size[0, 0]))
        else:
            shortest = 2.0 * float(sghmc.step_size or 0.0)  # the last that was tried
            sghmc = replace(sghmc, step_size=shortest)
            sentence = f"Even with the step size {shortest:.2g} trials of SG-HMC diverged or left the posterior."
            findings = (
                Finding("step-size", True, sentence, 'Use a larger `batch_size`, or `sampler="nuts"` with all rows.'),
            )
        run = sghmc.run(target, starts, coordinates, plan, callback)
        return run._replace(evaluations=run.evaluations + evaluations, findings=findings)

    def outside(self, x: Vector, target: Target) -> bool:
        """Whether x is outside the posterior."""
        return not target.value_and_gradient(x)[0] >= self.min_log_density

    def _stays(self, trial: Run, target: Target) -> bool:
        chains, third = trial.chains, self.trial_draws // 3
        divergences = trial.warmup_divergences + int(chains.diverging.sum())
        if divergences > self.max_diverging * self.trial_draws * len(chains.x):
            return False
        some = chains.x[:, third - 1 :: third].reshape(-1, chains.x.shape[2])
        return not any(self.outside(x, target) for x in some)


def _longest_gradient(dimension: int, noise: float) -> float:
    """A length that a gradient has with a probability below 1e-7.

    In whitened coordinates a gradient is nearly N(0, I), and from a batch N(0, (1 + noise) I). Its square is then χ²,
    with P(χ² > n + 2 √(n t) + 2 t) < exp(-t) (Laurent & Massart 2000, Lemma 1).
    """
    t = 16.0
    return math.sqrt((1.0 + noise) * (dimension + 2.0 * math.sqrt(dimension * t) + 2.0 * t))


@functools.lru_cache(maxsize=64)
def _program(log_prior, log_likelihood_rows, batch_size: int, threads: int):
    """The compiled chain; a `batch_size` of 0 means all rows at every step."""
    need("blackjax", "samplers", "SG-HMC")
    # BlackJAX's kernel redraws the momentum at each call and keeps one minibatch for all its steps. So only its
    # integrator is used, with the gradient at the new position as in the paper (BlackJAX's is at the old one).
    from blackjax.sgmcmc.diffusions import sghmc

    integrator: Any = sghmc

    def program(key, state, draws, options, centre, factor, rows, data):
        n = len(jax.tree.leaves(rows)[0])

        def estimate(eta, batch, weight):
            x = centre + factor @ eta
            return log_prior(x, data) + weight * log_likelihood_rows(x, batch, data)

        def shortened(slope, longest):
            """The gradient at most this long; one that is not finite stays so, and its step is taken back."""
            return slope * jnp.minimum(1.0, longest / jnp.maximum(jnp.linalg.norm(slope), 1.0))

        def gradient(key, eta):
            """Value, gradient, and the squared noise of the gradient."""
            if batch_size == 0:
                value, slope = jax.value_and_grad(estimate)(eta, rows, 1.0)
                return value, shortened(slope, _longest_gradient(len(eta), 0.0)), jnp.zeros_like(eta)
            chosen = jax.random.randint(key, (2, batch_size // 2), 0, n)
            halves = jax.tree.map(lambda a: a[chosen], rows)
            both = jax.vmap(jax.value_and_grad(estimate), (None, 0, None))
            values, gradients = both(eta, halves, 2.0 * n / batch_size)
            gradients = jax.vmap(shortened, (0, None))(gradients, _longest_gradient(len(eta), 2.0 * n / batch_size))
            return jnp.mean(values), jnp.mean(gradients, 0), 0.25 * (gradients[0] - gradients[1]) ** 2

        def step(key, state, in_warmup):
            key_rows, key_noise = jax.random.split(key)
            epsilon = options.step_size
            value, slope, squared = gradient(key_rows, state.position + epsilon * state.momentum)
            friction = jnp.maximum(options.friction, epsilon * state.noise)
            friction = jnp.minimum(friction, 1.0 / epsilon)
            noise = jnp.minimum(state.noise, friction / epsilon)
            move = integrator(friction, noise)
            position, momentum = move(key_noise, state.position, state.momentum, slope, epsilon)
            finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(slope)) & jnp.all(jnp.isfinite(momentum))
            position = jnp.where(finite, position, state.position)
            momentum = jnp.where(finite, momentum, -state.momentum)
            learn = in_warmup & finite
            # Roughly the mean over the latest half: the first minibatches are from far outside the posterior.
            weight = jnp.where(learn, 1.0 / (0.5 * state.batches + 1.0), 0.0)
            squared = jnp.where(finite, squared, 0.0)
            estimated = state.noise + weight * (squared - state.noise)
            value = jnp.where(finite, value, state.value)
            new = _State(position, momentum, estimated, state.batches + learn, value)
            return new, DrawRecord(
                x=centre + factor @ position,
                log_density=value,
                energy=jnp.asarray(jnp.nan, float),
                acceptance=jnp.asarray(1.0, float),
                n_steps=jnp.asarray(1, int),
                diverging=~finite,
                step_size=jnp.asarray(epsilon, float),
            )

        return run_draws(step, key, state, draws)

    return jax.jit(program, compiler_options=compiler_options(threads))
