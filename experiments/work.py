"""Run a task: fit one split and return the numbers that the tables and figures need, as plain JSON."""

import datetime
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from experiments.catalogue import SOURCES
from experiments.datasets import load, paper_split
from experiments.measure import facts, fitted, scores
from experiments.one_dimension import ridge, synthetic
from experiments.store import Task
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows
from integrand.files import plain
from integrand.version import __version__


def run_task(task: Task, data_dir: str | None) -> dict[str, Any]:
    """Run a task; its result with the names of the task and the version, date and settings."""
    kinds = {"regression": regression, "ridge": ridge, "synthetic": synthetic}
    start = datetime.datetime.now(datetime.UTC)
    result = kinds[task.kind](task, data_dir)
    head = {
        "dataset": task.dataset,
        "arm": task.arm.name,
        "method": task.arm.method,
        "priors": task.arm.priors,
        "protocol": task.protocol,
        "split": task.split,
    }
    made = {
        "version": __version__,
        "commit": _commit(),
        "date": start.date().isoformat(),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "settings": dict(task.arm.settings),
    }
    return plain(head | result | {"made": made})


@cache
def _commit() -> str | None:
    """The commit of the repository, None outside a clone."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        described = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()


def regression(task: Task, data_dir: str | None) -> dict[str, Any]:
    """A fit of a named data set with the paper's split and scaling, and its scores on the test rows."""
    named, rows = load(task.dataset, data_dir), SOURCES[task.dataset].paper_rows
    X, y = named.X[:rows], named.y[:rows]
    split = paper_split(len(y), task.split, task.arm.n_inducing)
    Z = X[split.train][split.inducing] if task.protocol == "paper" else None
    train = ArrayRows(X[split.train], y[split.train], named.feature_names, Standardiser.paper(X, y))
    posterior = fitted(task, train, Z=Z)
    return scores(posterior, X[split.test], y[split.test]) | facts(posterior)
