"""`fbgp`, the paper's FBGP: θ and Z drawn together from log p(θ) + log p(Z) + L(θ, Z), Z ~ N(0, 1) when standardised.

The coordinates are whitened by the Hessian at the mode over (φ, Z), because some directions of Z are stiff and others
are as wide as the prior. The M D entries of Z are nuisances of the chains: inducing points may trade places, so only θ
is checked for convergence. Every draw predicts with its own Z.
"""

import numpy as np

from integrand.compilation import available_cores, one_blas_thread
from integrand.infer.base import Target, Vector
from integrand.infer.coordinates import coordinates_at_mode
from integrand.methods.problem import FitContext, Problem
from integrand.methods.sampling import draw_until_converged, one_draw, sampler_for
from integrand.methods.warm_start import warm_start
from integrand.posterior.conditional import sparse_conditional
from integrand.posterior.posterior import Posterior
from integrand.targets.collapsed import CollapsedTarget

# Hundreds of coordinates, far from Gaussian: the step size needs time.
MIN_WARMUP = 150


class ThetaAndInducing(Target):
    """log p(φ) + log N(Z; 0, I) + L(θ, Z) over x = (φ, Z), without the normaliser of p(Z)."""

    def __init__(self, bound: CollapsedTarget, shape: tuple[int, int]):
        self.bound, self.shape, self.counter = bound, shape, bound.counter
        self.n_theta = bound.model.n_theta
        self.dimension = self.n_theta + shape[0] * shape[1]
        self.parallel = available_cores() if bound.threads(shape[0]) == 1 else 1

    def value_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Log density and gradient."""
        phi, Z = self.split(x)
        e = self.bound.evaluate(phi, Z)
        return e.log_density - 0.5 * float(np.sum(Z**2)), np.concatenate([e.gradient, (e.dZ - Z).ravel()])

    def split(self, x: Vector) -> tuple[Vector, np.ndarray]:
        """φ and Z."""
        return x[: self.n_theta], x[self.n_theta :].reshape(self.shape)


def fbgp(problem: Problem, context: FitContext) -> Posterior:
    """Warm start as Algorithm 1, then NUTS over (φ, Z)."""
    bound = CollapsedTarget(problem.model, problem.data, problem.jitter)
    with one_blas_thread(bound.threads(problem.n_inducing) == 1):
        start = context.warm_start(lambda: warm_start(problem, bound, to_mode=False))
        target = ThetaAndInducing(bound, start.Z.shape)
        x = np.concatenate([start.phi, start.Z.ravel()])
        context.phase("metric")
        coordinates = coordinates_at_mode(target.value_and_gradient, (x,), steps=problem.settings.warm_steps)
        sampler = sampler_for(problem.settings, target)
        chains = draw_until_converged(context, target, sampler, coordinates, MIN_WARMUP) or one_draw(x, target)
        context.phase("conditional")
        draws = context.thinned(chains)
        phis, Z = draws[:, : target.n_theta], draws[:, target.n_theta :].reshape(-1, *start.Z.shape)
        conditional = sparse_conditional(phis, Z, bound.inducing_posterior)
        Z_path = [start.Z, Z.mean(axis=0)]
        return context.sampled(chains, conditional, optimum=start.phi, counter=bound.counter, Z_path=Z_path)
