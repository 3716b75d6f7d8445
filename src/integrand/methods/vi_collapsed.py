"""`vi-collapsed` and `gpr-vi`: a Gaussian q(φ) fitted to the density that `sgpr-hmc` (or `gpr-hmc`) draws from.

    ELBO(q, Z) = E_q(φ)[L(θ, Z) + log p(φ)] + H[q]

with u integrated out (the paper's doubly collapsed bound is the best that any q could reach) and Z climbed together
with q. Predictions mix over draws of q.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from integrand.infer.diagnostics import Finding, Verdict, convergence, e_bfmi
from integrand.infer.nuts import Chains
from integrand.infer.threads import available_cores, one_blas_thread
from integrand.infer.variational import GaussianFit, fit_gaussian
from integrand.methods.gpr_hmc import most_factors
from integrand.methods.optimised import exact_warm_start, warm_start
from integrand.methods.problem import Problem
from integrand.methods.sampling import Density, Sampling
from integrand.posterior.conditional import Conditional, exact_conditional, sparse_conditional
from integrand.posterior.posterior import Posterior
from integrand.targets import CollapsedTarget, Evaluation, ExactTarget, density

# Beyond this the importance ratios have no reliable mean: q misses much of the posterior (Vehtari et al. 2024).
LARGEST_PARETO_K = 0.7


def vi_collapsed(problem: Problem) -> Posterior:
    """q(φ) and Z maximise the bound together, from the warm start of Algorithm 1."""
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)
    small = target.threads(problem.n_inducing) == 1
    with one_blas_thread(small):
        sampling = Sampling(problem, target.counter, available_cores() if small else 1)
        start = sampling.warm_start(lambda: warm_start(problem, target))

        def evaluate(phi: np.ndarray, nuisance: np.ndarray) -> Evaluation:
            return target.evaluate(phi, nuisance.reshape(start.Z.shape))

        fitted, chains = _fit(problem, sampling, evaluate, start.phi, start.Z.ravel())
        Z = fitted.nuisance.reshape(start.Z.shape)
        sampling.enter("conditional")
        conditional = sparse_conditional(problem.model, sampling.thinned(chains), Z, problem.data, problem.jitter)
        path = np.array([start.Z, Z])
        return _posterior("vi-collapsed", problem, sampling, fitted, chains, conditional, start.phi, path)


def gpr_vi(problem: Problem) -> Posterior:
    """The same over the exact GP."""
    problem.refuse_many_rows()
    target = ExactTarget(problem.model, problem.data)
    with one_blas_thread(target.threads == 1):
        sampling = Sampling(problem, target.counter, available_cores() if target.threads == 1 else 1)
        start = sampling.warm_start(lambda: exact_warm_start(problem, target))
        fitted, chains = _fit(problem, sampling, lambda phi, _: target.evaluate(phi), start.phi, np.zeros(0))
        sampling.enter("conditional")
        drawn = sampling.thinned(chains, most_factors(problem, sampling.notes))
        conditional = exact_conditional(problem.model, drawn, problem.data)
        return _posterior("gpr-vi", problem, sampling, fitted, chains, conditional, start.phi, None)


def _fit(
    problem: Problem, sampling: Sampling, evaluate: Callable, phi: np.ndarray, nuisance: np.ndarray
) -> tuple[GaussianFit, Chains]:
    """Laplace first, then q; draws of q are independent, and are shared out among chains."""
    settings, model = problem.settings, problem.model
    sampling.enter("metric")
    at_start = Density(lambda x: density(evaluate(x, nuisance)))
    whitening = sampling.metric(at_start, (phi, model.start()))
    sampling.enter("optimise")

    def batch(phis: np.ndarray, nuisance: np.ndarray):
        with ThreadPoolExecutor(sampling.parallel) as pool:
            found = list(pool.map(lambda phi: evaluate(phi, nuisance), phis))
        values, gradients = np.array([e.log_density for e in found]), np.array([e.gradient for e in found])
        return values, gradients, np.mean([e.dZ.ravel() for e in found], axis=0)

    fitted = fit_gaussian(batch, whitening, nuisance, diagonal=settings.vi_covariance == "diagonal", seed=settings.seed)
    for step, value in enumerate(fitted.history):
        sampling.note_bound("optimise", step, value)
    each = max(settings.predictive_draws // settings.chains, 4)
    white = problem.rng(6).standard_normal((settings.chains, each, model.n_theta))
    x = fitted.mean + white @ fitted.factor.T
    log_q = -0.5 * np.sum(white**2, axis=2) - np.linalg.slogdet(fitted.factor)[1]
    zero = np.zeros(log_q.shape)
    chains = Chains(x, log_q, -log_q, zero + 1.0, zero.astype(int), zero.astype(int), zero.astype(bool), zero)
    return fitted, chains


def _posterior(
    method: str,
    problem: Problem,
    sampling: Sampling,
    fitted: GaussianFit,
    chains: Chains,
    conditional: Conditional,
    optimum: np.ndarray,
    path: np.ndarray | None,
) -> Posterior:
    counter = sampling.counter
    sampling.notes += [
        f"The bound E_q[L + log p(θ)] + H[q] is {fitted.elbo:.2f} ± {fitted.elbo_error:.2f} nats.",
        f"Pareto k of the posterior against q is {fitted.pareto_k:.2f}.",
        fitted.message.capitalize() + ".",
    ]
    sampling.judged = Verdict(
        _findings(fitted.pareto_k),
        convergence(chains.x),
        tuple(problem.model.names),
        0,
        e_bfmi(chains.energy),
        counter.failures,
        counter.gradients,
    )
    return sampling.posterior(method, chains, conditional, optimum, path)


def _findings(pareto_k: float) -> tuple[Finding, ...]:
    if pareto_k <= LARGEST_PARETO_K:
        return ()
    return (
        Finding(
            "pareto-k",
            True,
            f"A Gaussian does not fit the posterior of the hyperparameters (Pareto k {pareto_k:.2f}, above "
            f"{LARGEST_PARETO_K}): its tails, and so the intervals, are not to be trusted.",
            "Use sgpr-hmc (or gpr-hmc), which draws from the posterior itself.",
        ),
    )
