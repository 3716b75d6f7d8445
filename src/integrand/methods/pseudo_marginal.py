"""`pseudo-marginal`: an exact GP with any likelihood; θ by Metropolis with unbiased estimates of p(y | θ).

Filippone & Girolami (2014): importance sampling from Laplace's approximation q(f | y, θ) estimates

    p(y | θ) = E_q[ p(y | f) p(f | θ) / q(f | y, θ) ]

without bias, and Metropolis with such estimates draws from p(θ | y) itself (see `infer/pseudo_marginal.py`). One of the
f that made the estimate, in proportion to its weight, predicts. The larger the variance of log p̂, the longer the
chain stands where it happened to be lucky: it is measured and told. Laplace's q suits log-concave likelihoods; a
Student-t is not one, and negative curvatures are then taken as zero, which costs variance but no exactness.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from integrand.bounds.laplace import importance_draws, laplace
from integrand.infer.metric import Whitening
from integrand.infer.nuts import SampledRun
from integrand.infer.pseudo_marginal import Estimated, estimate_variance, sample_pseudo_marginal
from integrand.linalg import Jitter
from integrand.methods.gpr_latent import LatentSampler, fit_latent
from integrand.methods.problem import Problem
from integrand.model import Model
from integrand.posterior.posterior import Posterior
from integrand.targets.laplace import LaplaceTarget, latent

# Estimates from which the variance is measured: at so many draws of θ, so many each.
POINTS, REPEATS = 8, 32
# Where the variance of log p̂ is about 1, more importance draws and longer chains are as dear (Pitt et al. 2012).
LARGE_VARIANCE = 1.5


def pseudo_marginal(problem: Problem) -> Posterior:
    """Climb to the mode of Laplace's approximation, then draw (φ, ν) until φ has converged."""
    return fit_latent(problem, "pseudo-marginal", metropolis)


def metropolis(problem: Problem, target: LaplaceTarget, phi: np.ndarray) -> LatentSampler:
    """Random walks in φ; f at the mode of a typical φ is where Newton's method starts for every other."""
    n, K = problem.model.n_theta, problem.settings.importance_draws
    estimated = Estimated(*_parts(problem.model, problem.jitter, K), (*target.arrays, target.f_mode(phi)))
    size = problem.data.n_rows

    def sample(starts: np.ndarray, whitening: Whitening, **common: Any) -> SampledRun:
        return sample_pseudo_marginal(estimated, size, starts[:, :n], whitening, **common)

    def remark(drawn: np.ndarray, parallel: int) -> str:
        some = drawn[:: max(1, len(drawn) // POINTS), :n]
        variance = estimate_variance(
            estimated, size, some, repeats=REPEATS, seed=[problem.settings.seed, 5], parallel=parallel
        )
        sentence = f"The variance of log p̂(y | θ) is {variance:.2g} with {K} importance draws"
        if variance > LARGE_VARIANCE:
            return f"{sentence}: chains stand still too often. Raise importance_draws, or use gpr-latent."
        return f"{sentence}."

    return LatentSampler(sample, remark)


@functools.cache
def _parts(model: Model, jitter: Jitter, n_draws: int):
    """Log prior and log estimate as functions that JAX traces; the same for equal models."""

    def log_prior(phi: Any, data: Any) -> Any:
        return model.log_prior(phi)

    def log_estimate(key: Any, phi: Any, data: Any) -> Any:
        X, y, guess = data
        key_draws, key_one = jax.random.split(key)
        rows, prior = latent(phi, X, y, model, jitter)
        weighted = importance_draws(key_draws, rows, prior, laplace(rows, prior, guess), n_draws)
        one = jax.random.categorical(key_one, weighted.log_weights)
        return weighted.log_estimate, jnp.take(weighted.nu, one, axis=0)

    return log_prior, log_estimate
