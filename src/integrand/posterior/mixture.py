"""Predictive distributions of a fully Bayesian model: at each row a mixture with one component per draw.

`RowMixture` is what all of them share, `GaussianMixture` is that of the function and of Gaussian observations. Its
quantiles are found by Newton's method inside a bracket of doubles. For other likelihoods see `observed.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erf, logsumexp, ndtr, ndtri

from integrand.errors import InputError

Array = NDArray[np.float64]

# Elements of one temporary array (draws, points): 256 kB, so that the few in use at a time fit a processor's cache.
BLOCK_ELEMENTS = 32_768

# Newton steps of the quantile search; then it halves the set of doubles that are left, at most 64 times.
NEWTON_STEPS = 40
# A quantile is accepted where the smaller tail has its probability to this relative error: rounding of 400 terms.
RELATIVE_TOLERANCE = 1e-13

# A grid over a mixture reaches this many standard deviations beyond its components, in steps of half of the least one:
# both errors are below 1e-16.
GRID_REACH, GRID_STEP = 8.3, 0.5


class RowMixture(ABC):
    """Equal-weight mixture over J draws, separately at each of T rows."""

    means: Array  # (J, T), of f or of a transformed y
    variances: Array  # (J, T)

    @property
    @abstractmethod
    def variance(self) -> Array:
        """Of the mixture, shape (T,)."""

    @abstractmethod
    def cdf(self, y: ArrayLike) -> Array:
        """F(y) at y of shape (T,) or (K, T)."""

    @abstractmethod
    def _log_terms(self, y: Array, *components: Array) -> Any:
        """Log density of y under each draw, (J, rows)."""

    @abstractmethod
    def _quantiles(self, p: Array, *components: Array) -> Array:
        """Smallest q with F(q) ≥ p, (P, rows), for p of shape (P,)."""

    def _components(self, rows: slice) -> tuple[Array, ...]:
        """The parameters of all draws at some rows: by default means and standard deviations (J, rows)."""
        return self.means[:, rows], np.sqrt(self.variances[:, rows])

    @property
    def sd(self) -> Array:
        """Standard deviation of the mixture, shape (T,)."""
        return np.sqrt(self.variance)

    def pit(self, y: ArrayLike) -> Array:
        """Probability integral transform F(y); uniform on (0, 1) when calibrated, if y is continuous."""
        return self.cdf(y)

    def density(self, y: ArrayLike) -> Array:
        """p(y) at y of shape (T,) or (K, T)."""
        return np.exp(self.log_density(y))

    def log_density(self, y: ArrayLike) -> Array:
        """Log p(y), the log of the mean over draws, at y of shape (T,) or (K, T)."""
        log_draws = np.log(self.means.shape[0])
        return self._over_draws(y, lambda terms: logsumexp(terms, axis=0) - log_draws)

    def expected_log_density(self, y: ArrayLike) -> Array:
        """1/J Σ_j log p_j(y), by Jensen never above `log_density`; same shapes."""
        return self._over_draws(y, average)

    def quantile(self, p: ArrayLike) -> Array:
        """Smallest q with F(q) ≥ p; a whole number for counts and classes.

        Parameters
        ----------
        p : scalar or (P,), strictly between 0 and 1.

        Returns
        -------
        (T,) for a scalar p, else (P, T).
        """
        p = checked_levels(p)
        out = np.empty((p.size, self.means.shape[1]))
        for rows in self._row_blocks() if p.size else ():
            out[:, rows] = self._quantiles(p.ravel(), *self._components(rows))
        return out[0] if p.ndim == 0 else out

    def interval(self, level: float) -> tuple[Array, Array]:
        """Central interval: the quantiles at (1 - level)/2 and (1 + level)/2, each (T,)."""
        if not 0 < level < 1:
            raise InputError(f"level must lie strictly between 0 and 1, got {level}")
        lower, upper = self.quantile([(1 - level) / 2, (1 + level) / 2])
        return lower, upper

    def _drawn(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, Array]:
        """Which draw each of n values at each row is from, and its Gaussian value, (n, T)."""
        rows = np.arange(self.means.shape[1])
        draw = rng.integers(self.means.shape[0], size=(n, rows.size))
        noise = rng.standard_normal(draw.shape)
        return draw, self.means[draw, rows] + np.sqrt(self.variances[draw, rows]) * noise

    def _over_draws(self, y: ArrayLike, reduce: Callable[[Any], Array]) -> Array:
        """Apply ``reduce`` to the log p_j(y) of all draws, at every y."""
        return self._over_rows(y, lambda y, *components: reduce(self._log_terms(y, *components)))

    def _row_blocks(self) -> Iterator[slice]:
        draws, rows = self.means.shape
        step = max(1, BLOCK_ELEMENTS // draws)
        return (slice(start, start + step) for start in range(0, rows, step))

    def _over_rows(self, y: ArrayLike, value: Callable[..., Array]) -> Array:
        """``value(y, *components)``, which reduces the draws, at every y (T,) or (K, T), in blocks of rows."""
        y, out = self._checked(y)
        grid, result = np.atleast_2d(y), np.atleast_2d(out)
        for rows in self._row_blocks():
            components = self._components(rows)
            for k in range(len(grid)):
                result[k, rows] = value(grid[k, rows], *components)
        return out

    def _checked(self, y: ArrayLike) -> tuple[Array, Array]:
        """y of shape (T,) or (K, T), and an empty array of that shape."""
        y = finite_array(y, "y")
        if y.ndim not in (1, 2) or y.shape[-1] != self.means.shape[1]:
            raise InputError(f"y has shape {y.shape}; its last length must be the {self.means.shape[1]} rows")
        return y, np.empty(y.shape)


@dataclass(frozen=True, eq=False, repr=False)
class GaussianMixture(RowMixture):
    """Equal-weight mixture over J draws, separately at each of T rows.

    p_t(y) = 1/J Σ_j N(y; means[j, t], variances[j, t])

    Parameters
    ----------
    means : (J, T)
    variances : (J, T), non-negative; zero is a point mass.
    """

    means: Array
    variances: Array

    def __post_init__(self) -> None:
        means, variances = finite_array(self.means, "means"), finite_array(self.variances, "variances")
        if means.ndim != 2 or means.shape[0] == 0:
            raise InputError(f"means must have shape (draws, rows), at least one draw; got {means.shape}")
        if variances.shape != means.shape:
            raise InputError(f"variances have shape {variances.shape} but means {means.shape}")
        if (variances < 0).any():
            raise InputError(f"variances must not be negative; the smallest is {variances.min():.3g}")
        if np.signbit(variances).any():
            # A variance of -0.0 would turn the sign of a quotient.
            variances = np.abs(variances)
        for name, array in (("means", means), ("variances", variances)):
            view = array.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    def __repr__(self) -> str:
        return f"GaussianMixture(draws={self.means.shape[0]}, rows={self.means.shape[1]})"

    @property
    def mean(self) -> Array:
        """Mean of the mixture, 1/J Σ_j μ_j, shape (T,)."""
        out = np.empty(self.means.shape[1])
        for rows in self._row_blocks():
            mu = self.means[:, rows]
            # Differences to one draw: a common offset such as 1e9 then costs no digits.
            out[rows] = mu[0] + (mu - mu[0]).mean(axis=0)
        return out

    @property
    def variance(self) -> Array:
        """Law of total variance, 1/J Σ_j s_j² + 1/J Σ_j (μ_j - mean)², shape (T,)."""
        mean, out = self.mean, self.variances.mean(axis=0)
        for rows in self._row_blocks():
            out[rows] += ((self.means[:, rows] - mean[rows]) ** 2).mean(axis=0)
        return out

    def cdf(self, y: ArrayLike) -> Array:
        """F(y) = 1/J Σ_j Φ((y - μ_j)/s_j) at y of shape (T,) or (K, T)."""
        return self._over_rows(y, lambda y, mu, s: ndtr(standardised(y, mu, s)).mean(axis=0))

    def _log_terms(self, y: Array, *components: Array) -> Array:
        return log_normal(y, *components)

    def _quantiles(self, p: Array, *components: Array) -> Array:
        """As in `RowMixture`, and |F(q) - p| ≤ 1e-12 where F is continuous and doubles near q are fine enough.

        Otherwise (a step of F, or a spread below the spacing of doubles) q is a double next to where F passes p.
        """
        return np.array([gaussian_quantile(float(level), *components) for level in p])

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score ∫ (F(x) - 1{y ≤ x})² dx at y of shape (T,) or (K, T).

        1/J Σ_j A(y - μ_j, s_j) - 1/(2J²) Σ_jk A(μ_j - μ_k, √(s_j² + s_k²)), where
        A(m, s) = E|N(m, s²)| = 2 s φ(m/s) + m (2Φ(m/s) - 1) (Grimit et al., 2006). The second term is also
        ∫ F (1 - F) dx: by the trapezoidal rule where that is less work than all pairs, and as accurate.
        """
        first = self._over_rows(y, lambda y, mu, s: _expected_absolute(y - mu, s).mean(axis=0))
        spread = np.empty(self.means.shape[1])
        for rows in self._row_blocks():
            mu, s = self._components(rows)
            low, high = (mu - GRID_REACH * s).min(axis=0), (mu + GRID_REACH * s).max(axis=0)
            with np.errstate(divide="ignore", invalid="ignore"):
                points = np.ceil((high - low) / (GRID_STEP * s.min(axis=0)))
            grid = points < len(mu) / 3  # not where a component is a point mass, or nearly one
            at = np.arange(self.means.shape[1])[rows]
            spread[at[grid]] = _spread_on_grid(mu[:, grid], s[:, grid], low[grid], high[grid], points[grid])
            spread[at[~grid]] = _spread_of_pairs(mu[:, ~grid], s[:, ~grid])
        return np.maximum(first - spread, 0.0)

    def sample(self, rng: np.random.Generator, n: int) -> Array:
        """Draw n independent values at each row, (n, T); rows are independent of each other."""
        return self._drawn(rng, n)[1]

    def transformed(self, shift: ArrayLike, scale: ArrayLike) -> GaussianMixture:
        """Return the mixture of scale·f + shift; both are scalars or (T,), and scale > 0."""
        shift, scale = finite_array(shift, "shift"), finite_array(scale, "scale")
        for name, value in (("shift", shift), ("scale", scale)):
            if value.shape not in ((), self.means.shape[1:]):
                raise InputError(f"{name} must be a number or one per row, got shape {value.shape}")
        if (scale <= 0).any():
            raise InputError("scale must be positive")
        return GaussianMixture(self.means * scale + shift, self.variances * scale**2)

    def plus_noise(self, noise_variance: ArrayLike) -> GaussianMixture:
        """Return the mixture of f + ε, ε ~ N(0, noise_variance), per draw (J,) or per draw and row (J, T)."""
        noise = finite_array(noise_variance, "noise_variance")
        if noise.shape not in (self.means.shape, self.means.shape[:1]):
            draws, rows = self.means.shape
            raise InputError(f"noise_variance must have shape ({draws},) or ({draws}, {rows}), got {noise.shape}")
        if (noise < 0).any():
            raise InputError("noise_variance must not be negative")
        return GaussianMixture(self.means, self.variances + noise.reshape(len(noise), -1))


