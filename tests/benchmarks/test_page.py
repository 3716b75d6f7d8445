"""The page of the benchmark against other packages: its numbers, its bars, and the published page."""

import csv
import dataclasses
import functools

import numpy as np
import pytest

from benchmarks.peers import plan
from benchmarks.peers import rows as R
from benchmarks.peers.judge import convergence_numbers
from benchmarks.peers.page import busy, write_page
from benchmarks.peers.rows import counting
from benchmarks.peers.summary import Bar, summary_cells
from benchmarks.peers.tables_posterior import ess_per_second, hyperposterior_table, product_table, seconds_to_ess
from benchmarks.peers.tables_time import middle_calls, ml2_table, ml2_target, seconds_to, stopped_by, times_ours
from results.read import HERE, about, read

EVIDENCE = HERE.parent / "docs" / "evidence"


@functools.cache
def convergence_of(seed):
    """What the judge says of some draws."""
    return convergence_numbers(np.exp(np.random.default_rng(seed).standard_normal((4, 60, 3))))


SPEED = {"integrand": 1.0, "gpflow": 4.0, "gpytorch": 6.0}


def invented(job, rng):
    """A row such as the driver writes."""
    slow = next((v for k, v in SPEED.items() if job.contestant.startswith(k)), 3.0)
    result = {"seconds": 10.0 * slow, "versions": {"numpy": "2.0"}, "affinity": [0]}
    numbers = {}
    if job.task == "gradient":
        result |= {"calls": [1e-3 * slow] * 3, "first": 1.0, "value": -12.5, "gradient_in": "θ, Z"}
    if job.task == "ml2":
        bound = 50.0 if slow < 5.0 else 20.0
        result |= {"bound": bound, "trajectory": [[1.0, 0.0], [5.0 * slow, bound]]}
        result |= {"stopped": "CONVERGENCE: RELATIVE REDUCTION OF F", "steps": 70}
        numbers["referee_bound"] = bound
    if job.task == "sample":
        result |= {
            "sampling_seconds": 5.0 * slow,
            "tune": 50,
            "reached": True,
            "gradients": 10,
            "spent": {"final": 1.0},
        }
        numbers |= convergence_of(job.repeat + 5 * int(rng.integers(2)))
    if job.task != "gradient":
        numbers |= {"rmse": 1.0, "nlpd": 0.1 * slow, "coverage_50": 0.5, "coverage_80": 0.8, "coverage_95": 0.95}
    row = {"status": "done", "reason": "", "wall": 1.0, "peak_mb": 300.0, "result": result, "judged": numbers}
    return row | {"job": job.record(), "when": "2026-01-02 03:04", "others": 0.0}


# ---- the published page


def test_the_published_page_has_the_numbers_of_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.page.draw_all", lambda rows, out: [])
    planned = plan.jobs(plan.FULL)
    table = read("peers")
    rows = counting([table[key] for key in sorted(table)], planned)
    assert len(rows) == len(planned) == len(table)
    write_page(rows, tmp_path, "full", len(planned), about("peers"))

    def lines(folder):
        return [line for line in (folder / "peers.md").read_text().splitlines() if not line.startswith("![")]

    assert [x for x in lines(tmp_path) if x] == [x for x in lines(EVIDENCE) if x]


# ---- a page of invented rows


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
    write_page(rows, folder, "smoke", 1000, {"memory": "24 GB"})
    return folder


def test_every_measure_has_a_table_a_csv_and_a_figure(page):
    text = (page / "peers.md").read_text()
    for name in ("gradient", "ml2", "hyperposterior", "product", "accuracy", "growth"):
        assert f"(peers/{name}.png)" in text
        assert (page / "peers" / f"{name}.png").stat().st_size > 5_000
        with (page / "peers" / f"{name}.csv").open() as file:
            assert len(list(csv.DictReader(file))) > 0
    assert "(peers/agreement.png)" in text


def test_ratios_are_those_of_the_rows(page):
    text = (page / "peers.md").read_text()
    assert "| GPflow SGPR | 4 (4 to 4): 4.0 x |" in text
    assert "| integrand | 1 (1 to 1) |" in text
    what = "gradient, data sets: time of GPyTorch over ours"
    assert f"| 1 | {what} | 1 core: 6.00 (GPyTorch SGPR, yacht); 2 cores:" in text


def test_what_did_not_end_well_is_said_and_not_hidden(page):
    text = (page / "peers.md").read_text()
    assert "out of memory" in text
    assert "gave up after 90 s" in text
    assert "scikit-learn exact GP on yacht: failed (ValueError: no)" in text


