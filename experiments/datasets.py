"""Load a data set of the paper by name, check its values by hash, download it where possible, and split its rows.

A data set is a CSV file (or CSV in gzip) with a header row, the target in the last column, rows in the order
of the public source and nothing scaled. The repository contains none of them; `catalogue` describes each.
"""

import csv
import difflib
import hashlib
import http.client
import io
import operator
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.catalogue import SOURCES, Mirror, Source, parse_table
from integrand.errors import DataSourceError, InputError
from integrand.files import atomic_write

DIRECTORY_VARIABLE = "INTEGRAND_DATA"
PAPER_SEED = 173
PAPER_TRAIN_FRACTION = 0.8


class NamedData(NamedTuple):
    """A data set with its names: X (N, D) and y (N,), in original units."""

    X: np.ndarray
    y: np.ndarray
    feature_names: tuple[str, ...]
    target_name: str
    name: str


def load(name: str | Source, directory: str | os.PathLike | None = None, download: bool = False) -> NamedData:
    """Read a named data set, and refuse one that is not exactly the known table.

    Parameters
    ----------
    name
        A key of `SOURCES`, or a `Source`.
    directory
        Where the files are; the environment variable INTEGRAND_DATA if left out.
    download
        Fetch the file into the directory if it is not there yet.
    """
    source, folder = _source(name), _directory(directory)
    path = _present(source, folder)
    if path is None and download:
        path = fetch(source, folder)
    if path is None:
        remedy = (
            "pass download=True to fetch it"
            if source.mirrors
            else f"it cannot be downloaded ({source.by_hand}); put it there by hand"
        )
        raise DataSourceError(
            f"no {' or '.join(source.file_names)} in {folder}: {remedy}, or name the directory that holds it "
            f"(directory=... or {DIRECTORY_VARIABLE})"
        )
    try:
        table = _verified(parse_table(path.read_bytes()), source)
    except OSError as error:
        raise DataSourceError(f"cannot read {path}: {error}. Check its permissions") from error
    except ValueError as error:
        again = f"fetch({source.name!r}, directory) replaces it" if source.mirrors else "replace it"
        raise DataSourceError(f"{path} is not the {source.name} data set: {error}. Delete it, or {again}") from error
    X, y = table[:, :-1].copy(), table[:, -1].copy()
    return NamedData(X, y, source.columns[:-1], source.columns[-1], source.name)


def available(directory: str | os.PathLike | None = None) -> tuple[str, ...]:
    """Names of the data sets with a file in the directory (content unchecked)."""
    folder = _directory(directory)
    return tuple(name for name, source in SOURCES.items() if _present(source, folder))


