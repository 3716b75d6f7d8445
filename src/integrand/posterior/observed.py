"""Predictive distributions of observations that are not Gaussian: classes, counts, values with outliers.

`ObservedMixture` averages p(y | θ) over the draws, in blocks of rows. Where a score or quantile needs F at many y, a
`Row` does it one row at a time: `ContinuousRow` by Gauss rules on panels, `CountsRow` by Gauss rules for sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize.elementwise import find_root
from scipy.special import ndtri

from integrand.errors import InputError
from integrand.likelihoods import Likelihood, Numbers
from integrand.posterior.mixture import (
    BLOCK_ELEMENTS,
    Array,
    GaussianMixture,
    RowMixture,
    average,
    checked_levels,
    finite_array,
)

# Nodes of one panel of an integral or a sum: a rule with 10 is exact for polynomials of degree 19.
PANEL_NODES = 10
# Panels into which the range of the means of f is divided, at most: a bound on time where draws lie far apart.
MAX_PANELS = 4_000
# Nodes in f that the draws of a row may share; where more are needed, each draw is integrated separately.
MAX_SHARED_NODES = 1_000


@dataclass(frozen=True, eq=False, repr=False)
class ObservedMixture(RowMixture):
    """Equal-weight mixture over J draws of what is observed, separately at each of T rows.

    p_t(y) = 1/J Σ_j ∫ p(y | f, noise_j) N(f; means[j, t], variances[j, t]) df

    For counts and classes p_t is a probability, for the others a density. Log densities are good to 1e-9, in
    the tails too, distribution functions to 1e-10, scores to 1e-7 of their value.

    Parameters
    ----------
    likelihood : how y depends on f.
    means : (J, T), of f.
    variances : (J, T), of f, non-negative; zero is a point mass.
    noise : (J,), positive; not asked for by a likelihood without noise.
    """

    likelihood: Likelihood
    means: Array
    variances: Array
    noise: Array = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if not isinstance(self.likelihood, Likelihood):
            raise InputError(f"likelihood must be one such as Poisson(), not {self.likelihood!r}")
        latent = GaussianMixture(self.means, self.variances)
        draws = latent.means.shape[0]
        if self.likelihood.has_noise:
            noise = finite_array(self.noise, "noise")
            if noise.shape != (draws,) or not (noise > 0).all():
                raise InputError(f"noise must be {draws} positive numbers, one a draw; got shape {noise.shape}")
        else:
            noise = np.ones(draws)
        view = noise.view()
        view.flags.writeable = False
        for name, array in (("means", latent.means), ("variances", latent.variances), ("noise", view)):
            object.__setattr__(self, name, array)

    def __repr__(self) -> str:
        return f"ObservedMixture({self.likelihood!r}, draws={self.means.shape[0]}, rows={self.means.shape[1]})"

    @property
    def mean(self) -> Array:
        """Mean of the mixture, 1/J Σ_j E_j[y], shape (T,)."""
        out = np.empty(self.means.shape[1])
        for rows in self._row_blocks():
            draw_means = np.asarray(self.likelihood.marginal_mean(*self._components(rows)))
            # Differences to one draw: a common offset such as 1e9 then costs no digits.
            base = np.where(np.isfinite(draw_means[0]), draw_means[0], 0.0)
            out[rows] = base + average(draw_means - base)
        return out

    @property
    def variance(self) -> Array:
        """Law of total variance, 1/J Σ_j Var_j[y] + 1/J Σ_j (E_j[y] - mean)², shape (T,)."""
        mean, out = self.mean, np.empty(self.means.shape[1])
        for rows in self._row_blocks():
            f = self._components(rows)
            with np.errstate(over="ignore", invalid="ignore"):
                between = np.square(self.likelihood.marginal_mean(*f) - mean[rows])
                within = self.likelihood.marginal_variance(*f)
            out[rows] = np.where(np.isfinite(mean[rows]), average(within + between), np.inf)
        return out

    @property
    def probability(self) -> Array:
        """P(y = 1) of a likelihood of classes, shape (T,)."""
        if not self._binary:
            raise InputError(f"a {self.likelihood.name} likelihood has no classes; ask for its mean, cdf or quantile")
        return self.mean

    def cdf(self, y: ArrayLike) -> Array:
        """F(y) = P(Y ≤ y) at y of shape (T,) or (K, T)."""
        if self.likelihood.discrete and not self._binary:
            return self._each_row(y, lambda row, y: row.cdf(np.floor(y)))
        return self._over_rows(y, lambda y, *f: average(self.likelihood.marginal_cdf(y, *f)))

    def quantile(self, p: ArrayLike) -> Array:
        """Smallest q with F(q) ≥ p; a whole number for counts and classes. See `RowMixture.quantile`."""
        if not self.likelihood.discrete:
            return super().quantile(p)
        p = checked_levels(p)
        levels, out = p.reshape(-1, 1), np.empty((p.size, self.means.shape[1]))
        if self._binary:
            out[:] = self.cdf(np.zeros(out.shape[1])) < levels
        else:
            out[:] = self._each_row(np.broadcast_to(levels, out.shape), lambda row, p: row.quantile(p))
        return out[0] if p.ndim == 0 else out

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score ∫ (F(x) - 1{y ≤ x})² dx at y of shape (T,) or (K, T).

        A sum over whole numbers for counts; (y - P(y = 1))², the Brier score, for classes. Infinite for
        a Student-t with df ≤ 1/2.
        """
        y = finite_array(y, "y")
        self.likelihood.check_y(y)
        if self._binary:
            return self._over_rows(y, lambda y, *f: np.square(average(self.likelihood.marginal_mean(*f)) - y))
        return self._each_row(y, lambda row, y: np.array([row.crps(float(value)) for value in y]))

    def sample(self, rng: np.random.Generator, n: int) -> Array:
        """Draw n independent values at each row, (n, T); rows are independent of each other."""
        draw, f = self._drawn(rng, n)
        return np.asarray(self.likelihood.sample(rng, f, self.noise[draw]), float)

    @property
    def _binary(self) -> bool:
        return self.likelihood.largest == 1

    def _components(self, rows: slice) -> tuple[Array, Array, Array]:
        """Means, variances (J, rows) and noise (J, 1)."""
        return self.means[:, rows], self.variances[:, rows], self.noise[:, None]

    def _over_draws(self, y: ArrayLike, reduce: Callable[[Numbers], Array]) -> Array:
        """At every y that can be an observation."""
        y = finite_array(y, "y")
        self.likelihood.check_y(y)
        return super()._over_draws(y, reduce)

    def _log_terms(self, y: Array, *components: Array) -> Numbers:
        return self.likelihood.marginal_log_prob(y, *components)

    def _quantiles(self, p: Array, *components: Array) -> Array:
        return continuous_quantile(self.likelihood, p[:, None], *components)

    def _each_row(self, y: ArrayLike, value: Callable[[Any, Array], Array]) -> Array:
        """Apply ``value(row, y)`` to all values (K,) of a row, row by row."""
        y, out = self._checked(y)
        grid, result = np.atleast_2d(y), np.atleast_2d(out)
        kind = CountsRow if self.likelihood.discrete else ContinuousRow
        for t in range(y.shape[-1]):
            row = kind(self.likelihood, self.means[:, t], self.variances[:, t], self.noise)
            result[:, t] = value(row, grid[:, t])
        return out


