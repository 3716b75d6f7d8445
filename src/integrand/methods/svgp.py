"""`svgp`, the paper's SVGP: θ, Z and a Gaussian q(u) maximise the uncollapsed bound, by Adam on batches of rows.

Hensman et al. (2013, 2015). A step costs B M² + M³ however many rows there are, and any likelihood will do. The loop
runs inside XLA; Python looks in between calls, to tell how far it is and whether the minutes are used up.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from integrand.bounds.collapsed import factorise
from integrand.bounds.uncollapsed import (
    FactoredGaussian,
    batch_log_likelihood,
    kl_from_prior,
    optimal_inducing,
    uncollapsed_bound,
)
from integrand.data.dataset import Dataset
from integrand.errors import NumericalError
from integrand.inducing import k_means
from integrand.infer.threads import one_blas_thread
from integrand.likelihoods import Gaussian
from integrand.linalg import Jitter
from integrand.methods.checkpoint import TOLERANCE_NATS
from integrand.methods.problem import Problem, one_draw, starting_inducing
from integrand.model import Model
from integrand.posterior.conditional import VariationalConditional
from integrand.posterior.posterior import BoundPoint, Posterior
from integrand.precision import float64_scope
from integrand.targets import CollapsedTarget
from integrand.targets.program import LARGE, compiled

# Adam's steps are short: so many of them for each of `settings.steps`, which are counted in steps of L-BFGS.
ADAM_STEPS = 5
# The schedule behind the paper's tables.
PAPER_RATE, PAPER_BATCH, PAPER_EPOCHS = 0.01, 200, 2_000
# Steps that one call of the compiled loop has room for, and the seconds it should take: Ctrl-C waits for it.
_ROOM, _CALL_SECONDS = 500, 0.5
# Points of the bound's history; and the fewest steps that tell whether it still climbs.
_POINTS, _LEAST_TENTH = 100, 8
NOT_FINITE = "the bound is not finite where Adam starts: look for extreme values in the data, or use a larger jitter"
_ADAM = optax.scale_by_adam()


class Unknowns(NamedTuple):
    """What `svgp` climbs over: φ, Z and q(v)."""

    phi: Any
    Z: Any
    q: FactoredGaussian


def _objective(x: Unknowns, inputs: Any, fixed: Any, model: Model, jitter: Jitter) -> Any:
    """The bound on all rows, estimated from some."""
    (rows, _), (X, y) = inputs, fixed
    gp = model.gp(model.theta(x.phi))
    return batch_log_likelihood(model.likelihood, gp, x.Z, x.q, X[rows], y[rows], len(y), jitter) - kl_from_prior(x.q)


@partial(jax.jit, static_argnames=("model", "jitter"))
def _full_bound(x: Unknowns, data: Dataset, model: Model, jitter: Jitter) -> Any:
    return uncollapsed_bound(model.likelihood, model.gp(model.theta(x.phi)), x.Z, x.q, data, jitter)


@partial(jax.jit, static_argnames=("model", "jitter"))
def _optimum(phi: Any, Z: Any, data: Dataset, model: Model, jitter: Jitter) -> FactoredGaussian:
    return optimal_inducing(factorise(model.gp(model.theta(phi)), Z, data, jitter))


def starting_unknowns(problem: Problem, plain: bool = False) -> tuple[Unknowns, str]:
    """The prior's medians, the best candidate for Z, and the best q(v) there; and the candidate's name.

    Without Gaussian noise neither the bound of a candidate nor the best q(v) is known: k-means, and N(0, I). `plain`
    starts q(v) there in any case.
    """
    model, phi = problem.model, problem.model.start()
    gaussian = isinstance(model.likelihood, Gaussian)
    if gaussian:
        Z, name = starting_inducing(problem, CollapsedTarget(model, problem.data, problem.jitter), phi)
    elif problem.Z is not None:
        Z, name = problem.Z, "given"
    else:
        Z, name = k_means(problem.rng(0), np.asarray(problem.data.arrays()[0]), problem.n_inducing), "k-means"
    m, S = np.zeros(len(Z)), np.eye(len(Z))
    if gaussian and not plain:
        with float64_scope():
            best = _optimum(phi, Z, problem.data, model=model, jitter=problem.jitter)
        if np.all(np.isfinite(best.m)) and np.all(np.isfinite(best.S)):
            m, S = np.asarray(best.m), np.asarray(best.S)
    return Unknowns(phi, Z, FactoredGaussian(m, S)), name


class _State(NamedTuple):
    x: Any
    good: Any  # the last x whose bound and gradient were finite
    kept: Any  # the same, or, where the objective has no noise, the best x
    top: Any  # objective at `kept`
    adam: Any
    failures: Any


def _advance(state, inputs, rates, count, noisy, fixed, objective, plain: bool, model: Model, jitter: Jitter):
    """`count` steps of Adam; a step that fails goes half-way back to the last point that worked.

    `plain` steps in m and S themselves, as the paper did, and not in the coordinates of q.
    """

    def choose(which: Any, one: Any, other: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.where(which, a, b), one, other)

    def step(i, carry):
        (x, good, kept, top, adam, failures), values = carry
        here = jax.tree.map(lambda table: table[i], inputs)
        value, gradient = jax.value_and_grad(objective)(x, here, fixed, model, jitter)
        ok = jnp.all(jnp.array([jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves((value, gradient))]))
        kept, top = choose(ok & (noisy | (value > top)), (x, value), (kept, top))
        dq = gradient.q._replace(S=jnp.tril(gradient.q.S)) if plain else x.q.seen(gradient.q)
        ascent, next_adam = _ADAM.update(gradient._replace(q=dq), adam)
        ahead: Any = jax.tree.map(lambda x, a: x + rates[i, 1] * a, x, ascent)
        step_q = jax.tree.map(lambda a: rates[i, 0] * a, ascent.q)  # pyright: ignore[reportAttributeAccessIssue]
        ahead = ahead._replace(q=jax.tree.map(jnp.add, x.q, step_q) if plain else x.q.moved(step_q))
        back = jax.tree.map(lambda x, good: jnp.where(jnp.isfinite(x), 0.5 * (x + good), good), x, good)
        x, good, adam = choose(ok, (ahead, x, next_adam), (back, good, adam))
        return _State(x, good, kept, top, adam, failures + ~ok), values.at[i].set(jnp.where(ok, value, jnp.nan))

    return jax.lax.fori_loop(0, count, step, (state, jnp.zeros(len(rates))))


class Batches:
    """Rows for each step: all rows in a new order, cut into batches, and again; every row is used equally often."""

    def __init__(self, rng: np.random.Generator, n_rows: int, size: int):
        self.rng, self.n_rows, self.size = rng, n_rows, min(size, n_rows)
        self.whole = self.size == n_rows  # every batch holds all rows
        self.left = np.zeros(0, np.int32)

    def take(self, count: int) -> np.ndarray:
        """The rows of the next `count` batches."""
        if self.whole:
            return np.tile(np.arange(self.n_rows, dtype=np.int32), (count, 1))
        orders = [self.left]
        while sum(map(len, orders)) < count * self.size:
            orders.append(self.rng.permutation(self.n_rows).astype(np.int32))
        stream = np.concatenate(orders)
        self.left = stream[count * self.size :]
        return stream[: count * self.size].reshape(count, self.size)


def _mean(values: np.ndarray) -> tuple[float, float, int]:
    """Mean of the finite ones among some values, its standard error, and their number."""
    finite = values[np.isfinite(values)]
    n = max(len(finite), 1)
    mean = float(finite.sum()) / n
    with np.errstate(over="ignore"):  # the bound of an absurd θ
        return mean, float(np.sqrt(np.sum((finite - mean) ** 2))) / n, len(finite)


class Climb(NamedTuple):
    """Where Adam ended and why: the unknowns, and the objective at each step (NaN where one failed)."""

    x: Any
    values: Float[np.ndarray, " n"]
    failures: int
    rates: Float[np.ndarray, "n 2"]  # of all steps that were asked for
    ended: str  # "", "minutes used up" or "interrupted"

    @property
    def climbing(self) -> str:
        """A sentence if the bound rose, beyond its noise, from one tenth of the steps to the next at the end.

        A rate that falls makes any climb look as if it had come to its end: hence a second look at the full rate.
        """
        n = len(self.values)
        full = int(np.sum(self.rates[:n, 0] == self.rates[0, 0]))
        for end, when in ((n, "the last tenth of the steps"), (full, "the last tenth of the steps at full rate")):
            tenths = np.array_split(self.values[max(end - 2 * (n // 10), 0) : end], 2)
            (before, error_before, worked_before), (last, error, worked) = map(_mean, tenths)
            if min(worked_before, worked) < _LEAST_TENTH:
                return "Too few steps worked to tell whether the bound still climbs."
            gain, error = last - before, np.hypot(error, error_before)
            if gain > TOLERANCE_NATS + 2.0 * error:
                return f"The bound still climbed by {gain:.2g} nats over {when}."
        return ""

    def history(self, seconds: float) -> list[BoundPoint]:
        """The bound over the steps: means of windows, with their standard errors."""
        points, n = [], len(self.values)
        for window in np.array_split(np.arange(n), max(min(_POINTS, n), 1)):
            mean, error, worked = _mean(self.values[window])
            if worked:
                at = int(window[-1])
                points.append(BoundPoint("optimise", at, seconds * (at + 1) / n, mean, error))
        return points

    def notes(self, batches: Batches) -> list[str]:
        """How it went, in sentences."""
        rows = "all rows" if batches.whole else f"batches of {batches.size} rows"
        notes = [f"{len(self.values)} steps of Adam on {rows}."]
        if self.failures:
            notes.append(f"{self.failures} of them failed numerically and were taken back.")
        if self.ended:
            notes.append(f"Adam ended before its {len(self.rates)} steps: {self.ended}.")
        return notes


def climb(
    problem: Problem,
    objective: Callable,
    x: Any,
    batches: Batches,
    rates: Float[np.ndarray, "n 2"],
    extra: Callable[[int], Any] | None = None,
    plain: bool = False,
) -> Climb:
    """Maximise E objective(x, (rows, extra), (X, y), model, jitter) by Adam, a step for each row of `rates`.

    Rates are those of q(v) and of all else. The objective must be the same object from fit to fit: programs are kept
    for it. `extra(count)` is what else the next steps need, arrays with a leading axis of steps: noise, against which
    no step can be called the best.
    """
    settings, model, M = problem.settings, problem.model, len(x.Z)
    small = 12.0 * M**2 * (batches.size + M) < LARGE
    program = compiled(_advance, ("objective", "plain", "model", "jitter"), 1 if small else 0)
    room, steps = max(10, min(_ROOM, 200_000 // batches.size)), len(rates)
    values, done, count, ended = [np.zeros(0)], 0, 1, ""
    noisy = extra is not None or not batches.whole

    def padded(table: np.ndarray) -> np.ndarray:
        return np.concatenate([table, np.zeros((room - len(table), *table.shape[1:]), table.dtype)])

    with float64_scope(), one_blas_thread(small):
        x = jax.tree.map(lambda a: jnp.asarray(a, float), x)
        state = _State(x, x, x, jnp.asarray(-jnp.inf), _ADAM.init(x), jnp.zeros((), int))
        fixed = problem.data.arrays()
        try:
            while done < steps and not ended:
                began, count = time.monotonic(), min(count, room, steps - done)
                inputs = jax.tree.map(padded, (batches.take(count), extra(count) if extra else ()))
                rate = padded(rates[done : done + count])
                state, told = program(state, inputs, rate, count, noisy, fixed, objective, plain, model, problem.jitter)
                values.append(np.asarray(told)[:count])
                done += count
                count = max(1, min(4 * count, int(_CALL_SECONDS * count / (time.monotonic() - began))))
                problem.progress.update(done, steps, f"bound {values[-1][-1]:.2f}")
                if settings.max_minutes is not None and problem.clock.elapsed > 60.0 * settings.max_minutes:
                    ended = "minutes used up" if done < steps else ""
        except KeyboardInterrupt:
            ended = "interrupted"
        found = jax.tree.map(np.asarray, state.kept)
        return Climb(found, np.concatenate(values), int(state.failures), rates, ended)


def decaying(problem: Problem) -> Float[np.ndarray, "n 2"]:
    """The settings' rate for half of the steps, then linearly down to nearly zero, so that the noise dies out.

    Where q(v) starts at N(0, I), and knows nothing of the data, it moves alone for the first tenth: θ and Z would run
    away from it.
    """
    settings, steps = problem.settings, ADAM_STEPS * problem.settings.steps
    at = np.arange(steps) / steps
    rates = settings.learning_rate * np.minimum(1.0, 2.0 * (1.0 - at))
    alone = 0.0 if isinstance(problem.model.likelihood, Gaussian) else 0.1
    return np.column_stack([rates, np.where(at < alone, 0.0, rates)])


def svgp(problem: Problem) -> Posterior:
    """Climb the bound over φ, Z and q(v); no prior takes part, as in ML-II."""
    settings, clock, paper = problem.settings, problem.clock, problem.settings.schedule == "paper"
    clock.enter("warm start")
    start, name = starting_unknowns(problem, plain=paper)
    batches = Batches(problem.rng(7), problem.data.n_rows, PAPER_BATCH if paper else settings.batch_size)
    rates = decaying(problem)
    if paper:
        rates = np.full((PAPER_EPOCHS * -(-batches.n_rows // batches.size), 2), PAPER_RATE)
    clock.enter("optimise")
    problem.progress.phase("optimise")
    found = climb(problem, _objective, start, batches, rates, plain=paper)
    with float64_scope():
        bound = float(_full_bound(found.x, problem.data, model=problem.model, jitter=problem.jitter))
    if not np.isfinite(bound):
        raise NumericalError(NOT_FINITE)
    notes = [f"Z started from {name}.", *found.notes(batches), f"The bound on all rows is {bound:.2f} nats."]
    notes += [f"{found.climbing} Allow more steps."] if found.climbing else []
    clock.enter("")
    history = [*found.history(clock.elapsed), BoundPoint("optimise", len(found.values), clock.elapsed, bound, 0.0)]
    phi, Z, q = found.x
    return Posterior(
        "svgp",
        problem.model,
        problem.scaler,
        problem.jitter,
        one_draw(phi, bound),
        VariationalConditional(phi[None], Z, q.m[None], q.S[None]),
        None,
        phi,
        tuple(history),
        np.array([start.Z, Z]),
        dict(clock.seconds),
        {"gradients": len(found.values), "failures": found.failures},
        tuple(notes),
    )
