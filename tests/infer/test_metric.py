import numpy as np
import pytest

from integrand.infer.metric import Whitening, whitening_from_draws, whitening_from_hessian

MEAN = np.array([1.0, -2.0, 30.0])
COVARIANCE = np.array([[4.0, 1.0, 0.1], [1.0, 0.5, 0.0], [0.1, 0.0, 0.01]])
PRECISION = np.linalg.inv(COVARIANCE)


def gradient(x):
    return -PRECISION @ (x - MEAN)


def test_hessian_of_a_gaussian_is_its_covariance():
    whitening = whitening_from_hessian(gradient, MEAN)
    np.testing.assert_allclose(whitening.covariance, COVARIANCE, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(whitening.centre, MEAN)


def test_whitened_gaussian_is_standard_normal():
    whitening = whitening_from_hessian(gradient, MEAN)
    for eta in np.random.default_rng(0).standard_normal((5, 3)):
        # The gradient of log N(x; MEAN, COVARIANCE) in eta is that of a standard normal.
        np.testing.assert_allclose(gradient(whitening.to_x(eta)) @ whitening.factor, -eta, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 5, 3)])
def test_round_trip(shape):
    whitening = whitening_from_hessian(gradient, MEAN)
    eta = np.random.default_rng(1).standard_normal(shape)
    x = whitening.to_x(eta)
    assert x.shape == shape
    np.testing.assert_allclose(whitening.to_eta(x), eta, rtol=1e-10, atol=1e-10)
    one = tuple(0 for _ in shape[:-1])
    np.testing.assert_allclose(x[one], MEAN + whitening.factor @ eta[one], rtol=1e-12)


def test_a_flat_or_wrong_direction_has_a_limited_width():
    whitening = whitening_from_hessian(lambda x: np.array([0.0, -x[1], 3.0 * x[2]]), np.zeros(3))
    np.testing.assert_allclose(whitening.covariance, np.diag([25.0, 1.0, 25.0]), rtol=1e-6)


def test_the_width_of_a_saddle_is_measured():
    """Between two shallow wells the Hessian has the wrong sign: the width is where half a nat is lost."""

    def value(x):
        return -40.0 * (x[0] ** 2 - 0.04) ** 2 - 0.5 * x[1] ** 2

    def slope(x):
        return np.array([-160.0 * x[0] * (x[0] ** 2 - 0.04), -x[1], 0.0])

    whitening = whitening_from_hessian(slope, np.zeros(3), value=value)
    at_half = np.sqrt(0.04 + np.sqrt(0.5 / 40.0 + 0.04**2))
    widths = np.sqrt(np.diag(whitening.covariance))
    assert at_half / 2**0.125 <= widths[0] <= at_half
    np.testing.assert_allclose(widths[1:], [1.0, 5.0], rtol=1e-6)  # flat is not a saddle


def test_the_width_of_a_saddle_on_an_edge():
    """Beyond 0.3 nothing can be computed."""
    whitening = whitening_from_hessian(
        lambda x: 0.1 * x, np.zeros(1), value=lambda x: 0.0 if abs(x[0]) < 0.3 else -np.inf
    )
    assert 0.3 / 2**0.125 <= whitening.factor[0, 0] < 0.3


def test_curvature_that_is_not_a_number_counts_as_flat():
    def broken(x):
        return np.array([np.nan if x[0] != 0.0 else 0.0, -4.0 * x[1]])

    whitening = whitening_from_hessian(broken, np.zeros(2))
    np.testing.assert_allclose(whitening.covariance, np.diag([25.0, 0.25]), rtol=1e-6)


def test_shrinkage_of_draws_towards_the_earlier_whitening():
    rng = np.random.default_rng(2)
    before = Whitening(np.zeros(3), np.diag([2.0, 3.0, 0.1]))
    draws = rng.multivariate_normal(MEAN, COVARIANCE, size=45)
    after = whitening_from_draws(draws, before)
    np.testing.assert_allclose(after.centre, draws.mean(axis=0))
    # 45 draws of 3 numbers weigh 45 / (45 + 15).
    expected = 0.75 * np.cov(draws.T) + 0.25 * np.diag([4.0, 9.0, 0.01])
    np.testing.assert_allclose(after.covariance, expected, rtol=1e-10)


def test_many_draws_overrule_the_earlier_whitening():
    rng = np.random.default_rng(3)
    draws = rng.multivariate_normal(MEAN, COVARIANCE, size=200_000)
    after = whitening_from_draws(draws, Whitening(np.zeros(3), np.eye(3)))
    np.testing.assert_allclose(after.covariance, COVARIANCE, rtol=0.03, atol=2e-3)


@pytest.mark.parametrize("n_draws", [2, 5])
def test_few_equal_draws_leave_a_usable_whitening(n_draws):
    after = whitening_from_draws(np.ones((n_draws, 3)), Whitening(np.zeros(3), np.eye(3)))
    assert np.linalg.cond(after.factor) < 1e3
    np.testing.assert_allclose(after.covariance, 15.0 / (15.0 + n_draws) * np.eye(3))


def test_one_hyperparameter():
    whitening = whitening_from_hessian(lambda x: -4.0 * x, np.zeros(1))
    assert whitening.covariance.shape == (1, 1)
    draws = np.random.default_rng(4).standard_normal((40, 1))
    assert whitening_from_draws(draws, whitening).factor.shape == (1, 1)
