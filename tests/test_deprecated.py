"""Names of earlier versions still work, with a DeprecationWarning that says what to write."""

import importlib

import numpy as np
import pytest

import integrand
from integrand.data.processes import SingleProcess
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows, MappedRows
from integrand.storage.run_store import RunStore

MODULES = {
    "integrand.estimator": ("integrand.estimators", "SparseGPRegressor"),
    "integrand.classifier": ("integrand.estimators", "SparseGPClassifier"),
    "integrand.posterior.modelfile": ("integrand.storage.model_file", "load_model"),
}


@pytest.mark.parametrize("old", MODULES)
def test_modules_of_earlier_versions(old):
    new, name = MODULES[old]
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new}: write from {new} import {name}") as caught:
        value = getattr(importlib.import_module(old), name)
    assert value is getattr(importlib.import_module(new), name)
    assert caught[0].filename == __file__
    with pytest.raises(AttributeError):
        _ = importlib.import_module(old).no_such_name


def test_from_import_warns_the_line_that_imports():
    with pytest.warns(DeprecationWarning, match=r"integrand\.posterior\.modelfile") as caught:
        from integrand.posterior.modelfile import save_model
    assert save_model is integrand.save_model
    assert [w.filename for w in caught] == [__file__]


def test_the_student_t_prior():
    with pytest.warns(DeprecationWarning, match="StudentT is now integrand.StudentTPrior: write StudentTPrior"):
        prior = integrand.StudentT(4.0)
    assert prior == integrand.StudentTPrior(4.0)
    assert "StudentT" not in integrand.__all__


# --- arguments of `fit` and `resume`

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((30, 2)), rng.standard_normal(30)
QUICK = {"method": "ml2", "n_inducing": 5, "steps": 5, "warm_steps": 5}


def fit(*rows, **arguments):
    return integrand.fit(*rows, **QUICK, **arguments)


def with_scaler():
    return Standardiser.identity(2)


OLD = {
    "columns": (lambda: fit(X, Y, columns=["a", "b"]), lambda: fit(ArrayRows(X, Y, ["a", "b"]))),
    "scaler": (lambda: fit(X, Y, scaler=with_scaler()), lambda: fit(ArrayRows(X, Y, scaler=with_scaler()))),
    "memory": (lambda: fit(MappedRows(X, Y), memory=1), lambda: fit(MappedRows(X, Y, memory=1))),
    "ranks": (
        lambda: fit(X, Y, ranks=SingleProcess()),
        lambda: fit(MappedRows(X, Y, processes=SingleProcess(), shared=False)),
    ),
    "seen": (lambda: fit(MappedRows(X, Y), seen=MappedRows(X, Y).overview(20_000, 0)), lambda: fit(MappedRows(X, Y))),
    "tune": (lambda: fit(X, Y, tune=20), lambda: fit(X, Y, warmup=20)),
    "grow": (lambda: fit(X, Y, grow=True), lambda: fit(X, Y, subsample=True)),
    "sample_rows": (lambda: fit(X, Y, sample_rows=9), lambda: fit(X, Y, subsample_rows=9)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("seen", "tune") else pytest.mark.slow) for n in OLD]
)
def test_an_old_argument_works_and_says_what_to_write(name):
    old, new = OLD[name]
    with pytest.warns(DeprecationWarning, match=f"^{name}= is") as caught:
        before = old()
    assert {w.filename for w in caught} == {__file__}
    after = new()
    assert before.model.columns == after.model.columns
    np.testing.assert_array_equal(before.scaler.x_sd, after.scaler.x_sd)
    np.testing.assert_array_equal(before.optimum, after.optimum)


def test_the_record_of_a_run(tmp_path):
    with pytest.warns(DeprecationWarning, match="RunStore.create"):
        fit(X, Y, run_dir=tmp_path / "run", record={"why": "a test"})
    with RunStore.open(tmp_path / "run") as store:
        assert store.header["record"] == {"why": "a test"}
        settings = store.header["settings"]
    assert {"warmup", "subsample", "subsample_rows", "jitter"} < set(settings)
    assert not {"tune", "grow", "sample_rows"} & set(settings)


def test_resume_with_old_names(tmp_path):
    fit(MappedRows(X, Y), run_dir=tmp_path / "run")
    with pytest.warns(DeprecationWarning, match="^(ranks|tune)= is") as caught:
        posterior = integrand.resume(tmp_path / "run", rows=MappedRows(X, Y), ranks=SingleProcess(), tune=7)
    assert {w.filename for w in caught} == {__file__}
    assert posterior.method == "ml2"


def test_both_names_of_a_setting_are_refused():
    with pytest.raises(integrand.InputError, match="'tune' is the old name of 'warmup'"):
        fit(X, Y, tune=3, warmup=4)


@pytest.mark.slow
def test_jitter_is_a_setting():
    assert fit(X, Y, jitter=integrand.Jitter(1e-6)).jitter == integrand.Jitter(1e-6)
    with pytest.raises(integrand.InputError, match="jitter must be a Jitter"):
        fit(X, Y, jitter="much")
