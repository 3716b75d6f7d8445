"""A log density near its mode, to third order, from some gradients of it.

    c(x) = v + gᵀδ + δᵀHδ / 2 + s(δ) Σ_ij W_ij δ_i² δ_j,        x = centre + F δ

H and W come from gradients one standard deviation to either side in each of the P directions of a whitening: 2 P of
them tell all second derivatives, and of the third ones all but those in three different directions. The share
s(δ) = 1 / (1 + |δ|⁴ / R⁴) takes the third order away where it cannot be trusted, so that exp c has a finite integral.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from integrand.infer.chains import LogDensity
from integrand.infer.metric import Whitening

# R² for each coordinate. Draws are √P from the centre, where 94 % of the third order are kept.
_REACH = 4.0
# Least curvature, of 1 in whitened coordinates: c has to fall in every direction.
_LEAST = 0.1
# Newton's method ends when it promises less than this (nats), or after so many gradients.
_CLOSE, _NEWTON = 0.02, 8


class Cubic(NamedTuple):
    """c(x)."""

    whitening: Whitening
    value: float
    slope: Float[np.ndarray, " P"]  # g, whitened
    H: Float[np.ndarray, "P P"]
    W: Float[np.ndarray, "P P"]

    def __call__(self, x: Float[np.ndarray, " P"]) -> tuple[float, Float[np.ndarray, " P"]]:
        """Value and gradient."""
        delta = self.whitening.to_eta(x)
        square, Hdelta, Wdelta = delta * delta, self.H @ delta, self.W @ delta
        limit, radius = (_REACH * len(x)) ** 2, float(delta @ delta)
        share = 1.0 / (1.0 + radius**2 / limit)
        third = float(square @ Wdelta)
        value = self.value + float(self.slope @ delta) + 0.5 * float(delta @ Hdelta) + share * third
        gradient = self.slope + Hdelta + share * (2.0 * delta * Wdelta + self.W.T @ square)
        gradient -= 4.0 * third * share**2 * radius / limit * delta
        return float(value), np.linalg.solve(self.whitening.factor.T, gradient)


def cubic_around(at: LogDensity, whitening: Whitening) -> Cubic:
    """c(x) of a log density that is near its mode at the centre of a whitening: 2 P + 1 gradients of it."""
    centre, F = whitening
    steps = np.eye(len(centre))

    def slope_at(delta: np.ndarray) -> np.ndarray:
        value, gradient = at(centre + F @ delta)
        return F.T @ gradient if np.isfinite(value) and np.all(np.isfinite(gradient)) else np.full(len(delta), np.nan)

    value, gradient = at(centre)
    slope = F.T @ gradient
    ahead, behind = (np.array([slope_at(sign * d) for d in steps]) for sign in (1.0, -1.0))
    H, third = 0.5 * (ahead - behind), ahead + behind - 2.0 * slope
    known = np.all(np.isfinite(H), axis=1)
    H = np.where(known[:, None], H, -steps)
    curvature, directions = np.linalg.eigh(-0.5 * (H + H.T))
    H = -(directions * np.maximum(curvature, _LEAST)) @ directions.T
    # δ_i³ is once among the terms of third order, δ_i² δ_j three times; all are divided by six.
    W = np.where(known[:, None], third, 0.0) * np.where(steps == 1.0, 1.0 / 6.0, 0.5)
    return Cubic(whitening, float(value), slope, H, W)


def at_mode(at: LogDensity, whitening: Whitening) -> Whitening:
    """The whitening with its centre moved to the mode by Newton's method; never downhill."""
    (x, F), n = whitening, 1
    value, gradient = at(x)
    while n < _NEWTON:
        move = F @ (F.T @ gradient)
        if not 0.5 * float(gradient @ move) > _CLOSE:
            break
        for share in (1.0, 0.3, 0.1):
            there, slope = at(x + share * move)
            n += 1
            if there > value:
                x, value, gradient = x + share * move, there, slope
                break
        else:
            break
    return Whitening(x, F)
