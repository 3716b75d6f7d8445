"""Adam on batches of rows: the loop runs inside XLA, and a callback is called between calls.

The unknowns are a NamedTuple of arrays with a field `q`, a Gaussian with coordinates of its own (`in_own_coordinates`
and `stepped`). The rows and the noise of a step depend on its number alone. So a run that goes on from a saved state
ends where it would have ended without the break.
"""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from integrand.compilation import compiler_options, one_blas_thread
from integrand.errors import InputError, counted
from integrand.infer.verdict import REJECTION_LIMIT, TOLERANCE_NATS, Finding
from integrand.precision import float64_scope

# Steps that one call of the compiled loop makes at most, rows that these steps use at most, and the seconds that a call
# should take: Ctrl-C waits for it.
_MAX_STEPS, _MAX_ROWS, _CALL_SECONDS = 500, 200_000, 0.5
# Points of the bound's history; and the fewest steps from which a mean with its error is taken.
_HISTORY_POINTS, _MIN_TENTH = 100, 8
# Adam with its usual decay rates (0.9 and 0.999) and without a learning rate, which the caller gives for each step.
_ADAM = optax.scale_by_adam()


class Batches:
    """Rows for each step: all rows in a new order, cut into batches, and again; every row is used equally often."""

    def __init__(self, rng: np.random.Generator, n_rows: int, size: int):
        self.rng, self.n_rows, self.size = rng, n_rows, min(size, n_rows)
        self.all_rows = self.size == n_rows  # whether every batch holds all rows
        self.remaining = np.zeros(0, np.int32)

    def take(self, count: int) -> np.ndarray:
        """The rows of the next `count` batches."""
        if self.all_rows:
            return np.tile(np.arange(self.n_rows, dtype=np.int32), (count, 1))
        orders = [self.remaining]
        while sum(map(len, orders)) < count * self.size:
            orders.append(self.rng.permutation(self.n_rows).astype(np.int32))
        stream = np.concatenate(orders)
        self.remaining = stream[count * self.size :]
        return stream[: count * self.size].reshape(count, self.size)


