"""A mixture over modes with heavy tails, as a normalised density of x: what independence proposals are drawn from.

    q(x) = Σ_k w_k q_k(x),    q_k = a N(η) + b t_ν(η) + c T(x),    x = warp_k(centre_k + factor_k η)

Each component has coordinates of its own, in which its part of the density is close to a standard normal, and tails
that are heavier: t_ν in these coordinates, and T in *unwarped* ones. A warp that fits the draws may squeeze a tail that
it has not met; T bounds d/q there. In many dimensions a multivariate t falls much too fast where a single entry of x is
far out, or one direction. So T is a mixture of three, all with heavier tails and wider than the draws:

    1/P Σ_j t(x_j) N(x_{-j} | x_j)      one entry at a time; the others follow it for 2.5 standard deviations
    1/P Σ_j t(ξ_j) Π_{i≠j} N(ξ_i)       one principal direction at a time
    t(ξ)                                all at once
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy.special import gammaln

from integrand.infer.coordinates import Coordinates, coordinates_from_draws

Points = Float[np.ndarray, "S P"]
Values = Float[np.ndarray, " S"]

# Shares of the t component and of T; ν of the t, and its width, that of the normal too: a little wider than the draws
# that q is fitted to, so that d/q stays bounded.
T_SHARE, TAIL_SHARE, T_FREEDOM, WIDTH = 0.1, 0.12, 5.0, 1.1
# ν and width of the tails of T, and the standard deviations beyond which other entries do not follow one.
_TAIL_FREEDOM, _TAIL_WIDTH, _FOLLOW = 3.0, 1.5, 2.5
# A component keeps at least this share of the proposals: a mode whose mass seems to be nothing is looked at still.
_MIN_WEIGHT = 0.02
# Of each component that is wider than the modes, at first, beside all modes together.
_BROAD_WEIGHT = 0.1
# Points that a search begins with, at least; their spread in φ (half-Cauchy priors have a standard deviation of 1.6
# there); and how many must count in the end: this share, or as many as for the fewest.
DISPERSED, _PRIOR_WIDTH, _PLAUSIBLE, _PLAUSIBLE_SHARE, _LEAST_POWER = 256, 2.0, 40, 0.1, 1e-6
# Groups that many plausible points are divided into, and how many are many.
_GROUPS, _ENOUGH_FOR_GROUPS = 4, 1_000
_LOG_2PI = math.log(2.0 * math.pi)


@dataclass(frozen=True)
class Component:
    """Coordinates of one mode, and unwarped ones with the mean and covariance of its draws."""

    coordinates: Coordinates
    plain: Coordinates

    @classmethod
    def at(cls, coordinates: Coordinates) -> "Component":
        """A component of which nothing but its coordinates is known."""
        return cls(coordinates, coordinates.unwarped())

    def draw(self, rng: np.random.Generator) -> Float[np.ndarray, " P"]:
        """One draw of q_k."""
        n, part = self.coordinates.dimension, rng.random()
        z = rng.standard_normal(n)
        if part < TAIL_SHARE:
            return self._draw_tail(z, rng)
        if part < TAIL_SHARE + T_SHARE:
            z = z / math.sqrt(rng.chisquare(T_FREEDOM) / T_FREEDOM)
        return self.coordinates.to_x_with_log_jacobian(WIDTH * z)[0]

    def _draw_tail(self, z: np.ndarray, rng: np.random.Generator) -> Float[np.ndarray, " P"]:
        which, j, centre = int(rng.integers(3)), int(rng.integers(len(z))), self.plain.centre
        if which == 0:
            x, sd, u = self.plain.factor @ z, self._sds[j], _TAIL_WIDTH * rng.standard_t(_TAIL_FREEDOM)
            x = x + self.plain.covariance[:, j] / sd * (min(max(u, -_FOLLOW), _FOLLOW) - x[j] / sd)
            x[j] = sd * u
            return centre + x
        if which == 1:
            z[j] = _TAIL_WIDTH * rng.standard_t(_TAIL_FREEDOM)
        else:
            z = z * _TAIL_WIDTH / math.sqrt(rng.chisquare(_TAIL_FREEDOM) / _TAIL_FREEDOM)
        return centre + self._axes[0] @ z

    def log_density(self, x: Points) -> Values:
        """log q_k(x). Each row is multiplied by itself: a product of many rows rounds otherwise than one of few."""
        n = x.shape[1]
        warp = self.coordinates.warp
        psi = x if warp is None else warp.to_psi(x)
        log_slope = 0.0 if warp is None else warp.log_slope(psi).sum(axis=1)
        eta = np.matmul(self._inverse, (psi - self.coordinates.centre)[..., None])[..., 0]
        square = np.sum(eta * eta, axis=1) / WIDTH**2
        normal = -0.5 * n * _LOG_2PI - 0.5 * square - n * math.log(WIDTH)
        t = _log_t(square * WIDTH**2, n, T_FREEDOM, WIDTH)
        shift = -self._log_determinants[0] - log_slope
        parts = [
            math.log(1.0 - T_SHARE - TAIL_SHARE) + normal + shift,
            math.log(T_SHARE) + t + shift,
            math.log(TAIL_SHARE) + self._log_tail(x),
        ]
        return np.asarray(np.logaddexp(np.logaddexp(parts[0], parts[1]), parts[2]))

    def _log_tail(self, x: Points) -> Values:
        """log T(x)."""
        n = x.shape[1]
        d = x - self.plain.centre
        along = np.matmul(self._precision, d[..., None])[..., 0]
        xi = np.matmul(self._axes[1], d[..., None])[..., 0]
        square = np.sum(xi * xi, axis=1)
        normal = -0.5 * (n - 1) * _LOG_2PI - self._log_determinants[1]
        z = d / self._sds
        c = np.clip(z, -_FOLLOW, _FOLLOW)
        # The square with x_j moved to where the condition on it ends.
        change = self._sds * (c - z)
        moved = square[:, None] + change * (2.0 * along + change * np.diag(self._precision))
        of_entries = np.logaddexp.reduce(_log_t(z**2, 1) - 0.5 * (moved - c * c), axis=1) + normal - math.log(n)
        of_axes = np.logaddexp.reduce(_log_t(xi**2, 1) + 0.5 * xi**2, axis=1) - 0.5 * square + normal - math.log(n)
        of_all = _log_t(square, n) - self._log_determinants[1]
        return np.logaddexp.reduce([of_entries, of_axes, of_all], axis=0) - math.log(3.0)

    @cached_property
    def _inverse(self) -> np.ndarray:
        return np.linalg.inv(self.coordinates.factor)

    @cached_property
    def _precision(self) -> np.ndarray:
        inverse = np.linalg.inv(self.plain.factor)
        return inverse.T @ inverse

    @cached_property
    def _axes(self) -> tuple[np.ndarray, np.ndarray]:
        """x - centre from ξ, along the principal directions of the correlations, and back."""
        values, directions = np.linalg.eigh(self.plain.covariance / np.outer(self._sds, self._sds))
        factor = self._sds[:, None] * directions * np.sqrt(np.maximum(values, np.finfo(float).eps))
        return factor, np.linalg.inv(factor)

    @cached_property
    def _sds(self) -> np.ndarray:
        return np.sqrt(np.diag(self.plain.covariance))

    @cached_property
    def _log_determinants(self) -> tuple[float, float]:
        return tuple(float(np.linalg.slogdet(c.factor)[1]) for c in (self.coordinates, self.plain))  # type: ignore


def _log_t(square: np.ndarray, n: int, nu: float = _TAIL_FREEDOM, width: float = _TAIL_WIDTH) -> np.ndarray:
    """Log density of a t distribution in n dimensions, of this width, at these squared distances."""
    constant = gammaln(0.5 * (nu + n)) - gammaln(0.5 * nu) - 0.5 * n * math.log(nu * math.pi * width**2)
    return constant - 0.5 * (nu + n) * np.log1p(square / (nu * width**2))


@dataclass(frozen=True)
class Mixture:
    """q(x)."""

    components: tuple[Component, ...]
    weights: Float[np.ndarray, " K"]
    n_modes: int  # the first components; others become what modes alone do not show: skewness, tails, what is far off

    @classmethod
    def over(
        cls, coordinates: Sequence[Coordinates], log_masses: Sequence[float], broad: Sequence[Coordinates] = ()
    ) -> "Mixture":
        """Components with weights by their masses."""
        masses = np.exp(np.asarray(log_masses) - np.max(log_masses))
        masses /= masses.sum()
        widest = coordinates[int(np.argmax(masses))].unwarped()
        wide = widest._replace(factor=(1.0 + widest.dimension**-0.5) * widest.factor)
        more = [wide, *broad]
        components = [Component.at(c) for c in (*coordinates, *more)]
        masses = np.append(masses, [_BROAD_WEIGHT] * len(more))
        return cls(tuple(components), _floored(masses / masses.sum()), len(coordinates))

    def choose(self, rng: np.random.Generator, of_modes: bool = False) -> int:
        """The number of a component (of one around a mode), with its weight as the probability."""
        cumulated = np.cumsum(self.weights[: self.n_modes] if of_modes else self.weights)
        return min(int(np.searchsorted(cumulated / cumulated[-1], rng.random())), len(cumulated) - 1)

    def draw(self, rng: np.random.Generator) -> Float[np.ndarray, " P"]:
        """One draw."""
        return self.components[self.choose(rng)].draw(rng)

    def log_density(self, x: Points) -> Values:
        """log q(x), normalised."""
        if len(self.components) == 1:
            return self.components[0].log_density(x)
        return np.asarray(np.logaddexp.reduce(self._log_parts(x), axis=1))

    def responsibilities(self, x: Points) -> Float[np.ndarray, "S K"]:
        """The probability, by q, that x comes from each component."""
        parts = self._log_parts(x)
        return np.exp(parts - np.logaddexp.reduce(parts, axis=1)[:, None])

    def _log_parts(self, x: Points) -> Float[np.ndarray, "S K"]:
        log_weights = np.log(self.weights)
        return np.stack([c.log_density(x) + w for c, w in zip(self.components, log_weights, strict=True)], axis=1)

    def refitted(self, draws: Float[np.ndarray, "n P"], proposed: Points, log_weights: Values) -> "Mixture":
        """Fitted to draws of chains and to all proposals, these with their importance weights log d/q.

        Both are one weighted sample. Shapes are shrunk towards those before.
        """
        w = truncated_weights(log_weights)
        ess = 1.0 / float(np.sum(w**2))
        x = np.concatenate([draws, proposed])
        belongs = self.responsibilities(x)
        n = len(draws) + ess
        v = np.concatenate([np.full(len(draws), 1.0), ess * w])[:, None] * belongs
        mass = v.sum(axis=0) + self.weights
        counts = np.minimum(v.sum(axis=0), n)
        components = [
            _component(c, x, v[:, k], float(counts[k]), k < self.n_modes) for k, c in enumerate(self.components)
        ]
        return Mixture(tuple(components), _floored(mass / mass.sum()), self.n_modes)


def _component(before: Component, x: Points, weights: Values, count: float, warp: bool) -> Component:
    """The component of a weighted sample that counts as this many draws; of a few it stays as it is."""
    if count < 4.0 + 0.5 * x.shape[1]:
        return before
    sample = x[resampled(weights, int(count))]
    if np.linalg.matrix_rank(sample - sample[0]) < 1:
        return before
    return Component(
        coordinates_from_draws(sample, before.coordinates, warp),
        coordinates_from_draws(sample, before.plain, warp=False),
    )


def dispersed_points(
    values: Callable[[Points], Values],
    centre: Float[np.ndarray, " P"],
    rng: np.random.Generator,
    count: int = DISPERSED,
) -> tuple[Points, Points]:
    """Points around the centre as wide as priors are, and those among them that a log density finds plausible.

    The second are resampled by their importance weights, or by the power of these that leaves enough of them.
    """
    n = len(centre)
    z = rng.standard_normal((count, n)) / np.sqrt(rng.chisquare(T_FREEDOM, (count, 1)) / T_FREEDOM)
    points = centre + _PRIOR_WIDTH * z
    log_weights = values(points) - _log_t(np.sum(z * z, axis=1), n, T_FREEDOM, 1.0)
    log_weights = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    if not np.any(np.isfinite(log_weights)):
        return points, points
    log_weights -= log_weights.max()
    power, wanted = 1.0, max(_PLAUSIBLE, _PLAUSIBLE_SHARE * count)
    while power > _LEAST_POWER and np.exp(power * log_weights).sum() ** 2 < wanted * np.sum(
        np.exp(2.0 * power * log_weights)
    ):
        power *= 0.7
    return points, points[resampled(np.exp(power * log_weights), count)]


def broad_components(plausible: Points, near: Coordinates, rng: np.random.Generator) -> tuple[Coordinates, ...]:
    """Coordinates of all plausible points together and, where there are many, of groups of them.

    A density may have a shelf beside its modes: wide, low, with a percent of the mass and no optimum. A group is there.
    """
    plain = near.unwarped()
    together = coordinates_from_draws(plausible, plain, warp=False)
    if len(plausible) < _ENOUGH_FOR_GROUPS:
        return (together,)
    from scipy.cluster.vq import kmeans2  # few fits need it

    eta = together.to_eta(plausible)
    start = eta[rng.choice(len(eta), _GROUPS, replace=False)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "One of the clusters is empty", UserWarning)
        group = kmeans2(eta, start, iter=20, minit="matrix")[1]
    members = (plausible[group == k] for k in range(_GROUPS))
    distinct = (m for m in members if len(np.unique(m, axis=0)) > 4 * plausible.shape[1])
    return (together, *(coordinates_from_draws(m, plain, warp=False) for m in distinct))


def truncated_weights(log_weights: Values) -> Values:
    """Importance weights that sum to one, none larger than √S times their mean (Ionides 2008)."""
    finite = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    top = float(finite.max())
    if not math.isfinite(top):
        return np.full(len(finite), 1.0 / len(finite))
    w = np.exp(finite - top)
    w = np.minimum(w, math.sqrt(len(w)) * w.mean())
    return w / w.sum()


def resampled(weights: Values, n: int) -> np.ndarray:
    """Indices of n draws of equal weight: each comes n w times, rounded (systematic resampling)."""
    cumulated = np.cumsum(weights)
    return np.minimum(np.searchsorted(cumulated / cumulated[-1], (np.arange(n) + 0.5) / n), len(weights) - 1)


def _floored(weights: Float[np.ndarray, " K"]) -> Float[np.ndarray, " K"]:
    weights = np.maximum(weights, min(_MIN_WEIGHT, 0.5 / len(weights)))
    return weights / weights.sum()
