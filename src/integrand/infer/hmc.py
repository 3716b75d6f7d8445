"""One transition of Hamiltonian Monte Carlo in NumPy, for samplers written in Python."""

import numpy as np

from integrand.infer.optimise import LogDensity, Vector


def hmc_transition(
    log_density: LogDensity,
    eta: Vector,
    value: float,
    gradient: Vector,
    step: float,
    n_leapfrog: int,
    rng: np.random.Generator,
) -> tuple[Vector, float, Vector, float]:
    """`n_leapfrog` steps of the leapfrog integrator from η, accepted or not (Neal 2011).

    Returns η, log density and gradient after the transition, and the acceptance probability. `log_density` is -inf
    where it fails; a trajectory that meets such a point is rejected.
    """
    momentum = rng.standard_normal(len(eta))
    x, v, g, p = eta, value, gradient, momentum
    for _ in range(n_leapfrog):
        p = p + 0.5 * step * g
        x = x + step * p
        v, g = log_density(x)
        if not np.isfinite(v):
            return eta, value, gradient, 0.0
        p = p + 0.5 * step * g
    log_ratio = (v - 0.5 * p @ p) - (value - 0.5 * momentum @ momentum)
    acceptance = float(np.exp(min(0.0, log_ratio))) if np.isfinite(log_ratio) else 0.0
    return (x, v, g, acceptance) if rng.random() < acceptance else (eta, value, gradient, acceptance)
