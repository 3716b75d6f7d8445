"""What a task does: fit one split, and return what the tables and figures need as plain JSON."""

import datetime
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from integrand.data.catalogue import SOURCES
from integrand.data.scaling import Standardiser
from integrand.data.sources import load
from integrand.data.splits import paper_split
from integrand.experiments.measure import facts, fitted, scores
from integrand.experiments.one_dimension import ridge, synthetic
from integrand.experiments.store import Task
from integrand.plain import plain
from integrand.version import __version__


def carry_out(task: Task, data_dir: str | None) -> dict[str, Any]:
    """Do a task."""
    kinds = {"regression": regression, "ridge": ridge, "synthetic": synthetic}
    began = datetime.datetime.now(datetime.UTC)
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
        "date": began.date().isoformat(),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "settings": dict(task.arm.settings),
    }
    return plain(head | result | {"made": made})


@cache
def _commit() -> str | None:
    """The commit of this library, where it runs from a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def regression(task: Task, data_dir: str | None) -> dict[str, Any]:
    """A fit of a named data set with the paper's split and scaling, and its scores on the test rows."""
    named, rows = load(task.dataset, data_dir), SOURCES[task.dataset].paper_rows
    X, y = named.X[:rows], named.y[:rows]
    split = paper_split(len(y), task.split, task.arm.n_inducing)
    Z = X[split.train][split.inducing] if task.protocol == "paper" else None
    posterior = fitted(
        task,
        X[split.train],
        y[split.train],
        columns=named.feature_names,
        scaler=Standardiser.paper(X, y),
        Z=Z,
    )
    return scores(posterior, X[split.test], y[split.test]) | facts(posterior)
