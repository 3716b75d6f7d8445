"""What makes rows of different packages comparable: the plan, the judge, and which rows count."""

import ast
import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import plan
from benchmarks.peers.__main__ import WORKERS, pins
from benchmarks.peers.contestants import CONTESTANTS, ENVIRONMENTS, OURS
from benchmarks.peers.judge import accuracy_numbers, agreement, convergence_numbers, judge, referee_bound
from benchmarks.peers.modes import mode_from
from benchmarks.peers.plan import ACCURACY, PREDICTIVE_DRAWS
from benchmarks.peers.problems import START
from benchmarks.peers.rows import counting, pending

# ---- the plan


def test_repeats_are_outermost_and_keys_are_unique():
    jobs = plan.jobs(plan.FULL)
    keys = [job.key for job in jobs]
    assert len(set(keys)) == len(keys)
    ml2 = [job.repeat for job in plan.jobs(plan.FULL, ["ml2"])]
    assert ml2 == sorted(ml2)
    assert max(ml2) == 2


def test_every_job_has_a_worker_and_every_environment_its_pins():
    for profile in plan.PROFILES.values():
        for job in plan.jobs(profile):
            assert (WORKERS / CONTESTANTS[job.contestant].worker).exists()
            assert job.task != "sample" or {"cap", "chains"} <= set(job.options)
            assert job.task != "ml2" or job.contestant == "sklearn" or job.options["steps"] > 0
    for name in ENVIRONMENTS:
        assert len(pins(name)) > 5
        assert all("==" in package for package in pins(name))


def test_priors_are_those_of_the_preset():
    from integrand.kernels import RBF
    from integrand.model import Model

    model = Model(RBF(), 1, priors="paper")
    assert {p.name: p.prior.arguments for p in model.parameters} == plan.PRIORS


def test_optimisers_start_at_the_medians_of_the_priors():
    from integrand.kernels import RBF
    from integrand.model import Model

    model = Model(RBF(), 1, priors="paper")
    assert {f"start_{p.name}": p.prior.median for p in model.parameters} == pytest.approx(START, rel=1e-12)


def test_what_is_compared_by_its_seconds_is_one_group():
    groups = {}
    for job in plan.jobs(plan.FULL):
        groups.setdefault(job.group, set()).add(job.measure)
    assert groups["yacht-0"] == {"ml2", "product", "hyperposterior"}
    assert groups["gradient/yacht-0"] == groups["gradient/synthetic-10000"] == {"gradient"}
    assert "accuracy/yacht-0/gpflow-1/0" in groups


def test_hyperposteriors_predict_nothing_and_mixtures_have_the_same_draws():
    for job in plan.jobs(plan.FULL):
        if job.task == "sample":
            assert job.options.get("predict", True) == (job.measure != "hyperposterior")
            assert job.options["predictive_draws"] == PREDICTIVE_DRAWS


def test_our_whole_product_runs_beside_all_it_is_compared_with_and_once():
    whole = {j.key: j for j in plan.jobs(plan.FULL, ["product"])}
    beside_ml2, beside_nuts = ({j.key for j in plan.jobs(plan.FULL, [m])} for m in ("ml2", "hyperposterior"))
    assert {key for key, job in whole.items() if job.repeat < plan.FULL.hyper_repeats} < beside_nuts
    assert {key for key, job in whole.items() if job.repeat < plan.FULL.ml2_repeats} < beside_ml2
    assert len(whole) == 25


def test_accuracy_has_our_default_priors_and_those_of_the_peers():
    jobs = plan.jobs(plan.FULL, ["accuracy"])
    sampled = [j for j in jobs if j.problem == "concrete-1" and j.task == "sample"]
    priors = {j.contestant: j.options.get("priors") for j in sampled}
    assert priors == {
        "integrand-sgpr-hmc": "pooled",
        "integrand-sgpr-hmc-paper": "paper",
        "integrand-fixed-z": "paper",
        "pymc-nutpie": "paper",
    }
    nutpie = [j for j in jobs if j.contestant == "pymc-nutpie"]
    assert {(j.options["tune"], j.options["draws"]) for j in nutpie} == {(100, 100)}
    for dataset in ("concrete", "yacht"):
        splits = [{j.contestant for j in jobs if j.problem == f"{dataset}-{k}"} for k in range(10)]
        assert all(set(ACCURACY) <= names for names in splits)


