"""Tables in files: numeric columns of CSV, gzip CSV and Parquet files, with one set of messages; and tables out.

Parquet files of any length are read and written a block of rows at a time.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from integrand.errors import InputError, need
from integrand.files import replacing

PARQUET = (".parquet", ".pq")
_ENCODE = "encode it (one column per category), or drop it"


def refuse_missing(place: object, names: Sequence[str], available: Sequence[Any]) -> None:
    """All of these columns must be there."""
    missing = [name for name in names if name not in available]
    if missing:
        has = ", ".join(map(str, available))
        raise InputError(f"{place} has no column {', '.join(map(repr, missing))}: it has {has}")


def refuse_not_numeric(place: object, name: str, remedy: str = _ENCODE) -> None:
    """A column holds something else than numbers."""
    raise InputError(f"{place}: column {name!r} is not numeric: {remedy}")


def refuse_non_finite(values: np.ndarray, names: Sequence[str], where: Callable[[int], str]) -> None:
    """No value may be missing or infinite; `where` gives the place of a row."""
    if not np.isfinite(values).all():
        row, column = map(int, np.argwhere(~np.isfinite(values))[0])
        raise InputError(f"{where(row)}: column {names[column]!r} is missing or infinite: drop or impute such rows")


@dataclass(frozen=True)
class Table:
    """Numeric columns of a file, in memory."""

    path: Path
    frame: Any  # pandas.DataFrame

    def columns(self, names: Sequence[str]) -> np.ndarray:
        """These columns as a float64 matrix."""
        refuse_missing(self.path, names, list(self.frame.columns))
        for name in names:
            if self.frame[name].dtype.kind not in "iufb":
                refuse_not_numeric(self.path, name, _remedy(self.frame[name]))
        values = self.frame[list(names)].to_numpy(dtype=float)
        refuse_non_finite(values, names, lambda row: f"{self.path}, row {row + 1}")
        return values

    def split(self, target: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Inputs, target and the names of the inputs (all other columns)."""
        y = self.columns([target])[:, 0]
        names = [str(c) for c in self.frame.columns if c != target]
        if not names:
            raise InputError(f"{self.path} has no column besides the target {target!r}")
        return self.columns(names), y, names


def _remedy(column: Any) -> str:
    """What to do about a column that is not numeric: most of it may be numbers."""
    import pandas as pd

    known = np.asarray(column.notna(), bool)
    strays = known & np.isnan(np.asarray(pd.to_numeric(column, errors="coerce"), float))
    count, first = int(strays.sum()), int(strays.argmax())
    if 2 * count >= known.sum():
        return _ENCODE
    some = f"{count} of its values are no numbers" if count > 1 else "one of its values is no number"
    return f"{some}, the first {column.iloc[first]!r} in row {first + 1}: mend or drop such rows"


def read_table(path: Path) -> Table:
    """Read a CSV (also gzip) or Parquet file."""
    need("pandas", "cli", "reading a table")
    import pandas as pd

    if not path.exists():
        raise InputError(f"there is no file {path}")
    if path.is_dir():
        raise InputError(f"{path} is a directory: name a CSV or Parquet file")
    if path.suffix in PARQUET:
        need("pyarrow", "arrow", f"{path}")
    try:
        frame = pd.read_parquet(path) if path.suffix in PARQUET else pd.read_csv(path)
    except Exception as error:  # pandas and pyarrow raise many types for a file that is not what it seems
        raise InputError(f"{path} cannot be read as a table: {_first_line(error)}") from error
    if frame.empty:
        raise InputError(f"{path} has no rows")
    if frame.columns.duplicated().any():
        raise InputError(f"{path} has two columns called {frame.columns[frame.columns.duplicated()][0]!r}")
    frame.columns = [str(c) for c in frame.columns]
    return Table(path, frame)


