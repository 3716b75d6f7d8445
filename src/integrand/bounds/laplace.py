"""Laplace's approximation of a GP with any likelihood: a Gaussian at the mode of p(f | y, θ), and log q(y | θ).

Everything is written in whitened values, f = mean + L ν with L Lᵀ = K + jitter and ν ~ N(0, I), where the matrix to
factor is B = I + LᵀWL: its eigenvalues are those of the I + W½KW½ of Rasmussen & Williams (2006), section 3.4, so it
is as well conditioned, but it needs no root of W and gives draws of ν by one triangular solve.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from integrand.gp import GP
from integrand.linalg import Jitter, cholesky, log_diagonal_sum

# log p(y | f) of each row.
RowLikelihood = Callable[[Any], Any]

MOST_STEPS = 50
# Lengths of a step: 1, ½, ..., this many at a time, down to the shortest. An exponential overshoots by far.
_AT_A_TIME, _SHORTEST = 10, 2.0**-120
# A step that gains less than this many nats, for each nat of the value, is the last.
_TOLERANCE = 1e-10


class LatentPrior(NamedTuple):
    """f = mean + L ν at the rows of X."""

    mean: Float[Array, ""]
    L: Float[Array, "N N"]

    def f(self, nu: Float[Array, " N"]) -> Float[Array, " N"]:
        """Function values from whitened ones."""
        return self.mean + self.L @ nu


def latent_prior(gp: GP, X: Float[Array, "N D"], jitter: Jitter) -> LatentPrior:
    """Factor the prior covariance at X; L is NaN where that fails."""
    L, _ = cholesky(jitter.gram(gp.kernel, X))
    return LatentPrior(jnp.asarray(gp.mean), L)


class Laplace(NamedTuple):
    """q(ν) = N(mode, B⁻¹) with B = I + LᵀWL = LB LBᵀ, and log q(y | θ) (R&W equation (3.32))."""

    mode: Float[Array, " N"]
    W: Float[Array, " N"]
    LB: Float[Array, "N N"]
    log_evidence: Float[Array, ""]


def curvature(rows: RowLikelihood, f: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """∂ log p(y | f)/∂f and W = -∂²/∂f², which is set to zero where it is negative.

    A likelihood that is not log-concave (Student-t, for outliers) has such rows: q is as wide as the prior there.
    """
    slope, second = _two_derivatives(rows, f)
    return slope, jnp.maximum(-second, 0.0)


def _two_derivatives(rows: RowLikelihood, f: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """First and second derivative in f."""

    def slope(f):
        return jax.grad(lambda f: jnp.sum(rows(f)))(f)

    # Each row depends on its own f alone, so the gradient of the sum of slopes is the diagonal of the Hessian.
    return slope(f), jax.grad(lambda f: jnp.sum(slope(f)))(f)


def factor(prior: LatentPrior, W: Float[Array, " N"]) -> Float[Array, "N N"]:
    """Lower Cholesky factor of B = I + LᵀWL."""
    B = jnp.eye(W.shape[0], dtype=W.dtype) + prior.L.T @ (W[:, None] * prior.L)
    return cholesky(B)[0]


def laplace(rows: RowLikelihood, prior: LatentPrior, guess: Float[Array, " N"] | None = None) -> Laplace:
    """The mode by Newton's method (R&W Algorithm 3.1), each step cut until it gains; then the Gaussian there.

    The first step expands the likelihood around f = `guess`, which need not be likely under the prior: the mode at
    another θ will do, or the likelihood's own `guess`. Without one, it is the prior's mean.

    Gradients pass through the last step only: a Newton step from the mode ν̂ has the derivative
    B⁻¹ ∂(Lᵀ∂log p(y | f)/∂f)/∂θ, which is that of ν̂ itself, and none in where it started. This B is the Hessian with
    the negative curvatures in it, which at a mode is positive definite all the same.
    """
    stopped = jax.lax.stop_gradient
    fixed, fixed_rows = stopped(prior), _without_slope(rows, prior.L[0])

    def objective(nu, f):
        value = jnp.sum(fixed_rows(f)) - 0.5 * nu @ nu
        return jnp.where(jnp.isfinite(value), value, -jnp.inf)

    lengths = 0.5 ** jnp.arange(float(_AT_A_TIME))

    def step(carry):
        nu, value, _, count = carry
        f = fixed.f(nu)
        slope, W = curvature(fixed_rows, f)
        move = cho_solve((factor(fixed, W), True), fixed.L.T @ slope - nu)
        df = fixed.L @ move

        def shorter(state):
            _, _, longest = state
            values = jax.vmap(lambda t: objective(nu + t * move, f + t * df))(longest * lengths)
            best = jnp.argmax(values)
            return values[best], longest * lengths[best], longest * 0.5**_AT_A_TIME

        none = (jnp.full_like(value, -jnp.inf), jnp.zeros_like(value), jnp.ones_like(value))
        new_value, length, _ = jax.lax.while_loop(lambda t: ~(t[0] > value) & (t[2] > _SHORTEST), shorter, none)
        gain = new_value - value
        better = gain > 0.0
        nu, value = jnp.where(better, nu + length * move, nu), jnp.where(better, new_value, value)
        return nu, value, gain > _TOLERANCE * (1.0 + jnp.abs(value)), count + 1

    start = jnp.zeros_like(fixed.L[0])
    value = objective(start, fixed.f(start))
    if guess is not None:
        slope, W = curvature(fixed_rows, guess)
        first_step = cho_solve((factor(fixed, W), True), fixed.L.T @ (slope + W * (guess - fixed.mean)))
        proposal = objective(first_step, fixed.f(first_step))
        start, value = jnp.where(proposal > value, first_step, start), jnp.maximum(proposal, value)
    first = (start, value, jnp.asarray(True), jnp.asarray(0))
    nu, value, going, _ = jax.lax.while_loop(lambda carry: carry[2] & (carry[3] < MOST_STEPS), step, first)
    nu = stopped(nu)
    slope, second = _two_derivatives(rows, prior.f(nu))
    LB = factor(fixed, -stopped(second))
    LB = jnp.where(jnp.isfinite(LB[-1, -1]), LB, factor(fixed, jnp.maximum(-stopped(second), 0.0)))
    move = cho_solve((LB, True), prior.L.T @ slope - nu)
    proposal = stopped(nu + move)
    lower = going | ~(objective(proposal, fixed.f(proposal)) >= value)  # away from a mode a whole step may go too far
    nu = nu + jnp.where(lower, move - stopped(move), move)
    f = prior.f(nu)
    W = curvature(rows, f)[1]
    LB = factor(prior, W)
    value = jnp.sum(rows(f)) - 0.5 * nu @ nu - log_diagonal_sum(LB)
    return Laplace(nu, W, LB, jnp.where(jnp.isfinite(value), value, -jnp.inf))


def _without_slope(rows: RowLikelihood, f: Float[Array, " N"]) -> RowLikelihood:
    """`rows` with no derivative in what they hold, such as the noise: loops that carry one compile slowly."""
    function, held = jax.closure_convert(rows, f)
    held = jax.lax.stop_gradient(held)
    return lambda f: function(f, *held)


class Weighted(NamedTuple):
    """Draws of ν from q, and the log of p(y | f) p(ν) / q(ν) of each: their mean estimates p(y | θ) without bias."""

    nu: Float[Array, "K N"]
    log_weights: Float[Array, " K"]

    @property
    def log_estimate(self) -> Float[Array, ""]:
        """Log of the mean weight."""
        return jax.nn.logsumexp(self.log_weights) - jnp.log(float(self.log_weights.shape[0]))


def importance_draws(
    key: jax.Array, rows: RowLikelihood, prior: LatentPrior, approximation: Laplace, n_draws: int
) -> Weighted:
    """`n_draws` from q(ν), in pairs on opposite sides of the mode, with their weights.

    Each of a pair is a draw from q, so the mean weight stays unbiased; what q misses by being symmetric cancels.
    With ν = mode + LB⁻ᵀε: log p(y | f) - ½ νᵀν + ½ εᵀε - Σ log diag LB, in which the (2π)^(N/2) have cancelled.
    """
    mode, _, LB, _ = approximation
    half = jax.random.normal(key, (-(-n_draws // 2), mode.shape[0]), mode.dtype)
    epsilon = jnp.concatenate([half, -half])[:n_draws]
    nu = mode + solve_triangular(LB, epsilon.T, lower=True, trans=1).T
    fits = jax.vmap(lambda nu: jnp.sum(rows(prior.f(nu))))(nu)
    log_weights = fits - 0.5 * jnp.sum(nu**2, axis=1) + 0.5 * jnp.sum(epsilon**2, axis=1) - log_diagonal_sum(LB)
    return Weighted(nu, jnp.where(jnp.isfinite(log_weights), log_weights, -jnp.inf))
