"""`gpr-hmc`: the exact GP with its hyperparameters drawn from p(θ | y) ∝ p(θ) p(y | θ), for data of moderate size.

A gradient takes N³ time, in closed form. This is what the sparse methods approximate.
"""

from integrand.compilation import one_blas_thread
from integrand.errors import counted
from integrand.infer.coordinates import coordinates_at_mode
from integrand.methods.problem import FitContext, Problem
from integrand.methods.sampling import draw_until_converged, one_draw, sampler_for
from integrand.methods.warm_start import exact_warm_start
from integrand.posterior.conditional import FACTOR_BYTES, exact_conditional
from integrand.posterior.posterior import Posterior
from integrand.targets.exact import ExactTarget


def gpr_hmc(problem: Problem, context: FitContext) -> Posterior:
    """Maximise to the ML-II point, take coordinates from the Hessian at the mode, and draw until converged."""
    problem.refuse_many_rows()
    target = ExactTarget(problem.model, problem.data)
    with one_blas_thread(target.threads == 1):
        start = context.warm_start(lambda: exact_warm_start(problem, target))
        context.phase("metric")
        coordinates = coordinates_at_mode(target.value_and_gradient, (start.phi, problem.model.start()))
        chains = draw_until_converged(context, target, sampler_for(problem.settings, target), coordinates)
        chains = chains or one_draw(start.phi, target)
        context.phase("conditional")
        draws = context.thinned(chains, max_factors(problem, context))
        conditional = exact_conditional(problem.model, draws, problem.data)
        return context.sampled(chains, conditional, optimum=start.phi, counter=target.counter)


def max_factors(problem: Problem, context: FitContext) -> int:
    """How many draws may predict, at least one for each chain; noted where that is fewer than were asked for."""
    settings = problem.settings
    limit = max(settings.chains, FACTOR_BYTES // (8 * problem.data.n_rows**2))
    if limit < settings.predictive_draws:
        context.notes.append(
            f"{counted(limit, 'draw')} predict, not {settings.predictive_draws}: each keeps an N x N factor."
        )
    return limit
