"""What the training rows say of the model: findings from leave-one-out residuals, from the columns and from M.

Each test has a small level and an effect that it must exceed, so that many rows do not make a finding of a trifle.
Remedies name parameters between backticks; the command line replaces them by its flags.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri

from integrand.infer.base import Finding
from integrand.infer.verdict import Sparseness
from integrand.posterior.residuals import Residuals
from integrand.priors import Prior

# Each test's level, for both tails together; tests of several columns share it.
LEVEL = 1e-3
# Effects: L-skewness and L-kurtosis (0 and 0.123 for a normal), rank and serial correlations, a share of rows in the
# 50 % interval, the mean square of the scores of counts.
SKEWNESS, KURTOSIS, CORRELATION, COVERAGE, DISPERSION = 0.10, 0.17, 0.20, 0.10, 1.3
_NORMAL_KURTOSIS = 0.1226
# A row this many robust standard deviations out, and the share of rows that makes it a finding.
OUTLYING, OUTLYING_SHARE = 5.0, 0.01
# Correlations of columns that stand in for each other, and that are the same.
COLLINEAR, SAME = 0.99, 1.0 - 1e-9
# Nats: the spread of the slack that changes θ; the gain of more points, in all and per row; of points chosen afresh.
SLACK_SD, GAIN, GAIN_PER_ROW, FRESH_GAIN = 0.5, 3.0, 0.01, 3.0
# Mass of a prior beyond the posterior median.
PRIOR_TAIL = 0.01
# Residuals of fewer rows than this say nothing, and more than this many neighbours are not looked for.
LEAST_ROWS, _MOST_NEIGHBOURS = 25, 2_000
_MAD = 0.6745


class Rows(NamedTuple):
    """Some training rows, standardised, in their order; `follows` says of each but the first if it follows at once."""

    X: Float[np.ndarray, "n D"]
    y: Float[np.ndarray, " n"]
    follows: Bool[np.ndarray, " n-1"]
    noise_variance: Float[np.ndarray, " n"] | float = 0.0  # known, beside the model's noise


def sparseness_findings(s: Sparseness, n_rows: int, n_inducing: int, Z_given: bool) -> list[Finding]:
    """Whether M is enough, and Z, which the user may have given, where it should be."""
    more = f"Use more inducing points: `n_inducing={2 * n_inducing}`."
    findings = []
    if s.fresh_gain > FRESH_GAIN and s.fresh_gain > GAIN_PER_ROW * n_rows:
        sentence = (
            f"{n_inducing} inducing points chosen afresh from the data would gain {s.fresh_gain:.1f} nats: "
            "Z is stuck in a poor place."
        )
        remedy = (
            "Leave `Z` out or start it elsewhere, or let it move longer: `max_rounds=20`."
            if Z_given
            else f"Fit with another `seed`, with `max_rounds=20`, or with more points: `n_inducing={2 * n_inducing}`."
        )
        findings.append(Finding("inducing-stuck", False, sentence, remedy))
    if s.spread > SLACK_SD:
        sentence = (
            f"These hyperparameters are shaped by the approximation (its slack varies by {s.spread:.1f} nats over the "
            "draws): predictions are usable, the posterior of θ is not the exact one."
        )
        findings.append(Finding("sparse-posterior", False, sentence, more))
    elif s.missing > GAIN and s.missing > GAIN_PER_ROW * n_rows:
        sentence = f"About {s.missing:.0f} nats are missing to the exact bound: predictions and θ would change."
        findings.append(Finding("few-inducing", False, sentence, more))
    return findings


def prior_finding(name: str, prior: Prior, median: float) -> list[Finding]:
    """That the posterior median lies where a prior of the user has hardly any mass; both in the units of the data."""
    below = prior.mass(-math.inf, median)
    if not (below < PRIOR_TAIL or below > 1.0 - PRIOR_TAIL):  # NaN: NumPyro does not know
        return []
    side = "above" if below > 0.5 else "below"
    sentence = (
        f"The data and the prior of {name} disagree: the posterior median, {median:.3g}, lies {side} "
        f"{1.0 - PRIOR_TAIL:.0%} of {prior}."
    )
    return [Finding("prior-against-data", False, sentence, f"Ask whether you meant that prior of {name}: widen it.")]


def elsewhere_finding(gain: float, n_inducing: int, found: Sequence[Finding]) -> list[Finding]:
    """That the exact GP has a better place for θ, which these points cannot follow, where no other finding says so."""
    if not gain > FRESH_GAIN or any(f.code == "sparse-posterior" for f in found):
        return []
    sentence = (
        f"The exact GP fits better by {gain:.0f} nats at other hyperparameters: too few inducing points, or a start "
        "near a poorer mode, keep these away from there."
    )
    more = f"Use more inducing points (`n_inducing={2 * n_inducing}`)"
    remedy = f'{more}, and a method that looks for modes: `method="sgpr-hmc"`.'
    return [Finding("sparse-posterior", False, sentence, remedy)]


def column_findings(X: Float[np.ndarray, "n D"], names: Sequence[str]) -> list[Finding]:
    """Columns that are the same, or nearly a line of each other."""
    moving = np.flatnonzero(np.ptp(X, axis=0) > 0).tolist()
    if len(moving) < 2 or len(X) < 5:
        return []
    correlation = np.abs(np.corrcoef(X[:, moving], rowvar=False))
    pairs = [(correlation[i, j], moving[i], moving[j]) for i, j in zip(*np.triu_indices(len(moving), 1), strict=True)]
    findings = []
    for code, label, low, high in (
        ("duplicate-columns", "are the same up to scale", SAME, math.inf),
        ("collinear-columns", "are nearly the same", COLLINEAR, SAME),
    ):
        found = sorted((p for p in pairs if low <= p[0] < high), reverse=True)
        if found:
            listed = "; ".join(f"{names[i]} and {names[j]}" for _, i, j in found[:3])
            more = f" and {len(found) - 3} more pairs" if len(found) > 3 else ""
            sentence = f"Columns {label}: {listed}{more}. The data cannot say which of them matters."
            remedy = "Drop one of each pair, or give their mean and their difference instead."
            findings.append(Finding(code, False, sentence, remedy))
    return findings


def size_findings(n_rows: int, n_theta: int) -> list[Finding]:
    """Too few rows to learn the hyperparameters from."""
    if n_rows >= 10 + 2 * n_theta:
        return []
    sentence = f"{n_rows} rows for {n_theta} hyperparameters: the posterior is mostly the prior."
    remedy = "Collect more rows, or say what you know by priors (`kernel`, `noise`), and drop columns."
    return [Finding("few-rows", False, sentence, remedy)]


def count_findings(r: Residuals) -> list[Finding]:
    """Counts that vary more than their likelihood allows."""
    n = len(r.scores)
    dispersion = float(np.mean(r.scores**2))
    if n < LEAST_ROWS or dispersion < DISPERSION or (dispersion - 1.0) * math.sqrt(n / 2.0) < _quantile(1):
        return []
    inside = float(np.mean(np.abs(r.scores) < 1.96))
    sentence = (
        f"The counts vary more than the likelihood allows: the 95 % intervals hold {_share(inside, n)} of the rows."
    )
    remedy = "Add a short-range term to `kernel`, such as `+ matern12`, or a likelihood of your own with wider tails."
    return [Finding("overdispersed", False, sentence, remedy)]


def transform_remedy(positive: bool, current: str | None, method: str) -> str:
    """Which transform of y to try next, without a full stop.

    Parameters
    ----------
    positive
        Whether all y are, so that they have logarithms.
    current
        Name of the transform that the model has.
    method
        One that takes transforms, if that of the fit does not; else empty.
    """
    name = "box-cox" if positive and current != "box-cox" else "sinh-arcsinh"
    if current == name:
        return "Look for a column that explains it, or another `kernel`"
    remedy = f'Use `target_transform="{name}"`'
    return f'{remedy} with `method="{method}"`' if method else remedy


def residual_findings(
    r: Residuals, rows: Rows, names: Sequence[str], transform: str = "Model a transform of y"
) -> list[Finding]:
    """Tails, skewness, spread, structure and calibration of leave-one-out residuals.

    `transform` says how y is transformed; see `transform_remedy`.
    """
    if len(r.scores) < LEAST_ROWS or np.std(r.scores) == 0.0:
        return []
    findings = _structure(r.scores, rows, names)
    if any(f.code == "missed-structure" for f in findings):  # what is missed shows in all the rest, too
        return findings
    spread = _spread(r, rows.X, names, transform)
    shape = [
        f for f in _shape(r.scores, transform) if not (spread and f.code == "heavy-tails")
    ]  # a changing spread makes tails
    return findings + (spread + shape or _calibration(r.scores))


def _shape(z: np.ndarray, transform: str) -> list[Finding]:
    """Outliers, tails and skewness."""
    n, findings = len(z), []
    distance = np.abs(z - np.median(z)) / max(float(np.median(np.abs(z - np.median(z)))) / _MAD, 1e-12)
    outlying = np.flatnonzero(distance > OUTLYING)
    inside = _share(float(np.mean(np.abs(z) < _MAD)), n)
    student = '`likelihood="student-t"`'
    skewness, kurtosis = l_moment_ratios(z)
    skewed = abs(skewness) > max(SKEWNESS, _quantile(1) * math.sqrt(0.1866 / n + 0.8 / n**2))
    heavy = kurtosis - _NORMAL_KURTOSIS > _quantile(1) * math.sqrt(0.0883 / n + 0.68 / n**2 + 4.9 / n**3)
    if len(outlying) >= max(2, OUTLYING_SHARE * n):
        sentence = (
            f"{len(outlying)} of {n} rows lie more than {OUTLYING:.0f} robust standard deviations from what the others "
            "predict: wrong values or labels, or a heavy tail."
        )
        findings.append(Finding("outliers", False, sentence, f"Look at these rows, or use {student}."))
    if heavy and kurtosis > KURTOSIS:
        sentence = f"Residuals have heavy tails: the 50 % intervals hold {inside} of the rows."
        findings.append(Finding("heavy-tails", False, sentence, f"Use {student}, or model a transform of y."))
    if skewed:
        side = "upwards" if skewness > 0 else "downwards"
        sentence = f"Residuals are skewed {side} (L-skewness {skewness:.2f})."
        remedy = f"{transform}."
        findings.append(Finding("skewed", False, sentence, remedy))
    return findings


def _spread(r: Residuals, X: np.ndarray, names: Sequence[str], transform: str) -> list[Finding]:
    """Whether residuals are larger where the prediction, or a column, is large (or far from its middle)."""
    size = _ranks(np.abs(r.scores))
    sides: list[tuple[str, np.ndarray]] = [("the prediction", r.mean)]
    for d in np.flatnonzero(np.ptp(X, axis=0) > 0).tolist():
        sides += [
            (names[d], X[:, d]),
            (f"the distance of {names[d]} from its middle", np.abs(X[:, d] - np.median(X[:, d]))),
        ]
    found = [(float(np.corrcoef(size, _ranks(v))[0, 1]), label) for label, v in sides if np.ptp(v) > 0]
    correlation, label = max(found, key=lambda one: abs(one[0]), default=(0.0, ""))
    if abs(correlation) < max(CORRELATION, _quantile(len(found)) / math.sqrt(len(size))):
        return []
    grows = "grows" if correlation > 0 else "shrinks"
    sentence = f"The noise is not the same everywhere: the size of residuals {grows} with {label}."
    remedy = f"{transform}, or give the noise of each row if you know it."
    return [Finding("heteroscedastic", False, sentence, remedy)]


def _structure(z: np.ndarray, rows: Rows, names: Sequence[str]) -> list[Finding]:
    """Whether rows next to each other, along a column, in space or in their order, have residuals alike."""
    n, findings, X = len(z), [], rows.X
    z = z - z.mean()
    along: list[tuple[float, str]] = []
    for d in np.flatnonzero(np.ptp(X, axis=0) > 0).tolist():
        if len(np.unique(X[:, d])) > n // 2:  # a column of few values does not say who is next to whom
            order = np.argsort(X[:, d], kind="stable")
            along.append((_serial(z[order], np.ones(n - 1, bool)), f"along {names[d]}"))
    if X.shape[1] > 1 and n <= _MOST_NEIGHBOURS:
        along.append((_neighbours(z, X), "among neighbours"))
    value, where = max(along, default=(0.0, ""))
    if value > max(CORRELATION, _quantile(max(len(along), 1)) / math.sqrt(n)):
        sentence = (
            f"Residuals next to each other {where} are alike (correlation {value:.2f}): the kernel misses something."
        )
        remedy = "Add a term to `kernel`, such as one with a shorter lengthscale, a cycle or another column."
        findings.append(Finding("missed-structure", False, sentence, remedy))
    if int(rows.follows.sum()) >= LEAST_ROWS:
        m = int(rows.follows.sum())
        value = _serial(z, rows.follows)
        sorted_by = any(np.all(np.diff(X[:, d]) >= 0) or np.all(np.diff(X[:, d]) <= 0) for d in range(X.shape[1]))
        if value > max(CORRELATION, _quantile(1) / math.sqrt(m)) and not (findings and sorted_by):
            sentence = (
                f"Rows that follow each other have residuals alike (correlation {value:.2f}): they are not independent."
            )
            remedy = "Give the time or place of the rows as a column, with a term for it in `kernel`."
            findings.append(Finding("autocorrelated", False, sentence, remedy))
    return findings


def _calibration(z: np.ndarray) -> list[Finding]:
    """Whether intervals hold as many rows as they say."""
    n, inside, wider = len(z), float(np.mean(np.abs(z) < _MAD)), float(np.mean(np.abs(z) < 1.96))
    error = max(COVERAGE, _quantile(1) * 0.5 / math.sqrt(n))
    if abs(inside - 0.5) < error:
        return []
    narrow = inside < 0.5
    sentence = (
        f"The intervals are too {'narrow' if narrow else 'wide'}: those of 50 % hold {_share(inside, n)} of the rows, "
        f"those of 95 % hold {wider:.0%}."
    )
    remedy = "Leave `noise` to the data, or choose another `kernel` or `likelihood`."
    return [Finding("intervals-narrow" if narrow else "intervals-wide", False, sentence, remedy)]


def l_moment_ratios(z: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """L-skewness and L-kurtosis (Hosking 1990): robust, and close to normal in small samples."""
    x, n = np.sort(z), len(z)
    i = np.arange(n)
    b0, b1 = x.mean(), np.mean(x * i) / (n - 1)
    b2 = np.mean(x * i * (i - 1)) / ((n - 1) * (n - 2))
    b3 = np.mean(x * i * (i - 1) * (i - 2)) / ((n - 1) * (n - 2) * (n - 3))
    l2 = 2.0 * b1 - b0
    return float((6.0 * b2 - 6.0 * b1 + b0) / l2), float((20.0 * b3 - 30.0 * b2 + 12.0 * b1 - b0) / l2)


def _serial(z: np.ndarray, follows: np.ndarray) -> float:
    """Correlation of each value with the one before it."""
    return float(np.mean((z[1:] * z[:-1])[follows]) / np.mean(z**2))


def _neighbours(z: np.ndarray, X: np.ndarray) -> float:
    """Correlation of each value with that of the nearest other row, as one of independent pairs."""
    squares = np.sum(X**2, axis=1)
    distance = squares[:, None] + squares[None, :] - 2.0 * X @ X.T
    np.fill_diagonal(distance, np.inf)
    nearest = np.argmin(distance, axis=1)
    mutual = float(np.mean(nearest[nearest] == np.arange(len(z))))
    return float(np.mean(z * z[nearest]) / np.mean(z**2)) / math.sqrt(1.0 + mutual)


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - 0.5 * (count - 1.0))[place]


def _quantile(tests: int) -> float:
    """Standard errors that one of several tests exceeds with probability LEVEL."""
    return float(ndtri(1.0 - 0.5 * LEVEL / tests))


def _share(share: float, n: int) -> str:
    """A share of rows with its standard error."""
    return f"{share:.0%} ± {max(math.sqrt(share * (1.0 - share) / n), 0.5 / n):.0%}"
