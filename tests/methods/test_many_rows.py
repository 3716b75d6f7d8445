"""Fits of many rows that search by a subsample: the posterior of all rows, with few passes over them."""

import functools
import os
import signal
import subprocess
import sys
import time
import warnings

import arviz
import numpy as np
import pytest

import integrand
from integrand import ConvergenceWarning, Dataset
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows, MappedRows, chosen_rows
from integrand.infer.delayed_acceptance import DelayedAcceptance
from integrand.infer.optimise import maximise_lbfgs
from integrand.methods import many_rows
from integrand.methods.all_rows import AllRows
from integrand.methods.fit import FitSpec
from integrand.methods.many_rows import ManyRows
from integrand.methods.problem import Problem, Settings
from integrand.methods.table import METHODS
from integrand.storage.run_directory import RunDirectory
from integrand.storage.run_store import WarmStart
from integrand.targets import CollapsedTarget, density

N, M = 2000, 12
rng = np.random.default_rng(6)
X = rng.standard_normal((N, 2)) * [1.0, 5.0] + [0.0, 3.0]
Y = np.sin(2 * X[:, 0]) + 0.1 * X[:, 1] + 0.3 * rng.standard_normal(N)
SUBSAMPLED = {"subsample": True, "subsample_rows": 600}
SOME = {"n_inducing": M, "chains": 2, "warmup": 30, "max_rounds": 1, "predictive_draws": 20, "seed": 1}


def all_rows_and_subsample(n_rows, seed=0):
    """Both as a fit of these rows would have them, standardised."""
    settings = Settings(subsample_rows=n_rows, subsample=True, seed=seed, n_inducing=M)
    model = integrand.Model(integrand.RBF(), 2)
    problem = FitSpec.of("sgpr-hmc", model, ArrayRows(X, Y), settings).problem()
    return problem.data, problem.subsample


