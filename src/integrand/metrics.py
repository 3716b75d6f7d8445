"""How good predictions are: plain functions of a predictive mixture and the values that came true.

Smaller is better for all but the coverages, which should equal their level. Everything is in the units
of the mixture: undo a standardisation (`GaussianMixture.transformed`) before comparing with other work.
"""

from __future__ import annotations

import operator

import numpy as np
from numpy.typing import ArrayLike

from integrand.errors import InputError
from integrand.posterior.mixture import Array, GaussianMixture, finite_array
from integrand.posterior.observed import ObservedMixture
from integrand.posterior.transformed import TransformedMixture

Mixture = GaussianMixture | ObservedMixture | TransformedMixture


def rmse(mean: ArrayLike, y: ArrayLike) -> float:
    """Root mean squared error, √(1/T Σ_t (mean_t - y_t)²), of point predictions (T,)."""
    return float(np.sqrt(np.mean(_errors(mean, y) ** 2)))


def mae(point: ArrayLike, y: ArrayLike) -> float:
    """Mean absolute error, 1/T Σ_t |point_t - y_t|, of point predictions (T,); the median minimises it."""
    return float(np.mean(np.abs(_errors(point, y))))


def nlpd(mixture: Mixture, y: ArrayLike) -> float:
    """Negative log predictive density of the mixture per point, -1/T Σ_t log 1/J Σ_j N_jt(y_t)."""
    return float(-np.mean(mixture.log_density(_targets(_with_density(mixture), y))))


def expected_nlpd(mixture: Mixture, y: ArrayLike) -> float:
    """Mean over draws of each draw's own, -1/(JT) Σ_jt log N_jt(y_t); by Jensen at least `nlpd`."""
    return float(-np.mean(mixture.expected_log_density(_targets(_with_density(mixture), y))))


def joint_nlpd(joint_log_densities: ArrayLike, n_test: int) -> float:
    """Negative log density of the whole test set per point, averaged over draws: the paper's NLPD.

    -1/(JT) Σ_j log N(y; μ_j, Σ_j), where Σ_j is the full (T, T) predictive covariance under draw j.

    Parameters
    ----------
    joint_log_densities : (J,), log N(y; μ_j, Σ_j) in the original units of y.
    n_test : T, the number of test points.
    """
    log_densities = finite_array(joint_log_densities, "joint_log_densities")
    if log_densities.ndim != 1 or log_densities.size == 0:
        raise InputError(f"joint_log_densities must have shape (draws,), got {log_densities.shape}")
    try:
        count = operator.index(n_test)
    except TypeError as error:
        raise InputError(f"n_test must be a whole number, got {n_test!r}") from error
    if count < 1:
        raise InputError(f"n_test must be at least 1, got {count}")
    return float(-np.mean(log_densities) / count)


def crps(mixture: Mixture, y: ArrayLike) -> float:
    """Continuous ranked probability score, 1/T Σ_t ∫ (F_t(x) - 1{y_t ≤ x})² dx, in the units of y."""
    return float(np.mean(mixture.crps(_targets(mixture, y))))


def pit(mixture: Mixture, y: ArrayLike) -> Array:
    """Probability integral transforms F_t(y_t), shape (T,); uniform when calibrated."""
    return mixture.pit(_targets(mixture, y))


def coverage(mixture: Mixture, y: ArrayLike, level: float) -> float:
    """Fraction of the y_t inside the central interval [q_t((1 - level)/2), q_t((1 + level)/2)]."""
    return float(calibration(mixture, y, [level])["coverage"][0])


def calibration(mixture: Mixture, y: ArrayLike, levels: ArrayLike) -> dict[str, Array]:
    """Coverage of central intervals against their level.

    Parameters
    ----------
    mixture : over T rows.
    y : (T,)
    levels : (L,), strictly between 0 and 1.

    Returns
    -------
    Columns of length L: ``level``; ``coverage``, the fraction of y inside; ``standard_error``,
    √(level (1 - level)/T), what T independent points would scatter by if calibrated.
    """
    y = _targets(mixture, y)
    level = finite_array(levels, "levels")
    if level.ndim != 1 or not ((level > 0) & (level < 1)).all():
        raise InputError("levels must be a list of numbers strictly between 0 and 1")
    # q(a) ≤ y exactly if F(y) ≥ a: no quantiles are needed. Just below y, F differs only at a point mass.
    at, below = mixture.cdf(y), mixture.cdf(np.nextafter(y, -np.inf))
    tail = (1 - level[:, None]) / 2
    inside = (at >= tail) & (below < (1 + level[:, None]) / 2)
    error = np.sqrt(level * (1 - level) / y.size)
    return {"level": level, "coverage": inside.mean(axis=1), "standard_error": error}


def evaluate(mixture: Mixture, y: ArrayLike, joint_log_density: ArrayLike | None = None) -> dict[str, float]:
    """All metrics at once.

    Parameters
    ----------
    mixture : predictive distribution of y over T rows, noise included.
    y : (T,)
    joint_log_density : (J,), see `joint_nlpd`; without it that entry is left out.

    Returns
    -------
    ``rmse``, ``nlpd``, ``expected_nlpd``, ``joint_nlpd``, ``crps``, ``coverage_50``, ``coverage_80``,
    ``coverage_95``.
    """
    y = _targets(mixture, y)
    scores = {
        "rmse": rmse(mixture.mean, y),
        "nlpd": nlpd(mixture, y),
        "expected_nlpd": expected_nlpd(mixture, y),
    }
    if joint_log_density is not None:
        scores["joint_nlpd"] = joint_nlpd(joint_log_density, y.size)
    scores["crps"] = crps(mixture, y)
    levels = (50, 80, 95)
    table = calibration(mixture, y, np.array(levels) / 100)
    return scores | {f"coverage_{n}": float(c) for n, c in zip(levels, table["coverage"], strict=True)}


def _errors(point: ArrayLike, y: ArrayLike) -> Array:
    point, y = finite_array(point, "predictions"), finite_array(y, "y")
    if y.ndim != 1 or y.size == 0 or point.shape != y.shape:
        raise InputError(f"predictions {point.shape} and y {y.shape} must be equally long, non-empty vectors")
    return point - y


def _targets(mixture: Mixture, y: ArrayLike) -> Array:
    y = finite_array(y, "y")
    rows = mixture.means.shape[1]
    if y.shape != (rows,) or rows == 0:
        raise InputError(f"y has shape {y.shape}; it must have one value for each of the {rows} rows (not 0)")
    return y


def _with_density(mixture: Mixture) -> Mixture:
    if not isinstance(mixture, ObservedMixture) and not (mixture.variances > 0).all():
        raise InputError("a zero variance has no log density; predict y with its noise (plus_noise), not f")
    return mixture
