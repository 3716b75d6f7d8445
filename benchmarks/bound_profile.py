"""Profile one value and gradient of the collapsed bound, and count how many parallel chains fill the cores.

The first table adds XLA's times of the compiled program's operations (jax.profiler) by kind. The remainder to the whole
is spent between calls and threads (`taskset -c 0` limits it to one core). The second table counts values and gradients
per second with 1, 2, 3, … threads that each call the program as a chain does, in turns in one process.

    python -m benchmarks.bound_profile [--sizes 246,6,100;404,13,100] [--calls 200] [--seconds 2]
"""

import argparse
import collections
import gzip
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

# The first kind with a word in the name of the operation. `ynn_fusion` are dots and sums that YNNPACK computes.
KINDS = {
    "products, and sums of matrices": ("ynn_fusion", "dot"),
    "triangular solves": ("triangular_solve",),
    "Cholesky factors": ("cholesky",),
    "kernels' exponentials": ("exponential",),
    "the rest (copies, small vectors)": ("",),
}


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="246,6,100;404,13,100;1279,11,100", help="N,D,M;N,D,M;…")
    parser.add_argument("--calls", type=int, default=200, help="calls that are profiled")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each number of threads")
    return parser.parse_args()


def call_of(N, D, M):
    """A call without arguments: a gradient of a chain at fixed Z."""
    import numpy as np

    from integrand.data.dataset import Dataset, block_rows_for
    from integrand.kernels import RBF
    from integrand.model import Model
    from integrand.targets import CollapsedTarget

    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(N)
    model = Model(RBF(), D, priors="paper")
    target = CollapsedTarget(model, Dataset.of(X, y, block_rows_for(M)))
    phi, Z = model.start(), X[rng.choice(N, M, replace=False)]
    return lambda: target.evaluate(phi, Z)


def operations(call, calls):
    """Microseconds per call of each operation of the program, by name: median of its times, times its count."""
    import jax

    call()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True, profiler_options=options):
            for _ in range(calls):
                call()
        path = next(Path(folder).rglob("perfetto_trace.json.gz"))
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    times = collections.defaultdict(list)
    for event in events:
        if event.get("ph") == "X":
            times[event["name"]].append(event["dur"])
    own = {name: t for name, t in times.items() if name[0].islower() and not name.startswith("end: ")}
    return {name: statistics.median(t) * len(t) / calls for name, t in own.items()}


def by_kind(operations):
    """Sums of the operations' times."""
    total = dict.fromkeys(KINDS, 0.0)
    for name, microseconds in operations.items():
        total[next(kind for kind, words in KINDS.items() if any(w in name for w in words))] += microseconds
    return total


def calls_per_second(call, threads, seconds):
    """Calls per second of `threads` threads together."""
    counts, until = [0] * threads, time.perf_counter() + seconds

    def chain(k):
        while time.perf_counter() < until:
            call()
            counts[k] += 1

    chains = [threading.Thread(target=chain, args=(k,)) for k in range(threads)]
    for thread in chains:
        thread.start()
    for thread in chains:
        thread.join()
    return sum(counts) / seconds


def median_call(call, calls):
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def main():
    arguments = parsed()
    cores = sorted(os.sched_getaffinity(0))

    from integrand.compilation import one_blas_thread

    for size in arguments.sizes.split(";"):
        N, D, M = map(int, size.split(","))
        call = call_of(N, D, M)
        with one_blas_thread():
            call()
            kinds = by_kind(operations(call, arguments.calls))
            whole = median_call(call, arguments.calls)
            print(f"N = {N}, D = {D}, M = {M}: a value and gradient takes {whole:.0f} µs, of which")
            for kind, microseconds in kinds.items():
                print(f"  {kind:34} {microseconds:7.0f} µs {100 * microseconds / whole:4.0f} %")
            rates = {n: [] for n in range(1, 2 * len(cores) + 1)}
            for _ in range(3):
                for n, counts in rates.items():
                    counts.append(calls_per_second(call, n, arguments.seconds))
            per_second = ", ".join(f"{n}: {statistics.median(counts):.0f}" for n, counts in rates.items())
            print(f"  gradients per second by number of threads on {len(cores)} core(s): {per_second}", flush=True)


if __name__ == "__main__":
    main()