def continuous_quantile(likelihood: Likelihood, p: Array, mean: Array, variance: Array, noise: Array) -> Array:
    """Solve F(q) = p (P, 1) for every column of mean and variance (J, A) of a y that is symmetric about f.

    For p > 1/2 it is P(-Y ≤ -q) = 1 - p that is solved, so both ends keep their relative precision.
    """
    shape = len(p), mean.shape[1]
    sign = np.broadcast_to(np.where(p <= 0.5, 1.0, -1.0), shape).ravel()
    tail = np.broadcast_to(np.where(p <= 0.5, p, 1.0 - p), shape).ravel()
    column = np.broadcast_to(np.arange(shape[1]), shape).ravel()

    def excess(x: Array, sign: Array, tail: Array, column: np.ndarray) -> Array:
        """Φ⁻¹(P(±Y ≤ x)) - Φ⁻¹(tail), nearly a straight line."""

        def tail_of_block(i: np.ndarray) -> Array:
            m, v = sign[i] * mean[:, column[i]], variance[:, column[i]]
            return average(likelihood.marginal_cdf(x[i], m, v, noise))

        reached = _in_blocks(tail_of_block, np.arange(len(x)), len(mean))
        return ndtri(np.maximum(reached, 1e-300)) - ndtri(tail)

    # At the largest median F is at least 1/2.
    high = np.max(sign * mean[:, column], axis=0)
    low = np.min(sign * mean[:, column], axis=0)
    step = np.max(np.sqrt(variance + np.square(noise)), axis=0)[column]
    while (above := np.flatnonzero(excess(low, sign, tail, column) >= 0)).size:
        low[above] -= step[above]
        step[above] *= 4.0
    tolerances = {"xatol": 0.0, "xrtol": 1e-15, "fatol": 1e-14, "frtol": 0.0}
    root = find_root(excess, (low, high), args=(sign, tail, column), tolerances=tolerances, maxiter=500)
    return (sign * root.x).reshape(shape)


