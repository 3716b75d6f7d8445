"""The collapsed variational bounds of sparse GP regression, factored once.

`titsias` is that of Titsias (2009), the paper's equation (7), and `tight` that of Titsias (2025).

With K = k(Z, X), Kmm = k(Z, Z) + jitter = L Lᵀ, Li = L⁻¹ and residuals r = y - mean. The noise of row n has variance
sₙ = σ², or σ² + vₙ where a part vₙ of it is known; S = diag(s):

    A = Li K,  W = A S⁻¹ Aᵀ,  w = A S⁻¹ r,  B = I + W = LB LBᵀ,  c = LB⁻¹ w
    L(θ, Z) = -½ Σ log 2πsₙ - Σ log diag LB - ½ rᵀS⁻¹r + ½ cᵀc - ½ Σ k(xₙ, xₙ)/sₙ + ½ tr W

The last two terms are -½ Σ k̃ₙ/sₙ, with k̃ₙ = k(xₙ, xₙ) - aₙᵀaₙ ≥ 0 and aₙ the columns of A. The tight bound has
-½ Σ log(1 + k̃ₙ/sₙ) in their place. It is never lower, and it has the same q*(u).

Of a transformed target the residuals are r = g(y) - mean, and Σ log g'(yₙ) is added to L.

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
from integrand.gp import GP, LEAST_TRANSFORMED, check_bound
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
    """Everything the bound needs to know about the rows of the data; each row counts 1/sₙ."""

    W: Float[Array, "M M"]  # A S⁻¹ Aᵀ
    w: Float[Array, " M"]  # A S⁻¹ r
    a: Float[Array, " M"]  # Σ aₙ/sₙ (for the gradient of a constant mean)
    rr: Float[Array, ""]  # rᵀS⁻¹r
    r: Float[Array, ""]  # Σ rₙ/sₙ
    k: Float[Array, ""]  # Σ k(xₙ, xₙ)/sₙ
    log_s: Float[Array, ""]  # Σ log sₙ
    logs: Float[Array, ""] | None = None  # Σ log(1 + k̃ₙ/sₙ), for the tight bound alone
    delta: Float[Array, ""] | None = None  # Σ δₙ, δ = k̃ / s(s + k̃) = 1/s - 1/(s + k̃): for its gradient
    slopes: Float[Array, ""] | None = None  # Σ log g'(yₙ), for a transformed target alone


class Factors(NamedTuple):
    """The bound's factors at one θ and Z; the optimal q(u), the predictor and the upper bound use them too."""

    L: Float[Array, "M M"]
    Li: Float[Array, "M M"]
    LB: Float[Array, "M M"]
    c: Float[Array, " M"]
    sums: RowSums
    ok: Bool[Array, ""]  # both factorisations exist


def _open_variance(A: Array, variances: Array) -> Array:
    """k̃ₙ, what the inducing variables leave open of each f(xₙ); rounding may have taken it below zero."""
    return jnp.maximum(variances - jnp.sum(A**2, axis=0), 0.0)


def _row_sums(gp: GP, Z: Array, Li: Array, data: Dataset, tight: bool, keep: bool) -> tuple[RowSums, Any]:
    """The one pass over the rows behind the bound's value, and the blocks of A and k̃ if they are kept."""

    def block(rows: RowBlock):
        A = Li @ rows.masked(gp.kernel(Z, rows.X))
        r, k = rows.masked(gp.residuals(rows.y)), rows.masked(gp.kernel.diagonal(rows.X))
        s = rows.variance(gp.noise)
        if data.has_noise_variance:
            As, rs, log_s = A / s, r / s, jnp.sum(rows.masked(jnp.log(s)))
            sums = RowSums(As @ A.T, A @ rs, jnp.sum(As, axis=1), r @ rs, jnp.sum(rs), jnp.sum(k / s), log_s)
        else:  # divided by s below, once for all rows
            sums = RowSums(A @ A.T, A @ r, jnp.sum(A, axis=1), r @ r, jnp.sum(r), jnp.sum(k), jnp.zeros(()))
        left = _open_variance(A, k) if tight else None
        if left is not None:
            sums = sums._replace(logs=jnp.sum(jnp.log1p(left / s)), delta=jnp.sum(left / (s * (s + left))))
        if gp.transform is not None:
            sums = sums._replace(slopes=jnp.sum(rows.masked(gp.transform.log_slope(rows.y))))
        return sums, (A, left) if keep else None

    sums, kept = data.sum_and_keep(block)
    if not data.has_noise_variance:
        s = gp.noise**2
        W, w, a, rr, r, k = (total / s for total in sums[:6])
        sums = RowSums(W, w, a, rr, r, k, data.n_rows * jnp.log(s), *sums[7:])
    return sums, kept


