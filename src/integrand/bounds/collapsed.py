"""The collapsed variational bound of sparse GP regression, factored once (Titsias 2009; the paper's equation (7)).

With K = k(Z, X), Kmm = k(Z, Z) + jitter = L Lᵀ, Li = L⁻¹, s = σ² and residuals r = y - mean:

    A = Li K,  W = A Aᵀ,  w = A r,  B = I + W/s = LB LBᵀ,  c = LB⁻¹ w / s
    L(θ, Z) = -N/2 log 2πs - Σ log diag LB - rᵀr/2s + cᵀc/2 - Σ k(x, x)/2s + tr W / 2s

The rows of the data enter only through sums. K Kᵀ is never formed: accumulated first and whitened afterwards it
loses digits. The gradient is the closed form in the same whitened coordinates, not autodiff.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from integrand.data.dataset import Dataset, RowBlock
from integrand.errors import InputError
from integrand.gp import GP
from integrand.linalg import (
    LEAST_VARIANCE,
    AnyArray,
    Jitter,
    cholesky,
    log_diagonal_sum,
    transposed,
    triangular_inverse,
)
from integrand.precision import in_float64

# Nats by which the terms of the bound may be wrong.
_ROUNDING = 0.5


class RowSums(NamedTuple):
    """Everything the bound needs to know about the rows of the data."""

    W: Float[Array, "M M"]  # A Aᵀ
    w: Float[Array, " M"]  # A r
    a: Float[Array, " M"]  # Σ of the columns of A (for the gradient of a constant mean)
    rr: Float[Array, ""]  # rᵀr
    r: Float[Array, ""]  # Σ r
    k: Float[Array, ""]  # Σ k(x, x)


class Factors(NamedTuple):
    """The bound's factors at one θ and Z; the optimal q(u), the predictor and the upper bound use them too."""

    L: Float[Array, "M M"]
    Li: Float[Array, "M M"]
    LB: Float[Array, "M M"]
    c: Float[Array, " M"]
    sums: RowSums
    variance: Float[Array, ""]  # s = σ²
    ok: Bool[Array, ""]  # both factorisations exist


def _row_sums(gp: GP, Z: Array, Li: Array, data: Dataset, keep: bool) -> tuple[RowSums, Array | None]:
    """The one pass over the rows behind the bound's value, and the blocks of A if they are kept."""

    def block(rows: RowBlock):
        A = Li @ rows.masked(gp.kernel(Z, rows.X))
        r = rows.masked(rows.y - gp.mean)
        sums = RowSums(
            W=A @ A.T,
            w=A @ r,
            a=jnp.sum(A, axis=1),
            rr=r @ r,
            r=jnp.sum(r),
            k=jnp.sum(rows.masked(gp.kernel.diagonal(rows.X))),
        )
        return sums, A if keep else None

    return data.sum_and_keep(block)


def _factorise(gp: GP, Z: Array, data: Dataset, jitter: Jitter, keep: bool) -> tuple[Factors, Array | None]:
    L, ok_L = cholesky(jitter.gram(gp.kernel, Z))
    Li = triangular_inverse(L)
    sums, A = _row_sums(gp, Z, Li, data, keep)
    s = gp.noise**2
    LB, ok_B = cholesky(jnp.eye(Z.shape[0]) + sums.W / s)
    c = jax.scipy.linalg.solve_triangular(LB, sums.w, lower=True) / s
    return Factors(L, Li, LB, c, sums, s, ok_L & ok_B), A


def factorise(gp: GP, Z: Float[Array, "M D"], data: Dataset, jitter: Jitter = Jitter()) -> Factors:
    """Factors of the bound at hyperparameters `gp` and inducing inputs Z."""
    return _factorise(gp, Z, data, jitter, keep=False)[0]


def bound_from_factors(factors: Factors, n_rows: int) -> Float[Array, ""]:
    """L(θ, Z), or -inf where a factorisation failed."""
    sums, s = factors.sums, factors.variance
    log_normaliser = -0.5 * n_rows * jnp.log(2.0 * math.pi * s) - log_diagonal_sum(factors.LB)
    fit = -0.5 * sums.rr / s + 0.5 * jnp.sum(factors.c**2)
    trace = -0.5 * (sums.k - jnp.sum(jnp.diagonal(sums.W))) / s
    bound = log_normaliser + fit + trace
    # Neither is ever above zero; where rounding says so, divided by next to no noise, it would say anything.
    rounded_away = (fit > _ROUNDING) | (trace > _ROUNDING)
    ok = factors.ok & jnp.isfinite(bound) & (s > LEAST_VARIANCE) & ~rounded_away
    return jnp.where(ok, bound, -jnp.inf)


