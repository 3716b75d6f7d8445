"""Rows in Parquet files and memory maps: row groups, files that are not what they seem, and opening them again."""

import itertools

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from integrand import InputError
from integrand.data.parquet import open_rows, open_source
from integrand.data.sources import MappedRows
from played_processes import agreeing

N = 247
rng = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "a": rng.standard_normal(N),
        "whole": rng.integers(-5, 10**9, N),
        "y": rng.standard_normal(N).astype(np.float32),
        "flag": rng.random(N) < 0.5,
    }
)
VALUES = FRAME[["a", "whole", "flag", "y"]].to_numpy(float)  # the target last


def one_file(folder):
    FRAME.to_parquet(folder / "t.parquet", row_group_size=N)
    return open_rows(folder / "t.parquet", "y")


def row_groups(folder):
    FRAME.to_parquet(folder / "t.pq", row_group_size=31)
    return open_rows(str(folder / "t.pq"), "y")


def write_parts(folder, ends=(0, 1, 60, 61, 200, N), **keywords):
    for k, (first, last) in enumerate(itertools.pairwise(ends)):
        FRAME[first:last].to_parquet(folder / f"part-{k}.parquet", row_group_size=17, **keywords)
    return folder


def directory(folder):
    (folder / "read me.txt").write_text("not a part")
    return open_rows(write_parts(folder), "y")


def mapped(folder):
    np.save(folder / "X.npy", VALUES[:, :-1])
    np.save(folder / "y.npy", VALUES[:, -1])
    names = ["a", "whole", "flag"]
    return MappedRows(*(np.load(folder / f"{n}.npy", mmap_mode="r") for n in "Xy"), names)


def raw_memmap(folder):
    X = np.memmap(folder / "X.raw", mode="w+", dtype=np.float64, shape=(N, 3), order="F")
    y = np.memmap(folder / "y.raw", mode="w+", dtype=np.float32, shape=N)
    X[:], y[:] = VALUES[:, :-1], VALUES[:, -1]
    return MappedRows(X, y, ["a", "whole", "flag"])


def test_more_processes_than_rows(tmp_path):
    FRAME[:3].to_parquet(tmp_path / "t.parquet")
    rows = open_rows(tmp_path / "t.parquet", "y")
    parts = [rows.among(agreeing(rank, 5)) for rank in range(5)]
    assert sorted(p.n_own for p in parts) == [0, 0, 1, 1, 1]
    empty = next(p for p in parts if p.n_own == 0)
    assert empty.read(0, 0).shape == (0, 4)
    with pytest.raises(InputError, match="has no rows: use fewer processes"):
        empty.overview(10, 0)


def test_a_file_with_empty_row_groups(tmp_path):
    table = pa.Table.from_pandas(FRAME, preserve_index=False)
    with pq.ParquetWriter(tmp_path / "t.parquet", table.schema) as writer:
        for first, last in ((0, 0), (0, 50), (50, 50), (50, N), (N, N)):
            writer.write_table(table.slice(first, last - first))
    rows = open_rows(tmp_path / "t.parquet", "y")
    np.testing.assert_array_equal(rows.read(0, N), VALUES)
    np.testing.assert_array_equal(rows.read(49, 51), VALUES[49:51])


def test_a_small_row_group_is_read_once_for_many_ranges(tmp_path, monkeypatch):
    rows, opened = row_groups(tmp_path), []
    inner = pq.ParquetFile.read_row_group

    def counted(self, *arguments, **keywords):
        opened.append(arguments)
        return inner(self, *arguments, **keywords)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    for first in range(0, 62, 2):
        rows.read(first, first + 2)
    assert len(opened) <= 4  # two groups of 31; one range lies in both


def test_row_labels_of_pandas_are_no_input(tmp_path):
    """pandas writes labels that are not 0, 1, ... as a column, and takes them for labels when it reads them."""
    shuffled = FRAME.sample(frac=1.0, random_state=0)
    shuffled.to_parquet(tmp_path / "t.parquet")
    rows = open_rows(tmp_path / "t.parquet", "y")
    assert rows.columns == ("a", "whole", "flag")
    np.testing.assert_array_equal(rows.read(0, N), VALUES[shuffled.index])


# --- the same rows again


def test_relative_paths_are_made_absolute(tmp_path, monkeypatch):
    one_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    description = open_rows("t.parquet", "y").describe()
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(open_source(description).read(0, N), VALUES)


def test_another_number_of_rows_is_refused(tmp_path):
    description = directory(tmp_path).describe()
    FRAME[:100].to_parquet(tmp_path / "part-3.parquet")
    with pytest.raises(InputError, match=f"now have 208 rows, not {N}: put the old ones back"):
        open_source(description)