def test_settings_of_our_workers_are_our_defaults():
    from integrand.methods.problem import Settings
    from integrand.priors import DEFAULT

    assert CONTESTANTS[OURS].options["steps"] == Settings().lbfgs_steps
    assert CONTESTANTS["integrand-sgpr-hmc"].priors == DEFAULT
    assert Settings().predictive_draws == PREDICTIVE_DRAWS


# ---- the judge


def test_agreement_of_equal_and_of_shifted_posteriors():
    rng = np.random.default_rng(1)
    a, b, c = (np.exp(rng.standard_normal((4, 400, 2))) for _ in range(3))
    rows = [{"judged": convergence_numbers(draws)} for draws in (a, b, c, a * np.exp(0.5))]
    equal, shifted = agreement(rows[:1], rows[1:3]), agreement(rows[3:], rows[1:3])
    assert equal.largest < 4.0
    assert equal.p > 0.001
    assert equal.chi2 == pytest.approx(sum(z * z for z in equal.z))
    assert min(shifted.z) > 5.0
    assert shifted.p < 1e-6
    assert shifted.rms == pytest.approx(np.sqrt(np.mean(np.square(shifted.z))))


def test_agreement_is_of_all_repeats_that_mixed():
    def row(mean, error, r_hat=1.0):
        return {"judged": {"log_mean": [mean], "mcse": [error], "r_hat": r_hat}}

    # Two means of 1 and 3 with error 1 are one of 2 with error 1/√2.
    found = agreement([row(1.0, 1.0), row(3.0, 1.0)], [row(0.0, 0.0)])
    assert found.z == pytest.approx([2.0 * np.sqrt(2.0)])
    again = agreement([row(1.0, 1.0), row(3.0, 1.0), row(90.0, 1.0, 1.3)], [row(0.0, 0.0)])
    assert again.z == found.z
    assert agreement([row(1.0, 1.0, 1.3)], [row(0.0, 0.0)]) is None


@pytest.mark.slow
def test_results_that_are_not_finite_are_no_results(tmp_path):
    none = tmp_path / "none.npz"
    assert judge("ml2", none, none, {"bound": 1.0}) == {}
    for task, key in (("ml2", "bound"), ("gradient", "value")):
        with pytest.raises(ValueError, match="the bound is -inf"):
            judge(task, none, none, {key: -np.inf})
    problem, arrays = tmp_path / "problem.npz", tmp_path / "arrays.npz"
    np.savez(problem, y_sd=1.0, y_mean=0.0, y_test=np.zeros(2))
    np.savez(arrays, means=np.full((1, 2), np.nan), variances=np.ones((1, 2)))
    with pytest.raises(ValueError, match="means has NaN"):
        judge("ml2", problem, arrays, {"bound": 1.0})
    given = {"X": np.ones((3, 1)), "y": np.ones(3)}
    theta = {"lengthscale": np.array([np.nan]), "scale": np.array(1.0), "noise": np.array(0.1)}
    np.savez(problem, **given)
    np.savez(arrays, **theta, Z=given["X"][:2])
    with pytest.raises(ValueError, match="the referee's bound is"):
        judge("ml2", problem, arrays, {"bound": 1.0})
    with pytest.raises(ValueError, match="draws are not finite"):
        convergence_numbers(np.full((4, 9, 1), np.nan))


def test_chains_that_share_a_seed_are_no_result():
    draws = np.exp(np.random.default_rng(0).standard_normal((4, 100, 3)))
    draws[3] = draws[1]
    with pytest.raises(ValueError, match="two chains are the same"):
        convergence_numbers(draws)


