"""The log density of θ and u together, without collapsing u, for any likelihood.

Hensman et al. (2015), MCMC for variationally sparse Gaussian processes.

With Kmm = k(Z, Z) + jitter = L Lᵀ, u = mean + L v and A = L⁻¹ k(Z, X), whose columns are aₙ:

    f(xₙ) | u, θ ~ N(μₙ, τₙ),  μₙ = mean + aₙᵀ v,  τₙ = k(xₙ, xₙ) - aₙᵀ aₙ
    ℓ(θ, v, Z) = Σₙ E log p(yₙ | f(xₙ)),  and log p(θ) + log N(v; 0, I) + ℓ is the density that `joint-hmc` draws from.

Given θ, v is nearly Gaussian, but where and how narrow it is depends on θ, and a sampler that moves θ has to carry v
along. *Sites* take its place: a Gaussian in f takes the place of row n, with precision ωₙ/σ² and natural mean λₙ/σ²
(surrogate data, Murray & Adams 2010; σ is the noise, 1 where there is none), so that with Ω = diag(ω)

    B = I + A Ω Aᵀ/σ² = LB LBᵀ,  m = B⁻¹ A (λ - ω mean)/σ²,  v = m + LB⁻ᵀ ε

(Where a part of a row's noise is known, σ² is σ² plus that part.)
and ε is close to a standard normal at every θ. Gaussian noise has ω = 1 and λ = y, nothing is approximate, and
log N(v; 0, I) + ℓ + log |∂v/∂ε| is the collapsed bound plus log N(ε; 0, I).
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from integrand.bounds.collapsed import checked_inducing
from integrand.data.dataset import Dataset, RowBlock
from integrand.errors import InputError
from integrand.gp import GP
from integrand.likelihoods import Likelihood
from integrand.linalg import (
    LEAST_VARIANCE,
    AnyArray,
    Jitter,
    cholesky,
    from_whitened,
    log_diagonal_sum,
    transposed,
    triangular_inverse,
)
from integrand.precision import in_float64


class Sites(NamedTuple):
    """Gaussians in f in the place of the rows, in the data's blocks: log-density λₙ f/σ² - ½ ωₙ f²/σ²."""

    linear: Float[AnyArray, "blocks n"]  # λ
    precision: Float[AnyArray, "blocks n"]  # ω


def gaussian_sites(data: Dataset) -> Sites:
    """The sites of Gaussian noise: λ = y and ω = 1."""
    return Sites(data.held.y, jnp.ones_like(data.held.y))


@in_float64
def expected_log_likelihood(
    likelihood: Likelihood,
    gp: GP,
    Z: Float[AnyArray, "M D"],
    v: Float[AnyArray, " M"],
    data: Dataset,
    jitter: Jitter = Jitter(),
) -> Float[Array, ""]:
    """ℓ(θ, v, Z) = Σₙ E[log p(yₙ | fₙ)] under p(fₙ | u = mean + L v, θ).

    Time N M², memory M² and one block of rows. -inf with a gradient of zero where a factorisation fails, never NaN.
    """
    return _finite(_expected, likelihood, jitter, (gp, *_checked(gp, Z, v, data)), data)


@in_float64
def centred_log_density(
    likelihood: Likelihood,
    gp: GP,
    Z: Float[AnyArray, "M D"],
    epsilon: Float[AnyArray, " M"],
    sites: Sites,
    data: Dataset,
    jitter: Jitter = Jitter(),
) -> Float[Array, ""]:
    """log N(v; 0, I) + ℓ(θ, v, Z) - Σ log diag LB, the log density of ε and the data given θ, at v = m + LB⁻ᵀ ε.

    At ε = 0, with sites from `refined_sites`, it is Laplace's approximation to log p(y | θ) less M/2 log 2π.
    """
    return _finite(_centred, likelihood, jitter, (gp, *_checked(gp, Z, epsilon, data), sites), data)


@in_float64
def v_given_theta(
    gp: GP, Z: Float[AnyArray, "M D"], sites: Sites, data: Dataset, jitter: Jitter = Jitter()
) -> tuple[Float[Array, " M"], Float[Array, "M M"]]:
    """m and LB of v | θ ~ N(m, (LB LBᵀ)⁻¹) under the sites: exact for Gaussian noise and its own."""
    return _moments(gp, _inducing(gp, jnp.asarray(Z, float), jitter), sites, data, keep=False)[:2]