def test_a_file_that_was_removed_is_named(tmp_path):
    description = directory(tmp_path).describe()
    (tmp_path / "part-2.parquet").unlink()
    with pytest.raises(InputError, match=r"no file .*part-2\.parquet, which the run was begun with"):
        open_source(description)


def test_a_file_that_was_added_is_not_read(tmp_path):
    description = directory(tmp_path).describe()
    FRAME[:9].to_parquet(tmp_path / "part-9.parquet")
    assert open_source(description).n_rows == N


def test_arrays_in_memory_cannot_be_opened_again():
    with pytest.raises(InputError, match="rows that only you can open"):
        open_source(MappedRows(VALUES[:, :-1], VALUES[:, -1]).describe())


def test_a_mapped_file_that_was_removed_is_named(tmp_path):
    description = mapped(tmp_path).describe()
    (tmp_path / "y.npy").unlink()
    with pytest.raises(InputError, match=r"no file .*y\.npy"):
        open_source(description)


def test_a_raw_map_cannot_be_opened_again(tmp_path):
    """Its file says neither type nor shape."""
    with pytest.raises(InputError, match="rows that only you can open"):
        open_source(raw_memmap(tmp_path).describe())


def test_a_part_of_a_mapped_file_cannot_be_taken_for_the_whole(tmp_path):
    """Rows in another order have the file's name, but are not its rows."""
    mapped(tmp_path)
    X, y = (np.load(tmp_path / f"{n}.npy", mmap_mode="r") for n in "Xy")
    with pytest.raises(InputError, match="rows that only you can open"):
        open_source(MappedRows(X[::-1], y[::-1]).describe())


# --- what is wrong with the files


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match=r"there is no file .*none\.parquet"):
        open_rows(tmp_path / "none.parquet", "y")
    with pytest.raises(InputError, match="there is no Parquet file in"):
        open_rows(tmp_path / "none-*.parquet", "y")


def test_an_empty_directory(tmp_path):
    (tmp_path / "x.csv").write_text("a,y\n1,2\n")
    with pytest.raises(InputError, match="there is no Parquet file in"):
        open_rows(tmp_path, "y")


def test_a_file_that_is_not_parquet(tmp_path):
    write_parts(tmp_path)
    (tmp_path / "part-2.parquet").write_bytes(b"a,y\n1,2\n")
    with pytest.raises(InputError, match=r"part-2\.parquet cannot be read as Parquet"):
        open_rows(tmp_path, "y")


@pytest.mark.parametrize("kept", [0, 3, 100, -1])
def test_a_truncated_file(kept, tmp_path):
    write_parts(tmp_path)
    file = tmp_path / "part-3.parquet"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"part-3\.parquet cannot be read as Parquet"):
        open_rows(tmp_path, "y")


def test_a_file_with_a_hole_in_the_middle(tmp_path):
    """Its footer is whole, so that it opens; what it describes is not there."""
    FRAME.to_parquet(tmp_path / "t.parquet", row_group_size=60)
    content = bytearray((tmp_path / "t.parquet").read_bytes())
    content[4 : len(content) // 3] = b"\xff" * (len(content) // 3 - 4)
    (tmp_path / "t.parquet").write_bytes(content)
    rows = open_rows(tmp_path / "t.parquet", "y")
    with pytest.raises(InputError, match=r"t\.parquet cannot be read: row group 0"):
        rows.read(0, 10)


@pytest.mark.parametrize(
    "values", [["red"] * N, pd.to_datetime(["2024-01-01"] * N), pd.Categorical(["u", "v"] * 123 + ["u"])]
)
def test_a_column_that_is_not_numeric(values, tmp_path):
    FRAME.assign(colour=values).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="column 'colour' is not numeric: drop it, or for categories give categories"):
        open_rows(tmp_path / "t.parquet", "y")


def test_a_target_that_is_not_there(tmp_path):
    FRAME.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="no column 'z': it has a, whole, y, flag"):
        open_rows(tmp_path / "t.parquet", "z")


def test_nothing_but_a_target(tmp_path):
    FRAME[["y"]].to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="no column besides 'y'"):
        open_rows(tmp_path / "t.parquet", "y")


