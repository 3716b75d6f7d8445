"""Products and inverses by halves against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from integrand.linalg import lower_gram, triangular_inverse
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
