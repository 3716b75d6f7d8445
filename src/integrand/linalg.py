"""Dense linear algebra shared by the bounds: the jitter policy, Cholesky factors, triangular inverses."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

# Points whose prior variance is below this fraction of the average still get jitter in proportion to the average.
_FLOOR = 1e-6


class Jitter(NamedTuple):
    """What is added to the diagonal of k(Z, Z), and nowhere else: relative · k(zᵢ, zᵢ) + absolute.

    Jitter acts as noise on the inducing variables, so the bound stays a bound but loses a few nats; the same
    policy serves the bound, the step of Z and the predictor. `absolute` is for comparisons with other code.
    """

    relative: float = 1e-8
    absolute: float = 0.0

    def add_to(self, K: Float[Array, "M M"]) -> Float[Array, "M M"]:
        """K with jitter on its diagonal, differentiable."""
        variances = jnp.diagonal(K)
        floored = jnp.maximum(variances, _FLOOR * jnp.mean(variances))
        return K + jnp.diag(self.relative * floored + self.absolute)


def cholesky(K: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], Bool[Array, ""]]:
    """Lower factor of K and whether it exists; where it does not, the identity stands in for it.

    A failed factorisation must not leak NaN into sums that other terms share: callers turn `ok=False` into -inf.
    """
    L = jnp.linalg.cholesky(K, symmetrize_input=False)
    ok = jnp.all(jnp.isfinite(jnp.diagonal(L)))
    return jnp.where(ok, L, jnp.eye(K.shape[0], dtype=K.dtype)), ok


def triangular_inverse(L: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """L⁻¹, explicit: a product with it runs at matrix-product speed and is as accurate as a solve here."""
    return solve_triangular(L, jnp.eye(L.shape[0], dtype=L.dtype), lower=True)


def log_diagonal_sum(L: Float[Array, "M M"]) -> Float[Array, ""]:
    """Σ log Lᵢᵢ = ½ log |L Lᵀ|."""
    return jnp.sum(jnp.log(jnp.diagonal(L)))