@in_float64
def refined_sites(
    likelihood: Likelihood,
    gp: GP,
    Z: Float[AnyArray, "M D"],
    v: Float[AnyArray, " M"],
    data: Dataset,
    jitter: Jitter = Jitter(),
) -> Sites:
    """Sites with the slope and curvature that ℓ has in each μₙ at v: m is then where a step of Newton's goes from v.

    A likelihood that curves upwards there (Student-t at an outlier) gets a precision of zero.
    """
    Z, v = _checked(gp, Z, v, data)
    inducing = _inducing(gp, Z, jitter)

    def block(rows: RowBlock):
        mean, variance = _marginals(gp, v, *_explained(gp, inducing, rows))

        def slope(mean):
            noise = _noise(gp, rows)
            return jax.grad(lambda m: jnp.sum(likelihood.expected_log_prob(rows.y, m, variance, noise)))(mean)

        g, curvature = jax.jvp(slope, (mean,), (jnp.ones_like(mean),))
        omega = jnp.maximum(-curvature, 0.0)
        s = rows.variance(gp.noise)
        return 0.0, Sites((omega * mean + g) * s, omega * s)

    return data.sum_and_keep(block)[1]


@in_float64
def carried_values(
    gp: GP,
    Z: Float[AnyArray, "M D"],
    epsilon: Float[AnyArray, " M"],
    sites: Sites,
    data: Dataset,
    jitter: Jitter = Jitter(),
) -> tuple[Float[Array, " M"], Float[Array, ""]]:
    """v = m + LB⁻ᵀ ε and log |∂v/∂ε| = -Σ log diag LB. Any sites will do, also those of other rows."""
    inducing = _inducing(gp, jnp.asarray(Z, float), jitter)
    m, LB, ok, _ = _moments(gp, inducing, sites, data, keep=False)
    v = m + solve_triangular(LB, jnp.asarray(epsilon, float), lower=True, trans=1)
    return v, jnp.where(inducing.ok & ok, -log_diagonal_sum(LB), -jnp.inf)


@in_float64
def mean_given_v(
    gp: GP, Z: Float[AnyArray, "M D"], v: Float[AnyArray, " M"], data: Dataset, jitter: Jitter = Jitter()
) -> Float[Array, "blocks n"]:
    """μₙ of each row, in the data's blocks."""
    Z, v = _checked(gp, Z, v, data)
    inducing = _inducing(gp, Z, jitter)

    def block(rows: RowBlock):
        return 0.0, _marginals(gp, v, *_explained(gp, inducing, rows))[0]

    return data.sum_and_keep(block)[1]


def _checked(gp: GP, Z: AnyArray, v: AnyArray, data: Dataset) -> tuple[Array, Array]:
    Z, v = checked_inducing(gp, Z, data), jnp.asarray(v, float)
    if v.shape != Z.shape[:1]:
        raise InputError(f"v must have shape ({Z.shape[0]},), one number for each inducing point, not {v.shape}")
    return Z, v


class _Inducing(NamedTuple):
    """Z with Kmm and L⁻¹."""

    Z: Array
    Kmm: Array
    Li: Array
    ok: Array


def _inducing(gp: GP, Z: Array, jitter: Jitter) -> _Inducing:
    Kmm = jitter.gram(gp.kernel, Z)
    L, ok = cholesky(jax.lax.stop_gradient(Kmm))
    return _Inducing(Z, Kmm, triangular_inverse(L), ok)


def _explained(gp: GP, inducing: _Inducing, rows: RowBlock) -> tuple[Array, Array]:
    """A and k(x, x) of a block of rows."""
    return _whitened(inducing.Kmm, inducing.Li, gp.kernel(inducing.Z, rows.X)), gp.kernel.diagonal(rows.X)


def _marginals(gp: GP, v: Array, A: Array, variances: Array) -> tuple[Array, Array]:
    """μ and τ of a block of rows."""
    left = variances - jnp.sum(A**2, axis=0)
    return gp.mean + v @ A, jnp.where(left > 0.0, left, 0.0)


def _expected(likelihood: Likelihood, jitter: Jitter, gp: GP, Z: Array, v: Array, data: Dataset) -> Array:
    inducing = _inducing(gp, Z, jitter)

    def block(rows: RowBlock):
        return _block(likelihood, gp, v, rows, *_explained(gp, inducing, rows))

    return jnp.where(inducing.ok, data.sum(_sparing(block, Z, data)), -jnp.inf)


def _block(likelihood: Likelihood, gp: GP, v: Array, rows: RowBlock, A: Array, variances: Array) -> Array:
    mean, variance = _marginals(gp, v, A, variances)
    return jnp.sum(rows.masked(likelihood.expected_log_prob(rows.y, mean, variance, _noise(gp, rows))))


