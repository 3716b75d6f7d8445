"""The arrays of a job in one .npz file: data (the paper's splits and scaling, or synthetic rows), Z and θ."""

from pathlib import Path
from typing import Any

import numpy as np

M_UCI, M_SYNTHETIC, D_SYNTHETIC = 100, 200, 8
# The medians of the priors, where optimisers start, and the point where gradients are timed.
START = {"start_lengthscale": 1.6783469900166605, "start_scale": 1.0, "start_noise": 1.0}
POINT = {"lengthscale": 2.0, "scale": 1.0, "noise": 0.3}


def problem_file(name: str, folder: Path, data_dir: str | None) -> Path:
    """The file with the arrays of `name`; made on first use."""
    path = folder / f"{name}.npz"
    if not path.exists():
        dataset, number = name.rsplit("-", 1)
        arrays = _synthetic(int(number)) if dataset == "synthetic" else _uci(dataset, int(number), data_dir)
        D = arrays["X"].shape[1]
        for values in (START, POINT):
            for key, value in values.items():
                arrays[key] = np.full(D, value) if "lengthscale" in key else np.array(value)
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.npz")
        np.savez(part, **arrays)
        part.rename(path)
    return path


def _uci(dataset: str, split: int, data_dir: str | None) -> dict[str, Any]:
    """Standardised as in the paper's runs. Z is a random subset of the distinct training rows, the same for all."""
    from experiments.catalogue import SOURCES
    from experiments.datasets import load, paper_split
    from integrand.data.scaling import Standardiser
    from integrand.inducing import random_subset

    named, rows = load(dataset, data_dir), SOURCES[dataset].paper_rows
    X, y = named.X[:rows], named.y[:rows]
    parts, scaler = paper_split(len(y), split), Standardiser.paper(X, y)
    X, scaled = scaler.transform_X(X), scaler.transform_y(y)
    return {
        "X": X[parts.train],
        "y": scaled[parts.train],
        "X_test": X[parts.test],
        "y_test": y[parts.test],  # in its own units, as are the metrics
        "Z": random_subset(np.random.default_rng(split), X[parts.train], M_UCI),
        "y_mean": np.array(scaler.y_mean),
        "y_sd": np.array(scaler.y_sd),
    }


def _synthetic(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows + 100, D_SYNTHETIC))
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(len(X))
    Z = X[rng.choice(rows, M_SYNTHETIC, replace=False)]
    one = {"y_mean": np.array(0.0), "y_sd": np.array(1.0)}
    return {"X": X[:rows], "y": y[:rows], "X_test": X[rows:], "y_test": y[rows:], "Z": Z} | one
