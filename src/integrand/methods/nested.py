"""The final draws by nested sampling: the log evidence, and draws of equal weight.

With inducing points the evidence is the paper's doubly collapsed bound, log C_Z = log ∫ p(θ) exp L(θ, Z) dθ.
"""

from typing import NamedTuple

import jax
import numpy as np

from integrand.infer.base import Chains, Target
from integrand.infer.convergence import Convergence, convergence, e_bfmi
from integrand.infer.nested import NestedSampling, NestedSnapshot
from integrand.infer.verdict import Finding, Verdict
from integrand.methods.problem import FitContext, Problem
from integrand.precision import float64_scope

# Live points at least: that many for any θ, and this many for each hyperparameter, or they do not show its scale.
MIN_LIVE, MIN_LIVE_PER_DIMENSION = 20, 2
PLATEAU = "Nested sampling ended on a plateau: all live points have one likelihood, and count alike."
FROZEN = "Nested sampling got stuck: most live points are copies of each other, and none can be replaced."


class NestedDraws(NamedTuple):
    """Draws of equal weight, their effective number, and log evidence ± standard error."""

    chains: Chains
    ess: float
    finished: bool
    evidence: tuple[float, float]
    evaluations: int
    interrupted: bool
    stuck: str = ""  # a sentence, if it ended because no live point lay above the others


def draw_nested(context: FitContext, target: Target) -> Chains:
    """Draws of equal weight; their evidence and verdict go to the context."""
    result = _saved_draws(context) or _new_draws(context, target)
    counter = target.counter
    counter.gradients += result.evaluations
    context.interrupted, context.evidence = result.interrupted, result.evidence
    context.own_verdict = nested_verdict(result, context.problem, counter.failures, counter.gradients)
    context.notes.append(f"The log evidence is {result.evidence[0]:.2f} ± {result.evidence[1]:.2f}.")
    return result.chains


def _saved_draws(context: FitContext) -> NestedDraws | None:
    """The draws of a finished run in the run directory."""
    evidence, chains = context.store.evidence(), context.store.draws()
    if evidence is None or chains is None:
        return None
    return NestedDraws(chains, evidence["ess"], True, (evidence["log"], evidence["error"]), 0, False)


def _new_draws(context: FitContext, target: Target) -> NestedDraws:
    """Draws that begin with live points from the prior."""
    settings, model = context.settings, context.problem.model
    context.progress.phase("nested draws")
    n_live = max(settings.live_points, MIN_LIVE, MIN_LIVE_PER_DIMENSION * model.n_theta)
    with float64_scope():
        thetas = model.sample_prior(jax.random.key(settings.seed), n_live)
        live = np.asarray(jax.vmap(model.phi)(thetas))

    def callback(s: NestedSnapshot) -> bool:
        text = f"log evidence {s.log_evidence:.2f}, {s.remaining:.1%} to come"
        context.progress.update(s.dead, s.dead + n_live, text)
        return context.over_time

    sampler, plan = NestedSampling(n_chains=settings.chains), context.plan((7,), target, warmup=0, draws=0)
    run = sampler.run(target.traced(), live, plan, callback)
    frozen = len(np.unique(run.points.x[-n_live:], axis=0)) < n_live // 2
    # Where the likelihood is flat, different points on it are draws from the prior there: the evidence is right.
    finished = not run.interrupted and (run.remaining < sampler.precision or (run.stuck and not frozen))
    stuck = "" if not run.stuck else FROZEN if frozen else PLATEAU
    evidence = (run.log_evidence, run.log_evidence_error)
    if finished:
        context.store.save_draws(0, run.chains, {"log": evidence[0], "error": evidence[1], "ess": run.ess})
    return NestedDraws(run.chains, run.ess, finished, evidence, run.evaluations, run.interrupted, stuck)


def nested_verdict(draws: NestedDraws, problem: Problem, failures: int, evaluations: int) -> Verdict:
    """Draws of equal weight repeat points: the weights give their effective number, not autocorrelation."""
    numbers = convergence(draws.chains.x)
    ess = np.minimum(numbers.ess_bulk, draws.ess)
    numbers = Convergence(numbers.r_hat, ess, np.minimum(numbers.ess_tail, draws.ess))
    findings = []
    if draws.stuck:
        remedy = "Look for what makes the likelihood flat there, or use another `sampler`."
        findings.append(Finding("stuck", not draws.finished, draws.stuck, remedy))
    elif draws.interrupted or not draws.finished:
        why = "interrupted" if draws.interrupted else "budget"
        sentence = "Nested sampling ended before the live points had given up their share: the evidence is too low."
        findings.append(Finding(why, True, sentence, "Allow more `max_minutes`, or use fewer `live_points`."))
    if draws.ess < problem.settings.target_ess:
        sentence = f"The weighted draws are worth {draws.ess:.0f} independent ones, fewer than were asked for."
        findings.append(Finding("ess-bulk", True, sentence, "Raise `live_points` in proportion."))
    energies = e_bfmi(draws.chains.energy)
    return Verdict(tuple(findings), numbers, tuple(problem.model.names), 0, energies, failures, evaluations)
