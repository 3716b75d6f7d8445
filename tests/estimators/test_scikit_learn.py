"""What scikit-learn offers around an estimator: `set_output`, metadata routing, and display as HTML."""

import re
import warnings

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from integrand import RBF, Gamma, Periodic, SparseGPClassifier, SparseGPRegressor

GP = SparseGPRegressor(method="ml2", n_inducing=8, steps=15, random_state=0)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(40)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.parametrize("output", ["pandas", "polars"])
def test_set_output_of_a_pipeline_hands_column_names_to_the_gp(data, output):
    library = pytest.importorskip(output)
    X, y = data
    frame = library.DataFrame({"depth": X[:, 0], "age": X[:, 1]})
    pipeline = make_pipeline(StandardScaler(), clone(GP)).set_output(transform=output).fit(frame, y)
    assert list(pipeline[-1].feature_names_in_) == ["depth", "age"]
    plain = make_pipeline(StandardScaler(), clone(GP)).fit(X, y)
    assert np.allclose(pipeline.predict(frame), plain.predict(X), rtol=1e-10)


def test_predict_options_are_routed_through_a_pipeline(data, routing):
    X, y = data
    gp = clone(GP).set_predict_request(return_std=True, quantiles=True, include_noise=True)
    pipeline = make_pipeline(StandardScaler(), gp).fit(X, y)
    mean, sd, quantiles = pipeline.predict(X[:5], return_std=True, quantiles=[0.1, 0.9], include_noise=False)
    expected = pipeline[-1].predict(
        pipeline[0].transform(X[:5]), return_std=True, quantiles=[0.1, 0.9], include_noise=False
    )
    for got, wanted in zip((mean, sd, quantiles), expected, strict=True):
        assert np.array_equal(got, wanted)


def test_an_option_that_was_not_requested_is_refused(data, routing):
    pipeline = make_pipeline(StandardScaler(), clone(GP)).fit(*data)
    with pytest.raises(sklearn.exceptions.UnsetMetadataPassedError, match="return_std"):
        pipeline.predict(data[0], return_std=True)


@pytest.mark.slow
def test_weights_of_rows_are_routed_to_the_score(data, routing):
    X, y = data
    half = np.where(np.arange(len(y)) % 2, 1.0, 0.0)  # the score of every second row
    weighted = cross_validate(
        clone(GP).set_score_request(sample_weight=True), X, y, params={"sample_weight": half}, cv=2
    )
    unweighted = cross_validate(clone(GP).set_score_request(sample_weight=False), X, y, cv=2)
    assert not np.allclose(weighted["test_score"], unweighted["test_score"])
    first = clone(GP).fit(X[20:], y[20:])
    assert weighted["test_score"][0] == pytest.approx(first.score(X[:20][1::2], y[:20][1::2]), rel=1e-9)


@pytest.mark.parametrize("estimator", [SparseGPRegressor, SparseGPClassifier])
def test_html_shows_the_parameters_that_were_set(estimator):
    kernel = RBF(lengthscale=Gamma(2, 1)) + Periodic(period=1.0)
    page = estimator(kernel, n_inducing=7)._repr_html_()
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert estimator.__name__ in text
    assert "n_inducing" in text
    assert "7" in text
    assert "RBF(lengthscale=Gamma" in text


def test_html_tells_whether_a_pipeline_is_fitted(data):
    pipeline = make_pipeline(StandardScaler(), clone(GP))
    assert "<span>Not fitted</span>" in pipeline._repr_html_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = pipeline.fit(*data)._repr_html_()
    assert "<span>Fitted</span>" in page
    assert "<span>Not fitted</span>" not in page
