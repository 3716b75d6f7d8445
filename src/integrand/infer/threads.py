"""Threads for the job at hand, without changing the user's process.

Small matrices and thread pools do not mix: with M = 100 the pools cost more than the work. OpenBLAS, which JAX
calls for factorisations, is held to one thread in a scope; XLA's own pool is switched off per compiled function.
"""

from contextlib import contextmanager

from threadpoolctl import threadpool_limits


def compiler_options(threads: int) -> dict[str, bool | int]:
    """XLA options for a function that shall run on one thread, or on as many as there are.

    Wide vectors make the exponentials a quarter faster where the processor has them, and change nothing elsewhere.
    """
    return {"xla_cpu_multi_thread_eigen": threads != 1, "xla_cpu_prefer_vector_width": 512}


@contextmanager
def blas_threads(limit: int | None):
    """Hold BLAS to `limit` threads (None: leave it alone) until the scope ends."""
    if limit is None:
        yield
    else:
        with threadpool_limits(limits=limit, user_api="blas"):
            yield
