"""Time every method and sampler on the same data, and measure how a gradient grows with N and M.

    python -m benchmarks.method_time [--data-dir DIR] [--datasets yacht,boston] [--methods ml2,svgp] [--max-minutes 5]
                                     [--out DIR] [--growth-only | --fits-only]

Each fit runs in a fresh process with M = 100 on the paper's split 0; a row that is already in the output directory is
not run again, so the benchmark can be interrupted. At the end it prints the tables as Markdown.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path

from integrand import METHODS

HERE = Path(__file__).resolve().parent
# Method and sampler: every method with its default, and the samplers of θ with one method.
ROWS = [
    *[(method, "default") for method in METHODS],
    ("joint-hmc", "hmc"),
    ("joint-hmc", "sghmc"),
    *[("sgpr-hmc-fixed-z", s) for s in ["hmc", "mala", "metropolis", "slice", "nested"]],
]
# Time of an iteration and memory, by the paper's second table.
COMPLEXITY = {
    "collapsed": ("n m²", "m²"),
    "exact": ("n³", "n²"),
    "joint": ("m³ (but the expectation runs over n: n m²)", "m²"),
}


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("INTEGRAND_DATA", str(HERE.parents[1] / "shared" / "data"))
    parser.add_argument("--data-dir", default=default, help="directory with the data sets (INTEGRAND_DATA)")
    parser.add_argument("--datasets", default="yacht,boston")
    parser.add_argument("--methods", default="", help="comma-separated; default: all")
    parser.add_argument("--max-minutes", type=float, default=5.0, help="for the draws of each fit")
    parser.add_argument("--out", default="bench-methods", help="directory for the rows")
    parser.add_argument("--growth-only", action="store_true")
    parser.add_argument("--fits-only", action="store_true")
    parser.add_argument("--one-gradient", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def row_of(arguments, out: Path, dataset: str, method: str, sampler: str) -> dict:
    """The row of one fit in a fresh process, or of an earlier run of this benchmark."""
    saved = out / f"{dataset}-{method}-{sampler}.json"
    if saved.exists():
        return json.loads(saved.read_text())
    command = [sys.executable, "-m", "benchmarks.fit_time", "--one", dataset, "--method", method, "--sampler", sampler]
    command += ["--priors", "paper"]
    command += ["--data-dir", arguments.data_dir, "--max-minutes", str(arguments.max_minutes)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["failed"])[-1]
        return {"dataset": dataset, "method": method, "sampler": sampler, "error": last}
    row = json.loads(result.stdout.strip().splitlines()[-1])
    saved.write_text(json.dumps(row) + "\n")
    return row


def fits(arguments, out: Path) -> None:
    """Print the table of methods."""
    wanted = [m for m in arguments.methods.split(",") if m]
    print("| data | method | seconds | gradients | min ESS | ESS / s | R-hat | rmse | nlpd |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for dataset in arguments.datasets.split(","):
        for method, sampler in ROWS:
            if wanted and method not in wanted:
                continue
            row = row_of(arguments, out, dataset, method, sampler)
            facts = METHODS[method]
            name = f"`{method}`" + (f", {sampler}" if sampler != "default" else "")
            if "error" in row:
                print(f"| {dataset} | {name} | {row['error']} |", flush=True)
                continue
            drawn = bool(facts.samplers) or facts.own_sampler  # by chains, which have an ESS and an R-hat
            ess = min(row["ess_bulk"], row["ess_tail"]) if drawn else None
            cells = [f"{row['seconds']:.1f}", f"{row['gradients']}"]
            cells += [f"{ess:.0f}", f"{ess / row['seconds']:.1f}", f"{row['r_hat']:.3f}"] if drawn else ["-"] * 3
            print(
                f"| {dataset} | {name} | " + " | ".join([*cells, f"{row['rmse']:.3f}", f"{row['nlpd']:.3f}"]) + " |",
                flush=True,
            )


def one_gradient(spec: str) -> dict:
    """Milliseconds and growth of memory of one value and gradient: `target,N,M`, in this process."""
    import numpy as np

    from integrand import RBF, Dataset, Jitter, Model
    from integrand.data.dataset import block_rows_for
    from integrand.targets import CollapsedTarget, ExactTarget, JointTarget

    kind, n, m = spec.split(",")[0], *map(int, spec.split(",")[1:])
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((n, 8)), rng.standard_normal(n)
    model, Z = Model(RBF(), 8), X[:m]
    data = Dataset.of(X, y, block_rows_for(m))
    phi = model.start()
    if kind == "exact":
        target = ExactTarget(model, data)
        call = lambda: target.evaluate(phi)  # noqa: E731
    elif kind == "joint":
        target = JointTarget(model, data, Jitter())
        call = lambda: target.evaluate(np.concatenate([phi, np.zeros(m)]), Z)  # noqa: E731
    else:
        target = CollapsedTarget(model, data)
        call = lambda: target.evaluate(phi, Z)  # noqa: E731
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call()
    times = []
    while len(times) < 5 or (sum(times) < 2.0 and len(times) < 50):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"target": kind, "N": n, "M": m, "ms": 1e3 * sorted(times)[len(times) // 2], "mb": (peak - before) / 1024}


def growth() -> None:
    """Print the table of growth, one fresh process per cell, with the exponent between neighbours."""
    print("\n| target | N | M | ms a gradient | MB (compiler included) | grows as | paper: time, memory |")
    print("|---|--:|--:|--:|--:|---|---|")
    cells = [("collapsed", n, 100) for n in (1_000, 4_000, 16_000)] + [("collapsed", 4_000, m) for m in (50, 200, 400)]
    cells += [("joint", n, 100) for n in (1_000, 4_000, 16_000)] + [("joint", 4_000, m) for m in (50, 200, 400)]
    cells += [("exact", n, 0) for n in (250, 500, 1_000, 2_000)]
    before: dict = {}
    for kind, n, m in cells:
        command = [sys.executable, "-m", "benchmarks.method_time", "--one-gradient", f"{kind},{n},{m}"]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(result.stdout.strip().splitlines()[-1])
        import math

        last = before.get(kind)
        note = "-"
        if last and last["M"] == m and last["N"] != n:
            note = f"N^{math.log(row['ms'] / last['ms']) / math.log(n / last['N']):.1f}"
        elif last and last["N"] == n and last["M"] != m:
            note = f"M^{math.log(row['ms'] / last['ms']) / math.log(m / last['M']):.1f}"
        before[kind] = row
        time_and_memory = ", ".join(COMPLEXITY[kind])
        print(
            f"| {kind} | {n} | {m or '-'} | {row['ms']:.2f} | {row['mb']:.0f} | {note} | {time_and_memory} |",
            flush=True,
        )


def main() -> None:
    os.environ["INTEGRAND_CACHE"] = "off"  # also in the children: compiling counts
    arguments = parsed()
    if arguments.one_gradient:
        print(json.dumps(one_gradient(arguments.one_gradient)))
        return
    warnings.simplefilter("ignore")
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    if not arguments.growth_only:
        fits(arguments, out)
    if not arguments.fits_only:
        growth()


if __name__ == "__main__":
    main()
