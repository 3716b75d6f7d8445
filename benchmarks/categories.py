"""One model for all levels of a category against what people do without one, on rows that no fit has seen.

    python benchmarks/categories.py [--sets 3] [--ess 100]

Stations: five of them measure mixtures of two signals over time, each with a gap. `Categorical * RBF` is compared with
an RBF of time and five columns of zeros and ones. Outputs: two correlated ones in long format, of which 40 % are
missing, the second one in two long gaps. One joint model is compared with a model for each output. For each set: the
mean of -log density of the rows that were left out, and the paired difference with its standard error.
"""

import argparse
import sys
import warnings
from typing import NamedTuple

import numpy as np
import pandas as pd

from integrand import RBF, Categorical, ConvergenceWarning, fit


class Rows(NamedTuple):
    """A table with the column `y`, and which rows train."""

    table: pd.DataFrame
    trains: np.ndarray


def stations(rng: np.random.Generator, n: int = 500) -> Rows:
    """Five stations, each with about 25 rows to learn from, and none for a quarter of the time."""
    loadings = np.array([[1.0, 0.0], [0.9, 0.4], [-0.7, 0.7], [0.3, -0.9], [0.7, 0.6]])
    t, station = rng.uniform(0.0, 12.0, n), rng.integers(0, 5, n)
    signals = np.column_stack([np.sin(t + rng.uniform(0, 6)), np.cos(0.6 * t + rng.uniform(0, 6))])
    y = np.sum(loadings[station] * signals, axis=1) + 0.15 * rng.standard_normal(n)
    begins = rng.uniform(0.0, 9.0, 5)[station]
    trains = ~((begins < t) & (t < begins + 3.0)) & (np.arange(n) < 160)
    return Rows(pd.DataFrame({"t": t, "station": np.array(list("ABCDE"))[station], "y": y}), trains)


def outputs(rng: np.random.Generator, n: int = 100) -> Rows:
    """Two outputs at the same times: 40 % of the values are missing, many of the second output in two gaps."""
    t = np.sort(rng.uniform(0.0, 12.0, n))
    common = np.sin(1.3 * t + rng.uniform(0, 6)) + 0.5 * np.cos(2.1 * t + rng.uniform(0, 6))
    first = common + 0.1 * rng.standard_normal(n)
    second = 0.8 * common + 0.3 * np.sin(0.7 * t + rng.uniform(0, 6)) + 0.1 * rng.standard_normal(n)
    table = pd.DataFrame({"t": np.tile(t, 2), "output": np.repeat(["first", "second"], n)})
    table["y"] = np.concatenate([first, second])
    gap = (table["output"] == "second") & (table["t"].between(2.0, 5.0) | table["t"].between(8.0, 10.0))
    missing = np.array(gap)
    others = rng.permutation(np.flatnonzero(~missing))[: max(int(0.4 * 2 * n) - missing.sum(), 0)]
    missing[others] = True
    return Rows(table, ~missing)


def log_density(rows: Rows, columns: list[str], kernel, ess: float) -> tuple[np.ndarray, bool]:
    """Of each row that was left out, and whether the fit converged."""
    train, test = rows.table[rows.trains], rows.table[~rows.trains]
    posterior = fit(train[columns], train["y"], kernel, n_inducing=40, target_ess=ess, check_model=False)
    predicted = posterior.predict(test[columns], include_noise=True)
    return predicted.log_density(np.asarray(test["y"], float)), posterior.verdict is not None and posterior.verdict.ok


def said(name: str, joint: np.ndarray, other: np.ndarray, converged: list[bool]) -> str:
    """A line of the result."""
    gain = joint - other
    error = gain.std(ddof=1) / np.sqrt(len(gain))
    unconverged = f", {converged.count(False)} fits not converged" if not all(converged) else ""
    return f"{name:<10} {-joint.mean():8.3f} {-other.mean():8.3f} {gain.mean():8.3f} ± {error:.3f}{unconverged}"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=3)
    parser.add_argument("--ess", type=float, default=100.0)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    print(f"{'set':<10} {'joint':>8} {'other':>8} {'gain':>8}   (nats a row)", flush=True)
    for k in range(options.sets):
        rows = stations(np.random.default_rng([1, k]))
        one_hot = [f"is_{name}" for name in "ABCDE"]
        for column, name in zip(one_hot, "ABCDE", strict=True):
            rows.table[column] = (rows.table["station"] == name).astype(float)
        joint, a = log_density(rows, ["t", "station"], Categorical("station", rank=2) * RBF(), options.ess)
        other, b = log_density(rows, ["t", *one_hot], RBF(), options.ess)
        print(said(f"stations {k}", joint, other, [a, b]), flush=True)
    for k in range(options.sets):
        rows = outputs(np.random.default_rng([2, k]))
        joint, a = log_density(rows, ["t", "output"], Categorical("output") * RBF(), options.ess)
        other, converged = np.empty(len(joint)), [a]
        left_out = np.asarray(rows.table["output"][~rows.trains])
        for name in ("first", "second"):
            chosen = np.asarray(rows.table["output"] == name)
            alone = Rows(rows.table[chosen], rows.trains[chosen])
            other[left_out == name], ok = log_density(alone, ["t"], RBF(), options.ess)
            converged.append(ok)
        print(said(f"outputs {k}", joint, other, converged), flush=True)


if __name__ == "__main__":
    sys.exit(main())
