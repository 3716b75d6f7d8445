"""The commands as a user types them: outputs, files, exit codes, and one line for each mistake."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from integrand.cli import compare
from integrand.cli.app import app
from integrand.errors import InputError

FAST = ["--method", "ml2", "--inducing", "8", "--quiet"]
SAMPLE = ["--inducing", "8", "--target-ess", "20", "--max-draws", "100", "--quiet"]


def table(n: int = 40, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=n), rng.normal(size=n)
    return pd.DataFrame({"a": a, "b b": b, "y": np.sin(2 * a) + 0.1 * rng.normal(size=n)})


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table().to_csv("train.csv", index=False)
    table(25, seed=1).to_csv("test.csv", index=False)
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def ok(*arguments: str):
    result = run(*arguments)
    assert result.exit_code == 0, result.output + str(result.exception)
    return result


def test_from_table_to_report(files):
    fit = ("fit", "train.csv", "--target", "y", "--out", "m.integrand", "--json", "--bound", "tight")
    facts = json.loads(ok(*fit, *SAMPLE).stdout)
    assert facts["model"] == "m.integrand"
    assert facts["bound"] == "tight"
    assert set(facts["hyperparameters"]) == {"lengthscale[a]", "lengthscale[b b]", "scale", "noise"}
    ok("predict", "m.integrand", "test.csv", "--out", "p.csv", "--quantiles", "0.1,0.9", "--samples", "2")
    predictions = pd.read_csv("p.csv")
    assert list(predictions) == ["mean", "sd_f", "sd_y", "q0.1", "q0.9", "s0", "s1"]
    assert len(predictions) == 25
    assert (predictions.sd_y > predictions.sd_f).all()
    assert ((predictions["q0.1"] < predictions["mean"]) & (predictions["mean"] < predictions["q0.9"])).all()
    metrics = json.loads(ok("evaluate", "m.integrand", "test.csv", "--json").stdout)
    assert metrics["rmse"] < 0.5
    assert "joint_nlpd" not in metrics
    joint = json.loads(ok("evaluate", "m.integrand", "test.csv", "--joint", "--json").stdout)
    assert np.isfinite(joint.pop("joint_nlpd"))
    assert joint == metrics
    assert {"nlpd", "expected_nlpd", "crps", "coverage_50", "coverage_80", "coverage_95"} <= set(metrics)
    ok("report", "m.integrand", "--data", "test.csv", "--out", "r.html")
    assert "<html" in (files / "r.html").read_text()
    assert "Leave-one-out" not in (files / "r.html").read_text()
    inside = json.loads(ok("evaluate", "m.integrand", "train.csv", "--loo", "--json").stdout)
    assert inside["loo"]["rows"] == len(table())
    assert inside["nlpd"] < -inside["loo"]["elpd"] / inside["loo"]["rows"]  # rows of the fit flatter it
    assert "Leave-one-out: " in ok("evaluate", "m.integrand", "train.csv", "--loo").stdout
    ok("report", "m.integrand", "--data", "train.csv", "--out", "r.html")
    assert "Leave-one-out" in (files / "r.html").read_text()
    assert "not the rows" in run("evaluate", "m.integrand", "test.csv", "--loo").output
    assert "is an input of the model" in run("evaluate", "m.integrand", "test.csv", "--target", "a").output


def test_every_format_gives_the_same_predictions(files):
    ok("fit", "train.csv", "--target", "y", "--out", "m", *FAST)
    frame = pd.read_csv("test.csv")
    frame.to_parquet("test.parquet")
    with gzip.open("test.csv.gz", "wt") as stream:
        frame.to_csv(stream, index=False)
    tables = []
    for name, out in (("test.csv", "a.csv"), ("test.csv.gz", "b.csv.gz"), ("test.parquet", "c.parquet")):
        ok("predict", "m", name, "--out", out)
        tables.append(pd.read_parquet(out) if out.endswith("parquet") else pd.read_csv(out))
    for other in tables[1:]:
        np.testing.assert_allclose(other.to_numpy(), tables[0].to_numpy(), rtol=1e-12)
    printed = ok("predict", "m", "test.csv").stdout
    assert printed.splitlines()[0] == "mean,sd_f,sd_y,q0.05,q0.5,q0.95"


def test_compare_answers_in_a_sentence(files, monkeypatch):
    table().assign(name="a", v=0.01).to_csv("named.csv", index=False)
    made = []
    real = compare.fit
    monkeypatch.setattr(compare, "fit", lambda rows, **how: made.append((rows, how)) or real(rows, **how))
    arguments = ("compare", "named.csv", "--target", "y", "--methods", "ml2,map", "--folds", "2", "--inducing", "8")
    arguments += ("--id", "name", "--noise-column", "v")
    facts = json.loads(ok(*arguments, "--json").stdout)
    assert facts["reference"] == "ml2"
    assert facts["methods"]["ml2"]["difference"] == 0.0
    assert facts["answer"].split()[0] in ("Best:", "No")
    assert facts["answer"] in ok(*arguments).stdout
    for rows, how in made:
        assert rows.columns == ("a", "b b")
        assert rows.noise_variance.tolist() == [0.01] * 20
        assert how["likelihood"] == "gaussian"


@pytest.mark.parametrize(("flags", "method"), [(("--folds", "2"), "svgp"), (("--kernels", "rbf, linear"), "joint-hmc")])
def test_compare_takes_a_likelihood_which_chooses_the_methods(files, monkeypatch, flags, method):
    def first(rows, **how):
        raise InputError(f"{how['method']} with {how['likelihood']}")

    monkeypatch.setattr(compare, "fit", first)
    result = run("compare", "train.csv", "--target", "y", "--likelihood", "student-t", *flags)
    assert result.stderr == f"integrand: {method} with student-t\n"


def test_strict_exits_3_and_still_writes_the_model(files):
    few = ["--inducing", "8", "--max-draws", "10", "--quiet"]
    result = run("fit", "train.csv", "--target", "y", "--out", "m", "--strict", *few)
    assert result.exit_code == 3
    assert (files / "m").exists()
    ok("evaluate", "m", "test.csv")


def test_killed_and_resumed(files):
    command = "-m integrand.cli fit train.csv --target y --out m --run-dir run --inducing 8 --target-ess 1e9 --quiet"
    process = subprocess.Popen([sys.executable, *command.split()])
    deadline = time.monotonic() + 120
    while not (files / "run" / "draws_000.npz").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert (files / "run" / "draws_000.npz").exists()
    ok("resume", "run", "--max-minutes", "0.02", "--quiet")
    ok("evaluate", "m", "test.csv")


def wrong(name: str, frame: pd.DataFrame) -> str:
    frame.to_csv(name, index=False)
    return name


def parquet(name: str, frame: pd.DataFrame) -> str:
    frame.to_parquet(name)
    return name


NOISY = ["--noise-column", "v", "--likelihood", "poisson"]
COMPARE = ["compare", "train.csv", "--target", "y"]
FIT = ["fit", "train.csv", "--target", "y", "--out", "m"]
MISTAKES = {
    "no such file": (lambda: ["fit", "none.csv", "--target", "y", "--out", "m"], "no file"),
    "a directory": (lambda: ["fit", ".", "--target", "y", "--out", "m"], "directory"),
    "no such target": (lambda: ["fit", "train.csv", "--target", "z", "--out", "m"], "'z'"),
    "empty file": (lambda: ["fit", wrong("e.csv", pd.DataFrame()), "--target", "y", "--out", "m"], "e.csv"),
    "no rows": (lambda: ["fit", wrong("n.csv", table()[:0]), "--target", "y", "--out", "m"], "no rows"),
    "text column": (lambda: ["fit", wrong("t.csv", table().assign(c="x")), "--target", "y", "--out", "m"], "'c'"),
    "missing values": (
        lambda: ["fit", wrong("v.csv", table().where(table() < 1.0)), "--target", "y", "--out", "m"],
        "missing",
    ),
    "only the target": (lambda: ["fit", wrong("o.csv", table()[["y"]]), "--target", "y", "--out", "m"], "besides"),
    "constant target": (
        lambda: ["fit", wrong("k.csv", table().assign(y=1.0)), "--target", "y", "--out", "m"],
        "constant",
    ),
    "unknown method": (lambda: [*FIT, "--method", "magic"], "magic"),
    "unknown kernel": (lambda: [*FIT, "--kernel", "magic"], "magic"),
    "unknown sampler": (lambda: [*FIT, "--sampler", "magic"], "magic"),
    "unknown likelihood": (lambda: [*FIT, "--likelihood", "magic"], "magic"),
    "likelihood that the method has not": (
        lambda: [*FIT, "--method", "sgpr-hmc", "--likelihood", "student-t"],
        "joint-hmc",
    ),
    "sampler that the method has not": (lambda: [*FIT, "--method", "fbgp", "--sampler", "slice"], "slice"),
    "counts below zero": (lambda: [*FIT, "--method", "svgp", "--likelihood", "poisson"], "poisson"),
    "unknown preset": (lambda: [*FIT, "--priors", "magic"], "magic"),
    "no inducing points": (
        lambda: [*FIT, "--inducing", "0"],
        "--inducing must be",
    ),
    "negative variance": (
        lambda: ["fit", wrong("g.csv", table().assign(v=-1.0)), "--target", "y", "--noise-column", "v", "--out", "m"],
        "g.csv, row 1: column 'v' is -1: a variance",
    ),
    "no logarithm": (
        lambda: ["fit", wrong("l.csv", table().assign(y=-2.0)), *FIT[2:], "--target-transform", "log"],
        "l.csv, row 1: column 'y' is -2, but --target-transform log",
    ),
    "negative minutes": (
        lambda: [*FIT, "--max-minutes", "-1"],
        "--max-minutes must be",
    ),
    "output directory missing": (lambda: ["fit", "train.csv", "--target", "y", "--out", "no/m"], "no directory"),
    "output is a directory": (lambda: ["fit", "train.csv", "--target", "y", "--out", "."], "directory"),
    "not a run": (lambda: ["resume", "."], "."),
    "not a model": (lambda: ["predict", "train.csv", "test.csv"], "train.csv is a table, not a model file: the model"),
    "no model": (lambda: ["predict", "none", "test.csv"], "none"),
    "one method": (lambda: ["compare", "train.csv", "--target", "y", "--methods", "ml2"], "two"),
    "unknown method in compare": (lambda: ["compare", "train.csv", "--target", "y", "--methods", "ml2,magic"], "magic"),
    "output of update": (lambda: ["update", "none", "test.csv", "--out", "."], "directory"),
    "format of a prior": (lambda: ["prior", *FIT[1:4], "--out", "p.xlsx"], "written as .csv"),
    "words in Parquet": (
        lambda: ["fit", parquet("w.parquet", table().assign(c="x")), *FIT[2:]],
        "w.parquet: column 'c' is not numeric: name it in the kernel, as in --kernel",
    ),
    "misspelt target": (lambda: ["fit", "train.csv", "--target", "Y", "--out", "m"], "did you mean 'y'?"),
    "misspelt feature": (lambda: [*FIT, "--features", "a,bb"], "did you mean 'b b'?"),
    "negative noise": (lambda: [*FIT, "--noise", "-1"], "--noise must be positive"),
    "wrong separator": (lambda: [*FIT, "--sep", ";"], "columns are separated by commas, not by ';': leave --sep out"),
    "noise of a likelihood": (
        lambda: ["fit", wrong("p.csv", table().assign(y=1, v=0.1)), *FIT[2:], *NOISY],
        "takes no `--noise-column`",
    ),
    "method of compare that the likelihood has not": (
        lambda: [*COMPARE, "--likelihood", "student-t", "--methods", "svgp,sgpr-hmc"],
        "sgpr-hmc is for Gaussian noise, not for a student-t likelihood: use joint-hmc",
    ),
    "no leave-one-out": (
        lambda: [*COMPARE, "--likelihood", "student-t", "--kernels", "rbf,linear", "--methods", "vi-uncollapsed"],
        "vi-uncollapsed has no leave-one-out without refitting: use --methods joint-hmc",
    ),
    "noise of compare": (
        lambda: ["compare", wrong("h.csv", table().assign(v=-1.0)), *COMPARE[2:], "--noise-column", "v"],
        "h.csv, row 1: column 'v' is -1: a variance",
    ),
    "noise column twice": (lambda: [*COMPARE, "--noise-column", "y"], "the target or under another flag"),
    "one fold": (lambda: ["compare", "train.csv", "--target", "y", "--folds", "1"], "fold"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(files, name):
    make, expected = MISTAKES[name]
    result = run(*make())
    assert result.exit_code == 2, result.output + repr(result.exception)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("integrand: ")
    assert expected in lines[0]


def test_a_column_the_model_needs_is_named(files):
    ok("fit", "train.csv", "--target", "y", "--out", "m", *FAST)
    result = run("predict", "m", wrong("less.csv", table()[["a"]]))
    assert result.exit_code == 2
    assert "'b b'" in result.stderr
    for levels, said in (("0.5,x", "0.05,0.5,0.95"), ("0,1", "between 0 and 1"), ("5,95", "write 0.05 for 5 %")):
        result = run("predict", "m", "test.csv", "--quantiles", levels)
        assert result.exit_code == 2
        assert "--quantiles" in result.stderr
        assert said in result.stderr


@pytest.mark.slow
def test_a_spent_budget_of_draws_can_be_raised(files):
    few = ["--inducing", "8", "--max-draws", "20", "--run-dir", "short", "--quiet"]
    ok("fit", "train.csv", "--target", "y", "--out", "few", *few)
    first = json.loads(ok("resume", "short", "--json", "--quiet").stdout)
    assert "budget" in first["codes"]
    more = json.loads(ok("resume", "short", "--max-draws", "60", "--target-ess", "30", "--json", "--quiet").stdout)
    assert more["counts"]["gradients"] > 0
    assert more["ess_bulk"] > first["ess_bulk"]


@pytest.mark.slow
def test_a_resumed_run_says_what_it_was_resumed_with_and_all_its_time(files):
    few = ["--inducing", "8", "--max-draws", "20", "--target-ess", "1e9", "--run-dir", "run", "--quiet", "--json"]
    first = json.loads(ok("fit", "train.csv", "--target", "y", "--out", "m", *few).stdout)
    again = json.loads(ok("resume", "run", "--max-draws", "30", "--quiet", "--json").stdout)
    assert again["seconds"].keys() == first["seconds"].keys()
    assert all(again["seconds"][phase] >= first["seconds"][phase] for phase in first["seconds"])
    assert again["seconds"]["final"] > first["seconds"]["final"]
    ok("report", "m", "--out", "r.html")
    page = (files / "r.html").read_text()
    assert re.search(r"<td[^>]*>max_draws</td><td[^>]*>30</td>", page)


@pytest.mark.slow
def test_counts_have_scores_but_no_joint_density(files):
    counted = table().assign(y=np.arange(40) % 4)
    counted.to_csv("counts.csv", index=False)
    ok("fit", "counts.csv", "--target", "y", "--out", "m", "--method", "svgp", "--likelihood", "poisson", *FAST[2:])
    scores = json.loads(ok("evaluate", "m", "counts.csv", "--json").stdout)
    assert all(np.isfinite(value) for value in scores.values())
    result = run("evaluate", "m", "counts.csv", "--joint")
    assert result.exit_code == 2
    assert "poisson" in result.stderr


def test_version():
    assert ok("--version").stdout.startswith("integrand ")


def test_reproduce_says_where_the_experiments_are():
    result = CliRunner().invoke(app, ["reproduce", "uci", "--splits", "0-1"])
    assert result.exit_code == 2
    assert "python -m experiments uci --splits 0-1" in result.stderr


def test_the_words_of_the_command_line(files):
    """Remedies name flags, any setting may be given, JSON has all findings, and far rows are a line."""
    few = ["--inducing", "4", "--max-draws", "20", "--target-ess", "1e9", "--set", "max_rounds=1", "--quiet"]
    said = ok("fit", "train.csv", "--target", "y", "--out", "m", *few).stdout
    assert "`--max-draws`" in said
    assert "`max_draws`" not in said
    assert "\nModel" in said
    facts = json.loads(ok("fit", "train.csv", "--target", "y", "--out", "m", *few, "--json").stdout)
    assert facts["verdict"] in said
    assert [f["code"] for f in facts["findings"]] == facts["codes"]
    assert {"draws", "model"} >= {f["about"] for f in facts["findings"]}
    assert facts["sparseness"]["gain"] > 0.0
    assert "target_accept" in run("fit", "train.csv", "--target", "y", "--out", "m", "--set", "target_accept=2").stderr
    assert "more than a lengthscale outside" not in ok("predict", "m", "train.csv", "--out", "p.csv").stderr
    far = table(25, seed=1)
    far[["a", "b b"]] += 1e6
    far.to_csv("far.csv", index=False)
    assert "25 of 25 rows (100%) are more than a lengthscale outside" in ok("predict", "m", "far.csv").stderr
