"""`gpr-hmc`: the exact GP with its hyperparameters drawn from p(θ | y) ∝ p(θ) p(y | θ), for data of moderate size.

N³ time a gradient, in closed form. This is what the sparse methods approximate.
"""

from integrand.methods.density import Density, metric
from integrand.methods.optimised import exact_warm_start
from integrand.methods.problem import Problem
from integrand.methods.sampling import Sampling
from integrand.posterior.conditional import exact_conditional
from integrand.posterior.posterior import Posterior
from integrand.targets import ExactTarget, density

# Each draw that predicts keeps a factor of 8 N² bytes; so many are kept as fit into this, but at least one a chain.
FACTOR_BYTES = 512 * 2**20


def gpr_hmc(problem: Problem) -> Posterior:
    """Climb to the ML-II point, take the metric from the Hessian at the mode, and draw until converged."""
    problem.refuse_many_rows()
    target = ExactTarget(problem.model, problem.data)
    with Sampling.of(problem, target.counter, target.threads) as sampling:
        return _fit(problem, target, sampling)


def _fit(problem: Problem, target: ExactTarget, sampling: Sampling) -> Posterior:
    model = problem.model
    sampled = Density(lambda phi: density(target.evaluate(phi)), target.traced, values=target.log_densities)
    start = sampling.warm_start(lambda: exact_warm_start(problem, target), *sampling.loading(jumps=True))
    sampling.enter("metric")
    whitening = metric(sampled, (start.phi, model.start()))
    chains = sampling.or_one(sampling.final_draws(sampled, whitening), sampled, start.phi)
    sampling.enter("conditional")
    drawn = sampling.thinned(chains, most_factors(problem, sampling.notes))
    conditional = exact_conditional(model, drawn, problem.data)
    return sampling.posterior("gpr-hmc", chains, conditional, start.phi)


def most_factors(problem: Problem, notes: list[str]) -> int:
    """How many draws may predict, noted where that is fewer than were asked for."""
    settings = problem.settings
    most = max(settings.chains, FACTOR_BYTES // (8 * problem.data.n_rows**2))
    if most < settings.predictive_draws:
        notes.append(f"{most} draws predict, not {settings.predictive_draws}: each keeps an N x N factor.")
    return most
