"""Leave-one-out residuals of the training rows, in closed form for each draw: what the model says of rows it left out.

Without row i, q*(u) loses one Gaussian factor. With the mean μ and variance c of AᵢᵀV under q*(u), k̃ = k(x, x) - AᵢᵀAᵢ
and σ² = s:

    c₋ = c / (1 - c/s),   μ₋ = (μ - c y/s) / (1 - c/s),   p(y | y₋ᵢ) = N(y; μ₋, c₋ + k̃ + s)

For an exact GP with K + sI = L Lᵀ: μ₋ = y - αᵢ/gᵢ and variance 1/gᵢ, where g is the diagonal of its inverse. θ and Z
stay: the draws are those of all rows.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import solve_triangular
from scipy.special import ndtri

from integrand.likelihoods import Gaussian
from integrand.linalg import Jitter
from integrand.model import Model
from integrand.posterior.conditional import Conditional, ExactConditional, SparseConditional
from integrand.posterior.mixture import GaussianMixture

# Normal scores beyond this are rounding.
_LARGEST_SCORE = 8.0
# A draw whose q*(u) hangs on one row alone cannot be left without it.
_LEAST_LEFT = 1e-9


class Residuals(NamedTuple):
    """Of each row: normal scores of what the mixture over draws says of y, and the mixture's mean and sd."""

    scores: Float[np.ndarray, " n"]  # Φ⁻¹ of F(y): standard normal where the model is right
    mean: Float[np.ndarray, " n"]
    sd: Float[np.ndarray, " n"]


class Marginals(NamedTuple):
    """Of f at each row under each draw: mean, variance from q(u), variance that u leaves open, and that of the noise.

    The noise is one number for each draw, or one for each draw and row where something is known of the rows' noise.
    """

    mean: Float[np.ndarray, "J n"]
    explained: Float[np.ndarray, "J n"]
    open: Float[np.ndarray, "J n"]
    noise: Float[np.ndarray, " J"] | Float[np.ndarray, "J n"]

    @property
    def noise_variances(self) -> Float[np.ndarray, "J _"]:
        """Of each draw, to be broadcast over rows."""
        return self.noise.reshape(len(self.noise), -1)


def marginals_of(
    conditional: Conditional,
    j: int,
    K: Float[np.ndarray, "T T"],
    mean: float,
    jitter: Jitter,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, explained and open variance of draw j at rows; K is the covariance of its inputs and, behind them, them."""
    M = conditional.weights.shape[1]
    A = solve_triangular(np.linalg.cholesky(jitter.added(K[:M, :M])), K[:M, M:], lower=True)
    factor = conditional.factors[j]
    if isinstance(conditional, SparseConditional):
        C = solve_triangular(factor, A, lower=True)
    else:
        C = factor.T @ A if factor.size else np.zeros((1, A.shape[1]))
    left = np.maximum(np.diagonal(K)[M:] - np.sum(A**2, axis=0), 0.0)
    return mean + conditional.weights[j] @ A, np.sum(C**2, axis=0), left


def left_out_sparse(f: Marginals, y: Float[np.ndarray, " n"] | Float[np.ndarray, "J n"]) -> GaussianMixture:
    """The mixture over draws of y at each row, without that row; q(u) has been the best for Gaussian noise.

    A transformed y differs between draws.
    """
    s = f.noise_variances
    left = np.maximum(1.0 - f.explained / s, _LEAST_LEFT)
    mean = (f.mean - f.explained * y / s) / left
    return GaussianMixture(mean, f.explained / left + f.open + s)


def left_out_exact(
    conditional: ExactConditional,
    draws: Int[np.ndarray, " J"],
    y: Float[np.ndarray, " N"] | Float[np.ndarray, "J N"],
) -> GaussianMixture:
    """The same for an exact GP, from its factors."""
    means, variances = [], []
    each = np.broadcast_to(y, (len(draws), np.shape(y)[-1]))
    for j, own in zip(draws, each, strict=True):
        inverse = solve_triangular(conditional.factors[j], np.eye(len(own)), lower=True)
        variances.append(1.0 / np.sum(inverse**2, axis=0))
        means.append(own - conditional.weights[j] * variances[-1])
    return GaussianMixture(np.array(means), np.array(variances))


def residuals_of(mixture: GaussianMixture, y: Float[np.ndarray, " n"] | Float[np.ndarray, "J n"]) -> Residuals:
    """Normal scores of y, or of its transform by each draw; mean and sd are then those of the transformed y."""
    if np.ndim(y) == 2:
        differences = GaussianMixture(mixture.means - y, mixture.variances)
        return Residuals(_scores(differences.pit(np.zeros(np.shape(y)[1]))), mixture.mean, mixture.sd)
    return Residuals(_scores(mixture.pit(y)), mixture.mean, mixture.sd)


def weighted_residuals(model: Model, f: Marginals, y: Float[np.ndarray, " n"], rng: np.random.Generator) -> Residuals:
    """For draws of v, or another likelihood: draws weighted by 1/p(y | draw), which leaves the row out.

    The F(y) of a whole number is a uniform value between F(y - 1) and F(y).
    """
    likelihood, variance = model.likelihood, f.explained + f.open
    noise = np.sqrt(f.noise_variances)
    log_p = np.asarray(likelihood.marginal_log_prob(y, f.mean, variance, noise))
    weights = np.exp(np.min(log_p, axis=0) - log_p)
    weights = weights / weights.sum(axis=0)
    pit = np.sum(weights * likelihood.marginal_cdf(y, f.mean, variance, noise), axis=0)
    if likelihood.discrete:
        below = np.where(
            y > 0, np.sum(weights * likelihood.marginal_cdf(y - 1.0, f.mean, variance, noise), axis=0), 0.0
        )
        pit = below + rng.uniform(size=len(y)) * (pit - below)
    of_y = np.asarray(likelihood.marginal_mean(f.mean, variance, noise))
    mean = np.sum(weights * of_y, axis=0)
    spread = np.asarray(likelihood.marginal_variance(f.mean, variance, noise)) + (of_y - mean) ** 2
    return Residuals(_scores(pit), mean, np.sqrt(np.sum(weights * spread, axis=0)))


def is_best_for_gaussian_noise(model: Model, conditional: Conditional) -> bool:
    """Whether q(u) is the one of the closed form."""
    return isinstance(model.likelihood, Gaussian) and (
        isinstance(conditional, SparseConditional) or conditional.factors.size > 0
    )


def _scores(pit: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    return np.clip(ndtri(np.clip(pit, 1e-16, 1.0 - 1e-16)), -_LARGEST_SCORE, _LARGEST_SCORE)
