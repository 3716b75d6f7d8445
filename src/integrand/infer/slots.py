"""One compiled program for a whole run: slots of transitions, with every length and setting as an argument.

A *slot* is a tuning step or a kept draw: `thin` transitions, of which the last is recorded. The program does as many
slots as it is asked to, up to the size of its buffer, so tuning, drawing, another number of draws or another step size
compile nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Slots that one call can record: few enough to be looked at while they come, many enough to hide the call's own cost.
BUFFER = 256


class Slot(NamedTuple):
    """What is kept of a slot, or with leading axes of many; all but the last are fields of `Chains`."""

    x: Any
    log_density: Any
    energy: Any
    acceptance: Any  # mean over the transitions
    n_steps: Any  # evaluations of the log density or its gradient, in all transitions
    diverging: Any  # whether any transition diverged
    step_size: Any
    failures: Any = 0  # transitions that failed numerically


class Span(NamedTuple):
    """Which slots a call does: `count` of them from number `first` on; those before `tune` are tuning."""

    first: Any
    count: Any
    tune: Any
    thin: Any


# step(key, state, tuning) -> state and what to record, for one transition.
Step = Callable[[jax.Array, Any, jax.Array], tuple[Any, Slot]]


def slots(step: Step, key: jax.Array, state: Any, span: Span) -> tuple[Any, Slot]:
    """Run the slots; the random numbers of a transition depend on its number alone, not on how calls divide a run."""
    shapes = jax.eval_shape(step, key, state, jnp.asarray(True))[1]
    nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    buffer = jax.tree.map(lambda a: jnp.zeros((BUFFER, *a.shape), a.dtype), nothing)

    def slot(i, carry):
        state, buffer = carry
        number = span.first + i
        slot_key, tuning = jax.random.fold_in(key, number), number < span.tune

        def transition(k, carry):
            state, so_far = carry
            state, told = step(jax.random.fold_in(slot_key, k), state, tuning)
            return state, told._replace(
                acceptance=so_far.acceptance + told.acceptance,
                n_steps=so_far.n_steps + told.n_steps,
                diverging=so_far.diverging | told.diverging,
                failures=so_far.failures + told.failures,
            )

        state, told = jax.lax.fori_loop(0, span.thin, transition, (state, nothing))
        told = told._replace(acceptance=told.acceptance / span.thin)
        return state, jax.tree.map(lambda rows, row: rows.at[i].set(row), buffer, told)

    return jax.lax.fori_loop(0, span.count, slot, (state, buffer))


def chain_key(seed: list[int]) -> np.ndarray:
    """A raw JAX key from numbers, the chain's own position among them."""
    return np.random.SeedSequence(seed).generate_state(2, np.uint32)


def arrays(tree: Any) -> Any:
    """Numbers as arrays: JAX compiles anew for a Python number where it has seen an array."""
    return jax.tree.map(np.asarray, tree)
