"""Reading tables: CSV, gzip CSV and Parquet, with errors that name the file and the column."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from integrand.errors import InputError


@dataclass(frozen=True)
class Table:
    """Numeric columns of a file."""

    path: Path
    frame: Any  # pandas.DataFrame

    def columns(self, names: Sequence[str]) -> np.ndarray:
        """These columns as a float64 matrix."""
        missing = [name for name in names if name not in self.frame.columns]
        if missing:
            found = ", ".join(map(str, self.frame.columns))
            raise InputError(f"{self.path} has no column {', '.join(map(repr, missing))}: it has {found}")
        for name in names:
            if self.frame[name].dtype.kind not in "iufb":
                raise InputError(f"{self.path}: column {name!r} is not numeric: {_remedy(self.frame[name])}")
        values = self.frame[list(names)].to_numpy(dtype=float)
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            row, column = bad[0]
            raise InputError(
                f"{self.path}: {len(bad)} missing or infinite values, the first in row {row + 1}, column "
                f"{names[column]!r}: drop or impute them"
            )
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
        return "encode it (one column a category), or drop it"
    some = f"{count} of its values are no numbers" if count > 1 else "one of its values is no number"
    return f"{some}, the first {column.iloc[first]!r} in row {first + 1}: mend or drop such rows"


def read_table(path: Path) -> Table:
    """Read a CSV (also gzip) or Parquet file."""
    import pandas as pd

    if not path.exists():
        raise InputError(f"there is no file {path}")
    if path.is_dir():
        raise InputError(f"{path} is a directory: name a CSV or Parquet file")
    try:
        frame = pd.read_parquet(path) if path.suffix in (".parquet", ".pq") else pd.read_csv(path)
    except Exception as error:  # pandas and pyarrow raise many types for a file that is not what it seems
        raise InputError(f"{path} cannot be read as a table: {str(error).splitlines()[0]}") from error
    if frame.empty:
        raise InputError(f"{path} has no rows")
    if frame.columns.duplicated().any():
        raise InputError(f"{path} has two columns called {frame.columns[frame.columns.duplicated()][0]!r}")
    frame.columns = [str(c) for c in frame.columns]
    return Table(path, frame)
