"""SparseGPClassifier: the scikit-learn contract, probabilities, files and refusals."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import cross_val_predict
from sklearn.utils.estimator_checks import estimator_checks_generator

from integrand import ConvergenceWarning, HalfNormal, InputError, SparseGPClassifier, SparseGPRegressor, plot
from integrand.errors import ModelFileError
from integrand.likelihoods import Bernoulli, Gaussian, Poisson, StudentT
from integrand.methods.table import default_method
from integrand.storage.model_file import load_model

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


@pytest.mark.slow
def test_a_saved_classifier_keeps_its_labels(fitted, data, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = SparseGPClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(data[0]), fitted.predict_proba(data[0]))
    assert loaded.predict(data[0][:3]).tolist() == fitted.predict(data[0][:3]).tolist()
    assert loaded.link == "logit"
    with pytest.raises(InputError, match=r"SparseGPClassifier\.load"):
        SparseGPRegressor.load(tmp_path / "model")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::integrand.ConvergenceWarning")  # few draws are enough for these
def test_more_classes_by_one_against_the_rest(data, tmp_path):
    X, _ = data
    y = np.array(["low", "middle", "high"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    many = SparseGPClassifier(**DRAWN).fit(X, y)
    assert many.classes_.tolist() == ["high", "low", "middle"]
    assert list(many.diagnostics_) == many.classes_.tolist()
    p = many.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    against_rest = np.column_stack([member.predict_proba(X)[:, 1] for member in many.estimators_])
    np.testing.assert_allclose(p, against_rest / against_rest.sum(axis=1, keepdims=True))
    assert many.score(X, y) > 0.8
    with pytest.raises(InputError, match="estimators_"):
        many.predict_distribution(X)
    many.save(tmp_path / "model")
    loaded = SparseGPClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(X), p)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(many)).predict_proba(X), p)
    np.testing.assert_array_equal(loaded.predict(X[:9]), many.predict(X[:9]))
    with pytest.raises(ModelFileError, match=r"SparseGPClassifier\.load"):
        load_model(tmp_path / "model")
    assert SparseGPClassifier(**DRAWN).fit(X, y == "low").classes_.tolist() == [False, True]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::integrand.ConvergenceWarning")  # few steps are enough for these
def test_of_several_classes_one_is_plotted_and_reported(data, tmp_path):
    X, y = data[0][:40], np.arange(40) % 3
    clf = SparseGPClassifier(method="svgp", n_inducing=8, steps=5).fit(X, y)
    for ask in (lambda: plot(clf), lambda: clf.report(tmp_path / "r.html", X, y)):
        with pytest.raises(InputError, match=r"clf\.estimators_\[0\].* X, y == clf\.classes_\[0\]\)\. predict_proba"):
            ask()
    clf.save(tmp_path / "m")
    with pytest.raises(ModelFileError, match=r"SparseGPClassifier\.load$"):
        SparseGPRegressor.load(tmp_path / "m")
    clf.estimators_[0].report(tmp_path / "r.html", X, y == clf.classes_[0])
    assert len(plot(clf.estimators_[0], X, y == clf.classes_[0])) == 2


@pytest.mark.slow
def test_separable_classes_do_not_diverge():
    """The scale of f, which such data do not limit, has a prior without a heavy tail."""
    X, y = load_iris(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # few draws
        model = SparseGPClassifier(n_inducing=12, chains=2, max_draws=100, random_state=0).fit(X[:100], y[:100])
    assert model.posterior_.chains.diverging.sum() <= 2
    (scale,) = (p for p in model.posterior_.model.parameters if p.name == "scale")
    assert scale.prior == HalfNormal(3.4)


def test_the_likelihood_chooses_the_method():
    assert default_method(Gaussian()) == "sgpr-hmc"
    assert {default_method(each) for each in (Poisson(), Bernoulli(), StudentT())} == {"joint-hmc"}
    X, y = np.linspace(-2.0, 2.0, 30)[:, None], np.arange(30.0) % 4
    gp = SparseGPRegressor(likelihood="poisson", n_inducing=4, chains=2, max_draws=10, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert gp.fit(X, y).posterior_.method == "joint-hmc"
    with pytest.raises(InputError, match="sgpr-hmc is for Gaussian noise"):
        gp.set_params(method="sgpr-hmc").fit(X, y)


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
