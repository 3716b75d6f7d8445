"""`vi-collapsed` and `gpr-vi`: a Gaussian q(φ) = N(c, C Cᵀ) in the place of draws; independent draws of it predict.

q(φ) is fitted to the density that `sgpr-hmc` (or `gpr-hmc`) draws from:

    ELBO(q, Z) = E_q(φ)[L(θ, Z) + log p(φ)] + H[q]

with u integrated out (the paper's doubly collapsed bound is the best that any q could reach) and Z maximised together
with q. Predictions mix over draws of q.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from integrand.compilation import available_cores, one_blas_thread
from integrand.errors import NumericalError
from integrand.infer.base import Chains, Counter
from integrand.infer.convergence import convergence, e_bfmi
from integrand.infer.coordinates import Coordinates, coordinates_at_mode
from integrand.infer.gaussian_vi import GaussianFit, fit_gaussian
from integrand.infer.verdict import Finding, Verdict
from integrand.methods import sampling
from integrand.methods.gpr_hmc import max_factors
from integrand.methods.problem import FitContext, Problem
from integrand.methods.warm_start import exact_warm_start, warm_start
from integrand.posterior.conditional import Conditional, exact_conditional, sparse_conditional
from integrand.posterior.posterior import Posterior
from integrand.targets.collapsed import CollapsedTarget
from integrand.targets.evaluation import Evaluation, density
from integrand.targets.exact import ExactTarget

# How often draws that fail are drawn again.
MOST_ROUNDS = 20


Works = Callable[[Float[np.ndarray, "n P"]], Bool[np.ndarray, " n"]]


def draws_of_q(
    problem: Problem, centre: Float[np.ndarray, " P"], C: Float[np.ndarray, "P P"], works: Works
) -> tuple[Chains, tuple[Finding, ...]]:
    """Draws shared out among chains, and a finding where q reaches θ at which nothing can be factored.

    `works` says at which φ the bound is finite. A draw at which it is not would break every prediction: it is drawn
    again, so that the draws are those of q where the bound is finite.
    """
    settings, rng, P = problem.settings, problem.rng(6), len(centre)
    shape = (settings.chains, max(settings.predictive_draws // settings.chains, 4))
    white = rng.standard_normal((*shape, P)).reshape(-1, P)
    bad = ~works(centre + white @ C.T)
    failed = int(bad.sum())
    for _ in range(MOST_ROUNDS):
        if not np.any(bad):
            break
        white[bad] = rng.standard_normal((int(bad.sum()), P))
        bad[bad] = ~works(centre + white[bad] @ C.T)
    if np.all(bad):
        raise NumericalError(
            "the bound is finite at no draw of q(θ): use fewer inducing points, a larger jitter, or a prior that keeps "
            "the noise away from zero"
        )
    white[bad] = white[rng.choice(np.flatnonzero(~bad), int(bad.sum()))]
    white = white.reshape(*shape, P)
    log_q = -0.5 * np.sum(white**2, axis=2) - np.linalg.slogdet(C)[1]
    zero = np.zeros(shape)
    none, no = zero.astype(int), zero.astype(bool)
    chains = Chains(centre + white @ C.T, log_q, -log_q, zero + 1.0, none, none, no, zero)
    return chains, _failed_draws(failed, zero.size)


def _failed_draws(failed: int, drawn: int) -> tuple[Finding, ...]:
    if not failed:
        return ()
    sentence = f"{failed} of {drawn} draws of q(θ) failed numerically and were drawn again: q is cut off there."
    return (Finding("rejections", True, sentence, "Use fewer inducing points (`n_inducing`) or a larger `jitter`."),)


# Beyond this the importance ratios have no reliable mean: q misses much of the posterior (Vehtari et al. 2024).
LARGEST_PARETO_K = 0.7
# Name of the best q so far in a run directory.
STATE = "gaussian"


def vi_collapsed(problem: Problem, context: FitContext) -> Posterior:
    """q(φ) and Z maximise the bound together, from the warm start of Algorithm 1."""
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)
    threads = target.threads(problem.n_inducing)
    with one_blas_thread(threads == 1):
        start = context.warm_start(lambda: warm_start(problem, target))

        def evaluate(phi: np.ndarray, Z: np.ndarray) -> Evaluation:
            return target.evaluate(phi, Z.reshape(start.Z.shape))

        sampled = _Density(evaluate, available_cores() if threads == 1 else 1)
        fitted, chains = _fit(problem, context, sampled, start.phi, start.Z.ravel())
        Z = fitted.nuisance.reshape(start.Z.shape)
        context.phase("conditional")
        conditional = sparse_conditional(context.thinned(chains), Z, target.inducing_posterior)
        return _posterior(context, fitted, chains, conditional, start.phi, target.counter, [start.Z, Z])


def gpr_vi(problem: Problem, context: FitContext) -> Posterior:
    """The same over the exact GP."""
    problem.refuse_many_rows()
    target = ExactTarget(problem.model, problem.data)
    with one_blas_thread(target.threads == 1):
        start = context.warm_start(lambda: exact_warm_start(problem, target))
        sampled = _Density(lambda phi, _: target.evaluate(phi), target.parallel)
        fitted, chains = _fit(problem, context, sampled, start.phi, np.zeros(0))
        context.phase("conditional")
        draws = context.thinned(chains, max_factors(problem, context))
        conditional = exact_conditional(problem.model, draws, problem.data)
        return _posterior(context, fitted, chains, conditional, start.phi, target.counter, None)


class _Density(NamedTuple):
    """log p(θ) + L(θ, Z) at φ and Z, a vector that is empty for an exact GP."""

    evaluate: Callable[[np.ndarray, np.ndarray], Evaluation]
    parallel: int

    def each(self, phis: np.ndarray, Z: np.ndarray) -> list[Evaluation]:
        """Evaluations at several φ, in parallel."""
        with ThreadPoolExecutor(self.parallel) as pool:
            return list(pool.map(lambda phi: self.evaluate(phi, Z), phis))


def _fit(
    problem: Problem, context: FitContext, target: _Density, phi: np.ndarray, Z: np.ndarray
) -> tuple[GaussianFit, Chains]:
    """Laplace first, then q, and its draws. The best q so far is in the run directory, if there is one."""
    settings, model = problem.settings, problem.model
    saved = context.store.state(STATE)
    context.phase("metric")
    if saved is None:
        coordinates = coordinates_at_mode(lambda x: density(target.evaluate(x, Z)), (phi, model.start()))
    else:
        coordinates = Coordinates(saved["centre"], saved["factor"])
    context.phase("optimise")

    def batch(phis: np.ndarray, Z: np.ndarray):
        evaluations = target.each(phis, Z)
        values, gradients = np.array([e.log_density for e in evaluations]), np.array([e.gradient for e in evaluations])
        return values, gradients, np.mean([e.dZ.ravel() for e in evaluations], axis=0)

    callback = _SaveBest(context, coordinates)
    diagonal = settings.vi_covariance == "diagonal"
    first = None if saved is None else saved["unknowns"]
    if first is not None and len(first) != _n_unknowns(model.n_theta, len(Z), diagonal):
        first = None  # of a q with another covariance
    fitted = fit_gaussian(
        batch,
        coordinates,
        Z,
        diagonal=diagonal,
        max_steps=settings.lbfgs_steps,
        seed=settings.seed,
        first=first,
        callback=callback,
    )
    callback.save(fitted.unknowns)

    def works(phis: np.ndarray) -> np.ndarray:
        return np.isfinite([e.log_density for e in target.each(phis, fitted.nuisance)])

    chains, findings = draws_of_q(problem, fitted.mean, fitted.factor, works)
    context.findings += findings
    return fitted, chains


def _n_unknowns(n: int, n_nuisance: int, diagonal: bool) -> int:
    return n + (n if diagonal else n * (n + 1) // 2) + n_nuisance


class _SaveBest:
    """The callback of the optimiser: records the bound, saves the best unknowns, ends the ascent in time."""

    def __init__(self, context: FitContext, coordinates: Coordinates):
        self.context, self.coordinates = context, coordinates
        self.step, self.saved_at = 0, context.clock.elapsed

    def __call__(self, unknowns: np.ndarray, bound: float) -> str:
        context, steps = self.context, self.context.settings.lbfgs_steps
        if np.isfinite(bound):
            context.record_bound("optimise", self.step, bound)
        self.step += 1
        context.progress.update(self.step, max(steps, self.step), f"bound {bound:.2f}")
        if context.clock.elapsed - self.saved_at > sampling.SAVE_SECONDS:
            self.save(unknowns)
            self.saved_at = context.clock.elapsed
        return "minutes used up" if context.over_time else ""

    def save(self, unknowns: np.ndarray) -> None:
        """Keep the unknowns with the coordinates that they are in."""
        arrays = {"unknowns": unknowns, "centre": self.coordinates.centre, "factor": self.coordinates.factor}
        self.context.store.save_state(STATE, arrays)


def _posterior(
    context: FitContext,
    fitted: GaussianFit,
    chains: Chains,
    conditional: Conditional,
    optimum: np.ndarray,
    counter: Counter,
    Z_path: list[np.ndarray] | None,
) -> Posterior:
    context.notes += [
        f"The bound E_q[L + log p(θ)] + H[q] is {fitted.elbo:.2f} ± {fitted.elbo_error:.2f} nats.",
        f"Pareto k of the posterior against q is {fitted.pareto_k:.2f}.",
        fitted.message.capitalize() + ".",
    ]
    verdict = Verdict(
        (*_findings(fitted), *context.findings),
        convergence(chains.x),
        tuple(context.problem.model.names),
        0,
        e_bfmi(chains.energy),
        counter.failures,
        counter.gradients,
    )
    return context.sampled(chains, conditional, optimum=optimum, counter=counter, verdict=verdict, Z_path=Z_path)


def _findings(fitted: GaussianFit) -> list[Finding]:
    found = []
    if fitted.ended:
        code = "interrupted" if fitted.ended == "interrupted" else "budget"
        sentence = f"L-BFGS ended before q was the best Gaussian: {fitted.ended}."
        found.append(Finding(code, True, sentence, "Resume the run, or fit again, with more `max_minutes` if need be."))
    elif not fitted.converged:
        sentence = f"L-BFGS ended before q was the best Gaussian: {fitted.message}."
        found.append(Finding("not-converged", True, sentence, "Allow more `steps`."))
    if not fitted.pareto_k <= LARGEST_PARETO_K:
        sentence = (
            f"A Gaussian does not fit the posterior of the hyperparameters (Pareto k {fitted.pareto_k:.2f}, above "
            f"{LARGEST_PARETO_K}): its tails, and so the intervals, are not to be trusted."
        )
        remedy = 'Use `method="sgpr-hmc"` (or `method="gpr-hmc"`), which draws from the posterior itself.'
        found.append(Finding("pareto-k", True, sentence, remedy))
    return found
