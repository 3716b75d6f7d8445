"""The collapsed variational bounds of sparse GP regression, factored once.

`titsias` is that of Titsias (2009), the paper's equation (7), and `tight` that of Titsias (2025).

With K = k(Z, X), Kmm = k(Z, Z) + jitter = L Lᵀ, Li = L⁻¹, s = σ² and residuals r = y - mean:

    A = Li K,  W = A Aᵀ,  w = A r,  B = I + W/s = LB LBᵀ,  c = LB⁻¹ w / s
    L(θ, Z) = -N/2 log 2πs - Σ log diag LB - rᵀr/2s + cᵀc/2 - Σ k(x, x)/2s + tr W / 2s

The last two terms are -½ Σ k̃ₙ/s, with k̃ₙ = k(xₙ, xₙ) - aₙᵀaₙ ≥ 0 and aₙ the columns of A. The tight bound has
-½ Σ log(1 + k̃ₙ/s) in their place. It is never lower, and it has the same q*(u).

The rows of the data enter only through sums. K Kᵀ is never formed: accumulated first and whitened afterwards it
loses digits. The gradient is the closed form in the same whitened coordinates, not autodiff.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from integrand.data.dataset import Dataset, RowBlock
from integrand.errors import InputError
from integrand.gp import GP, check_bound
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
    logs: Float[Array, ""] | None = None  # Σ log(1 + k̃/s), for the tight bound alone
    delta: Float[Array, ""] | None = None  # Σ δ, δ = k̃ / s(s + k̃) = 1/s - 1/(s + k̃): for its gradient


class Factors(NamedTuple):
    """The bound's factors at one θ and Z; the optimal q(u), the predictor and the upper bound use them too."""

    L: Float[Array, "M M"]
    Li: Float[Array, "M M"]
    LB: Float[Array, "M M"]
    c: Float[Array, " M"]
    sums: RowSums
    variance: Float[Array, ""]  # s = σ²
    ok: Bool[Array, ""]  # both factorisations exist


def _open_variance(A: Array, variances: Array) -> Array:
    """k̃ₙ, what the inducing variables leave open of each f(xₙ); rounding may have taken it below zero."""
    return jnp.maximum(variances - jnp.sum(A**2, axis=0), 0.0)


def _row_sums(gp: GP, Z: Array, Li: Array, data: Dataset, tight: bool, keep: bool) -> tuple[RowSums, Any]:
    """The one pass over the rows behind the bound's value, and the blocks of A and k̃ if they are kept."""
    s = gp.noise**2

    def block(rows: RowBlock):
        A = Li @ rows.masked(gp.kernel(Z, rows.X))
        r = rows.masked(rows.y - gp.mean)
        variances = rows.masked(gp.kernel.diagonal(rows.X))
        sums = RowSums(
            W=A @ A.T,
            w=A @ r,
            a=jnp.sum(A, axis=1),
            rr=r @ r,
            r=jnp.sum(r),
            k=jnp.sum(variances),
        )
        left = _open_variance(A, variances) if tight else None
        if left is not None:
            sums = sums._replace(logs=jnp.sum(jnp.log1p(left / s)), delta=jnp.sum(left / (s * (s + left))))
        return sums, (A, left) if keep else None

    return data.sum_and_keep(block)


def _factorise(gp: GP, Z: Array, data: Dataset, jitter: Jitter, bound: str, keep: bool = False) -> tuple[Factors, Any]:
    L, ok_L = cholesky(jitter.gram(gp.kernel, Z))
    Li = triangular_inverse(L)
    sums, kept = _row_sums(gp, Z, Li, data, bound == "tight", keep)
    s = gp.noise**2
    LB, ok_B = cholesky(jnp.eye(Z.shape[0]) + sums.W / s)
    c = jax.scipy.linalg.solve_triangular(LB, sums.w, lower=True) / s
    return Factors(L, Li, LB, c, sums, s, ok_L & ok_B), kept


def factorise(
    gp: GP, Z: Float[Array, "M D"], data: Dataset, jitter: Jitter = Jitter(), bound: str = "titsias"
) -> Factors:
    """Factors of the bound at hyperparameters `gp` and inducing inputs Z. They differ by two sums over rows alone."""
    return _factorise(gp, Z, data, jitter, check_bound(bound))[0]


def bound_from_factors(factors: Factors, n_rows: int) -> Float[Array, ""]:
    """L(θ, Z), or -inf where a factorisation failed."""
    sums, s = factors.sums, factors.variance
    log_normaliser = -0.5 * n_rows * jnp.log(2.0 * math.pi * s) - log_diagonal_sum(factors.LB)
    fit = -0.5 * sums.rr / s + 0.5 * jnp.sum(factors.c**2)
    trace = -0.5 * (sums.k - jnp.sum(jnp.diagonal(sums.W))) / s
    bound = log_normaliser + fit + (trace if sums.logs is None else -0.5 * sums.logs)
    # `fit` and `trace` are never positive. Rounding, divided by next to no noise, can make them so: reject the point.
    # This holds for the tight bound as well: its k̃ are floored at zero, but wrong by as much.
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
def collapsed_bound(
    gp: GP,
    Z: Float[AnyArray, "M D"],
    data: Dataset,
    jitter: Jitter = Jitter(),
    bound: str = "titsias",
) -> Float[Array, ""]:
    """L(θ, Z) ≤ log p(y | θ), with a closed-form gradient in θ and Z.

    `titsias` is the paper's equation (7), `tight` is never lower. Time N M², memory M² and one block of rows. -inf
    where a factorisation fails, never NaN.
    """
    return _bound(jitter, check_bound(bound), gp, checked_inducing(gp, Z, data), data)


