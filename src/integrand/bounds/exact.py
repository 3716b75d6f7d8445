"""The exact log marginal likelihood, equation (2) of the paper: N³ time, N² memory."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from integrand.errors import InputError
from integrand.gp import GP, LEAST_TRANSFORMED
from integrand.linalg import LEAST_VARIANCE, AnyArray, cholesky, log_diagonal_sum, lower_gram, triangular_inverse
from integrand.precision import in_float64


class ExactFactors(NamedTuple):
    """K + S = L Lᵀ and alpha = (K + S)⁻¹ (y - mean), with S = σ²I plus what is known of each row's noise."""

    L: Float[Array, "N N"]
    alpha: Float[Array, " N"]
    ok: Bool[Array, ""]


def factorise_exact(
    gp: GP, X: Float[Array, "N D"], y: Float[Array, " N"], noise_variance: Float[Array, "..."] | float = 0.0
) -> ExactFactors:
    """Factor the covariance of the observations; `noise_variance` is the known part of each row's noise."""
    L, ok = cholesky(gp.kernel.gram(X) + (gp.noise**2 + noise_variance) * jnp.eye(X.shape[0]))
    alpha = jax.scipy.linalg.cho_solve((L, True), gp.residuals(y))
    return ExactFactors(L, alpha, ok)


@in_float64
def log_marginal_likelihood(
    gp: GP, X: Float[AnyArray, "N D"], y: Float[AnyArray, " N"], noise_variance: AnyArray | float = 0.0
) -> Float[Array, ""]:
    """log p(y | θ) = -½ rᵀ(K + S)⁻¹r - ½ log |K + S| - N/2 log 2π (the paper's text drops this log).

    S = σ²I, plus the known noise variance of each row. Of a transformed target r = g(y) - mean, and Σ log g'(yₙ) is
    added. No jitter; -inf where the factorisation fails. The gradient is
    the closed form ½ tr((ααᵀ - (K + S)⁻¹) ∂K).
    """
    X, y, v = jnp.asarray(X, float), jnp.asarray(y, float), jnp.asarray(noise_variance, float)
    if X.ndim != 2 or X.shape[0] < 1 or y.shape != X.shape[:1]:
        raise InputError(f"X and y must have shapes (N, D) and (N,), but have {X.shape} and {y.shape}")
    gp.kernel.check(X.shape[1])
    return _log_marginal(gp, X, y, v)


@jax.custom_vjp
def _log_marginal(gp: GP, X: Array, y: Array, v: Array) -> Array:
    return _value(factorise_exact(gp, X, y, v), gp, y, v)


def _value(factors: ExactFactors, gp: GP, y: Array, v: Array) -> Array:
    value = (
        -0.5 * gp.residuals(y) @ factors.alpha - log_diagonal_sum(factors.L) - 0.5 * y.shape[0] * math.log(2 * math.pi)
    )
    usable = True
    if gp.transform is not None:
        value = value + jnp.sum(gp.transform.log_slope(y))
        usable = value > LEAST_TRANSFORMED
    ok = factors.ok & jnp.isfinite(value) & usable & (gp.noise**2 + jnp.min(v) > LEAST_VARIANCE)
    return jnp.where(ok, value, -jnp.inf)


def _forward(gp: GP, X: Array, y: Array, v: Array):
    factors = factorise_exact(gp, X, y, v)
    value = _value(factors, gp, y, v)
    return value, (gp, X, y, factors, jnp.isfinite(value))


def _backward(saved, cotangent):
    gp, X, y, (L, alpha, _), finite = saved
    dK = 0.5 * (alpha[:, None] * alpha[None, :] - lower_gram(triangular_inverse(L)))
    _, pull = jax.vjp(lambda kernel: kernel.gram(X), gp.kernel)
    d_transform = None
    if gp.transform is not None:
        _, pull_transform = jax.vjp(lambda g: (g(y), g.log_slope(y)), gp.transform)
        (d_transform,) = pull_transform((-alpha, jnp.ones_like(y)))
    gradient = GP(pull(dK)[0], 2.0 * gp.noise * jnp.trace(dK), jnp.sum(alpha), d_transform)
    return jax.tree.map(lambda g: jnp.where(finite, cotangent * g, 0.0), gradient), None, None, None


_log_marginal.defvjp(_forward, _backward)
