"""What the peer benchmarks would run: who, on what, how often. Nothing is run."""

import sys
from collections import Counter
from pathlib import Path

import pytest

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
sys.path.insert(0, str(PEERS))

import plan  # noqa: E402
from contestants import CONTESTANTS, ENVIRONMENTS, OURS  # noqa: E402
from profiles import ACCURACY, PREDICTIVE_DRAWS  # noqa: E402


def repeats(profile, measure, problem):
    """Runs of each contestant."""
    found = plan.jobs(profile, [measure])
    return Counter(j.contestant for j in found if j.measure == measure and j.problem == problem)


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
            assert (PEERS / "workers" / CONTESTANTS[job.contestant].worker).exists()
            assert job.task != "sample" or {"cap", "chains"} <= set(job.options)
            assert job.task != "ml2" or job.contestant == "sklearn" or job.options["steps"] > 0
    for name in ENVIRONMENTS:
        lines = (PEERS / "requirements" / f"{name}.txt").read_text().splitlines()
        assert all("==" in line for line in lines if line and not line.startswith("#"))


def test_the_growth_measure_shares_the_jobs_of_the_first():
    shared = {j.key for j in plan.jobs(plan.FULL, ["growth"])} & {j.key for j in plan.jobs(plan.FULL, ["gradient"])}
    assert any("synthetic-10000/" in key for key in shared)


def test_priors_are_those_of_the_preset():
    from integrand.presets import preset_prior

    for field, arguments in plan.PRIORS.items():
        assert preset_prior("paper", field, 3).arguments == arguments


def test_optimisers_start_at_the_medians_of_the_priors():
    from problems import START

    from integrand.kernels import RBF
    from integrand.model import Model

    model = Model(RBF(), 1, priors="paper")
    assert {f"start_{p.name}": p.prior.median for p in model.parameters} == pytest.approx(START, rel=1e-12)


def test_the_hyperposterior_has_three_runs_of_ours_and_of_its_closest_rival():
    found = repeats(plan.FULL, "hyperposterior", "winered-0")
    assert found == {
        "integrand-fixed-z": 3,
        "integrand-fixed-z-cold": 2,
        "pymc": 1,
        "pymc-nutpie": 3,
        "numpyro": 1,
    }
    found = repeats(plan.FULL, "hyperposterior", "yacht-0")
    assert (found["pyro-exact"], found["gpflow-sgpmc"]) == (1, 1)


def test_gradients_run_on_one_core_and_on_two():
    found = repeats(plan.FULL, "gradient", "energy-0")
    assert found == {"integrand": 6, "gpflow": 6, "gpytorch": 4, "pymc": 4} | dict.fromkeys(
        ("pymc-numba", "gpjax", "numpyro"), 2
    )
    assert repeats(plan.FULL, "gradient", "yacht-0")["gpflow-xla"] == 2
    assert repeats(plan.FULL, "gradient", "synthetic-100000")["gpflow"] == 2


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


def test_the_quick_profile_leaves_out_what_is_slow():
    jobs = plan.jobs(plan.QUICK)
    names = {(j.measure, j.contestant) for j in jobs}
    slow = [
        ("gradient", "pymc-z"),
        ("gradient", "pymc-numba"),
        ("gradient", "gpflow-xla"),
        ("accuracy", "pymc-nutpie"),
        ("ml2", "gpytorch-slow"),
        ("ml2", "gpjax"),
        ("accuracy", "gpjax"),
        ("hyperposterior", "pyro-exact"),
        ("hyperposterior", "gpflow-hmc"),
    ]
    assert not names & set(slow)
    assert ("hyperposterior", "pymc-nutpie") in names
    assert max(j.limit for j in jobs if j.task == "ml2") == 120.0


def test_settings_told_to_workers_are_our_defaults():
    from integrand.methods.problem import Settings
    from integrand.presets import DEFAULT

    assert CONTESTANTS[OURS].options["steps"] == Settings().steps
    assert CONTESTANTS["integrand-sgpr-hmc"].priors == DEFAULT
    assert Settings().predictive_draws == PREDICTIVE_DRAWS
