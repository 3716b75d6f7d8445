"""What predictive mixtures share: a distribution at each of T rows, averaged over J draws, by blocks of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from integrand.errors import InputError

Array = NDArray[np.float64]

# Elements of one (draws, points) temporary: the few alive at once fit a processor's cache.
BLOCK_ELEMENTS = 32_768


def finite_array(value: ArrayLike, name: str) -> Array:
    """Return ``value`` as float64; raise `InputError` naming ``name`` unless it is numeric and finite."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}") from error
    if not np.isfinite(array).all():
        raise InputError(f"{name} has NaN or infinite entries; remove or replace them")
    return array


def checked_levels(p: ArrayLike) -> Array:
    """Probabilities of quantiles: a scalar or (P,), strictly between 0 and 1."""
    p = finite_array(p, "p")
    if p.ndim > 1 or not ((p > 0) & (p < 1)).all():
        raise InputError("p must be a number or a list of numbers strictly between 0 and 1")
    return p


class RowMixture(ABC):
    """Equal-weight mixture over J draws, separately at each of T rows."""

    means: Array  # (J, T)

    @property
    @abstractmethod
    def variance(self) -> Array:
        """Of the mixture, shape (T,)."""

    @abstractmethod
    def cdf(self, y: ArrayLike) -> Array:
        """F(y) at y of shape (T,) or (K, T)."""

    @abstractmethod
    def log_density(self, y: ArrayLike) -> Array:
        """Log p(y) at y of shape (T,) or (K, T)."""

    @abstractmethod
    def quantile(self, p: ArrayLike) -> Array:
        """Smallest q with F(q) ≥ p: (T,) for a scalar p, else (P, T)."""

    @abstractmethod
    def _components(self, rows: slice) -> tuple[Any, ...]:
        """The parameters of all draws at some rows."""

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

    def interval(self, level: float) -> tuple[Array, Array]:
        """Central interval: the quantiles at (1 - level)/2 and (1 + level)/2, each (T,)."""
        if not 0 < level < 1:
            raise InputError(f"level must lie strictly between 0 and 1, got {level}")
        lower, upper = self.quantile([(1 - level) / 2, (1 + level) / 2])
        return lower, upper

    def _row_blocks(self) -> Iterator[slice]:
        draws, rows = self.means.shape
        step = max(1, BLOCK_ELEMENTS // draws)
        return (slice(start, start + step) for start in range(0, rows, step))

    def _at(self, y: ArrayLike, value: Callable[..., Array]) -> Array:
        """Apply ``value(y, *components)``, which reduces the draws, at every y (T,) or (K, T), in blocks of rows."""
        y, out = self._checked(y)
        grid, result = np.atleast_2d(y), np.atleast_2d(out)
        for rows in self._row_blocks():
            components = self._components(rows)
            for k in range(len(grid)):
                result[k, rows] = value(grid[k, rows], *components)
        return out

    def _checked(self, y: ArrayLike) -> tuple[Array, Array]:
        """y of shape (T,) or (K, T), and room for as many results."""
        y = finite_array(y, "y")
        if y.ndim not in (1, 2) or y.shape[-1] != self.means.shape[1]:
            raise InputError(f"y has shape {y.shape}; its last length must be the {self.means.shape[1]} rows")
        return y, np.empty(y.shape)
