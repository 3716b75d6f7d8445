"""Columns as people have them: dates, names of rows, semicolons, an index; from the table to predictions."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from integrand.cli.app import app
from integrand.data.tables import Selection, Table, read_table
from integrand.errors import InputError
from integrand.storage.model_file import load_model

N = 40
DATES = pd.date_range("2021-03-01", periods=N, freq="12h")
FAST = ["--target", "y", "--method", "ml2", "--inducing", "6", "--quiet", "--out", "m"]


@pytest.fixture
def frame(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    temp = np.linspace(-3.5, 20.0, N).round(2)
    y = (np.sin(np.arange(N) / 6.0) + 0.1 * temp).round(3)
    return pd.DataFrame({"station": [f"S{i}" for i in range(N)], "date": DATES, "temp": temp, "y": y})


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def ok(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output + str(result.exception)
    return result


def chosen(name, sep=None, **selection):
    return read_table(name, sep).choose("y", Selection(**selection))


def test_a_table_with_everything(frame, tmp_path):
    frame.to_csv("t.csv", sep=";", decimal=",", index=False)
    fitted = ok("fit", "t.csv", *FAST, "--id", "station", "--dates", "date")
    assert "separated by semicolons, decimals by commas" in fitted.stderr
    assert "Fitted on 40 rows, 2 columns: date in days since 2021-03-01, temp" in fitted.stdout
    # The rule is that of the model, whatever the first date of the new rows.
    frame.iloc[10:13].to_csv("new.csv", index=False)
    ok("predict", "m", "new.csv", "--out", "p.csv")
    predictions = pd.read_csv("p.csv")
    assert predictions["station"].tolist() == ["S10", "S11", "S12"]
    X = np.column_stack([[5.0, 5.5, 6.0], frame["temp"][10:13]])
    mean = load_model("m").posterior.predict(X, include_noise=True).mean
    np.testing.assert_allclose(predictions["mean"], mean, rtol=1e-9)
    frame.drop(columns=["station", "y"]).iloc[10:13].to_parquet("new.parquet")
    ok("predict", "m", "new.parquet", "--out", "q.csv")
    pd.testing.assert_frame_equal(pd.read_csv("q.csv"), predictions.drop(columns="station"))
    ok("evaluate", "m", "t.csv")
    ok("report", "m", "--data", "t.csv", "--out", "r.html")


@pytest.mark.parametrize(
    ("style", "unit", "hours"),
    [
        ("%Y-%m-%d %H:%M", "hours", 12.0),
        ("%Y-%m-%dT%H:%M:%S+02:00", "days", 0.5),
        ("%d.%m.%Y %H:%M", "weeks", 0.5 / 7),
        ("%d/%m/%Y %H:%M", "minutes", 720.0),
        ("%m/%d/%Y %H:%M", "years", 0.5 / 365.25),
    ],
)
def test_dates_become_numbers(frame, tmp_path, style, unit, hours):
    frame.assign(date=DATES.strftime(style)).to_csv("t.csv", index=False)
    rows = chosen(tmp_path / "t.csv", features=("date",), dates=(f"date:{unit}",))
    np.testing.assert_allclose(rows.X[:, 0], hours * np.arange(N), rtol=1e-12)
    assert rows.names == ["date"]


def test_dates_that_cannot_be_read(frame, tmp_path):
    path = tmp_path / "t.csv"
    early = pd.date_range("2021-01-01", periods=N, freq="6h").strftime("%d/%m/%Y")
    for dates, said in (
        (early, "the month or the day first"),
        (["soon", *DATES[1:].strftime("%Y-%m-%d")], r"row 1: 'soon' in column 'date' is no date"),
        (range(N), "holds numbers already"),
    ):
        frame.assign(date=dates).to_csv(path, index=False)
        with pytest.raises(InputError, match=said):
            chosen(path, drop=("station",), dates=("date",))
    frame.to_csv(path, index=False)
    with pytest.raises(InputError, match="no unit 'moons': choose from seconds"):
        chosen(path, drop=("station",), dates=("date:moons",))
    with pytest.raises(InputError, match="give --dates date --drop station"):
        chosen(path)
    with pytest.raises(InputError, match="it holds dates: give --dates date "):
        chosen(path, drop=("station",))
    rule = chosen(path, drop=("station",), dates=("date",)).dates
    frame.assign(date=frame["date"].astype(str).where(frame.index != 3, "never")).to_csv(path, index=False)
    with pytest.raises(InputError, match=r"row 4: 'never' in column 'date' is no date.*: write it like 2021-03-01$"):
        read_table(path).columns(["date"], rule)
    for of_fit, example in (("%Y-%m-%d %H:%M", "2021-03-01 12:00"), ("%d.%m.%Y", "01.03.2021")):
        frame.assign(date=DATES.strftime(of_fit))[1:].to_csv(path, index=False)
        other = chosen(path, drop=("station",), dates=("date",)).dates
        frame.assign(date=DATES.strftime("%m/%d/%Y")).to_csv(path, index=False)
        with pytest.raises(InputError, match=f"write it like {example}$"):
            read_table(path).columns(["date"], other)
    frame.assign(date=frame["date"].where(frame.index != 3)).to_csv(path, index=False)
    with pytest.raises(InputError, match="row 4: column 'date' is missing"):
        read_table(path).columns(["date"], rule)


def test_an_index_is_noticed(frame, tmp_path):
    numbers = frame[["temp", "y"]]
    numbers.to_csv(tmp_path / "t.csv")
    rows = chosen(tmp_path / "t.csv")
    assert rows.names == ["temp"]
    assert "has no name and counts the rows" in rows.remarks[0]
    numbers.assign(no=range(1, N + 1))[["no", "temp", "y"]].to_csv(tmp_path / "t.csv", index=False)
    rows = chosen(tmp_path / "t.csv")
    assert rows.names == ["no", "temp"]
    assert "give --id no" in rows.remarks[0]


@pytest.mark.parametrize(("sep", "said"), [(";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars"), (",", None)])
def test_what_separates_columns_is_seen(frame, tmp_path, sep, said):
    path = tmp_path / "t.csv.gz"
    with gzip.open(path, "wt") as file:
        frame.assign(station=f'a {sep} "b"').to_csv(file, sep=sep, index=False)
    table = read_table(path)
    assert list(table.frame) == list(frame)
    assert [said in remark for remark in table.remarks] == ([True] if said else [])
    assert read_table(path, sep).remarks == ()


def test_spaces_are_named_or_left_out(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a b y\n1 2 3\n4 5 6\n")
    with pytest.raises(InputError, match=r"has one column, 'a b y': if spaces separate columns, give --sep '\\s\+'"):
        read_table(path)
    assert list(read_table(path, r"\s+").frame) == ["a", "b", "y"]
    path.write_text("a, b, y\n1, 2, x\n4, 5, z\n")
    frame = read_table(path).frame
    assert list(frame) == ["a", "b", "y"]
    assert frame["y"].tolist() == ["x", "z"]


def test_one_column_has_no_separator(tmp_path):
    (tmp_path / "t.csv").write_text("y\n1\n2\n")
    assert list(read_table(tmp_path / "t.csv").frame) == ["y"]


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        ({"drop": ("nothing",)}, "--drop: .* has no column 'nothing': it has station, date"),
        ({"features": ("y", "temp")}, "'y' is the target"),
        ({"features": ("temp",), "ids": ("temp",)}, "under --features and under --drop or --id"),
        ({"drop": ("station", "date", "temp")}, "no column besides the target"),
    ],
)
def test_selections_that_cannot_be(frame, tmp_path, selection, said):
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=said):
        chosen(tmp_path / "t.csv", **selection)


@pytest.mark.slow
def test_formats_that_are_not_tables_here(frame):
    frame[["temp", "y"]].to_csv("t.csv", index=False)
    ok("fit", "t.csv", *FAST)
    result = run("predict", "m", "t.csv", "--out", "p.xlsx")
    assert result.exit_code == 2
    assert "written as .csv, .csv.gz, .parquet or .pq" in result.stderr
    frame.to_csv("t.xlsx", index=False)
    assert ".xlsx files cannot be read" in run("fit", "t.xlsx", *FAST).stderr


def test_a_directory_has_no_selection(frame, tmp_path):
    (tmp_path / "parts").mkdir()
    frame[["temp", "y"]].to_parquet("parts/a.parquet")
    assert "for one file" in run("fit", "parts", *FAST, "--drop", "temp").stderr


# ---- what is said of a column that is not numeric


def said(column, **selection):
    with pytest.raises(InputError) as error:
        Table(Path("t.csv"), pd.DataFrame({"a": column, "y": 1.0})).choose("y", Selection(**selection))
    return str(error.value).removeprefix("t.csv: column 'a' is not numeric: ")


@pytest.mark.parametrize("column", [["red", "green", "red"], ["red", "1", "green"], ["red", "1"]])
def test_a_column_of_words_is_to_be_encoded(column):
    ids, drop = ", give --id a if it names the rows", ", or leave it out with --drop a"
    assert said(column) == "name it in the kernel, as in --kernel \"categorical('a')*rbf\"" + ids + drop
    every = "name it in every kernel, as in --kernels \"categorical('a')*rbf, categorical('a')*matern32\""
    assert said(column, kernel_flag="--kernels") == every + ids + drop
    with pytest.raises(InputError, match="the model was fitted to numbers there"):
        Table(Path("t.csv"), pd.DataFrame({"a": column})).columns(["a"])


def test_compare_has_words_of_its_own(frame):
    frame.assign(station="A")[["temp", "station", "y"]].to_csv("t.csv", index=False)
    compare = ("compare", "t.csv", "--target", "y")
    assert "--kernels \"categorical('station')*rbf, " in run(*compare).stderr
    result = run(*compare, "--kernels", "rbf, categorical(station)*rbf")
    assert result.exit_code == 2
    assert "'rbf' does not name the column 'station'" in result.stderr
    assert "--drop station" in result.stderr
    frame.assign(no=np.arange(N))[["no", "station", "temp", "date", "y"]].to_csv("t.csv", index=False)
    assert "in every kernel, as in --kernels" in (said := run(*compare).stderr)
    assert "--id is for columns that name the rows" in said


def test_a_target_of_words_is_no_input(frame):
    frame[["temp", "station"]].to_csv("t.csv", index=False)
    frame[["temp", "station"]].to_parquet("t.parquet")
    for name in ("t.csv", "t.parquet"):
        result = run("fit", name, "--target", "station", "--out", "m")
        assert result.exit_code == 2
        assert "'station' is the target and holds words" in result.stderr
        assert "--likelihood bernoulli" in result.stderr
        assert "--drop" not in result.stderr


def test_words_among_numbers_are_named():
    assert said(["1", "2.5", "abc", "4"]) == "one of its values is no number, the first 'abc' in row 3: " + MEND
    assert said(["1", "?", None, "n/a!", "4", "7"]).startswith("2 of its values are no numbers, the first '?' in row 2")


def test_a_file_with_one_bad_cell(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n2,3\noops,4\n5,6\n")
    with pytest.raises(InputError, match=r"'oops' in row 3"):
        read_table(tmp_path / "t.csv").split("b")


@pytest.mark.parametrize("column", [["1,000", "2,000"], ["1 000", "12"], ["3,5", "4,25"]])
def test_numbers_written_otherwise_are_no_categories(column):
    assert "use a point for decimals, and nothing between thousands" in said(column)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("größe,y\n1,2\n".encode("latin-1"), "it is no text in UTF-8: save it as CSV in UTF-8"),
        (b"a,y\n1,2\n2,3,4\n", "line 3 has 3 columns and the lines before it 2: mend this line"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, content, cause):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(InputError, match=f"cannot be read as a table: {cause}"):
        read_table(tmp_path / "t.csv")


MEND = "mend or drop such rows"
