"""Where the rows of a fit come from: arrays in memory, or memory-mapped arrays and Parquet files that stay on disk.

A source is read once for its moments and a uniform subsample (`overview`). Then it becomes a `Dataset`: in memory,
over several devices, or read from disk at every pass. With several processes each has a part of the rows.
"""

import copy
import dataclasses
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, final

import numpy as np
from jaxtyping import Float

from integrand.data.checks import checked_rows, checked_variances, logarithms
from integrand.data.dataset import Dataset, block_rows_for
from integrand.data.processes import Processes, SingleProcess
from integrand.data.scaling import ROUNDING_UNITS, Standardiser
from integrand.data.streaming import Stream
from integrand.data.tables import refuse_non_finite
from integrand.errors import InputError

# Bytes that the rows of one process may take, unless another limit is given.
MEMORY = 2**30
# Rows that a pass looks at together.
_PASS_ROWS = 65_536


class Moments(NamedTuple):
    """Means, spreads and ranges of some rows, per column; the target is behind the inputs."""

    n_rows: int
    mean: Float[np.ndarray, " columns"]
    squares: Float[np.ndarray, " columns"]  # Σ (value - mean)²
    low: Float[np.ndarray, " columns"]
    high: Float[np.ndarray, " columns"]
    odd: Float[np.ndarray, " columns"]  # the value that is farthest from a whole number

    def then(self, other: "Moments") -> "Moments":
        """Both parts as one (Chan, Golub & LeVeque 1979): no large sums are subtracted."""
        n = self.n_rows + other.n_rows
        shift = other.mean - self.mean
        return Moments(
            n,
            self.mean + shift * (other.n_rows / n),
            self.squares + other.squares + shift**2 * (self.n_rows * other.n_rows / n),
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            farthest_from_whole(np.stack([self.odd, other.odd])),
        )

    def standardiser(self, n_columns: int = -1) -> Standardiser:
        """Mean and population sd of inputs and target; a column that is constant up to rounding becomes zero."""
        rounding = ROUNDING_UNITS * np.finfo(float).eps * np.maximum(np.abs(self.low), np.abs(self.high))
        sd = np.sqrt(self.squares / self.n_rows)
        sd = np.where((self.high - self.low > rounding) & (sd > 0), sd, 1.0)
        return Standardiser(self.mean[:n_columns], sd[:n_columns], self.mean[n_columns], sd[n_columns])


def farthest_from_whole(table: Float[np.ndarray, "n columns"]) -> Float[np.ndarray, " columns"]:
    """The value of each column that is farthest from a whole number."""
    return table[np.argmax(np.abs(table - np.round(table)), axis=0), np.arange(table.shape[1])]


def combined(parts: Sequence[Moments]) -> Moments:
    """All parts as one."""
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.then(part)
    return whole


@dataclass(frozen=True)
class Overview:
    """All rows after one pass over them: ranges of the inputs and, behind them, of the target.

    `odd` is the value of each that is farthest from a whole number: what tells codes from other numbers.
    """

    n_rows: int
    low: Float[np.ndarray, " columns"]
    high: Float[np.ndarray, " columns"]
    odd: Float[np.ndarray, " columns"]
    scaler: Standardiser
    subsample: Float[np.ndarray, "K names"] | None  # uniform, in order; None where it would be all rows in memory
    noise_variances: tuple[float, float] | None = None  # smallest and largest that is known

    def standardiser(self, likelihood: Any) -> Standardiser:
        """The scaler of these rows; y stays as it is where the likelihood needs that, as for counts."""
        scaler = self.scaler
        if not likelihood.standardises_y:
            scaler = dataclasses.replace(scaler, y_mean=0.0, y_sd=1.0)
        if not 1e-100 < scaler.y_sd < 1e100:  # its square is a variance
            raise InputError(f"the standard deviation of y is {scaler.y_sd:.1e}: give y in other units")
        return scaler


