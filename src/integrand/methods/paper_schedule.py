"""SGPR and Algorithm 1 with the schedules behind the paper's tables: Adam throughout, one chain, short windows of NUTS.

SGPR takes 2000 Adam steps at rate 0.01 over Z and GPyTorch's coordinates of θ, in which an irrelevant lengthscale grows
by at most 0.01 a step: stopping there is part of the result. SGPR + HMC:

2000 Adam steps at rate 0.01. The first 100 maximise L over (Z, θ); after them a window of NUTS every 50 steps up to
step 1500 and one at the end. The first and the last window have 500 warm-up steps and 100 draws, the others 25 and 10.
Each starts from the same point of the prior, and every step of Z ascends the bound averaged over the latest draws.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from integrand.compilation import one_blas_thread
from integrand.infer.base import Chains, Plan, keep_going
from integrand.infer.coordinates import Coordinates
from integrand.infer.nuts import NUTS
from integrand.infer.optimise import Adam
from integrand.infer.verdict import optimised
from integrand.methods.problem import FitContext, Problem
from integrand.methods.warm_start import starting_inducing
from integrand.model import Model
from integrand.posterior.conditional import sparse_conditional
from integrand.posterior.posterior import Posterior
from integrand.precision import in_float64
from integrand.targets.collapsed import CollapsedTarget

STEPS, WARM_STEPS, LAST_WINDOW, EVERY = 2_000, 100, 1_500, 50
LONG, SHORT = (500, 100), (25, 10)
RATE = 0.01
MAX_DEPTH = 10
NOISE_FLOOR = 1e-4  # of the noise variance, GPyTorch's


def paper_schedule(problem: Problem, context: FitContext) -> Posterior:
    """Fit as the paper's runs did; the verdict is on the last window, which is one short chain."""
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)
    with one_blas_thread(target.threads(problem.n_inducing) == 1):
        return _run(problem, context, target)


def paper_sgpr(problem: Problem, context: FitContext) -> Posterior:
    """`ml2` as the paper's runs did it: Adam from one start, and where it is after 2000 steps."""
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)
    context.clock.enter("optimise")
    context.progress.phase("optimise θ and Z")
    with one_blas_thread(target.threads(problem.n_inducing) == 1):
        phi, Z, bound, name = _optimised(problem, context, target, STEPS)
    context.clock.enter("conditional")
    conditional = sparse_conditional(phi[None], Z, target.inducing_posterior)
    context.record_bound("optimise", STEPS, bound)
    context.notes += [f"Z started from {name}.", f"The paper's schedule: {STEPS} steps of Adam."]
    chains = Chains.of_one_point(phi, bound)
    verdict = optimised((), problem.model.names, target.counter.failures, target.counter.gradients)
    return context.posterior(chains, conditional, optimum=phi, counter=target.counter, verdict=verdict, Z_path=Z[None])


def _optimised(
    problem: Problem, context: FitContext, target: CollapsedTarget, steps: int
) -> tuple[np.ndarray, np.ndarray, float, str]:
    """φ, Z, L there and the name of the first Z: after `steps` Adam steps on L / N over (raw θ, Z), from raw θ = 0."""
    model, n = problem.model, problem.model.n_theta
    Z, name = starting_inducing(problem, target, _phi(model, np.zeros(n)))
    adam, x = Adam(n + Z.size, RATE), np.concatenate([np.zeros(n), Z.ravel()])
    for step in range(steps):  # lines 2-4
        e = target.evaluate(_phi(model, x[:n]), x[n:].reshape(Z.shape))
        gradient = np.concatenate([_raw_gradient(model, x[:n], e.d_likelihood), e.dZ.ravel()])
        x = adam.step(x, gradient / problem.data.n_rows)
        context.progress.update(step + 1, steps, f"bound {e.log_likelihood:.2f}")
    phi, Z = _phi(model, x[:n]), x[n:].reshape(Z.shape)
    return phi, Z, target.evaluate(phi, Z).log_likelihood, name


