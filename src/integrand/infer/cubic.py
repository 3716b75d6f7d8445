"""A log density near its mode, to third order, from some gradients of it.

    c(x) = v + gᵀδ + δᵀHδ / 2 + Σ_ij W_ij τ_i² τ_j,        x = centre + F δ,    τ_i = δ_i / (1 + (δ_i / R_i)⁴)^¼

H and W come from gradients one standard deviation to either side in each of the P directions of a whitening: 2 P of
them tell all second derivatives, and of the third ones all but those in three different directions. Beyond R_i a
coordinate takes no further part in the third order, which cannot be trusted there and would make c rise without end.
"""

import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from integrand.errors import NumericalError
from integrand.infer.chains import LogDensity
from integrand.infer.metric import Whitening
from integrand.infer.optimise import maximise_lbfgs

# R_i at most, in standard deviations; and the share of the second order that the third may take back in a coordinate.
_REACH, _SHARE = 4.0, 0.8
# Least curvature, of 1 in whitened coordinates: c has to fall in every direction.
_LEAST = 0.1
# Newton's method ends when it promises less than this (nats), or after so many gradients; where it still promises a
# nat then, so many gradients go to L-BFGS.
_CLOSE, _NEWTON, _FAR, _MORE = 0.02, 8, 1.0, 40


class Cubic(NamedTuple):
    """c(x)."""

    whitening: Whitening
    value: float
    slope: Float[np.ndarray, " P"]  # g, whitened
    H: Float[np.ndarray, "P P"]
    W: Float[np.ndarray, "P P"]
    reach: Float[np.ndarray, " P"]  # R

    def __call__(self, x: Float[np.ndarray, " P"]) -> tuple[float, Float[np.ndarray, " P"]]:
        """Value and gradient."""
        delta = self.whitening.to_eta(x)
        flat = 1.0 + (delta / self.reach) ** 4
        tau = delta * flat**-0.25
        square, Hdelta, Wtau = tau * tau, self.H @ delta, self.W @ tau
        value = self.value + self.slope @ delta + 0.5 * (delta @ Hdelta) + square @ Wtau
        gradient = self.slope + Hdelta + flat**-1.25 * (2.0 * tau * Wtau + self.W.T @ square)
        return float(value), np.linalg.solve(self.whitening.factor.T, gradient)


def cubic_around(at: LogDensity, whitening: Whitening) -> Cubic:
    """c(x) of a log density that is near its mode at the centre of a whitening: 2 P + 1 gradients of it.

    What cannot be computed on one of the sides is taken to curve as the whitening says.
    """
    centre, F = whitening.centre, whitening.factor
    steps = np.eye(len(centre))

    def slope_at(delta: np.ndarray) -> np.ndarray:
        value, gradient = at(centre + F @ delta)
        return F.T @ gradient if np.isfinite(value) and np.all(np.isfinite(gradient)) else np.full(len(delta), np.nan)

    value, gradient = at(centre)
    if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
        raise NumericalError("the density is not finite where its mode should be: use fewer inducing points")
    slope = F.T @ gradient
    ahead, behind = (np.array([slope_at(sign * d) for d in steps]) for sign in (1.0, -1.0))
    known = np.all(np.isfinite(ahead + behind), axis=1)
    H, third = (np.where(known[:, None], a, 0.0) for a in (0.5 * (ahead - behind), ahead + behind - 2.0 * slope))
    # A mixed derivative is known from either of its directions: the mean of those there are.
    H = (H + H.T) / np.maximum(1.0, known[:, None] + known.astype(float)) - np.diag(~known + 0.0)
    curvature, directions = np.linalg.eigh(-H)
    H = -(directions * np.maximum(curvature, _LEAST)) @ directions.T
    # δ_i³ is once among the terms of third order, δ_i² δ_j three times; all are divided by six.
    W = third * np.where(steps == 1.0, 1.0 / 6.0, 0.5)
    skewed = np.maximum(np.abs(np.diag(W)), 1e-300)
    return Cubic(whitening, float(value), slope, H, W, np.minimum(_REACH, -0.5 * _SHARE * np.diag(H) / skewed))


def at_mode(at: LogDensity, whitening: Whitening) -> Whitening:
    """The whitening with its centre moved to the mode, by Newton's method or else L-BFGS; never downhill."""
    x, F, n = whitening.centre, whitening.factor, 1
    value, gradient = at(x)

    def promise(gradient: np.ndarray) -> float:
        return 0.5 * float(np.sum((F.T @ gradient) ** 2))

    while n < _NEWTON and promise(gradient) > _CLOSE:
        move = F @ (F.T @ gradient)
        for share in (1.0, 0.3, 0.1):
            there, slope = at(x + share * move)
            n += 1
            if there > value and np.all(np.isfinite(slope)):
                x, value, gradient = x + share * move, there, slope
                break
        else:
            break
    if promise(gradient) > _FAR:  # the curvature is another one here, as near two columns that are alike
        near, taken = Whitening(x, F), itertools.count(1)

        def enough(best: np.ndarray, value: float) -> str:
            return "gradients used up" if next(taken) >= _MORE else ""

        found = maximise_lbfgs(near.pulled_back(at), np.zeros(len(x)), max_steps=_MORE, watch=enough)
        if found.ended == "interrupted":
            raise KeyboardInterrupt
        x = near.to_x(found.x)
    return Whitening(x, F)
