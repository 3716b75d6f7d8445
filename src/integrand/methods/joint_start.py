"""Where the methods that draw v begin: θ and Z with v integrated out, by the collapsed bound or by Laplace's method.

The mode of the joint density itself is a poor start: a large signal variance lets v be small, which costs v's prior
less than it costs θ's. With v integrated out there is no such gain.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from integrand.bounds.joint import Sites
from integrand.errors import NumericalError
from integrand.inducing import candidates
from integrand.likelihoods import Gaussian
from integrand.methods.checkpoint import WarmStart
from integrand.methods.optimised import climb, warm_start
from integrand.methods.problem import Problem
from integrand.precision import float64_scope
from integrand.targets import CollapsedTarget, JointTarget, gp_at
from integrand.targets.joint import Surrogate

# Laplace's method climbs with fixed sites, and makes them anew so many times.
ROUNDS = 5


def joint_start(problem: Problem, target: JointTarget) -> WarmStart:
    """The warm start of Algorithm 1 for Gaussian noise, else a mode of φ and Z under Laplace's approximation."""
    if isinstance(problem.model.likelihood, Gaussian):
        collapsed = CollapsedTarget(problem.model, problem.data, problem.jitter, target.counter)
        return warm_start(problem, collapsed)
    phi, n = problem.model.start(), problem.model.n_theta
    Z, name = laplace_candidate(problem, target, phi)
    M, value, before = len(Z), -np.inf, -np.inf
    for _ in range(ROUNDS):
        sites = target.sites(phi, Z)

        def at(x: np.ndarray, sites=sites) -> tuple[float, np.ndarray]:
            value, gradient = target.evaluate_with_Z(np.concatenate([x, np.zeros(M)]), sites)
            return value, gradient[:-M]

        steps = max(1, problem.settings.warm_steps // ROUNDS)
        climbed = climb(at, np.concatenate([phi, Z.ravel()]), problem.settings, steps)  # pyright: ignore[reportGeneralTypeIssues]
        phi, Z, value = climbed.x[:n], climbed.x[n:].reshape(Z.shape), climbed.value
        if value - before < 1e-2:
            break
        before = value
    if not np.isfinite(value):
        raise NumericalError(
            "the density is not finite anywhere the optimiser looked: look for extreme values in the data, use "
            "fewer inducing points, or a larger jitter"
        )
    return WarmStart(phi, Z, log_evidence(target, phi, Z), name, phi)


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

    One that cannot be factored loses; the error is raised if none can.
    """
    if problem.Z is not None:
        return problem.Z, "given"
    with float64_scope():
        rows = np.asarray(problem.data.arrays()[0])
        found = candidates(problem.rng(0), rows, problem.n_inducing, gp_at(problem.model, phi))

    evidence, errors = {}, []
    for name, Z in found.items():
        try:
            evidence[name] = log_evidence(target, phi, Z)
        except NumericalError as error:
            errors.append(error)
    if not evidence:
        raise errors[0]
    best = max(evidence, key=lambda name: evidence[name])
    return found[best], best


def kept_surrogate(
    problem: Problem, target: JointTarget, start: WarmStart, rows: Int[np.ndarray, " n"] | None = None
) -> Surrogate:
    """The sites at the warm start, of these rows or of all; in the run directory if there is one.

    Draws of ε mean nothing without the sites that they were drawn with.
    """
    rows, run = np.zeros(0, int) if rows is None else rows, problem.run
    if run is not None and run.has("sites"):
        arrays, _ = run.load("sites")
        return Surrogate(Sites(arrays["linear"], arrays["precision"]), target.some(arrays["rows"]))
    surrogate = target.surrogate(start.phi, start.Z, rows)
    if run is not None:
        run.save("sites", surrogate.sites._asdict() | {"rows": rows})
    return surrogate
