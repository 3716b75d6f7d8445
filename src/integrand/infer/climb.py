"""Adam on batches of rows: the loop runs inside XLA, and Python looks in between calls.

What is climbed over is a NamedTuple of arrays with a field `q`, a Gaussian that tells how gradients look, and how it
moves, in its own coordinates (`seen` and `moved`). A run can go on from what an earlier one was seen to have reached,
with the same result as if it had never ended: the rows and the noise of a step depend on its number alone.
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

from integrand.errors import InputError
from integrand.infer.diagnostics import REJECTION_LIMIT, TOLERANCE_NATS, Finding
from integrand.infer.threads import compiler_options, one_blas_thread
from integrand.precision import float64_scope

# Steps that one call of the compiled loop has room for, and the seconds it should take: Ctrl-C waits for it.
_ROOM, _CALL_SECONDS = 500, 0.5
# Points of the bound's history; and the fewest steps that tell whether it still climbs.
_POINTS, _LEAST_TENTH = 100, 8
_ADAM = optax.scale_by_adam()


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

    def findings(self) -> tuple[Finding, ...]:
        """What a verdict has to say of the climb."""
        found, taken = [], len(self.values)
        if self.climbing:
            found.append(Finding("not-converged", True, self.climbing, "Allow more steps, or larger batches."))
        if self.ended:
            code = "interrupted" if self.ended == "interrupted" else "budget"
            stopped = f"Adam ended after {taken} of {len(self.rates)} steps: {self.ended}."
            found.append(Finding(code, True, stopped, "Resume the run, or fit again, with more time if need be."))
        if self.failures > REJECTION_LIMIT * taken:
            failed = f"{self.failures} of {taken} steps failed numerically and were taken back."
            found.append(Finding("rejections", True, failed, "Use fewer inducing points or a larger jitter."))
        return tuple(found)

    def history(self) -> list[tuple[int, float, float]]:
        """The bound over the steps: last steps of windows, means over them, and the standard errors of the means."""
        points, n = [], len(self.values)
        for window in np.array_split(np.arange(n), max(min(_POINTS, n), 1)):
            mean, error, worked = _mean(self.values[window])
            if worked:
                points.append((int(window[-1]), mean, error))
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


class ClimbWatch(NamedTuple):
    """What a watcher sees: steps done, those there are, the objective at the last, and the state as arrays."""

    done: int
    steps: int
    value: float
    state: Callable[[], dict[str, np.ndarray]]


class _State(NamedTuple):
    x: Any
    good: Any  # the last x whose bound and gradient were finite
    kept: Any  # the same, or, where the objective has no noise, the best x
    top: Any  # objective at `kept`
    adam: Any
    failures: Any


def climb(
    objective: Callable,
    x: Any,
    fixed: Any,
    static: tuple,
    batches: Batches,
    rates: Float[np.ndarray, "n 2"],
    *,
    extra: Callable[[int], Any] | None = None,
    plain: bool = False,
    threads: int = 0,
    watch: Callable[[ClimbWatch], str] | None = None,
    begun: Mapping[str, np.ndarray] | None = None,
) -> Climb:
    """Maximise E objective(x, (rows, extra), fixed, *static) by Adam, a step for each row of `rates`.

    Parameters
    ----------
    objective, static
        Must be hashable and the same from fit to fit: programs are kept for them.
    rates
        Of q, and of all else.
    extra
        `extra(count)` is what else the next steps need, arrays with a leading axis of steps: noise, against which no
        step can be called the best.
    plain
        Step in the numbers of q themselves, as the paper did, and not in the coordinates of q.
    watch
        Sees how far it is after each call of the compiled loop, and says why to end, or "".
    begun
        A state that a watcher saw, to go on from.
    """
    program, room, steps = _program(threads), max(10, min(_ROOM, 200_000 // batches.size)), len(rates)
    noisy, ended, count = extra is not None or not batches.whole, "", 1

    def padded(table: np.ndarray) -> np.ndarray:
        return np.concatenate([table, np.zeros((room - len(table), *table.shape[1:]), table.dtype)])

    def inputs(count: int) -> Any:
        return batches.take(count), extra(count) if extra else ()

    with float64_scope(), one_blas_thread(threads == 1):
        x = jax.tree.map(lambda a: jnp.asarray(a, float), x)
        state = _State(x, x, x, jnp.asarray(-jnp.inf), _ADAM.init(x), jnp.zeros((), int))
        values = np.zeros(0)
        if begun is not None:
            state, values = _unpacked(begun, state)
        for first in range(0, len(values), room):  # what the steps before this run have seen
            inputs(min(room, len(values) - first))
        try:
            while len(values) < steps and not ended:
                done, began = len(values), time.monotonic()
                count = min(count, room, steps - done)
                some, rate = jax.tree.map(padded, (inputs(count), rates[done : done + count]))
                after, told = program(state, some, rate, count, noisy, fixed, objective, plain, static)
                # At once, for Ctrl-C may come between any two statements.
                state, values = after, np.concatenate([values, np.asarray(told)[:count]])
                count = max(1, min(4 * count, int(_CALL_SECONDS * count / (time.monotonic() - began))))
                if watch is not None:
                    packed = functools.partial(_packed, state, values)
                    why = watch(ClimbWatch(len(values), steps, float(values[-1]), packed))
                    ended = why if len(values) < steps else ""
        except KeyboardInterrupt:
            ended = "interrupted"
        found = jax.tree.map(np.asarray, state.kept)
        return Climb(found, values, int(state.failures), rates, ended)


@functools.cache
def _program(threads: int) -> Callable:
    names = ("objective", "plain", "static")
    return jax.jit(_advance, static_argnames=names, compiler_options=compiler_options(threads))


def _advance(state, inputs, rates, count, noisy, fixed, objective, plain: bool, static: tuple):
    """`count` steps of Adam; a step that fails goes half-way back to the last point that worked."""

    def choose(which: Any, one: Any, other: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.where(which, a, b), one, other)

    def step(i, carry):
        (x, good, kept, top, adam, failures), values = carry
        here = jax.tree.map(lambda table: table[i], inputs)
        value, gradient = jax.value_and_grad(objective)(x, here, fixed, *static)
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


def _packed(state: _State, values: np.ndarray) -> dict[str, np.ndarray]:
    """A state, and the objective at the steps that led to it, as arrays by name."""
    leaves = {f"leaf_{i:02d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    return leaves | {"values": values}


def _unpacked(arrays: Mapping[str, np.ndarray], like: _State) -> tuple[_State, np.ndarray]:
    """What `_packed` made of a state of the same shapes."""
    leaves, structure = jax.tree.flatten(like)
    kept = [jnp.asarray(arrays[f"leaf_{i:02d}"], leaf.dtype) for i, leaf in enumerate(leaves)]
    if [a.shape for a in kept] != [leaf.shape for leaf in leaves]:
        raise InputError("the climb was begun with another number of inducing points: it cannot go on with this one")
    return jax.tree.unflatten(structure, kept), arrays["values"]


def _mean(values: np.ndarray) -> tuple[float, float, int]:
    """Mean of the finite ones among some values, its standard error, and their number."""
    finite = values[np.isfinite(values)]
    n = max(len(finite), 1)
    mean = float(finite.sum()) / n
    with np.errstate(over="ignore"):  # the bound of an absurd θ
        return mean, float(np.sqrt(np.sum((finite - mean) ** 2))) / n, len(finite)
