"""`svgp`, the paper's SVGP: θ, Z and a Gaussian q(u) maximise the uncollapsed bound, by Adam on batches of rows.

Hensman et al. (2013, 2015). A step costs B M² + M³ however many rows there are, and any likelihood will do. With
Gaussian noise the best q(u) for the θ and Z that were found is known, from one pass over all rows: it is taken at the
end, and how many nats Adam's was short of it is told (`schedule="paper"` keeps Adam's). Nor need Adam have come to the
end with θ and Z: a few steps of L-BFGS on all rows, which are not kept, tell how much they gain.
"""

from functools import partial
from typing import Any

import jax
import numpy as np

from integrand.bounds.uncollapsed import batch_log_likelihood, kl_from_prior, uncollapsed_bound
from integrand.data.dataset import Dataset
from integrand.errors import NumericalError
from integrand.infer.climb import Batches
from integrand.infer.diagnostics import TOLERANCE_NATS, Finding, optimised
from integrand.infer.optimise import maximise_lbfgs
from integrand.likelihoods import Gaussian
from integrand.linalg import Jitter
from integrand.methods.adam import NOT_FINITE, Unknowns, best_q, bound_history, climbed, decaying, starting_unknowns
from integrand.methods.problem import Problem, one_draw
from integrand.model import Model
from integrand.posterior.conditional import VariationalConditional
from integrand.posterior.posterior import BoundPoint, Posterior
from integrand.precision import float64_scope
from integrand.targets import CollapsedTarget

# The schedule behind the paper's tables.
PAPER_RATE, PAPER_BATCH, PAPER_EPOCHS = 0.01, 200, 2_000
# Steps of L-BFGS that tell whether θ and Z are at the end of the climb, and the most rows for which they are taken.
CHECK_STEPS, CHECK_ROWS = 10, 50_000


def _objective(x: Unknowns, inputs: Any, fixed: Any, model: Model, jitter: Jitter) -> Any:
    """The bound on all rows, estimated from some."""
    (rows, _), (X, y) = inputs, fixed
    gp = model.gp(model.theta(x.phi))
    return batch_log_likelihood(model.likelihood, gp, x.Z, x.q, X[rows], y[rows], len(y), jitter) - kl_from_prior(x.q)


@partial(jax.jit, static_argnames=("model", "jitter"))
def _full_bound(x: Unknowns, data: Dataset, model: Model, jitter: Jitter) -> Any:
    return uncollapsed_bound(model.likelihood, model.gp(model.theta(x.phi)), x.Z, x.q, data, jitter)


def svgp(problem: Problem) -> Posterior:
    """Climb the bound over φ, Z and q(v); no prior takes part, as in ML-II."""
    settings, clock, paper = problem.settings, problem.clock, problem.settings.schedule == "paper"
    clock.enter("warm start")
    start, name = starting_unknowns(problem, plain=paper)
    batches = Batches(problem.rng(7), problem.data.n_rows, PAPER_BATCH if paper else settings.batch_size)
    rates = decaying(problem)
    if paper:
        rates = np.full((PAPER_EPOCHS * -(-batches.n_rows // batches.size), 2), PAPER_RATE)
    clock.enter("optimise")
    problem.progress.phase("optimise")
    found = climbed(problem, _objective, start, batches, rates, plain=paper)
    clock.enter("conditional")
    x, bound, short = _finished(problem, found.x, replace=not paper)
    findings = [*found.findings(), *_still_to_gain(problem, x)]
    notes = [f"Z started from {name}.", *found.notes(batches), *short, f"The bound on all rows is {bound:.2f} nats."]
    clock.enter("")
    history = [*bound_history(problem, found), BoundPoint("optimise", len(found.values), clock.elapsed, bound, 0.0)]
    return Posterior(
        method="svgp",
        model=problem.model,
        scaler=problem.scaler,
        jitter=problem.jitter,
        chains=one_draw(x.phi, bound),
        conditional=VariationalConditional(x.phi[None], x.Z, np.asarray(x.q.m)[None], np.asarray(x.q.S)[None]),
        verdict=optimised(findings, problem.model.names, found.failures, len(found.values)),
        optimum=x.phi,
        history=tuple(history),
        Z_path=np.array([start.Z, x.Z]),
        seconds=dict(clock.seconds),
        counts={"gradients": len(found.values), "failures": found.failures},
        notes=tuple(notes),
    )


def _still_to_gain(problem: Problem, x: Unknowns) -> list[Finding]:
    """What L-BFGS gains from θ and Z on all rows, for Gaussian noise, with the best q(v) all along."""
    n = problem.model.n_theta
    if not isinstance(problem.model.likelihood, Gaussian) or problem.data.n_rows > CHECK_ROWS:
        return []
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)

    def f(w: np.ndarray) -> tuple[float, np.ndarray]:
        e = target.evaluate(w[:n], w[n:].reshape(x.Z.shape))
        return e.log_likelihood, np.concatenate([e.d_likelihood, e.dZ.ravel()])

    try:
        climbed = maximise_lbfgs(f, np.concatenate([x.phi, x.Z.ravel()]), max_steps=CHECK_STEPS)
    except KeyboardInterrupt:  # Adam's climb is worth more than this
        return []
    gain = climbed.value - climbed.history[0] if climbed.history else 0.0
    if not gain > TOLERANCE_NATS:
        return []
    sentence = f"{CHECK_STEPS} steps of L-BFGS on all rows, from the θ and Z that Adam found, gain {gain:.1f} nats."
    return [Finding("short", False, sentence, "Allow more steps, or use ml2, which climbs the same bound.")]


def _finished(problem: Problem, x: Unknowns, replace: bool) -> tuple[Unknowns, float, list[str]]:
    """x, with the best q(v) for its θ and Z where that is known and wanted, the bound on all rows, and a note."""

    def bound_of(x: Unknowns) -> float:
        with float64_scope():
            return float(_full_bound(x, problem.data, model=problem.model, jitter=problem.jitter))

    bound = bound_of(x)
    if not np.isfinite(bound):
        raise NumericalError(NOT_FINITE)
    best = best_q(problem, x.phi, x.Z) if isinstance(problem.model.likelihood, Gaussian) else None
    if best is None or not (reached := bound_of(x._replace(q=best))) > bound:
        return x, bound, []
    if reached < bound + 0.01:
        return (x._replace(q=best), reached, []) if replace else (x, bound, [])
    short = f"{reached - bound:.2f} nats short of the best for its θ and Z"
    if not replace:
        return x, bound, [f"q(u) is {short}."]
    return x._replace(q=best), reached, [f"Adam's q(u) was {short}, which took its place."]
