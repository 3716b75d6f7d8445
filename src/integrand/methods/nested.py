"""The final draws by nested sampling: the log evidence, and draws of equal weight.

With inducing points the evidence is the paper's doubly collapsed bound, log C_Z = log ∫ p(θ) exp L(θ, Z) dθ.
"""

from typing import NamedTuple

import jax
import numpy as np

from integrand.infer.chains import Chains
from integrand.infer.diagnostics import Convergence, Finding, Verdict, convergence, e_bfmi
from integrand.infer.nested import NestedRun, NestedWatch, sample_nested
from integrand.infer.traced import Traced
from integrand.methods.checkpoint import Checkpoint
from integrand.methods.problem import Problem
from integrand.precision import float64_scope

# A run ends when the live points hold less than this share of the evidence.
PRECISION = 1e-3
PLATEAU = "Nested sampling ended on a plateau: all live points have one likelihood, and count alike."
FROZEN = "Nested sampling got stuck: most live points are copies of each other, and none can be replaced."


class NestedDraws(NamedTuple):
    """Draws of equal weight, what they are worth, and log evidence ± standard error."""

    chains: Chains
    ess: float
    finished: bool
    evidence: tuple[float, float]
    evaluations: int
    interrupted: bool
    stuck: str = ""  # a sentence, if it ended because no live point lay above the others


def nested_draws(problem: Problem, target: Traced, saved: Checkpoint, parallel: int, over_time) -> NestedDraws:
    """From live points drawn from the prior, or from the run directory if a run ended there."""
    if (kept := saved.evidence()) is not None and (chains := saved.draws()) is not None:
        return NestedDraws(chains, kept["ess"], True, (kept["log"], kept["error"]), 0, False)
    settings, model = problem.settings, problem.model
    problem.progress.phase("nested draws")
    n_live = max(settings.live_points, 20, 2 * model.n_theta)
    with float64_scope():
        drawn = model.sample_prior(jax.random.key(settings.seed), n_live)
        live = np.asarray(jax.vmap(model.phi)(drawn))

    def watch(w: NestedWatch) -> bool:
        text = f"log evidence {w.log_evidence:.2f}, {w.remaining:.1%} to come"
        problem.progress.update(w.dead, w.dead + n_live, text)
        return over_time()

    run: NestedRun = sample_nested(
        target,
        live,
        seed=[settings.seed, 7],
        precision=PRECISION,
        n_chains=settings.chains,
        parallel=parallel,
        watch=watch,
    )
    frozen = len(np.unique(run.points.x[-n_live:], axis=0)) < n_live // 2
    # Where the likelihood is flat, different points on it are draws from the prior there: the evidence is right.
    finished = not run.interrupted and (run.remaining < PRECISION or (run.stuck and not frozen))
    stuck = "" if not run.stuck else FROZEN if frozen else PLATEAU
    evidence = (run.log_evidence, run.log_evidence_error)
    if finished:
        saved.save_draws(0, run.chains, {"log": evidence[0], "error": evidence[1], "ess": run.ess})
    return NestedDraws(run.chains, run.ess, finished, evidence, run.evaluations, run.interrupted, stuck)


def nested_verdict(drawn: NestedDraws, problem: Problem, failures: int, evaluations: int) -> Verdict:
    """Draws of equal weight repeat points: what they are worth is told by the weights, not by autocorrelation."""
    numbers = convergence(drawn.chains.x)
    ess = np.minimum(numbers.ess_bulk, drawn.ess)
    numbers = Convergence(numbers.r_hat, ess, np.minimum(numbers.ess_tail, drawn.ess))
    findings = []
    if drawn.stuck:
        remedy = "Look for what makes the likelihood flat there, or use another sampler."
        findings.append(Finding("stuck", not drawn.finished, drawn.stuck, remedy))
    elif drawn.interrupted or not drawn.finished:
        why = "interrupted" if drawn.interrupted else "budget"
        sentence = "Nested sampling ended before the live points had given up their share: the evidence is too low."
        findings.append(Finding(why, True, sentence, "Allow more minutes, or use fewer live_points."))
    if drawn.ess < problem.settings.target_ess:
        sentence = f"The weighted draws are worth {drawn.ess:.0f} independent ones, fewer than were asked for."
        findings.append(Finding("ess-bulk", True, sentence, "Raise live_points in proportion."))
    energies = e_bfmi(drawn.chains.energy)
    return Verdict(tuple(findings), numbers, tuple(problem.model.names), 0, energies, failures, evaluations)
