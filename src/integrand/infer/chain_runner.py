"""Runs chains side by side in threads, and the compiled loop of draws that most of them advance by.

A *draw* here is `thin` transitions of which the last is recorded, in warm-up as well as later. One compiled program
makes up to `BUFFER` draws in a call. All lengths and settings are its arguments: changing them recompiles nothing.

XLA releases Python's lock while a program runs. So chains in threads use all cores, a callback sees their draws
meanwhile, and Ctrl-C ends the run.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from integrand.compilation import one_blas_thread
from integrand.infer.base import Callback, Chains, Run, Snapshot
from integrand.precision import float64_scope

# Draws that one call can record: few enough for a callback to see them often, enough to hide the cost of a call.
BUFFER = 256
# Seconds between two calls of the callback.
_POLL_SECONDS = 0.25
# Length of a call into a compiled program. Ctrl-C waits for the calls under way, for at most the second number.
_CALL_SECONDS, _MAX_WAIT_SECONDS = 0.2, 10.0


class DrawRecord(NamedTuple):
    """What is recorded of a draw, or with leading axes of many. All but the last are fields of `Chains`."""

    x: Any
    log_density: Any
    energy: Any
    acceptance: Any  # mean over the transitions
    n_steps: Any  # evaluations of the log density or its gradient, in all transitions
    diverging: Any  # whether any transition diverged
    step_size: Any
    failures: Any = 0  # transitions that failed numerically


class DrawRange(NamedTuple):
    """Which draws a call makes: `count` of them from number `first` on; those before `warmup` are warm-up."""

    first: Any
    count: Any
    warmup: Any
    thin: Any


# step(key, state, in_warmup) -> state and record of one transition.
Step = Callable[[jax.Array, Any, jax.Array], tuple[Any, DrawRecord]]


def run_draws(step: Step, key: jax.Array, state: Any, draws: DrawRange) -> tuple[Any, DrawRecord]:
    """Make the draws, inside XLA.

    The random numbers of a transition depend on its number alone, not on how calls divide a run.
    """
    shapes = jax.eval_shape(step, key, state, jnp.asarray(True))[1]
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    buffer = jax.tree.map(lambda a: jnp.zeros((BUFFER, *a.shape), a.dtype), zeros)

    def draw(i, carry):
        state, buffer = carry
        number = draws.first + i
        draw_key, in_warmup = jax.random.fold_in(key, number), number < draws.warmup

        def transition(k, carry):
            state, before = carry
            state, record = step(jax.random.fold_in(draw_key, k), state, in_warmup)
            return state, record._replace(
                acceptance=before.acceptance + record.acceptance,
                n_steps=before.n_steps + record.n_steps,
                diverging=before.diverging | record.diverging,
                failures=before.failures + record.failures,
            )

        state, record = jax.lax.fori_loop(0, draws.thin, transition, (state, zeros))
        record = record._replace(acceptance=record.acceptance / draws.thin)
        return state, jax.tree.map(lambda rows, row: rows.at[i].set(row), buffer, record)

    return jax.lax.fori_loop(0, draws.count, draw, (state, buffer))


def chain_key(seed: Sequence[int]) -> np.ndarray:
    """A raw JAX key from numbers, the chain's own position among them."""
    return np.random.SeedSequence(list(seed)).generate_state(2, np.uint32)


def arrays(tree: Any) -> Any:
    """Numbers as arrays: JAX compiles again for a Python number where it has seen an array."""
    return jax.tree.map(np.asarray, tree)


# advance(chain, state, first, count) -> the state after `count` more draws, and the buffer with their records.
Advance = Callable[[int, Any, int, int], tuple[Any, DrawRecord]]


def run_chains(
    advance: Advance,
    states: Sequence[Any],
    dimension: int,
    *,
    warmup: int,
    draws: int,
    parallel: int,
    callback: Callback | None,
    evaluations: int = 0,
) -> Run:
    """Advance every chain by `warmup` + `draws` draws, the chain that is furthest behind first.

    Which thread advances which chain, and by how many draws at a time, depends on the machine; the draws do not.
    `evaluations` are those that the caller has already made.
    """
    work = _Work(advance, states, dimension, warmup, draws)
    threads = [threading.Thread(target=work.run, daemon=True) for _ in range(max(1, min(parallel, len(states))))]
    began = time.monotonic()
    keep, interrupted = None, False
    with one_blas_thread(parallel > 1):
        try:
            for thread in threads:
                thread.start()
            while True:
                over = work.over.wait(_POLL_SECONDS)
                if work.errors:
                    raise work.errors[0]
                done, chains = work.finished()
                if callback is not None:
                    keep = callback(Snapshot(chains, done, time.monotonic() - began))
                if keep is not None or (over and done >= warmup + draws):
                    break
        except KeyboardInterrupt:
            interrupted = True
        finally:
            work.stopped = True
            for thread in threads:
                if thread.ident is not None:
                    thread.join(_MAX_WAIT_SECONDS)
    done, chains = work.finished()
    return Run(
        chains if keep is None else chains.first(keep),
        interrupted,
        warmup=min(done, warmup),
        warmup_divergences=int(work.warmup_divergences.sum()),
        evaluations=evaluations + int(work.evaluations.sum()),
        failures=int(work.failures.sum()),
    )