def test_tables_with_nothing_but_failures(tmp_path):
    rows = [invented(job, np.random.default_rng(0)) for job in plan.jobs(plan.SMOKE)]
    for row in rows:
        row |= {"status": "failed", "reason": "its environment is missing", "result": {}, "judged": {}}
    write_page(rows, tmp_path, "smoke", 1000, {})
    assert "its environment is missing" in (tmp_path / "peers.md").read_text()


def test_rows_with_neighbours_are_counted():
    rows = [
        {"status": "done", "others": o, "job": {"measure": "ml2", "key": f"ml2/{o}"}} for o in (0.0, 0.1, 1.7, None)
    ]
    text = "**1 row was made on a busy machine** (of 3; others kept up to 1.7 cores busy): ml2/1.7"
    assert busy(rows) == text
    assert busy(rows[:2]) == "none of 2 rows was made on a busy machine"
    assert busy([]) == "-"


# ---- the numbers of the tables


def test_the_middle_of_all_calls():
    rows = [{"status": "done", "result": {"calls": [1e-3 * k for k in part]}} for part in (range(1, 6), range(6, 12))]
    assert middle_calls([*rows, {"status": "failed", "result": {}}]) == "2 to 10"


def test_a_ratio_has_the_spread_of_its_turns():
    def row(contestant, repeat, ms):
        return {"job": {"contestant": contestant, "repeat": repeat}, "status": "done", "result": {"calls": [1e-3 * ms]}}

    ours = [row("integrand", k, ms) for k, ms in enumerate((1.0, 2.0, 4.0))]
    theirs = [row("gpflow", k, ms) for k, ms in enumerate((3.0, 4.0, 20.0, 8.0))]  # the last has none beside it
    assert times_ours(theirs, ours) == "3.0 x (2.0 to 5.0)"
    assert times_ours(theirs[:1], ours) == "1.5 x"
    assert times_ours(theirs, []) == ""


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
    assert "  - NumPyro, the bound written naively: 200 + 200, 10 min" in table.about
    assert {r["contestant"] for r in table.records} == {j.contestant for j in jobs if j.measure == "hyperposterior"}


# ---- the bars


def summary(rows):
    """What is compared -> seen, bar and met."""
    found = {}
    for _, what, seen, bar, met in summary_cells(rows):
        found.setdefault(what, []).append((seen, bar, met))
    return found


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return [invented(job, rng) for job in plan.jobs(plan.FULL, ["gradient", "growth", "ml2", "hyperposterior"])]


def of(rows, measure, **wanted):
    return [r for r in rows if all(r["job"][k] == v for k, v in (wanted | {"measure": measure}).items())]


@pytest.mark.parametrize(
    ("bar", "ratios", "met"),
    [
        (Bar(2.5, 4.0), [9.0, 4.0], "yes, and the aim"),
        (Bar(2.5, 4.0), [9.0, 3.9], "yes, not the aim"),
        (Bar(2.5, 4.0), [9.0, 2.4], "**no**"),
        (Bar(1.3), [1.3], "yes"),
        (Bar(2.0, 1.0, at_least=False), [0.5, 1.5], "yes, not the aim"),
        (Bar(2.0, 1.0, at_least=False), [0.5, 2.1], "**no**"),
    ],
)
def test_the_worst_decides(bar, ratios, met):
    assert bar.met(ratios) == met


def test_gradients_have_a_bar_for_each_package_and_one_for_large_sets(rows):
    found = summary(rows)
    assert found["gradient, data sets: time of GPflow over ours"][0][1:] == ("≥ 2.5, aim 4", "yes, and the aim")
    assert found["gradient, data sets: time of PyMC over ours"][0][1:] == ("≥ 2.5, aim 4", "yes, not the aim")
    large = "gradient, N = 10⁴ and 10⁵: time of anyone over ours"
    assert found[large][0][1:] == ("≥ 1.3", "yes")
    # Sizes that only the table of growth has are no part of the bar; one that has is.
    for r in of(rows, "gradient", problem="synthetic-1000000", contestant="gpflow"):
        r["result"]["calls"] = [1e-6]
    assert summary(rows)[large][0][2] == "yes"
    for r in of(rows, "gradient", problem="synthetic-100000", contestant="gpflow", cores=2):
        r["result"]["calls"] = [1e-3]
    seen, _, met = summary(rows)[large][0]
    assert "2 cores: 1.00 (GPflow SGPR, N = 100 000)" in seen
    assert met == "**no**"


def test_where_ours_failed_no_bar_is_met(rows):
    for r in of(rows, "gradient", problem="boston-0", contestant="integrand", cores=1):
        r |= {"status": "failed", "reason": "no", "result": {}}
    seen, _, met = summary(rows)["gradient, data sets: time of GPflow over ours"][0]
    assert met == "**no**"
    assert seen.startswith("1 core: 0.00 (GPflow SGPR, boston: ours failed)")


