"""Standardising data to zero mean and unit variance for the fit, and turning results back into the user's units."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from integrand.data.checks import checked_matrix, checked_rows
from integrand.errors import InputError

# A spread of at most this many rounding units is noise of the number format, not information.
ROUNDING_UNITS = 4

# Added to every standard deviation in the runs behind the paper.
PAPER_OFFSET = 1e-6


@dataclass(frozen=True, eq=False)
class Standardiser:
    """An affine map per column of X and one for y: `(value - mean) / sd`.

    Build one with `fit`, `paper` or `identity`. Takes and returns NumPy float64, so that nothing is lost to
    JAX's float32 default at the edge of the library.

    Attributes
    ----------
    x_mean, x_sd
        Shape (D,), read-only.
    y_mean, y_sd
        Numbers.
    """

    x_mean: np.ndarray
    x_sd: np.ndarray
    y_mean: float
    y_sd: float

    def __post_init__(self):
        for name in ("x_mean", "x_sd"):
            values = np.array(getattr(self, name), dtype=np.float64)
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        object.__setattr__(self, "y_mean", float(self.y_mean))
        object.__setattr__(self, "y_sd", float(self.y_sd))
        if self.x_mean.ndim != 1 or self.x_mean.shape != self.x_sd.shape:
            raise InputError(
                "x_mean and x_sd must be two vectors of one length, "
                f"but have shapes {self.x_mean.shape} and {self.x_sd.shape}"
            )
        sds = np.append(self.x_sd, self.y_sd)
        if not (np.all(np.isfinite(sds)) and np.all(sds > 0)):
            raise InputError("x_sd and y_sd must be positive and finite: use 1 for a constant column")

    @classmethod
    def fit(cls, X: Any, y: Any) -> "Standardiser":
        """Mean and population standard deviation (ddof=0) of each column of X (N, D) and of y (N,).

        A constant column, or one whose values differ by rounding only, gets sd 1: it becomes zero.
        """
        X, y = checked_rows(X, y)
        (x_mean, x_sd), (y_mean, y_sd) = _moments(X), _moments(y[:, None])
        return cls(x_mean, np.where(x_sd > 0, x_sd, 1.0), y_mean[0], y_sd[0] if y_sd[0] > 0 else 1.0)

    @classmethod
    def paper(cls, X: Any, y: Any) -> "Standardiser":
        """Mean and (1e-6 + population sd), as in the runs behind the paper.

        Those runs scale the *whole* set before splitting (the text says the training set): pass all rows.
        """
        X, y = checked_rows(X, y)
        (x_mean, x_sd), (y_mean, y_sd) = _moments(X), _moments(y[:, None])
        return cls(x_mean, PAPER_OFFSET + x_sd, y_mean[0], PAPER_OFFSET + y_sd[0])

    @classmethod
    def identity(cls, n_columns: int) -> "Standardiser":
        """Change nothing: for data that are already in the scale of the priors."""
        return cls(np.zeros(n_columns), np.ones(n_columns), 0.0, 1.0)

    def leaving(self, columns: Collection[int]) -> "Standardiser":
        """The same map for all columns of X but these, which stay as they are: they hold codes of categories."""
        if not columns:
            return self
        left = np.isin(np.arange(len(self.x_mean)), list(columns))
        x_mean, x_sd = np.where(left, 0.0, self.x_mean), np.where(left, 1.0, self.x_sd)
        return Standardiser(x_mean, x_sd, self.y_mean, self.y_sd)

    def transform_X(self, X: Any) -> np.ndarray:
        """X (T, D) in units of standard deviations."""
        X = checked_matrix(X, "X")
        self._check_columns(X)
        return (X - self.x_mean) / self.x_sd

    def inverse_X(self, X: Any) -> np.ndarray:
        """Scaled inputs (..., D), for instance inducing inputs of every draw, in original units."""
        X = np.asarray(X, dtype=np.float64)
        self._check_columns(X)
        return X * self.x_sd + self.x_mean

    def transform_y(self, y: Any) -> np.ndarray:
        """Values of y, any shape, in units of standard deviations."""
        return (np.asarray(y, dtype=np.float64) - self.y_mean) / self.y_sd

    def inverse_y(self, y: Any) -> np.ndarray:
        """Scaled values or means of y, any shape, in original units."""
        return np.asarray(y, dtype=np.float64) * self.y_sd + self.y_mean

    def transform_variance(self, variance: Any) -> np.ndarray:
        """Variances in squared units of y, any shape, for scaled y."""
        return np.asarray(variance, dtype=np.float64) / self.y_sd**2

    def transform_rows(self, table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """X, y and known noise variances (or None) of checked rows, with y behind X and the variances behind y."""
        D = len(self.x_mean)
        X, y = (table[:, :D] - self.x_mean) / self.x_sd, self.transform_y(table[:, D])
        return X, y, self.transform_variance(table[:, D + 1]) if table.shape[1] > D + 1 else None

    def _check_columns(self, X: np.ndarray) -> None:
        if X.ndim == 0 or X.shape[-1] != len(self.x_mean):
            raise InputError(
                f"X has shape {X.shape} but the scaling was fitted to {len(self.x_mean)} columns: "
                "pass the columns of the training data, in the same order"
            )


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population sd of each column; sd 0 where a column is constant up to rounding."""
    mean = np.mean(values, axis=0)
    # The second pass finds what rounding of the large sum lost (an offset of 1e9, a constant 0.1).
    mean = mean + np.mean(values - mean, axis=0)
    deviation = values - mean
    # The mean itself is rounded; what it missed must not enter the spread.
    deviation = deviation - np.mean(deviation, axis=0)
    # Dividing by the largest deviation first keeps the squares of 1e-200 and 1e200 in range.
    largest = np.max(np.abs(deviation), axis=0)
    unit = np.where(largest > 0, largest, 1.0)
    sd = unit * np.sqrt(np.mean((deviation / unit) ** 2, axis=0))
    spread = np.max(values, axis=0) - np.min(values, axis=0)
    rounding = ROUNDING_UNITS * np.finfo(np.float64).eps * np.max(np.abs(values), axis=0)
    return mean, np.where(spread > rounding, sd, 0.0)
