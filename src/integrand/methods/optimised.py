"""Methods that return one θ: `ml2` and `map` with inducing points, `gpr-ml2` and `gpr-map` without."""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from integrand.errors import InputError, NumericalError
from integrand.infer.optimise import Optimum, maximise_adam, maximise_lbfgs
from integrand.infer.threads import one_blas_thread
from integrand.methods.checkpoint import WarmStart
from integrand.methods.corrected import Objective, Point, climb_with_all
from integrand.methods.paper_schedule import paper_sgpr
from integrand.methods.problem import Problem, Settings, one_draw, starting_inducing
from integrand.posterior.conditional import exact_conditional, sparse_conditional
from integrand.posterior.posterior import BoundPoint, Posterior
from integrand.targets import CollapsedTarget, ExactTarget, density, likelihood, penalised
from integrand.targets.laplace import LaplaceTarget

# Gradients of all rows, where there are many and a sample of them has climbed before: of a warm start, of its way on to
# the mode, and of a method that only optimises.
_WARM_PASSES, _MODE_PASSES, _OPTIMISER_PASSES = 60, 100, 200
# Distance from the prior's medians, in φ, within which the mode is looked for.
_REACH = 2.0


def climb(f: Callable, x: np.ndarray, settings: Settings, steps: int) -> Optimum:
    """Maximise with the optimiser of the settings."""
    maximise = maximise_adam if settings.optimiser == "adam" else maximise_lbfgs
    return maximise(f, x, max_steps=steps)


def climb_theta_and_inducing(
    target: CollapsedTarget,
    phi: Float[np.ndarray, " P"],
    Z: Float[np.ndarray, "M D"],
    settings: Settings,
    steps: int,
    objective: Objective,
) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, "M D"], Optimum]:
    """max over (θ, Z) of L(θ, Z) (equation (8)), or of another objective that adds a function of θ to it."""
    n = len(phi)

    def f(x: np.ndarray):
        e = target.evaluate(x[:n], x[n:].reshape(Z.shape))
        value, d_phi = objective(e)
        return value, np.concatenate([d_phi, e.dZ.ravel()])

    optimum = climb(f, np.concatenate([phi, Z.ravel()]), settings, steps)
    if not np.isfinite(optimum.value):
        raise NumericalError(
            "the bound is not finite anywhere the optimiser looked: look for extreme values in the data, use "
            "fewer inducing points, or a larger jitter"
        )
    return optimum.x[:n], optimum.x[n:].reshape(Z.shape), optimum


def warm_start(problem: Problem, target: CollapsedTarget, to_mode: bool = True) -> WarmStart:
    """Lines 2-4 of Algorithm 1: climb L over (θ, Z) for a fixed number of steps, from the best candidate for Z.

    With `to_mode` Z goes on to the mode of the sampled density, which is nearer to the draws than the ML-II point is.
    """
    settings, phi = problem.settings, problem.model.start()
    if problem.grows:
        return _warm_start_by_sample(problem, target, to_mode)
    Z, name = starting_inducing(problem, target, phi)
    phi, Z, optimum = climb_theta_and_inducing(target, phi, Z, settings, settings.warm_steps, likelihood)
    mode = phi
    if to_mode:
        mode, Z, _ = climb_theta_and_inducing(target, phi, Z, settings, settings.warm_steps, density)
    return WarmStart(phi, Z, optimum.value, name, mode)


def _warm_start_by_sample(problem: Problem, target: CollapsedTarget, to_mode: bool) -> WarmStart:
    """The same with many rows: first on a sample of them, then some steps with all."""
    near, alone = sample_of(problem)
    begun = warm_start(alone, near, to_mode=False)
    phi, Z, e = climb_with_all(target, (begun.phi, begun.Z), likelihood, _WARM_PASSES)
    mode = phi
    if to_mode:
        mode, Z = _mode_of_all(problem, target, near, (phi, Z))
    return WarmStart(phi, Z, e.log_likelihood, begun.candidate, mode)


def _mode_of_all(problem: Problem, target: CollapsedTarget, near: CollapsedTarget, at: Point) -> Point:
    """The mode of the sampled density over (φ, Z).

    Where ML-II ran away (inputs that matter little) the way back to the prior is long: it begins with φ held to what
    the prior thinks possible, if that is better, and most of it is the sample's to go.
    """
    (phi, Z), middle = at, problem.model.start()
    starts = (phi, np.clip(phi, middle - _REACH, middle + _REACH), middle)
    best = max(starts, key=lambda x: near.evaluate(x, Z).log_density)
    phi, Z, _ = climb_theta_and_inducing(near, best, Z, problem.settings, problem.settings.steps, density)
    return climb_with_all(target, (phi, Z), density, _MODE_PASSES)[:2]


def sample_of(problem: Problem) -> tuple[CollapsedTarget, Problem]:
    """The bound of the sample that stands for all rows, and the problem as if there were no other rows."""
    assert problem.sample is not None
    alone = dataclasses.replace(problem, data=problem.sample, sample=None)
    return CollapsedTarget(problem.model, problem.sample, problem.jitter, problem.sample_counter), alone


