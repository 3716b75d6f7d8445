"""What is said of the model after a fit: the cost of its inducing points, by two ways, and remarks."""

import dataclasses
import math
import warnings

import numpy as np
import pytest

from integrand import ConvergenceWarning, between, fit
from integrand.data.sources import ArrayRows
from integrand.kernels import RBF
from integrand.methods import examine
from integrand.methods.fit import FitSpec, Settings
from integrand.methods.table import METHODS
from integrand.model import Model
from integrand.storage.model_file import model_bytes, model_from_bytes
from integrand.targets.collapsed import CollapsedTarget
from integrand.targets.exact import ExactTarget

FEW = {"n_inducing": 4, "max_draws": 30, "chains": 2, "max_rounds": 1}


def data(n=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.2 * rng.standard_normal(n)


@pytest.fixture(scope="module")
def posterior():
    with pytest.warns(ConvergenceWarning):  # 30 draws are few
        return fit(*data(), **FEW)


def problem_of(posterior):
    spec = FitSpec.of("sgpr-hmc", Model(RBF(), 2), ArrayRows(*data()), Settings.of(FEW))
    return dataclasses.replace(spec.problem(), model=posterior.model, scaler=posterior.scaler)


def test_the_numbers_are_those_of_the_densities(posterior):
    """The mean slack is that of the targets which samplers evaluate."""
    problem, s = problem_of(posterior), posterior.sparseness
    phis, Z = posterior.conditional.phis, posterior.conditional.inputs
    phis = phis[np.unique(np.linspace(0, len(phis) - 1, 30).astype(int))]
    bound, exact = CollapsedTarget(problem.model, problem.data), ExactTarget(problem.model, problem.data)
    slacks = np.array([exact.evaluate(phi).log_likelihood - bound.value(phi, Z) for phi in phis])
    assert s.draws == len(phis)
    assert s.slack == pytest.approx(slacks.mean(), abs=1e-6)
    assert s.slack_sd == pytest.approx(slacks.std(ddof=1), abs=1e-6)
    assert 0.0 < s.gain < s.slack


def test_with_many_rows_the_gain_is_that_of_the_compiled_bound(posterior, monkeypatch):
    problem, s = problem_of(posterior), posterior.sparseness
    monkeypatch.setattr(examine, "_EXACT_ROWS", 10)
    monkeypatch.setattr(examine, "_SOME_ROWS", 40)
    monkeypatch.setattr(examine, "_RUN", 40)
    rows = examine._some_rows(problem)
    other = examine._sparseness(posterior, problem, rows)
    assert len(rows.y) == 40
    assert math.isnan(other.slack)
    assert other.gain == pytest.approx(s.gain, abs=1e-5)
    assert other.fresh_gain == pytest.approx(s.fresh_gain, abs=1e-5)


@pytest.mark.slow
def test_rows_are_looked_at_in_runs(posterior, monkeypatch):
    monkeypatch.setattr(examine, "_EXACT_ROWS", 10)
    monkeypatch.setattr(examine, "_SOME_ROWS", 20)
    monkeypatch.setattr(examine, "_RUN", 5)
    rows = examine._some_rows(problem_of(posterior))
    assert len(rows.y) == 20
    assert rows.follows.sum() == 16


def test_few_points_are_remarked(posterior):
    verdict = posterior.verdict
    assert {"sparse-posterior", "few-inducing"} & {f.code for f in verdict.on_model}
    assert "n_inducing=8" in str(verdict)
    assert "\nModel, with" in str(verdict)
    assert {f.code for f in verdict.on_draws} | {f.code for f in verdict.on_model} == set(verdict.codes)
    assert posterior.seconds["checks"] > 0.0


def test_a_file_keeps_it(posterior):
    again = model_from_bytes(model_bytes(posterior)).posterior
    assert again.sparseness == posterior.sparseness
    assert str(again.verdict) == str(posterior.verdict)
    np.testing.assert_array_equal(again.ranges, posterior.ranges)
    one = dataclasses.replace(posterior.verdict, sparseness=posterior.sparseness._replace(slack=math.nan))
    again = model_from_bytes(model_bytes(dataclasses.replace(posterior, verdict=one))).posterior
    assert math.isnan(again.sparseness.slack)


def test_it_can_be_left_out():
    quiet = fit(*data(), method="ml2", n_inducing=8, steps=20, check_model=False)
    assert quiet.sparseness is None
    assert "checks" not in quiet.seconds
    assert str(quiet.verdict).startswith("Optimised: ")


def test_an_optimum_has_a_gain_without_a_spread():
    s = fit(*data(), method="ml2", n_inducing=8, steps=20).sparseness
    assert s.draws == 1
    assert s.gain >= 0.0
    assert math.isnan(s.gain_sd)


@pytest.mark.slow
def test_points_in_a_poor_place_are_named():
    X, y = data(200)
    stuck = fit(X[:, :1], y, method="map", Z=np.linspace(60.0, 61.0, 8)[:, None])  # to them all rows are noise
    assert "inducing-stuck" in stuck.verdict.codes
    assert stuck.verdict.ok


@pytest.mark.parametrize("method", ["gpr-map", pytest.param("joint-hmc", marks=pytest.mark.slow)])
def test_residuals_of_other_methods(method):
    """Whatever a method keeps of the data: a column that is there twice is seen, and a right model is not blamed."""
    X, y = data()
    settings = {"n_inducing": 8} if METHODS[method].sparse else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = fit(np.column_stack([X, X[:, 0]]), y, method=method, max_draws=20, chains=2, steps=200, **settings)
    codes = {f.code for f in found.verdict.on_model}
    assert "duplicate-columns" in codes
    assert not codes & {"heavy-tails", "skewed", "outliers"}


@pytest.mark.slow
def test_counts_that_vary_too_much():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (150, 1))
    y = rng.poisson(np.exp(1.5 + 0.9 * rng.standard_normal(150))).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = fit(X, y, method="svgp", likelihood="poisson", n_inducing=8, steps=300, kernel=RBF(lengthscale=2.0))
    assert "overdispersed" in found.verdict.codes


