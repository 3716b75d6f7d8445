"""`vi-collapsed` and `gpr-vi`: a Gaussian q(φ) fitted to the density that `sgpr-hmc` (or `gpr-hmc`) draws from.

    ELBO(q, Z) = E_q(φ)[L(θ, Z) + log p(φ)] + H[q]

with u integrated out (the paper's doubly collapsed bound is the best that any q could reach) and Z climbed together
with q. Predictions mix over draws of q.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from integrand.infer.chains import Chains
from integrand.infer.diagnostics import Finding, Verdict, convergence, e_bfmi
from integrand.infer.metric import Whitening
from integrand.infer.variational import GaussianFit, fit_gaussian
from integrand.methods import watch
from integrand.methods.density import Density, metric
from integrand.methods.draws_of_q import draws_of_q
from integrand.methods.gpr_hmc import most_factors
from integrand.methods.optimised import exact_warm_start, warm_start
from integrand.methods.problem import Problem
from integrand.methods.record import FitRecord
from integrand.posterior.conditional import Conditional, exact_conditional, sparse_conditional
from integrand.posterior.posterior import Posterior
from integrand.targets import CollapsedTarget, Evaluation, ExactTarget, density

# Beyond this the importance ratios have no reliable mean: q misses much of the posterior (Vehtari et al. 2024).
LARGEST_PARETO_K = 0.7
# Name of the best q so far in a run directory.
STATE = "gaussian"


def vi_collapsed(problem: Problem) -> Posterior:
    """q(φ) and Z maximise the bound together, from the warm start of Algorithm 1."""
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)
    with FitRecord.of(problem, target.counter, target.threads(problem.n_inducing)) as record:
        start = record.warm_start(lambda: warm_start(problem, target))

        def evaluate(phi: np.ndarray, nuisance: np.ndarray) -> Evaluation:
            return target.evaluate(phi, nuisance.reshape(start.Z.shape))

        fitted, chains = _fit(problem, record, evaluate, start.phi, start.Z.ravel())
        Z = fitted.nuisance.reshape(start.Z.shape)
        record.enter("conditional")
        conditional = sparse_conditional(record.thinned(chains), Z, target.factored)
        path = np.array([start.Z, Z])
        return _posterior("vi-collapsed", problem, record, fitted, chains, conditional, start.phi, path)


def gpr_vi(problem: Problem) -> Posterior:
    """The same over the exact GP."""
    problem.refuse_many_rows()
    target = ExactTarget(problem.model, problem.data)
    with FitRecord.of(problem, target.counter, target.threads) as record:
        start = record.warm_start(lambda: exact_warm_start(problem, target))
        fitted, chains = _fit(problem, record, lambda phi, _: target.evaluate(phi), start.phi, np.zeros(0))
        record.enter("conditional")
        drawn = record.thinned(chains, most_factors(problem, record.notes))
        conditional = exact_conditional(problem.model, drawn, problem.data)
        return _posterior("gpr-vi", problem, record, fitted, chains, conditional, start.phi, None)


def _fit(
    problem: Problem, record: FitRecord, evaluate: Callable, phi: np.ndarray, nuisance: np.ndarray
) -> tuple[GaussianFit, Chains]:
    """Laplace first, then q, and its draws. The best q so far is in the run directory, if there is one."""
    settings, model, saved = problem.settings, problem.model, record.saved
    kept = saved.state(STATE)
    record.enter("metric")
    if kept is None:
        at_start = Density(lambda x: density(evaluate(x, nuisance)))
        whitening = metric(at_start, (phi, model.start()))
    else:
        whitening = Whitening(kept["centre"], kept["factor"])
    record.enter("optimise")

    def each(phis: np.ndarray, nuisance: np.ndarray) -> list[Evaluation]:
        with ThreadPoolExecutor(record.parallel) as pool:
            return list(pool.map(lambda phi: evaluate(phi, nuisance), phis))

    def batch(phis: np.ndarray, nuisance: np.ndarray):
        found = each(phis, nuisance)
        values, gradients = np.array([e.log_density for e in found]), np.array([e.gradient for e in found])
        return values, gradients, np.mean([e.dZ.ravel() for e in found], axis=0)

    watching = _Watch(record, whitening)
    diagonal = settings.vi_covariance == "diagonal"
    first = None if kept is None else kept["unknowns"]
    if first is not None and len(first) != _n_unknowns(model.n_theta, len(nuisance), diagonal):
        first = None  # of a q with another covariance
    fitted = fit_gaussian(
        batch,
        whitening,
        nuisance,
        diagonal=diagonal,
        max_steps=settings.steps,
        seed=settings.seed,
        first=first,
        watch=watching,
    )
    watching.save(fitted.unknowns)

    def works(phis: np.ndarray) -> np.ndarray:
        return np.isfinite([e.log_density for e in each(phis, fitted.nuisance)])

    chains, findings = draws_of_q(problem, fitted.mean, fitted.factor, works)
    record.findings += findings
    return fitted, chains


def _n_unknowns(n: int, n_nuisance: int, diagonal: bool) -> int:
    return n + (n if diagonal else n * (n + 1) // 2) + n_nuisance


class _Watch:
    """Sees every evaluation of the bound: notes it, keeps the best unknowns on disk, ends the climb in time."""

    def __init__(self, record: FitRecord, whitening: Whitening):
        self.record, self.whitening = record, whitening
        self.step, self.saved_at = 0, record.clock.elapsed

    def __call__(self, unknowns: np.ndarray, bound: float) -> str:
        record, settings = self.record, self.record.settings
        if np.isfinite(bound):
            record.note_bound("optimise", self.step, bound)
        self.step += 1
        record.problem.progress.update(self.step, max(settings.steps, self.step), f"bound {bound:.2f}")
        if record.clock.elapsed - self.saved_at > watch.SAVE_SECONDS:
            self.save(unknowns)
            self.saved_at = record.clock.elapsed
        return "minutes used up" if record.over_time() else ""

    def save(self, unknowns: np.ndarray) -> None:
        """Keep the unknowns with the coordinates that they are in."""
        self.record.saved.save_state(
            STATE, {"unknowns": unknowns, "centre": self.whitening.centre, "factor": self.whitening.factor}
        )


def _posterior(
    method: str,
    problem: Problem,
    record: FitRecord,
    fitted: GaussianFit,
    chains: Chains,
    conditional: Conditional,
    optimum: np.ndarray,
    path: np.ndarray | None,
) -> Posterior:
    counter = record.counter
    record.notes += [
        f"The bound E_q[L + log p(θ)] + H[q] is {fitted.elbo:.2f} ± {fitted.elbo_error:.2f} nats.",
        f"Pareto k of the posterior against q is {fitted.pareto_k:.2f}.",
        fitted.message.capitalize() + ".",
    ]
    record.judged = Verdict(
        (*_findings(fitted), *record.findings),
        convergence(chains.x),
        tuple(problem.model.names),
        0,
        e_bfmi(chains.energy),
        counter.failures,
        counter.gradients,
    )
    return record.posterior(method, chains, conditional, optimum, path)


def _findings(fitted: GaussianFit) -> list[Finding]:
    found = []
    if fitted.ended:
        code = "interrupted" if fitted.ended == "interrupted" else "budget"
        sentence = f"L-BFGS ended before q was the best Gaussian: {fitted.ended}."
        found.append(Finding(code, True, sentence, "Resume the run, or fit again, with more time if need be."))
    elif not fitted.converged:
        sentence = f"L-BFGS ended before q was the best Gaussian: {fitted.message}."
        found.append(Finding("not-converged", True, sentence, "Allow more steps."))
    if not fitted.pareto_k <= LARGEST_PARETO_K:
        sentence = (
            f"A Gaussian does not fit the posterior of the hyperparameters (Pareto k {fitted.pareto_k:.2f}, above "
            f"{LARGEST_PARETO_K}): its tails, and so the intervals, are not to be trusted."
        )
        remedy = "Use sgpr-hmc (or gpr-hmc), which draws from the posterior itself."
        found.append(Finding("pareto-k", True, sentence, remedy))
    return found
