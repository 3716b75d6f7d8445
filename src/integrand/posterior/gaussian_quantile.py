"""Quantiles of a mixture of Gaussians: Newton inside a bracket of doubles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from integrand.posterior.rows import Array

# Steps in which the root finder may use Newton; afterwards it halves the doubles left, at most 64 times.
NEWTON_STEPS = 40
RELATIVE_TOLERANCE = 1e-13


def standardised(y: Array, mu: Array, s: Array) -> Array:
    """(y - μ)/s; for s = 0 plus infinity from the point mass on, minus infinity before it."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = (y - mu) / s
    return np.where(np.isnan(z), np.inf, z)


def gaussian_quantile(p: float, mu: Array, s: Array) -> Array:
    """Solve F(q) = p for every column of μ and s (J, A): Newton inside a shrinking bracket.

    For p > 1/2 the upper tail 1 - F is compared with 1 - p, so both ends keep their relative precision.
    Newton acts on Φ⁻¹(F(q)), a straight line for one Gaussian.
    """
    sign, tail = (1.0, p) if p <= 0.5 else (-1.0, 1.0 - p)
    of_components = mu + s * ndtri(p)
    # Just below the smallest component quantile F cannot have reached p.
    low, high = np.nextafter(of_components.min(axis=0), -np.inf), of_components.max(axis=0)
    x, last = of_components.mean(axis=0), np.full(low.shape, np.inf)

    stairs = ~(s > 0).any(axis=0)
    # Only point masses: F climbs in steps of 1/J.
    first = np.searchsorted(np.arange(1, len(mu) + 1) / len(mu), p)
    high[stairs] = np.sort(mu[:, stairs], axis=0)[first]

    active = np.flatnonzero(~stairs & (np.nextafter(low, np.inf) < high))
    steps = 0
    while active.size:
        at, a, b = x[active], low[active], high[active]
        value, slope = _tail_and_density(at, mu[:, active], s[:, active], sign)
        solved = np.abs(value - tail) <= RELATIVE_TOLERANCE * tail
        reached = solved | (value >= tail if sign > 0 else value <= tail)
        a, b = np.where(reached, a, at), np.where(reached, at, b)
        if steps < NEWTON_STEPS:
            gap = ndtri(tail) - ndtri(value)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                move = sign * gap * np.exp(-0.5 * ndtri(value) ** 2) / (np.sqrt(2 * np.pi) * slope)
            x[active] = _next_trial(at, a, b, move, np.abs(gap) < 0.5 * last[active])
            last[active] = np.abs(gap)
        else:
            x[active] = _middle_double(a, b)
        low[active], high[active] = a, b
        active = active[~solved & (np.nextafter(a, np.inf) < b)]
        steps += 1
    return high


def _tail_and_density(y: Array, mu: Array, s: Array, sign: float) -> tuple[Array, Array]:
    """F(y), or 1 - F(y) for sign = -1, and the density of the part that is not point masses."""
    z = standardised(y, mu, s)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        density = np.where(s > 0, np.exp(-0.5 * z**2) / s, 0.0).mean(axis=0) / np.sqrt(2 * np.pi)
    return ndtr(sign * z).mean(axis=0), density


def _next_trial(x: Array, low: Array, high: Array, move: Array, improving: NDArray[np.bool_]) -> Array:
    """Return x + move if that lies in (low, high) and moves have been improving, else the middle."""
    # A move below the spacing of doubles: look at the neighbour, so that the bracket can close.
    neighbour = np.nextafter(x, np.where(move > 0, np.inf, -np.inf))
    trial = np.where(x + move == x, neighbour, x + move)
    good = improving & (trial > low) & (trial < high)
    return np.where(good, trial, low + 0.5 * (high - low))


def _middle_double(low: Array, high: Array) -> Array:
    """Return the double halfway from low to high when all doubles are counted in order."""
    a, b = _ordinal(low.view(np.int64)), _ordinal(high.view(np.int64))
    return _ordinal((a >> 1) + (b >> 1) + (a & b & 1)).view(np.float64)


def _ordinal(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Map the bits of a double to its place among all doubles, and back."""
    return np.where(bits >= 0, bits, np.iinfo(np.int64).min - bits)