def fetch(
    name: str | Source,
    directory: str | os.PathLike | None = None,
    *,
    url: str | None = None,
    timeout: float = 30.0,
) -> Path:
    """Download, check and store a data set as `name.csv`; an existing file is replaced only by a good one.

    Parameters
    ----------
    name, directory
        As in `load`. The directory is made if it does not exist.
    url
        Another address. It serves the format of the first mirror, or without any a CSV as `load` reads it.
    timeout
        Seconds to wait for the server, at each step.
    """
    source, folder = _source(name), _directory(directory)
    mirrors = source.mirrors
    if url is not None:
        known = [mirror for mirror in mirrors if mirror.url == url]
        mirrors = (known[0] if known else Mirror(url, mirrors[0].parse if mirrors else parse_table),)
    if not mirrors:
        raise DataSourceError(
            f"{source.name} cannot be downloaded: {source.by_hand}. Put {source.file_names[0]} into {folder} "
            "by hand, or pass url= with the address of such a file"
        )
    path = folder / source.file_names[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Opened before the download: an unwritable directory should not cost the user a transfer.
        atomic_write(path, lambda stream: stream.write(_as_csv(source, _first_good(source, mirrors, timeout))))
    except OSError as error:
        raise DataSourceError(f"cannot write {path}: {error}. Choose a directory you may write to") from error
    return path


def _as_csv(source: Source, table: np.ndarray) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(source.columns)
    writer.writerows([repr(value) for value in row] for row in table.tolist())
    return text.getvalue().encode()


def values_hash(table: np.ndarray) -> str:
    """SHA-256 of the values as little-endian float64, row by row."""
    return hashlib.sha256(np.ascontiguousarray(table, dtype="<f8").tobytes()).hexdigest()


def _verified(table: np.ndarray, source: Source) -> np.ndarray:
    if table.shape != source.shape:
        raise ValueError(f"its shape (rows, columns with target) is {table.shape}, not {source.shape}")
    if values_hash(table) != source.sha256:
        raise ValueError(f"the shape {table.shape} is right but the SHA-256 is not: values changed or rows reordered")
    return table


def _first_good(source: Source, mirrors: tuple[Mirror, ...], timeout: float) -> np.ndarray:
    failures = []
    for mirror in mirrors:
        try:
            request = urllib.request.Request(mirror.url, headers={"User-Agent": "integrand"})
            with urllib.request.urlopen(request, timeout=timeout) as response:
                raw = response.read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            failures.append(f"{mirror.url} {_cause(error, timeout)}")
        else:
            try:
                return _verified(mirror.parse(raw), source)
            except ValueError as error:
                failures.append(f"{mirror.url} is not the {source.name} data set ({error})")
    raise DataSourceError(
        f"could not download {source.name}: {'; '.join(failures)}. Try again later, pass url= with another "
        f"address, or put {source.file_names[0]} into the directory by hand"
    )


def _cause(error: Exception, timeout: float) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"answered {error.code} {error.reason}"
    if isinstance(getattr(error, "reason", error), TimeoutError):
        return f"gave no answer within {timeout:g} s (timeout)"
    return f"could not be read ({error})"


def _source(name: str | Source) -> Source:
    if isinstance(name, Source):
        return name
    if isinstance(name, str) and name in SOURCES:
        return SOURCES[name]
    near = difflib.get_close_matches(str(name).lower(), SOURCES, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise DataSourceError(f"no data set is named {name!r}: {hint}Known names: {', '.join(SOURCES)}")


def _directory(directory: str | os.PathLike | None) -> Path:
    directory = directory or os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        raise DataSourceError(
            f"no data directory: pass directory=... (--data-dir on the command line), or set {DIRECTORY_VARIABLE}"
        )
    return Path(directory).expanduser()


def _present(source: Source, folder: Path) -> Path | None:
    return next((folder / name for name in source.file_names if os.path.isfile(folder / name)), None)


class PaperSplit(NamedTuple):
    """A split of the paper with its first inducing inputs.

    `inducing` counts within the training rows: the first Z is `X[train][inducing]`. It may repeat rows.
    """

    train: np.ndarray
    test: np.ndarray
    inducing: np.ndarray


def paper_split(n_rows: int, k: int, n_inducing: int = 100) -> PaperSplit:
    """Split k (the paper uses 0..9): seed 173 + k, shuffle, the first `int(0.8 N)` rows train.

    The first Z is drawn with replacement from the same random stream right after the shuffle. The paper's
    runs drop the last row of Yacht before splitting (N = 307).

    Parameters
    ----------
    n_rows
        N, the rows of the whole table in the order of its source file.
    k
        Number of the split.
    n_inducing
        M.
    """
    n_rows = _whole(n_rows, "n_rows", 2)
    k = _whole(k, "k", 0)
    n_inducing = _whole(n_inducing, "n_inducing", 0)
    # Legacy generator on purpose: only it repeats the np.random.seed stream behind the paper's numbers.
    stream = np.random.RandomState(PAPER_SEED + k)
    rows = np.arange(n_rows)
    stream.shuffle(rows)
    n_train = int(PAPER_TRAIN_FRACTION * n_rows)
    inducing = stream.randint(0, n_train, n_inducing)
    return PaperSplit(rows[:n_train], rows[n_train:], inducing)


def _whole(value: int, name: str, least: int) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        raise InputError(f"{name} must be a whole number, not {value!r}: pass an int") from None
    if whole < least:
        raise InputError(f"{name} must be at least {least}, not {whole}")
    return whole