def average(values: Any) -> Array:
    """The mean over draws, along the first axis."""
    return np.mean(values, axis=0)


def gaussian_quantile(p: float, mu: Array, s: Array) -> Array:
    """Solve F(q) = p for every column of μ and s (J, A): Newton inside a shrinking bracket.

    For p > 1/2 the upper tail 1 - F is compared with 1 - p, so both ends keep their relative precision.
    Newton acts on Φ⁻¹(F(q)), a straight line for one Gaussian.
    """
    sign, tail = (1.0, p) if p <= 0.5 else (-1.0, 1.0 - p)
    component_quantiles = mu + s * ndtri(p)
    # Just below the smallest component quantile F cannot have reached p.
    low, high = np.nextafter(component_quantiles.min(axis=0), -np.inf), component_quantiles.max(axis=0)
    x, last_gap = component_quantiles.mean(axis=0), np.full(low.shape, np.inf)

    # Where all components are point masses, F is a staircase with steps of 1/J.
    staircase = ~(s > 0).any(axis=0)
    first = np.searchsorted(np.arange(1, len(mu) + 1) / len(mu), p)
    high[staircase] = np.sort(mu[:, staircase], axis=0)[first]

    active = np.flatnonzero(~staircase & (np.nextafter(low, np.inf) < high))
    steps = 0
    while active.size:
        current, a, b = x[active], low[active], high[active]
        value, slope = _tail_and_density(current, mu[:, active], s[:, active], sign)
        solved = np.abs(value - tail) <= RELATIVE_TOLERANCE * tail
        reached = solved | (value >= tail if sign > 0 else value <= tail)
        a, b = np.where(reached, a, current), np.where(reached, current, b)
        if steps < NEWTON_STEPS:
            gap = ndtri(tail) - ndtri(value)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                move = sign * gap * np.exp(-0.5 * ndtri(value) ** 2) / (np.sqrt(2 * np.pi) * slope)
            x[active] = _next_trial(current, a, b, move, np.abs(gap) < 0.5 * last_gap[active])
            last_gap[active] = np.abs(gap)
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


