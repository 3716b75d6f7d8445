"""Where the rows of a fit come from: arrays in memory, or a table on disk that one process or several read."""

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, final

import numpy as np

from integrand.data.dataset import Dataset, block_rows_for
from integrand.data.disk import RowsOnDisk
from integrand.data.scaling import Standardiser
from integrand.data.survey import chosen_rows
from integrand.distributed.layout import laid_out
from integrand.distributed.ranks import Ranks


class Origin(ABC):
    """Rows, and what a run directory has to keep of them."""

    ranks: Ranks | None

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """Of all processes."""

    @abstractmethod
    def header(self) -> dict[str, Any]:
        """What to open them again with, as JSON."""

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """What to keep of them."""

    @abstractmethod
    def datasets(self, scaler: Standardiser, n_inducing: int, sample_rows: int, seed: int) -> tuple[Dataset, Any]:
        """All rows, standardised, and a sample of them that stands for all (None where there are few)."""


@final
@dataclasses.dataclass(frozen=True)
class InMemory(Origin):
    """Arrays X (N, D) and y (N,) of one process."""

    X: np.ndarray
    y: np.ndarray
    ranks: None = None

    @property
    def n_rows(self) -> int:
        """N."""
        return len(self.y)

    def header(self) -> dict[str, Any]:
        """Nothing: the arrays are kept."""
        return {}

    def arrays(self) -> dict[str, np.ndarray]:
        """All of them."""
        return {"X": self.X, "y": self.y}

    def datasets(self, scaler: Standardiser, n_inducing: int, sample_rows: int, seed: int) -> tuple[Dataset, Any]:
        """All rows, and some of them."""
        X, y, length = scaler.transform_X(self.X), scaler.transform_y(self.y), block_rows_for(n_inducing)
        data = Dataset.of(X, y, length)
        if sample_rows >= len(y):
            return data, None
        chosen = chosen_rows(np.random.default_rng([seed, 77]), len(y), sample_rows)
        return data, Dataset.of(X[chosen], y[chosen], length).standing_for(len(y))


@final
@dataclasses.dataclass(frozen=True)
class OnDisk(Origin):
    """The rows of this process, those of all of them by number, and a sample of all (target last)."""

    rows: RowsOnDisk
    total: int
    sample: np.ndarray
    memory: int  # bytes that the rows of a process may take; beyond that they stay on disk
    ranks: Ranks | None = None

    @property
    def n_rows(self) -> int:
        """N."""
        return self.total

    def header(self) -> dict[str, Any]:
        """Which files they are, and how much of them fits in memory."""
        return {"rows": self.rows.description(), "memory": self.memory, "total": self.total}

    def arrays(self) -> dict[str, np.ndarray]:
        """The sample: it takes a pass over the files to draw."""
        return {"sample": self.sample}

    def datasets(self, scaler: Standardiser, n_inducing: int, sample_rows: int, seed: int) -> tuple[Dataset, Any]:
        """The rows where they are, and the sample in memory."""
        data = laid_out(self.rows, scaler, self.total, n_inducing, self.memory, self.ranks)
        if not len(self.sample) or (sample_rows >= self.total and data.local):
            return data, None
        X, y = scaler.transform_X(self.sample[:, :-1]), scaler.transform_y(self.sample[:, -1])
        return data, Dataset.of(X, y, block_rows_for(n_inducing)).standing_for(self.total)