def checked_inducing(gp: GP, Z: AnyArray, data: Dataset) -> Array:
    """Z as a float64 array, after a look at the shapes of Z, the data and the kernel."""
    Z = jnp.asarray(Z, float)
    if Z.ndim != 2 or Z.shape[0] < 1 or Z.shape[1] != data.n_columns:
        raise InputError(f"Z must have shape (M, {data.n_columns}) for this data, but has shape {Z.shape}")
    gp.kernel.check(data.n_columns)
    return Z


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _bound(jitter: Jitter, bound: str, gp: GP, Z: Array, data: Dataset) -> Array:
    return bound_from_factors(factorise(gp, Z, data, jitter, bound), data.n_rows)


def _bound_forward(jitter: Jitter, bound: str, gp: GP, Z: Array, data: Dataset):
    keep = data.can_keep(Z.shape[0])  # A = Li K and k̃, for the gradient's pass
    factors, kept = _factorise(gp, Z, data, jitter, bound, keep)
    value = bound_from_factors(factors, data.n_rows)
    return value, (gp, Z, data, factors, kept, jnp.isfinite(value))


def _bound_backward(jitter: Jitter, bound: str, saved, cotangent):
    """∂L/∂(θ, Z), with B⁻¹ = LB⁻ᵀ LB⁻¹, b = LB⁻ᵀ c and G = I - B⁻¹ - b bᵀ.

    ∂L/∂Kmm = ½ Liᵀ (G - W/s) Li          ∂L/∂K = (Liᵀ G / s) A + (Liᵀ b / s) rᵀ
    ∂L/∂k(xₙ, xₙ) = -1/2s                  ∂L/∂mean = (Σr - bᵀ Σₙ aₙ) / s
    ∂L/∂s = (tr B⁻¹W + bᵀWb + rᵀr + Σk(x, x) - tr W) / 2s² - (cᵀc + N/2) / s

    The tight bound has 1/(s + k̃ₙ) = 1/s - δₙ in place of 1/s wherever a row is weighed by it, Δ = diag(δ):

    ∂L/∂Kmm + ½ Liᵀ A Δ Aᵀ Li              ∂L/∂K - Liᵀ A Δ
    ∂L/∂k(xₙ, xₙ) + ½ δₙ                   ∂L/∂s - (Σk(x, x) - tr W) / 2s² + ½ Σ δₙ
    """
    gp, Z, data, (_, Li, LB, c, sums, s, _), kept, finite = saved
    tight = bound == "tight"
    LBi = triangular_inverse(LB)
    Bi = transposed(LBi) @ LBi
    b = c @ LBi
    G = jnp.eye(Z.shape[0]) - Bi - b[:, None] * b[None, :]
    LiT = transposed(Li)
    P, p = (LiT @ G) / s, (LiT @ b) / s

    def block(rows: RowBlock, kept_block: tuple[Array, Array | None] | None):
        def covariances(kernel, Z):
            return kernel(Z, rows.X), kernel.diagonal(rows.X)

        (K, variances), pull = jax.vjp(covariances, gp.kernel, Z)
        A, left = (Li @ rows.masked(K), None) if kept_block is None else kept_block
        r = rows.masked(rows.y - gp.mean)
        dK = P @ A + p[:, None] * r[None, :]  # zero in padding, as A and r are
        dk = jnp.full(len(r), -0.5) / s
        if not tight:
            return pull((dK, rows.masked(dk))), None
        left = _open_variance(A, rows.masked(variances)) if left is None else left
        delta = left / (s * (s + left))
        A_delta = A * delta[None, :]
        return pull((dK - LiT @ A_delta, rows.masked(dk + 0.5 * delta))), A_delta @ A.T

    from_rows, W_delta = data.sum(block, kept)

    weighed = G - sums.W / s if W_delta is None else G - sums.W / s + W_delta
    dKmm = 0.5 * (LiT @ (weighed @ Li))
    _, pull = jax.vjp(jitter.gram, gp.kernel, Z)
    d_kernel, dZ = jax.tree.map(jnp.add, from_rows, pull(dKmm))

    quadratic = jnp.sum(Bi * sums.W) + b @ sums.W @ b + sums.rr
    ds = 0.5 * quadratic / s**2 - (jnp.sum(c**2) + 0.5 * data.n_rows) / s
    trace = (sums.k - jnp.sum(jnp.diagonal(sums.W))) / s**2
    ds = ds + 0.5 * (trace if sums.delta is None else sums.delta)
    d_mean = (sums.r - b @ sums.a) / s
    gradient = (GP(d_kernel, 2.0 * gp.noise * ds, d_mean), dZ)
    # Where the bound is -inf its gradient is zero: a sampler must see a rejected point, not NaN.
    scaled = jax.tree.map(lambda g: jnp.where(finite, cotangent * g, 0.0), gradient)
    return (*scaled, None)


_bound.defvjp(_bound_forward, _bound_backward)
