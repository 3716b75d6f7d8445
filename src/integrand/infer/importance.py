"""Pareto-smoothed importance sampling: weights whose tail is smoothed, and how far they can be trusted.

Vehtari, Simpson, Gelman, Yao & Gabry (2024). The largest weights are replaced by the quantiles of a generalised Pareto
distribution that is fitted to them (Zhang & Stephens 2009). Its shape k̂ says how heavy the tail is: up to 0.7 the
estimates are reliable, above it no feasible number of draws makes them so. The numbers are those of `arviz.psislw`.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from integrand.errors import InputError

# Above this, importance sampling is not to be trusted (Vehtari et al. 2024, section 3).
K_HAT_LIMIT = 0.7
# Log weights whose largest and smallest are closer than this are equal: they have no tail.
_EQUAL = 1e-6
# Fewer weights than this in the tail tell nothing about its shape.
_LEAST_TAIL = 5
# Zhang & Stephens' prior on the scale, and the weight of the prior on the shape, which is 0.5, in rows.
_PRIOR_SCALE, _PRIOR_ROWS = 3.0, 10.0
_TINY, _ROUNDING = math.log(np.finfo(float).tiny), 10.0 * np.finfo(float).eps


class Smoothed(NamedTuple):
    """Normalised log weights, and k̂ of each set of them."""

    log_weights: Float[np.ndarray, "*sets S"]
    k_hat: Float[np.ndarray, "*sets"]


def pareto_smoothed(log_weights: Float[np.ndarray, "*sets S"], efficiency: float = 1.0) -> Smoothed:
    """Smooth each set of S unnormalised log importance weights, and normalise it.

    Parameters
    ----------
    log_weights
        Log of target density over proposal density at each draw, along the last axis. -inf is a weight of zero.
    efficiency
        ESS of the draws divided by their number: the tail is longer for draws that are correlated.

    Returns
    -------
    log_weights
        Smoothed, with weights that sum to one.
    k_hat
        Infinite where fewer than 5 draws are in the tail; 0 where all weights are equal.
    """
    x = np.array(log_weights, float)  # a copy
    if x.ndim < 1 or x.shape[-1] < 1 or np.any(np.isnan(x) | (x == np.inf)):
        raise InputError("log weights must be numbers or -inf, at least one in a set")
    sets = x.reshape(-1, x.shape[-1])
    k_hat = np.array([_smooth(row, efficiency) for row in sets])
    return Smoothed(sets.reshape(x.shape), k_hat.reshape(x.shape[:-1]))


def _smooth(x: Float[np.ndarray, " S"], efficiency: float) -> float:
    """Smooth and normalise x in place; k̂."""
    n = len(x)
    highest = float(np.max(x))
    if not math.isfinite(highest):
        raise InputError("all importance weights are zero: no draw is possible under the other density")
    x -= highest
    if np.min(x) > -_EQUAL:
        x -= _log_sum(x)
        return 0.0
    k_hat = math.inf
    length = math.ceil(min(n / 5.0, 3.0 * math.sqrt(n / efficiency)))
    if length < n:
        cutoff = max(float(np.partition(x, n - length - 1)[n - length - 1]), _TINY)
        (tail,) = np.nonzero(x > cutoff)
        if len(tail) >= _LEAST_TAIL:
            order = tail[np.argsort(x[tail])]
            k_hat, scale = _fit_pareto(np.exp(x[order]) - math.exp(cutoff))
            if math.isfinite(k_hat):
                smoothed = _quantiles((np.arange(len(tail)) + 0.5) / len(tail), k_hat, scale)
                # No smoothed weight is larger than the largest one was.
                x[order] = np.minimum(np.log(smoothed + math.exp(cutoff)), 0.0)
    x -= _log_sum(x)
    return k_hat


def _fit_pareto(y: Float[np.ndarray, " m"]) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto distribution from sorted draws: an empirical Bayes estimate."""
    m = len(y)
    n_points = 30 + int(math.sqrt(m))
    theta = 1.0 - np.sqrt(n_points / (np.arange(1, n_points + 1) - 0.5))
    theta = theta / (_PRIOR_SCALE * y[int(m / 4 + 0.5) - 1]) + 1.0 / y[-1]
    shape = np.mean(np.log1p(-theta[:, None] * y), axis=1)
    profile = m * (np.log(-theta / shape) - shape - 1.0)
    weights = np.exp(profile - _log_sum(profile))
    kept = weights >= _ROUNDING
    mean = float(theta[kept] @ weights[kept] / weights[kept].sum())
    k = float(np.mean(np.log1p(-mean * y)))
    scale = -k / mean
    return (m * k + 0.5 * _PRIOR_ROWS) / (m + _PRIOR_ROWS), scale


def _quantiles(p: Float[np.ndarray, " m"], k: float, scale: float) -> Float[np.ndarray, " m"]:
    """Quantiles of a generalised Pareto distribution."""
    if abs(k) < np.finfo(float).eps:
        return -scale * np.log1p(-p)
    return scale * np.expm1(-k * np.log1p(-p)) / k


def _log_sum(x: np.ndarray) -> float:
    highest = float(np.max(x))
    return highest + math.log(float(np.sum(np.exp(x - highest))))
