"""Time of the collapsed bound's value and gradient against its floor and against plain autodiff.

The floor is three float64 products of an M x M with an M x N matrix on the same threads, by NumPy's or JAX's
product, whichever is faster. All are timed in turns in one process; the smallest of the repeats counts.

    python benchmarks/bound_time.py [--threads 1] [--repeats 15]
"""

import argparse
import os
import time


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads (cores) to use")
    parser.add_argument("--repeats", type=int, default=15, help="rounds of interleaved timing")
    parser.add_argument("--sizes", default="", help="such as 1279,11,100;246,6,100 (default: the documented ones)")
    parser.add_argument("--no-autodiff", action="store_true", help="leave the comparison with autodiff out")
    return parser.parse_args()


SIZES = [(13_000, 18, 500), (100_000, 8, 500), (1279, 11, 100), (246, 6, 100)]
REACH = {(13_000, 18, 500): 1.7, (100_000, 8, 500): 1.7, (1279, 11, 100): 2.1, (246, 6, 100): 4.0}


def main():
    arguments = parsed()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    os.environ["OPENBLAS_NUM_THREADS"] = str(arguments.threads)

    import jax
    import jax.numpy as jnp
    import numpy as np

    from integrand.bounds.collapsed import collapsed_bound
    from integrand.data.dataset import Dataset, block_rows_for
    from integrand.gp import GP
    from integrand.infer.threads import compiler_options
    from integrand.kernels import RBF
    from integrand.linalg import Jitter
    from integrand.precision import float64_scope

    options = compiler_options(threads=arguments.threads)

    def autodiff_bound(gp, Z, X, y):
        M, N = Z.shape[0], X.shape[0]
        s = gp.noise**2
        L = jnp.linalg.cholesky(Jitter().add_to(gp.kernel.gram(Z), gp.kernel.diagonal(Z)))
        A = jax.scipy.linalg.solve_triangular(L, gp.kernel(Z, X), lower=True)
        LB = jnp.linalg.cholesky(jnp.eye(M) + A @ A.T / s)
        c = jax.scipy.linalg.solve_triangular(LB, A @ y, lower=True) / s
        trace = jnp.sum(gp.kernel.diagonal(X)) - jnp.sum(A**2)
        return (
            -0.5 * N * jnp.log(2 * jnp.pi * s)
            - jnp.sum(jnp.log(jnp.diagonal(LB)))
            - 0.5 * (y @ y) / s
            + 0.5 * c @ c
            - 0.5 * trace / s
        )

    sizes = [tuple(map(int, s.split(","))) for s in arguments.sizes.split(";") if s] or SIZES
    print(f"value + gradient in θ and Z, {arguments.threads} thread(s), smallest of {arguments.repeats} in turns")
    print(f"{'N':>8} {'D':>3} {'M':>4} {'bound ms':>9} {'floor ms':>9} {'ratio':>6} {'reach':>6} {'autodiff/ours':>14}")
    for N, D, M in sizes:
        rng = np.random.default_rng(0)
        with float64_scope():
            X = rng.standard_normal((N, D))
            y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(N)
            Z = jnp.asarray(X[rng.choice(N, M, replace=False)])
            gp = GP(RBF(lengthscale=jnp.full(D, 2.0), scale=jnp.array(1.0)), jnp.array(0.2), jnp.array(0.0))
            data = Dataset.of(X, y, block_rows_for(M))
            S, K = jnp.asarray(rng.standard_normal((M, M))), jnp.asarray(rng.standard_normal((M, N)))
            S_np, K_np = np.asarray(S), np.asarray(K)
            bound = jax.jit(jax.value_and_grad(collapsed_bound, (0, 1)), compiler_options=options)
            product = jax.jit(jnp.matmul, compiler_options=options)
            plain = jax.jit(jax.value_and_grad(autodiff_bound, (0, 1)), compiler_options=options)
            X, y = jnp.asarray(X), jnp.asarray(y)
            runs = {
                "bound": lambda: bound(gp, Z, data),
                "jax": lambda: [product(S, K) for _ in range(3)],
                "numpy": lambda: [S_np @ K_np for _ in range(3)],
            }
            if not arguments.no_autodiff:
                runs["autodiff"] = lambda: plain(gp, Z, X, y)
            best = dict.fromkeys(runs, float("inf"))
            for name, run in runs.items():
                jax.block_until_ready(run())
            repeats = arguments.repeats if N * M < 1e7 else max(3, arguments.repeats // 3)
            for _ in range(repeats):
                for name, run in runs.items():
                    for _ in range(1 if N * M > 1e6 else 10):
                        start = time.perf_counter()
                        jax.block_until_ready(run())
                        best[name] = min(best[name], time.perf_counter() - start)
        floor = min(best["jax"], best["numpy"])
        against = f"{best['autodiff'] / best['bound']:14.2f}" if "autodiff" in best else f"{'-':>14}"
        reach = REACH.get((N, D, M))
        print(
            f"{N:8d} {D:3d} {M:4d} {best['bound'] * 1e3:9.3f} {floor * 1e3:9.3f} {best['bound'] / floor:6.2f} "
            f"{f'{reach:6.1f}' if reach else '     -'} {against}",
            flush=True,
        )


if __name__ == "__main__":
    main()
