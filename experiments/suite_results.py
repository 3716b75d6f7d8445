"""The results of a suite by data set, method and split, with means, standard errors and paired differences."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from experiments.paper_numbers import Printed
from experiments.runner import arm_names, tasks_of
from experiments.store import Store, undrawn
from experiments.suites import Arm, Suite

ALL_SPLITS = 10  # of the paper


class Mean(NamedTuple):
    """Mean over splits, its standard error (the paper's: population sd / √n), and n."""

    value: float
    error: float
    n: int

    def __str__(self) -> str:
        digits = 3 if abs(self.value) >= 0.2 else 4
        # Two splits may agree by chance: their standard error would be near zero.
        return f"{self.value:.{digits}f}" + (f" ({self.error:.{digits}f})" if self.n > 2 else "")


@dataclass(frozen=True)
class Results:
    """The results of a suite under a protocol: for each data set and arm, split to result."""

    suite: Suite
    protocol: str
    by_arm: dict[tuple[str, str], dict[int, dict[str, Any]]]

    @classmethod
    def read(cls, store: Store, suite: Suite, protocol: str) -> "Results":
        """All results of the suite in the store."""
        names = arm_names(suite, protocol) if protocol == "default" or suite.paper_arms else ()
        by_arm: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        for task in tasks_of(suite, protocol, suite.datasets, names, suite.splits):
            result = store.result(task)
            if result is not None:
                by_arm.setdefault((task.dataset, task.arm.name), {})[task.split] = result
        return cls(suite, protocol, by_arm)

    @property
    def arms(self) -> list[Arm]:
        """Arms with any result, in the order of the suite."""
        return [arm for arm in self.suite.arms if any(name == arm.name for _, name in self.by_arm)]

    @property
    def datasets(self) -> list[str]:
        """Data sets with any result."""
        return [d for d in self.suite.datasets if any(name == d for name, _ in self.by_arm)]

    @property
    def paper_table(self) -> str:
        """The paper's table that these are compared with."""
        return self.suite.name if self.suite.name in ("ablation", "elevators", "synthetic-1d") else "uci"

    def of(self, dataset: str, arm: str) -> dict[int, dict[str, Any]]:
        """Split to result."""
        return self.by_arm.get((dataset, arm), {})

    def values(self, dataset: str, arm: str, metric: str) -> dict[int, float]:
        """Split to the value of a metric; fits that ended before their first draw are left out."""
        drawn = {k: r for k, r in self.of(dataset, arm).items() if not undrawn(r)}
        pairs = {k: (r.get("scores") or {}).get(metric) for k, r in drawn.items()}
        return {k: v for k, v in sorted(pairs.items()) if v is not None}

    def mean(self, dataset: str, arm: str, metric: str, splits: Collection[int] | None = None) -> Mean | None:
        """Mean over all splits with a result, or over those of them in `splits`."""
        values = self.values(dataset, arm, metric)
        return mean_of([v for k, v in values.items() if splits is None or k in splits])

    def paired(self, dataset: str, arm: str, reference: str, metric: str) -> Mean | None:
        """Mean difference to another arm over the splits of both; its standard error uses n - 1."""
        a, b = self.values(dataset, arm, metric), self.values(dataset, reference, metric)
        differences = [a[k] - b[k] for k in a if k in b]
        if len(differences) < 2:
            return None
        return Mean(
            float(np.mean(differences)),
            float(np.std(differences, ddof=1) / math.sqrt(len(differences))),
            len(differences),
        )


def mean_of(values: Sequence[float]) -> Mean | None:
    """Mean and standard error; None without values."""
    if not len(values):
        return None
    return Mean(float(np.mean(values)), float(np.std(values) / math.sqrt(len(values))), len(values))


def in_standard_errors(ours: Mean | None, theirs: Printed | None) -> float | None:
    """(ours - paper) / combined standard error; where the paper printed none, ours is used twice.

    None with fewer than the paper's ten splits: splits differ too much to compare a few with ten.
    """
    if ours is None or theirs is None or ours.n < ALL_SPLITS:
        return None
    error = math.hypot(ours.error, ours.error if theirs.error is None else theirs.error)
    return (ours.value - theirs.value) / error if error > 0 else None
