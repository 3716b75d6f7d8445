"""The bound averaged over draws of θ: the stochastic bound of Algorithm 1, whose gradient moves Z."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from integrand.bounds.collapsed import collapsed_bound
from integrand.data.dataset import Dataset
from integrand.gp import GP
from integrand.linalg import AnyArray, Jitter
from integrand.precision import in_float64


@in_float64
def averaged_bound(
    gp_of: Callable[[Float[Array, " P"]], GP],
    phis: Float[AnyArray, "J P"],
    Z: Float[AnyArray, "M D"],
    data: Dataset,
    jitter: Jitter = Jitter(),
) -> tuple[Float[Array, ""], Float[Array, "M D"]]:
    """Value and Z-gradient of 1/J Σ_j L(θ_j, Z): the right-hand side of the paper's gradient identity, equation (15).

    `gp_of` makes the GP from a row of `phis`. One draw at a time, so memory does not grow with J. A draw whose
    factorisation fails makes the value -inf.
    """
    Z = jnp.asarray(Z, float)
    one = jax.value_and_grad(lambda Z, phi: collapsed_bound(gp_of(phi), Z, data, jitter))

    def add(total, phi):
        return jax.tree.map(jnp.add, total, one(Z, phi)), None

    zero = (jnp.zeros(()), jnp.zeros_like(Z))
    total, _ = jax.lax.scan(add, zero, jnp.asarray(phis, float))
    return jax.tree.map(lambda t: t / phis.shape[0], total)
