"""Tables from results made by hand, and the paper's numbers as printed."""

import math

import numpy as np
import pytest

from integrand.experiments.collect import collect
from integrand.experiments.paper_numbers import Printed, nuts_summary, printed
from integrand.experiments.results import Mean, Results, in_standard_errors, mean_of
from integrand.experiments.runner import tasks_of
from integrand.experiments.store import Store
from integrand.experiments.suites import SUITES
from integrand.experiments.tables import paired_table, runtime_table, score_tables, spread_table, summary_tables

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
        "made": {"version": "0", "date": "2026-01-02"},
    }


@pytest.fixture
def store(tmp_path):
    store, rng = Store(tmp_path / "raw"), np.random.default_rng(0)
    for task in tasks_of(UCI, "default", ["boston", "boston_as_published", "yacht"], ["SGPR", "SGPR + HMC"], range(4)):
        better = 0.1 if task.arm.name == "SGPR + HMC" else 0.0
        store.keep(task, made(0.4 + 0.01 * task.split, 0.5 - better + 0.001 * rng.standard_normal()))
    return store


def test_printed_numbers():
    assert printed("uci", "yacht", "sgpr-hmc", "rmse") == Printed(0.387, 0.03)
    assert printed("uci", "boston_as_published", "sgpr", "joint_nlpd") == Printed(2.539, None)
    assert printed("uci", "boston", "sgpr", "rmse") is None  # the paper's table is the damaged one
    assert printed("elevators", "500", "joint-hmc", "rmse") == Printed(0.0964, None)
    assert printed("runtime", "concrete", "gpr-hmc", "seconds") == Printed(977.4, 13.82)
    assert nuts_summary("yacht")["ls[3]"]["ess_bulk"] == 836.0
    assert len(nuts_summary("boston_as_published")) == 15


def test_means_have_the_paper_s_standard_error():
    assert mean_of([1.0, 3.0]) == Mean(2.0, 1.0 / math.sqrt(2.0), 2)
    assert mean_of([]) is None
    assert in_standard_errors(Mean(2.0, 0.3, 9), Printed(1.0, 0.4)) == pytest.approx(2.0)
    assert in_standard_errors(Mean(2.0, 0.3, 9), None) is None


def test_scores_stand_beside_the_paper_s(store):
    tables = {t.name: t for t in score_tables(Results.read(store, UCI, "default"))}
    row = next(r for r in tables["rmse"].rows if r[:2] == ["yacht", "SGPR"])
    assert row[2:5] == ["0.415 (0.006)", "4", "0.412 (0.03)"]
    assert float(row[5]) == pytest.approx(0.003 / math.hypot(0.03, 0.0056), abs=0.05)
    assert next(r for r in tables["rmse"].rows if r[0] == "boston")[4] == "-"


def test_paired_differences_see_what_the_spread_hides(store):
    results = Results.read(store, UCI, "default")
    rows = {(r[0], r[1]): r for r in paired_table(results, "SGPR")[0].rows}
    difference, error = (float(x) for x in rows["yacht", "SGPR + HMC"][2].split(" ± "))
    assert difference == pytest.approx(-0.1, abs=0.005)
    assert error < 0.005
    assert (
        spread_table(results, ["SGPR", "SGPR + HMC"])[0].rows[0][2] == f"{np.std([0.4, 0.41, 0.42, 0.43], ddof=1):.3f}"
    )


def test_runtime_in_ratios(tmp_path):
    suite, store = SUITES["runtime"], Store(tmp_path)
    for task in tasks_of(suite, "default", ["yacht"], ["SGPR", "SGPR + HMC"], [0]):
        store.keep(task, made(0.4, 0.5, seconds=2.0 if task.arm.name == "SGPR" else 5.0))
    rows = runtime_table(Results.read(store, suite, "default"))[0].rows
    assert rows[1][1:] == ["SGPR + HMC", "5.0", "2.50", "2.0", "24.5", "1.20"]


def test_summaries_go_by_position(tmp_path):
    suite, store = SUITES["nuts-summary"], Store(tmp_path)
    ours = {f"lengthscale[x{i}]": 2.0 for i in range(6)} | {"scale": 2.334, "noise": 0.034}
    each = {"sd": 1.0, "hdi_3": 0.0, "hdi_97": 1.0, "mcse_mean": 0.01, "ess_bulk": 1.0, "ess_tail": 1.0}
    (task,) = tasks_of(suite, "default", ["yacht"], [suite.arms[0].name], [4])
    store.keep(task, made(0.4, 0.5) | {"hyperparameters": {k: each | {"mean": v} for k, v in ours.items()}})
    rows = summary_tables(Results.read(store, suite, "default"))[0].rows
    assert [r[0] for r in rows][-2:] == ["scale (`sig_f`)", "noise (`sig_n`)"]
    assert [r[-1] for r in rows][-2:] == ["+0.0", "+0.0"]


def test_collect_writes_pages_tables_and_figures(store, tmp_path):
    written = collect(store, tmp_path / "docs")
    names = {p.name for p in written}
    assert {"uci.md", "uci.png", "uci-rmse.csv", "ablation.md", "priors.md"} <= names
    page = (tmp_path / "docs" / "uci.md").read_text()
    assert "integrand reproduce uci" in page
    assert "| yacht | SGPR + HMC |" in page
    assert (tmp_path / "docs" / "uci.png").read_bytes().startswith(b"\x89PNG")
