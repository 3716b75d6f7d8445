"""Coordinates in which a density is close to a standard normal, so that a sampler needs little warm-up.

    x = warp(centre + factor @ η)

The affine part is a whitening, by the Hessian at an optimum or by the covariance of draws. The warp shortens one long
tail of a coordinate. Such tails are common: beyond some lengthscale l a column no longer matters, so φ = log l has a
long tail to the right, while its relevance exp(-φ) has none. A warped coordinate ψ is linear in the one tail and
logarithmic in the other:

    φ = c - s log softplus(-s ψ),   s = 1 (tail to the right), s = -1 (to the left), s = 0: φ = ψ

The knee c is where the one becomes the other. With log |dφ/dψ| added to the log density, draws of ψ are draws of φ.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import expit

from integrand.infer.optimise import LogDensity, Vector, maximise_lbfgs

# Curvatures are kept between these: a flat direction is as wide as priors let it be, not infinitely wide.
_MIN_CURVATURE, _MAX_CURVATURE = 0.04, 1e12
# Halvings of a width in search of the one at which half a nat is lost.
_HALVINGS = 12
# An earlier covariance counts as much as this many draws for each dimension.
_PRIOR_DRAWS = 5.0
# Knees that are tried: from this far beyond the central 90 % of the draws on either side, in this many steps.
_BEYOND, _KNEES = 1.0, 25
# A warp must raise the log likelihood of the draws under a Gaussian by this many nats; draws are correlated.
_MIN_GAIN = 2.0
# Beyond this |z| softplus(z) is z or exp(z), to double precision.
_FAR = 35.0
# exp of more would overflow when it is squared.
_MAX_LOG = 300.0


class TailWarp(NamedTuple):
    """s and c for each coordinate."""

    side: Float[np.ndarray, " P"]
    knee: Float[np.ndarray, " P"]

    def to_x(self, psi: Float[np.ndarray, "... P"]) -> Float[np.ndarray, "... P"]:
        """φ from ψ."""
        s = self._sign
        return np.where(self.side == 0, psi, self.knee - s * _log_softplus(-s * psi))

    def to_psi(self, x: Float[np.ndarray, "... P"]) -> Float[np.ndarray, "... P"]:
        """ψ from φ."""
        s = self._sign
        t = np.minimum(-s * (x - self.knee), _MAX_LOG)
        return np.where(self.side == 0, x, -s * _inverse_softplus_of_exp(t))

    def to_x_with_log_slope(
        self, psi: Float[np.ndarray, "... P"]
    ) -> tuple[Float[np.ndarray, "... P"], Float[np.ndarray, "... P"]]:
        """φ from ψ, and `log_slope` there: what every evaluation of a warped density needs."""
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


class Coordinates(NamedTuple):
    """x = warp(centre + factor @ η); without a warp, x has covariance factor factorᵀ when η is standard normal."""

    centre: Float[np.ndarray, " P"]
    factor: Float[np.ndarray, "P P"]
    warp: TailWarp | None = None

    @classmethod
    def identity(cls, dimension: int) -> "Coordinates":
        """x = η."""
        return cls(np.zeros(dimension), np.eye(dimension))

    @property
    def dimension(self) -> int:
        """P."""
        return len(self.centre)

    @property
    def covariance(self) -> Float[np.ndarray, "P P"]:
        """factor factorᵀ: covariance of x, or of ψ, when η is standard normal."""
        return self.factor @ self.factor.T

    @property
    def middle(self) -> Float[np.ndarray, " P"]:
        """x at η = 0."""
        return self.centre if self.warp is None else self.warp.to_x(self.centre)

    def unwarped(self) -> "Coordinates":
        """Affine coordinates that agree with these near the middle, for samplers that cannot warp."""
        if self.warp is None:
            return self
        return Coordinates(self.middle, self.factor * self.warp.slope(self.centre)[:, None])

    def to_x(self, eta: Float[np.ndarray, "... P"]) -> Float[np.ndarray, "... P"]:
        """x from η."""
        psi = self.centre + eta @ self.factor.T
        return psi if self.warp is None else self.warp.to_x(psi)

    def to_eta(self, x: Float[np.ndarray, "... P"]) -> Float[np.ndarray, "... P"]:
        """η from x."""
        psi = x if self.warp is None else self.warp.to_psi(x)
        return np.linalg.solve(self.factor, (psi - self.centre)[..., None])[..., 0]

    def log_jacobian(self, eta: Float[np.ndarray, "... P"]) -> Float[np.ndarray, "..."]:
        """What the warp adds to a log density of x to make it one of η; the constant log |factor| is left out."""
        if self.warp is None:
            return np.zeros(eta.shape[:-1])
        return np.asarray(self.warp.log_slope(self.centre + eta @ self.factor.T).sum(axis=-1))

    def to_x_with_log_jacobian(self, eta: Float[np.ndarray, " P"]) -> tuple[Float[np.ndarray, " P"], float]:
        """x from η, and `log_jacobian` there."""
        psi = self.centre + self.factor @ eta
        if self.warp is None:
            return psi, 0.0
        x, log_slope = self.warp.to_x_with_log_slope(psi)
        return x, float(log_slope.sum())

    def pull_back(self, log_density: Callable[..., tuple[float, np.ndarray]]) -> Callable[..., tuple[float, Any]]:
        """A log density of x, and its gradient, as one of η."""
        if self.warp is None:

            def whitened(eta: Float[np.ndarray, " P"]) -> tuple[float, Float[np.ndarray, " P"]]:
                value, gradient = log_density(self.to_x(eta))
                return value, gradient @ self.factor

            return whitened
        warp = self.warp

        def warped(eta: Float[np.ndarray, " P"]) -> tuple[float, Float[np.ndarray, " P"]]:
            psi = self.centre + self.factor @ eta
            x, log_slope = warp.to_x_with_log_slope(psi)
            value, gradient = log_density(x)
            return value + float(log_slope.sum()), (gradient * np.exp(log_slope) + warp.d_log_slope(psi)) @ self.factor

        return warped

    def refit(self, draws: Float[np.ndarray, "C n P"], warp: bool) -> "Coordinates":
        """Coordinates fitted to draws of chains, shrunk towards these."""
        return coordinates_from_draws(draws.reshape(-1, draws.shape[2]), self, warp)


def coordinates_from_hessian(
    gradient: Callable[[Float[np.ndarray, " P"]], Float[np.ndarray, " P"]],
    optimum: Float[np.ndarray, " P"],
    step: float = 1e-4,
    value: Callable[[Float[np.ndarray, " P"]], float] | None = None,
) -> Coordinates:
    """Whitening by the Hessian at an optimum, from central differences of the gradient (2 P evaluations).

    The width of a direction that curves upwards, as at a saddle, is measured by the log density, if there is `value`.
    """
    rows = [(gradient(optimum + d) - gradient(optimum - d)) / (2.0 * step) for d in step * np.eye(len(optimum))]
    hessian = -np.array(rows).reshape(len(optimum), len(optimum))
    hessian = np.where(np.isfinite(hessian), hessian, 0.0)
    curvature, directions = np.linalg.eigh(0.5 * (hessian + hessian.T))
    saddles = np.flatnonzero(curvature < -_MIN_CURVATURE)
    curvature = np.clip(curvature, _MIN_CURVATURE, _MAX_CURVATURE)
    if value is not None and len(saddles) and np.isfinite(top := value(optimum)):
        for i in saddles:
            along = directions[:, i]
            curvature[i] = _measured_width(lambda t, d=along: top - value(optimum + t * d), curvature[i] ** -0.5) ** -2
    return Coordinates(optimum, directions / np.sqrt(curvature))


def coordinates_at_mode(
    log_density: LogDensity, starts: "list[Vector] | tuple[Vector, ...]", steps: int = 100, saddles: bool = False
) -> Coordinates:
    """Whitening by the Hessian at the optimum that L-BFGS reaches from the best of some starts.

    `saddles` measures the width of directions that curve upwards, which pays where there are few coordinates.
    """
    start = max(starts, key=lambda x: log_density(x)[0])
    optimum = maximise_lbfgs(log_density, start, max_steps=steps)
    value = (lambda x: log_density(x)[0]) if saddles else None
    return coordinates_from_hessian(lambda x: log_density(x)[1], optimum.x, value=value)


def _measured_width(loss: Callable[[float], float], widest: float) -> float:
    """The distance, `widest` at most, at which a log density has lost half a nat: one sd of a Gaussian.

    `loss(t)` is the loss at t; the mean of both sides counts. Two columns that can replace each other have a saddle
    between their modes, or a top flatter than any parabola.
    """

    def falls(width: float) -> bool:
        return not (np.isfinite(forward := loss(width)) and 0.5 * (forward + loss(-width)) < 0.5)

    width = widest
    for _ in range(_HALVINGS):
        if not falls(width):
            break
        width *= 0.5
    else:
        return width
    if width < widest:  # between this and twice as much
        for factor in (2.0**0.5, 2.0**0.25, 2.0**0.125):
            width *= 1.0 if falls(width * factor) else factor
    return width


def coordinates_from_draws(draws: Float[np.ndarray, "S P"], before: Coordinates, warp: bool = False) -> Coordinates:
    """Whitening by the covariance of draws, shrunk towards an earlier one with the weight of 5 P draws.

    `warp` allows a warp of each coordinate that has a long tail.
    """
    n_draws, n = draws.shape
    tail_warp = warp_from_draws(draws) if warp else None
    psi = draws if tail_warp is None else tail_warp.to_psi(draws)
    weight = n_draws / (n_draws + _PRIOR_DRAWS * n)
    earlier = before.unwarped().factor
    if tail_warp is not None:
        # The slope inside the central 90 % of the draws: at a distant mode, and so the earlier factor, it is huge.
        low, high = np.percentile(draws, [5.0, 95.0], axis=0)
        earlier = earlier / tail_warp.slope(tail_warp.to_psi(np.clip(before.middle, low, high)))[:, None]
    covariance = weight * np.cov(psi.T).reshape(n, n) + (1.0 - weight) * earlier @ earlier.T
    return Coordinates(psi.mean(axis=0), np.linalg.cholesky(covariance), tail_warp)


def warp_from_draws(draws: Float[np.ndarray, "S P"]) -> TailWarp:
    """For each coordinate the side and knee that make its draws most likely under a Gaussian, or none."""
    n = draws.shape[1]
    side, knee = np.zeros(n), np.zeros(n)
    best = np.where(np.ptp(draws, axis=0) > 0, _gaussian(draws, np.zeros(n)) + _MIN_GAIN / len(draws), np.inf)
    low, high = np.percentile(draws, [5.0, 95.0], axis=0)
    for s in (1.0, -1.0):
        for share in np.linspace(0.0, 1.0, _KNEES):
            candidate = TailWarp(np.full(n, s), low - _BEYOND + share * (high - low + 2.0 * _BEYOND))
            psi = candidate.to_psi(draws)
            value = _gaussian(psi, candidate.log_slope(psi).mean(axis=0))
            better = value > best
            side, knee = np.where(better, candidate.side, side), np.where(better, candidate.knee, knee)
            best = np.where(better, value, best)
    return TailWarp(side, knee)


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
