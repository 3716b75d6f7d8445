"""`fbgp`, the paper's FBGP: θ and Z drawn together from log p(θ) + log p(Z) + L(θ, Z), Z ~ N(0, 1) when standardised.

The M D entries of Z are nuisances of the chains: inducing points may trade places, so only θ is
judged. Every draw predicts with its own Z.
"""

import numpy as np

from integrand.infer.metric import Whitening
from integrand.infer.threads import available_cores, one_blas_thread
from integrand.methods.optimised import warm_start
from integrand.methods.problem import Problem
from integrand.methods.sampling import Density, Sampling
from integrand.posterior.conditional import sparse_conditional
from integrand.posterior.posterior import Posterior
from integrand.targets import CollapsedTarget, density

# Hundreds of coordinates whose scales are not known beforehand: nutpie's diagonal metric needs time to learn them.
LEAST_TUNE = 300
# A chain starts this far from the warm start, in prior standard deviations of Z.
SPREAD = 0.3


def fbgp(problem: Problem) -> Posterior:
    """Warm start as Algorithm 1, then NUTS over (φ, Z)."""
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)
    small = target.threads(problem.n_inducing) == 1
    with one_blas_thread(small):
        return _fit(problem, target, Sampling(problem, target.counter, available_cores() if small else 1))


def joint_density(target: CollapsedTarget, n_theta: int, shape: tuple[int, int]) -> Density:
    """log p(φ) + log N(Z; 0, I) + L(θ, Z) over x = (φ, Z), without the normaliser of p(Z)."""

    def at(x: np.ndarray) -> tuple[float, np.ndarray]:
        Z = x[n_theta:].reshape(shape)
        e = target.evaluate(x[:n_theta], Z)
        return e.log_density - 0.5 * float(np.sum(Z**2)), np.concatenate([e.gradient, (e.dZ - Z).ravel()])

    return Density(at)


def _fit(problem: Problem, target: CollapsedTarget, sampling: Sampling) -> Posterior:
    model, n = problem.model, problem.model.n_theta
    start = sampling.warm_start(lambda: warm_start(problem, target, to_mode=False))
    joint = joint_density(target, n, start.Z.shape)
    sampling.enter("metric")
    at_Z = Density(lambda phi: density(target.evaluate(phi, start.Z)))
    theta_part = sampling.metric(at_Z, (start.phi, model.start()))
    factor = SPREAD * np.eye(n + start.Z.size)
    factor[:n, :n] = theta_part.factor
    whitening = Whitening(_with(theta_part.centre, start.Z), factor)
    sampling.least_tune = LEAST_TUNE
    chains = sampling.or_one(sampling.final_draws(joint, whitening), joint, _with(start.phi, start.Z))
    sampling.enter("conditional")
    drawn = sampling.thinned(chains)
    Z = drawn[:, n:].reshape(-1, *start.Z.shape)
    conditional = sparse_conditional(model, drawn[:, :n], Z, problem.data, problem.jitter)
    return sampling.posterior("fbgp", chains, conditional, start.phi, np.array([start.Z, Z.mean(axis=0)]))


def _with(phi: np.ndarray, Z: np.ndarray) -> np.ndarray:
    return np.concatenate([phi, Z.ravel()])