class RowSource(ABC):
    """Rows of inputs and a target.

    Attributes
    ----------
    columns
        Names of the inputs.
    n_rows
        Rows of all processes.
    table_rows
        Rows of the table that this process can read.
    own
        Those of them that are this process's share.
    processes
        Those that fit together.
    memory
        Bytes that the rows of one process may take; beyond that they are read at every pass.
    scaler
        How to standardise; None: by mean and standard deviation of these rows.
    """

    in_memory: ClassVar[bool] = False  # as arrays, which every method can use
    target: str = "target"  # its name, for messages
    noise_column: str | None = None  # name of a last column: the known variance of each row's noise
    log_target: bool = False  # whether what is read of the target is its logarithm
    levels: Mapping[str, tuple[str, ...]] = MappingProxyType({})  # of columns that held categories, by their names

    def __init__(
        self,
        columns: Sequence[str],
        table_rows: int,
        *,
        memory: int = MEMORY,
        processes: Processes = SingleProcess(),
        shared: bool = True,
        scaler: Standardiser | None = None,
    ):
        self.columns, self.table_rows = tuple(columns), table_rows
        self.memory, self.scaler = memory, scaler
        self._divide(processes, shared)

    def _divide(self, processes: Processes, shared: bool) -> None:
        """Find the rows of this process: a share of a table that all can read, or all of its own table."""
        self.processes, self._overviews = processes, {}
        outlines = processes.all_gather([list(self.columns), self.outline() if shared else []])
        for rank, (columns, outline) in enumerate(outlines):
            if columns != outlines[0][0]:
                raise InputError(
                    f"rank {rank} has the columns {', '.join(columns)}, rank 0 {', '.join(outlines[0][0])}"
                )
            if outline != outlines[0][1]:
                first = outlines[0][1]
                differing = [str(part) for part in (*outline, *first) if (part in outline) != (part in first)]
                raise InputError(
                    f"rank {rank} sees another table than rank 0 ({'; '.join(differing[:4])}): give all processes the "
                    "same files"
                )
        ends = [self.table_rows * k // processes.size for k in (processes.rank, processes.rank + 1)]
        self.own = range(*ends) if shared else range(self.table_rows)
        self.n_rows = self.table_rows if shared else sum(processes.all_gather(self.table_rows))

    def among(self, processes: Processes, shared: bool = True) -> "RowSource":
        """The same rows for several processes: shared among them, or those that this process alone has."""
        rows = copy.copy(self)
        rows._divide(processes, shared)
        return rows

    def but(
        self,
        columns: Sequence[str] | None = None,
        memory: int | None = None,
        scaler: Standardiser | None = None,
    ) -> "RowSource":
        """The same rows with other names, another limit of memory or another scaler."""
        rows = copy.copy(self)
        rows.columns = tuple(_names(columns or self.columns, self.n_columns))
        renamed = dict(zip(self.columns, rows.columns, strict=True))
        rows.levels = {renamed.get(name, name): of_column for name, of_column in self.levels.items()}
        rows.memory, rows.scaler = memory if memory is not None else self.memory, scaler or self.scaler
        rows._overviews = {}
        return rows

    def with_log_target(self) -> "RowSource":
        """The same rows with the logarithm of the target in its place, also in moments and ranges."""
        if self.scaler is not None:
            raise InputError("these rows have a scaler for y itself, not for its logarithm: leave the scaler out")
        rows = copy.copy(self)
        rows.log_target, rows._overviews = True, {}
        return rows

    def target_of(self, y: np.ndarray, where: Callable[[int], str]) -> np.ndarray:
        """What is read of the target, or an InputError that names the first row that has no logarithm."""
        name = "y" if self.in_memory else repr(self.target)
        return logarithms(y, name, where) if self.log_target else y

    @property
    def n_columns(self) -> int:
        """D."""
        return len(self.columns)

    @property
    def n_own(self) -> int:
        """Rows of this process."""
        return len(self.own)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns that are read: inputs, target, and known noise variance if there is one."""
        return (*self.columns, self.target, *([] if self.noise_column is None else [self.noise_column]))

    @abstractmethod
    def values(self, first: int, last: int) -> Float[np.ndarray, "n columns"]:
        """Rows first ... last - 1 of the table as they are: inputs, target, and `noise_column` if there is one."""

    @abstractmethod
    def where(self, row: int) -> str:
        """The place of a row of the table, for messages."""

    def outline(self) -> list[Any]:
        """What tells one table from another without reading it, as JSON."""
        return [["rows", self.table_rows]]

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What `open_source` needs to open these rows again, as JSON; empty if a run directory keeps `arrays`."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Rows that a run directory keeps; none for those that are on disk anyway."""
        return {}

    def read(self, first: int, last: int) -> Float[np.ndarray, "n columns"]:
        """Rows first ... last - 1 of this process, all of them finite."""
        first, last = self.own.start + first, self.own.start + last
        table = self.values(first, last)
        refuse_non_finite(table, self.names, lambda row: self.where(first + row))
        if self.noise_column is not None and (table[:, -1] < 0).any():
            row = int(np.argmax(table[:, -1] < 0))
            what = f"{self.where(first + row)}: column {self.noise_column!r} is {table[row, -1]:g}"
            raise InputError(f"{what}: a variance, in squared units of the target, is not negative")
        if self.log_target:
            table, D = np.array(table), self.n_columns
            table[:, D] = self.target_of(table[:, D], lambda row: self.where(first + row))
        return table

    def overview(self, subsample: int, seed: int) -> Overview:
        """One pass over the rows of each process, and what all of them have; a second call costs nothing.

        `subsample` rows are drawn uniformly, or all are taken where there are no more.
        """
        if (subsample, seed) not in self._overviews:
            self._overviews[subsample, seed] = self._overview(subsample, seed)
        return self._overviews[subsample, seed]

    def _overview(self, subsample: int, seed: int) -> Overview:
        processes = self.processes
        counts = processes.all_gather(self.n_own)
        if min(counts) == 0:
            raise InputError(f"rank {counts.index(0)} has no rows: use fewer processes")
        first = sum(counts[: processes.rank])
        chosen = chosen_rows(subsample_generator(seed), sum(counts), subsample)
        begin, end = map(int, np.searchsorted(chosen, [first, first + self.n_own]))
        mine, some = processes.on_all(lambda: moments(self, chosen[begin:end] - first))
        gathered = processes.all_gather([mine.n_rows, *(values.tolist() for values in mine[1:])])
        whole = combined([Moments(n, *map(np.array, arrays)) for n, *arrays in gathered])
        table, D = processes.gather_rows(some, begin, len(chosen)), self.n_columns
        known = None if self.noise_column is None else (float(whole.low[-1]), float(whole.high[-1]))
        scaler = self.scaler or whole.standardiser(D)
        low, high, odd = (values[: D + 1] for values in (whole.low, whole.high, whole.odd))
        return Overview(whole.n_rows, low, high, odd, scaler, table, known)

    def dataset(self, scaler: Standardiser, n_inducing: int) -> Dataset:
        """All rows, standardised: in memory, over all devices, or read from disk at every pass."""
        processes, devices = self.processes, self.processes.devices()
        length = block_rows_for(n_inducing)
        max_rows = max(processes.all_gather(self.n_own))
        mesh = devices if devices.n_devices > 1 else None
        if 8 * max_rows * (len(self.names) + 1) > self.memory:
            stream = Stream(self, scaler, length, max_rows, devices=devices.n_local)
            return Dataset(None, self.n_rows, mesh=mesh, stream=stream, processes=processes)
        table = processes.on_all(lambda: self.read(0, self.n_own))
        X, y, v = scaler.transform_rows(table)
        if mesh is None:
            return Dataset.of(X, y, length, v)
        data = Dataset.sharded(X, y, mesh, max_rows, length, v)
        return dataclasses.replace(data, n_rows=self.n_rows, processes=processes)


def moments(rows: RowSource, chosen: np.ndarray) -> tuple[Moments, Float[np.ndarray, "K names"]]:
    """Moments of all rows of this process, and the chosen ones among them, in one pass."""
    total: Moments | None = None
    sample = np.zeros((len(chosen), len(rows.names)))
    for first in range(0, rows.n_own, _PASS_ROWS):
        table = rows.read(first, min(first + _PASS_ROWS, rows.n_own))
        mean = table.mean(axis=0)
        mean = mean + (table - mean).mean(axis=0)  # what rounding of the large sum lost
        squares, odd = ((table - mean) ** 2).sum(axis=0), farthest_from_whole(table)
        block = Moments(len(table), mean, squares, table.min(axis=0), table.max(axis=0), odd)
        total = block if total is None else total.then(block)
        places = slice(*np.searchsorted(chosen, [first, first + len(table)]))
        sample[places] = table[chosen[places] - first]
    assert total is not None
    return total, sample


def subsample_generator(seed: int) -> np.random.Generator:
    """The generator that draws subsamples: the same rows for a seed, wherever they are."""
    return np.random.default_rng([seed, 77])


def chosen_rows(rng: np.random.Generator, n_rows: int, wanted: int) -> np.ndarray:
    """Numbers of `wanted` rows, or of all if there are no more, in order."""
    return np.arange(n_rows) if n_rows <= wanted else np.sort(rng.choice(n_rows, wanted, replace=False))


@final
class ArrayRows(RowSource):
    """Arrays X (N, D) and y (N,) in the memory of one process.

    Parameters
    ----------
    X, y
        Finite numbers.
    columns
        Names of the columns of X; by default x0, x1, ...
    scaler
        How to standardise; by default mean and standard deviation of these rows.
    noise_variance
        Known variance of the noise of each row, in squared units of y; the model's noise, if it has any, is added.
    levels
        Names of the levels 0, 1, ... of columns that hold codes of categories, by the names of the columns.
    """

    in_memory = True

    def __init__(
        self,
        X: Any,
        y: Any,
        columns: Sequence[str] | None = None,
        scaler: Standardiser | None = None,
        noise_variance: Any = None,
        levels: Mapping[str, Sequence[str]] | None = None,
    ):
        self.X, self.y = checked_rows(X, y)
        self.levels = {name: tuple(of_column) for name, of_column in (levels or {}).items()}
        if noise_variance is not None:
            self.noise_column = "noise_variance"
        self.noise_variance = None if noise_variance is None else checked_variances(noise_variance, len(self.y))
        super().__init__(_names(columns, self.X.shape[1]), len(self.y), scaler=scaler)
        if strange := [name for name in self.levels if name not in self.columns]:
            raise InputError(f"levels are of the columns {', '.join(self.columns)}: there is no {strange[0]!r}")

    def values(self, first: int, last: int) -> np.ndarray:
        """Some of the rows."""
        v = [] if self.noise_variance is None else [self.noise_variance]
        return np.column_stack([a[first:last] for a in (self.X, self.y, *v)])

    def where(self, row: int) -> str:
        """Row number."""
        return f"row {row}"

    def describe(self) -> dict[str, Any]:
        """Nothing: the arrays are kept."""
        return {}

    def arrays(self) -> dict[str, np.ndarray]:
        """All rows."""
        known = {} if self.noise_variance is None else {"noise_variance": self.noise_variance}
        return {"X": self.X, "y": self.y, **known}

    @property
    def _observed(self) -> np.ndarray:
        return self.target_of(self.y, self.where)

    def _overview(self, subsample: int, seed: int) -> Overview:
        X, y = self.X, self._observed
        low, high = (np.append(f(X, axis=0), f(y)) for f in (np.min, np.max))
        odd = np.append(farthest_from_whole(X), farthest_from_whole(y[:, None]))
        some = None
        if self.n_rows > subsample:
            chosen = chosen_rows(subsample_generator(seed), self.n_rows, subsample)
            v = [] if self.noise_variance is None else [self.noise_variance]
            some = np.column_stack([a[chosen] for a in (X, y, *v)])
        v = self.noise_variance
        known = None if v is None else (float(v.min()), float(v.max()))
        return Overview(self.n_rows, low, high, odd, self.scaler or Standardiser.fit(X, y), some, known)

    def dataset(self, scaler: Standardiser, n_inducing: int) -> Dataset:
        """All rows, standardised, in memory."""
        v = None if self.noise_variance is None else scaler.transform_variance(self.noise_variance)
        return Dataset.of(scaler.transform_X(self.X), scaler.transform_y(self._observed), block_rows_for(n_inducing), v)


@final
class MappedRows(RowSource):
    """Arrays X (N, D) and y (N,) of any size, for instance memory-mapped by `numpy.load(..., mmap_mode="r")`.

    Parameters
    ----------
    X, y
        Arrays that are read by slices of rows.
    columns
        Names of the columns of X; by default x0, x1, ...
    memory
        Bytes that the rows of one process may take; beyond that they are read at every pass.
    processes
        Those that fit together, from `join`.
    shared
        True: all processes see the same arrays and divide the rows. False: each gives rows of its own.
    noise_variance
        Known variance of the noise of each row (N,), in squared units of y, or None.
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        columns: Sequence[str] | None = None,
        *,
        memory: int = MEMORY,
        processes: Processes = SingleProcess(),
        shared: bool = True,
        noise_variance: Any = None,
    ):
        known = () if noise_variance is None else (noise_variance,)
        names = processes.on_all(lambda: _checked_shapes(X, y, columns, *known))
        self._vectors = (y, *known)
        self._X, self.noise_column = X, "noise_variance" if known else None
        super().__init__(names, len(X), memory=memory, processes=processes, shared=shared)

    def values(self, first: int, last: int) -> np.ndarray:
        """Rows as they are on disk."""
        return np.column_stack([np.asarray(a[first:last], float) for a in (self._X, *self._vectors)])

    def where(self, row: int) -> str:
        """Row number."""
        return f"row {row}"

    def describe(self) -> dict[str, Any]:
        """The files behind memory maps; arrays in memory, and parts of a map, cannot be opened again."""
        files = [_npy_file(a) for a in (self._X, *self._vectors)]
        return {"mapped": files if all(files) else [], "n_rows": self.table_rows, "names": list(self.columns)}


def _checked_shapes(X: Any, y: Any, columns: Sequence[str] | None, *known: Any) -> list[str]:
    """Names of the columns, if X is a matrix and y a vector of the same rows, as are known noise variances."""
    for v in known:
        if v.shape != y.shape:
            raise InputError(f"noise_variance has shape {v.shape} and y {y.shape}: one number per row is needed")
    if X.ndim != 2 or y.shape != (len(X),) or len(X) == 0 or X.shape[1] == 0:
        raise InputError(f"X must have shape (N, D) and y (N,), not {X.shape} and {y.shape}")
    return _names(columns, X.shape[1])


def _names(columns: Sequence[str] | None, n_columns: int) -> list[str]:
    names = [f"x{i}" for i in range(n_columns)] if columns is None else list(columns)
    if len(names) != n_columns:
        raise InputError(f"{len(names)} column names were given for {n_columns} columns")
    return names


def _npy_file(array: Any) -> str:
    """The .npy file that an array maps as a whole, or nothing: a view has the name of its file, but not its rows."""
    file = getattr(array, "filename", None)
    if file is None or not isinstance(array.base, mmap.mmap):
        return ""
    with open(file, "rb") as stream:
        return str(Path(file).resolve()) if stream.read(6) == b"\x93NUMPY" else ""


def as_rows(
    X: Any,
    y: Any = None,
    noise_variance: Any = None,
    categories: Mapping[Any, Sequence[str] | None] = MappingProxyType({}),
) -> RowSource:
    """A source as it is, or arrays as `ArrayRows`; a data frame brings the names of its columns.

    `categories` are the columns that hold categories, with their levels where these are known.
    """
    if isinstance(X, RowSource):
        if y is not None:
            raise InputError("rows on disk have their target with them: leave y out")
        if noise_variance is not None:
            raise InputError(
                "give noise_variance to the rows: ArrayRows(X, y, noise_variance=v), or open_rows(..., noise_column=)"
            )
        return X
    if y is None:
        raise InputError("y is missing: give X and y, or rows that have a target, such as open_rows(path, target)")
    names = list(getattr(X, "columns", ()))
    named = names and all(isinstance(name, str) for name in names)
    levels = {}
    if names or categories:
        from integrand.data.categories import coded  # few fits need it

        X, found = coded(X, categories, known_only=True)
        levels = {names[i] if named else f"x{i}": of_column for i, of_column in found.items()}
    return ArrayRows(X, y, names if named else None, noise_variance=noise_variance, levels=levels)