def _factorise(gp: GP, Z: Array, data: Dataset, jitter: Jitter, bound: str, keep: bool = False) -> tuple[Factors, Any]:
    L, ok_L = cholesky(jitter.gram(gp.kernel, Z))
    Li = triangular_inverse(L)
    sums, kept = _row_sums(gp, Z, Li, data, bound == "tight", keep)
    LB, ok_B = cholesky(jnp.eye(Z.shape[0]) + sums.W)
    c = jax.scipy.linalg.solve_triangular(LB, sums.w, lower=True)
    return Factors(L, Li, LB, c, sums, ok_L & ok_B), kept


def factorise(
    gp: GP, Z: Float[Array, "M D"], data: Dataset, jitter: Jitter = Jitter(), bound: str = "titsias"
) -> Factors:
    """Factors of the bound at hyperparameters `gp` and inducing inputs Z. They differ by two sums over rows alone."""
    return _factorise(gp, Z, data, jitter, check_bound(bound))[0]


def bound_from_factors(factors: Factors, n_rows: int) -> Float[Array, ""]:
    """L(θ, Z), or -inf where a factorisation failed."""
    sums = factors.sums
    log_normaliser = -0.5 * (n_rows * math.log(2.0 * math.pi) + sums.log_s) - log_diagonal_sum(factors.LB)
    fit = -0.5 * sums.rr + 0.5 * jnp.sum(factors.c**2)
    trace = -0.5 * (sums.k - jnp.sum(jnp.diagonal(sums.W)))
    bound = log_normaliser + fit + (trace if sums.logs is None else -0.5 * sums.logs)
    usable = True
    if sums.slopes is not None:
        bound = bound + sums.slopes
        usable = bound > LEAST_TRANSFORMED
    # `fit` and `trace` are never positive. Rounding, divided by next to no noise, can make them so: reject the point.
    # This holds for the tight bound as well: its k̃ are floored at zero, but wrong by as much.
    rounded_away = (fit > _ROUNDING) | (trace > _ROUNDING)
    noisy = sums.log_s > n_rows * math.log(LEAST_VARIANCE)
    ok = factors.ok & jnp.isfinite(bound) & noisy & ~rounded_away & usable
    return jnp.where(ok, bound, -jnp.inf)