class InducingPosterior(NamedTuple):
    """q*(u) = N(L m, L S Lᵀ) in whitened coordinates: m = B⁻¹ w / s and S = B⁻¹ = (LB LBᵀ)⁻¹.

    The paper's m* = σ⁻² Kmm (Kmm + σ⁻² Kmn Knm)⁻¹ Kmn y (its text drops Kmm, the inverse and Kmn y) is L m.
    """

    m: Float[Array, " M"]
    LB: Float[Array, "M M"]


def inducing_posterior(factors: Factors) -> InducingPosterior:
    """The optimal q(u) given θ, which the collapsed bound has integrated out."""
    m = jax.scipy.linalg.solve_triangular(factors.LB, factors.c, lower=True, trans=1)
    return InducingPosterior(m, factors.LB)


@in_float64
def collapsed_bound(gp: GP, Z: Float[AnyArray, "M D"], data: Dataset, jitter: Jitter = Jitter()) -> Float[Array, ""]:
    """L(θ, Z) ≤ log p(y | θ), the paper's equation (7), with a closed-form gradient in θ and Z.

    Time N M², memory M² and one block of rows. -inf where a factorisation fails, never NaN.
    """
    return _bound(jitter, gp, checked_inducing(gp, Z, data), data)


def checked_inducing(gp: GP, Z: AnyArray, data: Dataset) -> Array:
    """Z as a float64 array, after a look at the shapes of Z, the data and the kernel."""
    Z = jnp.asarray(Z, float)
    if Z.ndim != 2 or Z.shape[0] < 1 or Z.shape[1] != data.n_columns:
        raise InputError(f"Z must have shape (M, {data.n_columns}) for this data, but has shape {Z.shape}")
    gp.kernel.check(data.n_columns)
    return Z


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _bound(jitter: Jitter, gp: GP, Z: Array, data: Dataset) -> Array:
    return bound_from_factors(factorise(gp, Z, data, jitter), data.n_rows)


def _bound_forward(jitter: Jitter, gp: GP, Z: Array, data: Dataset):
    keep = data.can_keep(Z.shape[0])  # A = Li K, for the gradient's pass
    factors, A = _factorise(gp, Z, data, jitter, keep)
    value = bound_from_factors(factors, data.n_rows)
    return value, (gp, Z, data, factors, A, jnp.isfinite(value))


def _bound_backward(jitter: Jitter, saved, cotangent):
    """∂L/∂(θ, Z), with B⁻¹ = LB⁻ᵀ LB⁻¹, b = LB⁻ᵀ c and G = I - B⁻¹ - b bᵀ.

    ∂L/∂Kmm = ½ Liᵀ (G - W/s) Li          ∂L/∂K = (Liᵀ G / s) A + (Liᵀ b / s) rᵀ
    ∂L/∂Σk(x, x) = -1/2s                   ∂L/∂mean = (Σr - bᵀ Σₙ aₙ) / s
    ∂L/∂s = (tr B⁻¹W + bᵀWb + rᵀr + Σk(x, x) - tr W) / 2s² - (cᵀc + N/2) / s
    """
    gp, Z, data, (_, Li, LB, c, sums, s, _), A, finite = saved
    LBi = triangular_inverse(LB)
    Bi = transposed(LBi) @ LBi
    b = c @ LBi
    G = jnp.eye(Z.shape[0]) - Bi - b[:, None] * b[None, :]
    LiT = transposed(Li)
    P, p = (LiT @ G) / s, (LiT @ b) / s

    def block(rows: RowBlock, A_block: Array | None):
        def covariances(kernel, Z):
            return kernel(Z, rows.X), kernel.diagonal(rows.X)

        (K, _), pull = jax.vjp(covariances, gp.kernel, Z)
        A_block = Li @ rows.masked(K) if A_block is None else A_block
        r = rows.masked(rows.y - gp.mean)
        dK = P @ A_block + p[:, None] * r[None, :]  # zero in padding, as A and r are
        return pull((dK, rows.masked(jnp.full(len(r), -0.5) / s)))

    from_rows = data.sum(block, A)

    dKmm = 0.5 * (LiT @ ((G - sums.W / s) @ Li))
    _, pull = jax.vjp(jitter.gram, gp.kernel, Z)
    d_kernel, dZ = jax.tree.map(jnp.add, from_rows, pull(dKmm))

    quadratic = jnp.sum(Bi * sums.W) + b @ sums.W @ b + sums.rr + sums.k - jnp.sum(jnp.diagonal(sums.W))
    ds = 0.5 * quadratic / s**2 - (jnp.sum(c**2) + 0.5 * data.n_rows) / s
    d_mean = (sums.r - b @ sums.a) / s
    gradient = (GP(d_kernel, 2.0 * gp.noise * ds, d_mean), dZ)
    # Where the bound is -inf its gradient is zero: a sampler must see a rejected point, not NaN.
    scaled = jax.tree.map(lambda g: jnp.where(finite, cotangent * g, 0.0), gradient)
    return (*scaled, None)


_bound.defvjp(_bound_forward, _bound_backward)