def test_rates_are_over_the_better_of_two_samplers(rows):
    for r in of(rows, "hyperposterior"):
        known = {"integrand-fixed-z": 1.0, "integrand-fixed-z-cold": 2.0, "pymc": 12.0, "pymc-nutpie": 6.0}
        seconds = known.get(r["job"]["contestant"], 1.0)
        r["result"]["seconds"] = seconds
        r["judged"] |= {"ess_bulk": 100.0, "ess_tail": 50.0, "r_hat": 1.0}
    found = summary(rows)
    each = ("boston", "concrete", "energy", "winered", "yacht")
    both = found["ESS a second: ours over the better of PyMC's NUTS and nutpie"][0]
    assert both == (", ".join(f"{d} 6.00" for d in each), "≥ 5, aim 10", "yes, not the aim")
    assert found["ESS a second: ours over PyMC's NUTS"][0][2] == "yes, and the aim"
    cold = found["ESS a second: ours with nothing on disk over the better of both"][0]
    assert cold == (", ".join(f"{d} 3.00" for d in each), "-", "-")
    # An ESS of chains that disagree means nothing.
    for r in of(rows, "hyperposterior", problem="energy-0", contestant="pymc-nutpie"):
        r["judged"]["r_hat"] = 1.6
    seen = summary(rows)["ESS a second: ours over the better of PyMC's NUTS and nutpie"][0][0]
    assert "energy 12.00, " in seen
    assert seen.endswith(", without PyMC MarginalApprox VFE, nutpie on energy (R-hat 1.60)")
    assert "without" not in summary(rows)["ESS a second: ours over PyMC's NUTS"][0][0]


def test_seconds_to_an_ess_count_what_is_not_sampling_once(rows):
    for r in of(rows, "hyperposterior"):
        ours = r["job"]["contestant"] == "integrand-fixed-z"
        r["result"] |= {"seconds": 11.0 if ours else 40.0, "sampling_seconds": 10.0 if ours else 20.0, "tune": 100}
        r["judged"] |= {"ess_bulk": 400.0 if ours else 200.0, "ess_tail": 500.0, "r_hat": 1.0, "draws": 100}
    # Theirs: 20 s of setup, 100 steps of tuning and 200 instead of 100 draws: 20 + 20 * 300 / 200.
    seen, *_ = summary(rows)["seconds to an ESS of 400: the better of both over ours"][0]
    assert seen.startswith(f"boston {50.0 / 11.0:.2f}, ")


def test_posteriors_that_do_not_agree_are_told(rows):
    what = "posterior means against PyMC's NUTS: the largest z-score of how many, and χ²"
    for r in of(rows, "hyperposterior"):
        r["judged"] |= {"log_mean": [0.0, 0.0], "mcse": [0.1, 0.1], "r_hat": 1.0}
    seen, bar, met = summary(rows)[what][0]
    assert (bar, met) == ("p ≥ 0.01 everywhere", "yes")
    assert "boston 0.00 of 2, χ² 0.0 (p 1)" in seen
    for r in of(rows, "hyperposterior", contestant="integrand-fixed-z", problem="energy-0"):
        r["judged"]["log_mean"] = [0.5, 0.0]
    assert summary(rows)[what][0][2] == "**no**"


def test_the_whole_product_has_its_bars_by_data_set(rows):
    def set_seconds(problem, value):
        for r in of(rows, "product", problem=problem):
            r["result"]["seconds"] = value

    for dataset, value in {"boston": 40.0, "energy": 20.0, "yacht": 10.0, "concrete": 60.0, "winered": 40.0}.items():
        set_seconds(f"{dataset}-0", value)
    gpflow = "seconds: ours, integrated, over GPflow's ML-II (to its end, 1000 steps at most, a number that we chose)"
    gpytorch = "seconds: ours, integrated, over GPyTorch's ML-II (2000 steps of Adam, a number that we chose)"
    short, long = summary(rows)[gpflow]
    assert short == ("boston 1.00, energy 0.50, yacht 0.25", "≤ 1", "yes")
    assert long == ("concrete 1.50, winered 1.00", "≤ 2, aim 1", "yes, not the aim")
    assert summary(rows)[gpytorch][0][1:] == ("≤ 1", "yes")
    set_seconds("yacht-0", 41.0)
    assert summary(rows)[gpflow][0][2] == "**no**"
    set_seconds("yacht-0", 10.0)
    of(rows, "product", problem="yacht-0")[0]["result"]["reached"] = False
    short, _ = summary(rows)[gpflow]
    assert short == ("boston 1.00, energy 0.50, yacht not reached (1 of 3)", "≤ 1", "**no**")
    assert summary(rows)["seconds: ours, integrated, over PyMC's NUTS at fixed Z to an ESS of 400"][0][1:] == ("-", "-")
