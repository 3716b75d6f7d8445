"""Algorithm 1 with the schedule behind the paper's tables: Adam throughout, one chain, short windows of NUTS.

2000 Adam steps at rate 0.01. The first 100 climb L over (Z, θ); after them a window of NUTS every 50 steps up to step
1500 and one at the end. The first and the last window have 500 tuning steps and 100 draws, the others 25 and 10; each
starts from the same point of the prior, and every step of Z climbs the bound averaged over the draws of the last one.
"""

import numpy as np

from integrand.errors import InputError
from integrand.infer.diagnostics import verdict
from integrand.infer.metric import Whitening
from integrand.infer.nuts import Chains, sample_nuts
from integrand.infer.optimise import Adam
from integrand.infer.threads import one_blas_thread
from integrand.methods.problem import Problem, starting_inducing
from integrand.posterior.conditional import sparse_conditional
from integrand.posterior.posterior import BoundPoint, Posterior
from integrand.targets import CollapsedTarget, density

STEPS, WARM_STEPS, LAST_WINDOW, EVERY = 2_000, 100, 1_500, 50
LONG, SHORT = (500, 100), (25, 10)
RATE = 0.01
MAX_DEPTH = 10


def paper_schedule(problem: Problem) -> Posterior:
    """Fit as the paper's runs did; the verdict judges the last window, which is one short chain."""
    if problem.run is not None:
        raise InputError("the paper's schedule keeps no state on disk: leave run_dir out, or use the default schedule")
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)
    with one_blas_thread(target.threads(problem.n_inducing) == 1):
        return _run(problem, target)


def _run(problem: Problem, target: CollapsedTarget) -> Posterior:
    clock, model, n = problem.clock, problem.model, problem.model.n_theta
    clock.enter("warm start")
    problem.progress.phase("warm start")
    phi = _start(problem)
    Z, name = starting_inducing(problem, target, phi)
    adam, x = Adam(n + Z.size, RATE), np.concatenate([phi, Z.ravel()])
    for _ in range(WARM_STEPS):  # lines 2-4
        e = target.evaluate(x[:n], x[n:].reshape(Z.shape))
        x = adam.step(x, np.concatenate([e.d_likelihood, e.dZ.ravel()]) / problem.data.n_rows)
    optimum, Z = x[:n], x[n:].reshape(Z.shape)
    history = [BoundPoint("warm start", 0, clock.elapsed, e.log_likelihood, 0.0)]
    path = [Z]

    clock.enter("rounds")
    problem.progress.phase("windows")
    adam = Adam(Z.size, RATE)
    chains = _window(problem, target, Z, LONG, 0)
    for step in range(WARM_STEPS + 1, STEPS + 1):  # line 10
        bounds, gradient = target.averaged(chains.x[0], Z)  # line 18
        Z = adam.step(Z.ravel(), gradient.ravel() / problem.data.n_rows).reshape(Z.shape)  # line 11
        if step % EVERY == 0 and step <= LAST_WINDOW:  # line 12
            chains = _window(problem, target, Z, SHORT, step)  # lines 14-17
            error = float(bounds.std() / np.sqrt(len(bounds)))
            history.append(BoundPoint("round", step, clock.elapsed, float(bounds.mean()), error))
            path.append(Z)
        problem.progress.update(step, STEPS, f"averaged bound {bounds.mean():.2f}")
    clock.enter("final")
    chains = _window(problem, target, Z, LONG, STEPS)
    clock.enter("conditional")
    conditional = sparse_conditional(model, chains.x[0], Z, problem.data, problem.jitter)
    clock.enter("")
    counter = target.counter
    judged = verdict(
        chains,
        model.names,
        target_ess=problem.settings.target_ess,
        rejections=counter.failures,
        evaluations=counter.gradients,
        max_depth=MAX_DEPTH,
        ended="budget",
    )
    return Posterior(
        "sgpr-hmc",
        model,
        problem.scaler,
        problem.jitter,
        chains,
        conditional,
        judged,
        optimum,
        tuple(history),
        np.array([*path, Z]),
        dict(clock.seconds),
        {"gradients": counter.gradients, "failures": counter.failures, "rounds": len(path)},
        (f"Z started from {name}.", "The paper's schedule: one chain, 100 final draws."),
    )


def _start(problem: Problem) -> np.ndarray:
    """GPyTorch's defaults: log 2 for lengthscales and for the variances of signal and noise."""
    log2 = float(np.log(2.0))
    values = {"lengthscale": log2, "scale": np.sqrt(log2), "noise": np.sqrt(log2)}
    return _point(problem, values)


def _window(problem: Problem, target: CollapsedTarget, Z: np.ndarray, length: tuple[int, int], step: int) -> Chains:
    """One chain from the prior's default point: lengthscale 2, standard deviations 1."""
    start = _point(problem, {"lengthscale": 2.0, "scale": 1.0, "noise": 1.0})
    n = len(start)
    result = sample_nuts(
        lambda phi: density(target.evaluate(phi, Z)),
        start[None],
        Whitening(np.zeros(n), np.eye(n)),
        tune=length[0],
        draws=length[1],
        seed=[problem.settings.seed, 5, step],
        target_accept=0.8,
        max_depth=MAX_DEPTH,
    )
    if result.interrupted:  # the schedule keeps no state to come back to
        raise KeyboardInterrupt
    return result.chains


def _point(problem: Problem, values: dict[str, float]) -> np.ndarray:
    """φ with these values for fields of these names, and prior medians for others."""
    model = problem.model
    theta = {p.name: values.get(p.name.rsplit(".", 1)[-1], p.prior.median) for p in model.parameters}
    return model.unconstrained(theta)
