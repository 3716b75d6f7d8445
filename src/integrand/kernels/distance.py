"""Exponents e = -½ Σ_d w_d² (x_d - x'_d)² = -r²/2, with a closed-form gradient.

The exponent and not r² itself, because the cotangent of a squared exponential kernel is then needed as it comes:
one pass over a block of k(Z, X) less.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from integrand.linalg import transposed


def _by_product(X1: Array, X2: Array, w: Array) -> Array:
    # a·b - ½‖a‖² - ½‖b‖² as one product of [a, -½‖a‖², 1] and [b, 1, -½‖b‖²].
    a, b = X1 * w, X2 * w
    left = jnp.concatenate([a, _half_norms(a), jnp.ones((len(a), 1), a.dtype)], axis=1)
    right = jnp.concatenate([b, jnp.ones((len(b), 1), b.dtype), _half_norms(b)], axis=1)
    # The barrier keeps XLA from pulling the kernel's exponential into the product, where it is slower.
    return jnp.minimum(jax.lax.optimization_barrier(left @ right.T), 0.0)


def _half_norms(a: Array) -> Array:
    return -0.5 * jnp.sum(a**2, axis=1, keepdims=True)


def _by_difference(X1: Array, X2: Array, w: Array) -> Array:
    # Differences before weights: x w - x' w may round to something else than 0 where x = x' (a fused multiply-add).
    # Columns of X2 lie beside each other, so that the loop over its rows is one of vectors.
    columns = transposed(X2)
    total = jnp.zeros((len(X1), len(X2)), X1.dtype)
    for d in range(X1.shape[1]):  # unrolled, so that XLA makes one loop without an A x B x D array
        total = total - 0.5 * (w[d] * (X1[:, d, None] - columns[None, d])) ** 2
    return total


def _with_row_sums(G: Array, X: Array) -> tuple[Array, Array]:
    """G X and the sums of G's rows (A, 1), by one product."""
    found = G @ jnp.concatenate([X, jnp.ones((len(X), 1), G.dtype)], axis=1)
    return found[:, :-1], found[:, -1:]


def _with_gradient(
    exponents: Callable[[Array, Array, Array], Array],
) -> Callable[[Float[Array, "A D"], Float[Array, "B D"], Float[Array, " D"]], Float[Array, "A B"]]:
    def forward(X1, X2, w):
        return exponents(X1, X2, w), (X1, X2, w)

    def backward(saved, G):
        # With GX = G X2: ∂/∂X1 = w² (GX - X1 ∘ G1) and ∂/∂w = -w Σ G (x - x')², the square expanded. X2 is
        # usually data, and XLA then drops its slow transposed product.
        X1, X2, w = saved
        GX, rows = _with_row_sums(G, X2)
        columns = jnp.sum(G, axis=0)
        dX1 = w**2 * (GX - X1 * rows)
        dX2 = w**2 * (G.T @ X1 - X2 * columns[:, None])
        dw = w * (jnp.sum(2.0 * X1 * GX - rows * X1**2, axis=0) - columns @ X2**2)
        return dX1, dX2, dw

    function = jax.custom_vjp(exponents)
    function.defvjp(forward, backward)
    return function


# A matrix product; its rounding error is about 1e-16 ‖w x‖².
exponents_by_product = _with_gradient(_by_product)
# Exactly zero where rows coincide: for kernels with a kink there.
exponents_by_difference = _with_gradient(_by_difference)


@jax.custom_vjp
def exponents_within(X: Float[Array, "A D"], w: Float[Array, " D"]) -> Float[Array, "A A"]:
    """The exponents among the rows of X, exactly zero where rows coincide: for k(Z, Z)."""
    return _by_difference(X, X, w)


def _within_forward(X, w):
    return _by_difference(X, X, w), (X, w)


def _within_backward(saved, G):
    X, w = saved
    GX, rows = _with_row_sums(G + G.T, X)
    from_rows = GX - X * rows
    return w**2 * from_rows, w * jnp.sum(X * from_rows, axis=0)


exponents_within.defvjp(_within_forward, _within_backward)
