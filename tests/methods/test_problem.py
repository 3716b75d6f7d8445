"""What a method is given: settings by name, the problem, and the record of a fit."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from integrand import RBF, Dataset, InputError
from integrand.data.scaling import Standardiser
from integrand.infer.base import Chains, Counter, Run, Snapshot
from integrand.infer.verdict import Finding
from integrand.methods.problem import DEPRECATED_SETTINGS, FitContext, Problem, Settings
from integrand.model import Model
from integrand.progress import Clock, Silent
from integrand.storage.run_store import RunStore, WarmStart
from known_posteriors import FunctionTarget

X = np.random.default_rng(0).standard_normal((12, 2))
Y = np.sin(X[:, 0])


def problem(rows=X, Z=None, subsample=None, **settings) -> Problem:
    data = Dataset.of(rows, np.sin(rows[:, 0]))
    model = Model(RBF(), rows.shape[1])
    return Problem(model, data, Standardiser.identity(2), Settings(**settings), Z=Z, subsample=subsample)


def context(**settings) -> FitContext:
    return FitContext(problem(**settings), RunStore(None), Silent())


def chains(n=500, n_theta=4, seed=0) -> Chains:
    rng, zero = np.random.default_rng(seed), np.zeros((4, n))
    integers = zero.astype(int)
    return Chains(rng.standard_normal((4, n, n_theta)), zero, zero, zero, integers, integers, zero.astype(bool), zero)


# --- settings


@pytest.mark.parametrize(("old", "new"), DEPRECATED_SETTINGS.items())
def test_old_names_are_translated_with_a_warning(old, new):
    value = {"tune": 30, "grow": True, "sample_rows": 500}[old]
    with pytest.warns(DeprecationWarning, match=f"{old}= is now {new}=: write {new}={value}"):
        assert Settings.of({old: value}) == Settings(**{new: value})
    with pytest.warns(DeprecationWarning, match=new):
        assert Settings().but(**{old: value}) == Settings(**{new: value})
    with pytest.raises(InputError, match=f"'{old}' is the old name of '{new}': give only '{new}'"):
        Settings.of({old: value, new: value})


def test_settings_of_an_old_run_are_read_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Settings.restored({"tune": 30, "chains": 2}) == Settings(warmup=30, chains=2)


def test_an_unknown_setting_is_refused():
    with pytest.raises(InputError, match="no setting 'chain': choose from batch_size, chains"):
        Settings.of({"chain": 2})
    with pytest.raises(InputError, match="no setting 'chain'"):
        Settings().but(chain=2)


@pytest.mark.usefixtures("as_users_see_it")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"chains": 0}, "chains must be a whole number of at least 1, not 0"),
        ({"chains": 2.5}, "chains must be a whole number"),
        ({"chains": True}, "chains must be a whole number"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"target_ess": 0.0}, "target_ess must be positive and finite"),
        ({"target_ess": np.inf}, "target_ess must be positive and finite"),
        ({"target_accept": 1.0}, "target_accept must be between 0 and 1"),
        ({"target_accept": None}, "target_accept must be between 0 and 1"),
        ({"max_minutes": -1.0}, "max_minutes must be positive and finite"),
        ({"max_minutes": "2"}, "max_minutes must be positive and finite"),
        ({"optimiser": "sgd"}, "optimiser must be one of lbfgs, adam"),
        ({"sampler": "gibbs"}, "sampler must be one of default, nuts"),
    ],
)
def test_limits(wrong, message):
    with pytest.raises(InputError, match=message):
        Settings(**wrong)
    with pytest.raises(InputError, match=message):
        Settings().but(**wrong)


@pytest.mark.usefixtures("as_users_see_it")
def test_numbers_of_any_kind():
    assert Settings(chains=np.int64(2), target_ess=np.float32(50.0), seed=0).chains == 2
    assert Settings().max_minutes is None


# --- the problem


def test_no_more_inducing_inputs_than_distinct_rows():
    assert problem(n_inducing=8).n_inducing == 8
    assert problem(np.repeat(X[:5], 3, axis=0), n_inducing=8).n_inducing == 5
    assert problem(Z=X[:3], n_inducing=8).n_inducing == 3


def test_what_one_phase_draws_does_not_depend_on_another():
    one = problem(seed=3)
    first = one.rng(0).standard_normal(4)
    one.rng(1).standard_normal(7)
    np.testing.assert_array_equal(one.rng(0).standard_normal(4), first)
    assert not np.isin(one.rng(1).standard_normal(4), first).any()
    assert not np.isin(problem(seed=4).rng(0).standard_normal(4), first).any()


def test_too_many_rows_for_an_exact_gp():
    problem(max_exact_rows=12).refuse_many_rows()
    with pytest.raises(InputError, match=r"12 rows .*limit 11.*raise max_exact_rows"):
        problem(max_exact_rows=11).refuse_many_rows()


# --- the record of a fit


@pytest.mark.parametrize(
    ("elapsed", "over", "over_half"), [(10.0, False, False), (29.0, False, True), (61.0, True, True)]
)
def test_minutes(elapsed, over, over_half, monkeypatch):
    monkeypatch.setattr(Clock, "elapsed", property(lambda clock: elapsed))
    assert context(max_minutes=1.0).over_time == over
    assert context(max_minutes=1.0).over_half_time(5.0) == over_half
    assert not context().over_time
    assert not context().over_half_time(1e9)


def test_a_callback_of_pilots_ends_them_when_the_time_is_up(monkeypatch):
    seen = []
    fit = context(max_minutes=1.0)
    fit.progress = SimpleNamespace(update=lambda done, total, text: seen.append((done, total)))
    callback = fit.stop_in_time(80)
    assert callback(Snapshot(chains(7), 20, 0.0)) is None
    monkeypatch.setattr(Clock, "elapsed", property(lambda clock: 61.0))
    assert callback(Snapshot(chains(9), 30, 1.0)) == 9
    assert seen == [(20, 80), (30, 80)]


def test_a_run_adds_to_the_record():
    fit, target = context(), FunctionTarget(lambda x: (0.0, x), dimension=4)
    run = Run(chains(5), interrupted=True, evaluations=70, failures=3, notes=("NUTS made the final draws.",))
    assert fit.record(target, run) is run
    assert fit.interrupted
    assert fit.notes == ["NUTS made the final draws."]
    assert (target.counter.gradients, target.counter.failures) == (70, 3)


def test_a_plan_has_the_seed_and_care_of_the_fit():
    fit, target = context(seed=5, warmup=41), FunctionTarget(lambda x: (0.0, x), dimension=4, parallel=3)
    fit.target_accept = 0.9
    plan = fit.plan((2, 1), target, warmup=10, draws=20)
    assert plan.seed == (5, 2, 1)
    assert (plan.parallel, plan.target_accept, plan.short_warmup) == (3, 0.9, 20)


def test_the_warm_start_is_kept_and_noted():
    kept, made = [], WarmStart(np.zeros(4), X[:3], -12.0, "k-means", np.zeros(4))

    class Store(RunStore):
        def warm_start(self):
            return kept[0] if kept else None

        def save_warm_start(self, start):
            kept.append(start)

    calls = []
    for _ in range(2):
        fit = FitContext(problem(), Store(None), Silent())
        assert fit.warm_start(lambda: calls.append(1) or made) is made
        assert fit.notes == ["Z started from k-means."]
        assert [(point.phase, point.bound) for point in fit.history] == [("warm start", -12.0)]
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("wanted", "limit", "each"), [(400, None, 100), (400, 40, 10), (2, None, 1), (10**6, None, 500)]
)
def test_draws_that_predict_are_evenly_spaced_and_as_many_of_each_chain(wanted, limit, each):
    draws = chains()
    thinned = context(predictive_draws=wanted).thinned(draws, limit)
    assert thinned.shape == (4 * each, 4)
    np.testing.assert_array_equal(thinned[0], draws.x[0, 0])
    if each > 1:
        np.testing.assert_array_equal(thinned[each - 1], draws.x[0, -1])


@pytest.mark.parametrize(
    ("target_ess", "interrupted", "ended", "codes"),
    [
        (100.0, False, "", ()),
        (1e6, False, "", ("ess-bulk", "ess-tail", "budget")),
        (100.0, False, "budget", ("budget",)),
        (100.0, True, "", ("interrupted",)),
    ],
)
def test_why_it_ended_is_part_of_the_verdict(target_ess, interrupted, ended, codes):
    fit = context(target_ess=target_ess)
    fit.interrupted = interrupted
    noise = np.random.default_rng(1).standard_normal((2, 4, 500))
    energetic = chains()._replace(energy=noise[0], log_density=noise[1])
    assert fit.verdict(energetic, Counter(), ended=ended).codes == codes
    fit.findings.append(Finding("approximate", True, "Of an approximation.", ""))
    assert fit.verdict(energetic, Counter(), ended=ended).codes == (*codes, "approximate")
