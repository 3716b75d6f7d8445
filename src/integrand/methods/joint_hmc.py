"""`joint-hmc` and `bsgp`: hyperparameters and inducing values drawn together, with any likelihood.

`joint-hmc`, the paper's JointHMC (Hensman et al. 2015):

    log p(θ) + log N(v; 0, I) + Σₙ E log p(yₙ | f(xₙ)),   u = L v,  Z fixed after the warm start

Where the noise is small v is narrow and moves with θ. NUTS and HMC therefore draw ε, with v = m(θ) + LB(θ)⁻ᵀ ε the
Gaussian that v has under sites (`bounds/joint.py`). For Gaussian noise ε and θ are then independent, for other
likelihoods nearly so. SG-HMC uses a batch of rows in each step; its sites are those of a sample of rows that represent
all. The verdict is on θ alone.

`schedule="paper"` is the schedule of the paper's runs: 100 steps of L-BFGS on θ, v and Z, then one chain of HMC over
(θ, v) with 10 leapfrog steps, 500 draws of warm-up and 500 draws of which 50 predict. There is one difference: warm-up
adapts the step size for an acceptance of 0.8, from P^(-1/4) for P coordinates. With the paper's fixed step of 0.01 a
chain never moves on data with little noise (yacht). The paper's priors were Gamma(2, 1) on the lengthscales and on the
*variances* of signal and noise, which users can choose: `scale=on_variance(Gamma(2.0, 1.0))` and so on.

`bsgp` (Rossi et al. 2021, Sparse Gaussian processes revisited) draws Z too, by SG-HMC:

    log p(θ) + log N(v; 0, I) + log N(Z; 0, I) + Σₙ E log p(yₙ | f(xₙ)),   u = L v,  Z for standardised inputs

Inducing points may trade places, so the verdict is on θ alone. Every draw predicts with its own Z.
"""

import numpy as np

from integrand.bounds.joint import Sites
from integrand.compilation import one_blas_thread
from integrand.errors import InputError
from integrand.infer.base import Chains
from integrand.infer.blackjax_kernels import BlackJaxKernel
from integrand.infer.coordinates import Coordinates, coordinates_at_mode
from integrand.infer.optimise import maximise_lbfgs
from integrand.infer.sghmc import SGHMC, SafeStepSGHMC
from integrand.infer.verdict import Finding
from integrand.methods.problem import FitContext, Problem, Settings
from integrand.methods.sampling import draw_until_converged, one_draw, sampler_for
from integrand.methods.warm_start import joint_start, laplace_candidate, log_evidence, saved_surrogate
from integrand.posterior.conditional import VariationalConditional
from integrand.posterior.posterior import Posterior
from integrand.storage.run_store import WarmStart
from integrand.targets.joint import JointFromRows, JointTarget

# The paper's schedule: steps of L-BFGS, draws of one chain in warm-up and after it, draws that predict.
PAPER_STEPS, PAPER_WARMUP, PAPER_DRAWS, PAPER_PREDICTIVE = 100, 500, 500, 50
PAPER_LEAPFROG, PAPER_ACCEPT = 10, 0.8

# Rows with sites: this many, or four for each inducing point, so that they determine v.
SITE_ROWS, SITE_ROWS_PER_POINT = 500, 4
# Warm-up of SG-HMC at least: it also lets the chains forget where they started.
MIN_WARMUP = 100
# Draws whose density is checked in the end, and the share of them that may be outside the posterior before the verdict
# is bad.
CHECKED_DRAWS, MAX_OUTSIDE = 40, 0.05
# A Gaussian is half a nat per dimension below its peak; a draw much lower than that is outside the posterior.
OUTSIDE_NATS_PER_DIMENSION, OUTSIDE_NATS = 2.0, 20.0
# Step size of SG-HMC where Z moves too, a quarter of the default: the density is further from a Gaussian.
MOVING_STEP_SIZE, MOVING_STEP_SIZE_OF_SHARE = 0.05, 0.075
# Acceptance to aim at where y is one of two classes and nothing else was asked for: the density of v then has a wall
# where a row changes sides and a long slope beyond, which steps for an acceptance of 0.7 overshoot.
CLASSES_ACCEPT = 0.95
# Multiplications that a Hessian in θ and Z may take; with more, Z is given this width instead.
MAX_WORK, Z_WIDTH = 2e12, 0.05


def joint_hmc(problem: Problem, context: FitContext) -> Posterior:
    """Warm start, coordinates from the Hessian at the mode, and draws until θ has converged."""
    joint = JointTarget(problem.model, problem.data, problem.jitter)
    with one_blas_thread(joint.threads(problem.n_inducing) == 1):
        if problem.settings.schedule == "paper":
            return _paper_schedule(problem, context, joint)
        if problem.settings.sampler == "sghmc":
            return _by_sghmc(problem, context, joint)
        return _by_hmc(problem, context, joint)


