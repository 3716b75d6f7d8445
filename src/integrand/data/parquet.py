"""Rows in Parquet files (one file, a directory of them, or a pattern), and opening the rows of an earlier run again."""

import glob
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from integrand.data.processes import Processes, SingleProcess
from integrand.data.sources import MEMORY, MappedRows, RowSource
from integrand.data.tables import PARQUET, ParquetColumns, parquet_schema, refuse_missing, refuse_words_as_target
from integrand.errors import InputError


@final
class ParquetRows(RowSource):
    """One or more Parquet files with the same columns, one after the other; several processes divide the rows.

    Parameters
    ----------
    files
        Parts, in order.
    target
        The column of y; all others are inputs.
    memory
        Bytes that the rows of one process may take; beyond that they are read at every pass.
    processes
        Those that fit together, from `join`.
    noise_column
        A column with the known variance of each row's noise, in squared units of y.
    categories
        Columns that hold words, for `Categorical` in the kernel; see `integrand.Categorical`.
    """

    def __init__(
        self,
        files: Sequence[Path],
        target: str,
        *,
        memory: int = MEMORY,
        processes: Processes = SingleProcess(),
        noise_column: str | None = None,
        categories: Sequence[str] | Mapping[str, Sequence[str] | None] = (),
    ):
        self.files, self.target, self.noise_column = tuple(files), target, noise_column
        others = [target] if noise_column is None else [target, noise_column]
        wanted = categories if isinstance(categories, Mapping) else dict.fromkeys(categories)
        self._table = processes.on_all(lambda: _columns(self.files, others, wanted))
        self.levels = self._table.levels
        names = self._table.names[: -len(others)]
        super().__init__(names, self._table.n_rows, memory=memory, processes=processes)

    def values(self, first: int, last: int) -> np.ndarray:
        """Rows as they are on disk."""
        return self._table.read(first, last)

    def where(self, row: int) -> str:
        """File and row in it."""
        return self._table.where(row)

    def outline(self) -> list[Any]:
        """Names of the files, and rows in each."""
        return [[file.name, n] for file, n in zip(self.files, self._table.rows_by_file, strict=True)]

    def describe(self) -> dict[str, Any]:
        """Files, target and size."""
        known: dict[str, Any] = {} if self.noise_column is None else {"noise_column": self.noise_column}
        levels = self._table.levels  # by the names in the files
        known |= {"levels": {name: list(v) for name, v in levels.items()}} if levels else {}
        files = [str(f.resolve()) for f in self.files]
        return {"files": files, "target": self.target, "n_rows": self.table_rows, **known}


def _columns(
    files: Sequence[Path], others: Sequence[str], levels: Mapping[str, Sequence[str] | None]
) -> ParquetColumns:
    """Inputs, and behind them the `others`, if all files have the same."""
    columns = [parquet_schema(file) for file in files]
    for file, other in zip(files, columns, strict=True):
        if other != columns[0]:
            differing = sorted(set(other) ^ set(columns[0])) or ["their types"]
            raise InputError(
                f"{file} and {files[0]} have different columns ({', '.join(differing)}): write all parts alike"
            )
    refuse_missing(files[0], others, list(columns[0]))
    if columns[0][others[0]].startswith(("string", "large_string", "dictionary")):
        refuse_words_as_target(files[0], others[0])
    inputs = [name for name in columns[0] if name not in others]
    if not inputs:
        raise InputError(f"{files[0]} has no column besides {' and '.join(map(repr, others))}: it needs inputs")
    return ParquetColumns(files, [*inputs, *others], levels)


def open_rows(
    path: str | Path,
    target: str,
    *,
    memory: int = MEMORY,
    processes: Processes = SingleProcess(),
    noise_column: str | None = None,
    categories: Sequence[str] | Mapping[str, Sequence[str] | None] = (),
) -> ParquetRows:
    """A Parquet file, a directory of them, or a pattern such as `data/part-*.parquet`.

    Parameters
    ----------
    path
        What to open.
    target
        The column of y; all others are inputs.
    memory
        Bytes that the rows of one process may take; beyond that they are read at every pass.
    processes
        Those that fit together, from `join`; every one of them opens the same files and reads its part.
    noise_column
        A column with the known variance of each row's noise, in squared units of y; it is no input.
    categories
        Columns that hold categories, for `Categorical` in the kernel: words, or numbers that are no codes. A mapping
        also names their levels; else these are found by a pass over the columns.
    """
    files = processes.on_all(lambda: _files(Path(path)))
    return ParquetRows(
        files, target, memory=memory, processes=processes, noise_column=noise_column, categories=categories
    )


def open_source(
    description: Mapping[str, Any], memory: int = MEMORY, processes: Processes = SingleProcess()
) -> RowSource:
    """The rows that a `describe` described, if they are still there and as many."""
    processes.on_all(lambda: _refuse_lost_files(description.get("files") or description.get("mapped") or []))
    if "files" in description:
        files = [Path(f) for f in description["files"]]
        noise = description.get("noise_column")
        rows: RowSource = ParquetRows(
            files,
            description["target"],
            memory=memory,
            processes=processes,
            noise_column=noise,
            categories=description.get("levels", {}),
        )
    elif description.get("mapped"):
        X, y, *known = (np.load(f, mmap_mode="r") for f in description["mapped"])
        v = known[0] if known else None
        rows = MappedRows(X, y, description["names"], memory=memory, processes=processes, noise_variance=v)
    else:
        raise InputError(
            "the run was begun with rows that only you can open: give them to `resume` again, as rows=MappedRows(X, y)"
        )
    if rows.table_rows != description["n_rows"]:
        wanted = description["n_rows"]
        raise InputError(f"the files now have {rows.table_rows} rows, not {wanted}: put the old ones back")
    return rows


def _refuse_lost_files(files: Sequence[str]) -> None:
    for file in files:
        if not Path(file).exists():
            raise InputError(f"there is no file {file}, which the run was begun with: put it back")


def _files(path: Path) -> list[Path]:
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
    return files


def _refuse_gaps(files: Sequence[Path]) -> None:
    """Names that say `3-of-8` promise all eight, counted from 0 or from 1."""
    series: dict[tuple[Path, str, int, str], set[int]] = {}
    for file in files:
        match = re.fullmatch(r"(.*?)(\d+)-of-(\d+)(.*)", file.name)
        if match:
            before, number, wanted, behind = match.groups()
            series.setdefault((file.parent, before, int(wanted), behind), set()).add(int(number))
    for (folder, _, wanted, _), numbers in series.items():
        if numbers not in ({*range(wanted)}, {*range(1, wanted + 1)}):
            raise InputError(f"{folder} has {len(numbers)} of {wanted} parts: put the missing ones there")
