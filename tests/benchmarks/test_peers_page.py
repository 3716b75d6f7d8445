"""The page of the peer benchmarks from invented rows."""

import csv
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
from judge import accuracy_numbers, convergence_numbers, referee_bound  # noqa: E402
from tables import ml2_table, ml2_target, seconds_to  # noqa: E402
from tables_posterior import seconds_to_ess, z_scores  # noqa: E402

SPEED = {"integrand": 1.0, "gpflow": 4.0, "gpytorch": 6.0}


def invented(job, rng):
    """A row such as the driver writes."""
    slow = next((v for k, v in SPEED.items() if job.contestant.startswith(k)), 3.0)
    result = {"seconds": 10.0 * slow, "versions": {"numpy": "2.0"}, "affinity": [0]}
    judged = {}
    if job.task == "gradient":
        result |= {"calls": [1e-3 * slow] * 3, "first": 1.0, "value": -12.5, "gradient_in": "θ, Z"}
    if job.task == "ml2":
        bound = 50.0 if slow < 5.0 else 20.0
        result |= {"bound": bound, "trajectory": [[1.0, 0.0], [5.0 * slow, bound]]}
        judged["referee_bound"] = bound
    if job.task == "sample":
        result |= {
            "sampling_seconds": 5.0 * slow,
            "tune": 50,
            "reached": True,
            "gradients": 10,
            "spent": {"final": 1.0},
        }
        judged |= convergence_numbers(np.exp(rng.standard_normal((4, 60, 3))))
    if job.task != "gradient":
        judged |= {"rmse": 1.0, "nlpd": 0.1 * slow, "coverage_50": 0.5, "coverage_80": 0.8, "coverage_95": 0.95}
    row = {"status": "done", "reason": "", "wall": 1.0, "peak_mb": 300.0, "result": result, "judged": judged}
    return row | {"job": job.record(), "when": "2026-01-02 03:04"}


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
    collect(written(folder, rows), folder / "out", "smoke")
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
    assert "| GPflow SGPR | 4 (4.0 x) |" in text
    assert "| integrand | 1 |" in text
    assert "to 6.00 (GPyTorch SGPR, yacht, 1 core)" in text


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


def test_the_page_names_no_machine(page):
    import platform

    text = (page / "README.md").read_text()
    assert platform.node() not in text
    assert str(PEERS) not in text
    assert "memory" in text


def test_no_results_no_page(tmp_path):
    (tmp_path / "results").mkdir()
    collect(tmp_path / "results", tmp_path / "out", "full")
    assert not (tmp_path / "out" / "README.md").exists()


def test_tables_with_nothing_but_failures(tmp_path):
    rows = [invented(job, np.random.default_rng(0)) for job in plan.jobs(plan.SMOKE)]
    for row in rows:
        row |= {"status": "failed", "reason": "its environment is missing", "result": {}, "judged": {}}
    collect(written(tmp_path, rows), tmp_path / "out", "smoke")
    assert "its environment is missing" in (tmp_path / "out" / "README.md").read_text()


def test_target_of_ml2_and_when_it_is_reached():
    jobs = [j for j in plan.jobs(plan.SMOKE, ["ml2"]) if j.contestant in ("integrand", "gpflow", "gpytorch", "sklearn")]
    rows = [invented(job, np.random.default_rng(0)) for job in jobs]
    assert ml2_target(rows) == 49.0  # the median of 50, 50 and 20; the exact GP has no say
    reached = {R.name(r): seconds_to(r, 49.0) for r in rows}
    assert (reached["integrand"], reached["gpflow"], reached["gpytorch"]) == (5.0, 20.0, None)
    cells = {line[0]: line for line in ml2_table(rows).parts[0][2]}
    assert cells["GPyTorch SGPR, Adam 0.1"][1] == "never"


def test_seconds_to_an_ess_are_set_up_tuning_and_draws_in_proportion():
    row = {
        "result": {"seconds": 30.0, "sampling_seconds": 20.0, "tune": 100},
        "judged": {"draws": 100, "ess_bulk": 200.0},
    }
    assert seconds_to_ess(row, 400.0) == pytest.approx(10.0 + 20.0 * (100 + 200) / 200)
    assert seconds_to_ess(row, 200.0) == pytest.approx(30.0)


def test_z_scores_of_equal_and_of_shifted_posteriors():
    rng = np.random.default_rng(1)
    a, b = (np.exp(rng.standard_normal((4, 400, 2))) for _ in range(2))
    rows = [{"judged": convergence_numbers(draws)} for draws in (a, b, a * np.exp(0.5))]
    assert max(map(abs, z_scores(rows[0], rows[1]))) < 4.0
    assert min(z_scores(rows[2], rows[1])) > 5.0


def test_chains_that_share_a_seed_are_no_result():
    draws = np.exp(np.random.default_rng(0).standard_normal((4, 100, 3)))
    draws[3] = draws[1]
    with pytest.raises(ValueError, match="two chains are the same"):
        convergence_numbers(draws)


def test_judges_agree_with_the_library():
    from integrand.bounds.exact import log_marginal_likelihood
    from integrand.gp import GP
    from integrand.kernels import RBF
    from integrand.precision import float64_scope

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((12, 2)), rng.standard_normal(12)
    found = {"lengthscale": np.ones(2), "scale": np.array(1.0), "noise": np.array(0.5), "Z": X}
    with float64_scope():
        import jax.numpy as jnp

        kernel = RBF(lengthscale=jnp.ones(2), scale=jnp.array(1.0))
        exact = log_marginal_likelihood(GP(kernel, jnp.array(0.5), jnp.array(0.0)), X, y)
    assert referee_bound({"X": X, "y": y}, found) == pytest.approx(float(exact), abs=1e-3)
    given = {"y_sd": 2.0, "y_mean": 1.0, "y_test": np.array([1.0, 3.0])}
    scores = accuracy_numbers(given, np.array([[0.0, 0.0]]), np.array([[1.0, 1.0]]))
    assert scores["rmse"] == pytest.approx(np.sqrt(2.0))
