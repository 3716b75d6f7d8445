"""The page of the peer benchmarks from invented rows."""

import csv
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
sys.path.insert(0, str(PEERS))

import plan  # noqa: E402
import rows as R  # noqa: E402
from collect import collect  # noqa: E402
from invented import invented  # noqa: E402
from tables import most_calls, times_ours  # noqa: E402
from tables_hyper import ess_per_second, hyperposterior_table, seconds_to_ess  # noqa: E402
from tables_ml2 import ml2_table, ml2_target, seconds_to, stopped_by  # noqa: E402
from tables_product import product_table  # noqa: E402


def written(folder, rows):
    for row in rows:
        path = folder / "results" / f"{row['job']['key']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(row))
    return folder / "results"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Everything of the smoke profile, with one job of each kind that did not end well."""
    folder, rng = tmp_path_factory.mktemp("peers"), np.random.default_rng(0)
    rows = [invented(job, rng) for job in plan.jobs(plan.SMOKE)]
    for row, status, reason in (
        (next(r for r in rows if r["job"]["contestant"] == "gpjax"), "out of memory", "more than 12 GB"),
        (next(r for r in rows if r["job"]["contestant"] == "pymc-nutpie"), "gave up", "gave up after 90 s"),
        (next(r for r in rows if r["job"]["contestant"] == "sklearn"), "failed", "ValueError: no"),
    ):
        row |= {"status": status, "reason": reason, "result": {}, "judged": {}}
    collect(R.read(written(folder, rows)), folder / "out", "smoke", 1000)
    return folder / "out"


def test_every_measure_has_a_table_a_csv_and_a_figure(page):
    text = (page / "README.md").read_text()
    for name in ("gradient", "ml2", "hyperposterior", "product", "accuracy", "growth"):
        assert f"({name}.csv)" in text
        assert f"({name}.png)" in text
        assert (page / f"{name}.png").stat().st_size > 5_000
        with (page / f"{name}.csv").open() as file:
            assert len(list(csv.DictReader(file))) > 0
    assert "(agreement.png)" in text


def test_ratios_are_those_of_the_rows(page):
    text = (page / "README.md").read_text()
    assert "| GPflow SGPR | 4 (4 to 4): 4.0 x |" in text
    assert "| integrand | 1 (1 to 1) |" in text
    what = "gradient, data sets: time of GPyTorch over ours"
    assert f"| 1 | {what} | 1 core: 6.00 (GPyTorch SGPR, yacht); 2 cores:" in text


def test_what_did_not_end_well_is_said_and_not_hidden(page):
    text = (page / "README.md").read_text()
    assert "out of memory" in text
    assert "gave up after 90 s" in text
    assert "scikit-learn exact GP on yacht: failed (ValueError: no)" in text


def test_another_model_is_called_so(page):
    text = (page / "README.md").read_text()
    assert "FITC" in text
    assert "another model" in text
    assert "Z stays where it is" in text


def test_the_page_says_how_it_was_made(page):
    text = (page / "README.md").read_text()
    assert "| measure | what | seen | bar | met |" in text
    assert "a small job in each environment that nobody times" in text
    assert "rows was made on a busy machine" in text
    assert "| gpflow | numpy 2.0 |" in text
    assert "not an unbiased estimate" in text
    for label in ("integrand `sgpr-hmc` (priors `pooled`)", "integrand `sgpr-hmc` (priors `paper`)"):
        assert f"| {label} | 1 |" in text


def test_the_page_names_no_machine(page):
    import platform

    text = (page / "README.md").read_text()
    assert platform.node() not in text
    assert str(PEERS) not in text
    assert "memory" in text


def test_no_results_no_page(tmp_path):
    collect([], tmp_path / "out", "full", 0)
    assert not (tmp_path / "out" / "README.md").exists()


def test_tables_with_nothing_but_failures(tmp_path):
    rows = [invented(job, np.random.default_rng(0)) for job in plan.jobs(plan.SMOKE)]
    for row in rows:
        row |= {"status": "failed", "reason": "its environment is missing", "result": {}, "judged": {}}
    collect(R.read(written(tmp_path, rows)), tmp_path / "out", "smoke", 1000)
    assert "its environment is missing" in (tmp_path / "out" / "README.md").read_text()


def test_the_middle_of_all_calls():
    rows = [{"status": "done", "result": {"calls": [1e-3 * k for k in part]}} for part in (range(1, 6), range(6, 12))]
    assert most_calls([*rows, {"status": "failed", "result": {}}]) == "2 to 10"


def test_target_of_ml2_and_when_it_is_reached():
    jobs = [j for j in plan.jobs(plan.SMOKE, ["ml2"]) if j.contestant in ("integrand", "gpflow", "gpytorch", "sklearn")]
    rows = [invented(job, np.random.default_rng(0)) for job in jobs]
    assert ml2_target(rows) == 49.0  # the median of 50, 50 and 20; the exact GP has no say
    reached = {R.name(r): seconds_to(r, 49.0) for r in rows}
    assert (reached["integrand"], reached["gpflow"], reached["gpytorch"]) == (5.0, 20.0, None)
    cells = {line[0]: line for line in ml2_table(rows).parts[0][2]}
    assert cells["GPyTorch SGPR, Adam 0.1, 20 steps"][1] == "never"
    assert cells["GPflow SGPR, L-BFGS, at most 1000 steps"][1:3] == ["20", "40"]
    assert cells["GPflow SGPR, L-BFGS, at most 1000 steps"][-2:] == ["small gain (70)", "300"]


def ml2_rows(**bounds):
    """One row of ML-II on yacht for each name, with these bounds; several bounds are repeats."""
    rows = []
    for name, values in bounds.items():
        job = next(j for j in plan.jobs(plan.FULL, ["ml2"]) if j.contestant == name and j.problem == "yacht-0")
        for k, bound in enumerate(values):
            row = invented(dataclasses.replace(job, repeat=k), np.random.default_rng(0))
            row["result"] |= {"bound": bound, "trajectory": [[1.0 + k, bound]]}
            row["judged"]["referee_bound"] = bound
            rows.append(row)
    return rows


def test_a_package_has_one_vote_and_no_bound_that_is_not_finite():
    rows = ml2_rows(integrand=[50.0], gpflow=[48.0], gpjax=[10.0], gpytorch=[20.0])
    rows += [r | {"job": r["job"] | {"contestant": "gpytorch-slow"}} for r in ml2_rows(gpytorch=[5.0])]
    assert ml2_target(rows) == 33.0  # 50, 48, 20 and 10: the slower recipe of GPyTorch has no vote of its own
    assert ml2_target([*rows, *ml2_rows(sklearn=[900.0])]) == 33.0
    rows[2]["judged"]["referee_bound"] = float("nan")
    assert ml2_target(rows) == 47.0  # 50, 48 and 20
    rows[1]["judged"]["referee_bound"] = 30.0  # the referee's word counts, not its own
    assert ml2_target(rows) == 29.0


def test_every_repeat_has_to_be_at_the_target():
    job = next(j for j in plan.jobs(plan.FULL, ["product"]) if j.problem == "yacht-0")
    rows = [*ml2_rows(integrand=[50.0], gpflow=[50.0, 50.0, 50.0]), invented(job, np.random.default_rng(0))]

    def cells():
        lines = {line[0]: line for line in product_table(rows).parts[0][2]}
        there = {line[0]: line for line in ml2_table(rows).parts[0][2]}
        return there[next(k for k in there if "GPflow" in k)][1], lines[
            "GPflow SGPR, L-BFGS, ML-II, to the target of table 2"
        ][1]

    assert cells() == ("2 (1 to 3)", "2 (1 to 3): **5.00**")
    rows[2]["result"]["trajectory"] = [[1.0, 3.0]]
    assert cells() == ("never", "never")
    rows[2] |= {"status": "failed", "reason": "", "result": {}, "judged": {}}
    assert cells() == ("failed", "failed")


def test_the_way_to_the_target_is_by_the_referee():
    row = ml2_rows(gpytorch=[50.0])[0]
    row["result"]["trajectory"] = [[1.0, 49.2], [2.0, 50.0]]
    assert seconds_to(row, 49.0) == 1.0
    row["judged"]["referee_bound"] = 49.5  # half a nat below its own
    assert seconds_to(row, 49.0) == 2.0
    assert seconds_to(row, 49.6) is None


def test_failed_rows_of_ml2_stay_in_the_records():
    rows = ml2_rows(integrand=[50.0], gpflow=[50.0])
    rows[1] |= {"status": "failed", "reason": "no", "result": {}, "judged": {}}
    assert [(r["contestant"], r["status"]) for r in ml2_table(rows).records] == [
        ("integrand", "done"),
        ("gpflow", "failed"),
    ]


@pytest.mark.parametrize(
    ("message", "short"),
    [
        ("STOP: TOTAL NO. OF ITERATIONS REACHED LIMIT", "steps"),
        ("Stopped after 1000 steps.", "steps"),
        ("CONVERGENCE: NORM OF PROJECTED GRADIENT <= PGTOL", "small gradient"),
        ("Desired error not necessarily achieved due to precision loss.", "precision"),
        ("a factorisation that failed", "failed factorisation"),
    ],
)
def test_why_an_optimiser_ended_in_a_word(message, short):
    assert stopped_by([{"status": "done", "result": {"stopped": message}}]) == short


def test_ours_that_did_not_converge_has_no_ratio():
    jobs = [j for j in plan.jobs(plan.FULL, ["product"]) if j.problem == "yacht-0"]
    rows = [invented(j, np.random.default_rng(0)) for j in jobs] + ml2_rows(gpflow=[50.0])

    def cells():
        lines = product_table(rows).parts[0][2]
        return lines[0][1], lines[1][1]

    assert cells() == ("10", "40: **0.25**")
    n = len(jobs)
    rows[1]["result"]["reached"] = False
    assert cells() == (f"10, not reached (1 of {n})", f"40; ours not reached (1 of {n})")
    rows[2] |= {"status": "gave up", "reason": "gave up after 9 s", "result": {}, "judged": {}}
    assert cells() == (f"10, not reached (2 of {n})", f"40; ours not reached (2 of {n})")


def test_the_ess_of_a_run_is_the_least_of_bulk_and_tail():
    row = {"result": {"seconds": 10.0}, "judged": {"ess_bulk": 200.0, "ess_tail": 50.0}}
    assert ess_per_second(row) == 5.0
    row["judged"]["ess_bulk"] = 30.0
    assert ess_per_second(row) == 3.0


def test_seconds_to_an_ess_are_set_up_tuning_and_draws_in_proportion():
    row = {
        "result": {"seconds": 30.0, "sampling_seconds": 20.0, "tune": 100},
        "judged": {"draws": 100, "ess_bulk": 900.0, "ess_tail": 200.0},
    }
    assert seconds_to_ess(row, 400.0) == pytest.approx(10.0 + 20.0 * (100 + 200) / 200)
    assert seconds_to_ess(row, 200.0) == pytest.approx(30.0)


def test_a_ratio_has_the_spread_of_its_turns():
    def row(contestant, repeat, ms):
        return {"job": {"contestant": contestant, "repeat": repeat}, "status": "done", "result": {"calls": [1e-3 * ms]}}

    ours = [row("integrand", k, ms) for k, ms in enumerate((1.0, 2.0, 4.0))]
    theirs = [row("gpflow", k, ms) for k, ms in enumerate((3.0, 4.0, 20.0, 8.0))]  # the last has none beside it
    assert times_ours(theirs, ours) == "3.0 x (2.0 to 5.0)"
    assert times_ours(theirs[:1], ours) == "1.5 x"
    assert times_ours(theirs, []) == ""


def test_the_table_of_hyperposteriors_has_memory_and_all_repeats():
    rng = np.random.default_rng(0)
    jobs = [j for j in plan.jobs(plan.FULL, ["hyperposterior"]) if j.problem == "yacht-0"]
    rows = [invented(j, rng) for j in jobs]
    table = hyperposterior_table(rows)
    _, columns, cells = table.parts[0]
    ours = dict(zip(columns, next(line for line in cells if "fixed-z" in line[0]), strict=True))
    assert ours["MB"] == "300"
    assert " to " in ours["ESS / s"]  # three repeats have a spread
    assert 0.0 <= float(ours["p of χ²"]) <= 1.0
    assert "NumPyro, the bound written naively 200 + 200, 10 min" in table.about
    assert {r["contestant"] for r in table.records} == {j.contestant for j in jobs if j.measure == "hyperposterior"}