@pytest.mark.parametrize("error", [np.linalg.LinAlgError("no factor"), KeyboardInterrupt()])
def test_a_fit_is_not_lost_to_its_checks(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(examine, "_examination", fail)
    found = fit(*data(), method="ml2", n_inducing=8, steps=20)
    assert found.notes[-1].startswith("The model was not checked: ")
    assert found.sparseness is None
    assert found.ranges is not None


def test_structure_that_few_points_cannot_follow_is_told():
    """Three points call a fast wave noise, and more of them gain nothing there: the exact GP knows a better place."""
    rng = np.random.default_rng(0)
    X = np.linspace(0.0, 10.0, 60)[:, None]
    noise = 0.1 * rng.standard_normal(60)
    wave, line = (fit(X, f + noise, method="ml2", n_inducing=3).verdict for f in (np.sin(4.0 * X[:, 0]), 0.5 * X[:, 0]))
    (finding,) = [f for f in wave.findings if f.code == "sparse-posterior"]
    assert "The exact GP fits better by" in finding.sentence
    assert "sparse-posterior" not in line.codes


def test_a_prior_that_the_data_contradict_is_told():
    """Of the user's priors alone, and where draws say so."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (40, 2))
    y = 10.0 * np.sin(X[:, 0]) + rng.standard_normal(40)
    quick = {"n_inducing": 8, "chains": 2, "max_draws": 40, "seed": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        wrong, right = (fit(X, y, noise=between(*limits), **quick).verdict for limits in ((3.0, 4.0), (0.5, 2.0)))
    (finding,) = [f for f in wrong.findings if f.code == "prior-against-data"]
    assert finding in wrong.on_model
    assert "prior of noise disagree" in finding.sentence
    assert "below 99%" in finding.sentence
    assert "prior-against-data" not in right.codes


def test_each_column_has_a_prior_of_its_own():
    """One prior by name, one number and one preset: the finding speaks of the first alone."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (40, 3))
    y = 10.0 * np.sin(X[:, 0]) + rng.standard_normal(40)
    kernel = RBF(lengthscale={0: between(0.05, 0.3), 1: 2.0})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdict = fit(X, y, kernel, n_inducing=8, chains=2, max_draws=40, seed=1).verdict
    (finding,) = [f for f in verdict.findings if f.code == "prior-against-data"]
    assert "prior of lengthscale[x0] disagree" in finding.sentence
