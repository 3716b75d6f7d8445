"""Measure `integrand predict` on many rows and on one row: seconds and peak memory of the process.

python -m benchmarks.predict_time [--rows 100000] [--inducing 100] [--draws 400]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

import integrand
from integrand.storage.model_file import save_model

COLUMNS = [f"x{i}" for i in range(8)]
# Runs the command line in this process and prints its peak memory.
CHILD = """
import json, resource, sys
from integrand.cli.app import app
app(sys.argv[1:], standalone_mode=False)
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024), file=sys.stderr)
"""


def model_file(folder: Path, inducing: int, draws: int) -> Path:
    """The model file of a small fit with `draws` draws. Predictions cost the same after a large fit."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1_000, len(COLUMNS)))
    y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.3 * rng.standard_normal(len(X))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", integrand.ConvergenceWarning)
        posterior = integrand.fit(
            integrand.ArrayRows(X, y, COLUMNS),
            method="sgpr-hmc-fixed-z",
            n_inducing=inducing,
            max_draws=-(-draws // 4),
            predictive_draws=draws,
        )
    path = folder / "model.integrand"
    save_model(posterior, path)
    return path


def predicted(model: Path, folder: Path, rows: int) -> tuple[float, float]:
    """Seconds and MB of a fresh process that predicts the rows of a CSV file."""
    table, out = folder / "rows.csv", folder / "predictions.csv"
    X = np.random.default_rng(1).standard_normal((rows, len(COLUMNS)))
    pd.DataFrame(X, columns=pd.Index(COLUMNS)).to_csv(table, index=False)
    start = time.perf_counter()
    command = [sys.executable, "-c", CHILD, "predict", str(model), str(table), "--out", str(out)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    if len(pd.read_csv(out)) != rows:
        sys.exit("rows are missing from the predictions")
    return seconds, json.loads(result.stderr.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--inducing", type=int, default=100)
    parser.add_argument("--draws", type=int, default=400)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = model_file(folder, arguments.inducing, arguments.draws)
        for rows in (1, arguments.rows):
            seconds, megabytes = predicted(model, folder, rows)
            print(f"{rows} rows, {arguments.draws} draws, M {arguments.inducing}: {seconds:.1f} s, ", end="")
            print(f"peak memory {megabytes:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