def exact_warm_start(problem: Problem, target: ExactTarget | LaplaceTarget) -> WarmStart:
    """Climb the exact log likelihood, or Laplace's log q(y | θ); there is no Z."""
    steps = problem.settings.warm_steps
    climbed = maximise_lbfgs(lambda phi: likelihood(target.evaluate(phi)), problem.model.start(), max_steps=steps)
    return WarmStart(climbed.x, np.zeros((0, problem.model.n_columns)), climbed.value, "", climbed.x)


def starting_points(problem: Problem, restarts: int) -> list[Float[np.ndarray, " P"]]:
    """The medians of the priors, then points around them, a standard deviation wide in φ."""
    first = problem.model.start()
    rng = problem.rng(1)
    return [first] + [first + rng.standard_normal(len(first)) for _ in range(restarts - 1)]


def fit_sparse(problem: Problem, with_prior: bool) -> Posterior:
    """`ml2` (SGPR with ML-II) or `map`: the best of several starts."""
    settings, clock = problem.settings, problem.clock
    if settings.schedule == "paper":
        if with_prior:
            raise InputError("the paper has no schedule for map: leave `schedule` out")
        return paper_sgpr(problem)
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)
    method = "map" if with_prior else "ml2"
    clock.enter("optimise")
    problem.progress.phase("optimise θ and Z")
    found, objective = [], penalised if with_prior else likelihood
    with one_blas_thread(target.threads(problem.n_inducing) == 1):
        for k, phi in enumerate(starting_points(problem, settings.restarts)):
            found.append(_climbed(problem, target, phi, k, objective))
            problem.progress.update(k + 1, settings.restarts, f"bound {found[-1][2].value:.2f}")
    phi, Z, optimum, name = max(found, key=lambda result: result[2].value)
    clock.enter("conditional")
    conditional = sparse_conditional(phi[None], Z, target.factored)
    clock.enter("")
    return Posterior(
        method=method,
        model=problem.model,
        scaler=problem.scaler,
        jitter=problem.jitter,
        chains=one_draw(phi, optimum.value),
        conditional=conditional,
        verdict=None,
        optimum=phi,
        history=_history(optimum, clock.elapsed),
        Z_path=Z[None],
        seconds=dict(clock.seconds),
        counts={"gradients": target.counter.gradients, "failures": target.counter.failures},
        notes=(f"Z started from {name}.", optimum.message.capitalize() + "."),
    )


def _climbed(
    problem: Problem, target: CollapsedTarget, phi: np.ndarray, k: int, objective: Objective
) -> tuple[np.ndarray, np.ndarray, Optimum, str]:
    """The climb from one start; with many rows on a sample of them first, then with all."""
    settings = problem.settings
    if not problem.grows:
        Z, name = starting_inducing(problem, target, phi, purpose=k)
        return *climb_theta_and_inducing(target, phi, Z, settings, settings.steps, objective), name
    near, alone = sample_of(problem)
    Z, name = starting_inducing(alone, near, phi, purpose=k)
    phi, Z, optimum = climb_theta_and_inducing(near, phi, Z, settings, settings.steps, objective)
    phi, Z, e = climb_with_all(target, (phi, Z), objective, _OPTIMISER_PASSES)
    if not np.isfinite(e.log_likelihood):
        raise NumericalError("the bound of all rows is not finite where that of a sample is: use a larger jitter")
    return phi, Z, dataclasses.replace(optimum, value=objective(e)[0]), name


def fit_exact(problem: Problem, with_prior: bool) -> Posterior:
    """`gpr-ml2` or `gpr-map`: the exact marginal likelihood, for data of moderate size."""
    problem.refuse_many_rows()
    settings, clock = problem.settings, problem.clock
    target = ExactTarget(problem.model, problem.data)
    clock.enter("optimise")
    problem.progress.phase("optimise θ")

    def f(phi: np.ndarray):
        return (penalised if with_prior else likelihood)(target.evaluate(phi))

    found = [climb(f, phi, settings, settings.steps) for phi in starting_points(problem, settings.restarts)]
    optimum = max(found, key=lambda result: result.value)
    if not np.isfinite(optimum.value):
        raise NumericalError("the marginal likelihood is not finite anywhere: look for extreme values in the data")
    clock.enter("conditional")
    conditional = exact_conditional(problem.model, optimum.x[None], problem.data)
    clock.enter("")
    return Posterior(
        method="gpr-map" if with_prior else "gpr-ml2",
        model=problem.model,
        scaler=problem.scaler,
        jitter=problem.jitter,
        chains=one_draw(optimum.x, optimum.value),
        conditional=conditional,
        verdict=None,
        optimum=optimum.x,
        history=_history(optimum, clock.elapsed),
        Z_path=None,
        seconds=dict(clock.seconds),
        counts={"gradients": target.counter.gradients, "failures": target.counter.failures},
        notes=(optimum.message.capitalize() + ".",),
    )


def _history(optimum: Optimum, seconds: float) -> tuple[BoundPoint, ...]:
    n = max(len(optimum.history), 1)
    return tuple(
        BoundPoint("optimise", i, seconds * (i + 1) / n, float(value), 0.0) for i, value in enumerate(optimum.history)
    )
