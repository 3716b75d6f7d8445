"""Bends: coordinates in which one long tail of a density is short.

A column that may matter or not has a lengthscale with a long tail to the right: beyond some length nothing changes any
more, and φ = log l wanders there for a long time. Its relevance r = exp(-φ) has no such tail: it is near zero there. A
bend counts r where r is large and log r where it is small:

    φ = c - s log softplus(-s ψ),   s = 1 (tail to the right), s = -1 (to the left), s = 0: φ = ψ

Far on the side of the tail φ goes as ψ, on the other side as the logarithm of it. The knee c is where the one becomes
the other. A density of φ is one of ψ with log |dφ/dψ| added, so a sampler draws from the same posterior in either.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import expit

# Knees that are tried: from so far beyond the middle 90 % of the draws on either side, in so many steps.
_BEYOND, _KNEES = 1.0, 25
# A bend has to make the draws likelier under a Gaussian by so many nats; draws are correlated, and this is little.
_WORTH = 2.0
# Beyond this |z| softplus(z) is z or exp(z), to double precision.
_FAR = 35.0
# exp of more would overflow when it is squared.
_MOST_LOG = 300.0


class Bend(NamedTuple):
    """One s and c for each coordinate."""

    side: Float[np.ndarray, " P"]
    knee: Float[np.ndarray, " P"]

    def to_x(self, psi: Float[np.ndarray, "... P"]) -> Float[np.ndarray, "... P"]:
        """φ from ψ."""
        s = self._sign
        return np.where(self.side == 0, psi, self.knee - s * _log_softplus(-s * psi))

    def to_psi(self, x: Float[np.ndarray, "... P"]) -> Float[np.ndarray, "... P"]:
        """ψ from φ."""
        s = self._sign
        t = np.minimum(-s * (x - self.knee), _MOST_LOG)
        return np.where(self.side == 0, x, -s * _inverse_softplus_of_exp(t))

    def placed(self, psi: Float[np.ndarray, "... P"]) -> tuple[Float[np.ndarray, "... P"], Float[np.ndarray, "... P"]]:
        """φ from ψ, and `log_slope` there: what every evaluation of a bent density needs."""
        s = self._sign
        z = -s * psi
        log_softplus, straight = _log_softplus(z), self.side == 0
        x = np.where(straight, psi, self.knee - s * log_softplus)
        return x, np.where(straight, 0.0, -np.logaddexp(0.0, -z) - log_softplus)

    def slope(self, psi: Float[np.ndarray, "... P"]) -> Float[np.ndarray, "... P"]:
        """dφ/dψ = sigmoid(z) / softplus(z) with z = -s ψ."""
        return np.exp(self.log_slope(psi))

    def log_slope(self, psi: Float[np.ndarray, "... P"]) -> Float[np.ndarray, "... P"]:
        """Of each coordinate; their sum is the log Jacobian."""
        z = -self._sign * psi
        return np.where(self.side == 0, 0.0, -np.logaddexp(0.0, -z) - _log_softplus(z))

    def d_log_slope(self, psi: Float[np.ndarray, "... P"]) -> Float[np.ndarray, "... P"]:
        """Derivative of `log_slope` in ψ."""
        s = self._sign
        z = -s * psi
        return np.where(self.side == 0, 0.0, -s * (expit(-z) - np.exp(-np.logaddexp(0.0, -z) - _log_softplus(z))))

    @property
    def _sign(self) -> Float[np.ndarray, " P"]:
        return np.where(self.side == 0, 1.0, self.side)


def bend_from_draws(draws: Float[np.ndarray, "S P"]) -> Bend:
    """For each coordinate the side and knee that make its draws most likely under a Gaussian, or none."""
    n = draws.shape[1]
    side, knee = np.zeros(n), np.zeros(n)
    best = np.where(np.ptp(draws, axis=0) > 0, _gaussian(draws, np.zeros(n)) + _WORTH / len(draws), np.inf)
    low, high = np.percentile(draws, [5.0, 95.0], axis=0)
    for s in (1.0, -1.0):
        for share in np.linspace(0.0, 1.0, _KNEES):
            tried = Bend(np.full(n, s), low - _BEYOND + share * (high - low + 2.0 * _BEYOND))
            psi = tried.to_psi(draws)
            value = _gaussian(psi, tried.log_slope(psi).mean(axis=0))
            better = value > best
            side, knee = np.where(better, tried.side, side), np.where(better, tried.knee, knee)
            best = np.where(better, value, best)
    return Bend(side, knee)


def _gaussian(psi: Float[np.ndarray, "S P"], log_slope: Float[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
    """Mean log density of φ if ψ is Gaussian, up to a constant."""
    return -np.log(np.maximum(psi.std(axis=0), np.finfo(float).tiny)) - log_slope


def _log_softplus(z: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return np.where(z < -_FAR, z, np.log(np.logaddexp(0.0, np.maximum(z, -_FAR))))


def _inverse_softplus_of_exp(t: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """z with softplus(z) = exp(t)."""
    r = np.exp(np.clip(t, -_FAR, np.log(_FAR)))
    near = np.log(np.expm1(r))
    return np.where(t < -_FAR, t, np.where(t > np.log(_FAR), np.exp(t), near))
