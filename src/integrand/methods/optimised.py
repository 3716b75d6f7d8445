"""Methods that return one θ: `ml2` and `map` with inducing points, `gpr-ml2` and `gpr-map` without."""

import dataclasses

import numpy as np
from jaxtyping import Float

from integrand.compilation import one_blas_thread
from integrand.errors import InputError, NumericalError
from integrand.infer.base import Chains
from integrand.infer.optimise import Optimum
from integrand.infer.verdict import optimised
from integrand.methods.paper_schedule import paper_sgpr
from integrand.methods.problem import FitContext, Problem
from integrand.methods.warm_start import (
    OPTIMISER_PASSES,
    Objective,
    maximise_theta_and_inducing,
    maximise_with,
    maximise_with_all_rows,
    starting_inducing,
    subsample_of,
)
from integrand.posterior.conditional import exact_conditional, sparse_conditional
from integrand.posterior.posterior import BoundPoint, Posterior
from integrand.targets.collapsed import CollapsedTarget
from integrand.targets.evaluation import likelihood, penalised
from integrand.targets.exact import ExactTarget


def starting_points(problem: Problem, restarts: int) -> list[Float[np.ndarray, " P"]]:
    """The medians of the priors, then points around them, a standard deviation wide in φ."""
    first = problem.model.start()
    rng = problem.rng(1)
    return [first] + [first + rng.standard_normal(len(first)) for _ in range(restarts - 1)]


def fit_sparse(problem: Problem, context: FitContext, with_prior: bool) -> Posterior:
    """`ml2` (SGPR with ML-II) or `map`: the best of several starts."""
    settings = problem.settings
    if settings.schedule == "paper":
        if with_prior:
            raise InputError("the paper has no schedule for map: leave `schedule` out")
        return paper_sgpr(problem, context)
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)
    context.clock.enter("optimise")
    context.progress.phase("optimise θ and Z")
    results, objective = [], penalised if with_prior else likelihood
    with one_blas_thread(target.threads(problem.n_inducing) == 1):
        for k, phi in enumerate(starting_points(problem, settings.restarts)):
            results.append(_maximised(problem, target, phi, k, objective))
            context.progress.update(k + 1, settings.restarts, f"bound {results[-1][2].value:.2f}")
    phi, Z, optimum, name = max(results, key=lambda result: result[2].value)
    context.clock.enter("conditional")
    conditional = sparse_conditional(phi[None], Z, target.inducing_posterior)
    context.history += _history(optimum, context.clock.elapsed)
    context.notes += [f"Z started from {name}.", optimum.message.capitalize() + "."]
    chains = Chains.of_one_point(phi, optimum.value)
    verdict = optimised((), problem.model.names, target.counter.failures, target.counter.gradients)
    return context.posterior(chains, conditional, optimum=phi, counter=target.counter, verdict=verdict, Z_path=Z[None])


def _maximised(
    problem: Problem, target: CollapsedTarget, phi: np.ndarray, k: int, objective: Objective
) -> tuple[np.ndarray, np.ndarray, Optimum, str]:
    """The optimum from one start; with very many rows on a subsample of them first, then with all."""
    settings = problem.settings
    if not problem.use_subsample:
        Z, name = starting_inducing(problem, target, phi, stream=k)
        return *maximise_theta_and_inducing(target, phi, Z, settings, settings.lbfgs_steps, objective), name
    subsample, alone = subsample_of(problem)
    Z, name = starting_inducing(alone, subsample, phi, stream=k)
    phi, Z, optimum = maximise_theta_and_inducing(subsample, phi, Z, settings, settings.lbfgs_steps, objective)
    phi, Z, e = maximise_with_all_rows(target, (phi, Z), objective, OPTIMISER_PASSES)
    if not np.isfinite(e.log_likelihood):
        raise NumericalError("the bound of all rows is not finite where that of a subsample is: use a larger jitter")
    return phi, Z, dataclasses.replace(optimum, value=objective(e)[0]), name


def fit_exact(problem: Problem, context: FitContext, with_prior: bool) -> Posterior:
    """`gpr-ml2` or `gpr-map`: the exact marginal likelihood, for data of moderate size."""
    problem.refuse_many_rows()
    settings, target = problem.settings, ExactTarget(problem.model, problem.data)
    context.clock.enter("optimise")
    context.progress.phase("optimise θ")

    def f(phi: np.ndarray):
        return (penalised if with_prior else likelihood)(target.evaluate(phi))

    optima = [
        maximise_with(f, phi, settings, settings.lbfgs_steps) for phi in starting_points(problem, settings.restarts)
    ]
    optimum = max(optima, key=lambda result: result.value)
    if not np.isfinite(optimum.value):
        raise NumericalError("the marginal likelihood is not finite anywhere: look for extreme values in the data")
    context.clock.enter("conditional")
    conditional = exact_conditional(problem.model, optimum.x[None], problem.data)
    context.history += _history(optimum, context.clock.elapsed)
    context.notes.append(optimum.message.capitalize() + ".")
    chains = Chains.of_one_point(optimum.x, optimum.value)
    verdict = optimised((), problem.model.names, target.counter.failures, target.counter.gradients)
    return context.posterior(chains, conditional, optimum=optimum.x, counter=target.counter, verdict=verdict)


def _history(optimum: Optimum, seconds: float) -> list[BoundPoint]:
    n = max(len(optimum.history), 1)
    return [
        BoundPoint("optimise", i, seconds * (i + 1) / n, float(value), 0.0) for i, value in enumerate(optimum.history)
    ]
