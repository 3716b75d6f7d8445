"""`n_inducing="auto"`: M is as large as the data want, and a budget ends it with a word in the verdict."""

import warnings

import numpy as np
import pytest

import integrand
from integrand import RBF, ConvergenceWarning, InputError
from integrand.data.scaling import Standardiser
from integrand.methods.auto_inducing import Doubling, most_inducing, what_doubling_gains
from integrand.methods.fit import FitSpec
from integrand.methods.problem import Settings
from integrand.model import Model
from integrand.posterior.model_findings import GAIN_PER_ROW
from integrand.storage.run_store import RunStore
from integrand.targets import CollapsedTarget

SHORT = {"chains": 2, "warmup": 15, "round_draws": 10, "max_rounds": 2, "target_ess": 1e6, "max_draws": 20}
AUTO = {"n_inducing": "auto"}
FIRST = 8


@pytest.fixture(autouse=True, scope="module")
def few_to_begin_with():
    """Fits begin with fewer points than they do otherwise, so that tests are quick."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("integrand.methods.problem.FIRST_INDUCING", FIRST)
        yield


def smooth(n=120):
    rng = np.random.default_rng(1)
    x = rng.uniform(-2.0, 2.0, n)
    return x[:, None], np.sin(x) + 0.2 * rng.standard_normal(n)


def rough(n=150):
    """Needs more points than a fit begins with."""
    rng = np.random.default_rng(2)
    X = rng.uniform(-2.0, 2.0, (n, 2))
    return X, np.sin(2.0 * X[:, 0]) * np.cos(2.0 * X[:, 1]) + 0.05 * rng.standard_normal(n)


def fit(data, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return integrand.fit(*data, **(SHORT | AUTO | settings))


def problem_of(data, **settings):
    rows = integrand.ArrayRows(*data, scaler=Standardiser.identity(data[0].shape[1]))
    return FitSpec.of("sgpr-hmc", Model(RBF(), rows.columns), rows, Settings(**(AUTO | settings))).problem()


@pytest.fixture(scope="module")
def wanted_fit(few_to_begin_with):
    return fit(rough())


# --- what they gain


@pytest.mark.slow
def test_the_gain_is_that_of_the_bound_and_its_spread_is_over_draws():
    problem = problem_of(rough())
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)
    start, Z = problem.model.start(), problem.some_inputs()[:16]
    phis = start + 0.1 * np.random.default_rng(0).standard_normal((5, len(start)))
    phis[:, :2] -= 0.7
    found = what_doubling_gains(problem, target, phis, Z)
    both = np.concatenate([Z, found.more])
    gains = [target.value(phi, both) - target.value(phi, Z) for phi in phis]
    assert len(found.more) == 16
    assert found.gain == pytest.approx(np.mean(gains), rel=1e-8)
    assert found.sd == pytest.approx(np.std(gains, ddof=1), rel=1e-6)
    assert found.bound == pytest.approx(np.mean([target.value(phi, Z) for phi in phis]), rel=1e-10)
    assert not found.enough(problem.data.n_rows)
    assert np.isnan(what_doubling_gains(problem, target, phis[:1], Z).sd)


@pytest.mark.parametrize(
    ("gain", "sd", "wanted"), [(0.9, np.nan, True), (0.9, 0.4, True), (1.1, 0.4, False), (0.9, 0.6, False)]
)
def test_enough_asks_for_mean_and_spread(gain, sd, wanted):
    assert GAIN_PER_ROW * 100 == 1.0
    assert Doubling(np.zeros((0, 1)), gain, sd, 0.0).enough(100) is wanted


# --- whole fits


@pytest.mark.slow
def test_it_stops_early_where_few_points_are_enough():
    p = fit(smooth())
    assert len(p.Z) == FIRST
    assert any(f"{FIRST} inducing points are enough" in note for note in p.notes)


def test_it_takes_more_where_they_gain(wanted_fit):
    assert len(wanted_fit.Z) > FIRST
    assert wanted_fit.Z_path.shape[1:] == wanted_fit.Z.shape
    X, _ = rough()
    truth = np.sin(2.0 * X[:, 0]) * np.cos(2.0 * X[:, 1])
    assert np.sqrt(np.mean((wanted_fit.predict(X, include_noise=False).mean - truth) ** 2)) < 0.1


@pytest.mark.slow
def test_a_limit_ends_it_and_the_verdict_says_so():
    p = fit(rough(), max_inducing=16)
    assert len(p.Z) == 16
    finding = next(f for f in p.verdict.findings if f.code == "inducing-budget")
    assert not finding.serious
    assert "because of max_inducing" in finding.sentence
    assert "`max_inducing` above 16" in finding.remedy


@pytest.mark.slow
def test_no_more_points_than_distinct_rows():
    X, y = rough(30)
    p = fit((np.repeat(X, 2, axis=0), np.repeat(y, 2)))
    assert len(p.Z) <= 30
    problem = problem_of((X, y))
    assert most_inducing(problem) == (30, "the number of distinct rows")


def test_minutes_limit_it():
    assert len(fit(rough(), max_minutes=1e-3).Z) == FIRST


class KilledError(SystemExit):
    """Stands for a kill."""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["save_warm_start", "save_round"])
def test_resume_after_a_kill(method, wanted_fit, tmp_path, monkeypatch):
    save = getattr(RunStore, method)

    def die(self, *arguments):
        save(self, *arguments)
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(RunStore, method, die)
        with pytest.raises(KilledError):
            fit(rough(), run_dir=tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        p = integrand.resume(tmp_path / "run")
    np.testing.assert_array_equal(p.Z, wanted_fit.Z)
    if method == "save_warm_start":
        np.testing.assert_array_equal(p.chains.x, wanted_fit.chains.x)


@pytest.mark.slow
def test_points_that_are_added_between_rounds(tmp_path, monkeypatch):
    """The warm start had too few: draws say so, M doubles, and a resumed run knows it."""
    monkeypatch.setattr("integrand.methods.auto_inducing._TRIAL_STEPS", 0)  # no doubling gains anything then
    monkeypatch.setattr("integrand.methods.auto_inducing._further", no_points_before_draws())
    p = fit(rough(), run_dir=tmp_path / "run")
    assert p.counts["doublings"] >= 1
    assert len(p.Z) > FIRST
    assert len(p.history) >= len(p.Z_path) + p.counts["doublings"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        again = integrand.resume(tmp_path / "run", max_draws=SHORT["max_draws"])
    np.testing.assert_array_equal(again.Z_path, p.Z_path)
    assert again.counts["doublings"] == p.counts["doublings"]


def no_points_before_draws():
    from integrand.methods import auto_inducing

    further = auto_inducing._further

    def none(problem, phi, Z, filled=False):
        return Z[:0] if filled else further(problem, phi, Z)

    return none


# --- what is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "ml2"}, 'n_inducing="auto" is for sgpr-hmc .*, not for ml2: give n_inducing a number'),
        ({"method": "sgpr-hmc-fixed-z"}, "not for sgpr-hmc-fixed-z"),
        ({"schedule": "paper"}, "not for the paper's schedule"),
        ({"n_inducing": "many"}, "n_inducing must be a whole number of at least 1"),
        ({"max_inducing": 0}, "max_inducing must be a whole number"),
    ],
)
def test_mistakes_are_input_errors(settings, message):
    with pytest.raises(InputError, match=message):
        integrand.fit(*smooth(), **(AUTO | settings))
