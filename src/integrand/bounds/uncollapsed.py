"""The uncollapsed bound: q(u) is kept, so that the rows enter through a sum of one term each.

Hensman et al. (2013), Gaussian processes for big data, for Gaussian noise; Hensman et al. (2015), Scalable variational
Gaussian process classification, for any likelihood. With Kmm = k(Z, Z) + jitter = L Lᵀ, u = mean + L v,
q(v) = N(m, S Sᵀ) and A = L⁻¹ k(Z, X), whose columns are aₙ:

    q(fₙ) = N(μₙ, τₙ),  μₙ = mean + aₙᵀ m,  τₙ = k(xₙ, xₙ) - aₙᵀ aₙ + |Sᵀ aₙ|²
    L(θ, Z, q) = Σₙ E_q(fₙ) log p(yₙ | fₙ) - KL(q(v) ‖ N(0, I)) ≤ log p(y | θ)

A sum over a batch of B rows, times N/B, estimates the first term without bias. With Gaussian noise the best q is that
of the collapsed bound, and the two bounds are then equal.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from integrand.bounds.collapsed import Factors, checked_inducing, inducing_posterior
from integrand.data.dataset import Dataset, RowBlock
from integrand.errors import InputError
from integrand.gp import GP
from integrand.likelihoods import Likelihood
from integrand.linalg import LEAST_VARIANCE, AnyArray, Jitter, cholesky, from_whitened, transposed, triangular_inverse
from integrand.precision import in_float64

# Integrals over f take the root of its variance, which has no slope at zero (a linear kernel at x = 0).
_LEAST_LATENT_VARIANCE = 1e-30


class FactoredGaussian(NamedTuple):
    """q(v) = N(m, S Sᵀ) over the whitened inducing values; S is lower triangular, its diagonal not zero."""

    m: Float[AnyArray, " M"]
    S: Float[AnyArray, "M M"]

    def in_own_coordinates(self, d: "FactoredGaussian") -> "FactoredGaussian":
        """A gradient in m and S as one in the coordinates of q itself, m + S μ and S T, at μ = 0 and T = I.

        In them the bound is about equally curved in all directions, however much the data say of each: Lin, Nielsen,
        Khan & Schmidt (2021), Tractable structured natural-gradient descent using local parameterizations.
        """
        ST = self.S.T
        return FactoredGaussian(ST @ d.m, jnp.tril(ST @ d.S))

    def stepped(self, step: "FactoredGaussian") -> "FactoredGaussian":
        """q after a step in its own coordinates; those on the diagonal are logarithms, so that S stays a factor."""
        T = jnp.tril(step.S, -1) + jnp.diag(jnp.exp(jnp.diagonal(step.S)))
        return FactoredGaussian(self.m + self.S @ step.m, self.S @ T)


def kl_from_prior(q: FactoredGaussian) -> Float[Array, ""]:
    """KL(q(v) ‖ N(0, I)) = ½ (mᵀm + tr S Sᵀ - M) - Σ log |Sᵢᵢ|."""
    quadratic = jnp.sum(jnp.square(q.m)) + jnp.sum(jnp.square(q.S)) - q.m.shape[0]
    return 0.5 * quadratic - jnp.sum(jnp.log(jnp.abs(jnp.diagonal(q.S))))


def optimal_inducing(factors: Factors) -> FactoredGaussian:
    """The best q(v) for Gaussian noise, from the factors of the collapsed bound: N(B⁻¹ w / s, B⁻¹), B = LB LBᵀ.

    S is lower triangular if S⁻ᵀ is an *upper* triangular factor of B: the lower one of B in reversed order, reversed.
    """
    m, LB = inducing_posterior(factors)
    reversed_factor, _ = cholesky((LB @ LB.T)[::-1, ::-1])
    return FactoredGaussian(m, triangular_inverse(reversed_factor)[::-1, ::-1].T)


class _Saved(NamedTuple):
    """What the gradient needs of the value's pass."""

    Li: Float[Array, "M M"]
    blocks: tuple[Float[Array, "b M n"], Float[Array, "b M n"]] | None  # A and C = SᵀA of each block
    finite: Bool[Array, ""]


def _latent(gp: GP, q: FactoredGaussian, A: Array, C: Array, variances: Array) -> tuple[Array, Array, Array]:
    """μ and τ of each row, and what is left of k(x, x) given u, which rounding may make negative."""
    left = variances - jnp.sum(A**2, axis=0)
    # Floored at zero, then a sum of squares is added: a variance cannot be negative.
    return gp.mean + q.m @ A, jnp.maximum(left, 0.0) + jnp.sum(C**2, axis=0), left


def _of_rows(likelihood: Likelihood, rows: RowBlock, mean: Array, variance: Array, noise: Any) -> Array:
    variance = jnp.maximum(variance, _LEAST_LATENT_VARIANCE)
    return jnp.sum(rows.masked(likelihood.expected_log_prob(rows.y, mean, variance, noise)))


