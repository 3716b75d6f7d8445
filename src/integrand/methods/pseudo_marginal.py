"""`pseudo-marginal`: an exact GP with any likelihood; θ by Metropolis with unbiased estimates of p(y | θ).

Filippone & Girolami (2014): importance sampling from Laplace's approximation q(f | y, θ) estimates

    p(y | θ) = E_q[ p(y | f) p(f | θ) / q(f | y, θ) ]

without bias, and Metropolis with such estimates draws from p(θ | y) itself (see `infer/pseudo_marginal.py`). One of the
f that made the estimate, in proportion to its weight, predicts. The larger the variance of log p̂, the longer the
chain stands where it happened to be lucky: it is measured and told. Laplace's q suits log-concave likelihoods. A
Student-t is not one: negative curvatures are taken as zero, and where f has other modes the chain, though exact, stands
still for long at times; `gpr-latent` does not.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from integrand.bounds.laplace import importance_draws, laplace
from integrand.infer.chains import Chains, SampledRun
from integrand.infer.metric import Whitening
from integrand.infer.pseudo_marginal import Estimated, fresh_estimates, sample_pseudo_marginal
from integrand.linalg import Jitter
from integrand.methods.gpr_latent import LatentSampler, fit_latent
from integrand.methods.problem import Problem
from integrand.model import Model
from integrand.posterior.posterior import Posterior
from integrand.targets.laplace import LaplaceTarget, latent

# Estimates from which the noise is measured: at so many draws of θ, so many each.
POINTS, REPEATS = 32, 16
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

    def remark(chains: Chains, parallel: int) -> str:
        x, stood = chains.x.reshape(-1, chains.x.shape[2]), chains.log_density.ravel()
        some = np.linspace(0, len(x) - 1, min(POINTS, len(x))).astype(int)
        seed = [problem.settings.seed, 5]
        fresh = fresh_estimates(estimated, size, x[some, :n], repeats=REPEATS, seed=seed, parallel=parallel)
        return told(stood[some], fresh, K)

    return LatentSampler(sample, remark)


def told(stood: Float[np.ndarray, " S"], fresh: Float[np.ndarray, "S R"], n_draws: int) -> str:
    """What estimates that the chains stood on, and fresh ones at the same θ, say of the noise.

    If log p̂ is Gaussian with variance s², those that were stood on are s²/2 too high on average. They are higher
    where q misses a tail: then fresh estimates agree with each other until one of them meets it.
    """
    variance = float(np.mean(np.var(fresh, axis=1, ddof=1)))
    luck = float(np.mean(stood - logsumexp(fresh, axis=1) + math.log(fresh.shape[1])))
    sentence = f"With {n_draws} importance draws log p̂(y | θ) has variance {variance:.2g}"
    if max(variance, 2.0 * luck) > LARGE_VARIANCE:
        return (
            f"{sentence}, and is {luck:.2g} too high where chains stood, so they stood there too long: raise "
            "importance_draws, or use gpr-latent."
        )
    return f"{sentence}."


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
