"""Rows far outside the training data."""

import warnings

import numpy as np
import pytest

from integrand import ExtrapolationWarning, fit
from integrand.kernels import RBF, Linear, Periodic
from integrand.posterior.extrapolation import beyond, outside_text, reach

INF = np.inf


@pytest.mark.parametrize(
    ("kernel", "distances"),
    [
        (RBF(lengthscale=2.0, scale=1.0), [2.0, 2.0]),
        (RBF(lengthscale=(2.0, 3.0), scale=1.0), [2.0, 3.0]),
        (RBF(lengthscale=2.0, scale=1.0, active=0), [2.0, INF]),
        (RBF(lengthscale=2.0, scale=1.0, active=0) + RBF(lengthscale=3.0, scale=1.0, active=1), [2.0, 3.0]),
        (RBF(lengthscale=2.0, scale=1.0) + RBF(lengthscale=9.0, scale=1.0), [9.0, 9.0]),
        (RBF(lengthscale=2.0, scale=1.0) + Linear(scale=1.0), [INF, INF]),
        (RBF(lengthscale=2.0, scale=1.0) * Periodic(lengthscale=1.0, period=1.0, scale=1.0), [2.0, 2.0]),
    ],
)
def test_reach(kernel, distances):
    np.testing.assert_array_equal(reach(kernel, 2), distances)


def test_beyond_counts_in_reaches():
    X, ranges = np.array([[0.5, 9.0], [3.0, 0.0], [-1.0, 0.0]]), np.array([[0.0, 1.0], [0.0, 1.0]])
    np.testing.assert_allclose(beyond(X, ranges, np.array([2.0, INF])), [[0.0, 0.0], [1.0, 0.0], [0.5, 0.0]])


def test_one_row_in_two_hundred_is_no_warning():
    far = np.zeros((200, 2), bool)
    far[0, 1] = True
    assert outside_text(far, ("a", "b")) == ""
    assert "b" in outside_text(far[:20], ("a", "b"))


def test_predictions_warn_once():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (40, 2))
    posterior = fit(X, np.sin(3 * X[:, 0]) + 0.1 * rng.standard_normal(40), n_inducing=10, method="ml2", steps=50)
    near, far = X[:5] * 1.01, X[:5] + 1e4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior.predict(near, include_noise=True)
    assert np.all(posterior.outside(far) > 1.0)
    with pytest.warns(ExtrapolationWarning, match=r"5 of 5 rows \(100%\)"):
        posterior.predict(far, include_noise=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior.predict(far, include_noise=True)