def _forward(likelihood: Likelihood, jitter: Jitter, gp: GP, Z: Array, q: FactoredGaussian, data: Dataset):
    keep = data.can_keep(2 * Z.shape[0])  # A and SᵀA, for the gradient's pass
    L, ok = cholesky(jitter.gram(gp.kernel, Z))
    Li, ST = triangular_inverse(L), transposed(jnp.asarray(q.S))

    def block(rows: RowBlock):
        A = Li @ gp.kernel(Z, rows.X)
        C = ST @ A
        mean, variance, _ = _latent(gp, q, A, C, gp.kernel.diagonal(rows.X))
        return _of_rows(likelihood, rows, mean, variance, gp.noise), (A, C) if keep else None

    total, blocks = data.sum_and_keep(block)
    finite = ok & jnp.isfinite(total) & (gp.noise**2 > LEAST_VARIANCE)
    return jnp.where(finite, total, -jnp.inf), (gp, Z, q, data, _Saved(Li, blocks, finite))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _expected(likelihood: Likelihood, jitter: Jitter, gp: GP, Z: Array, q: FactoredGaussian, data: Dataset) -> Array:
    """Σₙ E_q(fₙ) log p(yₙ | fₙ)."""
    return _forward(likelihood, jitter, gp, Z, q, data)[0]


def _backward(likelihood: Likelihood, jitter: Jitter, saved, cotangent):
    """With C = SᵀA, gₙ = ∂/∂μₙ and hₙ = ∂/∂τₙ of the likelihood's term, H = diag(h) and G = ∂/∂A Aᵀ:

    ∂/∂A = m gᵀ - 2 A H + 2 S C H          ∂/∂k(Z, X) = L⁻ᵀ ∂/∂A          ∂/∂m = A g          ∂/∂S = 2 A H Cᵀ
    ∂/∂Kmm = -½ L⁻ᵀ (Φ + Φᵀ) L⁻¹,  Φ = lower triangle of G with its diagonal halved
    """
    gp, Z, q, data, (Li, blocks, finite) = saved
    LiT, ST = transposed(Li), transposed(q.S)

    def block(rows: RowBlock, saved_block: tuple[Array, Array] | None):
        (K, variances), pull = jax.vjp(lambda kernel, Z: (kernel(Z, rows.X), kernel.diagonal(rows.X)), gp.kernel, Z)
        A = Li @ K if saved_block is None else saved_block[0]
        C = ST @ A if saved_block is None else saved_block[1]
        mean, variance, left = _latent(gp, q, A, C, variances)
        g, h, d_noise = jax.grad(partial(_of_rows, likelihood, rows), (0, 1, 2))(mean, variance, gp.noise)
        h_left = jnp.where(left > 0.0, h, 0.0)
        dA = q.m[:, None] * g[None, :] - 2.0 * A * h_left[None, :] + 2.0 * (q.S @ (C * h[None, :]))
        dS = 2.0 * (A * h[None, :]) @ C.T
        return pull((LiT @ dA, h_left)), dA @ A.T, FactoredGaussian(A @ g, dS), jnp.sum(g), d_noise

    from_rows, G, dq, d_mean, d_noise = data.sum(block, blocks)
    dKmm = from_whitened(Li, LiT, G)
    _, pull = jax.vjp(jitter.gram, gp.kernel, Z)
    d_kernel, dZ = jax.tree.map(jnp.add, from_rows, pull(dKmm))
    gradient = (GP(d_kernel, d_noise, d_mean), dZ, dq)
    # Where the value is -inf its gradient is zero, not NaN.
    scaled = jax.tree.map(lambda g: jnp.where(finite, cotangent * g, 0.0), gradient)
    return (*scaled, None)


_expected.defvjp(_forward, _backward)


def batch_log_likelihood(
    likelihood: Likelihood,
    gp: GP,
    Z: Float[Array, "M D"],
    q: FactoredGaussian,
    X: Float[Array, "B D"],
    y: Float[Array, " B"],
    n_rows: int,
    jitter: Jitter = Jitter(),
) -> Float[Array, ""]:
    """N/B Σ over a batch of E_q(fₙ) log p(yₙ | fₙ): the sum over all `n_rows` rows estimated from B of them.

    -inf with a gradient of zero where a factorisation failed, never NaN.
    """
    batch = Dataset(RowBlock(X[None], y[None], None), len(y))
    total = _expected(likelihood, jitter, gp, Z, q, batch)
    return total * (n_rows / len(y))  # pyright: ignore[reportOperatorIssue]


@in_float64
def uncollapsed_bound(
    likelihood: Likelihood,
    gp: GP,
    Z: Float[AnyArray, "M D"],
    q: FactoredGaussian,
    data: Dataset,
    jitter: Jitter = Jitter(),
) -> Float[Array, ""]:
    """L(θ, Z, q) = Σₙ E_q(fₙ) log p(yₙ | fₙ) - KL(q(v) ‖ N(0, I)) ≤ log p(y | θ), over all rows.

    Time N M², memory M² and one block of rows. -inf where a factorisation failed, never NaN.
    """
    Z, q = checked_inducing(gp, Z, data), FactoredGaussian(*(jnp.asarray(a, float) for a in q))
    if q.m.shape != Z.shape[:1] or q.S.shape != (*Z.shape[:1], *Z.shape[:1]):
        raise InputError(f"q has shapes {q.m.shape} and {q.S.shape}, which do not fit {Z.shape[0]} inducing points")
    total = _expected(likelihood, jitter, gp, Z, q, data)
    return total - kl_from_prior(q)  # pyright: ignore[reportOperatorIssue]
