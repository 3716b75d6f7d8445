"""What inducing points cost: the bound and the exact density from matrices, and the points that would add most."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from integrand.bounds.collapsed import collapsed_bound
from integrand.bounds.exact import log_marginal_likelihood
from integrand.data.dataset import Dataset
from integrand.gp import BOUNDS, GP
from integrand.inducing import greedy_variance
from integrand.kernels import RBF
from integrand.linalg import Jitter
from integrand.posterior.sparseness import dense_bound, further_points, log_marginal
from integrand.precision import float64_scope

JITTER = Jitter()


def case(n=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(n)
    with float64_scope():
        gp = GP(RBF(lengthscale=(0.7, 1.3), scale=1.2), jnp.asarray(0.3), jnp.asarray(0.1))
        K = np.asarray(gp.kernel.gram(jnp.asarray(X)))
    return X, y, gp, K


def bound_at(points, y, K, bound="titsias"):
    return dense_bound(JITTER.added(K[np.ix_(points, points)]), K[points], np.diagonal(K), y - 0.1, 0.3**2, bound)


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_bound_is_the_one_that_is_sampled(bound):
    X, y, gp, K = case()
    points = np.arange(7)
    expected = float(collapsed_bound(gp, X[points], Dataset.of(X, y), bound=bound))
    assert bound_at(points, y, K, bound) == pytest.approx(expected, abs=1e-8)


def test_the_exact_density():
    X, y, gp, K = case()
    assert log_marginal(K, y - 0.1, 0.3**2) == pytest.approx(float(log_marginal_likelihood(gp, X, y)), abs=1e-9)


def test_with_all_rows_as_points_nothing_is_missing():
    _, y, _, K = case()
    gap = log_marginal(K, y - 0.1, 0.3**2) - bound_at(np.arange(len(y)), y, K)
    assert 0.0 <= gap < 1e-3


def test_more_points_never_lose():
    _, y, _, K = case()
    points = further_points(K, 0, 20, JITTER)
    bounds = [bound_at(points[:m], y, K) for m in (1, 2, 5, 10, 20)]
    assert np.all(np.diff(bounds) > -1e-6)


def test_points_are_those_of_the_greedy_start():
    X, _, gp, K = case()
    chosen = further_points(K, 0, 6, JITTER)
    np.testing.assert_array_equal(X[chosen], greedy_variance(np.random.default_rng(0), X, 6, gp))


def test_points_after_some_go_on_where_those_ended():
    _, _, _, K = case()
    chosen = further_points(K, 0, 6, JITTER)
    order = np.concatenate([chosen[:3], np.arange(len(K))])
    np.testing.assert_array_equal(further_points(K[np.ix_(order, order)], 3, 3, JITTER), chosen[3:])


def test_there_are_no_further_points_where_all_is_explained():
    _, _, _, K = case(n=10)
    order = np.tile(np.arange(10), 2)
    assert len(further_points(K[np.ix_(order, order)], 10, 5, JITTER)) == 0


def test_a_matrix_that_has_no_factor_gives_nan():
    bad = -np.eye(3)
    assert math.isnan(log_marginal(bad, np.zeros(3), 0.5))
    assert math.isnan(dense_bound(bad, np.ones((3, 3)), np.ones(3), np.zeros(3), 0.5, "tight"))
