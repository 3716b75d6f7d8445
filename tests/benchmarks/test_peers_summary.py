"""The bars of the peer benchmarks, met and missed, on invented rows."""

import sys
from pathlib import Path

import numpy as np
import pytest

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
sys.path.insert(0, str(PEERS))

import plan  # noqa: E402
from invented import invented  # noqa: E402
from summary import Bar, summary_cells  # noqa: E402


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
    what = "posterior means against PyMC's NUTS: the largest of so many z-scores, and χ² of all"
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