def standardised(y: Array, mu: Array, s: Array) -> Array:
    """(y - μ)/s; for s = 0 plus infinity from the point mass on, minus infinity before it."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = (y - mu) / s
    return np.where(np.isnan(z), np.inf, z)


def log_normal(y: Array, mu: Array, s: Array) -> Array:
    """Log N(y; μ, s²); for s = 0 plus infinity on the point mass, minus infinity elsewhere."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value = -0.5 * ((y - mu) / s) ** 2 - np.log(s) - 0.5 * np.log(2 * np.pi)
    return np.where(s > 0, value, np.where(y == mu, np.inf, -np.inf))


def _expected_absolute(m: Array, s: Array) -> Array:
    """E|N(m, s²)| = 2 s φ(m/s) + m (2Φ(m/s) - 1), which is |m| for s = 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = m / s
        value = np.sqrt(2 / np.pi) * s * np.exp(-0.5 * z**2) + m * erf(z / np.sqrt(2))
    return np.where(s > 0, value, np.abs(m))


def _spread_of_pairs(mu: Array, s: Array) -> Array:
    """1/(2J²) Σ_jk A(μ_j - μ_k, √(s_j² + s_k²)) for every column of μ and s (J, A)."""
    # The terms j = k: A(0, √2 s) = 2 s/√π. The others come in equal pairs, so half suffice.
    total, variance = (s / np.sqrt(np.pi)).sum(axis=0), s**2
    for j in range(1, len(mu)):
        total += _expected_absolute(mu[:j] - mu[j], np.sqrt(variance[:j] + variance[j])).sum(axis=0)
    return total / len(mu) ** 2


def _spread_on_grid(mu: Array, s: Array, low: Array, high: Array, points: Array) -> Array:
    """∫ F (1 - F) dx for every column of μ and s (J, A), by the trapezoidal rule from `low` to `high`.

    The integrand is smooth and vanishes at both ends, so the error falls like exp(-(π s/h)²) with the step h.
    """
    total, h = np.zeros(len(low)), (high - low) / np.maximum(points, 1.0)
    offset = low - mu  # differences of components: a common offset such as 1e9 then costs no digits
    for k in range(1, int(points.max(initial=0.0))):
        F = ndtr((offset + k * h) / s).mean(axis=0)
        total += F * (1.0 - F)  # beyond `high` this is zero
    return total * h


def finite_array(value: ArrayLike, name: str) -> Array:
    """Return ``value`` as float64; raise `InputError` naming ``name`` unless it is numeric and finite."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}") from error
    if not np.isfinite(array).all():
        raise InputError(f"{name} has NaN or infinite entries; remove or replace them")
    return array


def checked_levels(p: ArrayLike, name: str = "p") -> Array:
    """Probabilities of quantiles: a scalar or (P,), strictly between 0 and 1."""
    p = finite_array(p, name)
    if p.ndim > 1 or not ((p > 0) & (p < 1)).all():
        outside = p[(p <= 0) | (p >= 1)]
        percent = [value for value in outside if 0 < value < 100]
        hint = f": write {percent[0] / 100:g} for {percent[0]:g} %" if percent else ""
        raise InputError(f"{name} must be a number or a list of numbers strictly between 0 and 1{hint}")
    return p
