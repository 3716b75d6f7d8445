"""Predictions for a Parquet file of any length: read, predict and write a block of rows at a time."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from integrand.errors import InputError
from integrand.files import replacing

Block = dict[str, np.ndarray]


def parquet_blocks(path: Path, names: Sequence[str], rows: int) -> Iterator[np.ndarray]:
    """These columns of a Parquet file, `rows` rows at a time, as float64 matrices."""
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        found = file.schema_arrow
    except Exception as error:  # pyarrow raises many types for a file that is not what it seems
        raise InputError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from error
    missing = [name for name in names if name not in found.names]
    if missing:
        has = ", ".join(found.names)
        raise InputError(f"{path} has no column {', '.join(map(repr, missing))}: it has {has}")
    if file.metadata.num_rows == 0:
        raise InputError(f"{path} has no rows")
    first = 0
    for batch in _readable(path, file.iter_batches(batch_size=rows, columns=list(names))):
        try:
            table = np.stack([batch.column(name).to_numpy(zero_copy_only=False) for name in names], axis=1)
            table = table.astype(float)
        except (TypeError, ValueError) as error:
            raise InputError(f"{path} has columns that are not numeric ({error}): encode or drop them") from error
        bad = np.argwhere(~np.isfinite(table))
        if len(bad):
            row, column = bad[0]
            raise InputError(
                f"{path}: a missing or infinite value in row {first + row + 1}, column {names[column]!r}: drop or "
                "impute them"
            )
        first += len(table)
        yield table


def _readable(path: Path, batches: Iterator[Any]) -> Iterator[Any]:
    """Batches of rows; what cannot be read is the file's fault, not that of who uses them."""
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except Exception as error:
            raise InputError(f"{path} cannot be read to its end: {str(error).splitlines()[0]}") from error
        yield batch


@contextlib.contextmanager
def block_writer(path: Path) -> Iterator[Callable[[Block], None]]:
    """Write blocks of columns to a Parquet or CSV file; it appears as a whole, or not at all."""
    try:
        with replacing(path) as temporary, contextlib.closing(_writer(temporary, path.suffix)) as writer:
            yield writer.write
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


def _writer(path: Path, suffix: str) -> "_Parquet | _Csv":
    return _Parquet(path) if suffix in (".parquet", ".pq") else _Csv(path, packed=suffix == ".gz")


class _Parquet:
    def __init__(self, path: Path):
        self.path, self.file = path, None

    def write(self, block: Block) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table: Any = pa.table(block)
        if self.file is None:
            self.file = pq.ParquetWriter(self.path, table.schema)
        self.file.write_table(table)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


class _Csv:
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