def bsgp(problem: Problem, context: FitContext) -> Posterior:
    """The warm start of `joint-hmc`, coordinates from the Hessian in (φ, Z) with v at its mode, then SG-HMC."""
    joint = JointTarget(problem.model, problem.data, problem.jitter)
    with one_blas_thread(joint.threads(problem.n_inducing) == 1):
        start = context.warm_start(lambda: joint_start(problem, joint))
        context.phase("metric")
        outer = _coordinates_of_theta_and_Z(problem, joint, start)
        chains, (phis, Z, v) = _draw_by_sghmc(problem, context, joint, start, outer, move_Z=True)
        return _posterior(context, joint, start, chains, _conditional(phis, Z, v), [start.Z, Z.mean(axis=0)])


def _by_hmc(problem: Problem, context: FitContext, joint: JointTarget) -> Posterior:
    """NUTS or HMC over (φ, ε)."""
    n = problem.model.n_theta
    start = context.warm_start(lambda: joint_start(problem, joint))
    context.phase("metric")
    sites, rows = saved_surrogate(context, joint, start)
    if rows.n_rows < problem.data.n_rows:
        raise InputError("this run was begun with sampler='sghmc' on some rows: others cannot go on from its draws")
    target = joint.at(start.Z, sites)
    if problem.model.likelihood.largest == 1 and problem.settings.target_accept == Settings.target_accept:
        context.target_accept = CLASSES_ACCEPT
    of_theta = _coordinates_of_theta(problem, joint, start, sites)
    coordinates = _with_white(of_theta, np.zeros(len(start.Z)))
    chains = draw_until_converged(context, target, sampler_for(problem.settings, target), coordinates)
    chains = chains or one_draw(np.concatenate([start.phi, np.zeros(len(start.Z))]), target)
    context.phase("conditional")
    x = context.thinned(chains)
    v = np.array([joint.inducing_values(draw[:n], draw[n:], start.Z, sites)[0] for draw in x])
    return _posterior(context, joint, start, chains, _conditional(x[:, :n], start.Z, v), [start.Z])


def _by_sghmc(problem: Problem, context: FitContext, joint: JointTarget) -> Posterior:
    """SG-HMC over (φ, ε)."""
    start = context.warm_start(lambda: joint_start(problem, joint))
    context.phase("metric")
    outer = _coordinates_of_theta(problem, joint, start, joint.sites(start.phi, start.Z))
    chains, (phis, _, v) = _draw_by_sghmc(problem, context, joint, start, outer, move_Z=False)
    return _posterior(context, joint, start, chains, _conditional(phis, start.Z, v), [start.Z])


def _paper_schedule(problem: Problem, context: FitContext, joint: JointTarget) -> Posterior:
    """HMC over (φ, v) with the paper's numbers, from the end of L-BFGS over everything."""
    n, phi = problem.model.n_theta, problem.model.start()
    context.phase("warm start")
    Z, name = laplace_candidate(problem, joint, phi)
    first = np.concatenate([phi, Z.ravel(), np.zeros(len(Z))])
    optimum = maximise_lbfgs(joint.evaluate_with_Z, first, max_steps=PAPER_STEPS)
    phi, Z, v = joint.split(optimum.x)
    x, start = np.concatenate([phi, v]), WarmStart(phi, Z, log_evidence(joint, phi, Z), name, phi)
    context.record_bound("warm start", 0, start.bound)
    context.phase("final")
    target, sampler = joint.at(Z), BlackJaxKernel("hmc", n_leapfrog=PAPER_LEAPFROG, jitter=0.0, min_warmup=0)
    plan = context.plan((4,), target, warmup=PAPER_WARMUP, draws=PAPER_DRAWS).but(target_accept=PAPER_ACCEPT)
    callback = context.stop_in_time(PAPER_WARMUP + PAPER_DRAWS)
    run = context.record(target, sampler.run(target, x[None], Coordinates.identity(len(x)), plan, callback))
    context.notes += [f"Z started from {name}.", "The paper's schedule: one chain of HMC, of which 50 draws predict."]
    chains = run.chains or one_draw(x, target)
    draws = context.thinned(chains, PAPER_PREDICTIVE)
    return _posterior(context, joint, start, chains, _conditional(draws[:, :n], Z, draws[:, n:]), [Z])


def _conditional(phis: np.ndarray, Z: np.ndarray, v: np.ndarray) -> VariationalConditional:
    """For draws of v itself, which has no variance left."""
    return VariationalConditional(phis, Z, v, np.zeros((len(v), 0, 0)))


def _posterior(
    context: FitContext,
    joint: JointTarget,
    start: WarmStart,
    chains: Chains,
    conditional: VariationalConditional,
    Z_path: list[np.ndarray],
) -> Posterior:
    return context.sampled(chains, conditional, optimum=start.phi, counter=joint.counter, Z_path=Z_path)


# ---- coordinates


