"""SparseGPClassifier: the scikit-learn contract, probabilities, files and refusals."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_predict
from sklearn.multiclass import OneVsRestClassifier
from sklearn.utils.estimator_checks import estimator_checks_generator

from integrand import ConvergenceWarning, InputError, SparseGPClassifier, SparseGPRegressor

CHEAP = SparseGPClassifier(method="svgp", n_inducing=10, steps=750)
DRAWN = {"n_inducing": 10, "chains": 2, "max_draws": 100, "target_ess": 50.0, "random_state": 0}


def contract():
    """The checks of scikit-learn. They are slow: each compiles programs for a shape of its own."""
    for estimator, check in estimator_checks_generator(CHEAP):
        yield pytest.param(estimator, check, id=getattr(check, "func", check).__name__)


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "check"), list(contract()))
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check(estimator)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 2))
    return X, np.where(X[:, 0] ** 2 + 0.2 * rng.standard_normal(120) > 0.6, "out", "in")


@pytest.fixture(scope="module")
def fitted(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return SparseGPClassifier(**DRAWN).fit(*data)


def test_probabilities(fitted, data):
    X, y = data
    p = fitted.predict_proba(X)
    assert fitted.classes_.tolist() == ["in", "out"]
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    assert fitted.score(X, y) > 0.85
    assert p[np.argmin(np.abs(X[:, 0])), 0] > 0.8
    np.testing.assert_allclose(fitted.predict_distribution(X).mean, p[:, 1])
    assert fitted.diagnostics_ is not None


def test_a_saved_classifier_keeps_its_labels(fitted, data, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = SparseGPClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(data[0]), fitted.predict_proba(data[0]))
    assert loaded.predict(data[0][:3]).tolist() == fitted.predict(data[0][:3]).tolist()
    assert loaded.link == "probit"
    with pytest.raises(InputError, match=r"SparseGPClassifier\.load"):
        SparseGPRegressor.load(tmp_path / "model")


@pytest.mark.filterwarnings("ignore::integrand.ConvergenceWarning")  # few draws are enough for these
def test_more_classes_by_one_against_the_rest(data):
    X, _ = data
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    with pytest.raises(InputError, match="OneVsRestClassifier"):
        clone(CHEAP).fit(X, y)
    many = OneVsRestClassifier(SparseGPClassifier(**DRAWN)).fit(X, y)
    assert many.score(X, y) > 0.8


def test_refusals(data):
    X, y = data
    with pytest.raises(InputError, match="one class"):
        clone(CHEAP).fit(X, np.zeros(len(X)))
    with pytest.raises(InputError, match="SparseGPRegressor"):
        clone(CHEAP).fit(X, X[:, 0])
    with pytest.raises(InputError, match="link"):
        SparseGPClassifier(method="svgp", link="cloglog").fit(X, y)
    with pytest.raises(InputError, match="joint-hmc"):
        SparseGPClassifier(method="sgpr-hmc").fit(X, y)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::integrand.ConvergenceWarning")  # few steps are enough for these
def test_cross_validation(data):
    p = cross_val_predict(clone(CHEAP), *data, cv=2, method="predict_proba")
    assert p.shape == (120, 2)
