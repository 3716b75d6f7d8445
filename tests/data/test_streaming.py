"""Rows that are read while others compute give what rows in memory give."""

import threading
import time

import numpy as np
import pandas as pd
import pytest

import integrand.data.streaming
from integrand import RBF, Dataset, InputError
from integrand.data.parquet import open_rows
from integrand.data.scaling import Standardiser
from integrand.data.sources import MappedRows, RowSource
from integrand.data.streaming import Stream
from integrand.model import Model
from integrand.targets import CollapsedTarget
from played_processes import agreeing

N, D, M = 1003, 3, 7  # 1003 = 17 · 59
rng = np.random.default_rng(0)
X = rng.standard_normal((N, D)) * [1.0, 10.0, 0.1] + [0.0, 1e3, -1.0]
Y = np.sin(2 * X[:, 0]) + 0.1 * X[:, 1] + 0.2 * rng.standard_normal(N)
SCALER = Standardiser.fit(X, Y)
MODEL = Model(RBF(), D, bound="tight")
PHI = MODEL.start() + 0.3 * rng.standard_normal(MODEL.n_theta)
Z = rng.standard_normal((M, D))
ROW_BYTES = 8 * (D + 2)


def streamed(rows: RowSource, length: int, blocks: int, monkeypatch) -> Dataset:
    """A dataset that reads chunks of so many blocks of so many rows."""
    monkeypatch.setattr(integrand.data.streaming, "CHUNK_BYTES", ROW_BYTES * length * blocks)
    return Dataset(None, rows.n_rows, stream=Stream(rows, SCALER, length, rows.n_rows))


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    frame = pd.DataFrame(X, columns=list("abc")).assign(y=Y)
    frame[:400].to_parquet(folder / "0.parquet", row_group_size=150)
    frame[400:].to_parquet(folder / "1.parquet", row_group_size=77)
    return open_rows(folder, "y")


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mapped")
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", Y)
    return MappedRows(np.load(folder / "X.npy", mmap_mode="r"), np.load(folder / "y.npy", mmap_mode="r"))


def numbers(data: Dataset) -> list[np.ndarray]:
    """Bound, gradient in φ and in Z, the value alone, and what predicts."""
    target = CollapsedTarget(MODEL, data)
    e = target.evaluate(PHI, Z)
    _, m, LB = target.inducing_posterior(PHI, Z)
    return [np.array(a) for a in (e.log_likelihood, e.d_likelihood, e.dZ, target.value(PHI, Z), m, LB)]


@pytest.fixture(scope="module")
def in_memory():
    return numbers(Dataset.of(SCALER.transform_X(X), SCALER.transform_y(Y)))