class ParquetColumns:
    """Numeric columns of Parquet files, one file after the other, with one row group in memory.

    Parameters
    ----------
    files
        Files with the same columns.
    names
        Columns to read.
    """

    def __init__(self, files: Sequence[Path], names: Sequence[str]):
        self.files, self.names = tuple(files), tuple(names)
        columns = parquet_schema(self.files[0])
        refuse_missing(self.files[0], self.names, list(columns))
        for name in self.names:
            if columns[name] != "number":
                refuse_not_numeric(self.files[0], name)
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
            meta = _open_parquet(file).metadata
            groups += [(file, g, meta.row_group(g).num_rows) for g in range(meta.num_row_groups)]
        return groups

    @property
    def rows_by_file(self) -> list[int]:
        """Rows of each file."""
        return [sum(rows for f, _, rows in self._groups if f == file) for file in self.files]

    def read(self, first: int, last: int) -> np.ndarray:
        """Rows first ... last - 1 as float64, finite or not."""
        parts, row = [np.zeros((0, len(self.names)))], first
        while row < last:
            k = int(np.searchsorted(self._ends, row, side="right"))
            begin, end = int(self._ends[k]) - self._groups[k][2], int(self._ends[k])
            stop = min(last, end)
            parts.append(self._group(k)[row - begin : stop - begin])
            row = stop
        return parts[1] if len(parts) == 2 else np.concatenate(parts)

    def _group(self, k: int) -> np.ndarray:
        """A row group. The latest one is kept, because the next rows are probably in it."""
        number, table = self._latest
        if number != k:
            file, group, _ = self._groups[k]
            self._latest = (-1, np.zeros((0, 0)))  # not two of them at a time
            try:
                read = _open_parquet(file).read_row_group(group, columns=list(self.names))
                columns = [read.column(name).to_numpy() for name in self.names]
            except Exception as error:  # pyarrow raises many types for a file that is not what it seems
                raise InputError(f"{file} cannot be read: row group {group}: {_first_line(error)}") from error
            table = np.stack([np.asarray(column, float) for column in columns], axis=1)
            self._latest = (k, table)
        return table

    def where(self, row: int) -> str:
        """File and row in it."""
        for file, n in zip(self.files, self.rows_by_file, strict=True):
            if row < n:
                return f"{file}, row {row + 1}"
            row -= n
        return f"{self.files[-1]}, behind its end"


def parquet_schema(file: Path) -> dict[str, str]:
    """Columns of a Parquet file: "number", or the name of another type."""
    schema = _open_parquet(file).schema_arrow
    from pyarrow import types

    def kind(t: Any) -> str:
        return "number" if types.is_integer(t) or types.is_floating(t) or types.is_boolean(t) else str(t)

    if len(set(schema.names)) < len(schema.names):
        raise InputError(f"{file} has two columns with one name: rename one")
    index = _pandas_index(schema)
    return {name: kind(schema.field(name).type) for name in schema.names if name not in index}


def _pandas_index(schema: Any) -> set[str]:
    """Columns that pandas wrote for its row labels, and takes for labels again when it reads the file."""
    about = (schema.metadata or {}).get(b"pandas")
    names = json.loads(about).get("index_columns", []) if about else []
    return {name for name in names if isinstance(name, str)}


def _open_parquet(file: Path) -> Any:
    need("pyarrow", "arrow", f"{file}")
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file)
    except Exception as error:
        raise InputError(f"{file} cannot be read as Parquet: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def table_blocks(path: Path, names: Sequence[str], rows: int) -> Iterator[np.ndarray]:
    """These columns of a table, `rows` rows at a time, as float64 matrices. A Parquet file is never read as a whole."""
    if path.suffix not in PARQUET or not path.is_file():
        values = read_table(path).columns(names)
        yield from (values[i : i + rows] for i in range(0, len(values), rows))
        return
    table = ParquetColumns([path], names)
    for first in range(0, table.n_rows, rows):
        block = table.read(first, min(first + rows, table.n_rows))
        refuse_non_finite(block, names, lambda row, first=first: table.where(first + row))
        yield block


Block = dict[str, np.ndarray]


@contextlib.contextmanager
def block_writer(path: Path) -> Iterator[Callable[[Block], None]]:
    """Write blocks of columns to a Parquet or CSV file; it appears as a whole, or not at all."""
    try:
        with replacing(path) as temporary, contextlib.closing(_writer(temporary, path.suffix)) as writer:
            yield writer.write
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


def _writer(path: Path, suffix: str) -> "_ParquetWriter | _CsvWriter":
    return _ParquetWriter(path) if suffix in PARQUET else _CsvWriter(path, packed=suffix == ".gz")


class _ParquetWriter:
    def __init__(self, path: Path):
        self.path, self.file = path, None

    def write(self, block: Block) -> None:
        need("pyarrow", "arrow", "a Parquet file")
        import pyarrow as pa
        import pyarrow.parquet as pq

        table: Any = pa.table(block)
        if self.file is None:
            self.file = pq.ParquetWriter(self.path, table.schema)
        self.file.write_table(table)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


class _CsvWriter:
    def __init__(self, path: Path, packed: bool):
        import gzip

        self.file: Any = gzip.open(path, "wt", newline="") if packed else open(path, "w", newline="")  # noqa: SIM115
        self.begun = False

    def write(self, block: Block) -> None:
        import pandas as pd

        pd.DataFrame(block).to_csv(self.file, index=False, header=not self.begun)
        self.begun = True

    def close(self) -> None:
        self.file.close()