@pytest.mark.slow
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


def test_the_mass_of_a_gaussian_is_exact():
    mean, precision = np.array([1.0, -2.0, 0.5]), np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 2.0]])
    log_density_at_mean = 7.0 + 0.5 * np.linalg.slogdet(precision / (2.0 * np.pi))[1]  # so that the mass is e⁷

    def loss(phi):
        slope = precision @ (phi - mean)
        return 0.5 * (phi - mean) @ slope - log_density_at_mean, slope

    mass, value, place = mode_from(loss, np.zeros(3))
    assert mass == pytest.approx(7.0, abs=1e-6)
    assert value == pytest.approx(log_density_at_mean, abs=1e-9)
    assert place == pytest.approx(mean, abs=1e-4)


# ---- which rows count

HERE = "this processor"


def made(job, **other):
    """A row as the driver writes it, with some entries replaced."""
    row = {"status": "done", "processor": HERE, "when": "2026-01-02 03:04", "job": job.record()}
    return json.loads(json.dumps(row | other))


def by_key(*rows):
    return {row["job"]["key"]: row for row in rows}


def test_a_job_with_a_row_does_not_run_again():
    todo = plan.jobs(plan.SMOKE, ["gradient"])
    first, second, *rest = todo
    rows = by_key(made(first), made(second, status="failed"))
    assert pending(todo, todo, rows, HERE) == rest
    assert pending(todo, todo, rows, HERE, retry=True) == todo[1:]
    assert pending(todo, todo, rows, HERE, again=True) == todo
    rows = by_key(made(first, others=1.0), made(second, status="failed"))  # not alone on its cores
    assert pending(todo, todo, rows, HERE) == rest
    assert pending(todo, todo, rows, HERE, retry=True) == todo


def test_a_row_of_other_settings_is_run_again_and_does_not_count():
    job = plan.jobs(plan.SMOKE, ["gradient"])[0]
    row = made(job)
    row["job"]["options"] = job.options | {"seconds": 99.0}
    assert pending([job], [job], by_key(row), HERE) == [job]
    assert counting([row], [job]) == []
    assert counting([made(job)], []) == []


@pytest.mark.parametrize("missing", [0, 1])
def test_rows_of_another_processor_are_run_again_unless_their_group_is_complete_there(missing):
    planned = plan.jobs(plan.SMOKE, ["ml2"])
    yacht = [job for job in planned if job.group == "yacht-0"]
    assert {job.measure for job in yacht} == {"ml2", "product"}
    rows = by_key(*(made(job, processor="another") for job in yacht[missing:]))
    assert pending(planned, planned, rows, HERE) == (yacht if missing else [])
    rows |= by_key(made(yacht[1], processor="another", status="failed"))
    assert pending(planned, planned, rows, HERE, retry=True) == (yacht if missing else [])  # a complete group stays
    assert pending(yacht[1:2], planned, rows, HERE) == (yacht[1:2] if missing else [])


def test_a_group_with_rows_of_two_processors_has_those_of_the_newest():
    first, second, *_ = plan.jobs(plan.SMOKE, ["ml2"])
    accuracy = plan.jobs(plan.SMOKE, ["accuracy"])[0]
    rows = [made(first, processor="another"), made(second, when="2026-01-03 03:04")]
    rows.append(made(accuracy, processor="another"))  # its seconds are not compared
    todo = [first, second, accuracy]
    assert counting(rows, todo) == rows[1:]
    assert pending(todo, todo, by_key(*rows), HERE) == [first]


# ---- what experiments and benchmark drivers import from the library exists; most of them import inside functions


ROOT = Path(__file__).resolve().parents[2]
FILES = sorted([*(ROOT / "experiments").glob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])


def imported(path):
    """(module, name) of each import from the library; name is None where a module is imported."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == "integrand")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "integrand":
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_import_from_the_library_exists(path):
    for module, name in imported(path):
        assert name is None or hasattr(importlib.import_module(module), name), f"{module} has no {name}"
