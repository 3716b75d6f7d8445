"""`n_inducing="auto"`: M doubles until doubling it once more would gain little.

What doubling gains at a θ is L(θ, Z ∪ Z') - L(θ, Z): Z' are as many rows of the data as Z has, each the one that the
points before it explain least. Doubling is enough when the mean of this gain is small for the number of rows, so that
predictions stay as they are, and its sd over draws of θ is small, so that the posterior of θ does. The limits are those
of the verdict.

Most doublings happen before the first draw: short ascents with M and 2M points in turn, until 2M points hardly gain.
Steps with half of the points cost a quarter. The draws of a round decide again, by mean and sd, and may double M twice
more.
"""

import math
import os
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from integrand.inducing import distinct_rows, random_subset
from integrand.infer.verdict import Finding
from integrand.methods.problem import FitContext, Problem
from integrand.methods.warm_start import Point, maximise_theta_and_inducing, starting_inducing
from integrand.posterior.model_findings import GAIN_PER_ROW, SLACK_SD
from integrand.posterior.sparseness import further_points
from integrand.precision import float64_scope
from integrand.progress import Clock
from integrand.targets.collapsed import CollapsedTarget
from integrand.targets.evaluation import density, gp_at

# An ascent between two doublings ends when this many steps gain less than this share of what is enough.
_STEPS, _SHARE = 10, 0.25
# Steps that try out a doubling before the first draw; and of the first one also from the medians of the priors.
_TRIAL_STEPS, _FIRST_STEPS = 20, 100
# Further points are chosen among this many rows, or twice as many as are wanted.
_FEW_ROWS = 2_000
# Doublings after the first draws, at most, and draws that are looked at.
MAX_DOUBLINGS, DRAWS = 2, 16
# Share of the machine's memory that the kept draws and a block of k(Z, X) may take.
_MEMORY_SHARE = 0.25


class Doubling(NamedTuple):
    """What as many points more would gain, in nats over draws of θ."""

    more: Float[np.ndarray, "K D"]
    gain: float
    sd: float  # NaN for one draw
    bound: float  # with the points there are

    def enough(self, n_rows: int) -> bool:
        """Whether the points there are are enough."""
        return not (self.gain > GAIN_PER_ROW * n_rows or self.sd > SLACK_SD)

    def __str__(self) -> str:
        spread = "" if math.isnan(self.sd) else f" ± {self.sd:.1f}"
        return f"twice as many would gain {max(self.gain, 0.0):.1f}{spread} nats"


def what_doubling_gains(
    problem: Problem, target: CollapsedTarget, phis: Float[np.ndarray, "J P"], Z: Float[np.ndarray, "M D"]
) -> Doubling:
    """Mean and sd over draws of L(θ, Z ∪ Z') - L(θ, Z)."""
    more = _further(problem, phis.mean(axis=0), Z)
    before = np.array([e.log_likelihood for e in target.evaluate_each(phis, Z)])
    if len(more) == 0:
        return Doubling(more, 0.0, math.nan, float(before.mean()))
    after = np.array([e.log_likelihood for e in target.evaluate_each(phis, np.concatenate([Z, more]))])
    gains = (after - before)[np.isfinite(after - before)]
    if len(gains) == 0:  # more points cannot be factored: they are too near to each other
        return Doubling(more[:0], 0.0, math.nan, float(before.mean()))
    sd = float(gains.std(ddof=1)) if len(gains) > 1 else math.nan
    return Doubling(more, float(gains.mean()), sd, float(before.mean()))


def _further(
    problem: Problem, phi: Float[np.ndarray, " P"], Z: Float[np.ndarray, "M D"], filled: bool = False
) -> Float[np.ndarray, "K D"]:
    """As many further points as Z has, or as are not explained at φ; or `filled` with rows at random."""
    rng, rows, M = problem.rng(7), distinct_rows(problem.some_inputs()), len(Z)
    most = max(_FEW_ROWS, 2 * M)
    rows = rows if len(rows) <= most else rows[rng.choice(len(rows), most, replace=False)]
    with float64_scope():
        points = jnp.asarray(np.concatenate([Z, rows]))
        K = np.asarray(gp_at(problem.model, phi).kernel.gram(points))
    chosen = further_points(K, M, M, problem.jitter)
    if filled and len(chosen) < M:
        others = np.setdiff1d(np.arange(len(rows)), chosen)
        chosen = np.concatenate([chosen, rng.permutation(others)[: M - len(chosen)]])
    return rows[chosen]


