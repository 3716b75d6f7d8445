"""What every source of rows owes a fit: the rows of the table it was made of, by any range and any division."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest

from integrand.data.parquet import open_rows, open_source
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows, MappedRows
from integrand.likelihoods import Gaussian, Poisson
from played_processes import agreeing

N = 247
COLUMNS = ["a", "whole", "flag"]
rng = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "a": rng.standard_normal(N),
        "whole": rng.integers(-5, 10**9, N),
        "y": rng.standard_normal(N).astype(np.float32),
        "flag": rng.random(N) < 0.5,
    }
)
VALUES = FRAME[[*COLUMNS, "y"]].to_numpy(float)  # the target last


def one_file(folder):
    FRAME.to_parquet(folder / "t.parquet", row_group_size=N)
    return open_rows(folder / "t.parquet", "y")


def row_groups(folder):
    FRAME.to_parquet(folder / "t.pq", row_group_size=31)
    return open_rows(str(folder / "t.pq"), "y")


def write_parts(folder):
    for k, (first, last) in enumerate(itertools.pairwise((0, 1, 60, 61, 200, N))):
        FRAME[first:last].to_parquet(folder / f"part-{k}.parquet", row_group_size=17)
    return folder


def directory(folder):
    (folder / "read me.txt").write_text("not a part")
    return open_rows(write_parts(folder), "y")


def pattern(folder):
    FRAME[:9].to_parquet(folder / "other.parquet")
    return open_rows(write_parts(folder) / "part-*.parquet", "y")


def mapped(folder):
    np.save(folder / "X.npy", VALUES[:, :-1])
    np.save(folder / "y.npy", VALUES[:, -1])
    return MappedRows(*(np.load(folder / f"{n}.npy", mmap_mode="r") for n in "Xy"), COLUMNS)


def raw_memmap(folder):
    X = np.memmap(folder / "X.raw", mode="w+", dtype=np.float64, shape=(N, 3), order="F")
    y = np.memmap(folder / "y.raw", mode="w+", dtype=np.float32, shape=N)
    X[:], y[:] = VALUES[:, :-1], VALUES[:, -1]
    return MappedRows(X, y, COLUMNS)


def arrays(folder):
    return ArrayRows(VALUES[:, :-1], VALUES[:, -1], COLUMNS)


DESCRIBED = [one_file, directory, pattern, mapped]
ON_DISK = [*DESCRIBED, row_groups, raw_memmap]


@pytest.fixture(params=[*ON_DISK, arrays], ids=lambda kind: kind.__name__)
def rows(request, tmp_path):
    return request.param(tmp_path)


def test_columns(rows):
    assert rows.columns == tuple(COLUMNS)
    assert (rows.n_columns, rows.n_rows, rows.n_own) == (3, N, N)


def test_any_range_is_that_of_the_table(rows):
    """Forwards, backwards, within a row group and across files."""
    ranges = [(0, N), (0, 1), (N - 1, N), (5, 5), (N, N), (59, 62), *np.sort(rng.integers(0, N + 1, (60, 2)), axis=1)]
    for first, last in ranges:
        read = rows.read(int(first), int(last))
        assert read.dtype == np.float64
        np.testing.assert_array_equal(read, VALUES[first:last])


def test_what_was_read_does_not_change_with_the_next_read(rows):
    first = rows.read(0, 10)
    rows.read(100, 200)
    np.testing.assert_array_equal(first, VALUES[:10])


def test_overview(rows):
    overview = rows.overview(50, 3)
    assert overview is rows.overview(50, 3)  # one pass is enough
    assert overview.n_rows == N
    np.testing.assert_array_equal(overview.low, VALUES.min(axis=0))
    np.testing.assert_array_equal(overview.high, VALUES.max(axis=0))
    chosen = np.sort(np.random.default_rng([3, 77]).choice(N, 50, replace=False))
    np.testing.assert_array_equal(overview.subsample, VALUES[chosen])
    scaler, wanted = overview.standardiser(Gaussian()), Standardiser.fit(VALUES[:, :-1], VALUES[:, -1])
    for name in ("x_mean", "x_sd", "y_mean", "y_sd"):
        np.testing.assert_allclose(getattr(scaler, name), getattr(wanted, name), rtol=1e-12)
    counts = overview.standardiser(Poisson())
    assert (counts.y_mean, counts.y_sd) == (0.0, 1.0)
    np.testing.assert_array_equal(counts.x_mean, scaler.x_mean)


def test_a_scaler_that_is_given(rows):
    identity = Standardiser.identity(3)
    assert rows.but(scaler=identity).overview(50, 3).scaler is identity
    assert rows.overview(50, 3).scaler is not identity


def test_the_dataset_has_all_rows_standardised(rows):
    scaler = rows.overview(50, 0).scaler
    X, y = rows.dataset(scaler, n_inducing=10).arrays()
    np.testing.assert_allclose(X, scaler.transform_X(VALUES[:, :-1]), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(y, scaler.transform_y(VALUES[:, -1]), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", ON_DISK, ids=lambda kind: kind.__name__)
def test_beyond_memory_rows_stay_on_disk(kind, tmp_path):
    rows = kind(tmp_path)
    data = rows.but(memory=1).dataset(rows.overview(50, 0).scaler, n_inducing=10)
    assert data.stream is not None
    assert not data.local


@pytest.mark.parametrize("kind", ON_DISK, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_parts_cover_all_rows_once(kind, size, tmp_path):
    rows = kind(tmp_path)
    parts = [rows.among(agreeing(rank, size)) for rank in range(size)]
    np.testing.assert_array_equal(np.concatenate([p.read(0, p.n_own) for p in parts]), VALUES)
    lengths = [p.n_own for p in parts]
    assert max(lengths) - min(lengths) <= 1
    for p in parts:
        assert (p.columns, p.n_rows) == (rows.columns, N)
        assert p.describe() == rows.describe()
        np.testing.assert_array_equal(p.read(3, 9), VALUES[p.own][3:9])


@pytest.mark.parametrize("kind", DESCRIBED, ids=lambda kind: kind.__name__)
def test_a_description_opens_the_same_rows(kind, tmp_path, monkeypatch):
    rows = kind(tmp_path)
    description = json.loads(json.dumps(rows.describe()))
    monkeypatch.chdir("/")
    again = open_source(description)
    assert (again.columns, again.n_rows) == (rows.columns, N)
    np.testing.assert_array_equal(again.read(0, N), VALUES)
