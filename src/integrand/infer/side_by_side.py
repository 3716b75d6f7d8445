"""Chains of a compiled sampler side by side in threads, watched and interruptible: XLA releases Python's lock."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from integrand.infer.chains import Chains, SampledRun, Watch, Watcher
from integrand.infer.slots import BUFFER, Slot
from integrand.infer.threads import one_blas_thread
from integrand.precision import float64_scope

_POLL_SECONDS = 0.25
# Length of a call into the compiled program: Ctrl-C waits for the calls that are under way, at most this long.
_CALL_SECONDS, _PATIENCE = 0.2, 10.0

# advance(chain, state, first, count) -> the state after `count` more slots, and the buffer that recorded them.
Advance = Callable[[int, Any, int, int], tuple[Any, Slot]]


def run_side_by_side(
    advance: Advance,
    states: Sequence[Any],
    dimension: int,
    *,
    tune: int,
    draws: int,
    parallel: int,
    watch: Watcher | None,
    evaluations: int = 0,
) -> SampledRun:
    """Advance every chain through `tune` + `draws` slots, the one that is furthest behind first.

    Which thread advances which chain, and by how many slots at a time, depends on the machine; the draws do not.
    `evaluations` are those that the caller has already made.
    """
    work = _Work(advance, states, dimension, tune, draws)
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
                if watch is not None:
                    keep = watch(Watch(chains, done, time.monotonic() - began))
                if keep is not None or (over and done >= tune + draws):
                    break
        except KeyboardInterrupt:
            interrupted = True
        finally:
            work.stopped = True
            for thread in threads:
                if thread.ident is not None:
                    thread.join(_PATIENCE)
    done, chains = work.finished()
    evaluations += int(work.evaluations.sum())
    chains = chains if keep is None else chains.first(keep)
    divergences, failures = int(work.tuning_divergences.sum()), int(work.failures.sum())
    return SampledRun(chains, min(done, tune), divergences, interrupted, evaluations, failures)


class _Work:
    """The chains, what they have drawn, and who may advance them."""

    def __init__(self, advance: Advance, states: Sequence[Any], dimension: int, tune: int, draws: int):
        n = len(states)
        self.advance, self.tune, self.total = advance, tune, tune + draws
        self.states = list(states)
        self.done, self.busy = np.zeros(n, int), np.zeros(n, bool)
        self.evaluations, self.tuning_divergences = np.zeros(n, int), np.zeros(n, int)
        self.failures = np.zeros(n, int)
        self.drawn = Slot(
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
        """What a thread does: take the chain furthest behind, advance it, give it back."""
        count = 1
        try:
            with float64_scope():
                while (chain := self._take()) is not None:
                    first = int(self.done[chain])
                    count = min(count, BUFFER, self.total - first)
                    began = time.monotonic()
                    state, buffer = self._advance(chain, first, count)
                    rows = Slot(*(np.asarray(a)[:count] for a in buffer))
                    seconds = max((time.monotonic() - began) / count, 1e-9)
                    self._give_back(chain, state, rows)
                    count = max(1, min(4 * count, int(_CALL_SECONDS / seconds)))
        except BaseException as error:
            self.errors.append(error)
            self.over.set()

    def _advance(self, chain: int, first: int, count: int) -> tuple[Any, Slot]:
        if not self.compiled:  # threads that call a new program at the same time would all compile it
            with self.compiling:
                if not self.compiled:
                    out = self.advance(chain, self.states[chain], first, count)
                    self.compiled = True
                    return out
        return self.advance(chain, self.states[chain], first, count)

    def _take(self) -> int | None:
        with self.lock:
            free = np.flatnonzero(~self.busy & (self.done < self.total))
            if self.stopped or self.errors or len(free) == 0:
                return None
            chain = int(free[np.argmin(self.done[free])])
            self.busy[chain] = True
            return chain

    def _give_back(self, chain: int, state: Any, rows: Slot) -> None:
        first, count = int(self.done[chain]), len(rows.n_steps)
        tuned = min(max(self.tune - first, 0), count)
        begin = max(first - self.tune, 0)
        for kept, new in zip(self.drawn, rows, strict=True):
            kept[chain, begin : begin + count - tuned] = new[tuned:]
        with self.lock:
            self.evaluations[chain] += int(rows.n_steps.sum())
            self.failures[chain] += int(rows.failures.sum())
            self.tuning_divergences[chain] += int(rows.diverging[:tuned].sum())
            self.states[chain] = state
            self.done[chain] += count
            self.busy[chain] = False
            if np.all(self.done >= self.total):
                self.over.set()

    def finished(self) -> tuple[int, Chains]:
        """Slots that every chain has done, and the draws among them; later draws are added behind these."""
        with self.lock:
            done = int(self.done.min())
        d = Slot(*(a[:, : max(0, done - self.tune)] for a in self.drawn))
        depth = np.zeros(d.n_steps.shape, int)
        return done, Chains(d.x, d.log_density, d.energy, d.acceptance, d.n_steps, depth, d.diverging, d.step_size)
