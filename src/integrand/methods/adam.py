"""What the methods that climb by Adam on batches share: where they start, their rates, and what is kept meanwhile."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from integrand.bounds.collapsed import factorise
from integrand.bounds.uncollapsed import FactoredGaussian, optimal_inducing
from integrand.data.dataset import Dataset
from integrand.inducing import k_means
from integrand.infer.climb import Batches, Climb, ClimbWatch, climb
from integrand.likelihoods import Gaussian
from integrand.linalg import Jitter
from integrand.methods import watch
from integrand.methods.checkpoint import Checkpoint
from integrand.methods.problem import Problem, starting_inducing
from integrand.model import Model
from integrand.posterior.posterior import BoundPoint
from integrand.precision import float64_scope
from integrand.targets import CollapsedTarget
from integrand.targets.program import LARGE

# Adam's steps are short: so many of them for each of `settings.steps`, which are counted in steps of L-BFGS.
ADAM_STEPS = 5
# Name of Adam's state in a run directory.
STATE = "adam"
NOT_FINITE = "the bound is not finite where Adam starts: look for extreme values in the data, or use a larger jitter"


class Unknowns(NamedTuple):
    """What `svgp` climbs over: φ, Z and q(v)."""

    phi: Any
    Z: Any
    q: FactoredGaussian


def starting_unknowns(problem: Problem, plain: bool = False) -> tuple[Unknowns, str]:
    """The prior's medians, the best candidate for Z, and the best q(v) there; and the candidate's name.

    Without Gaussian noise neither the bound of a candidate nor the best q(v) is known: k-means, and N(0, I). `plain`
    starts q(v) there in any case.
    """
    model, phi = problem.model, problem.model.start()
    gaussian = isinstance(model.likelihood, Gaussian)
    if gaussian:
        Z, name = starting_inducing(problem, CollapsedTarget(model, problem.data, problem.jitter), phi)
    elif problem.Z is not None:
        Z, name = problem.Z, "given"
    else:
        Z, name = k_means(problem.rng(0), np.asarray(problem.data.arrays()[0]), problem.n_inducing), "k-means"
    q = FactoredGaussian(np.zeros(len(Z)), np.eye(len(Z)))
    if gaussian and not plain:
        q = best_q(problem, phi, Z) or q
    return Unknowns(phi, Z, q), name


def best_q(problem: Problem, phi: Float[np.ndarray, " P"], Z: Float[np.ndarray, "M D"]) -> FactoredGaussian | None:
    """The best q(v) at θ and Z for Gaussian noise, at which the bound is the collapsed one; None if that fails."""
    with float64_scope():
        best = _optimum(phi, Z, problem.data, model=problem.model, jitter=problem.jitter)
    m, S = np.asarray(best.m), np.asarray(best.S)
    return FactoredGaussian(m, S) if np.all(np.isfinite(m)) and np.all(np.isfinite(S)) else None


@partial(jax.jit, static_argnames=("model", "jitter"))
def _optimum(phi: Any, Z: Any, data: Dataset, model: Model, jitter: Jitter) -> FactoredGaussian:
    return optimal_inducing(factorise(model.gp(model.theta(phi)), Z, data, jitter))


def decaying(problem: Problem) -> Float[np.ndarray, "n 2"]:
    """The settings' rate for half of the steps, then linearly down to nearly zero, so that the noise dies out.

    Where q(v) starts at N(0, I), and knows nothing of the data, it moves alone for the first tenth: θ and Z would run
    away from it.
    """
    settings, steps = problem.settings, ADAM_STEPS * problem.settings.steps
    at = np.arange(steps) / steps
    rates = settings.learning_rate * np.minimum(1.0, 2.0 * (1.0 - at))
    alone = 0.0 if isinstance(problem.model.likelihood, Gaussian) else 0.1
    return np.column_stack([rates, np.where(at < alone, 0.0, rates)])


def climbed(
    problem: Problem,
    objective: Callable,
    x: Any,
    batches: Batches,
    rates: Float[np.ndarray, "n 2"],
    extra: Callable[[int], Any] | None = None,
    plain: bool = False,
) -> Climb:
    """`climb` of objective(x, (rows, extra), (X, y), model, jitter), with its state in the run directory.

    A run that ended goes on where it was, and gives what it would have given without the break.
    """
    M, minutes, saved = len(x.Z), problem.settings.max_minutes, Checkpoint(problem.run)
    saved_at, latest = problem.clock.elapsed, None

    def look(w: ClimbWatch) -> str:
        nonlocal saved_at, latest
        latest = w
        problem.progress.update(w.done, w.steps, f"bound {w.value:.2f}")
        if problem.clock.elapsed - saved_at > watch.SAVE_SECONDS:
            saved.save_state(STATE, w.state())
            saved_at = problem.clock.elapsed
        return "minutes used up" if minutes is not None and problem.clock.elapsed > 60.0 * minutes else ""

    small = 12.0 * M**2 * (batches.size + M) < LARGE
    found = climb(
        objective,
        x,
        problem.data.arrays(),
        (problem.model, problem.jitter),
        batches,
        rates,
        extra=extra,
        plain=plain,
        threads=1 if small else 0,
        watch=look,
        begun=saved.state(STATE),
    )
    if latest is not None:
        with float64_scope():
            saved.save_state(STATE, latest.state())
    return found


def bound_history(problem: Problem, found: Climb) -> list[BoundPoint]:
    """The bound over the steps, as if each had taken as long."""
    n, seconds = len(found.values), problem.clock.elapsed
    return [BoundPoint("optimise", at, seconds * (at + 1) / n, mean, error) for at, mean, error in found.history()]
