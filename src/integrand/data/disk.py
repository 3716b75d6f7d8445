"""Tables that stay on disk: Parquet files, by row groups, and memory-mapped arrays; numeric columns, read by rows."""

import glob
import json
import mmap
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Float

from integrand.errors import InputError

PARQUET = (".parquet", ".pq")


class RowsOnDisk(ABC):
    """Rows of numbers: the inputs, and the target last. `read` gives some of them and keeps none."""

    names: tuple[str, ...]  # of the inputs
    n_rows: int

    @property
    def n_columns(self) -> int:
        """D."""
        return len(self.names)

    @abstractmethod
    def values(self, first: int, last: int) -> Float[np.ndarray, "n columns"]:
        """Rows first ... last - 1 as they are on disk."""

    @abstractmethod
    def where(self, row: int) -> str:
        """The place of a row, for messages."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """What `rows_from` needs to open the same rows again, as JSON."""

    def outline(self) -> list[Any]:
        """What tells one table from another without reading it, as JSON."""
        return [["rows", self.n_rows]]

    def read(self, first: int, last: int) -> Float[np.ndarray, "n columns"]:
        """Rows first ... last - 1, all of them finite."""
        table = self.values(first, last)
        if not np.isfinite(table).all():
            row, column = np.argwhere(~np.isfinite(table))[0]
            name = (*self.names, "the target")[column]
            raise InputError(f"{self.where(first + int(row))}: {name} is missing or infinite: drop or impute such rows")
        return table

    def part(self, rank: int, size: int) -> "PartOfRows":
        """The share of one of `size` processes: rows next to each other, as many as the others have, or one fewer."""
        ends = [self.n_rows * k // size for k in (rank, rank + 1)]
        return PartOfRows(self, *ends)


@final
@dataclass(frozen=True)
class PartOfRows(RowsOnDisk):
    """Rows first ... last - 1 of others."""

    of: RowsOnDisk
    first: int
    last: int

    @property
    def names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Of the inputs."""
        return self.of.names

    @property
    def n_rows(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How many."""
        return self.last - self.first

    def values(self, first: int, last: int) -> np.ndarray:
        """Rows as they are on disk."""
        return self.of.values(self.first + first, self.first + last)

    def where(self, row: int) -> str:
        """The place of a row."""
        return self.of.where(self.first + row)

    def description(self) -> dict[str, Any]:
        """The whole of which this is a part."""
        return self.of.description()


@final
class ParquetRows(RowsOnDisk):
    """One or more Parquet files with the same columns, one after the other."""

    def __init__(self, files: Sequence[Path], target: str):
        self.files, self.target = tuple(files), target
        columns = [_schema(file) for file in self.files]
        for file, found in zip(self.files, columns, strict=True):
            if found != columns[0]:
                odd = sorted(set(found) ^ set(columns[0])) or ["their types"]
                raise InputError(
                    f"{file} and {self.files[0]} have different columns ({', '.join(odd)}): write all parts alike"
                )
        if target not in columns[0]:
            raise InputError(f"{self.files[0]} has no column {target!r}: it has {', '.join(columns[0])}")
        self.names = tuple(name for name in columns[0] if name != target)
        if not self.names:
            raise InputError(f"{self.files[0]} has no column besides the target {target!r}")
        for name, kind in columns[0].items():
            if kind != "number":
                raise InputError(f"{self.files[0]}: column {name!r} is not numeric: encode it, or drop it")
        self._ends = np.cumsum([rows for _, _, rows in self._groups])
        self.n_rows = int(self._ends[-1]) if len(self._ends) else 0
        if self.n_rows == 0:
            raise InputError(f"{self.files[0]} has no rows")
        self._latest: tuple[int, np.ndarray] = (-1, np.zeros((0, 0)))

    @cached_property
    def _groups(self) -> list[tuple[Path, int, int]]:
        """File, number in it and rows of each row group, in order."""
        groups = []
        for file in self.files:
            meta = _parquet(file).metadata
            groups += [(file, g, meta.row_group(g).num_rows) for g in range(meta.num_row_groups)]
        return groups

    def values(self, first: int, last: int) -> np.ndarray:
        """Rows as they are on disk; the row group that was read last is kept, for what comes next is in it."""
        parts, row = [], first
        while row < last:
            k = int(np.searchsorted(self._ends, row, side="right"))
            begin, end = int(self._ends[k]) - self._groups[k][2], int(self._ends[k])
            stop = min(last, end)
            parts.append(self._group(k)[row - begin : stop - begin])
            row = stop
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.zeros((0, self.n_columns + 1))

    def _group(self, k: int) -> np.ndarray:
        number, table = self._latest
        if number != k:
            file, group, _ = self._groups[k]
            self._latest = (-1, np.zeros((0, 0)))  # not two of them at a time
            try:
                read = _parquet(file).read_row_group(group, columns=[*self.names, self.target])
                wanted = [read.column(name).to_numpy() for name in (*self.names, self.target)]
            except Exception as error:  # pyarrow raises many types for a file that is not what it seems
                raise InputError(f"{file}: row group {group} cannot be read: {_line(error)}") from error
            table = np.stack([np.asarray(column, float) for column in wanted], axis=1)
            self._latest = (k, table)
        return table

    def outline(self) -> list[Any]:
        """Names of the files, and rows in each."""
        return [[file.name, sum(rows for f, _, rows in self._groups if f == file)] for file in self.files]

    def where(self, row: int) -> str:
        """File and row in it."""
        for file in self.files:
            n = _parquet(file).metadata.num_rows
            if row < n:
                return f"{file}, row {row + 1}"
            row -= n
        return f"{self.files[-1]}, behind its end"

    def description(self) -> dict[str, Any]:
        """Files, target and sizes."""
        return {"files": [str(f.resolve()) for f in self.files], "target": self.target, "n_rows": self.n_rows}


@final
class MappedRows(RowsOnDisk):
    """Arrays X (N, D) and y (N,), for instance memory-mapped by `numpy.load(..., mmap_mode="r")`."""

    def __init__(self, X: Any, y: Any, names: Sequence[str] | None = None):
        if X.ndim != 2 or y.shape != (len(X),) or len(X) == 0 or X.shape[1] == 0:
            raise InputError(f"X must have shape (N, D) and y (N,), not {X.shape} and {y.shape}")
        self._X, self._y, self.n_rows = X, y, len(X)
        self.names = tuple(names) if names is not None else tuple(f"x{i}" for i in range(X.shape[1]))
        if len(self.names) != X.shape[1]:
            raise InputError(f"{len(self.names)} column names were given for {X.shape[1]} columns")

    def values(self, first: int, last: int) -> np.ndarray:
        """Rows as they are on disk."""
        X, y = self._X[first:last], self._y[first:last]
        return np.concatenate([np.asarray(X, float), np.asarray(y, float)[:, None]], axis=1)

    def where(self, row: int) -> str:
        """Row number."""
        return f"row {row}"

    def description(self) -> dict[str, Any]:
        """The files behind memory maps; arrays in memory, and parts of a map, cannot be opened again."""
        files = [_npy_file(a) for a in (self._X, self._y)]
        return {
            "mapped": files if all(files) else [],
            "n_rows": self.n_rows,
            "names": list(self.names),
        }


def open_rows(path: str | Path, target: str) -> ParquetRows:
    """A Parquet file, a directory of them, or a pattern such as `data/part-*.parquet`."""
    path = Path(path)
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if f.suffix in PARQUET)
    else:
        files = [Path(f) for f in sorted(glob.glob(str(path)))] if glob.has_magic(str(path)) else [path]
    if not files:
        where = f"the directory {path}" if path.is_dir() else f"{path}"
        raise InputError(
            f"there is no Parquet file in {where}: name a CSV or Parquet file, or a directory of the latter"
        )
    for file in files:
        if not file.exists():
            raise InputError(f"there is no file {file}")
    _refuse_gaps(files)
    return ParquetRows(files, target)


def rows_from(description: dict[str, Any]) -> RowsOnDisk:
    """The rows that `description` told of, if they are still there and as many."""
    for file in description.get("files") or description.get("mapped") or []:
        if not Path(file).exists():
            raise InputError(f"there is no file {file}, which the run was begun with: put it back")
    if "files" in description:
        rows: RowsOnDisk = ParquetRows([Path(f) for f in description["files"]], description["target"])
    elif description.get("mapped"):
        X, y = (np.load(f, mmap_mode="r") for f in description["mapped"])
        rows = MappedRows(X, y, description["names"])
    else:
        raise InputError(
            "the run was begun with arrays in memory: give them to `resume` again, as rows=MappedRows(X, y)"
        )
    if rows.n_rows != description["n_rows"]:
        raise InputError(f"the files now have {rows.n_rows} rows, not {description['n_rows']}: put the old ones back")
    return rows


def _refuse_gaps(files: Sequence[Path]) -> None:
    """Names that say `3-of-8` promise all eight, counted from 0 or from 1."""
    series: dict[tuple[Path, str, int, str], set[int]] = {}
    for file in files:
        found = re.fullmatch(r"(.*?)(\d+)-of-(\d+)(.*)", file.name)
        if found:
            before, number, wanted, behind = found.groups()
            series.setdefault((file.parent, before, int(wanted), behind), set()).add(int(number))
    for (folder, _, wanted, _), numbers in series.items():
        if numbers not in ({*range(wanted)}, {*range(1, wanted + 1)}):
            raise InputError(f"{folder} has {len(numbers)} of {wanted} parts: put the missing ones there")


def _npy_file(array: Any) -> str:
    """The .npy file that an array maps as a whole, or nothing: a view has the name of its file, but not its rows."""
    file = getattr(array, "filename", None)
    if file is None or not isinstance(array.base, mmap.mmap):
        return ""
    with open(file, "rb") as stream:
        return str(Path(file).resolve()) if stream.read(6) == b"\x93NUMPY" else ""


def _parquet(file: Path) -> Any:
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file)
    except Exception as error:
        raise InputError(f"{file} cannot be read as Parquet: {_line(error)}") from error


def _schema(file: Path) -> dict[str, str]:
    import pyarrow as pa

    types = pa.types
    schema = _parquet(file).schema_arrow

    def kind(t: Any) -> str:
        return "number" if types.is_integer(t) or types.is_floating(t) or types.is_boolean(t) else str(t)

    if len(set(schema.names)) < len(schema.names):
        raise InputError(f"{file} has two columns with one name: rename one")
    index = _pandas_index(schema)
    return {name: kind(schema.field(name).type) for name in schema.names if name not in index}


def _pandas_index(schema: Any) -> set[str]:
    """Columns that pandas wrote for its row labels, and takes for labels again when it reads the file."""
    about = (schema.metadata or {}).get(b"pandas")
    found = json.loads(about).get("index_columns", []) if about else []
    return {name for name in found if isinstance(name, str)}


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