def most_inducing(problem: Problem) -> tuple[int, str]:
    """The largest M, and what limits it."""
    settings, N = problem.settings, problem.data.n_rows
    limits = {"max_inducing": settings.max_inducing, "the number of distinct rows": problem.n_distinct}
    if hasattr(os, "sysconf"):
        memory = _MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        # 8 (kept M² + N M) bytes.
        kept = settings.predictive_draws + 8
        limits["memory"] = int((math.sqrt(N**2 + 4.0 * kept * memory / 8.0) - N) / (2.0 * kept))
    why = min(limits, key=lambda name: limits[name])
    return max(limits[why], len(problem.Z) if problem.Z is not None else 1), why


def doubled(
    problem: Problem,
    target: CollapsedTarget,
) -> Point:
    """θ and Z with as many points as are enough at the optimum, or as a budget allows."""
    most, settings, n_rows = most_inducing(problem)[0], problem.settings, problem.data.n_rows
    phi, clock = problem.model.start(), Clock()
    Z = starting_inducing(problem, target, phi)[0]
    ending = _STEPS, _SHARE * GAIN_PER_ROW * n_rows
    while True:
        phi, Z, optimum = maximise_theta_and_inducing(
            target, phi, Z, settings, settings.warm_steps, density, None, ending
        )
        # A doubling takes about four times as long as what was before it, and the draws need the other half.
        minutes = settings.max_minutes
        if len(Z) >= most or (minutes is not None and 5.0 * clock.elapsed > 30.0 * minutes):
            return phi, Z
        more = _further(problem, phi, Z, filled=True)[: most - len(Z)]
        both = np.concatenate([Z, more])
        trials = [maximise_theta_and_inducing(target, phi, both, settings, _TRIAL_STEPS, density)]
        if len(Z) == problem.n_inducing:  # with the fewest points all may look like noise, which more would not change
            begin = problem.model.start(), random_subset(problem.rng(8), problem.some_inputs(), len(both))
            trials.append(maximise_theta_and_inducing(target, *begin, settings, _FIRST_STEPS, density))
        best = max(trials, key=lambda trial: trial[2].value)
        if best[2].value - optimum.value <= GAIN_PER_ROW * n_rows:
            return phi, Z
        phi, Z = best[:2]


def after_draws(
    context: FitContext,
    target: CollapsedTarget,
    phis: Float[np.ndarray, "J P"],
    Z: Float[np.ndarray, "M D"],
    n_doublings: int,
) -> tuple[Doubling, Float[np.ndarray, "K D"]]:
    """What doubling would gain by these draws, and the points to add: none where M is enough or a budget ends it."""
    problem, none = context.problem, Z[:0]
    doubling, (most, why) = what_doubling_gains(problem, target, phis[:DRAWS], Z), most_inducing(problem)
    if doubling.enough(problem.data.n_rows):
        context.notes.append(f"{len(Z)} inducing points are enough: {doubling}.")
        return doubling, none
    if len(Z) >= most:
        if len(Z) >= problem.n_distinct:
            return doubling, none
    elif n_doublings >= MAX_DOUBLINGS:
        why = f"a limit of {MAX_DOUBLINGS} doublings after the first draws"
    elif context.over_half_time(3.0 * context.clock.elapsed):
        why = "max_minutes"
    else:
        return doubling, doubling.more[: most - len(Z)]
    remedy = {
        "max_inducing": f"Raise `max_inducing` above {most}.",
        "memory": "Lower `predictive_draws`, or use a machine with more memory.",
        "max_minutes": "Allow more `max_minutes`.",
    }.get(why, f"Fit again with `n_inducing={2 * len(Z)}`.")
    sentence = f"{len(Z)} inducing points are fewer than wanted, because of {why}: {doubling}."
    context.findings.append(Finding("inducing-budget", False, sentence, remedy))
    return doubling, none
