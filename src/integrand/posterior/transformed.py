"""Predictive distributions of a transformed target, in the units of y: z = g(y) is Gaussian under each draw.

Each draw has parameters of g of its own. So the mixture over draws has F(y) = 1/J Σ_j Φ((g_j(y) - μ_j)/s_j), and a
density with the slope of g_j. Moments and scores are integrals, by rules whose error is that of rounding for smooth g.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize.elementwise import find_root
from scipy.special import ndtr, ndtri

from integrand.data.scaling import Standardiser
from integrand.model import Model
from integrand.posterior.mixture import (
    GRID_REACH,
    Array,
    GaussianMixture,
    RowMixture,
    log_normal,
    standardised,
)
from integrand.precision import in_float64
from integrand.transforms import Transform

# Nodes in standard deviations, and weights, of the trapezoidal rule for moments.
NODES = np.linspace(-GRID_REACH, GRID_REACH, 84)
WEIGHTS = np.exp(-0.5 * NODES**2) / np.sum(np.exp(-0.5 * NODES**2))
# Panels of a CRPS: as wide as this many standard deviations of the narrowest draw, and at most as many on either side.
PANEL_WIDTH, MAX_PANELS = 1.0, 400
# A standardised target is not followed further than this.
_LARGEST = 1e300
# Nor further than this many standard deviations of the draw that stands for all.
_FURTHEST = 1e3
_LEGENDRE = np.polynomial.legendre.leggauss(10)


@in_float64
def transforms_of(model: Model, phis: Array) -> Transform | None:
    """The transform of each draw in one: its parameters have shape (J, 1). None where y is as it is."""
    if model.target_transform is None:
        return None
    each = jax.vmap(lambda phi: model.gp(model.theta(phi)).transform)(jnp.asarray(phis))
    return jax.tree.map(lambda a: np.asarray(a)[:, None], each)


@dataclass(frozen=True, eq=False, repr=False)
class TransformedMixture(RowMixture):
    """Equal-weight mixture over J draws of a y that is Gaussian once transformed, separately at each of T rows.

    p_t(y) = 1/J Σ_j N(g_j(y); means[j, t], variances[j, t]) g_j'(y)

    Parameters
    ----------
    means, variances : (J, T), of z = g(y), standardised; variances are not negative.
    transform : g, whose parameters have shape (J, 1).
    scaler : how y, or its logarithm, was standardised.
    """

    means: Array
    variances: Array
    transform: Transform
    scaler: Standardiser

    def __post_init__(self) -> None:
        latent = GaussianMixture(self.means, self.variances)
        for name in ("means", "variances"):
            object.__setattr__(self, name, getattr(latent, name))

    def __repr__(self) -> str:
        return f"TransformedMixture({self.transform.name}, draws={self.means.shape[0]}, rows={self.means.shape[1]})"

    @property
    def mean(self) -> Array:
        """Mean of the mixture, shape (T,); very large where the transform leaves y a tail without a mean."""
        return self._moments[0]

    @property
    def variance(self) -> Array:
        """Variance of the mixture, shape (T,)."""
        return self._moments[1]

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        mean, variance = np.empty(self.means.shape[1]), np.empty(self.means.shape[1])
        for rows in self._row_blocks():
            mu, s = self._components(rows)
            # Differences to one value: a common offset then costs no digits.
            base, first, second = self._original(mu).mean(axis=0), 0.0, 0.0
            with np.errstate(over="ignore", invalid="ignore"):
                for node, weight in zip(NODES, WEIGHTS, strict=True):
                    difference = self._original(mu + s * node) - base
                    first = first + weight * difference.mean(axis=0)
                    second = second + weight * np.square(difference).mean(axis=0)
                mean[rows] = base + first
                variance[rows] = np.where(np.isfinite(second), np.maximum(second - np.square(first), 0.0), np.inf)
        return mean, variance

    def cdf(self, y: ArrayLike) -> Array:
        """F(y) = 1/J Σ_j Φ((g_j(y) - μ_j)/s_j) at y of shape (T,) or (K, T)."""

        def value(y: Array, mu: Array, s: Array) -> Array:
            t, inside = self._scaled(y)
            return np.where(inside, ndtr(standardised(self._z(t), mu, s)).mean(axis=0), 0.0)

        return self._over_rows(y, value)

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score ∫ (F(x) - 1{y ≤ x})² dx at y of shape (T,) or (K, T)."""
        y, out = self._checked(y)
        grid, result = np.atleast_2d(y), np.atleast_2d(out)
        for t in range(y.shape[-1]):
            row = _Row(self, t) if np.any(self.variances[:, t] > 0.0) else _Atoms(self._original(self.means)[:, t])
            result[:, t] = [row.crps(float(value)) for value in grid[:, t]]
        return out

    def sample(self, rng: np.random.Generator, n: int) -> Array:
        """Draw n independent values at each row, (n, T); rows are independent of each other."""
        draw, z = self._drawn(rng, n)
        picked = jax.tree.map(lambda a: a[draw, 0], self.transform)
        return picked.original(self.scaler.inverse_y(picked.inverse(z)))

    def _scaled(self, y: Array) -> tuple[Array, np.ndarray]:
        """The t of each y, and which y have one; those that have none are given a zero."""
        inside = np.asarray(y > 0.0) if self.transform.of_log else np.ones(np.shape(y), bool)
        return self.scaler.transform_y(self.transform.base(np.where(inside, y, 1.0))), inside

    def _original(self, z: Array) -> Array:
        """The y of z, (J, ...)."""
        with np.errstate(over="ignore"):
            return self.transform.original(self.scaler.inverse_y(self.transform.inverse(z)))

    def _z(self, t: Array) -> Array:
        """g(t) of each draw, (J, ...)."""
        with np.errstate(over="ignore"):
            return self.transform(t)

    def _log_terms(self, y: Array, *components: Array) -> Array:
        """Minus infinity where y has no logarithm, and the transform takes one."""
        t, inside = self._scaled(y)
        terms = log_normal(self._z(t), *components) + self.transform.log_slope(t)
        return np.where(inside, terms - log_units(self.transform, self.scaler, t), -np.inf)

    def _quantiles(self, p: Array, *components: Array) -> Array:
        return np.array([self._quantile(float(level), *components) for level in p])

    def _quantile(self, p: float, mu: Array, s: Array) -> Array:
        """Solve F(q) = p for every column of μ and s, in asinh of the standardised target.

        For p > 1/2 it is the upper tail that is solved for, so both ends keep their relative precision.
        """
        sign, tail = (1.0, p) if p <= 0.5 else (-1.0, 1.0 - p)
        with np.errstate(over="ignore"):
            of_draws = np.arcsinh(np.clip(self.transform.inverse(mu + s * ndtri(p)), -_LARGEST, _LARGEST))
        low, high = of_draws.min(axis=0), of_draws.max(axis=0)

        def excess(x: Array, column: np.ndarray) -> Array:
            """±(Φ⁻¹(F(x)) - Φ⁻¹(p)), increasing and nearly a straight line."""
            z = standardised(self._z(np.sinh(x)), mu[:, column], s[:, column])
            reached = ndtr(sign * z).mean(axis=0)
            return sign * (ndtri(np.clip(reached, 1e-300, 1.0 - 1e-16)) - ndtri(tail))

        columns = np.arange(len(low))
        at_low, at_high = excess(low, columns), excess(high, columns)
        x, inner = np.where(at_low >= 0.0, low, high), np.flatnonzero((at_low < 0.0) & (at_high > 0.0))
        if inner.size:
            tolerances = {"xatol": 0.0, "xrtol": 1e-15, "fatol": 1e-14, "frtol": 0.0}
            root = find_root(excess, (low[inner], high[inner]), args=(inner,), tolerances=tolerances, maxiter=500)
            x[inner] = root.x
        return self.transform.original(self.scaler.inverse_y(np.sinh(x)))