class InducingPosterior(NamedTuple):
    """q*(u) = N(L m, L S Lᵀ) in whitened coordinates: m = B⁻¹ w and S = B⁻¹ = (LB LBᵀ)⁻¹.

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


def _transform_gradient(gp: GP, rows: RowBlock, d_residuals: Array) -> Any:
    """From ∂L/∂g(yₙ) to the parameters of g, of which L has Σ log g'(yₙ) as well; None without a transform."""
    if gp.transform is None:
        return None
    _, pull = jax.vjp(lambda g: (g(rows.y), g.log_slope(rows.y)), gp.transform)
    return pull((d_residuals, rows.masked(jnp.ones_like(rows.y))))[0]


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

    ∂L/∂Kmm = ½ Liᵀ (G - W) Li             ∂L/∂K = Liᵀ (G A + b rᵀ) S⁻¹
    ∂L/∂k(xₙ, xₙ) = -1/2sₙ                 ∂L/∂mean = Σ (rₙ - bᵀaₙ)/sₙ
    ∂L/∂sₙ = (aₙᵀB⁻¹aₙ + (rₙ - bᵀaₙ)² + k̃ₙ) / 2sₙ² - 1/2sₙ, and ∂L/∂σ² is the sum of these

    The tight bound has 1/(sₙ + k̃ₙ) = 1/sₙ - δₙ in place of 1/sₙ wherever a row is weighed by it, Δ = diag(δ):

    ∂L/∂Kmm + ½ Liᵀ A Δ Aᵀ Li              ∂L/∂K - Liᵀ A Δ
    ∂L/∂k(xₙ, xₙ) + ½ δₙ                   ∂L/∂sₙ - k̃ₙ/2sₙ² + ½ δₙ

    With a transform ∂L/∂g(yₙ) = -(rₙ - bᵀaₙ)/sₙ and ∂L/∂ log g'(yₙ) = 1 go on to its parameters.

    Where all sₙ are σ², G/s is formed once, and ∂L/∂σ² comes from the sums that are there already.
    """
    gp, Z, data, (_, Li, LB, c, sums, _), kept, finite = saved
    tight, s = bound == "tight", gp.noise**2
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
        r, k = rows.masked(gp.residuals(rows.y)), rows.masked(variances)
        sn = rows.variance(gp.noise)
        weight, ds = rows.masked(jnp.ones(len(r)) / sn), None  # zero in padding, as A and r are
        d_transform = _transform_gradient(gp, rows, weight * (b @ A - r))
        if data.has_noise_variance:
            T = G @ A + b[:, None] * r[None, :]
            dK = LiT @ (T * weight)
            squares = jnp.sum(A * (A - T), axis=0) + r * (r - b @ A)  # aₙᵀB⁻¹aₙ + (rₙ - bᵀaₙ)²
            trace = 0.0 if tight else weight**2 * (k - jnp.sum(A**2, axis=0))
            ds = 0.5 * jnp.sum(weight * (weight * squares - 1.0) + trace)
        else:
            dK = P @ A + p[:, None] * r[None, :]
        if not tight:
            return pull((dK, -0.5 * weight)), None, ds, d_transform
        left = _open_variance(A, k) if left is None else left
        delta = left / (sn * (sn + left))
        A_delta = A * delta[None, :]
        return pull((dK - LiT @ A_delta, 0.5 * (delta - weight))), A_delta @ A.T, ds, d_transform

    from_rows, W_delta, ds, d_transform = data.sum(block, kept)

    weighed = G - sums.W if W_delta is None else G - sums.W + W_delta
    dKmm = 0.5 * (LiT @ (weighed @ Li))
    _, pull = jax.vjp(jitter.gram, gp.kernel, Z)
    d_kernel, dZ = jax.tree.map(jnp.add, from_rows, pull(dKmm))

    trace = 0.0
    if ds is None:
        squares = jnp.sum(Bi * sums.W) + b @ sums.W @ b + sums.rr
        ds = (0.5 * squares - jnp.sum(c**2) - 0.5 * data.n_rows) / s
        trace = (sums.k - jnp.sum(jnp.diagonal(sums.W))) / s
    ds = ds + 0.5 * (trace if sums.delta is None else sums.delta)
    d_mean = sums.r - b @ sums.a
    gradient = (GP(d_kernel, 2.0 * gp.noise * ds, d_mean, d_transform), dZ)
    # Where the bound is -inf its gradient is zero: a sampler must see a rejected point, not NaN.
    scaled = jax.tree.map(lambda g: jnp.where(finite, cotangent * g, 0.0), gradient)
    return (*scaled, None)


_bound.defvjp(_bound_forward, _bound_backward)
