"""Where fits begin: the first Z, and the optimum over θ and Z from which sampling starts (Algorithm 1, lines 2-4).

With very many rows a subsample of n rows, whose sums are scaled by N/n, estimates every sum of the collapsed bound. In
θ, a few coordinates, its bound has nearly the curvature of the bound of all rows but not its optimum. So value and
gradient are made equal at one point:

    c(φ) = L_sub(φ, Z) + L(φ₀, Z) - L_sub(φ₀, Z) + aᵀ(φ - φ₀),    a = ∂L(φ₀, Z)/∂φ - ∂L_sub(φ₀, Z)/∂φ

Maximising c, and correcting it where that ends, is Newton's method with a Hessian from a subsample. In Z, hundreds of
coordinates, the curvature of a subsample misleads: Z moves to fit the rows of the subsample. There the subsample only
gives a start, and some steps of L-BFGS with all rows follow.

For methods that draw v, the mode of the joint density is a poor start: a large signal variance lets v be small, which
costs v's prior less than it costs θ's. They start where v is integrated out, by the collapsed bound or by Laplace's
method.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from integrand.bounds.joint import Sites
from integrand.errors import NumericalError
from integrand.inducing import candidates
from integrand.infer.optimise import Curvature, Optimum, maximise_adam, maximise_lbfgs
from integrand.likelihoods import Gaussian
from integrand.methods.problem import FitContext, Problem, Settings
from integrand.precision import float64_scope
from integrand.storage.run_store import WarmStart
from integrand.targets.collapsed import CollapsedTarget
from integrand.targets.evaluation import Evaluation, density, gp_at, likelihood
from integrand.targets.joint import JointTarget, Surrogate

# θ alone, with a subsample: gradients of all rows at most, L-BFGS steps of the subsample between two, the gain (nats)
# that ends the ascent, and the parts of a move that are tried. (`python benchmarks/large_fit.py` counts the passes.)
MAX_THETA_PASSES, _SUBSAMPLE_STEPS, _MIN_GAIN, _MOVE_SHARES = 12, 15, 0.1, (1.0, 0.3, 0.1, 0.03)
# θ and Z, until this many steps together gain less than this: a gain that no prediction shows.
WARM_ENOUGH = (25, 0.1)
# The same after an ascent of a subsample, where each gradient costs a pass: that many gradients, and this many nats.
_WINDOW, _WINDOW_GAIN = 10, 0.5
# Gradients of all rows after an ascent on a subsample: of a warm start, from there to the mode, and of an optimiser.
_WARM_PASSES, MODE_PASSES, OPTIMISER_PASSES = 60, 100, 200
# Distance from the prior's medians, in φ, within which the mode is looked for.
_MAX_DISTANCE = 2.0
# With Laplace's method the sites are fixed during an ascent and made again this many times.
_LAPLACE_ROUNDS = 5

Objective = Callable[[Evaluation], tuple[float, np.ndarray]]
Point = tuple[Float[np.ndarray, " P"], Float[np.ndarray, "M D"]]


class Evaluates(Protocol):
    """A target without inducing points."""

    def evaluate(self, phi: Float[np.ndarray, " P"]) -> Evaluation:
        """Log likelihood and log prior at φ, with their gradients."""
        ...


def starting_inducing(
    problem: Problem, target: CollapsedTarget, phi: Float[np.ndarray, " P"], stream: int = 0
) -> tuple[Float[np.ndarray, "M D"], str]:
    """The first Z: the candidate with the best bound at φ, and its name."""
    if problem.Z is not None:
        return problem.Z, "given"
    rng, m = problem.rng(stream), problem.n_inducing
    with float64_scope():
        X = problem.some_inputs()
        by_name = candidates(rng, X, m, gp_at(problem.model, phi))
    bounds = {name: target.evaluate(phi, Z).log_likelihood for name, Z in by_name.items()}
    best = max(bounds, key=lambda name: bounds[name])
    return by_name[best], best


def warm_start(
    problem: Problem,
    target: CollapsedTarget,
    to_mode: bool = True,
    curvature: Curvature | None = None,
    begin: Point | None = None,
) -> WarmStart:
    """Maximise L over (θ, Z) until hardly anything is gained, from `begin` or the best candidate for Z.

    With `to_mode` Z goes on to the mode of the sampled density, which is nearer to the draws than the ML-II point is.
    `curvature` learns that of the density on the way.
    """
    settings, phi = problem.settings, problem.model.start()
    curvature = Curvature() if curvature is None else curvature
    if problem.use_subsample:
        return _warm_start_with_subsample(problem, target, to_mode, curvature, begin)
    if begin is None:
        Z, name = starting_inducing(problem, target, phi)
    else:
        (phi, Z), name = begin, "fewer points"

    def ascend(phi: np.ndarray, Z: np.ndarray, objective: Objective):
        steps = settings.warm_steps
        return maximise_theta_and_inducing(target, phi, Z, settings, steps, objective, curvature, WARM_ENOUGH)

    phi, Z, optimum = ascend(phi, Z, likelihood)
    mode = phi
    if to_mode:
        mode, Z, _ = ascend(phi, Z, density)
    return WarmStart(phi, Z, optimum.value, name, mode)


def exact_warm_start(problem: Problem, target: Evaluates) -> WarmStart:
    """Maximise the exact log likelihood, or Laplace's log q(y | θ); there is no Z."""
    steps = problem.settings.warm_steps
    optimum = maximise_lbfgs(lambda phi: likelihood(target.evaluate(phi)), problem.model.start(), max_steps=steps)
    return WarmStart(optimum.x, np.zeros((0, problem.model.n_columns)), optimum.value, "", optimum.x)


