"""One transition of HMC in whitened coordinates, for samplers written in Python."""

import numpy as np
from jaxtyping import Float

from integrand.infer.chains import LogDensity

Vector = Float[np.ndarray, " P"]


def transition(
    here: LogDensity, eta: Vector, value: float, slope: Vector, step: float, leaps: int, rng: np.random.Generator
) -> tuple[Vector, float, Vector, float]:
    """Where HMC goes from η by `leaps` leapfrog steps: η, value and slope there, and its chance of acceptance.

    `here` is -inf where the density fails, and such a place is never gone to.
    """
    momentum = rng.standard_normal(len(eta))
    x, v, g, p = eta, value, slope, momentum
    for _ in range(leaps):
        p = p + 0.5 * step * g
        x = x + step * p
        v, g = here(x)
        if not np.isfinite(v):
            return eta, value, slope, 0.0
        p = p + 0.5 * step * g
    log_ratio = (v - 0.5 * p @ p) - (value - 0.5 * momentum @ momentum)
    chance = float(np.exp(min(0.0, log_ratio))) if np.isfinite(log_ratio) else 0.0
    return (x, v, g, chance) if rng.random() < chance else (eta, value, slope, chance)
