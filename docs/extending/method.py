"""A method to copy: the exact GP, its hyperparameters drawn by NUTS.

A method is a function `(Problem, FitContext) -> Posterior`. The Problem is immutable input: model, standardised data,
settings. The FitContext holds what changes: clock, notes, history and the run store.

Put the file into `integrand/methods/` and add a row to `METHODS` in `integrand/methods/table.py`:

    Method("gpr-nuts", "exact GP, θ drawn by NUTS", "gpr_nuts", "gpr_nuts", draws=True, sparse=False),

From there on `fit`, the estimators and the command line offer it, and the contract tests of all methods run it.
"""

from integrand.compilation import one_blas_thread
from integrand.infer.coordinates import coordinates_at_mode
from integrand.infer.nuts import NUTS
from integrand.methods.problem import FitContext, Problem
from integrand.methods.sampling import draw_until_converged, one_draw
from integrand.methods.warm_start import exact_warm_start
from integrand.posterior.conditional import exact_conditional
from integrand.posterior.posterior import Posterior
from integrand.targets.exact import ExactTarget


def gpr_nuts(problem: Problem, context: FitContext) -> Posterior:
    """Maximise, take coordinates from the Hessian at the mode, and draw until converged."""
    problem.refuse_many_rows()
    target = ExactTarget(problem.model, problem.data)
    with one_blas_thread(target.threads == 1):
        # From the run directory if this fit is resumed.
        start = context.warm_start(lambda: exact_warm_start(problem, target))
        context.phase("metric")
        coordinates = coordinates_at_mode(target.value_and_gradient, (start.phi, problem.model.start()))
        # Checks R-hat and ESS while the chains run, and writes the draws to the run directory.
        chains = draw_until_converged(context, target, NUTS(), coordinates) or one_draw(start.phi, target)
        context.phase("conditional")
        conditional = exact_conditional(problem.model, context.thinned(chains), problem.data)
        return context.sampled(chains, conditional, optimum=start.phi, counter=target.counter)
