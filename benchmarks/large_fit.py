"""Measure a complete fit with many rows under a budget: seconds, gradients, peak memory.

python -m benchmarks.large_fit [--rows 100000] [--inducing 200] [--max-draws 30]
"""

import argparse
import resource
import time
import warnings

import numpy as np

import integrand


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--inducing", type=int, default=200)
    parser.add_argument("--max-draws", type=int, default=30)
    parser.add_argument("--warm-steps", type=int, default=60)
    parser.add_argument("--max-rounds", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--round-draws", type=int, default=8)
    arguments = parser.parse_args()

    rng = np.random.default_rng(0)
    X = rng.standard_normal((arguments.rows + 1_000, arguments.columns))
    f = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.3 * np.cos(X[:, 3])
    y = f + 0.3 * rng.standard_normal(len(f))
    start = time.time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", integrand.ConvergenceWarning)  # the budget is meant to end it early
        posterior = integrand.fit(
            X[: arguments.rows],
            y[: arguments.rows],
            n_inducing=arguments.inducing,
            max_draws=arguments.max_draws,
            warm_steps=arguments.warm_steps,
            max_rounds=arguments.max_rounds,
            warmup=arguments.warmup,
            round_draws=arguments.round_draws,
            progress=True,
        )
    seconds = time.time() - start
    error = posterior.predict(X[arguments.rows :], include_noise=False).mean - f[arguments.rows :]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(posterior.verdict)
    print(f"N {arguments.rows}, D {arguments.columns}, M {arguments.inducing}: {seconds:.0f} s, ", end="")
    print(f"{posterior.counts['gradients']} gradients, peak memory {peak:.0f} MB")
    print("seconds by phase:", {k: round(v, 1) for k, v in posterior.seconds.items()})
    print(f"error of f at 1000 new rows: {np.sqrt(np.mean(error**2)):.4f} (noise 0.3)")


if __name__ == "__main__":
    main()
