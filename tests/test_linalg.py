"""Products and inverses by halves against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from integrand.linalg import JITTER_LADDER, covariance_root, lower_gram, triangular_inverse
from integrand.precision import float64_scope

SIZES = [1, 2, 31, 64, 65, 128, 129, 300]  # below, at and above where halving ends, even and odd


def lower(n):
    A = np.random.default_rng(n).standard_normal((n, n))
    return np.tril(A) / np.sqrt(n) + 2.0 * np.eye(n)


@pytest.mark.parametrize("n", SIZES)
def test_gram_of_a_lower_triangle(n):
    with float64_scope():
        L = jnp.asarray(lower(n))
        np.testing.assert_allclose(lower_gram(L), L.T @ L, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("n", SIZES)
def test_inverse_of_a_lower_triangle(n):
    with float64_scope():
        L = jnp.asarray(lower(n))
        np.testing.assert_allclose(triangular_inverse(L) @ L, np.eye(n), atol=1e-12)
        np.testing.assert_allclose(lower_gram(triangular_inverse(L)), np.linalg.inv(L @ L.T), atol=1e-12)


def test_what_whitens_is_exact_where_only_a_jitter_keeps_a_matrix_from_being_singular():
    """L⁻¹ L is what a whitened K has; solved column by column it is wrong by 1e-5 here."""
    x = np.sort(np.random.default_rng(0).uniform(-3.0, 3.0, 60))
    L = np.linalg.cholesky(np.exp(-0.5 * ((x[:, None] - x) / 0.8) ** 2) + 1e-12 * np.eye(60))
    with float64_scope():
        np.testing.assert_allclose(np.asarray(triangular_inverse(jnp.asarray(L))) @ L, np.eye(60), atol=1e-8)


def covariance(eigenvalues):
    n = len(eigenvalues)
    vectors = np.linalg.qr(np.random.default_rng(0).standard_normal((n, n)))[0]
    K = (vectors * eigenvalues) @ vectors.T
    return 0.5 * (K + K.T)


def test_a_covariance_that_has_a_factor_gets_no_jitter():
    K = covariance(np.linspace(0.5, 2.0, 30))
    np.testing.assert_array_equal(covariance_root(K, 0.0), np.linalg.cholesky(K))
    np.testing.assert_array_equal(covariance_root(K, 0.25), np.linalg.cholesky(K + 0.25 * np.eye(30)))


@pytest.mark.parametrize(("negative", "jitter"), [(1e-13, 1e-12), (1e-11, 1e-10), (1e-9, 1e-8), (1e-7, 1e-6)])
def test_a_covariance_gets_as_little_jitter_as_it_takes(negative, jitter):
    K = covariance(np.append(np.linspace(0.5, 1.5, 30), -negative))
    root, scale = covariance_root(K, 0.0), np.mean(np.diagonal(K))
    assert jitter in JITTER_LADDER
    np.testing.assert_allclose(np.diagonal(root @ root.T - K), jitter * scale, rtol=0.05)


def test_a_covariance_far_from_one_loses_its_negative_part():
    K = covariance(np.append(np.linspace(0.5, 1.5, 30), -0.1))
    root, (values, vectors) = covariance_root(K, 0.01), np.linalg.eigh(K)
    scale = np.mean(np.diagonal(K)) + 0.01
    expected = (vectors * np.maximum(values, JITTER_LADDER[-1] * scale)) @ vectors.T + 0.01 * np.eye(31)
    np.testing.assert_allclose(root @ root.T, expected, rtol=1e-10, atol=1e-13)
