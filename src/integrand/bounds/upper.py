"""An upper bound on the log marginal likelihood from the factors of the lower one (Titsias 2014)."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from integrand.bounds.collapsed import Factors, checked_inducing, factorise
from integrand.data.dataset import Dataset
from integrand.gp import GP
from integrand.linalg import AnyArray, Jitter, cholesky, log_diagonal_sum
from integrand.precision import in_float64


def upper_bound_from_factors(factors: Factors, n_rows: int) -> Float[Array, ""]:
    """U = -½ log |Q + S| - ½ rᵀ(Q + (1 + t) S)⁻¹ r - N/2 log 2π with Q = AᵀA and t = tr S⁻¹(K - Q).

    Since K ⪯ Q + tS and |K + S| ≥ |Q + S|, U ≥ log p(y | θ). +inf where a factorisation failed.
    """
    sums = factors.sums
    loose = 1.0 + jnp.maximum(sums.k - jnp.trace(sums.W), 0.0)
    LT, ok = cholesky(jnp.eye(sums.W.shape[0]) + sums.W / loose)
    c = jax.scipy.linalg.solve_triangular(LT, sums.w, lower=True) / loose
    quadratic = sums.rr / loose - jnp.sum(c**2)
    log_determinant = sums.log_s + 2.0 * log_diagonal_sum(factors.LB)
    upper = -0.5 * (log_determinant + quadratic + n_rows * math.log(2 * math.pi))
    upper = upper if sums.slopes is None else upper + sums.slopes
    return jnp.where(factors.ok & ok & jnp.isfinite(upper), upper, jnp.inf)


@in_float64
def upper_bound(gp: GP, Z: Float[AnyArray, "M D"], data: Dataset, jitter: Jitter = Jitter()) -> Float[Array, ""]:
    """U(θ, Z) ≥ log p(y | θ): beside the collapsed bound it says how much the inducing points can still cost."""
    return upper_bound_from_factors(factorise(gp, checked_inducing(gp, Z, data), data, jitter), data.n_rows)
