"""One pass over rows gives what NumPy says of all of them at once; and rows from what a user has."""

import itertools

import numpy as np
import pandas as pd
import pytest

from integrand.data import sources as module
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows, MappedRows, as_rows, chosen_rows, combined, moments
from integrand.errors import InputError

N = 1000
rng = np.random.default_rng(1)
TABLES = {
    "plain": rng.standard_normal((N, 4)) * [1.0, 10.0, 0.1, 3.0],
    "far from zero": rng.standard_normal((N, 4)) + np.array([1e9, -1e9, 1e6, 1e9]),
    "sorted": np.sort(rng.standard_normal((N, 4)), axis=0) * 1e3 + 1e6,
    "small and large": rng.standard_normal((N, 4)) * [1e-30, 1e30, 1e-3, 1e12],
}


def assert_close(found, wanted, rtol, unit=1.0):
    """Equal to so many parts, or to the rounding of a sum of numbers of this size."""
    assert np.all(np.abs(found - wanted) <= rtol * np.abs(wanted) + 1e-13 * unit), (found, wanted)


def rows_of(table):
    return MappedRows(table[:, :-1], table[:, -1])


def moments_of(table, wanted=0, seed=0):
    return moments(rows_of(table), chosen_rows(np.random.default_rng(seed), len(table), wanted))


@pytest.fixture(params=[7, 64, N, 10 * N], ids=lambda rows: f"blocks of {rows}")
def blocks(request, monkeypatch):
    """The number of rows that are looked at together."""
    monkeypatch.setattr(module, "_PASS_ROWS", request.param)


def exact_moments(table):
    """Mean and Σ (value - mean)² in extended precision."""
    wide = table.astype(np.longdouble)
    mean = wide.mean(0)
    return mean.astype(float), ((wide - mean) ** 2).sum(0).astype(float)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("name", TABLES)
def test_moments_and_ranges(name):
    table = TABLES[name]
    seen, _ = moments_of(table)
    mean, squares = exact_moments(table)
    assert seen.n_rows == N
    assert_close(seen.mean, mean, 1e-14, table.std(0))
    assert_close(seen.squares, squares, 1e-7 if name == "far from zero" else 1e-11, 0.0)
    np.testing.assert_array_equal(seen.low, table.min(0))
    np.testing.assert_array_equal(seen.high, table.max(0))


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("ends", [(0, 500, N), (0, 1, 2, 999, N), (0, 333, 334, 700, N)])
def test_parts_put_together_are_the_whole(name, ends):
    table = TABLES[name]
    parts = [moments_of(table[a:b])[0] for a, b in itertools.pairwise(ends)]
    whole, seen = combined(parts), moments_of(table)[0]
    assert whole.n_rows == N
    for a, b in zip(whole[1:], seen[1:], strict=True):
        assert_close(a, b, 1e-7 if name == "far from zero" else 1e-11, table.std(0))