class Row:
    """One row: F at many y, in blocks."""

    def __init__(self, likelihood: Likelihood, mean: Array, variance: Array, noise: Array):
        self.likelihood, self.mean, self.variance, self.noise = likelihood, mean, variance, noise

    def cdf(self, y: Array) -> Array:
        """F at each y."""

        def cdf_of_block(y: np.ndarray) -> Array:
            draws = self.likelihood.continued_cdf(y[:, None], self.mean, self.variance, self.noise)
            return np.mean(draws, axis=1)

        return _in_blocks(cdf_of_block, y, len(self.mean))


class ContinuousRow(Row):
    """A row of y that is continuous, and symmetric about f."""

    def crps(self, y: float) -> float:
        """∫ F² below y and ∫ (1 - F)² above it."""
        if self.likelihood.tail_power <= 0.5:
            return math.inf
        return self._upper(y) + ContinuousRow(self.likelihood, -self.mean, self.variance, self.noise)._upper(-y)

    def _upper(self, y: float) -> float:
        """∫_y^∞ (1 - F(x))² dx, by panels as wide as F is smooth; beyond the last, 1 - F is a power of x."""
        power, scale = self.likelihood.tail_power, np.sqrt(self.variance + self.noise**2)
        reach = 7.0 if math.isinf(power) else min(1e4, 7.0 + math.sqrt(power) * math.exp(18.5 / power))
        end = max(float(np.nextafter(np.max(self.mean + reach * scale), np.inf)), y)
        edges, min_step = [y], float(np.ptp(self.mean)) / MAX_PANELS
        while (x := edges[-1]) < end:
            step = 1.5 * float(np.min(np.hypot(scale, 0.5 * (x - self.mean))))
            edges.append(min(max(x + max(step, min_step), float(np.nextafter(x, np.inf))), end))
        widths = np.diff(edges)[:, None]
        x = (np.array(edges[:-1])[:, None] + widths * _LEGENDRE[0]).ravel()
        total = float(np.sum((widths * _LEGENDRE[1]).ravel() * self._survival(x) ** 2))
        if math.isfinite(power):
            last = float(self._survival(np.array([end]))[0])
            total += (end - float(np.mean(self.mean))) * last**2 / (2.0 * power - 1.0)
        return total

    def _survival(self, x: Array) -> Array:
        """1 - F(x), which is F of the mirrored row at -x."""
        return Row(self.likelihood, -self.mean, self.variance, self.noise).cdf(-x)