def test_no_rows(tmp_path):
    FRAME[:0].to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="has no rows"):
        open_rows(tmp_path / "t.parquet", "y")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.rename(columns={"a": "b"}), r"different columns \(a, b\)"),
        (lambda f: f.assign(more=1.0), r"different columns \(more\)"),
        (lambda f: f.assign(a="red"), "different columns"),
    ],
)
def test_parts_with_different_columns(change, words, tmp_path):
    write_parts(tmp_path)
    change(FRAME[:9]).to_parquet(tmp_path / "part-2.parquet")
    with pytest.raises(InputError, match=r"part-2\.parquet and .*part-0\.parquet have different columns.*write all"):
        open_rows(tmp_path, "y")
    with pytest.raises(InputError, match=words):
        open_rows(tmp_path, "y")


def test_columns_in_another_order_are_the_same_columns(tmp_path):
    FRAME[:100].to_parquet(tmp_path / "0.parquet")
    FRAME[100:][["flag", "y", "whole", "a"]].to_parquet(tmp_path / "1.parquet")
    np.testing.assert_array_equal(open_rows(tmp_path, "y").read(0, N), VALUES)


def test_numbers_of_other_types_are_the_same_columns(tmp_path):
    FRAME[:100].to_parquet(tmp_path / "0.parquet")
    FRAME[100:].astype({"whole": float, "flag": int, "y": float}).to_parquet(tmp_path / "1.parquet")
    np.testing.assert_array_equal(open_rows(tmp_path, "y").read(0, N), VALUES)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("width", [1, 5])
def test_parts_that_are_numbered_are_all_there(first, width, tmp_path):
    names = [f"rows-{k:0{width}d}-of-{12:0{width}d}.parquet" for k in range(first, 12 + first)]
    for k, name in enumerate(names):
        FRAME[20 * k : 20 * k + 20].to_parquet(tmp_path / name)
    assert open_rows(tmp_path, "y").n_rows == 240
    for gap in (0, 5, 11):
        held = (tmp_path / names[gap]).read_bytes()
        (tmp_path / names[gap]).unlink()
        with pytest.raises(InputError, match="has 11 of 12 parts: put the missing ones there"):
            open_rows(tmp_path, "y")
        (tmp_path / names[gap]).write_bytes(held)


def test_every_numbered_series_is_looked_at(tmp_path):
    for name in ("a-1-of-2", "a-2-of-2", "b-1-of-2"):
        FRAME.to_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match="put the missing ones there"):
        open_rows(tmp_path, "y")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", ["a", "y"])
def test_a_value_that_is_missing_is_named_with_its_file_and_row(value, column, tmp_path):
    write_parts(tmp_path)
    frame = FRAME[61:200].reset_index(drop=True)
    frame.loc[70, column] = value
    frame.to_parquet(tmp_path / "part-3.parquet", row_group_size=17)
    rows = open_rows(tmp_path, "y")
    words = rf"part-3\.parquet, row 71: column '{column}' is missing or infinite: drop or impute"
    for first, last in ((0, N), (131, 132), (100, 140)):
        with pytest.raises(InputError, match=words):
            rows.read(first, last)
    second_half = rows.among(agreeing(1, 2))
    with pytest.raises(InputError, match=words):
        second_half.read(0, second_half.n_own)
    rows.read(0, 131)
    rows.read(132, N)


@pytest.mark.parametrize("kind", ["Int64", "boolean", "Float64"])
def test_nulls_are_missing_values(kind, tmp_path):
    values = pd.array([1, 0, 1, None, 1], dtype=kind)
    pd.DataFrame({"a": values, "y": np.arange(5.0)}).to_parquet(tmp_path / "t.parquet")
    rows = open_rows(tmp_path / "t.parquet", "y")
    np.testing.assert_array_equal(rows.read(0, 3)[:, 0], [1, 0, 1])
    with pytest.raises(InputError, match="row 4: column 'a' is missing"):
        rows.read(0, 5)


def test_a_missing_value_of_an_array_is_named_by_its_row():
    X = VALUES[:, :-1].copy()
    X[7, 1] = np.nan
    with pytest.raises(InputError, match="row 7: column 'x1' is missing or infinite"):
        MappedRows(X, VALUES[:, -1]).read(0, N)


@pytest.mark.parametrize(
    ("X", "y", "names", "words"),
    [
        (VALUES[:, 0], VALUES[:, 1], None, "must have shape"),
        (VALUES, VALUES, None, "must have shape"),
        (VALUES, VALUES[1:, 0], None, "must have shape"),
        (VALUES[:0], VALUES[:0, 0], None, "must have shape"),
        (VALUES[:, :0], VALUES[:, 0], None, "must have shape"),
        (VALUES, VALUES[:, 0], ["a"], "1 column names were given for 4 columns"),
    ],
)
def test_arrays_that_do_not_fit(X, y, names, words):
    with pytest.raises(InputError, match=words):
        MappedRows(X, y, names)
