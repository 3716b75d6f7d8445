"""Whitening: coordinates in which a density is close to a standard normal, so that a sampler needs little tuning."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

# Curvatures are kept between these: a flat direction is as wide as its prior lets it be, not infinitely wide.
_LEAST_CURVATURE, _MOST_CURVATURE = 0.04, 1e12


class Whitening(NamedTuple):
    """x = centre + factor @ eta; `covariance` = factor factorᵀ is what the density was taken to have."""

    centre: Float[np.ndarray, " P"]
    factor: Float[np.ndarray, "P P"]

    @property
    def covariance(self) -> Float[np.ndarray, "P P"]:
        """Covariance of x when eta is standard normal."""
        return self.factor @ self.factor.T

    def to_x(self, eta: Float[np.ndarray, "... P"]) -> Float[np.ndarray, "... P"]:
        """x from whitened coordinates."""
        return self.centre + eta @ self.factor.T

    def to_eta(self, x: Float[np.ndarray, "... P"]) -> Float[np.ndarray, "... P"]:
        """Whitened coordinates of x."""
        return np.linalg.solve(self.factor, (x - self.centre)[..., None])[..., 0]


def whitening_from_hessian(
    gradient: Callable[[Float[np.ndarray, " P"]], Float[np.ndarray, " P"]],
    optimum: Float[np.ndarray, " P"],
    step: float = 1e-4,
) -> Whitening:
    """Whitening by the Hessian at an optimum, from central differences of the gradient (2 P evaluations)."""
    rows = [(gradient(optimum + d) - gradient(optimum - d)) / (2.0 * step) for d in step * np.eye(len(optimum))]
    hessian = -np.array(rows).reshape(len(optimum), len(optimum))
    hessian = np.where(np.isfinite(hessian), hessian, 0.0)
    curvature, directions = np.linalg.eigh(0.5 * (hessian + hessian.T))
    curvature = np.clip(curvature, _LEAST_CURVATURE, _MOST_CURVATURE)
    return Whitening(optimum, directions / np.sqrt(curvature))


def whitening_from_draws(draws: Float[np.ndarray, "S P"], before: Whitening) -> Whitening:
    """Whitening by the covariance of draws, shrunk towards an earlier one with the weight of 5 P draws."""
    n_draws, n = draws.shape
    weight = n_draws / (n_draws + 5.0 * n)
    covariance = weight * np.cov(draws.T).reshape(n, n) + (1.0 - weight) * before.covariance
    return Whitening(draws.mean(axis=0), np.linalg.cholesky(covariance))
