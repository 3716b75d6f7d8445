"""Whitening: coordinates in which a density is close to a standard normal, so that a sampler needs little tuning."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from integrand.infer.bend import Bend, bend_from_draws

# Curvatures are kept between these: a flat direction is as wide as priors let it be, not infinitely wide.
_LEAST_CURVATURE, _MOST_CURVATURE = 0.04, 1e12

# Halvings of a width in search of the one at which half a nat is lost.
_HALVINGS = 12


class Whitening(NamedTuple):
    """x = bend(centre + factor @ eta); without a bend `covariance` is what x was taken to have."""

    centre: Float[np.ndarray, " P"]
    factor: Float[np.ndarray, "P P"]
    bend: Bend | None = None

    @property
    def covariance(self) -> Float[np.ndarray, "P P"]:
        """factor factorᵀ: covariance of x, or of what is bent to x, when eta is standard normal."""
        return self.factor @ self.factor.T

    @property
    def middle(self) -> Float[np.ndarray, " P"]:
        """x at eta = 0."""
        return self.centre if self.bend is None else self.bend.to_x(self.centre)

    def straightened(self) -> "Whitening":
        """The same near its middle without a bend, for samplers that know none."""
        if self.bend is None:
            return self
        return Whitening(self.middle, self.factor * self.bend.slope(self.centre)[:, None])

    def to_x(self, eta: Float[np.ndarray, "... P"]) -> Float[np.ndarray, "... P"]:
        """x from whitened coordinates."""
        straight = self.centre + eta @ self.factor.T
        return straight if self.bend is None else self.bend.to_x(straight)

    def to_eta(self, x: Float[np.ndarray, "... P"]) -> Float[np.ndarray, "... P"]:
        """Whitened coordinates of x."""
        straight = x if self.bend is None else self.bend.to_psi(x)
        return np.linalg.solve(self.factor, (straight - self.centre)[..., None])[..., 0]

    def log_jacobian(self, eta: Float[np.ndarray, "... P"]) -> Float[np.ndarray, "..."]:
        """What the bend adds to a log density of x to make it one of eta; the constant log |factor| is left out."""
        if self.bend is None:
            return np.zeros(eta.shape[:-1])
        return np.asarray(self.bend.log_slope(self.centre + eta @ self.factor.T).sum(axis=-1))

    def placed(self, eta: Float[np.ndarray, " P"]) -> tuple[Float[np.ndarray, " P"], float]:
        """x from whitened coordinates, and `log_jacobian` there."""
        straight = self.centre + self.factor @ eta
        if self.bend is None:
            return straight, 0.0
        x, log_slope = self.bend.placed(straight)
        return x, float(log_slope.sum())

    def pulled_back(self, log_density: Callable[..., tuple[float, np.ndarray]]) -> Callable[..., tuple[float, Any]]:
        """A log density of x, and its gradient, as one of eta."""
        if self.bend is None:

            def straight(eta: Float[np.ndarray, " P"]) -> tuple[float, Float[np.ndarray, " P"]]:
                value, gradient = log_density(self.to_x(eta))
                return value, gradient @ self.factor

            return straight
        bend = self.bend

        def bent(eta: Float[np.ndarray, " P"]) -> tuple[float, Float[np.ndarray, " P"]]:
            psi = self.centre + self.factor @ eta
            x, log_slope = bend.placed(psi)
            value, gradient = log_density(x)
            return value + float(log_slope.sum()), (gradient * np.exp(log_slope) + bend.d_log_slope(psi)) @ self.factor

        return bent


def whitening_from_hessian(
    gradient: Callable[[Float[np.ndarray, " P"]], Float[np.ndarray, " P"]],
    optimum: Float[np.ndarray, " P"],
    step: float = 1e-4,
    value: Callable[[Float[np.ndarray, " P"]], float] | None = None,
) -> Whitening:
    """Whitening by the Hessian at an optimum, from central differences of the gradient (2 P evaluations).

    The width of a direction that curves upwards, as at a saddle, is measured by the log density, if there is `value`.
    """
    rows = [(gradient(optimum + d) - gradient(optimum - d)) / (2.0 * step) for d in step * np.eye(len(optimum))]
    hessian = -np.array(rows).reshape(len(optimum), len(optimum))
    hessian = np.where(np.isfinite(hessian), hessian, 0.0)
    curvature, directions = np.linalg.eigh(0.5 * (hessian + hessian.T))
    saddles = np.flatnonzero(curvature < -_LEAST_CURVATURE)
    curvature = np.clip(curvature, _LEAST_CURVATURE, _MOST_CURVATURE)
    if value is not None and len(saddles) and np.isfinite(top := value(optimum)):
        for i in saddles:
            along = directions[:, i]
            curvature[i] = _measured_width(lambda t, d=along: top - value(optimum + t * d), curvature[i] ** -0.5) ** -2
    return Whitening(optimum, directions / np.sqrt(curvature))


def _measured_width(loss: Callable[[float], float], most: float) -> float:
    """The distance, `most` at most, at which a log density has lost half a nat: one sd of a Gaussian.

    `loss(t)` is what is lost at t; the mean of both sides counts. Between two columns that can stand in for each other
    lies a saddle, or a top flatter than any parabola.
    """

    def falls(width: float) -> bool:
        return not (np.isfinite(ahead := loss(width)) and 0.5 * (ahead + loss(-width)) < 0.5)

    width = most
    for _ in range(_HALVINGS):
        if not falls(width):
            break
        width *= 0.5
    else:
        return width
    if width < most:  # between this and twice as much
        for factor in (2.0**0.5, 2.0**0.25, 2.0**0.125):
            width *= 1.0 if falls(width * factor) else factor
    return width


def whitening_from_draws(draws: Float[np.ndarray, "S P"], before: Whitening, bent: bool = False) -> Whitening:
    """Whitening by the covariance of draws, shrunk towards an earlier one with the weight of 5 P draws.

    If `bent`, coordinates with a long tail are bent first.
    """
    n_draws, n = draws.shape
    bend = bend_from_draws(draws) if bent else None
    straight = draws if bend is None else bend.to_psi(draws)
    weight = n_draws / (n_draws + 5.0 * n)
    earlier = before.straightened().factor
    if bend is not None:
        # As the bend shows it among the draws: at a mode far from them, on the side of the logarithm, it would be huge.
        low, high = np.percentile(draws, [5.0, 95.0], axis=0)
        earlier = earlier / bend.slope(bend.to_psi(np.clip(before.middle, low, high)))[:, None]
    covariance = weight * np.cov(straight.T).reshape(n, n) + (1.0 - weight) * earlier @ earlier.T
    return Whitening(straight.mean(axis=0), np.linalg.cholesky(covariance), bend)
