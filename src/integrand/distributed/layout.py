"""From rows of this process to a dataset of all of them: what they agree on, and where the rows are put."""

import math
from dataclasses import dataclass

import numpy as np

from integrand.data.dataset import Dataset, Rows, block_rows_for, cut
from integrand.data.disk import RowsOnDisk
from integrand.data.scaling import Standardiser
from integrand.data.spread import Spread, all_devices, local_devices
from integrand.data.stream import Stream
from integrand.data.survey import Survey, chosen_rows, combined, survey
from integrand.distributed.issuer import Issuer
from integrand.distributed.ranks import Ranks, gathered
from integrand.errors import InputError
from integrand.precision import float64_scope


@dataclass(frozen=True)
class Overview:
    """What all processes know of all rows after one pass: moments, ranges and a sample (target last)."""

    whole: Survey
    sample: np.ndarray
    names: tuple[str, ...]


def own_part(rows: RowsOnDisk, ranks: Ranks | None, divided: bool) -> RowsOnDisk:
    """The rows of this process: its share of a table that all can read, or all of `rows` where they are divided."""
    if ranks is None or divided:
        return rows
    told = ranks.exchange(rows.outline())
    for rank, theirs in enumerate(told):
        if theirs != told[0]:
            odd = [str(part) for part in (*theirs, *told[0]) if (part in theirs) != (part in told[0])]
            raise InputError(
                f"rank {rank} sees another table than rank 0 ({'; '.join(odd[:4])}): give all processes the same files"
            )
    return rows.part(ranks.rank, ranks.size)


def overview(rows: RowsOnDisk, ranks: Ranks | None, wanted: int, seed: int) -> Overview:
    """One pass over the rows of each process; then they tell each other what they saw."""
    rng = np.random.default_rng([seed, 77])
    if ranks is None:
        whole, sample = survey(rows, chosen_rows(rng, rows.n_rows, wanted))
        return Overview(whole, sample, rows.names)
    told = ranks.exchange([rows.n_rows, list(rows.names)])
    counts = [n for n, _ in told]
    for rank, (_, names) in enumerate(told):
        if names != told[0][1]:
            raise InputError(f"rank {rank} has the columns {', '.join(names)}, rank 0 {', '.join(told[0][1])}")
    if min(counts) == 0:
        raise InputError(f"rank {counts.index(0)} has no rows: use fewer processes")
    first = sum(counts[: ranks.rank])
    chosen = chosen_rows(rng, sum(counts), wanted)
    begin, end = np.searchsorted(chosen, [first, first + rows.n_rows])
    seen, some = ranks.all_or_none(lambda: survey(rows, chosen[begin:end] - first))
    parts = [Survey(n, *map(np.array, arrays)) for n, *arrays in ranks.exchange([seen.n_rows, *map(list, seen[1:])])]
    sample = Issuer(ranks).wait(lambda: gathered(all_devices(), some, int(begin), len(chosen)))
    return Overview(combined(parts), sample, rows.names)


def laid_out(
    rows: RowsOnDisk, scaler: Standardiser, n_rows: int, n_inducing: int, memory: int, ranks: Ranks | None
) -> Dataset:
    """The dataset of all processes: rows in memory, over all devices, or read from disk at every pass.

    `memory` is what the rows of this process may take, in bytes; beyond it they stay on disk.
    """
    spread = all_devices() if ranks is not None else local_devices()
    length = block_rows_for(n_inducing)
    most = rows.n_rows if ranks is None else max(ranks.exchange(rows.n_rows))
    on_disk = 8 * most * (rows.n_columns + 2) > memory
    alone = spread.n_devices == 1
    if on_disk:
        stream = Stream(rows, scaler, length, most, devices=spread.n_local)
        return Dataset(None, n_rows, spread=None if alone else spread, stream=stream)
    table = rows.read(0, rows.n_rows) if ranks is None else ranks.all_or_none(lambda: rows.read(0, rows.n_rows))
    X, y = scaler.transform_X(table[:, :-1]), scaler.transform_y(table[:, -1])
    if alone:
        return Dataset.of(X, y, length)
    return sharded(X, y, n_rows, most, length, spread)


def sharded(X: np.ndarray, y: np.ndarray, n_rows: int, most: int, length: int, spread: Spread) -> Dataset:
    """Rows over the devices of a mesh: those of this process over its own, as many blocks on each as on any other.

    `most` is the largest number of rows that a process has: all have as many blocks, filled up with rows of weight 0.
    """
    each = math.ceil(most / spread.n_local)
    n_blocks = max(1, math.ceil(each / length))
    length = math.ceil(each / n_blocks)
    total = n_blocks * spread.n_local
    with float64_scope():
        blocks = Rows(*(spread.place(cut(a, length, total)) for a in (X, y, np.ones(len(y)))))
        return Dataset(blocks, n_rows, spread=spread)
