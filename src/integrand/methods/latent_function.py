"""`gpr-latent` and `pseudo-marginal`: an exact GP with any likelihood; θ and the function values f are drawn together.

Nothing is approximated but by the jitter. A draw takes some factorisations of N x N matrices, so both are for up to
about a thousand rows. Laplace's approximation gives starts and coordinates, on which the draws do not depend otherwise.

`gpr-latent` takes slices of θ with surrogate data, and elliptical slices of f (Murray & Adams 2010; see
`infer/latent_slice.py`).

`pseudo-marginal` is Metropolis over θ with unbiased estimates of p(y | θ) (Filippone & Girolami 2014; see
`infer/pseudo_marginal.py`), by importance sampling from Laplace's approximation q(f | y, θ):

    p(y | θ) = E_q[ p(y | f) p(f | θ) / q(f | y, θ) ]

One of the f of an estimate, taken in proportion to its weight, predicts. The larger the variance of log p̂, the longer a
chain stays where an estimate was too high: the notes say how large it is. Laplace's q suits log-concave likelihoods,
which a Student-t is not: negative curvatures are taken as zero. Where f has other modes the chain is still exact, but
stays at one point for long; `gpr-latent` does not.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from integrand.bounds.laplace import importance_draws, laplace
from integrand.compilation import one_blas_thread
from integrand.errors import NumericalError
from integrand.infer.base import Chains, Sampler
from integrand.infer.coordinates import coordinates_at_mode
from integrand.infer.latent_slice import LatentGaussian, LatentSlice
from integrand.infer.pseudo_marginal import Estimated, PseudoMarginal
from integrand.linalg import Jitter
from integrand.methods.problem import FitContext, Problem
from integrand.methods.sampling import draw_until_converged
from integrand.methods.warm_start import exact_warm_start
from integrand.model import Model
from integrand.posterior.conditional import VariationalConditional
from integrand.posterior.posterior import Posterior
from integrand.targets.laplace import LaplaceTarget, latent

# The variance of log p̂ is measured at this many draws of θ, with this many fresh estimates for each.
CHECKED_DRAWS, FRESH_ESTIMATES = 32, 16
# With a variance of about 1, more importance draws and longer chains cost the same (Pitt et al. 2012).
LARGE_VARIANCE = 1.5

S = TypeVar("S", bound=Sampler)
# make(problem, target, phi) -> a sampler of (φ, ν), with f = mean + L ν, for a density whose typical φ is this.
MakeSampler = Callable[[Problem, LaplaceTarget, np.ndarray], S]


def gpr_latent(problem: Problem, context: FitContext) -> Posterior:
    """Slices of φ and f, until φ has converged."""
    return _fit(problem, context, latent_slice)


def pseudo_marginal(problem: Problem, context: FitContext) -> Posterior:
    """Metropolis over φ with estimates of p(y | θ), until φ has converged."""
    return _fit(problem, context, random_walk, variance_note)


def _fit(
    problem: Problem,
    context: FitContext,
    make_sampler: MakeSampler[S],
    note: Callable[[FitContext, LaplaceTarget, S, Chains], str] | None = None,
) -> Posterior:
    """Maximise Laplace's approximation, draw (φ, ν), and predict from the f of each draw."""
    problem.refuse_many_rows()
    model, n = problem.model, problem.model.n_theta
    target = LaplaceTarget(model, problem.data, problem.jitter)
    with one_blas_thread(target.threads == 1):
        start = context.warm_start(lambda: exact_warm_start(problem, target))
        context.phase("metric")
        coordinates = coordinates_at_mode(target.value_and_gradient, (start.phi, model.start()))
        if not np.isfinite(target.value_and_gradient(coordinates.centre)[0]):
            raise NumericalError(
                "the likelihood is not finite anywhere: try other priors, or look for extreme values in y"
            )
        sampler = make_sampler(problem, target, coordinates.centre)
        chains = draw_until_converged(context, target, sampler, coordinates)
        if not chains:
            x = np.concatenate([start.phi, target.mode(start.phi)[0]])
            chains = Chains.of_one_point(x, target.value_and_gradient(start.phi)[0])
        context.phase("conditional")
        x = context.thinned(chains)
        if note is not None:
            context.notes.append(note(context, target, sampler, chains))
        X = np.asarray(target.arrays[0])
        conditional = VariationalConditional(x[:, :n], X, x[:, n:], np.zeros((len(x), 0, 0)))
        return context.sampled(chains, conditional, optimum=start.phi, counter=target.counter)


# ---- gpr-latent


def latent_slice(problem: Problem, target: LaplaceTarget, phi: Float[np.ndarray, " P"]) -> LatentSlice:
    """Surrogate data as precise as y is at the mode of f at φ; a chain starts at the mode of f at its own φ."""
    model = LatentGaussian(*_latent_parts(problem.model, problem.jitter), target.arrays)
    return LatentSlice(model, target.mode(phi)[1], first_latent=lambda phi: target.mode(phi)[0])


@functools.cache
def _latent_parts(model: Model, jitter: Jitter):
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


# ---- pseudo-marginal


def random_walk(problem: Problem, target: LaplaceTarget, phi: Float[np.ndarray, " P"]) -> PseudoMarginal:
    """Random walks in φ; Newton's method for f starts from the mode at this φ."""
    parts = _estimate_parts(problem.model, problem.jitter, problem.settings.importance_draws)
    return PseudoMarginal(Estimated(*parts, (*target.arrays, target.f_mode(phi))), problem.data.n_rows)


def variance_note(context: FitContext, target: LaplaceTarget, sampler: PseudoMarginal, chains: Chains) -> str:
    """The note on the variance of log p̂, from fresh estimates at some of the draws."""
    x, log_density = chains.x.reshape(-1, chains.x.shape[2]), chains.log_density.ravel()
    some = np.linspace(0, len(x) - 1, min(CHECKED_DRAWS, len(x))).astype(int)
    plan = context.plan((5,), target, warmup=0, draws=0)
    fresh = sampler.fresh_estimates(x[some, : target.n_theta], FRESH_ESTIMATES, plan)
    return describe_variance(log_density[some], fresh, context.settings.importance_draws)


def describe_variance(recorded: Float[np.ndarray, " S"], fresh: Float[np.ndarray, "S R"], n_draws: int) -> str:
    """The variance of log p̂, from the estimates that chains recorded and fresh ones at the same θ.

    If log p̂ is Gaussian with variance s², recorded estimates are s²/2 too high on average. They are higher still if q
    misses a tail: fresh estimates then agree with each other until one of them is from that tail.
    """
    variance = float(np.mean(np.var(fresh, axis=1, ddof=1)))
    excess = float(np.mean(recorded - logsumexp(fresh, axis=1) + math.log(fresh.shape[1])))
    sentence = f"With {n_draws} importance draws log p̂(y | θ) has variance {variance:.2g}"
    if max(variance, 2.0 * excess) > LARGE_VARIANCE:
        return (
            f"{sentence}, and is {excess:.2g} too high where chains stood, so they stood there too long: raise "
            "importance_draws, or use gpr-latent."
        )
    return f"{sentence}."


@functools.cache
def _estimate_parts(model: Model, jitter: Jitter, n_draws: int):
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
