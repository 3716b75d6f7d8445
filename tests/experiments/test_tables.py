"""Tables from results made by hand, and the paper's numbers as printed."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from experiments.collect import collect
from experiments.paper_numbers import Printed, nuts_summary, printed
from experiments.runner import tasks_of
from experiments.store import Store
from experiments.suite_results import Mean, Results, in_standard_errors, mean_of
from experiments.suites import PROTOCOLS, SUITES
from experiments.tables import (
    TABLES,
    paired_tables,
    runtime_table,
    score_tables,
    spread_table,
    summary_tables,
    time_ratios,
    verdict_table,
)
from results.read import HERE, about, read, read_files, write

UCI = SUITES["uci"]


def made(rmse, nlpd, seconds=2.0):
    scores = {"rmse": rmse, "nlpd": nlpd, "joint_nlpd": nlpd + 0.1, "expected_nlpd": nlpd + 0.2}
    verdict = {"ok": True, "codes": [], "r_hat": 1.004, "ess_bulk": 900.0, "ess_tail": 500.0, "divergences": 1}
    return {
        "scores": scores,
        "verdict": verdict,
        "seconds": {"warm start": 1.0, "final": seconds - 1.0},
        "counts": {"gradients": 100},
        "draws": 1000,
        "made": {"version": "0", "date": "2026-01-02", "settings": {"max_minutes": 3.0}},
    }


@pytest.fixture
def store(tmp_path):
    store, rng = Store(tmp_path / "raw"), np.random.default_rng(0)
    for task in tasks_of(UCI, "default", ["boston", "boston_as_published", "yacht"], ["SGPR", "SGPR + HMC"], range(10)):
        better = 0.1 if task.arm.name == "SGPR + HMC" else 0.0
        store.keep(task, made(0.4 + 0.01 * task.split, 0.5 - better + 0.001 * rng.standard_normal()))
    return store


def test_printed_numbers():
    assert printed("uci", "yacht", "sgpr-hmc", "rmse") == Printed(0.387, 0.03)
    assert printed("uci", "boston_as_published", "sgpr", "joint_nlpd") == Printed(2.539, 0.0398)
    assert printed("uci", "energy", "sgpr-hmc", "joint_nlpd") == Printed(0.644, 0.013)
    assert printed("uci", "boston", "sgpr", "rmse") is None  # the paper's table is the damaged one
    assert printed("elevators", "500", "joint-hmc", "rmse") == Printed(0.0964, None)
    assert printed("runtime", "concrete", "gpr-hmc", "seconds") == Printed(977.4, 13.82)
    assert nuts_summary("yacht")["ls[3]"]["ess_bulk"] == 836.0
    assert len(nuts_summary("boston_as_published")) == 15


def test_means_have_the_paper_s_standard_error():
    assert mean_of([1.0, 3.0]) == Mean(2.0, 1.0 / math.sqrt(2.0), 2)
    assert mean_of([]) is None
    assert in_standard_errors(Mean(2.0, 0.3, 10), Printed(1.0, 0.4)) == pytest.approx(2.0)
    assert in_standard_errors(Mean(2.0, 0.3, 10), None) is None
    assert in_standard_errors(Mean(2.0, 0.3, 9), Printed(1.0, 0.4)) is None  # some splits are not the paper's ten


def test_scores_stand_beside_the_paper_s(store):
    tables = {t.name: t for t in score_tables(Results.read(store, UCI, "default"))}
    row = next(r for r in tables["rmse"].rows if r[:2] == ["yacht", "SGPR"])
    assert row[2:5] == ["0.445 (0.009)", "10", "0.412 (0.03)"]
    assert float(row[5]) == pytest.approx(0.033 / math.hypot(0.03, 0.009), abs=0.05)
    assert next(r for r in tables["rmse"].rows if r[0] == "boston")[4] == "-"


def test_paired_differences_see_what_the_spread_hides(store):
    results = Results.read(store, UCI, "default")
    rows = {(r[0], r[1]): r for r in paired_tables(results, "SGPR")[0].rows}
    difference, error = (float(x) for x in rows["yacht", "SGPR + HMC"][2].split(" ± "))
    assert difference == pytest.approx(-0.1, abs=0.005)
    assert error < 0.005
    assert (
        spread_table(results, ["SGPR", "SGPR + HMC"])[0].rows[0][2]
        == f"{np.std(0.4 + 0.01 * np.arange(10), ddof=1):.3f}"
    )


def test_one_chain_has_no_r_hat_but_is_in_the_table(tmp_path):
    store = Store(tmp_path)
    for task in tasks_of(UCI, "default", ["yacht"], ["SGPR", "SGPR + HMC"], [0, 1]):
        result = made(0.4, 0.5)
        result["draws"] = 1 if task.arm.name == "SGPR" else 100
        result["verdict"] |= {"r_hat": None, "ess_tail": 13.0 + task.split, "ok": False, "codes": ["budget"]}
        store.keep(task, result)
    rows = verdict_table(Results.read(store, UCI, "default"))[0].rows
    assert rows[0][2:7] == ["0 of 2", "2", "-", "-", "-"]
    assert rows[1][2:7] == ["0 of 2", "2", "13", "inf", "2"]


def test_some_splits_stand_beside_the_reference_s_same_splits(store):
    for task in tasks_of(UCI, "default", ["yacht"], ["FBGP"], [0, 3]):
        store.keep(task, made(0.9, 1.0))
    results = Results.read(store, UCI, "default")
    rows = {(r[0], r[1]): r for r in score_tables(results, ["rmse"], "SGPR + HMC")[0].rows}
    assert rows["yacht", "FBGP"][3] == "2 (SGPR + HMC on these: 0.415)"
    assert rows["yacht", "FBGP"][5] == "-"
    assert rows["yacht", "SGPR"][3] == "10"


def test_a_fit_cut_off_before_its_first_draw_is_no_score_of_its_method(store):
    for task in tasks_of(UCI, "default", ["yacht"], ["FBGP"], [0, 1, 2]):
        result = made(0.9, 1.0)
        if task.split > 0:
            result["draws"] = 1
            result["verdict"] |= {"ok": False, "codes": ["no-draws", "budget"]}
        store.keep(task, result)
    results = Results.read(store, UCI, "default")
    assert results.values("yacht", "FBGP", "rmse") == {0: 0.9}
    row = next(r for r in verdict_table(results)[0].rows if r[1] == "FBGP")
    assert row[2:4] == ["1 of 3", "2 (2 before any draw: not in the scores)"]


def test_spread_is_of_the_splits_that_both_have(store):
    for task in tasks_of(UCI, "default", ["yacht"], ["SGPR"], [9]):
        (store.root / task.path).unlink()
    rows = {
        (r[0], r[1]): r[2:] for r in spread_table(Results.read(store, UCI, "default"), ["SGPR", "SGPR + HMC"])[0].rows
    }
    expected = f"{np.std(0.4 + 0.01 * np.arange(9), ddof=1):.3f}"
    assert rows["yacht", "rmse"] == [expected, expected, "9"]
    assert rows["boston", "joint_nlpd"][2] == "10"


def test_small_numbers_keep_their_digits():
    assert str(Mean(0.09136, 0.0, 1)) == "0.0914"
    assert str(Mean(-0.9682, 0.0123, 10)) == "-0.968 (0.012)"


def test_times_on_elevators_as_ratios(tmp_path):
    suite, store = SUITES["elevators"], Store(tmp_path)
    for task in tasks_of(
        suite, "default", ["elevators"], [arm.name for arm in suite.arms if arm.n_inducing < 300], [0]
    ):
        if task.arm.name != "JointHMC, M = 200":
            store.keep(task, made(0.1, -0.9, seconds=2.0) | {"draws": 1000 if task.arm.method == "sgpr-hmc" else 500})
    assert time_ratios(Results.read(store, suite, "default"))[0].rows == [["100", "0", "2", "2", "1.00", "2.00"]]


def test_the_paper_s_protocol_has_pages_of_its_own_suites_alone(tmp_path):
    store = Store(tmp_path / "raw")
    for task in tasks_of(UCI, "paper", ["yacht"], ["SGPR", "SGPR + HMC"], [4]):
        store.keep(task, made(0.4, 0.5))
    names = {p.name for p in collect(store, tmp_path / "docs")}
    assert {name for name in names if name.endswith(".md")} == {"uci-paper.md"}


def test_runtime_in_ratios(tmp_path):
    suite, store = SUITES["runtime"], Store(tmp_path)
    for task in tasks_of(suite, "default", ["yacht"], ["SGPR", "SGPR + HMC"], [0]):
        store.keep(task, made(0.4, 0.5, seconds=2.0 if task.arm.name == "SGPR" else 5.0))
    rows = runtime_table(Results.read(store, suite, "default"))[0].rows
    assert rows[1][1:] == ["SGPR + HMC", "5.0", "2.50", "1.00", "2.0", "1.00", "24.5", "1.20", "1.00"]


def test_summaries_go_by_position(tmp_path):
    suite, store = SUITES["nuts-summary"], Store(tmp_path)
    ours = {f"lengthscale[x{i}]": 2.0 for i in range(6)} | {"scale": 2.334, "noise": 0.034}
    each = {"sd": 1.0, "hdi_3": 0.0, "hdi_97": 1.0, "mcse_mean": 0.01, "ess_bulk": 1.0, "ess_tail": 1.0}
    (task,) = tasks_of(suite, "default", ["yacht"], [suite.arms[0].name], [4])
    store.keep(task, made(0.4, 0.5) | {"hyperparameters": {k: each | {"mean": v} for k, v in ours.items()}})
    rows = summary_tables(Results.read(store, suite, "default"))[0].rows
    assert [r[0] for r in rows][-2:] == ["scale (`sig_f`)", "noise (`sig_n`)"]
    assert [r[-1] for r in rows][-2:] == ["+0.0", "+0.0"]


@pytest.mark.slow
def test_collect_writes_pages_tables_and_figures(store, tmp_path):
    written = collect(store, tmp_path / "docs")
    names = {p.name for p in written}
    assert {"uci.md", "uci.png", "tables.csv", "ablation.md", "priors.md"} <= names
    page = (tmp_path / "docs" / "uci.md").read_text()
    assert "python -m experiments uci" in page
    assert "| yacht | SGPR + HMC |" in page
    assert "SGPR + HMC: 3" in page  # the cap of its fits
    with (tmp_path / "docs" / "tables.csv").open() as file:
        cells = {(c["page"], c["table"], c["row"], c["column"]): c["value"] for c in csv.DictReader(file)}
    assert cells["uci", "rmse", "0", "data"] == "boston"
    assert cells["uci", "rmse", "0", "ours (se)"] == "0.445 (0.009)"
    assert (tmp_path / "docs" / "uci.png").read_bytes().startswith(b"\x89PNG")


def test_figures_show_some_splits_as_if_they_were_all(store):
    from experiments.pictures import _on_all_splits

    for task in tasks_of(UCI, "default", ["yacht"], ["FBGP"], [7, 8, 9]):  # the splits with the largest RMSE
        store.keep(task, made(0.4 + 0.01 * task.split + 0.05, 1.0))
    results = Results.read(store, UCI, "default")
    found = _on_all_splits(results, "yacht", "FBGP", "rmse", "SGPR + HMC")
    assert found is not None
    assert found.value == pytest.approx(results.mean("yacht", "SGPR + HMC", "rmse").value + 0.05)
    assert found.n == 3
    assert _on_all_splits(results, "yacht", "SGPR", "rmse", "SGPR + HMC") == results.mean("yacht", "SGPR", "rmse")


def test_seconds_are_compared_between_fits_with_as_many_cores_that_drew(tmp_path):
    suite, store = SUITES["elevators"], Store(tmp_path)
    for task in tasks_of(suite, "default", ["elevators"], ["SGPR + HMC, M = 100", "JointHMC, M = 100"], [0]):
        store.keep(task, made(0.1, -0.9, seconds=4.0 if task.arm.method == "joint-hmc" else 2.0))
    assert time_ratios(Results.read(store, suite, "default"))[0].rows[0][4] == "2.00"
    result = made(0.1, -0.9)
    result["made"]["cores"] = 2
    store.keep(task, result)
    assert time_ratios(Results.read(store, suite, "default")) == []
    result = made(0.1, -0.9)
    result["verdict"]["codes"] = ["no-draws", "budget"]
    store.keep(task, result)
    assert time_ratios(Results.read(store, suite, "default")) == []


# ---- the published tables return the objects that went in, and the pages show their numbers


PAGES = HERE.parent / "docs" / "evidence" / "paper"


def test_a_table_returns_what_was_written(tmp_path):
    results = {
        "b/split-1": {"score": 0.1 + 0.2, "count": 2**60, "mixed": 1, "none": None, "nested": {"z": [1, 2.5], "a": {}}},
        "a/split-0": {"score": -1e-300, "count": 0, "mixed": 1.5, "none": "text", "ok": True, "Größe": ["σ"]},
    }
    write(tmp_path / "table.parquet", results, {"processor": "any"})
    back = read(tmp_path / "table.parquet")
    assert back == results
    assert list(back) == sorted(results)
    assert list(back["b/split-1"]["nested"]) == ["z", "a"]  # the order of keys stays
    assert [type(back[path]["mixed"]) for path in results] == [int, float]
    assert about(tmp_path / "table.parquet") == {"processor": "any"}


def test_json_files_become_rows(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "split-0.json").write_text('{"x": [1]}')
    (tmp_path / "a" / "split-1.claim").write_text("{}")
    assert read_files(tmp_path) == {"a/split-0": {"x": [1]}}


def test_a_result_cannot_hide_its_path(tmp_path):
    with pytest.raises(ValueError, match="path"):
        write(tmp_path / "table.parquet", {"a": {"path": "b"}})


@pytest.fixture(scope="module")
def published():
    return Store(Path("nowhere"), read("paper"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_the_pages_show_the_numbers_of_the_table(published, suite, protocol):
    page = PAGES / (f"{suite.name}.md" if protocol == "default" else f"{suite.name}-{protocol}.md")
    results = Results.read(published, suite, protocol)
    assert page.exists() == bool(results.by_arm)
    if results.by_arm:
        text = page.read_text(encoding="utf-8")
        assert all(table.markdown().rstrip() in text for table in TABLES[suite.name](results))
