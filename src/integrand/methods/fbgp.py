"""`fbgp`, the paper's FBGP: θ and Z drawn together from log p(θ) + log p(Z) + L(θ, Z), Z ~ N(0, 1) when standardised.

The metric is the Hessian at the mode over (φ, Z), because some directions of Z are stiff and others are as wide as
the prior. The M D entries of Z are nuisances of the chains: inducing points may trade places, so only θ is
judged. Every draw predicts with its own Z.
"""

import numpy as np

from integrand.methods.density import Density, metric
from integrand.methods.optimised import warm_start
from integrand.methods.problem import Problem
from integrand.methods.sampling import Sampling
from integrand.posterior.conditional import sparse_conditional
from integrand.posterior.posterior import Posterior
from integrand.targets import CollapsedTarget

# Hundreds of coordinates, far from Gaussian: the step size needs time.
LEAST_TUNE = 150


def fbgp(problem: Problem) -> Posterior:
    """Warm start as Algorithm 1, then NUTS over (φ, Z)."""
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)
    with Sampling.of(problem, target.counter, target.threads(problem.n_inducing)) as sampling:
        return _fit(problem, target, sampling)


def joint_density(target: CollapsedTarget, n_theta: int, shape: tuple[int, int]) -> Density:
    """log p(φ) + log N(Z; 0, I) + L(θ, Z) over x = (φ, Z), without the normaliser of p(Z)."""

    def at(x: np.ndarray) -> tuple[float, np.ndarray]:
        Z = x[n_theta:].reshape(shape)
        e = target.evaluate(x[:n_theta], Z)
        return e.log_density - 0.5 * float(np.sum(Z**2)), np.concatenate([e.gradient, (e.dZ - Z).ravel()])

    return Density(at)


def _fit(problem: Problem, target: CollapsedTarget, sampling: Sampling) -> Posterior:
    settings, n = problem.settings, problem.model.n_theta
    start = sampling.warm_start(lambda: warm_start(problem, target, to_mode=False), *sampling.loading())
    joint = joint_density(target, n, start.Z.shape)
    sampling.enter("metric")
    whitening = metric(joint, (_with(start.phi, start.Z),), steps=settings.warm_steps)
    sampling.least_tune = LEAST_TUNE
    chains = sampling.or_one(sampling.final_draws(joint, whitening), joint, _with(start.phi, start.Z))
    sampling.enter("conditional")
    drawn = sampling.thinned(chains)
    Z = drawn[:, n:].reshape(-1, *start.Z.shape)
    conditional = sparse_conditional(drawn[:, :n], Z, target.factored)
    return sampling.posterior("fbgp", chains, conditional, start.phi, np.array([start.Z, Z.mean(axis=0)]))


def _with(phi: np.ndarray, Z: np.ndarray) -> np.ndarray:
    return np.concatenate([phi, Z.ravel()])
