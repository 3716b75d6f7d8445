"""Time the collapsed bound's value and gradient against a floor and against plain autodiff.

The floor is three float64 products of an M x M with an M x N matrix on the same threads, by NumPy's or JAX's
product, whichever is faster. The last columns are the tight bound's times divided by those of the old one, for value
and gradient and for values alone. All are timed in turns in one process; the smallest of the repeats counts, and on
one thread it is CPU time.

    python -m benchmarks.bound_time [--threads 1] [--repeats 15]
"""

import argparse
import os
import time
from functools import partial

# The sizes of the documentation, and the ratio to reach on one thread.
REACH = {(13_000, 18, 500): 1.7, (100_000, 8, 500): 1.7, (1279, 11, 100): 2.1, (246, 6, 100): 4.0}
# Ratios to reach of the tight bound to the old one at (13 000, 18, 500): 1.7 with the gradient, 1.1 without.


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads (cores) to use")
    parser.add_argument("--repeats", type=int, default=15, help="rounds of interleaved timing")
    parser.add_argument("--sizes", default="", help="such as 1279,11,100;246,6,100 (default: the documented ones)")
    parser.add_argument("--no-autodiff", action="store_true", help="leave the comparison with autodiff out")
    return parser.parse_args()


def hold_to(threads):
    """Limit cores and BLAS threads; call it before NumPy and JAX are imported."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["OPENBLAS_NUM_THREADS"] = str(threads)


def autodiff_bound(gp, Z, X, y):
    """The same bound with triangular solves, left to autodiff."""
    import jax
    import jax.numpy as jnp

    from integrand.linalg import Jitter

    s = gp.noise**2
    L = jnp.linalg.cholesky(Jitter().add_to(gp.kernel.gram(Z), gp.kernel.diagonal(Z)))
    A = jax.scipy.linalg.solve_triangular(L, gp.kernel(Z, X), lower=True)
    LB = jnp.linalg.cholesky(jnp.eye(len(Z)) + A @ A.T / s)
    c = jax.scipy.linalg.solve_triangular(LB, A @ y, lower=True) / s
    trace = jnp.sum(gp.kernel.diagonal(X)) - jnp.sum(A**2)
    log_normaliser = -0.5 * len(X) * jnp.log(2 * jnp.pi * s) - jnp.sum(jnp.log(jnp.diagonal(LB)))
    return log_normaliser - 0.5 * (y @ y) / s + 0.5 * c @ c - 0.5 * trace / s


def thrice(product, S, K):
    return [product(S, K) for _ in range(3)]


def contestants(N, D, M, options, with_autodiff):
    """The timed calls by name, each without arguments."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from integrand.bounds.collapsed import collapsed_bound
    from integrand.data.dataset import Dataset, block_rows_for
    from integrand.gp import GP
    from integrand.kernels import RBF

    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(N)
    Z = jnp.asarray(X[rng.choice(N, M, replace=False)])
    gp = GP(RBF(lengthscale=jnp.full(D, 2.0), scale=jnp.array(1.0)), jnp.array(0.2), jnp.array(0.0))
    data = Dataset.of(X, y, block_rows_for(M))
    S, K = rng.standard_normal((M, M)), rng.standard_normal((M, N))

    compiled = partial(jax.jit, compiler_options=options)
    tight = partial(collapsed_bound, bound="tight")
    runs = {
        "bound": partial(compiled(jax.value_and_grad(collapsed_bound, (0, 1))), gp, Z, data),
        "tight": partial(compiled(jax.value_and_grad(tight, (0, 1))), gp, Z, data),
        "value": partial(compiled(collapsed_bound), gp, Z, data),
        "tight value": partial(compiled(tight), gp, Z, data),
        "jax": partial(thrice, compiled(jnp.matmul), jnp.asarray(S), jnp.asarray(K)),
        "numpy": partial(thrice, np.matmul, S, K),
    }
    if with_autodiff:
        plain = compiled(jax.value_and_grad(autodiff_bound, (0, 1)))
        runs["autodiff"] = partial(plain, gp, Z, jnp.asarray(X), jnp.asarray(y))
    return runs


def smallest_times(runs, repeats, calls, clock):
    """Seconds of the fastest call of each, timed in turns."""
    import jax

    for run in runs.values():
        jax.block_until_ready(run())  # compile
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            for _ in range(calls):
                start = clock()
                jax.block_until_ready(run())
                best[name] = min(best[name], clock() - start)
    return best


def report(size, best):
    floor = min(best["jax"], best["numpy"])
    reach = f"{REACH[size]:6.1f}" if size in REACH else f"{'-':>6}"
    against = f"{best['autodiff'] / best['bound']:14.2f}" if "autodiff" in best else f"{'-':>14}"
    N, D, M = size
    times = f"{best['bound'] * 1e3:9.3f} {floor * 1e3:9.3f} {best['bound'] / floor:6.2f}"
    tight = f"{best['tight'] / best['bound']:6.2f} {best['tight value'] / best['value']:6.2f}"
    print(f"{N:8d} {D:3d} {M:4d} {times} {reach} {against} {tight}", flush=True)


def main():
    arguments = parsed()
    hold_to(arguments.threads)

    from integrand.compilation import compiler_options
    from integrand.precision import float64_scope

    options = compiler_options(threads=arguments.threads)
    sizes = [tuple(map(int, s.split(","))) for s in arguments.sizes.split(";") if s] or list(REACH)
    print(f"value + gradient in θ and Z, {arguments.threads} thread(s), smallest of {arguments.repeats} in turns")
    # Several threads share a call, so that only the clock on the wall says how long it took.
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    head = f"{'N':>8} {'D':>3} {'M':>4} {'bound ms':>9} {'floor ms':>9} {'ratio':>6} {'reach':>6} {'autodiff/ours':>14}"
    print(f"{head}  tight values")
    for N, D, M in sizes:
        repeats = arguments.repeats if N * M < 1e7 else max(3, arguments.repeats // 3)
        calls = 1 if N * M > 1e6 else 10
        with float64_scope():
            runs = contestants(N, D, M, options, not arguments.no_autodiff)
            report((N, D, M), smallest_times(runs, repeats, calls, clock))


if __name__ == "__main__":
    main()
