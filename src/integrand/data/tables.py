"""Tables in files: columns of CSV, gzip CSV and Parquet files as numbers, with one set of messages; and tables out.

A `Selection` says which columns are inputs, and a `DateRule` how dates become numbers. Parquet files of any length are
read and written a block of rows at a time.
"""

import contextlib
import difflib
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from integrand.data.categories import codes_of, levels_of, sorted_levels
from integrand.errors import InputError, need
from integrand.files import replacing

PARQUET = (".parquet", ".pq")
# Names of the levels of columns that hold categories, by the names of the columns.
Levels = Mapping[str, Sequence[str]]
NO_LEVELS: Mapping[Any, Any] = MappingProxyType({})
# Columns that are named where one is missing.
_MOST_NAMES = 30
# How tables of predictions may end, and files that people try in their place.
WRITTEN = (".csv", ".csv.gz", *PARQUET)
_FOREIGN = (".xlsx", ".xls", ".ods", ".json", ".feather", ".sav", ".dta", ".rds", ".mat", ".h5")
_ENCODE = "drop it, or for categories give categories=[{name!r}] and use Categorical({name!r}) in the kernel"
# What to do about a column of words, by the flag of the command that takes kernels; without one the fit is over.
_LEAVE_OUT = {
    "--kernel": (
        "name it in the kernel, as in --kernel \"categorical('{name}')*rbf\", give --id {name} if it names the "
        "rows, or leave it out with --drop {name}"
    ),
    "--kernels": (
        "name it in every kernel, as in --kernels \"categorical('{name}')*rbf, categorical('{name}')*matern32\", give "
        "--id {name} if it names the rows, or leave it out with --drop {name}"
    ),
    "": "the model was fitted to numbers there: write numbers",
}
_CLASSES = (
    "is the target and holds words. Classes are for SparseGPClassifier in Python; the command line fits numbers: write "
    "two classes as 0 and 1 and give --likelihood bernoulli"
)
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
# Units of `--dates` in seconds.
DATE_UNITS = {
    "seconds": 1.0,
    "minutes": 60.0,
    "hours": 3_600.0,
    "days": 86_400.0,
    "weeks": 604_800.0,
    "years": 365.25 * 86_400.0,
}
_ISO = "ISO8601"
_DATE_FORMATS = (_ISO, "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S")
_SLASHED = ("%m/%d/%Y", "%d/%m/%Y", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S")


def leave_out(name: str, kernel_flag: str = "--kernel") -> str:
    """What to do about a column of words, on the command line."""
    return _LEAVE_OUT[kernel_flag].format(name=name)


def refuse_missing(place: object, names: Sequence[str], available: Sequence[Any]) -> None:
    """All of these columns must be there."""
    missing = [name for name in names if name not in available]
    if missing:
        names = list(map(str, available))
        has = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        by_case = {name.lower(): name for name in names}
        close = difflib.get_close_matches(str(missing[0]).lower(), by_case, 1)
        hint = f" (did you mean {by_case[close[0]]!r}?)" if close else ""
        raise InputError(f"{place} has no column {', '.join(map(repr, missing))}: it has {has}{hint}")


def refuse_not_numeric(place: object, name: str, remedy: str = _ENCODE) -> None:
    """A column holds something else than numbers."""
    raise InputError(f"{place}: column {name!r} is not numeric: {remedy.format(name=name)}")


def refuse_non_finite(values: np.ndarray, names: Sequence[str], where: Callable[[int], str]) -> None:
    """No value may be missing or infinite; `where` gives the place of a row."""
    if not np.isfinite(values).all():
        row, column = map(int, np.argwhere(~np.isfinite(values))[0])
        raise InputError(f"{where(row)}: column {names[column]!r} is missing or infinite: drop or impute such rows")


def refuse_words_as_target(place: object, name: str) -> None:
    """A target of words is one of classes, which need numbers here."""
    raise InputError(f"{place}: column {name!r} {_CLASSES}")


@dataclass(frozen=True)
class DateRule:
    """How the dates of a column become numbers: `(date - origin) / unit`, a model file keeps it.

    Dates are read as ISO 8601, with dots as day.month.year, and with slashes in the one order that fits all rows.
    """

    column: str
    unit: str
    origin: str
    format: str

    @classmethod
    def fit(cls, place: object, name: str, unit: str, column: Any) -> "DateRule":
        """The rule for this column of the training rows; its origin is the first date."""
        if unit not in DATE_UNITS:
            raise InputError(f"--dates {name}:{unit}: there is no unit {unit!r}: choose from {', '.join(DATE_UNITS)}")
        if column.dtype.kind in "iufb":
            raise InputError(f"--dates {name}: column {name!r} of {place} holds numbers already: leave --dates out")
        style = _date_style(place, name, column)
        return cls(name, unit, _moments(column, style).min().isoformat(), style)

    def numbers(self, place: object, column: Any) -> np.ndarray:
        """The column as float64; missing dates are NaN."""
        import pandas as pd

        moments = _moments(column, self.format)
        strays = np.asarray(moments.isna() & column.notna())
        if strays.any():
            row = int(strays.argmax())
            what = f"{column.iloc[row]!r} in column {self.column!r} is no date of the form of the fit"
            raise InputError(f"{place}, row {row + 1}: {what}: write it like {self._example}")
        return ((moments - pd.Timestamp(self.origin)).dt.total_seconds() / DATE_UNITS[self.unit]).to_numpy(float)

    @property
    def _example(self) -> str:
        """The first date of the fit, as it was written there."""
        if self.format == _ISO:
            return self.origin.removesuffix("T00:00:00").replace("T", " ").removesuffix(":00")
        return datetime.fromisoformat(self.origin).strftime(self.format)

    def __str__(self) -> str:
        return f"{self.column} in {self.unit} since {self.origin.removesuffix('T00:00:00')}"


def _moments(column: Any, style: str) -> Any:
    """Dates without a time zone (UTC where there was one); NaT for what does not fit."""
    import pandas as pd

    if column.dtype.kind == "M":
        return pd.to_datetime(column, utc=True).dt.tz_localize(None)
    return pd.to_datetime(column.astype("string"), errors="coerce", utc=True, format=style).dt.tz_localize(None)


def _date_style(place: object, name: str, column: Any) -> str:
    """The format that fits all values of a column."""
    known = column[column.notna()]
    if known.dtype.kind == "M" or len(known) == 0:
        return _ISO
    fits = [style for style in (*_DATE_FORMATS, *_SLASHED) if _moments(known, style).notna().all()]
    if len(fits) > 1 and fits[0] in _SLASHED:
        raise InputError(
            f"{place}: the dates of column {name!r}, such as {known.iloc[0]!r}, can be read with the month or the day "
            "first: write them as 2024-03-31"
        )
    if not fits:
        best = max(_DATE_FORMATS, key=lambda style: int(_moments(known, style).notna().sum()))
        row = int(np.asarray(_moments(column, best).isna() & column.notna()).argmax())
        raise InputError(
            f"{place}, row {row + 1}: {column.iloc[row]!r} in column {name!r} is no date: write dates as 2024-03-31 or "
            "2024-03-31 17:30"
        )
    return fits[0]


def _holds_dates(column: Any) -> bool:
    if column.dtype.kind == "M":
        return True
    some = column[column.notna()][:50]
    return len(some) > 0 and any(_moments(some, style).notna().all() for style in (*_DATE_FORMATS, *_SLASHED))


@dataclass(frozen=True)
class Selection:
    """Which columns of a table are inputs: by default all but the target.

    Parameters
    ----------
    features
        The inputs.
    drop
        Columns to leave out.
    ids
        Columns that name the rows: no inputs, and predictions keep them.
    dates
        Columns that hold dates, each as `name` or `name:unit`; days by default.
    sep
        What separates columns of a CSV file; None looks at the first lines.
    kernel_flag
        The flag of the command that takes kernels, for its advice: `--kernel` or `--kernels`.
    """

    features: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    sep: str | None = None
    kernel_flag: str = "--kernel"

    @property
    def chooses(self) -> bool:
        """Whether it says more than how the file is written."""
        return bool(self.features or self.drop or self.ids or self.dates)


class Chosen(NamedTuple):
    """Inputs, target, names of the inputs, how dates became numbers, what is worth saying of the table, and levels.

    The levels are those of the columns that hold categories, by the names of the columns.
    """

    X: np.ndarray
    y: np.ndarray
    names: list[str]
    dates: tuple[DateRule, ...]
    remarks: tuple[str, ...]
    levels: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Table:
    """Columns of a file, in memory."""

    path: Path
    frame: Any  # pandas.DataFrame
    remarks: tuple[str, ...] = ()

    def columns(
        self, names: Sequence[str], dates: Sequence[DateRule] = (), levels: Levels = NO_LEVELS, kernel_flag: str = ""
    ) -> np.ndarray:
        """These columns as a float64 matrix; codes in the place of categories. The flag is that of `Selection`."""
        refuse_missing(self.path, names, list(self.frame.columns))
        rules, values = {rule.column: rule for rule in dates}, np.empty((len(self.frame), len(names)))
        for i, name in enumerate(names):
            column = self.frame[name]
            if name in levels:
                values[:, i] = codes_of(column, levels[name], name)
            elif name in rules:
                values[:, i] = rules[name].numbers(self.path, column)
            elif column.dtype.kind not in "iufb":
                refuse_not_numeric(self.path, name, _remedy(name, column, kernel_flag))
            else:
                values[:, i] = column.to_numpy(dtype=float)
        refuse_non_finite(values, names, lambda row: f"{self.path}, row {row + 1}")
        return values

    def target(self, name: str) -> np.ndarray:
        """The column of y."""
        refuse_missing(self.path, [name], list(self.frame.columns))
        column = self.frame[name]
        if column.dtype.kind not in "iufb" and not _holds_dates(column) and _mostly(_strays(column), column):
            refuse_words_as_target(self.path, name)
        return self.columns([name])[:, 0]

    def variances(self, name: str) -> np.ndarray:
        """A column of known variances of the noise."""
        v = self.columns([name])[:, 0]
        if (v < 0).any():
            row = int(np.argmax(v < 0))
            what = f"{self.path}, row {row + 1}: column {name!r} is {v[row]:g}"
            raise InputError(f"{what}: a variance, in squared units of the target, is not negative")
        return v

    def ids(self, names: Sequence[str]) -> dict[str, Any]:
        """Columns that name the rows, as they are; those that this table does not have are left out."""
        return {name: self.frame[name].to_numpy() for name in names if name in self.frame.columns}

    def split(self, target: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Inputs, target and the names of the inputs (all other columns)."""
        chosen = self.choose(target, Selection())
        return chosen.X, chosen.y, chosen.names

    def choose(
        self, target: str, selection: Selection, categories: Mapping[int | str, Sequence[str] | None] = NO_LEVELS
    ) -> Chosen:
        """Inputs and target as a selection says; `categories` are the columns, by name or number, that hold them."""
        available, remarks = [str(c) for c in self.frame.columns], list(self.remarks)
        units = dict(
            (name, unit or "days") for name, unit in (_date_option(text, available) for text in selection.dates)
        )
        for flag, names in (
            ("--target", (target,)),
            ("--features", selection.features),
            ("--drop", selection.drop),
            ("--id", selection.ids),
            ("--dates", tuple(units)),
        ):
            refuse_missing(f"{flag}: {self.path}", names, available)
        if target in (*selection.features, *selection.drop, *selection.ids, *units):
            raise InputError(f"{target!r} is the target: it cannot be an input, an id or left out")
        y = self.target(target)
        left_out = {target, *selection.drop, *selection.ids}
        names = list(selection.features) or [name for name in available if name not in left_out]
        if not selection.features and names and self._counts_rows(names[0]):
            if re.fullmatch(r"Unnamed: 0|__index_level_0__", names[0]):
                remarks.append(f"{self.path}: the first column has no name and counts the rows: it is left out")
                names = names[1:]
            elif len(names) > 1:
                remarks.append(
                    f"{self.path}: column {names[0]!r} counts the rows. If it names them, give --id {names[0]}; it is "
                    "an input now"
                )
        both = [name for name in selection.features if name in (*selection.drop, *selection.ids)]
        if both:
            raise InputError(f"{both[0]!r} is under --features and under --drop or --id: choose one")
        if not names:
            raise InputError(f"{self.path} has no column besides the target {target!r}")
        levels = {
            name: tuple(of_column or levels_of(self.frame[name], name))
            for key, of_column in categories.items()
            if (name := names[key] if isinstance(key, int) and key < len(names) else key) in names
        }
        self._refuse_several([name for name in names if name not in units and name not in levels], selection)
        rules = tuple(
            DateRule.fit(self.path, name, unit, self.frame[name]) for name, unit in units.items() if name in names
        )
        remarks += [str(rule) for rule in rules]
        X = self.columns(names, rules, levels, selection.kernel_flag)
        return Chosen(X, y, names, rules, tuple(remarks), levels)

    def _refuse_several(self, names: Sequence[str], selection: Selection) -> None:
        """Name all columns that are not numeric at once, and the flags that help."""
        others = [name for name in names if self.frame[name].dtype.kind not in "iufb"]
        dates = [name for name in others if _holds_dates(self.frame[name])]
        text = [name for name in others if name not in dates]
        if len(others) > 1:
            flag, several = selection.kernel_flag, selection.kernel_flag == "--kernels"
            each, more = ("every", ", ...") if several else ("the", "")
            flags = [f"--{name} {','.join(found)}" for name, found in (("dates", dates), ("drop", text)) if found]
            raise InputError(
                f"{self.path}: columns {', '.join(map(repr, others))} are not numeric: give {' '.join(flags)}, "
                f"or name categories in {each} kernel, as in {flag} \"categorical('name')*rbf{more}\"; --id is for "
                "columns that name the rows"
            )

    def _counts_rows(self, name: str) -> bool:
        """Whether a column is 0, 1, 2, ... or 1, 2, 3, ..."""
        values = self.frame[name]
        if values.dtype.kind not in "iu" or len(values) < 3:
            return False
        return values.iloc[0] in (0, 1) and bool((values == np.arange(len(values)) + values.iloc[0]).all())


def _date_option(text: str, available: Sequence[str]) -> tuple[str, str]:
    """A column and its unit, from `name` or `name:unit`; names may hold colons."""
    name, _, unit = text.rpartition(":")
    return (name, unit) if text not in available and name in available else (text, "days")


def _remedy(name: str, column: Any, kernel_flag: str) -> str:
    """What to do about a column that is not numeric: most of it may be numbers."""
    if kernel_flag and _holds_dates(column):
        return f"it holds dates: give --dates {name} (days since the first one), or leave it out with --drop {name}"
    strays = _strays(column)
    count, first = int(strays.sum()), int(strays.argmax())
    if _mostly(strays, column):
        example = str(column[strays].iloc[0])
        if column[strays].astype(str).str.fullmatch(r"\s*[+-]?\d[\d.,' ]*\s*").all():
            return f"its numbers are written like {example!r}: use a point for decimals, and nothing between thousands"
        return leave_out(name, kernel_flag)
    some = f"{count} of its values are no numbers" if count > 1 else "one of its values is no number"
    return f"{some}, the first {column.iloc[first]!r} in row {first + 1}: mend or drop such rows"


def _strays(column: Any) -> np.ndarray:
    """Which values are there and no numbers."""
    import pandas as pd

    return np.asarray(column.notna(), bool) & np.isnan(np.asarray(pd.to_numeric(column, errors="coerce"), float))


def _mostly(strays: np.ndarray, column: Any) -> bool:
    """Whether these are at least half of the values that are there."""
    return bool(strays.any() and 2 * strays.sum() >= column.notna().sum())


def read_table(path: Path, sep: str | None = None) -> Table:
    """Read a CSV (also gzip) or Parquet file; without `sep` the first lines tell what separates its columns."""
    need("pandas", "cli", "reading a table")
    import pandas as pd

    if not path.exists():
        raise InputError(f"there is no file {path}")
    if path.is_dir():
        raise InputError(f"{path} is a directory: name a CSV or Parquet file")
    if path.suffix.lower() in _FOREIGN:
        raise InputError(f"{path}: {path.suffix} files cannot be read: save the table as CSV or Parquet")
    remarks: tuple[str, ...] = ()
    if path.suffix in PARQUET:
        need("pyarrow", "arrow", f"{path}")
    try:
        if path.suffix in PARQUET:
            frame = pd.read_parquet(path)
        else:
            chosen = _separator(path) if sep is None else "\t" if sep in ("\\t", "tab") else sep
            frame = pd.read_csv(path, sep=chosen, skipinitialspace=True)
            comma = chosen == ";" and _decimal_commas(frame)
            frame = pd.read_csv(path, sep=chosen, decimal=",", skipinitialspace=True) if comma else frame
            if chosen != "," and sep is None:
                decimals = ", decimals by commas" if comma else ""
                remarks = (f"{path}: columns are separated by {_SEPARATORS[chosen]}{decimals}",)
    except Exception as error:  # pandas and pyarrow raise many types for a file that is not what it seems
        raise InputError(f"{path} cannot be read as a table: {_first_line(error)}") from error
    if path.suffix not in PARQUET and len(frame.columns) == 1:
        _refuse_one_column(path, sep, str(frame.columns[0]), frame.iloc[:, 0].dtype.kind in "iufb")
    if frame.empty:
        raise InputError(f"{path} has no rows")
    if frame.columns.duplicated().any():
        raise InputError(f"{path} has two columns called {frame.columns[frame.columns.duplicated()][0]!r}")
    frame.columns = [str(c) for c in frame.columns]
    return Table(path, frame, remarks)


def _separator(path: Path) -> str:
    """The separator that cuts the first lines into the same number of columns, the most of them."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", errors="replace") as file:
        lines = [line for line in (file.readline() for _ in range(20)) if line.strip()]
    counts = {s: [len(re.sub(r'"[^"]*"', "", line).split(s)) for line in lines] for s in _SEPARATORS}
    even = {s: n[0] for s, n in counts.items() if n and n[0] > 1 and len(set(n)) == 1}
    return max(even, key=lambda s: even[s], default=",")


def _refuse_one_column(path: Path, sep: str | None, name: str, numeric: bool) -> None:
    """What became one column may be several, with another separator."""
    other = _separator(path)
    if sep is not None and other in name:
        raise InputError(f"{path}: columns are separated by {_SEPARATORS[other]}, not by {sep!r}: leave --sep out")
    if sep is None and not numeric and len(name.split()) > 1:
        raise InputError(f"{path} has one column, {name!r}: if spaces separate columns, give --sep '\\s+'")


def _decimal_commas(frame: Any) -> bool:
    """Whether a column holds numbers such as 3,14 and nothing else."""
    texts = [frame[name].dropna().astype(str) for name in frame.columns if frame[name].dtype.kind not in "iufb"]
    return any(len(text) > 0 and text.str.fullmatch(r"\s*[+-]?\d+(,\d+)?([eE][+-]?\d+)?\s*").all() for text in texts)


def check_written(path: Path) -> None:
    """Refuse the name of a table that would be written in another format than its name says."""
    if not path.name.lower().endswith(WRITTEN):
        raise InputError(f"--out {path}: tables are written as {', '.join(WRITTEN[:-1])} or {WRITTEN[-1]}")


class ParquetColumns:
    """Numeric columns of Parquet files, one file after the other, with one row group in memory.

    Parameters
    ----------
    files
        Files with the same columns.
    names
        Columns to read.
    levels
        Columns that hold categories, each with its levels, or None: those that occur. They are read as codes.
    """

    def __init__(
        self, files: Sequence[Path], names: Sequence[str], levels: Mapping[str, Sequence[str] | None] = NO_LEVELS
    ):
        self.files, self.names = tuple(files), tuple(names)
        columns = parquet_schema(self.files[0])
        refuse_missing(self.files[0], [*self.names, *levels], list(columns))
        for name in self.names:
            if columns[name] != "number" and name not in levels:
                refuse_not_numeric(self.files[0], name)
        self._ends = np.cumsum([rows for _, _, rows in self._groups])
        self.n_rows = int(self._ends[-1]) if len(self._ends) else 0
        if self.n_rows == 0:
            raise InputError(f"{self.files[0]} has no rows")
        self._latest: tuple[int, np.ndarray] = (-1, np.zeros((0, 0)))
        self.levels = {name: tuple(of_column or self._levels_of(name)) for name, of_column in levels.items()}

    def _levels_of(self, name: str) -> tuple[str, ...]:
        """The levels that occur in a column of all files, by one pass over this column."""
        found: set[str] = set()
        for file, group, _ in self._groups:
            column = _open_parquet(file).read_row_group(group, columns=[name]).column(name).unique().to_pandas()
            found |= set(levels_of(np.asarray(column, object), name))
        return sorted_levels(found, name)

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
                columns = [self._numbers(name, read.column(name)) for name in self.names]
            except InputError:
                raise
            except Exception as error:  # pyarrow raises many types for a file that is not what it seems
                raise InputError(f"{file} cannot be read: row group {group}: {_first_line(error)}") from error
            table = np.stack([np.asarray(column, float) for column in columns], axis=1)
            self._latest = (k, table)
        return table

    def _numbers(self, name: str, column: Any) -> np.ndarray:
        """A column as it is, or codes in the place of categories."""
        if name not in self.levels:
            return column.to_numpy()
        return codes_of(np.asarray(column.to_pandas(), object), self.levels[name], name)

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
    """What went wrong, in one line."""
    if isinstance(error, UnicodeDecodeError):
        return "it is no text in UTF-8: save it as CSV in UTF-8, or as Parquet"
    if ragged := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
        wanted, line, found = ragged.groups()
        return f"line {line} has {found} columns and the lines before it {wanted}: mend this line"
    return (str(error).splitlines() or [type(error).__name__])[0]


def column_names(path: Path, sep: str | None = None) -> list[str]:
    """Names of the columns of a table in a file."""
    if path.suffix in PARQUET and path.is_file():
        return list(parquet_schema(path))
    return [str(c) for c in read_table(path, sep).frame.columns]


class TableBlock(NamedTuple):
    """Some rows: inputs as float64, and the columns that name the rows."""

    X: np.ndarray
    ids: dict[str, Any]


def table_blocks(
    path: Path,
    names: Sequence[str],
    rows: int,
    *,
    dates: Sequence[DateRule] = (),
    ids: Sequence[str] = (),
    sep: str | None = None,
    levels: Levels = NO_LEVELS,
) -> Iterator[TableBlock]:
    """These columns of a table, `rows` rows at a time. A Parquet file of numbers alone is never read as a whole."""
    if path.suffix not in PARQUET or not path.is_file() or dates or ids:
        table = read_table(path, sep)
        values, named = table.columns(names, dates, levels), table.ids(ids)
        for i in range(0, len(values), rows):
            yield TableBlock(values[i : i + rows], {name: column[i : i + rows] for name, column in named.items()})
        return
    table = ParquetColumns([path], names, levels)
    for first in range(0, table.n_rows, rows):
        block = table.read(first, min(first + rows, table.n_rows))
        refuse_non_finite(block, names, lambda row, first=first: table.where(first + row))
        yield TableBlock(block, {})


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
        self.file: Any = gzip.open(path, "wt", newline="") if packed else open(path, "w", newline="")  # noqa: SIM115
        self.begun = False

    def write(self, block: Block) -> None:
        import pandas as pd

        pd.DataFrame(block).to_csv(self.file, index=False, header=not self.begun)
        self.begun = True

    def close(self) -> None:
        self.file.close()