def maximise_with(
    f: Callable,
    x: np.ndarray,
    settings: Settings,
    steps: int,
    curvature: Curvature | None = None,
    enough: tuple[int, float] = (0, 0.0),
) -> Optimum:
    """Maximise with the optimiser of the settings."""
    if settings.optimiser == "adam":
        return maximise_adam(f, x, max_steps=steps)
    return maximise_lbfgs(f, x, max_steps=steps, enough=enough, curvature=curvature)


def maximise_theta_and_inducing(
    target: CollapsedTarget,
    phi: Float[np.ndarray, " P"],
    Z: Float[np.ndarray, "M D"],
    settings: Settings,
    steps: int,
    objective: Objective,
    curvature: Curvature | None = None,
    enough: tuple[int, float] = (0, 0.0),
) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, "M D"], Optimum]:
    """max over (θ, Z) of L(θ, Z) (equation (8)), or of another objective that adds a function of θ to it."""
    n = len(phi)

    def f(x: np.ndarray):
        e = target.evaluate(x[:n], x[n:].reshape(Z.shape))
        value, d_phi = objective(e)
        return value, np.concatenate([d_phi, e.dZ.ravel()])

    optimum = maximise_with(f, np.concatenate([phi, Z.ravel()]), settings, steps, curvature, enough)
    if not np.isfinite(optimum.value):
        raise NumericalError(
            "the bound is not finite anywhere the optimiser looked: look for extreme values in the data, use "
            "fewer inducing points, or a larger jitter"
        )
    return optimum.x[:n], optimum.x[n:].reshape(Z.shape), optimum


# ---- very many rows


def subsample_of(problem: Problem) -> tuple[CollapsedTarget, Problem]:
    """The bound of the subsample, and the problem as if there were no other rows."""
    assert problem.subsample is not None
    alone = dataclasses.replace(problem, data=problem.subsample, subsample=None)
    return CollapsedTarget(problem.model, problem.subsample, problem.jitter, problem.subsample_counter), alone


def _warm_start_with_subsample(
    problem: Problem, target: CollapsedTarget, to_mode: bool, curvature: Curvature, begin: Point | None
) -> WarmStart:
    """First on a subsample, then some steps with all rows, whose curvature the subsample has taught."""
    subsample, alone = subsample_of(problem)
    start = warm_start(alone, subsample, to_mode=False, curvature=curvature, begin=begin)
    phi, Z, e = maximise_with_all_rows(target, (start.phi, start.Z), likelihood, _WARM_PASSES, curvature)
    mode = phi
    if to_mode:
        mode, Z = _mode_with_subsample(problem, target, subsample, (phi, Z), curvature)
    return WarmStart(phi, Z, e.log_likelihood, start.candidate, mode)


