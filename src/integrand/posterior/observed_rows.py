"""One row of an observed mixture at a time: distribution functions of many y, quantiles, and CRPS sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.optimize.elementwise import find_root
from scipy.special import ndtri

from integrand.likelihoods import Likelihood, Numbers
from integrand.posterior.rows import BLOCK_ELEMENTS, Array

# Nodes of one panel of an integral or a sum, and how many panels the means of f are divided into at most.
PANEL_NODES = 10
MOST_PANELS = 4_000
# Nodes in f that the draws of a row may share; beyond, each draw is integrated on its own.
MOST_SHARED = 1_000


class Row:
    """One row: F at many y, in blocks."""

    def __init__(self, likelihood: Likelihood, mean: Array, variance: Array, noise: Array):
        self.likelihood, self.mean, self.variance, self.noise = likelihood, mean, variance, noise

    def cdf(self, y: Array) -> Array:
        """F at each y."""

        def of_block(y: np.ndarray) -> Array:
            draws = self.likelihood.continued_cdf(y[:, None], self.mean, self.variance, self.noise)
            return np.mean(draws, axis=1)

        return _in_blocks(of_block, y, len(self.mean))


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
        edges, least = [y], float(np.ptp(self.mean)) / MOST_PANELS
        while (x := edges[-1]) < end:
            step = 1.5 * float(np.min(np.hypot(scale, 0.5 * (x - self.mean))))
            edges.append(min(max(x + max(step, least), float(np.nextafter(x, np.inf))), end))
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
        # The largest count whose F, as narrow in f as 1/√count, a grid of MOST_SHARED nodes resolves.
        with np.errstate(divide="ignore", invalid="ignore"):
            finest = 2.0 * math.pi * MOST_SHARED / np.float64(self.high - self.low)
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
        p = np.minimum(p, 1.0 - 1e-12)  # F is not known better, and may never reach more
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
            least = np.exp(np.min(self.mean - 6.5 * sd))
            most = min(np.exp(np.max(self.mean + sd * (0.5 * sd + 5.5))), 1e300)
        # Bernstein's bound of a Poisson tail: below `first` F is 0, from `last` on it is 1, to 1e-9.
        first = max(0.0, math.floor(least - math.sqrt(40.0 * least)))
        last = math.ceil(most + 20 / 3 + math.sqrt(400 / 9 + 40.0 * most))
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
            size = min(max(_rounded(width), PANEL_NODES, start // MOST_PANELS), end - start)
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


def average(of_draws: Numbers) -> Array:
    """The mean over draws, along the first axis."""
    return np.mean(of_draws, axis=0)


def _in_blocks(function: Callable[[np.ndarray], Array], x: np.ndarray, columns: int) -> Array:
    """``function(x)`` where that makes a temporary of as many columns."""
    step = max(1, BLOCK_ELEMENTS // columns)
    return np.concatenate([np.zeros(0), *(function(x[i : i + step]) for i in range(0, len(x), step))])


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

        def of_block(i: np.ndarray) -> Array:
            m, v = sign[i] * mean[:, column[i]], variance[:, column[i]]
            return average(likelihood.marginal_cdf(x[i], m, v, noise))

        reached = _in_blocks(of_block, np.arange(len(x)), len(mean))
        return ndtri(np.maximum(reached, 1e-300)) - ndtri(tail)

    # At the largest median F is at least 1/2.
    high = np.max(sign * mean[:, column], axis=0)
    low = np.min(sign * mean[:, column], axis=0)
    step = np.max(np.sqrt(variance + np.square(noise)), axis=0)[column]
    while (above := np.flatnonzero(excess(low, sign, tail, column) >= 0)).size:
        low[above] -= step[above]
        step[above] *= 4.0
    tolerances = {"xatol": 0.0, "xrtol": 1e-15, "fatol": 1e-14, "frtol": 0.0}
    found = find_root(excess, (low, high), args=(sign, tail, column), tolerances=tolerances, maxiter=500)
    return (sign * found.x).reshape(shape)


def _rounded(size: float) -> float:
    """The next smaller number with three binary digits, so that few rules are made."""
    if size < 8:
        return math.floor(size)
    unit = 2.0 ** (math.floor(math.log2(size)) - 2)
    return unit * math.floor(size / unit)


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


def _unit_legendre(n: int) -> tuple[Array, Array]:
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return 0.5 * (nodes + 1.0), 0.5 * weights


_LEGENDRE = _unit_legendre(PANEL_NODES)
