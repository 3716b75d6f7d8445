"""A row source to copy: rows of an SQLite table, read by ranges of rows whenever a pass needs them.

    fit(SqliteRows("measurements.db", "rows", inputs=["x0", "x1"], target="y"), n_inducing=100)

A row source gives rows first ... last - 1 as an array with the target in the last column. It keeps none of them.
Limits of memory, devices and the division among processes are the business of `RowSource`.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from integrand.data.sources import RowSource


class SqliteRows(RowSource):
    """Columns of a table whose `rowid` counts from 1 without gaps."""

    def __init__(self, path: str | Path, table: str, inputs: Sequence[str], target: str):
        self.path, self.table, self.target = Path(path), table, target
        with sqlite3.connect(self.path) as database:
            n_rows = database.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
        super().__init__(inputs, n_rows)

    def values(self, first: int, last: int) -> np.ndarray:
        """Rows as they are in the table. A connection per call, as several threads may read."""
        columns = ", ".join(f'"{name}"' for name in (*self.columns, self.target))
        query = f'SELECT {columns} FROM "{self.table}" WHERE rowid > ? AND rowid <= ? ORDER BY rowid'
        with sqlite3.connect(self.path) as database:
            rows = database.execute(query, (first, last)).fetchall()
        return np.array(rows, float).reshape(last - first, self.n_columns + 1)

    def where(self, row: int) -> str:
        """The place of a row, for messages about bad values."""
        return f"{self.path}, table {self.table}, row {row + 1}"

    def describe(self) -> dict[str, Any]:
        """What a run directory notes of these rows; such a run is resumed with `rows=`."""
        return {"sqlite": str(self.path), "table": self.table, "n_rows": self.n_rows}