def test_the_order_of_parts_does_not_matter_beyond_rounding():
    parts = [moments_of(TABLES["plain"][a : a + 100])[0] for a in range(0, N, 100)]
    for a, b in zip(combined(parts), combined(parts[::-1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_one_part_is_itself():
    seen = moments_of(TABLES["plain"])[0]
    assert combined([seen]) is seen


# --- standardising


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("name", TABLES)
def test_the_standardiser_is_that_of_arrays(name):
    table = TABLES[name]
    found, wanted = moments_of(table)[0].standardiser(), Standardiser.fit(table[:, :-1], table[:, -1])
    eps = np.finfo(float).eps
    assert_close(found.x_mean, wanted.x_mean, 4 * eps, wanted.x_sd)
    assert_close(found.x_sd, wanted.x_sd, 1e-7 if name == "far from zero" else 1e-12, 0.0)
    assert found.y_mean == pytest.approx(wanted.y_mean, rel=4 * eps, abs=1e-13 * wanted.y_sd)
    assert found.y_sd == pytest.approx(wanted.y_sd, rel=1e-7)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1e9, 1e9 + 0.1, 1e-300])
def test_a_constant_column_becomes_zero(value):
    table = TABLES["plain"].copy()
    table[:, 1] = value
    table[:, 3] = value
    scaler = moments_of(table)[0].standardiser()
    wanted = Standardiser.fit(table[:, :-1], table[:, -1])
    assert scaler.x_sd[1] == wanted.x_sd[1] == 1.0
    assert scaler.y_sd == wanted.y_sd == 1.0
    assert np.abs(scaler.transform_X(table[:, :-1])[:, 1]).max() <= 1e-15 * max(abs(value), 1.0)


@pytest.mark.usefixtures("blocks")
def test_a_column_that_differs_by_rounding_only_is_constant():
    table = TABLES["plain"].copy()
    table[:, 0] = np.where(rng.random(N) < 0.5, 1e9, np.nextafter(1e9, 2e9))
    assert moments_of(table)[0].standardiser().x_sd[0] == 1.0 == Standardiser.fit(table[:, :-1], table[:, -1]).x_sd[0]


def test_one_row():
    seen, sample = moments_of(np.array([[1.0, 2.0, 3.0]]), wanted=5)
    np.testing.assert_array_equal(seen.standardiser().x_sd, [1.0, 1.0])
    np.testing.assert_array_equal(sample, [[1.0, 2.0, 3.0]])


# --- the sample


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("wanted", [0, 1, 50, 999, N, 5000])
def test_the_sample_has_the_chosen_rows_in_their_order(wanted):
    table = TABLES["plain"]
    chosen = chosen_rows(np.random.default_rng(3), N, wanted)
    _, sample = moments(rows_of(table), chosen)
    np.testing.assert_array_equal(sample, table[chosen])
    assert len(chosen) == min(wanted, N)
    assert np.all(np.diff(chosen) > 0)


def test_choosing_is_uniform_and_repeatable():
    counts = np.zeros(20)
    for seed in range(2000):
        counts[chosen_rows(np.random.default_rng(seed), 20, 5)] += 1
    assert np.abs(counts / 2000 - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 2000)
    a, b = (chosen_rows(np.random.default_rng(9), N, 50) for _ in range(2))
    np.testing.assert_array_equal(a, b)


def test_all_rows_where_there_are_no_more():
    np.testing.assert_array_equal(chosen_rows(np.random.default_rng(0), 5, 5), np.arange(5))
    np.testing.assert_array_equal(chosen_rows(np.random.default_rng(0), 5, 9), np.arange(5))


@pytest.mark.usefixtures("blocks")
def test_a_missing_value_is_named():
    table = TABLES["plain"].copy()
    table[456, 2] = np.nan
    with pytest.raises(InputError, match="row 456: column 'x2' is missing"):
        moments_of(table)


# --- from what a user has


def test_arrays_and_frames_become_rows():
    X, y = TABLES["plain"][:, :-1], TABLES["plain"][:, -1]
    assert as_rows(X, y).columns == ("x0", "x1", "x2")
    assert as_rows(pd.DataFrame(X, columns=["a", "b", "c"]), y).columns == ("a", "b", "c")
    assert as_rows(pd.DataFrame(X), y).columns == ("x0", "x1", "x2")  # numbers are no names
    rows = ArrayRows(X, y, ["u", "v", "w"])
    assert as_rows(rows) is rows


def test_rows_have_their_target_with_them():
    rows = rows_of(TABLES["plain"])
    with pytest.raises(InputError, match="leave y out"):
        as_rows(rows, TABLES["plain"][:, -1])


def test_arrays_need_a_target():
    with pytest.raises(InputError, match="y is missing: give X and y, or rows"):
        as_rows(TABLES["plain"])


def test_as_many_names_as_columns():
    with pytest.raises(InputError, match="2 column names were given for 3 columns"):
        ArrayRows(TABLES["plain"][:, :-1], TABLES["plain"][:, -1], ["a", "b"])
    with pytest.raises(InputError, match="1 column names were given for 3 columns"):
        rows_of(TABLES["plain"]).but(columns=["a"])


def test_few_rows_in_memory_need_no_subsample():
    rows = as_rows(TABLES["plain"][:, :-1], TABLES["plain"][:, -1])
    assert rows.overview(N, 0).subsample is None
    assert rows.overview(N - 1, 0).subsample.shape == (N - 1, 4)
