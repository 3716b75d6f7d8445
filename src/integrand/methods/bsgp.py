"""`bsgp` (Rossi et al. 2021, Sparse Gaussian processes revisited): θ, u and Z drawn together from batches of rows.

    log p(θ) + log N(v; 0, I) + log N(Z; 0, I) + Σₙ E log p(yₙ | f(xₙ)),   u = L v,  Z for standardised inputs

SG-HMC is its only sampler. Inducing points may trade places, so only θ is judged; every draw predicts with its own Z.
"""

import numpy as np

from integrand.infer.metric import Whitening
from integrand.methods.checkpoint import WarmStart
from integrand.methods.density import Density, metric
from integrand.methods.joint_hmc import theta_metric
from integrand.methods.joint_start import joint_start
from integrand.methods.minibatch import minibatch_draws
from integrand.methods.problem import Problem
from integrand.methods.sampling import Sampling
from integrand.posterior.conditional import VariationalConditional
from integrand.posterior.posterior import Posterior
from integrand.targets import JointTarget

# Multiplications that finding how θ and Z curve the density may take; beyond, Z is given a width of SPREAD.
MOST_WORK, SPREAD = 2e12, 0.05


def bsgp(problem: Problem) -> Posterior:
    """Warm start as `joint-hmc`, metric from the Hessian in (φ, Z) with v integrated out, then SG-HMC."""
    target = JointTarget(problem.model, problem.data, problem.jitter)
    with Sampling.of(problem, target.counter, target.threads(problem.n_inducing)) as sampling:
        return _fit(problem, target, sampling)


def _fit(problem: Problem, target: JointTarget, sampling: Sampling) -> Posterior:
    start = sampling.warm_start(lambda: joint_start(problem, target))
    sampling.enter("metric")
    whitening = _metric(problem, target, start)
    chains, phis, Z, v = minibatch_draws(sampling, target, start, whitening, draw_Z=True)
    conditional = VariationalConditional(phis, Z, v, np.zeros((len(v), 0, 0)))
    return sampling.posterior("bsgp", chains, conditional, start.phi, np.array([start.Z, Z.mean(axis=0)]))


def _metric(problem: Problem, target: JointTarget, start: WarmStart) -> Whitening:
    """Whitening of (φ, Z): the Hessian, with log N(Z; 0, I), where v has its mode at each, if that can be afforded."""
    n, M, K = problem.model.n_theta, len(start.Z), problem.model.n_theta + start.Z.size
    sites = target.sites(start.phi, start.Z)
    if 2.0 * K * 8.0 * problem.data.n_rows * M**2 > MOST_WORK:
        of_theta = theta_metric(problem, target, start, sites)
        factor = SPREAD * np.eye(K)
        factor[:n, :n] = of_theta.factor
        return Whitening(np.concatenate([of_theta.centre, start.Z.ravel()]), factor)

    def at(w: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = target.evaluate_with_Z(np.concatenate([w, np.zeros(M)]), sites)
        of_Z = np.concatenate([np.zeros(n), w[n:]])
        return value - 0.5 * float(of_Z @ of_Z), gradient[:K] - of_Z

    return metric(Density(at), [np.concatenate([start.phi, start.Z.ravel()])])