@partial(jax.jit, static_argnums=0)
def _traced_phi(model: Model, raw: Float[Array, " P"]) -> Float[Array, " P"]:
    """φ from GPyTorch's coordinates: softplus gives lengthscales and the variances of signal and noise (> 1e-4)."""
    theta = {}
    for p in model.parameters:
        kind, value = p.name.rsplit(".", 1)[-1], jax.nn.softplus(p.of(raw))
        if kind in ("scale", "noise"):
            theta[p.name] = jnp.sqrt(value + (NOISE_FLOOR if kind == "noise" else 0.0))
        else:
            theta[p.name] = value if p.prior.positive else p.of(raw)
    return model.phi(theta)


@in_float64
def _phi(model: Model, raw: np.ndarray) -> np.ndarray:
    return np.asarray(_traced_phi(model, jnp.asarray(raw)))


@in_float64
def _raw_gradient(model: Model, raw: np.ndarray, d_phi: np.ndarray) -> np.ndarray:
    """Gradient in the raw coordinates from that in φ."""
    return np.asarray(_pull_back(model, jnp.asarray(raw), jnp.asarray(d_phi)))


@partial(jax.jit, static_argnums=0)
def _pull_back(model: Model, raw: Float[Array, " P"], d_phi: Float[Array, " P"]) -> Float[Array, " P"]:
    return jax.vjp(lambda r: _traced_phi(model, r), raw)[1](d_phi)[0]


def _run(problem: Problem, context: FitContext, target: CollapsedTarget) -> Posterior:
    context.phase("warm start")
    optimum, Z, bound, name = _optimised(problem, context, target, WARM_STEPS)
    context.record_bound("warm start", 0, bound)
    path = [Z]

    context.clock.enter("rounds")
    context.progress.phase("windows")
    adam = Adam(Z.size, RATE)
    chains = _window(problem, target, Z, LONG, 0)
    for step in range(WARM_STEPS + 1, STEPS + 1):  # line 10
        bounds, gradient = target.mean_bound(chains.x[0], Z)  # line 18
        Z = adam.step(Z.ravel(), gradient.ravel() / problem.data.n_rows).reshape(Z.shape)  # line 11
        if step % EVERY == 0 and step <= LAST_WINDOW:  # line 12
            chains = _window(problem, target, Z, SHORT, step)  # lines 14-17
            context.record_bound("round", step, float(bounds.mean()), float(bounds.std() / np.sqrt(len(bounds))))
            path.append(Z)
        context.progress.update(step, STEPS, f"averaged bound {bounds.mean():.2f}")
    context.clock.enter("final")
    chains = _window(problem, target, Z, LONG, STEPS)
    context.clock.enter("conditional")
    conditional = sparse_conditional(chains.x[0], Z, target.inducing_posterior)
    context.notes += [f"Z started from {name}.", "The paper's schedule: one chain, 100 final draws."]
    return context.posterior(
        chains,
        conditional,
        optimum=optimum,
        counter=target.counter,
        verdict=context.verdict(chains, target.counter, MAX_DEPTH, ended="budget"),
        Z_path=[*path, Z],
        counts={"rounds": len(path)},
    )


def _window(problem: Problem, target: CollapsedTarget, Z: np.ndarray, length: tuple[int, int], step: int) -> Chains:
    """One chain from the prior's default point: lengthscale 2, standard deviations 1."""
    start = _point(problem, {"lengthscale": 2.0, "scale": 1.0, "noise": 1.0})
    warmup, draws = length
    plan = Plan(warmup, draws, (problem.settings.seed, 5, step), target_accept=0.8, max_depth=MAX_DEPTH)
    run = NUTS().run(target.at(Z), start[None], Coordinates.identity(len(start)), plan, keep_going)
    if run.interrupted:  # the schedule keeps no state to come back to
        raise KeyboardInterrupt
    return run.chains


def _point(problem: Problem, values: dict[str, float]) -> np.ndarray:
    """φ with these values for fields of these names, and prior medians for others."""
    model = problem.model
    theta = {p.name: values.get(p.name.rsplit(".", 1)[-1], p.prior.median) for p in model.parameters}
    return model.unconstrained(theta)
