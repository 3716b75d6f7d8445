"""One pass over rows on disk: their moments, ranges and a uniform sample, by parts that are put together afterwards."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from integrand.data.disk import RowsOnDisk
from integrand.data.scaling import ROUNDING_UNITS, Standardiser

_BLOCK_ROWS = 65_536


class Survey(NamedTuple):
    """What was seen of some rows; the target is the last column."""

    n_rows: int
    mean: Float[np.ndarray, " columns"]
    squares: Float[np.ndarray, " columns"]  # Σ (value - mean)²
    low: Float[np.ndarray, " columns"]
    high: Float[np.ndarray, " columns"]

    def then(self, other: "Survey") -> "Survey":
        """Both parts as one (Chan, Golub & LeVeque 1979): no large sums are subtracted."""
        n = self.n_rows + other.n_rows
        shift = other.mean - self.mean
        return Survey(
            n,
            self.mean + shift * (other.n_rows / n),
            self.squares + other.squares + shift**2 * (self.n_rows * other.n_rows / n),
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    def standardiser(self) -> Standardiser:
        """Mean and population sd; a column that is constant up to rounding becomes zero."""
        rounding = ROUNDING_UNITS * np.finfo(float).eps * np.maximum(np.abs(self.low), np.abs(self.high))
        sd = np.sqrt(self.squares / self.n_rows)
        sd = np.where((self.high - self.low > rounding) & (sd > 0), sd, 1.0)
        return Standardiser(self.mean[:-1], sd[:-1], self.mean[-1], sd[-1])


def chosen_rows(rng: np.random.Generator, n_rows: int, wanted: int) -> np.ndarray:
    """Numbers of `wanted` rows, or of all if there are no more, in order."""
    return np.arange(n_rows) if n_rows <= wanted else np.sort(rng.choice(n_rows, wanted, replace=False))


def survey(rows: RowsOnDisk, chosen: np.ndarray) -> tuple[Survey, Float[np.ndarray, "K columns"]]:
    """Moments and ranges of all rows, and the chosen ones among them, in one pass."""
    seen: Survey | None = None
    sample = np.zeros((len(chosen), rows.n_columns + 1))
    for first in range(0, rows.n_rows, _BLOCK_ROWS):
        table = rows.read(first, min(first + _BLOCK_ROWS, rows.n_rows))
        mean = table.mean(axis=0)
        mean = mean + (table - mean).mean(axis=0)  # what rounding of the large sum lost
        block = Survey(len(table), mean, ((table - mean) ** 2).sum(axis=0), table.min(axis=0), table.max(axis=0))
        seen = block if seen is None else seen.then(block)
        here = slice(*np.searchsorted(chosen, [first, first + len(table)]))
        sample[here] = table[chosen[here] - first]
    assert seen is not None
    return seen, sample


def combined(parts: Sequence[Survey]) -> Survey:
    """All parts as one."""
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.then(part)
    return whole
