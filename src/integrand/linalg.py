"""Dense linear algebra: the jitter policy, Cholesky factors and triangular inverses.

Jitter is added in two places only. `Jitter` adds a fixed fraction of the diagonal to k(Z, Z), and to k(X, X) in
Laplace's method, so that densities stay smooth. `covariance_root` adds as little as it takes to the covariance of a
prediction.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

# What public functions take: they make JAX arrays of it themselves, in float64.
AnyArray = Array | np.ndarray

# Points whose prior variance is below this fraction of the average still get jitter in proportion to the average.
_FLOOR = 1e-6
# Multiples of the average variance that `covariance_root` tries in turn: from none to a thousandth of the average
# standard deviation.
JITTER_LADDER = (0.0, 1e-12, 1e-10, 1e-8, 1e-6)
# A noise variance below this is a likelihood running away on a constant y; its square root is still a number.
LEAST_VARIANCE = 1e-200
# Below this size halving ends with one triangular solve: smaller ones are no faster, and take longer to compile.
_INVERSE_LEAF = 128
# Below this size halving ends with one product.
_PRODUCT_LEAF = 64


class Jitter(NamedTuple):
    """What is added to the diagonal of k(Z, Z), or of k(X, X) in Laplace's method: relative · k(zᵢ, zᵢ) + absolute.

    Jitter acts as noise on the inducing variables, so the bound stays a bound but loses a few nats; the same
    policy serves the bound, the step of Z and the predictor. `absolute` is for comparisons with other code.
    """

    relative: float = 1e-8
    absolute: float = 0.0

    def add_to(self, K: Float[Array, "M M"], variances: Float[Array, " M"]) -> Float[Array, "M M"]:
        """K = k(Z, Z) with jitter on its diagonal, differentiable; `variances` are k(zᵢ, zᵢ)."""
        floored = jnp.maximum(variances, _FLOOR * jnp.mean(variances))
        return K + jnp.eye(K.shape[0], dtype=K.dtype) * (self.relative * floored + self.absolute)

    def added(self, K: Float[np.ndarray, "M M"]) -> Float[np.ndarray, "M M"]:
        """K with jitter, in NumPy."""
        variances = np.diagonal(K)
        floored = np.maximum(variances, _FLOOR * np.mean(variances))
        return K + np.diag(self.relative * floored + self.absolute)

    def gram(self, kernel: Any, Z: Array) -> Array:
        """Kmm: k(Z, Z) with jitter."""
        return self.add_to(kernel.gram(Z), kernel.diagonal(Z))


def covariance_root(
    covariance: Float[np.ndarray, "T T"], extra: float | Float[np.ndarray, " T"]
) -> Float[np.ndarray, "T T"]:
    """Lower Cholesky factor of covariance + diag(extra), with the smallest of `JITTER_LADDER` for which it exists.

    If there is none, eigenvalues below the last of them are raised to it.
    """
    scale = float(np.mean(np.diagonal(covariance) + extra))
    identity = np.eye(len(covariance))
    for jitter in JITTER_LADDER:
        try:
            return np.linalg.cholesky(covariance + (extra + jitter * scale) * identity)
        except np.linalg.LinAlgError:
            continue
    eigenvalues, vectors = np.linalg.eigh(covariance)
    raised = np.maximum(eigenvalues, JITTER_LADDER[-1] * scale)
    return np.linalg.cholesky((vectors * raised) @ vectors.T + extra * identity)


def cholesky(K: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], Bool[Array, ""]]:
    """Lower factor of K and whether it exists. Where it does not, L is NaN: callers turn `ok=False` into -inf."""
    # K is symmetric, and LAPACK counts by columns: transposed, it is passed on as it lies in memory.
    L = jnp.linalg.cholesky(K.T, symmetrize_input=False)
    return L, jnp.isfinite(L[-1, -1])


def triangular_inverse(L: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """L⁻¹, explicit: a product with it runs at matrix-product speed and is as accurate as a solve here.

    By halves, [[a, 0], [c, d]]⁻¹ = [[a⁻¹, 0], [-d⁻¹ c a⁻¹, d⁻¹]], so that most of the work is products.
    """
    n = L.shape[0]
    if n <= _INVERSE_LEAF:
        # A constant, for XLA would compute the identity at every call.
        identity = np.eye(n, dtype=L.dtype)
        # Row by row, Lᵀ xᵢ = eᵢ: what is rounded is then small in L⁻¹ L, which a product A = L⁻¹ K has, not in L L⁻¹.
        return transposed(solve_triangular(L, identity, lower=True, trans=1))
    half = n // 2
    a, d = triangular_inverse(L[:half, :half]), triangular_inverse(L[half:, half:])
    c = -d @ (L[half:, :half] @ a)
    return jnp.block([[a, jnp.zeros((half, n - half), L.dtype)], [c, d]])


def transposed(A: Float[Array, "M K"]) -> Float[Array, "K M"]:
    """Aᵀ as an array of its own: products with a transposed left factor are slow on CPU."""
    return jax.lax.optimization_barrier(A.T)


def lower_gram(L: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """LᵀL for a lower triangle L, symmetric: with L⁻¹ in its place, the inverse of L Lᵀ.

    By halves, with L = [[a, 0], [c, d]]: [[aᵀa + cᵀc, cᵀd], [dᵀc, dᵀd]], a third of the work of the whole product.
    """
    n = L.shape[0]
    if n <= _PRODUCT_LEAF:
        return transposed(L) @ L
    half = n // 2
    a, c, d = L[:half, :half], L[half:, :half], L[half:, half:]
    cT = transposed(c)
    side = cT @ d
    return jnp.block([[lower_gram(a) + cT @ c, side], [side.T, lower_gram(d)]])


def from_whitened(Li: Array, LiT: Array, G: Array) -> Array:
    """The gradient for K = L Lᵀ of a function of A = L⁻¹ B, from G = (∂/∂A) Aᵀ (Murray 2016).

    -½ L⁻ᵀ (Φ + Φᵀ) L⁻¹, Φ the lower triangle of G with its diagonal halved.
    """
    Phi = jnp.tril(G) - 0.5 * jnp.diag(jnp.diagonal(G))
    return -0.5 * (LiT @ ((Phi + Phi.T) @ Li))


def log_diagonal_sum(L: Float[Array, "M M"]) -> Float[Array, ""]:
    """Σ log Lᵢᵢ = ½ log |L Lᵀ|."""
    return jnp.sum(jnp.log(jnp.diagonal(L)))
