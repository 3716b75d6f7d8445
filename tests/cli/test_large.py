"""The commands with tables that are not read as a whole: directories of Parquet parts, and files beyond memory."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from integrand.cli import commands
from integrand.cli.app import app
from integrand.data.tables import Selection
from integrand.errors import InputError
from integrand.kernels import RBF
from integrand.storage.model_file import load_model
from played_processes import agreeing

N = 300
FAST = ["--method", "ml2", "--inducing", "8", "--quiet"]
DRAW = ["--method", "sgpr-hmc-fixed-z", "--inducing", "8", "--max-draws", "12", "--chains", "2", "--quiet"]


def table(n: int = N, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=n), rng.normal(size=n)
    return pd.DataFrame({"a": a, "b b": 2 * b + 7, "y": np.sin(2 * a) + 0.3 * b + 0.2 * rng.normal(size=n)})


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def ok(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output + str(result.exception)
    return result


def refused(*arguments) -> str:
    """The one line of a mistake."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output + str(result.exception)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("integrand: ")
    return lines[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table as a file, as a CSV file and as parts, and rows to predict."""
    folder = tmp_path_factory.mktemp("large")
    frame = table()
    frame.to_parquet(folder / "t.parquet", row_group_size=70)
    frame.to_csv(folder / "t.csv", index=False)
    (folder / "parts").mkdir()
    for k, (first, last) in enumerate(((0, 40), (40, 199), (199, N))):
        frame[first:last].to_parquet(folder / "parts" / f"part-{k}-of-3.parquet", row_group_size=50)
    new = table(57, seed=1).drop(columns="y")
    new.to_parquet(folder / "new.parquet", row_group_size=20)
    new.to_csv(folder / "new.csv", index=False)
    return folder


@pytest.fixture
def here(folder, monkeypatch, tmp_path):
    """What is written goes elsewhere."""
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    """A model of the file in memory."""
    ok("fit", folder / "t.parquet", "--target", "y", "--out", folder / "model", *FAST)
    return folder / "model"


# --- fitting


def arrays(path):
    posterior = load_model(path).posterior
    conditional = posterior.conditional
    return posterior.chains.x, conditional.phis, conditional.inputs, conditional.weights, conditional.factors


def assert_same_model(a, b, rtol=1e-6):
    for left, right in zip(arrays(a), arrays(b), strict=True):
        np.testing.assert_allclose(left, right, rtol=rtol, atol=rtol * np.abs(right).max())


def test_parts_are_the_file(here, model):
    """In any form that fits in memory the rows are the same dataset, up to the rounding of its mean."""
    for k, data in enumerate((here / "parts", here / "parts" / "*.parquet")):
        facts = json.loads(ok("fit", data, "--target", "y", "--out", f"m{k}", "--json", *FAST).stdout)
        assert facts["method"] == "ml2"
        assert_same_model(f"m{k}", model, rtol=1e-3)
        saved, wanted = load_model(f"m{k}"), load_model(model)
        assert saved.posterior.model.columns == wanted.posterior.model.columns == ("a", "b b")
        np.testing.assert_array_equal(saved.feature_ranges, wanted.feature_ranges)
        assert (saved.target_name, saved.extra["n_rows"]) == ("y", N)


def fitted_from_disk(here, options):
    """Models of a file and of its parts, both read at every pass."""
    for data, out in ((here / "t.parquet", "a"), (here / "parts", "b")):
        ok("fit", data, "--target", "y", "--out", out, "--memory", "0", *options)
    for left, right in zip(arrays("a"), arrays("b"), strict=True):
        np.testing.assert_array_equal(left, right)  # how rows are divided into files changes nothing, not a bit
    return load_model("a").posterior


@pytest.mark.slow
def test_beyond_memory_the_bound_ends_as_high(here, model):
    """Rows on disk are climbed by a sample, here of all rows, and end at the optimum of memory."""
    found, wanted = fitted_from_disk(here, FAST), load_model(model).posterior
    assert found.chains.log_density[0, 0] > wanted.chains.log_density[0, 0] - 1.0
    new = pd.read_parquet(here / "new.parquet").to_numpy()
    means = [p.predict(new, include_noise=True).mean for p in (found, wanted)]
    np.testing.assert_allclose(*means, atol=0.05)


@pytest.mark.slow
def test_beyond_memory_draws_can_be_repeated(here):
    assert fitted_from_disk(here, DRAW).chains.n_draws == 12


@pytest.mark.slow
def test_a_run_on_parts_that_stay_on_disk_can_be_resumed(here):
    ok("fit", here / "parts", "--target", "y", "--out", "m", "--run-dir", "run", "--memory", "0", *DRAW)
    before = load_model("m").posterior.chains.x
    assert before.shape[1] == 12
    facts = json.loads(ok("resume", "run", "--max-draws", "15", "--json").stdout)
    assert facts["counts"]["values"] > 0  # a sample searched: the rows were read from disk
    after = load_model("m").posterior.chains.x
    np.testing.assert_array_equal(after[:, :12], before)
    assert after.shape[1] == 15


# --- predicting


def read(path):
    return (pd.read_csv(path) if str(path).endswith("csv") else pd.read_parquet(path)).to_numpy()


def test_predictions_of_a_parquet_file_are_those_of_the_csv_file(here, model, monkeypatch):
    """Read and written in blocks of rows that do not divide it."""
    ok("predict", model, here / "new.csv", "--out", "all.csv", "--samples", "0")
    monkeypatch.setattr(commands, "_ROWS_AT_ONCE", 10)
    ok("predict", model, here / "new.parquet", "--out", "p.parquet")
    ok("predict", model, here / "new.parquet", "--out", "p.csv")
    wanted = read("all.csv")
    assert wanted.shape == (57, 6)
    np.testing.assert_allclose(read("p.parquet"), wanted, rtol=1e-9)
    np.testing.assert_allclose(read("p.csv"), wanted, rtol=1e-9)
    assert list(pd.read_parquet("p.parquet")) == list(pd.read_csv("all.csv"))


def test_draws_can_be_repeated(here, model):
    arguments = ("predict", model, here / "new.parquet", "--samples", "3")
    for out, seed in (("a.parquet", 5), ("b.parquet", 5), ("c.parquet", 6)):
        ok(*arguments, "--seed", seed, "--out", out)
    a, b, c = (pd.read_parquet(f"{name}.parquet") for name in "abc")
    pd.testing.assert_frame_equal(a, b)
    assert (a[["s0", "s1", "s2"]] != c[["s0", "s1", "s2"]]).all(axis=None)
    ok("predict", model, here / "new.csv", "--samples", "3", "--seed", "5", "--out", "d.parquet")
    pd.testing.assert_frame_equal(a, pd.read_parquet("d.parquet"))


def test_blocks_are_written_as_they_come(here, model, monkeypatch):
    """No more than one block of inputs is in memory when it is written."""
    monkeypatch.setattr(commands, "_ROWS_AT_ONCE", 10)
    sizes, inner = [], commands._predict

    def noted(saved, X, *more):
        sizes.append(len(X))
        return inner(saved, X, *more)

    monkeypatch.setattr(commands, "_predict", noted)
    ok("predict", model, here / "new.parquet", "--out", "p.parquet")
    assert max(sizes) <= 10
    assert sum(sizes) == 57


# --- mistakes


def test_a_column_that_is_not_there(here, model):
    pd.read_parquet(here / "new.parquet").rename(columns={"b b": "c"}).to_parquet("w.parquet")
    line = refused("predict", model, "w.parquet", "--out", "p.parquet")
    assert "no column 'b b': it has a, c" in line
    assert not (here / "p.parquet").exists()


@pytest.mark.parametrize("out", ["p.parquet", "p.csv"])
def test_a_missing_value_is_named_and_nothing_is_written(out, here, model, monkeypatch, tmp_path):
    monkeypatch.setattr(commands, "_ROWS_AT_ONCE", 10)
    frame = pd.read_parquet(here / "new.parquet")
    frame.loc[33, "a"] = np.nan
    frame.to_parquet("w.parquet")
    assert "row 34: column 'a' is missing" in refused("predict", model, "w.parquet", "--out", out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["w.parquet"]


@pytest.mark.parametrize("out", [[], ["--out", "p.parquet"]], ids=["to standard output", "to a file"])
def test_a_file_that_breaks_off_is_named(out, here, model, monkeypatch, tmp_path):
    """Not the file that is written."""
    monkeypatch.chdir(tmp_path)
    content = bytearray((here / "new.parquet").read_bytes())
    content[4:300] = bytes(296)  # the first row group; the footer is as it was
    (tmp_path / "broken.parquet").write_bytes(content)
    assert "broken.parquet cannot be read" in refused("predict", model, tmp_path / "broken.parquet", *out)
    assert not (tmp_path / "p.parquet").exists()


def test_a_column_that_is_not_numeric(here, model):
    pd.read_parquet(here / "new.parquet").assign(a="red").to_parquet("w.parquet")
    assert "not numeric" in refused("predict", model, "w.parquet", "--out", "p.parquet")


def test_a_file_that_is_not_parquet(here, model, tmp_path):
    (tmp_path / "w.parquet").write_text("a,b b\n1,2\n")
    assert "cannot be read as Parquet" in refused("predict", model, "w.parquet", "--out", "p.parquet")


def parts_with(change, tmp_path):
    for k in range(2):
        frame = table(30, seed=k)
        (change(frame) if k else frame).to_parquet(tmp_path / f"{k}.parquet")
    return tmp_path


def missing(frame):
    frame.loc[12, "b b"] = np.nan
    return frame


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (missing, "1.parquet, row 13: column 'b b' is missing or infinite"),
        (lambda f: f.rename(columns={"a": "c"}), "have different columns (a, c)"),
        (lambda f: f.assign(a="red"), "have different columns"),
    ],
)
def test_parts_that_are_wrong(change, words, tmp_path):
    data = parts_with(change, tmp_path)
    assert words in refused("fit", data, "--target", "y", "--out", tmp_path / "m", *FAST)
    assert not (tmp_path / "m").exists()


def test_a_target_that_is_not_there(here):
    assert "no column 'z'" in refused("fit", here / "parts", "--target", "z", "--out", "m", *FAST)


def test_a_directory_without_parts(tmp_path):
    assert "no Parquet file" in refused("fit", tmp_path, "--target", "y", "--out", tmp_path / "m", *FAST)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--method", "svgp"], "svgp needs all rows in the memory of one process: use ml2"),
        (["--method", "joint-hmc"], "joint-hmc needs all rows in the memory"),
        (["--method", "gpr-hmc"], "gpr-hmc needs all rows in the memory"),
        (["--sampler", "hmc"], "the sampler hmc needs all rows in the memory of one process: use default or nuts"),
        (["--likelihood", "student-t"], "joint-hmc needs all rows in the memory"),
        (["--method", "none"], "there is no method 'none'"),
    ],
)
def test_what_needs_all_rows_is_refused(options, words, here):
    assert words in refused("fit", here / "parts", "--target", "y", "--out", "m", "--quiet", *options)
    assert "m" not in [p.name for p in here.iterdir()]


def test_several_processes_need_parquet(here, monkeypatch):
    """The rows of a CSV file cannot be divided without reading it."""
    with pytest.raises(InputError, match="several processes read Parquet files"):
        commands._rows(here / "t.csv", "y", Selection(), 2**30, agreeing(0, 2), None, RBF())


def test_the_same_row_is_refused_while_rows_are_read(here, tmp_path, capfd):
    """A file beyond memory: the first pass finds the missing value before anything is compiled."""
    missing(table()).to_parquet("w.parquet", row_group_size=50)
    line = refused("fit", "w.parquet", "--target", "y", "--out", "m", "--memory", "0", *FAST)
    assert "w.parquet, row 13: column 'b b' is missing" in line
    assert "Traceback" not in capfd.readouterr().err
    assert "m" not in [p.name for p in tmp_path.iterdir()]