class CountsRow(Row):
    """A row of counts. The draws share one likelihood, so their densities of f are averaged before F is taken."""

    def __init__(self, likelihood: Likelihood, mean: Array, variance: Array, noise: Array):
        super().__init__(likelihood, mean, variance, noise)
        sd = np.sqrt(variance)
        self.low, self.high = float(np.min(mean - 7.5 * sd)), float(np.max(mean + 7.5 * sd))
        # The largest count whose F, as narrow in f as 1/√count, a grid of MAX_SHARED_NODES nodes resolves.
        with np.errstate(divide="ignore", invalid="ignore"):
            finest = 2.0 * math.pi * MAX_SHARED_NODES / np.float64(self.high - self.low)
            self.largest = float(np.square(finest / 7.5) - np.square(20.0 / 7.5) - 1.0 - 1.0 / np.min(variance))
        self.limit = -1.0

    def cdf(self, y: Array) -> Array:
        """F at whole numbers, and smooth in between."""
        top = float(np.max(y, initial=0.0))
        if top > self.limit and self.limit < self.largest:
            self._share(min(4.0 * top + 16.0, self.largest))
        out, few = np.zeros(y.shape), (y >= 0) & (y <= self.limit)
        out[few] = _in_blocks(self._averaged, y[few], len(self.nodes)) if few.any() else 0.0
        many = (y >= 0) & ~few
        out[many] = super().cdf(y[many])
        return out

    def quantile(self, p: Array) -> Array:
        """Smallest whole number with F ≥ p: doubling, then halving."""
        p = np.minimum(p, 1.0 - 1e-12)  # the accuracy of F, which may never reach more
        low, high = np.full(p.shape, -1.0), np.ones(p.shape)
        while (short := self.cdf(high) < p).any():
            low, high = np.where(short, high, low), np.where(short, 2.0 * high + 1.0, high)
        while True:
            middle = np.floor(low + 0.5 * (high - low))
            if not ((middle > low) & (middle < high)).any():
                return high
            reached = self.cdf(middle) >= p
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)

    def crps(self, y: float) -> float:
        """Σ_{k<y} F(k)² + Σ_{k≥y} (1 - F(k))², term by term while there are few, else by Gauss rules for sums."""
        sd = np.sqrt(self.variance)
        with np.errstate(over="ignore"):
            low_rate = np.exp(np.min(self.mean - 6.5 * sd))
            high_rate = min(np.exp(np.max(self.mean + sd * (0.5 * sd + 5.5))), 1e300)
        # Bernstein's bound of a Poisson tail: below `first` F is 0, from `last` on it is 1, to 1e-9.
        first = max(0.0, math.floor(low_rate - math.sqrt(40.0 * low_rate)))
        last = math.ceil(high_rate + 20 / 3 + math.sqrt(400 / 9 + 40.0 * high_rate))
        total = max(first - y, 0.0) + max(y - last, 0.0)
        k, weights = self._summands(first, min(y, last))
        total += float(np.sum(weights * self.cdf(k) ** 2))
        k, weights = self._summands(max(y, first), last)
        return total + float(np.sum(weights * (1.0 - self.cdf(k)) ** 2))

    def _summands(self, start: float, end: float) -> tuple[Array, Array]:
        """Nodes and weights for a sum over the whole numbers from start to end - 1."""
        nodes, weights = [np.zeros(0)], [np.zeros(0)]
        spread = float(np.min(self.variance))
        while start < end:
            # The narrowest that a draw's distribution of y can be around here.
            width = 3.0 * start * math.sqrt(min(spread + 1.0 / max(start, 1.0), 0.4))
            size = min(max(_rounded(width), PANEL_NODES, start // MAX_PANELS), end - start)
            x, w = sum_rule(size)
            nodes.append(start + x)
            weights.append(w)
            start += size
        return np.concatenate(nodes), np.concatenate(weights)

    def _share(self, limit: float) -> None:
        """Nodes in f and weights, 1/J Σ_j N(node; mean_j, variance_j) times the step, for counts up to a limit."""
        self.limit = limit
        bandwidth = math.sqrt(20.0**2 + 7.5**2 * (limit + 1.0 + 1.0 / float(np.min(self.variance))))
        self.nodes = np.linspace(self.low, self.high, 2 + int((self.high - self.low) * bandwidth / (2.0 * math.pi)))

        def density(f: np.ndarray) -> Array:
            exponents = np.square(f[:, None] - self.mean) / self.variance
            return np.exp(-0.5 * exponents) @ (1.0 / np.sqrt(self.variance))

        weights = _in_blocks(density, self.nodes, len(self.mean))
        self.weights = weights / weights.sum()

    def _averaged(self, y: Array) -> Array:
        return np.asarray(self.likelihood.continued_cdf(y[:, None], self.nodes, 0.0, 1.0)) @ self.weights


@lru_cache(maxsize=1024)
def sum_rule(size: float) -> tuple[Array, Array]:
    """Nodes and weights for Σ_{k<size} g(k), exact for polynomials of degree 19, and for every g up to 10 terms.

    The Gauss rule of the discrete Chebyshev (Gram) polynomials, from their recurrence (Golub and Welsch, 1969).
    """
    if size <= PANEL_NODES:
        return np.arange(size), np.ones(int(size))
    n = np.arange(1.0, PANEL_NODES)
    # In units of the size, so that a large one does not overflow.
    beta = n**2 * (1.0 - (n / size) ** 2) / (4.0 * (4.0 * n**2 - 1.0))
    nodes, vectors = np.linalg.eigh(np.diag(np.sqrt(beta), 1) + np.diag(np.sqrt(beta), -1))
    return size * nodes + 0.5 * (size - 1.0), size * vectors[0] ** 2


def _rounded(size: float) -> float:
    """The next smaller number with three binary digits, so that few different rules are computed."""
    if size < 8:
        return math.floor(size)
    unit = 2.0 ** (math.floor(math.log2(size)) - 2)
    return unit * math.floor(size / unit)


def _unit_legendre(n: int) -> tuple[Array, Array]:
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return 0.5 * (nodes + 1.0), 0.5 * weights


_LEGENDRE = _unit_legendre(PANEL_NODES)


def _in_blocks(function: Callable[[np.ndarray], Array], x: np.ndarray, columns: int) -> Array:
    """``function(x)`` where that makes a temporary of as many columns."""
    step = max(1, BLOCK_ELEMENTS // columns)
    return np.concatenate([np.zeros(0), *(function(x[i : i + step]) for i in range(0, len(x), step))])