def _noise(gp: GP, rows: RowBlock) -> Any:
    """The standard deviation of each row's noise: σ, or √(σ² + vₙ)."""
    return gp.noise if rows.noise_variance is None else jnp.sqrt(rows.variance(gp.noise))


def _centred(
    likelihood: Likelihood, jitter: Jitter, gp: GP, Z: Array, epsilon: Array, sites: Sites, data: Dataset
) -> Array:
    inducing = _inducing(gp, Z, jitter)
    m, LB, ok, saved_blocks = _moments(gp, inducing, sites, data, keep=data.can_keep(Z.shape[0]))
    v = m + solve_triangular(LB, epsilon, lower=True, trans=1)

    def block(rows: RowBlock, saved_blocks: tuple[Array, Array] | None):
        return _block(
            likelihood, gp, v, rows, *(_explained(gp, inducing, rows) if saved_blocks is None else saved_blocks)
        )

    normal = -0.5 * v @ v - 0.5 * len(v) * math.log(2.0 * math.pi)
    value = normal + data.sum(_sparing(block, Z, data), saved_blocks) - log_diagonal_sum(LB)
    return jnp.where(inducing.ok & ok, value, -jnp.inf)


def _moments(gp: GP, inducing: _Inducing, sites: Sites, data: Dataset, keep: bool):
    """m and LB, whether they exist, and A and k(x, x) of all blocks if they are to be saved."""

    def block(rows: RowBlock, site: Sites):
        A, variances = _explained(gp, inducing, rows)
        s, omega = rows.variance(gp.noise), rows.masked(site.precision)  # pyright: ignore[reportArgumentType]
        linear = (rows.masked(site.linear) - omega * gp.mean) / s  # pyright: ignore[reportArgumentType]
        root = jnp.sqrt(omega) / jnp.sqrt(s)  # ω may be zero, where a root has no slope, but it depends on no parameter
        return (_outer(A * root[None, :]), A @ linear), (A, variances) if keep else None

    (W, w), saved_blocks = data.sum_and_keep(_sparing(block, inducing.Z, data), sites)
    LB, ok = cholesky(jnp.eye(len(w)) + W)
    c = solve_triangular(LB, w, lower=True)
    return solve_triangular(LB, c, lower=True, trans=1), LB, ok, saved_blocks


def _sparing(block: Any, Z: Array, data: Dataset) -> Any:
    """`block`, made again for the gradient where what it leaves behind would not fit."""
    return block if data.can_keep(Z.shape[0]) else jax.checkpoint(block)


# --- gradients that autodiff would take more products, or slower ones, for


@jax.custom_vjp
def _whitened(Kmm: Array, Li: Array, K: Array) -> Array:
    """A = L⁻¹ K as a function of Kmm = L Lᵀ and K; Li is L⁻¹, made beforehand."""
    return Li @ K


def _whitened_backward(saved, dA: Array):
    """∂/∂K = L⁻ᵀ ∂A, and ∂/∂Kmm."""
    Li, A = saved
    LiT = transposed(Li)
    return from_whitened(Li, LiT, dA @ A.T), None, LiT @ dA


@jax.custom_vjp
def _outer(S: Array) -> Array:
    """S Sᵀ."""
    return S @ S.T


_whitened.defvjp(lambda Kmm, Li, K: (A := Li @ K, (Li, A)), _whitened_backward)
_outer.defvjp(lambda S: (S @ S.T, S), lambda S, d: ((d + d.T) @ S,))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _finite(function: Any, likelihood: Likelihood, jitter: Jitter, point: tuple, data: Dataset) -> Array:
    """The function's value where it is finite; elsewhere -inf with a gradient of zero: a rejected point, not NaN."""
    return _finite_forward(function, likelihood, jitter, point, data)[0]


def _finite_forward(function: Any, likelihood: Likelihood, jitter: Jitter, point: tuple, data: Dataset):
    value, pull = jax.vjp(lambda *p: function(likelihood, jitter, *p, data), *point)
    usable = jnp.isfinite(value)
    if not data.has_noise_variance:
        usable &= point[0].noise ** 2 > LEAST_VARIANCE
    return jnp.where(usable, value, -jnp.inf), (pull, usable)


def _finite_backward(function: Any, likelihood: Likelihood, jitter: Jitter, saved, cotangent):
    pull, usable = saved
    return jax.tree.map(lambda g: jnp.where(usable, g, 0.0), pull(cotangent)), None


_finite.defvjp(_finite_forward, _finite_backward)