def fit(**settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return integrand.fit(X, Y, **(SOME | settings))


def assert_same_means(a, b, errors=4.0):
    """Means of draws (chain, draw, parameter) agree within so many Monte Carlo standard errors, as do their spreads."""
    centre = b.mean((0, 1))
    for values in ((a, b), ((a - centre) ** 2, (b - centre) ** 2)):
        for i in range(a.shape[2]):
            pair = [v[:, :, i] for v in values]
            variances = [v.var() / float(arviz.ess(v, method="mean")) for v in pair]
            assert abs(pair[0].mean() - pair[1].mean()) < errors * np.sqrt(sum(variances)), i


FIXED = {"method": "sgpr-hmc-fixed-z", "Z": X[:M], "max_draws": 80}


@pytest.fixture(scope="module")
def cold():
    """All rows from the start, at a given Z."""
    return fit(subsample=False, **FIXED)


@pytest.fixture(scope="module")
def warm():
    """The same posterior by way of a subsample."""
    return fit(**FIXED, **SUBSAMPLED)


def test_the_posterior_is_the_same(cold, warm):
    np.testing.assert_array_equal(cold.Z_path, warm.Z_path)
    assert_same_means(warm.chains.x, cold.chains.x)
    new = X[:5] + 0.1
    a, b = (p.predict(new, include_noise=True) for p in (warm, cold))
    np.testing.assert_allclose(a.mean, b.mean, atol=0.02)
    np.testing.assert_allclose(a.sd, b.sd, rtol=0.05)


@pytest.mark.slow
def test_an_input_that_matters_not_at_all():
    """ML-II sends its lengthscale to infinity, where the prior is hopeless: the chains must begin elsewhere."""
    wide = np.column_stack([X, np.random.default_rng(9).standard_normal(N)])
    settings = SOME | FIXED | {"Z": wide[:M], "max_draws": 60, "priors": "paper"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        here, wanted = (integrand.fit(wide, Y, **settings, **more) for more in (SUBSAMPLED, {"subsample": False}))
    assert here.optimum[2] > 3.0 + here.chains.x[:, :, 2].mean()
    assert_same_means(here.chains.x, wanted.chains.x)


@pytest.mark.slow
@pytest.mark.parametrize("subsample", [True, False])
def test_chains_begin_at_the_mode_that_the_warm_start_found(subsample, monkeypatch):
    """At one Z θ has several modes (fine waves are signal, or noise); ML-II and the medians may lead to others."""
    x = np.linspace(-3.0, 3.0, 600)
    y = np.sin(x) + 0.6 * np.sin(12.0 * x) + 0.2 * np.random.default_rng(3).standard_normal(600)
    Z = np.linspace(-1.7, 1.7, 40)[:, None]  # standardised
    far, mode = np.array([4.0, 2.0, 0.0]), np.array([-1.9, 0.0, -1.4])
    for rows in (ManyRows, AllRows):
        monkeypatch.setattr(rows, "warm_start", lambda *_: WarmStart(far, Z, 0.0, "here", mode))
    settings = SOME | {"n_inducing": 40, "round_draws": 8, "max_draws": 10}
    settings |= {"subsample": subsample, "subsample_rows": 300}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        p = integrand.fit(x[:, None], y, kernel=integrand.RBF(), **settings)
    assert p.chains.log_density.mean() > -75.0  # elsewhere they have -103 or less
    np.testing.assert_array_equal(p.optimum, far)


def lead_astray(monkeypatch, **changes):
    """Chains that move by the third order end where no draw can be."""
    sample = DelayedAcceptance.sample

    def astray(*arguments):
        tried = sample(*arguments)
        lost = tried.chains._replace(x=tried.chains.x + 9.0, log_density=tried.chains.log_density - 1e4)
        return tried._replace(chains=lost, **changes)

    monkeypatch.setattr(DelayedAcceptance, "sample", astray)


def test_draws_that_went_astray_are_not_kept_when_the_user_ends_it(monkeypatch):
    lead_astray(monkeypatch, interrupted=True)
    p = fit(**FIXED, **SUBSAMPLED)
    assert {"interrupted", "no-draws"} <= set(p.verdict.codes)
    assert p.chains.log_density.min() > -1e4


@pytest.mark.slow
def test_a_third_order_that_leads_astray_is_left_for_nuts(cold, monkeypatch):
    """As at a saddle, where the Hessian says nothing of how wide the density is: accepted among points equally bad."""
    lead_astray(monkeypatch)
    p = fit(**FIXED, **SUBSAMPLED)
    assert any("left the posterior: NUTS on all rows" in note for note in p.notes)
    assert_same_means(p.chains.x, cold.chains.x)


@pytest.mark.slow
def test_rounds_end_where_all_rows_disagree_with_the_draws(monkeypatch):
    asked, plausible = [], ManyRows.plausible

    def of_other_draws(self, phis, Z, coordinates):
        asked.append(plausible(self, phis, Z, coordinates))
        asked.append(plausible(self, phis - [0.0, 0.0, 0.0, 3.0], Z, coordinates))  # far less noise
        return asked[-1]

    monkeypatch.setattr(ManyRows, "plausible", of_other_draws)
    p = fit(max_draws=10, **SUBSAMPLED)
    assert asked == [True, False]
    assert len(p.Z_path) == 1
    assert any("Z was left alone" in note for note in p.notes)


@pytest.mark.slow
def test_it_takes_far_fewer_gradients_of_all_rows(cold, warm):
    assert cold.counts["gradients"] > 300
    assert cold.counts["values"] > cold.counts["gradients"]  # by independence MH
    assert warm.counts["gradients"] < cold.counts["gradients"] / 8
    draws = warm.chains.x[:, :, 0].size
    # One value a draw, those of the trials, and what the ascents looked at; none for the draws that predict.
    assert draws <= warm.counts["values"] < draws + 150
    assert warm.counts["sample_gradients"] > warm.counts["gradients"]
    assert "sample_gradients" not in cold.counts


def test_it_says_what_it_did(warm, cold):
    text = " ".join(warm.notes)
    assert f"{warm.counts['gradients']} gradients and {warm.counts['values']} values" in text
    assert f"of all {N} rows" in text
    assert "accepted by all rows" in text
    assert "all rows" not in " ".join(cold.notes)


@pytest.mark.slow
def test_draws_have_the_density_of_all_rows(warm):
    """What is recorded beside a draw is its log density by all rows, not by the subsample."""
    data = Dataset.of(warm.scaler.transform_X(X), warm.scaler.transform_y(Y))
    target = CollapsedTarget(warm.model, data, warm.jitter)
    for chain, draw in ((0, 0), (1, 7), (1, warm.chains.n_draws - 1)):
        e = target.evaluate(warm.chains.x[chain, draw], warm.Z_path[-1])
        assert warm.chains.log_density[chain, draw] == pytest.approx(e.log_density, rel=1e-9)


def test_draws_predict_by_all_rows(warm):
    """q*(u) was kept from the pass that accepted a draw: it is that of all rows."""
    data = Dataset.of(warm.scaler.transform_X(X), warm.scaler.transform_y(Y))
    target = CollapsedTarget(warm.model, data, warm.jitter)
    for i in (0, 7, 19):
        _, m, LB = target.inducing_posterior(warm.conditional.phis[i], warm.Z_path[-1])
        np.testing.assert_allclose(warm.conditional.weights[i], m, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(warm.conditional.factors[i], LB, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_what_is_not_cached_is_made_again(warm, monkeypatch):
    monkeypatch.setattr(many_rows, "_CACHE_BYTES", 0)
    p = fit(**(FIXED | {"max_draws": 15}), **SUBSAMPLED)
    np.testing.assert_array_equal(p.chains.x, warm.chains.x[:, :15])
    assert p.counts["values"] > 30 + 2 * 8 + 20 - 5
    assert np.isfinite(p.predict(X[:5], include_noise=True).mean).all()


def test_ctrl_c_while_the_third_order_is_tried_out(monkeypatch):
    sample = DelayedAcceptance.sample

    def trial(self, target, starts, coordinates, plan, *others):
        assert plan.draws == self.trial_draws
        return sample(self, target, starts, coordinates, plan, *others)._replace(interrupted=True)

    monkeypatch.setattr(DelayedAcceptance, "sample", trial)
    p = fit(**FIXED, **SUBSAMPLED)
    assert p.verdict.codes[-1] == "interrupted"
    assert p.chains.n_draws == DelayedAcceptance.trial_draws
    assert any("ended while the third order was tried out" in note for note in p.notes)


def interrupts(*arguments, **options):
    raise KeyboardInterrupt


def test_draws_of_an_approximation_are_told_from_those_of_all_rows(monkeypatch):
    """Ctrl-C before the final chains leaves the draws of the round, at the Z they are from, and says what they are."""
    monkeypatch.setattr(DelayedAcceptance, "run", interrupts)
    p = fit(round_draws=12, **SUBSAMPLED)
    assert {"approximate", "interrupted"} <= set(p.verdict.codes)
    assert not p.verdict.ok
    assert p.chains.n_draws == 12
    assert len(p.Z_path) == 1  # a round had moved it


@pytest.mark.slow
def test_no_time_at_all_leaves_a_point_near_the_mode():
    p = fit(**SUBSAMPLED, max_minutes=1e-6)
    assert "budget" in p.verdict.codes
    assert not p.verdict.ok
    data = Dataset.of(p.scaler.transform_X(X), p.scaler.transform_y(Y))
    target = CollapsedTarget(p.model, data, p.jitter)
    here, medians = (target.evaluate(x, p.Z_path[-1]).log_density for x in (p.chains.x[0, 0], p.model.start()))
    assert here > medians + 100.0


@pytest.mark.slow
def test_ctrl_c_in_a_resumed_run_keeps_what_it_had(tmp_path, monkeypatch):
    before = fit(**(FIXED | {"max_draws": 10}), **SUBSAMPLED, run_dir=tmp_path / "run")
    monkeypatch.setattr("integrand.infer.delayed_acceptance.expansion_around", interrupts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        p = integrand.resume(tmp_path / "run", max_draws=30)
    np.testing.assert_array_equal(p.chains.x, before.chains.x)
    assert "interrupted" in p.verdict.codes


def test_a_run_of_an_earlier_version_kept_no_mode():
    """Where it kept the ML-II point, and that ran away, the mode is looked for."""
    scaler = Standardiser.fit(X, Y)
    data, sample = all_rows_and_subsample(600)
    model = integrand.Model(integrand.RBF(), 2)
    problem = Problem(model, data, scaler, Settings(subsample_rows=600, subsample=True), subsample=sample)
    target = CollapsedTarget(model, data, problem.jitter)
    Z, far = scaler.transform_X(X[:M]), np.array([0.0, 9.0, 0.0, -1.0])
    assert target.evaluate(far, Z).log_density < target.evaluate(model.start(), Z).log_density
    centre = ManyRows(problem).coordinates(WarmStart(far, Z, 0.0, "", far)).centre
    climbed = maximise_lbfgs(lambda x: density(target.evaluate(x, Z)), model.start(), max_steps=200)
    assert target.evaluate(centre, Z).log_density > climbed.value - 1.0


@pytest.mark.slow
def test_same_seed_same_draws(warm):
    np.testing.assert_array_equal(fit(**(FIXED | {"max_draws": 15}), **SUBSAMPLED).chains.x, warm.chains.x[:, :15])


@pytest.mark.slow
def test_a_density_far_from_its_third_order_is_left_to_nuts(cold, monkeypatch):
    hard_to_please = functools.partial(DelayedAcceptance, min_accepted=2.0, trial_draws=2)
    monkeypatch.setattr(many_rows, "DelayedAcceptance", hard_to_please)
    p = fit(**FIXED, **SUBSAMPLED)
    assert any("accepted too seldom" in note and "NUTS on all rows" in note for note in p.notes)
    assert p.counts["gradients"] > 500
    assert_same_means(p.chains.x, cold.chains.x)


@pytest.mark.slow
def test_moving_inducing_inputs():
    """`sgpr-hmc`: Z ends where the bound of all rows is as good as without a subsample."""
    few = {"max_draws": 40, "round_draws": 12}
    p, wanted = fit(**few, **SUBSAMPLED), fit(**few, subsample=False)
    assert p.method == "sgpr-hmc"
    assert p.Z_path.shape[1:] == (M, 2)
    assert p.counts["gradients"] < wanted.counts["gradients"] / 5
    assert p.chains.log_density.mean() > wanted.chains.log_density.mean() - 4.0
    assert np.abs(p.chains.x.mean((0, 1)) - wanted.chains.x.mean((0, 1))).max() < 1.0


@pytest.mark.parametrize("method", ["ml2", pytest.param("map", marks=pytest.mark.slow)])
def test_optimisers_end_as_high_with_fewer_gradients(method):
    a, b = fit(method=method, **SUBSAMPLED), fit(method=method, subsample=False)
    assert a.chains.log_density[0, 0] > b.chains.log_density[0, 0] - 3.0
    assert a.counts["gradients"] < b.counts["gradients"] / 2
    new = X[:20] + 0.05
    means = [p.predict(new, include_noise=True).mean for p in (a, b)]
    np.testing.assert_allclose(*means, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name, m in METHODS.items() if m.collapsed])
@pytest.mark.parametrize("memory", [0, 2**30])
def test_every_method_with_the_collapsed_bound_takes_rows_on_disk(method, memory):
    rows = MappedRows(X[:700], Y[:700], memory=memory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        short = SOME | {"bound": "tight", "max_draws": 30, "steps": 100, "max_minutes": 0.3}  # `fbgp` draws Z, too
        p = integrand.fit(rows, method=method, subsample_rows=250, subsample=True, **short)
        wanted = integrand.fit(X[:700], Y[:700], method=method, subsample=False, **short)
    new = X[:20] + 0.05
    means = [q.predict(new, include_noise=True).mean for q in (p, wanted)]
    np.testing.assert_allclose(*means, atol=0.3)


# --- when


@pytest.mark.parametrize(
    ("n_rows", "subsample", "wanted"),
    [
        (999, None, False),
        (2499, None, False),
        (2500, None, True),
        (1001, True, True),
        (1000, True, False),
        (10**9, False, False),
        (10**9, None, True),
    ],
)
def test_a_subsample_is_for_many_rows(n_rows, subsample, wanted):
    assert Settings(subsample_rows=1000, subsample=subsample).uses_subsample(n_rows) is wanted


def test_the_subsample_is_of_the_rows_and_stands_for_all():
    scaler = Standardiser.fit(X, Y)
    data, sample = all_rows_and_subsample(600, seed=3)
    assert (data.n_rows, sample.n_rows, len(sample.arrays()[1])) == (N, N, 600)
    chosen = chosen_rows(np.random.default_rng([3, 77]), N, 600)
    np.testing.assert_array_equal(sample.arrays()[1], scaler.transform_y(Y[chosen]))
    assert all_rows_and_subsample(N, seed=3)[1] is None


# --- on disk

SCRIPT = """
import sys, numpy as np, integrand
from integrand.methods import sampling
sampling.SAVE_SECONDS = 0.1
given = np.load(sys.argv[1])
integrand.fit(given["X"], given["y"], n_inducing=12, chains=2, warmup=30, max_rounds=1, predictive_draws=20, seed=1,
              subsample=True, subsample_rows=600, target_ess=1e6, max_draws=100_000, run_dir=sys.argv[2])
"""


@pytest.mark.slow
def test_resumes_after_a_kill(tmp_path):
    np.savez(tmp_path / "given.npz", X=X, y=Y)
    run = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path / "given.npz"), str(run)])
    try:
        deadline = time.monotonic() + 120.0
        while not (run / "draws_000.npz").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        assert process.poll() is None
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with RunDirectory.open(run) as opened:
        before, Z = opened.load("draws_000")[0]["x"], opened.load("round_001")[0]["Z"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        p = integrand.resume(run, max_draws=before.shape[1] + 40)
    np.testing.assert_array_equal(p.chains.x[:, : before.shape[1]], before)
    assert p.chains.n_draws == before.shape[1] + 40
    np.testing.assert_array_equal(p.Z_path[-1], Z)
    assert any("accepted by all rows" in note for note in p.notes)  # what goes on uses a subsample as well


@pytest.mark.slow
def test_a_sampler_that_was_named_runs_on_all_rows():
    """Who asks for NUTS gets NUTS, the same draws with a subsample at hand and without."""
    some = FIXED | {"sampler": "nuts", "max_draws": 10}
    np.testing.assert_array_equal(fit(**SUBSAMPLED, **some).chains.x, fit(subsample=False, **some).chains.x)


@pytest.mark.parametrize(
    "asked", [{"sampler": "hmc"}, {"sampler": "nested"}, {"schedule": "paper"}, {"subsample": False}]
)
def test_a_subsample_is_for_fits_that_ask_for_nothing_else(asked):
    data, sample = all_rows_and_subsample(600)
    model = integrand.Model(integrand.RBF(), 2)
    scaler = Standardiser.identity(2)
    few = {"subsample_rows": 600, "subsample": True}
    assert Problem(model, data, scaler, Settings(**few), subsample=sample).use_subsample
    assert not Problem(model, data, scaler, Settings(**(few | asked)), subsample=sample).use_subsample


@pytest.mark.slow
def test_arrays_that_no_file_keeps_are_given_again(tmp_path):
    """A run knows how many rows it was begun with, and where to find them only if they are on disk."""
    rows, settings = MappedRows(X[:300], Y[:300]), SOME | {"method": "sgpr-hmc-fixed-z", "Z": X[:M], "max_draws": 5}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        before = integrand.fit(rows, run_dir=tmp_path / "run", **settings)
        with pytest.raises(integrand.InputError, match=r"again, as rows=MappedRows\(X, y\)"):
            integrand.resume(tmp_path / "run")
        with pytest.raises(integrand.InputError, match="begun with 300 rows, here are 299"):
            integrand.resume(tmp_path / "run", rows=MappedRows(X[:299], Y[:299]))
        after = integrand.resume(tmp_path / "run", rows=rows, max_draws=9)
    assert after.chains.n_draws == 9
    np.testing.assert_array_equal(after.chains.x[:, :5], before.chains.x)
