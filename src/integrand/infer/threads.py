"""Threads for the job at hand, without changing the user's process.

Small matrices and thread pools do not mix: chains run side by side instead. OpenBLAS, which JAX
calls for factorisations, is held to one thread in a scope; XLA's own pool is switched off per compiled function.
"""

import os
import threading
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

_lock = threading.Lock()
_depth = 0
_limiter: threadpool_limits | None = None


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def calls_at_once(short: bool) -> int:
    """How many calls of a program on one thread to have under way, each in a thread of its own.

    While a short call passes from thread to thread and back a core idles; a second one for each core fills that gap.
    """
    cores = available_cores()
    return 2 * cores if short and cores > 1 else cores


def compiler_options(threads: int) -> dict[str, bool | int]:
    """XLA options for a function that shall run on one thread, or on as many as there are.

    Wide vectors are for the exponentials, where the processor has them; they change nothing elsewhere.
    """
    return {"xla_cpu_multi_thread_eigen": threads != 1, "xla_cpu_prefer_vector_width": 512}


@contextmanager
def one_blas_thread(wanted: bool = True):
    """Hold BLAS to one thread until the last of all such scopes, in whatever threads, has ended.

    The limit belongs to the process: were every scope to restore what it found, overlapping ones would leave it.
    """
    global _depth, _limiter
    if not wanted:
        yield
        return
    with _lock:
        _depth += 1
        if _depth == 1:
            _limiter = threadpool_limits(limits=1, user_api="blas")
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0 and _limiter is not None:
                _limiter.restore_original_limits()
                _limiter = None