class Ascent(NamedTuple):
    """Where Adam ended and why: the unknowns, and the objective at each step (NaN where one failed)."""

    x: Any
    values: Float[np.ndarray, " n"]
    failures: int
    rates: Float[np.ndarray, "n 2"]  # of all steps that were asked for
    ended: str  # "", "minutes used up" or "interrupted"

    @property
    def unfinished(self) -> str:
        """A sentence if the bound rose, beyond its noise, from one tenth of the steps to the next at the end.

        A falling rate makes any ascent seem finished: so the end of the steps at the full rate is checked too.
        """
        n = len(self.values)
        full = int(np.sum(self.rates[:n, 0] == self.rates[0, 0]))
        for end, when in ((n, "the last tenth of the steps"), (full, "the last tenth of the steps at full rate")):
            tenths = np.array_split(self.values[max(end - 2 * (n // 10), 0) : end], 2)
            (before, error_before, n_before), (last, error, n_last) = map(_mean, tenths)
            if min(n_before, n_last) < _MIN_TENTH:
                return "Too few steps worked to tell whether the bound still rises."
            gain, error = last - before, np.hypot(error, error_before)
            if gain > TOLERANCE_NATS + 2.0 * error:
                return f"The bound still rose by {gain:.2g} nats over {when}."
        return ""

    def findings(self) -> tuple[Finding, ...]:
        """What a verdict says of the ascent."""
        findings, taken = [], len(self.values)
        if self.unfinished:
            findings.append(
                Finding("not-converged", True, self.unfinished, "Allow more `steps`, or a larger `batch_size`.")
            )
        if self.ended:
            code = "interrupted" if self.ended == "interrupted" else "budget"
            stopped = f"Adam ended after {taken} of {len(self.rates)} steps: {self.ended}."
            findings.append(
                Finding(code, True, stopped, "Resume the run, or fit again, with more `max_minutes` if need be.")
            )
        if self.failures > REJECTION_LIMIT * taken:
            failed = f"{self.failures} of {counted(taken, 'step')} failed numerically and were taken back."
            findings.append(
                Finding("rejections", True, failed, "Use fewer inducing points (`n_inducing`) or a larger `jitter`.")
            )
        return tuple(findings)

    def history(self) -> list[tuple[int, float, float]]:
        """The bound over the steps: last steps of windows, means over them, and the standard errors of the means."""
        points, n = [], len(self.values)
        for window in np.array_split(np.arange(n), max(min(_HISTORY_POINTS, n), 1)):
            mean, error, n_finite = _mean(self.values[window])
            if n_finite:
                points.append((int(window[-1]), mean, error))
        return points

    def notes(self, batches: Batches) -> list[str]:
        """What the notes of a fit say of the ascent."""
        rows = "all rows" if batches.all_rows else f"batches of {batches.size} rows"
        notes = [f"{counted(len(self.values), 'step')} of Adam on {rows}."]
        if self.failures:
            notes.append(f"{self.failures} of them failed numerically and were taken back.")
        if self.ended:
            notes.append(f"Adam ended before its {len(self.rates)} steps: {self.ended}.")
        return notes


class AscentSnapshot(NamedTuple):
    """What a callback sees: steps done, all steps, the objective at the last, and the state as arrays."""

    done: int
    steps: int
    value: float
    state: Callable[[], dict[str, np.ndarray]]


class _State(NamedTuple):
    x: Any
    finite: Any  # the last x whose bound and gradient were finite
    best: Any  # the same, or, where the objective has no noise, the best x
    best_value: Any  # objective at `best`
    adam: Any
    failures: Any


# Called after each call of the compiled loop; returns why to end, or "".
AscentCallback = Callable[[AscentSnapshot], str]


class BatchObjective(NamedTuple):
    """function(x, (rows, extra), fixed, *static), whose mean over batches is maximised.

    `function` and `static` must be hashable and the same from fit to fit: programs are cached by them. `plain` steps in
    the numbers of q themselves, as the paper did, and not in the coordinates of q.
    """

    function: Callable
    fixed: Any
    static: tuple
    plain: bool = False


def maximise_on_batches(
    objective: BatchObjective,
    x: Any,
    batches: Batches,
    rates: Float[np.ndarray, "n 2"],
    *,
    extra: Callable[[int], Any] | None = None,
    threads: int = 0,
    callback: AscentCallback | None = None,
    saved: Mapping[str, np.ndarray] | None = None,
) -> Ascent:
    """Maximise the mean of an objective over batches by Adam, a step for each row of `rates`.

    Parameters
    ----------
    rates
        Of q, and of all other unknowns.
    extra
        `extra(count)` is what else the next steps need, arrays with a leading axis of steps: noise, because of which no
        step can be called the best.
    threads
        1 for one thread, 0 for all.
    saved
        A state from an `AscentSnapshot`, to go on from.
    """
    program, room, steps = _program(threads), max(10, min(_MAX_STEPS, _MAX_ROWS // batches.size)), len(rates)
    noisy, ended, count = extra is not None or not batches.all_rows, "", 1
    form = objective.function, objective.plain, objective.static

    def padded(table: np.ndarray) -> np.ndarray:
        return np.concatenate([table, np.zeros((room - len(table), *table.shape[1:]), table.dtype)])

    def inputs(count: int) -> Any:
        return batches.take(count), extra(count) if extra else ()

    with float64_scope(), one_blas_thread(threads == 1):
        x = jax.tree.map(lambda a: jnp.asarray(a, float), x)
        state = _State(x, x, x, jnp.asarray(-jnp.inf), _ADAM.init(x), jnp.zeros((), int))
        values = np.zeros(0)
        if saved is not None:
            state, values = _restored(saved, state)
        for first in range(0, len(values), room):  # the random numbers of the steps before
            inputs(min(room, len(values) - first))
        try:
            while len(values) < steps and not ended:
                done, began = len(values), time.monotonic()
                count = min(count, room, steps - done)
                batch, rate = jax.tree.map(padded, (inputs(count), rates[done : done + count]))
                new, new_values = program(state, batch, rate, count, noisy, objective.fixed, form)
                # In one statement, for Ctrl-C may come between any two.
                state, values = new, np.concatenate([values, np.asarray(new_values)[:count]])
                count = max(1, min(4 * count, int(_CALL_SECONDS * count / (time.monotonic() - began))))
                if callback is not None:
                    arrays = functools.partial(_arrays, state, values)
                    reason = callback(AscentSnapshot(len(values), steps, float(values[-1]), arrays))
                    ended = reason if len(values) < steps else ""
        except KeyboardInterrupt:
            ended = "interrupted"
        return Ascent(jax.tree.map(np.asarray, state.best), values, int(state.failures), rates, ended)


@functools.cache
def _program(threads: int) -> Callable:
    return jax.jit(_advance, static_argnames="form", compiler_options=compiler_options(threads))


def _advance(state, inputs, rates, count, noisy, fixed, form: tuple[Callable, bool, tuple]):
    """`count` steps of Adam; after a step that fails x goes half-way back to the last point that was finite."""
    function, plain, static = form

    def choose(condition: Any, one: Any, other: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)

    def step(i, carry):
        (x, finite, best, best_value, adam, failures), values = carry
        batch = jax.tree.map(lambda table: table[i], inputs)
        value, gradient = jax.value_and_grad(function)(x, batch, fixed, *static)
        ok = jnp.all(jnp.array([jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves((value, gradient))]))
        best, best_value = choose(ok & (noisy | (value > best_value)), (x, value), (best, best_value))
        dq = gradient.q._replace(S=jnp.tril(gradient.q.S)) if plain else x.q.in_own_coordinates(gradient.q)
        ascent, next_adam = _ADAM.update(gradient._replace(q=dq), adam)
        moved: Any = jax.tree.map(lambda x, a: x + rates[i, 1] * a, x, ascent)
        step_q = jax.tree.map(lambda a: rates[i, 0] * a, ascent.q)  # pyright: ignore[reportAttributeAccessIssue]
        moved = moved._replace(q=jax.tree.map(jnp.add, x.q, step_q) if plain else x.q.stepped(step_q))
        back = jax.tree.map(lambda x, last: jnp.where(jnp.isfinite(x), 0.5 * (x + last), last), x, finite)
        x, finite, adam = choose(ok, (moved, x, next_adam), (back, finite, adam))
        state = _State(x, finite, best, best_value, adam, failures + ~ok)
        return state, values.at[i].set(jnp.where(ok, value, jnp.nan))

    return jax.lax.fori_loop(0, count, step, (state, jnp.zeros(len(rates))))


def _arrays(state: _State, values: np.ndarray) -> dict[str, np.ndarray]:
    """A state, and the objective at the steps that led to it, as arrays by name."""
    leaves = {f"leaf_{i:02d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    return leaves | {"values": values}


def _restored(arrays: Mapping[str, np.ndarray], like: _State) -> tuple[_State, np.ndarray]:
    """The state and values that `_arrays` made arrays of, if they have the shapes of `like`."""
    leaves, structure = jax.tree.flatten(like)
    saved = [jnp.asarray(arrays[f"leaf_{i:02d}"], leaf.dtype) for i, leaf in enumerate(leaves)]
    if [a.shape for a in saved] != [leaf.shape for leaf in leaves]:
        raise InputError("the state on disk is of another number of inducing points: start a new run directory")
    return jax.tree.unflatten(structure, saved), arrays["values"]


def _mean(values: np.ndarray) -> tuple[float, float, int]:
    """Mean of the finite ones among some values, its standard error, and their number."""
    finite = values[np.isfinite(values)]
    n = max(len(finite), 1)
    mean = float(finite.sum()) / n
    with np.errstate(over="ignore"):  # the bound of an absurd θ
        return mean, float(np.sqrt(np.sum((finite - mean) ** 2))) / n, len(finite)
