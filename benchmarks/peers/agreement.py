"""Do two hyperposteriors agree? Posterior means of log θ over all repeats, in units of their Monte Carlo errors."""

import math
from statistics import mean
from typing import NamedTuple

from rows import Row

REFERENCE = "pymc"
MIXED = 1.05  # an R-hat above this leaves Monte Carlo errors without meaning
LEAST_P = 0.01  # of χ²: below it two posteriors do not agree


class Agreement(NamedTuple):
    """z of each hyperparameter, and what χ² = Σ z² says of them together, were they independent."""

    z: list[float]
    chi2: float
    p: float

    @property
    def largest(self) -> float:
        return max(map(abs, self.z))

    @property
    def rms(self) -> float:
        return math.sqrt(self.chi2 / len(self.z))

    def __str__(self) -> str:
        return f"{self.largest:.2f} of {len(self.z)}, χ² {self.chi2:.1f} (p {self.p:.2g})"


def mixed(rows: list[Row]) -> list[Row]:
    """Without runs whose chains disagree: their ESS and Monte Carlo errors mean nothing."""
    return [r for r in rows if not r.get("judged") or r["judged"]["r_hat"] <= MIXED]


def _pooled(rows: list[Row]) -> list[tuple[float, float]]:
    """Mean and Monte Carlo error of each coordinate over independent runs of the same posterior."""
    numbers = [r["judged"] for r in rows]
    means = [mean(values) for values in zip(*(n["log_mean"] for n in numbers), strict=True)]
    squares = [sum(s**2 for s in errors) for errors in zip(*(n["mcse"] for n in numbers), strict=True)]
    return [(m, math.sqrt(s) / len(rows)) for m, s in zip(means, squares, strict=True)]


def agreement(rows: list[Row], reference: list[Row]) -> Agreement | None:
    """All runs against all runs of the reference; None if either has none that mixed."""
    from scipy.stats import chi2

    mine, theirs = mixed(rows), mixed(reference)
    if not mine or not theirs:
        return None
    z = [(m - n) / math.hypot(s, t) for (m, s), (n, t) in zip(_pooled(mine), _pooled(theirs), strict=True)]
    total = sum(v * v for v in z)
    return Agreement(z, total, float(chi2.sf(total, len(z))))
