"""`gpr-latent`: an exact GP with any likelihood; θ and the function values f at the training inputs are drawn together.

Slices of θ with surrogate data, and elliptical slices of f (Murray & Adams 2010; see `infer/latent_slice.py`). Nothing
is approximated but by the jitter; a step takes some factorisations of N x N matrices, so this is for up to about a
thousand rows. Starts and directions come from Laplace's approximation, which the draws do not depend on otherwise.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from integrand.errors import NumericalError
from integrand.infer.chains import Chains, SampledRun
from integrand.infer.latent_slice import LatentGaussian, sample_latent
from integrand.infer.metric import Whitening
from integrand.linalg import Jitter
from integrand.methods.density import Density, metric
from integrand.methods.optimised import exact_warm_start
from integrand.methods.problem import Problem
from integrand.methods.sampling import Sampling
from integrand.model import Model
from integrand.posterior.conditional import VariationalConditional
from integrand.posterior.posterior import Posterior
from integrand.targets.laplace import LaplaceTarget, latent
from integrand.targets.program import density


class LatentSampler(NamedTuple):
    """Draws x = (φ, ν), with f = mean + L ν, and what there is to say of draws when they are made."""

    sample: Callable[..., SampledRun]  # as `Density.own`
    remark: Callable[[Chains, int], str] = lambda chains, parallel: ""


def gpr_latent(problem: Problem) -> Posterior:
    """Climb to the mode of Laplace's approximation, then draw (φ, ν) until φ has converged."""
    return fit_latent(problem, "gpr-latent", slices)


def fit_latent(
    problem: Problem, method: str, sampler: Callable[[Problem, LaplaceTarget, np.ndarray], LatentSampler]
) -> Posterior:
    """Draw (φ, ν) with a sampler that is made at a typical φ, and predict from each draw's f."""
    problem.refuse_many_rows()
    target = LaplaceTarget(problem.model, problem.data, problem.jitter)
    with Sampling.of(problem, target.counter, target.threads) as sampling:
        return _fit(problem, target, sampling, method, sampler)


def _fit(problem: Problem, target: LaplaceTarget, sampling: Sampling, method: str, make) -> Posterior:
    model, n = problem.model, problem.model.n_theta
    smooth = Density(lambda x: density(target.evaluate(x[:n])))
    start = sampling.warm_start(lambda: exact_warm_start(problem, target))
    sampling.enter("metric")
    whitening = metric(smooth, (start.phi, model.start()))
    if not np.isfinite(smooth.at(whitening.centre)[0]):
        raise NumericalError("the likelihood is not finite anywhere: try other priors, or look for extreme values in y")
    sampler = make(problem, target, whitening.centre)
    chains = sampling.final_draws(smooth._replace(own=sampler.sample), whitening)
    chains = sampling.or_one(chains, smooth, np.concatenate([start.phi, target.mode(start.phi)[0]]))
    sampling.enter("conditional")
    drawn = sampling.thinned(chains)
    if remark := sampler.remark(chains, sampling.parallel):
        sampling.notes.append(remark)
    X = np.asarray(target.arrays[0])
    conditional = VariationalConditional(drawn[:, :n], X, drawn[:, n:], np.zeros((len(drawn), 0, 0)))
    return sampling.posterior(method, chains, conditional, start.phi)


def slices(problem: Problem, target: LaplaceTarget, phi: np.ndarray) -> LatentSampler:
    """Surrogate data as precise as y is, at the mode of f at a typical φ; a chain starts at the mode of its own φ."""
    n, (_, W) = problem.model.n_theta, target.mode(phi)
    latent_gaussian = LatentGaussian(*_parts(problem.model, problem.jitter), target.arrays)

    def sample(starts: np.ndarray, whitening: Whitening, **common: Any) -> SampledRun:
        if starts.shape[1] == n:
            starts = np.array([np.concatenate([start, target.mode(start)[0]]) for start in starts])
        return sample_latent(latent_gaussian, W, starts, whitening, **common)

    return LatentSampler(sample)


@functools.cache
def _parts(model: Model, jitter: Jitter):
    """Log prior, mean and root of f, and log likelihood as functions that JAX traces; the same for equal models."""

    def log_prior(phi: Any, data: Any) -> Any:
        return model.log_prior(phi)

    def root(phi: Any, data: Any) -> Any:
        X, y = data
        return latent(phi, X, y, model, jitter)[1]

    def log_likelihood(f: Any, phi: Any, data: Any) -> Any:
        noise = model.gp(model.theta(phi)).noise
        return jnp.sum(model.likelihood.log_prob(data[1], f, noise))

    return log_prior, root, log_likelihood