def log_units(transform: Transform, scaler: Standardiser, t: Array) -> Array | float:
    """log dy/dt: what a log density of the standardised target loses in the units of y."""
    of_log = scaler.inverse_y(t) if transform.of_log else 0.0
    return math.log(scaler.y_sd) + of_log


class _Atoms:
    """One row of a mixture of point masses."""

    def __init__(self, values: Array):
        self.values = values
        self.spread = 0.5 * float(np.mean(np.abs(values[:, None] - values[None, :])))

    def crps(self, y: float) -> float:
        """E|Y - y| - ½ E|Y - Y'|."""
        return float(np.mean(np.abs(self.values - y))) - self.spread


class _Row:
    """One row of a mixture: F at many points, for its score.

    The points are u, standard deviations of a draw that stands for all: there all draws are about as wide as one.
    """

    def __init__(self, mixture: TransformedMixture, t: int):
        self.mixture, self.scaler, self.each = mixture, mixture.scaler, mixture.transform
        self.mu, variance = mixture.means[:, [t]], mixture.variances[:, [t]]
        # A point mass is as wide as rounding.
        self.s = np.sqrt(np.maximum(variance, 1e-18 * max(1.0, float(np.max(variance)))))
        self.one = jax.tree.map(lambda a: a.mean(), self.each)
        self.middle, self.width = float(self.mu.mean()), float(np.sqrt(np.mean(self.s**2)))
        with np.errstate(over="ignore"):
            ends = self.each.inverse(self.mu + GRID_REACH * self.s * np.array([[-1.0, 1.0]]))
        self.low, self.high = self._u(ends[:, 0].min()), self._u(ends[:, 1].max())
        self.panel = PANEL_WIDTH * float(self.s.min()) / self.width

    def crps(self, y: float) -> float:
        """∫ F² below y and ∫ (1 - F)² above it."""
        t, inside = self.mixture._scaled(np.array(y))
        if not inside:  # all of the mixture is above
            return float(self._integral(self.low, self.high, upper=True)) + float(self._y(self.low)) - y
        u = self._u(float(t))
        total = self._integral(self.low, min(max(u, self.low), self.high), upper=False)
        total += self._integral(min(max(u, self.low), self.high), self.high, upper=True)
        return float(total + max(y - self._y(self.high), 0.0) + max(self._y(self.low) - y, 0.0))

    def _u(self, t: float) -> float:
        with np.errstate(over="ignore"):
            u = (self.one(np.asarray(np.clip(t, -_LARGEST, _LARGEST))) - self.middle) / self.width
        return float(np.clip(u, -_FURTHEST, _FURTHEST))

    def _t(self, u: Array) -> Array:
        return self.one.inverse(self.middle + self.width * np.asarray(u))

    def _y(self, u: float) -> float:
        return float(self.each.original(self.scaler.inverse_y(self._t(np.asarray(u)))))

    def _integral(self, first: float, last: float, upper: bool) -> float:
        """∫ F² or ∫ (1 - F)² from one u to another, over y."""
        if last <= first:
            return 0.0
        edges = np.linspace(first, last, 1 + int(np.clip(math.ceil((last - first) / self.panel), 1, MAX_PANELS)))
        half = 0.5 * np.diff(edges)[:, None]
        u = (edges[:-1, None] + half * (1.0 + _LEGENDRE[0])).ravel()
        with np.errstate(over="ignore"):
            t = self._t(u)
            z = (self.each(t[None, :]) - self.mu) / self.s
        probability = ndtr(-z if upper else z).mean(axis=0)
        log_dy = math.log(self.width) - self.one.log_slope(t) + log_units(self.each, self.scaler, t)
        with np.errstate(divide="ignore", over="ignore"):
            integrand = np.exp(2.0 * np.log(probability) + log_dy)
        return float(np.sum((half * _LEGENDRE[1]).ravel() * integrand))