def assert_equal_to_rounding(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert np.abs(a - b).max() <= 1e-10 * np.abs(b).max()


@pytest.mark.parametrize(("length", "blocks", "chunks"), [(64, 2, 8), pytest.param(59, 1, 17, marks=pytest.mark.slow)])
def test_chunks_of_any_size_give_the_sums_of_memory(length, blocks, chunks, parquet, in_memory, monkeypatch):
    data = streamed(parquet, length, blocks, monkeypatch)
    assert data.streaming.n_chunks == chunks
    assert data.n_columns == D
    assert data.n_padded >= N
    assert not data.local
    assert_equal_to_rounding(numbers(data), in_memory)


def test_memory_mapped_arrays_do_too(mapped, in_memory, monkeypatch):
    value = CollapsedTarget(MODEL, streamed(mapped, 64, 2, monkeypatch)).value(PHI, Z)
    assert value == pytest.approx(float(in_memory[3]), rel=1e-10)


@pytest.mark.slow
def test_parts_are_filled_up_to_the_longest(parquet, monkeypatch):
    """A process with fewer rows than another has as many chunks, and what fills them weighs nothing."""
    part = parquet.among(agreeing(1, 3))
    monkeypatch.setattr(integrand.data.streaming, "CHUNK_BYTES", ROW_BYTES * 64)
    data = Dataset(None, part.n_own, stream=Stream(part, SCALER, 64, 600))
    assert data.streaming.n_chunks == 10 > part.n_own / 64
    own = part.own
    here = Dataset.of(SCALER.transform_X(X[own]), SCALER.transform_y(Y[own]))
    for a, b in zip(*(CollapsedTarget(MODEL, d).evaluate(PHI, Z) for d in (data, here)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_a_second_pass_reads_again_and_gives_the_same(parquet, monkeypatch):
    data = streamed(parquet, 100, 1, monkeypatch)
    target = CollapsedTarget(MODEL, data)
    assert target.value(PHI, Z) == target.value(PHI, Z)
    moved = target.value(PHI + 0.1, Z)
    assert moved != target.value(PHI, Z)


def test_it_cannot_be_taken_as_one_array(parquet, monkeypatch):
    with pytest.raises(InputError, match="needs all rows in one process"):
        streamed(parquet, 100, 1, monkeypatch).arrays()


# --- reads that fail


class Watched(RowSource):
    """Rows in memory that note who reads them, and fail where they are told to."""

    def __init__(self):
        super().__init__(("a", "b", "c"), N)
        self.fails_at, self.error, self.reads = N + 1, None, []

    def values(self, first, last):
        self.reads.append((first, last))
        if first <= self.fails_at < last and self.error is not None:
            raise self.error
        return np.column_stack([X, Y])[first:last]

    def where(self, row):
        return f"row {row}"

    def describe(self):
        return {}


def test_a_value_that_becomes_nan_is_an_input_error(tmp_path, monkeypatch, caplog):
    """Between two passes a row of the file is lost: the message names it, not JAX."""
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r+")
    target = CollapsedTarget(MODEL, streamed(MappedRows(mapped, Y), 64, 2, monkeypatch))
    assert np.isfinite(target.value(PHI, Z))
    mapped[700, 1] = np.nan
    with pytest.raises(InputError, match="row 700: column 'x1' is missing or infinite"):
        target.value(PHI, Z)
    with pytest.raises(InputError, match="row 700"):
        target.inducing_posterior(PHI, Z)
    assert not caplog.records  # nor does JAX log the callback that failed, with its stack


def test_a_file_that_goes_away_is_an_input_error(tmp_path, monkeypatch):
    frame = pd.DataFrame(X, columns=list("abc")).assign(y=Y)
    frame[:500].to_parquet(tmp_path / "0.parquet", row_group_size=100)
    frame[500:].to_parquet(tmp_path / "1.parquet", row_group_size=100)
    target = CollapsedTarget(MODEL, streamed(open_rows(tmp_path, "y"), 64, 2, monkeypatch))
    assert np.isfinite(target.value(PHI, Z))
    (tmp_path / "1.parquet").unlink()
    with pytest.raises(InputError, match=r"1\.parquet"):
        target.value(PHI, Z)


def test_a_read_that_failed_once_can_succeed_again(monkeypatch):
    rows = Watched()
    target = CollapsedTarget(MODEL, streamed(rows, 64, 2, monkeypatch))
    before = target.value(PHI, Z)
    rows.fails_at, rows.error = 500, InputError("the disk was away")
    with pytest.raises(InputError, match="the disk was away"):
        target.value(PHI, Z)
    rows.error = None
    try:
        after = target.value(PHI, Z)
    except InputError:  # what had been read ahead
        after = target.value(PHI, Z)
    assert after == before


def test_another_error_is_not_taken_for_the_one_before(monkeypatch):
    """A read fails, a later one succeeds; an error that has nothing to do with reading is then itself."""
    rows = Watched()
    data = streamed(rows, 64, 2, monkeypatch)
    target = CollapsedTarget(MODEL, data)
    rows.fails_at, rows.error = 0, InputError("the disk was away")
    with pytest.raises(InputError, match="the disk was away"):
        target.value(PHI, Z)
    rows.error = None

    def wrong():
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        data.on_all_processes("value", PHI, Z, wrong)


# --- reading ahead


def test_the_next_chunk_is_read_while_this_one_is_used():
    rows = Watched()
    stream = Stream(rows, SCALER, 64, N)
    stream.n_blocks, stream.chunk_rows, stream.n_chunks = 1, 64, 16
    stream._chunk(np.array(3))
    deadline = time.monotonic() + 10.0
    while len(rows.reads) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert rows.reads == [(192, 256), (256, 320)]
    stream._chunk(np.array(4))  # not read again
    assert rows.reads.count((256, 320)) == 1


def test_chunks_read_ahead_do_not_accumulate(monkeypatch):
    """However many passes there are, one chunk waits to be used, and every read is used but for the last."""
    rows, most = Watched(), []
    target = CollapsedTarget(MODEL, streamed(rows, 64, 1, monkeypatch))
    stream = target.data.streaming
    inner = stream._chunk

    def counted(number):
        chunk = inner(number)
        most.append(len(stream._next))
        return chunk

    monkeypatch.setattr(stream, "_chunk", counted)
    for k in range(5):
        target.value(PHI + 0.01 * k, Z)
    assert len(most) == 5 * 16
    assert max(most) == 1
    assert len(rows.reads) <= 5 * 16 + 1
    assert sum(t.name.startswith("integrand-read") for t in threading.enumerate()) < 20


def test_a_chunk_is_standardised_and_its_padding_weighs_nothing():
    stream = Stream(Watched(), SCALER, 64, N)
    table = np.asarray(stream._chunk(np.array(0))).view(np.float64).reshape(-1, D + 2)
    np.testing.assert_allclose(table[:N, :D], SCALER.transform_X(X), rtol=1e-14)
    np.testing.assert_allclose(table[:N, D], SCALER.transform_y(Y), rtol=1e-14)
    assert np.array_equal(table[:, -1], np.arange(len(table)) < N)
    assert not table[N:].any()
