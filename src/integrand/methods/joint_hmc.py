"""`joint-hmc`, the paper's JointHMC (Hensman et al. 2015): θ and the inducing values drawn together, any likelihood.

    log p(θ) + log N(v; 0, I) + Σₙ E log p(yₙ | f(xₙ)),   u = L v,  Z fixed after the warm start

v is narrow where the noise is small, and moves with θ. NUTS and HMC therefore draw ε, with v = m(θ) + LB(θ)⁻ᵀ ε the
Gaussian that v has under sites (`bounds/joint.py`). For Gaussian noise ε and θ are then independent, for other
likelihoods nearly so. SG-HMC, which sees a batch of rows at a step, does so with the sites of some rows that stand for
all. Only θ is judged.

`schedule="paper"` is what the paper's runs did: 100 steps of L-BFGS on θ, v and Z, then one chain of HMC over (θ, v)
with 10 leapfrog steps, 500 steps of burn-in and 500 draws of which 50 predict. But for one thing: the burn-in tunes the
step size for an acceptance of 0.8, beginning at P^(-1/4) for P coordinates. The paper's 0.01 is not used: a chain with
that step never moves on data with little noise (yacht). The paper's priors were Gamma(2, 1) on the lengthscales and on
the *variances* of signal and noise: `scale=on_variance(Gamma(2.0, 1.0))` and so on are for the user to choose.
"""

import numpy as np

from integrand.bounds.joint import Sites
from integrand.errors import InputError
from integrand.infer.chains import Chains
from integrand.infer.metric import Whitening
from integrand.infer.optimise import maximise_lbfgs
from integrand.methods.checkpoint import WarmStart
from integrand.methods.density import Density, metric
from integrand.methods.joint_start import joint_start, kept_surrogate, laplace_candidate, log_evidence
from integrand.methods.minibatch import minibatch_draws
from integrand.methods.problem import Problem
from integrand.methods.sampling import Sampling
from integrand.posterior.conditional import VariationalConditional
from integrand.posterior.posterior import Posterior
from integrand.targets import JointTarget

# The paper's schedule.
PAPER_STEPS, PAPER_TUNE, PAPER_DRAWS, PAPER_PREDICTIVE = 100, 500, 500, 50
PAPER_LEAPFROG, PAPER_ACCEPT = 10, 0.8


def joint_hmc(problem: Problem) -> Posterior:
    """Warm start, metric from the Hessian at the mode, draws until θ has converged."""
    target = JointTarget(problem.model, problem.data, problem.jitter)
    with Sampling.of(problem, target.counter, target.threads(problem.n_inducing)) as sampling:
        if problem.settings.schedule == "paper":
            return _paper(problem, target, sampling)
        if problem.settings.sampler == "sghmc":
            return _minibatches(problem, target, sampling)
        return _centred(problem, target, sampling)


def _centred(problem: Problem, target: JointTarget, sampling: Sampling) -> Posterior:
    """NUTS or HMC over (φ, ε)."""
    n = problem.model.n_theta
    start = sampling.warm_start(lambda: joint_start(problem, target))
    M = len(start.Z)
    sampling.enter("metric")
    sites, rows = kept_surrogate(problem, target, start)
    if rows.n_rows < problem.data.n_rows:
        raise InputError("this run was begun with sampler='sghmc' on some rows: others cannot go on from its draws")
    of_theta = theta_metric(problem, target, start, sites)
    factor = np.eye(n + M)
    factor[:n, :n] = of_theta.factor
    whitening = Whitening(np.concatenate([of_theta.centre, np.zeros(M)]), factor)
    density = Density(lambda x: target.evaluate(x, start.Z, sites), lambda: target.traced(start.Z, sites))
    chains = sampling.final_draws(density, whitening)
    chains = sampling.or_one(chains, density, np.concatenate([start.phi, np.zeros(M)]))
    sampling.enter("conditional")
    drawn = sampling.thinned(chains)
    v = np.array([target.values(x[:n], x[n:], start.Z, sites)[0] for x in drawn])
    return _posterior(sampling, chains, drawn[:, :n], v, start)


def _minibatches(problem: Problem, target: JointTarget, sampling: Sampling) -> Posterior:
    """SG-HMC over (φ, ε)."""
    start = sampling.warm_start(lambda: joint_start(problem, target))
    sampling.enter("metric")
    of_theta = theta_metric(problem, target, start, target.sites(start.phi, start.Z))
    chains, phis, _, v = minibatch_draws(sampling, target, start, of_theta, draw_Z=False)
    return _posterior(sampling, chains, phis, v, start)


def _paper(problem: Problem, target: JointTarget, sampling: Sampling) -> Posterior:
    """HMC over (φ, v) with the paper's numbers, from where L-BFGS on everything got to."""
    from integrand.infer.samplers import sample_traced

    if problem.run is not None:
        raise InputError("the paper's schedule keeps no state on disk: leave run_dir out, or use the default schedule")
    n, phi = problem.model.n_theta, problem.model.start()
    sampling.enter("warm start")
    Z, name = laplace_candidate(problem, target, phi)
    first = np.concatenate([phi, Z.ravel(), np.zeros(len(Z))])
    climbed = maximise_lbfgs(target.evaluate_with_Z, first, max_steps=PAPER_STEPS)
    phi, Z, v = target.split(climbed.x)
    x, start = np.concatenate([phi, v]), WarmStart(phi, Z, log_evidence(target, phi, Z), name, phi)
    sampling.note_bound("warm start", 0, start.bound)
    sampling.enter("final")
    result = sample_traced(
        "hmc",
        target.traced(start.Z),
        x[None],
        Whitening(np.zeros(len(x)), np.eye(len(x))),
        tune=PAPER_TUNE,
        draws=PAPER_DRAWS,
        seed=[problem.settings.seed, 4],
        target_accept=PAPER_ACCEPT,
        n_leapfrog=PAPER_LEAPFROG,
        jitter=0.0,
        parallel=sampling.parallel,
        watch=sampling.tell(PAPER_TUNE + PAPER_DRAWS),
    )
    target.counter.gradients += result.evaluations
    sampling.interrupted = result.interrupted
    sampling.notes += [f"Z started from {name}.", "The paper's schedule: one chain of HMC, of which 50 draws predict."]
    chains = sampling.or_one(result.chains, Density(lambda x: target.evaluate(x, start.Z)), x)
    drawn = sampling.thinned(chains, PAPER_PREDICTIVE)
    return _posterior(sampling, chains, drawn[:, :n], drawn[:, n:], start)


def _posterior(sampling: Sampling, chains: Chains, phis: np.ndarray, v: np.ndarray, start: WarmStart) -> Posterior:
    conditional = VariationalConditional(phis, start.Z, v, np.zeros((len(v), 0, 0)))
    return sampling.posterior("joint-hmc", chains, conditional, start.phi, start.Z[None])


def theta_metric(problem: Problem, target: JointTarget, start: WarmStart, sites: Sites) -> Whitening:
    """φ's own whitening: the Hessian in φ at ε = 0, where v has its mode at every θ."""
    n, M = problem.model.n_theta, len(start.Z)

    def at(phi: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = target.evaluate(np.concatenate([phi, np.zeros(M)]), start.Z, sites)
        return value, gradient[:n]

    return metric(Density(at), (start.phi, problem.model.start()))