def _mode_with_subsample(
    problem: Problem, target: CollapsedTarget, subsample: CollapsedTarget, point: Point, curvature: Curvature
) -> Point:
    """The mode of the sampled density over (φ, Z).

    Where ML-II ran away (inputs that matter little), the way back to the prior is long. So the ascent starts with φ
    clipped to what the prior thinks possible, if that is better, and most of it is done on the subsample.
    """
    (phi, Z), medians = point, problem.model.start()
    starts = (phi, np.clip(phi, medians - _MAX_DISTANCE, medians + _MAX_DISTANCE), medians)
    best = max(starts, key=lambda x: subsample.evaluate(x, Z).log_density)
    settings = problem.settings
    phi, Z, _ = maximise_theta_and_inducing(
        subsample, best, Z, settings, settings.lbfgs_steps, density, curvature, WARM_ENOUGH
    )
    return maximise_with_all_rows(target, (phi, Z), density, MODE_PASSES, curvature)[:2]


class CorrectedSubsampleBound:
    """c(φ): the bound of a subsample at a fixed Z, with the value and gradient of all rows at one φ."""

    def __init__(self, subsample: CollapsedTarget, point: Point, of_all_rows: Evaluation):
        self.subsample, (self.phi, self.Z) = subsample, point
        of_subsample = subsample.evaluate(*point)
        self.d_phi = of_all_rows.d_likelihood - of_subsample.d_likelihood
        self.constant = of_all_rows.log_likelihood - of_subsample.log_likelihood

    def evaluate(self, phi: Float[np.ndarray, " P"]) -> Evaluation:
        """c and its gradient in φ in the place of the bound; the gradient in Z is that of the subsample."""
        e = self.subsample.evaluate(phi, self.Z)
        linear = self.constant + self.d_phi @ (phi - self.phi)
        return e._replace(log_likelihood=e.log_likelihood + linear, d_likelihood=e.d_likelihood + self.d_phi)


def maximise_theta(
    all_rows: CollapsedTarget,
    subsample: CollapsedTarget,
    point: Point,
    objective: Objective,
    max_passes: int = MAX_THETA_PASSES,
) -> tuple[Float[np.ndarray, " P"], Evaluation]:
    """Maximise an objective of all rows over φ by corrected ascents of the subsample; the objective never falls.

    The correction holds near the point where it was made, so each ascent is short. Where all rows say that it went too
    far it is shortened. `max_passes` limits the gradients of all rows; a shortened ascent costs a value besides.
    """
    phi, Z = point
    current = all_rows.evaluate(phi, Z)
    for _ in range(max_passes):
        corrected = CorrectedSubsampleBound(subsample, (phi, Z), current)
        move = maximise_lbfgs(lambda x, c=corrected: objective(c.evaluate(x)), phi, max_steps=_SUBSAMPLE_STEPS).x - phi
        proposal = _improving_part(all_rows, subsample, (phi, Z), move, objective(current)[0], objective)
        if proposal is None:
            break
        before, current, phi = current, all_rows.evaluate(proposal, Z), proposal
        if objective(current)[0] - objective(before)[0] < _MIN_GAIN:
            break
    return phi, current


def _improving_part(
    all_rows: CollapsedTarget,
    subsample: CollapsedTarget,
    point: Point,
    move: np.ndarray,
    value: float,
    objective: Objective,
) -> np.ndarray | None:
    """The end of the longest part of the move at which the objective of all rows is above `value`."""
    phi, Z = point
    for share in _MOVE_SHARES:
        proposal = phi + share * move
        # The prior is that of the subsample's evaluation, the bound that of all rows.
        e = subsample.evaluate(proposal, Z)._replace(log_likelihood=all_rows.value(proposal, Z))
        if objective(e)[0] > value:
            return proposal
    return None


def maximise_with_all_rows(
    all_rows: CollapsedTarget,
    point: Point,
    objective: Objective,
    max_passes: int,
    curvature: Curvature | None = None,
) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, "M D"], Evaluation]:
    """Maximise an objective over (φ, Z) by L-BFGS with all rows, from where the ascent of a subsample has ended.

    Ends after `max_passes` gradients, or when the last ten together gained less than half a nat.
    """
    (phi, Z), n = point, len(point[0])
    values: list[float] = []
    best: list[Evaluation] = []  # the last entry is the best so far

    def f(x: np.ndarray) -> tuple[float, np.ndarray]:
        e = all_rows.evaluate(x[:n], x[n:].reshape(Z.shape))
        value, d_phi = objective(e)
        if not best or value > max(values):
            best.append(e)
        values.append(value)
        return value, np.concatenate([d_phi, e.dZ.ravel()])

    def enough(x: np.ndarray, value: float) -> str:
        if len(values) >= max_passes:
            return "passes used up"
        return "hardly any gain" if value - max(values[:-_WINDOW], default=-np.inf) < _WINDOW_GAIN else ""

    x = np.concatenate([phi, Z.ravel()])
    optimum = maximise_lbfgs(f, x, max_steps=max_passes, curvature=curvature, callback=enough)
    if optimum.ended == "interrupted":
        raise KeyboardInterrupt
    return optimum.x[:n], optimum.x[n:].reshape(Z.shape), best[-1]