class _Work:
    """The chains, their draws so far, and which of them a thread may advance."""

    def __init__(self, advance: Advance, states: Sequence[Any], dimension: int, warmup: int, draws: int):
        n = len(states)
        self.advance, self.warmup, self.total = advance, warmup, warmup + draws
        self.states = list(states)
        self.done, self.busy = np.zeros(n, int), np.zeros(n, bool)
        self.evaluations, self.failures = np.zeros(n, int), np.zeros(n, int)
        self.warmup_divergences = np.zeros(n, int)
        self.draws = DrawRecord(
            x=np.empty((n, draws, dimension)),
            log_density=np.empty((n, draws)),
            energy=np.empty((n, draws)),
            acceptance=np.empty((n, draws)),
            n_steps=np.empty((n, draws), int),
            diverging=np.empty((n, draws), bool),
            step_size=np.empty((n, draws)),
            failures=np.empty((n, draws), int),
        )
        self.lock, self.over = threading.Lock(), threading.Event()
        self.errors: list[BaseException] = []
        self.compiling, self.compiled = threading.Lock(), False
        self.stopped = False

    def run(self) -> None:
        """The loop of a thread: take the chain furthest behind, advance it, give it back."""
        count = 1
        try:
            with float64_scope():
                while (chain := self._take()) is not None:
                    first = int(self.done[chain])
                    count = min(count, BUFFER, self.total - first)
                    began = time.monotonic()
                    state, buffer = self._advance(chain, first, count)
                    records = DrawRecord(*(np.asarray(a)[:count] for a in buffer))
                    seconds = max((time.monotonic() - began) / count, 1e-9)
                    self._give_back(chain, state, records)
                    count = max(1, min(4 * count, int(_CALL_SECONDS / seconds)))
        except BaseException as error:
            self.errors.append(error)
            self.over.set()

    def _advance(self, chain: int, first: int, count: int) -> tuple[Any, DrawRecord]:
        if not self.compiled:  # threads that call a new program at the same time would all compile it
            with self.compiling:
                if not self.compiled:
                    result = self.advance(chain, self.states[chain], first, count)
                    self.compiled = True
                    return result
        return self.advance(chain, self.states[chain], first, count)

    def _take(self) -> int | None:
        with self.lock:
            free = np.flatnonzero(~self.busy & (self.done < self.total))
            if self.stopped or self.errors or len(free) == 0:
                return None
            chain = int(free[np.argmin(self.done[free])])
            self.busy[chain] = True
            return chain

    def _give_back(self, chain: int, state: Any, records: DrawRecord) -> None:
        first, count = int(self.done[chain]), len(records.n_steps)
        in_warmup = min(max(self.warmup - first, 0), count)
        begin = max(first - self.warmup, 0)
        for all_draws, new in zip(self.draws, records, strict=True):
            all_draws[chain, begin : begin + count - in_warmup] = new[in_warmup:]
        with self.lock:
            self.evaluations[chain] += int(records.n_steps.sum())
            self.failures[chain] += int(records.failures.sum())
            self.warmup_divergences[chain] += int(records.diverging[:in_warmup].sum())
            self.states[chain] = state
            self.done[chain] += count
            self.busy[chain] = False
            if np.all(self.done >= self.total):
                self.over.set()

    def finished(self) -> tuple[int, Chains]:
        """The number of draws that every chain has made, with warm-up, and those after it; later ones are appended."""
        with self.lock:
            done = int(self.done.min())
        d = DrawRecord(*(a[:, : max(0, done - self.warmup)] for a in self.draws))
        depth = np.zeros(d.n_steps.shape, int)
        return done, Chains(d.x, d.log_density, d.energy, d.acceptance, d.n_steps, depth, d.diverging, d.step_size)
