"""Measure what follows a fit: seconds of `predict`, `evaluate` and `report`, on this machine and on a busy one.

python -m benchmarks.predict_time [--rows 100000] [--inducing 100] [--draws 400] [--busy 2] [--skip-large]

`--busy` is how many other processes then use the cores: 0 leaves that part out.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

import integrand
from integrand.storage.model_file import load_model, save_model

COLUMNS = [f"x{i}" for i in range(8)]
# Rows of the table that `evaluate` and `report` are given, and calls of `predict` of which the median counts.
TABLE_ROWS, CALLS = 3_475, 15
# Runs the command line in this process and prints its peak memory.
CHILD = """
import json, resource, sys
from integrand.cli.app import app
app(sys.argv[1:], standalone_mode=False)
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024), file=sys.stderr)
"""


def rows(n: int, seed: int) -> pd.DataFrame:
    """A table of eight columns and a target."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, len(COLUMNS)))
    y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.3 * rng.standard_normal(n)
    return pd.DataFrame(X, columns=pd.Index(COLUMNS)).assign(y=y)


def model_file(folder: Path, inducing: int, draws: int) -> Path:
    """The model file of a small fit with `draws` draws. Predictions cost the same after a large fit."""
    table = rows(1_000, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", integrand.ConvergenceWarning)
        posterior = integrand.fit(
            integrand.ArrayRows(table[COLUMNS], table["y"], COLUMNS),
            method="sgpr-hmc-fixed-z",
            n_inducing=inducing,
            max_draws=-(-draws // 4),
            predictive_draws=draws,
        )
    path = folder / "model.integrand"
    save_model(posterior, path, target_name="y")
    return path


def command(*arguments: str | Path) -> tuple[float, float]:
    """Seconds and MB of a fresh process that runs the command line."""
    start = time.perf_counter()
    result = subprocess.run([sys.executable, "-c", CHILD, *map(str, arguments)], capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stderr)
    return time.perf_counter() - start, json.loads(result.stderr.strip().splitlines()[-1])


def predicted(model: Path, folder: Path, n: int) -> tuple[float, float]:
    """Seconds and MB of a fresh process that predicts `n` rows of a CSV file."""
    table, out = folder / "rows.csv", folder / "predictions.csv"
    rows(n, seed=1).to_csv(table, index=False)
    seconds, megabytes = command("predict", model, table, "--out", out)
    if len(pd.read_csv(out)) != n:
        sys.exit("rows are missing from the predictions")
    return seconds, megabytes


def ten_rows(model: Path) -> float:
    """Seconds of a call of `predict` for ten rows in this process, with quantiles; the median of some calls."""
    posterior, X, seconds = load_model(model).posterior, rows(10, seed=1)[COLUMNS].to_numpy(), []
    for _ in range(CALLS + 1):
        start = time.perf_counter()
        predictive = posterior.predict(X, include_noise=True)
        predictive.sd, predictive.quantile(np.array([0.05, 0.5, 0.95]))
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[1:]))  # the first call compiles


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Other processes that do nothing but use the cores."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def after_a_fit(model: Path, folder: Path) -> dict[str, float]:
    """Seconds of the commands that follow a fit."""
    rows(TABLE_ROWS, seed=2).to_csv(folder / "table.csv", index=False)
    return {
        "predict 10 rows, one call": ten_rows(model),
        "predict 10 rows, command": predicted(model, folder, 10)[0],
        f"evaluate {TABLE_ROWS} rows, command": command("evaluate", model, folder / "table.csv")[0],
        f"report {TABLE_ROWS} rows, command": command(
            "report", model, "--data", folder / "table.csv", "--out", folder / "report.html"
        )[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--inducing", type=int, default=100)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--skip-large", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.perf_counter()
        model = model_file(folder, arguments.inducing, arguments.draws)
        print(f"the fit of 1000 rows took {time.perf_counter() - began:.1f} s", flush=True)
        quiet = after_a_fit(model, folder)
        with busy(arguments.busy):
            others = after_a_fit(model, folder) if arguments.busy else {}
        print(f"{'seconds':<34} {'alone':>7} {f'beside {arguments.busy}':>9}")
        for label, seconds in quiet.items():
            print(f"{label:<34} {seconds:7.2f}" + (f" {others[label]:9.2f}" if others else ""), flush=True)
        for n in () if arguments.skip_large else (1, arguments.rows):
            seconds, megabytes = predicted(model, folder, n)
            print(f"{n} rows, {arguments.draws} draws, M {arguments.inducing}: {seconds:.1f} s, ", end="")
            print(f"peak memory {megabytes:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