# ---- methods that draw v


def joint_start(problem: Problem, target: JointTarget) -> WarmStart:
    """The warm start of Algorithm 1 for Gaussian noise, else a mode of φ and Z under Laplace's approximation."""
    if isinstance(problem.model.likelihood, Gaussian):
        collapsed = CollapsedTarget(problem.model, problem.data, problem.jitter, target.counter)
        return warm_start(problem, collapsed)
    phi = problem.model.start()
    Z, name = laplace_candidate(problem, target, phi)
    value = -np.inf
    for _ in range(_LAPLACE_ROUNDS):
        before = value
        phi, Z, value = _maximise_with_sites(problem, target, phi, Z)
        if value - before < 1e-2:
            break
    if not np.isfinite(value):
        raise NumericalError(
            "the density is not finite anywhere the optimiser looked: look for extreme values in the data, use "
            "fewer inducing points, or a larger jitter"
        )
    return WarmStart(phi, Z, log_evidence(target, phi, Z), name, phi)


def _maximise_with_sites(
    problem: Problem, target: JointTarget, phi: Float[np.ndarray, " P"], Z: Float[np.ndarray, "M D"]
) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, "M D"], float]:
    """Some steps up Laplace's approximation over φ and Z, with the sites of where they start; and the value there."""
    sites, n, M = target.sites(phi, Z), len(phi), len(Z)

    def log_density(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = target.evaluate_with_Z(np.concatenate([x, np.zeros(M)]), sites)
        return value, gradient[:-M]

    steps = max(1, problem.settings.warm_steps // _LAPLACE_ROUNDS)
    optimum = maximise_with(log_density, np.concatenate([phi, Z.ravel()]), problem.settings, steps)
    return optimum.x[:n], optimum.x[n:].reshape(Z.shape), optimum.value


def log_evidence(target: JointTarget, phi: Float[np.ndarray, " P"], Z: Float[np.ndarray, "M D"]) -> float:
    """Log p(y | θ) with v integrated out by Laplace's method; for Gaussian noise the collapsed bound, exactly."""
    x = np.concatenate([phi, np.zeros(len(Z))])
    with float64_scope():
        log_prior = float(target.model.log_prior(jnp.asarray(phi)))
    return target.evaluate(x, Z, target.sites(phi, Z))[0] - log_prior + 0.5 * len(Z) * math.log(2.0 * math.pi)


def laplace_candidate(
    problem: Problem, target: JointTarget, phi: Float[np.ndarray, " P"]
) -> tuple[Float[np.ndarray, "M D"], str]:
    """The first Z: the candidate with the best evidence of Laplace's method at φ, and its name.

    A candidate that cannot be factored loses; the error is raised if none can.
    """
    if problem.Z is not None:
        return problem.Z, "given"
    with float64_scope():
        rows = np.asarray(problem.data.arrays()[0])
        by_name = candidates(problem.rng(0), rows, problem.n_inducing, gp_at(problem.model, phi))
    evidence, errors = {}, []
    for name, Z in by_name.items():
        try:
            evidence[name] = log_evidence(target, phi, Z)
        except NumericalError as error:
            errors.append(error)
    if not evidence:
        raise errors[0]
    best = max(evidence, key=lambda name: evidence[name])
    return by_name[best], best


def saved_surrogate(
    context: FitContext, target: JointTarget, start: WarmStart, rows: Int[np.ndarray, " n"] | None = None
) -> Surrogate:
    """The sites at the warm start, of these rows or of all; kept in the run directory.

    Draws of ε mean nothing without the sites that they were drawn with.
    """
    rows = np.zeros(0, int) if rows is None else rows
    saved = context.store.state("sites")
    if saved is not None:
        return Surrogate(Sites(saved["linear"], saved["precision"]), target.some(saved["rows"]))
    surrogate = target.surrogate(start.phi, start.Z, rows)
    context.store.save_state("sites", surrogate.sites._asdict() | {"rows": rows})
    return surrogate