def _coordinates_of_theta(problem: Problem, joint: JointTarget, start: WarmStart, sites: Sites) -> Coordinates:
    """Those of φ: the Hessian in φ at ε = 0, where v is at its mode for every θ."""
    n, target, zero = problem.model.n_theta, joint.at(start.Z, sites), np.zeros(len(start.Z))

    def at_mode_of_v(phi: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = target.value_and_gradient(np.concatenate([phi, zero]))
        return value, gradient[:n]

    return coordinates_at_mode(at_mode_of_v, (start.phi, problem.model.start()))


def _coordinates_of_theta_and_Z(problem: Problem, joint: JointTarget, start: WarmStart) -> Coordinates:
    """Those of (φ, Z): the Hessian, with log N(Z; 0, I), where v is at its mode for each, unless it takes too long."""
    n, M, K = problem.model.n_theta, len(start.Z), problem.model.n_theta + start.Z.size
    sites = joint.sites(start.phi, start.Z)
    if 2.0 * K * 8.0 * problem.data.n_rows * M**2 > MAX_WORK:
        of_theta = _coordinates_of_theta(problem, joint, start, sites)
        factor = Z_WIDTH * np.eye(K)
        factor[:n, :n] = of_theta.factor
        return Coordinates(np.concatenate([of_theta.centre, start.Z.ravel()]), factor)

    def at_mode_of_v(w: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = joint.evaluate_with_Z(np.concatenate([w, np.zeros(M)]), sites)
        of_Z = np.concatenate([np.zeros(n), w[n:]])
        return value - 0.5 * float(of_Z @ of_Z), gradient[:K] - of_Z

    return coordinates_at_mode(at_mode_of_v, [np.concatenate([start.phi, start.Z.ravel()])])


def _with_white(outer: Coordinates, centre: np.ndarray) -> Coordinates:
    """`outer` followed by coordinates that are white already, around this centre."""
    K = outer.dimension
    factor = np.eye(K + len(centre))
    factor[:K, :K] = outer.factor
    return Coordinates(np.concatenate([outer.centre, centre]), factor)


# ---- SG-HMC


def _draw_by_sghmc(
    problem: Problem, context: FitContext, joint: JointTarget, start: WarmStart, outer: Coordinates, move_Z: bool
) -> tuple[Chains, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Chains of x = (w, ε), with w = φ or (φ, Z) and its coordinates `outer`; and φ, Z and v of draws that predict."""
    surrogate = saved_surrogate(context, joint, start, site_rows(problem))
    target = joint.from_rows(surrogate, start.Z, move_Z)
    coordinates = _with_white(outer, _mode_of_epsilon(target, outer))
    peak = target.value_and_gradient(coordinates.centre)[0]
    least = peak - OUTSIDE_NATS_PER_DIMENSION * coordinates.dimension - OUTSIDE_NATS
    size, step_size = batch_size(problem), None
    if move_Z:
        step_size = min(MOVING_STEP_SIZE, MOVING_STEP_SIZE_OF_SHARE * (size / problem.data.n_rows) ** 0.5)
    sampler = SafeStepSGHMC(SGHMC(target.rows(), size, step_size), least)
    chains = draw_until_converged(context, target, sampler, coordinates, MIN_WARMUP)
    chains = chains or one_draw(coordinates.centre, target)
    context.findings += _outside([sampler.outside(x, target) for x in context.thinned(chains, CHECKED_DRAWS)])
    context.phase("conditional")
    phis, Z, v, _ = (np.array(a) for a in zip(*map(target.unpacked, context.thinned(chains)), strict=True))
    return chains, (phis, Z, v)


def _mode_of_epsilon(target: JointFromRows, outer: Coordinates) -> np.ndarray:
    """ε at which v has its mode by the sites of all rows, with w at the centre of its coordinates."""
    phi, Z, v, _ = target.unpacked(np.concatenate([outer.centre, np.zeros(len(target.Z))]))
    mode, LB = target.joint.moments(phi, Z, target.joint.sites(phi, Z))
    return LB.T @ (mode - v)


def _outside(outside: list[bool]) -> list[Finding]:
    """What the verdict says of draws outside the posterior."""
    if not any(outside):
        return []
    n, total = sum(outside), len(outside)
    sentence = f"{n} of {total} draws that were looked at lie far outside the posterior: chains go astray."
    return [
        Finding(
            "lost-draws",
            n > MAX_OUTSIDE * total,
            sentence,
            'Use a larger `batch_size`, or `method="joint-hmc"` with `sampler="nuts"`.',
        )
    ]


def batch_size(problem: Problem) -> int:
    """Rows of a step: an even number, as in the settings, or all of the data."""
    size = problem.settings.batch_size
    return problem.data.n_rows if size >= problem.data.n_rows else size + size % 2


def site_rows(problem: Problem) -> np.ndarray:
    """The rows that have sites; empty for all."""
    N, wanted = problem.data.n_rows, max(SITE_ROWS, SITE_ROWS_PER_POINT * problem.n_inducing)
    return np.zeros(0, int) if wanted >= N else np.sort(problem.rng(8).choice(N, wanted, replace=False))
