"""Measure the memory of the collapsed bound's value and gradient at a million rows.

It is the peak of resident memory during the run, above the level after compilation with the data loaded. Nothing
runs before that level is read. Linux only: the peak is reset and read in /proc/self.

    python -m benchmarks.bound_memory [--rows 1000000] [--columns 8] [--inducing 500] [--limit 512]
"""

import argparse
import contextlib
import ctypes
import gc
import sys
import time
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="N")
    parser.add_argument("--columns", type=int, default=8, help="D")
    parser.add_argument("--inducing", type=int, default=500, help="M")
    parser.add_argument("--limit", type=float, default=512.0, help="MB (2^20 bytes) that may be added")
    parser.add_argument("--threads", type=int, default=1, help="1, or more to leave XLA its thread pool")
    return parser.parse_args()


def megabytes(field):
    """A line of /proc/self/status, such as VmRSS or VmHWM, in MB."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024


def reset_peak():
    """Return the free heap of the compiler to the system, so that the run cannot use it uncounted; reset the peak."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # glibc has it, others may not
        ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5")


def problem(N, D, M):
    """A GP, inducing inputs and a dataset in blocks."""
    import jax.numpy as jnp
    import numpy as np

    from integrand.data.dataset import Dataset, block_rows_for
    from integrand.gp import GP
    from integrand.kernels import RBF

    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(N)
    Z = jnp.asarray(X[rng.choice(N, M, replace=False)])
    gp = GP(RBF(lengthscale=jnp.full(D, 2.0), scale=jnp.array(1.0)), jnp.array(0.2), jnp.array(0.0))
    return gp, Z, Dataset.of(X, y, block_rows_for(M))


def main():
    arguments = parsed()

    import jax

    from integrand.bounds.collapsed import collapsed_bound
    from integrand.compilation import compiler_options, one_blas_thread
    from integrand.precision import float64_scope

    size = arguments.rows, arguments.columns, arguments.inducing
    with float64_scope(), one_blas_thread(arguments.threads == 1):
        inputs = jax.block_until_ready(problem(*size))
        options = compiler_options(threads=arguments.threads)
        function = jax.jit(jax.value_and_grad(collapsed_bound, (0, 1)), compiler_options=options)
        compiled = function.lower(*inputs).compile()
        reset_peak()
        level, start = megabytes("VmRSS"), time.perf_counter()
        value, _ = jax.block_until_ready(compiled(*inputs))
        seconds, added = time.perf_counter() - start, megabytes("VmHWM") - level

    verdict = "PASS" if added <= arguments.limit else "FAIL"
    print(f"value + gradient in θ and Z at N, D, M = {size}: bound {float(value):.6g}, {seconds:.1f} s")
    print(f"level {level:.0f} MB, peak {added:.0f} MB above it, limit {arguments.limit:.0f} MB: {verdict}")
    return 0 if verdict == "PASS" else 1


if __name__ == "__main__":
    sys.exit(main())
