"""Kernels of the scaled distance r² = Σ_d (x_d - x'_d)² / lengthscale_d²."""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

from integrand.kernels.distance import (
    exponents_by_difference,
    exponents_by_product,
    exponents_within,
)
from integrand.kernels.leaf import LeafKernel, hyperparameter


class StationaryKernel(LeafKernel):
    """k(x, x') is a function of r² alone, and scale² at r² = 0."""

    lengthscale: Any = hyperparameter(per_column=True, unit="x")
    scale: Any = hyperparameter(unit="y")
    ard: bool = eqx.field(default=True, static=True, kw_only=True)
    # A kernel with a kink at r = 0 turns rounding in r² into errors of √rounding in k, so it takes differences.
    kinked: ClassVar[bool] = False

    @abstractmethod
    def covariance(self, e: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """K as a function of e = -r²/2."""

    def features(self, X: Float[Array, "A D"]) -> Float[Array, "A F"]:
        """The points between which distances are taken: the columns themselves, or where they are mapped to."""
        return self.columns(X)

    def weights(self, n_features: int) -> Float[Array, " F"]:
        """1 / lengthscale for each feature."""
        return jnp.broadcast_to(1.0 / jnp.asarray(self.lengthscale), (n_features,))

    def __call__(self, X1: Float[Array, "A D"], X2: Float[Array, "B D"]) -> Float[Array, "A B"]:
        """K as a function of the scaled distances."""
        F1, F2 = self.features(X1), self.features(X2)
        exponents = exponents_by_difference if self.kinked else exponents_by_product
        return self.covariance(exponents(F1, F2, self.weights(F1.shape[1])))

    def gram(self, X: Float[Array, "A D"]) -> Float[Array, "A A"]:
        """K as a function of the scaled distances, which are exactly 0 where rows coincide."""
        F = self.features(X)
        return self.covariance(exponents_within(F, self.weights(F.shape[1])))

    def diagonal(self, X: Float[Array, "A D"]) -> Float[Array, " A"]:
        """scale² for each row."""
        return jnp.broadcast_to(self.scale**2, (X.shape[0],))


class RBF(StationaryKernel):
    """Squared exponential: scale² exp(-r²/2)."""

    def covariance(self, e: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """scale² exp(-r²/2)."""
        return _scaled_exp(self.scale, e)


class Matern12(StationaryKernel):
    """Matérn with smoothness 1/2: scale² exp(-r)."""

    kinked: ClassVar[bool] = True

    def covariance(self, e: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """scale² exp(-r)."""
        return _scaled_exp(self.scale, -_root(-2.0 * e))


class Matern32(StationaryKernel):
    """Matérn with smoothness 3/2: scale² (1 + √3 r) exp(-√3 r)."""

    kinked: ClassVar[bool] = True

    def covariance(self, e: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """scale² (1 + √3 r) exp(-√3 r)."""
        r = _root(-6.0 * e)
        return (1.0 + r) * _scaled_exp(self.scale, -r)


class Matern52(StationaryKernel):
    """Matérn with smoothness 5/2: scale² (1 + √5 r + 5 r²/3) exp(-√5 r)."""

    kinked: ClassVar[bool] = True

    def covariance(self, e: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """scale² (1 + √5 r + 5 r²/3) exp(-√5 r)."""
        r = _root(-10.0 * e)
        return (1.0 + r + r**2 / 3.0) * _scaled_exp(self.scale, -r)


class RationalQuadratic(StationaryKernel):
    """Scale mixture of squared exponentials: scale² (1 + r² / 2α)^(-α)."""

    alpha: Any = hyperparameter()

    def covariance(self, e: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """scale² (1 + r² / 2α)^(-α)."""
        return _scaled_exp(self.scale, -self.alpha * jnp.log1p(-e / self.alpha))


class Periodic(StationaryKernel):
    """scale² exp(-2 Σ_d sin²(π (x_d - x'_d) / period) / lengthscale_d²).

    Since 4 sin²(δ/2) is the squared distance of (cos, sin) at angles δ apart, this is a squared exponential
    kernel of the points (cos, sin)(2π x_d / period) on circles.
    """

    # The lengthscale is a distance on the circle, so it has no unit; the period has that of its column.
    lengthscale: Any = hyperparameter(per_column=True)
    period: Any = hyperparameter(unit="x")

    def features(self, X: Float[Array, "A D"]) -> Float[Array, "A F"]:
        """(cos, sin)(2π x / period)."""
        angle = 2.0 * jnp.pi * self.columns(X) / self.period
        return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=1)

    def weights(self, n_features: int) -> Float[Array, " F"]:
        """1 / lengthscale for each feature: cosine and sine of a column share one."""
        return jnp.tile(jnp.broadcast_to(1.0 / jnp.asarray(self.lengthscale), (n_features // 2,)), 2)

    def covariance(self, e: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """scale² exp(-r²/2) of the distances between points on circles."""
        return _scaled_exp(self.scale, e)


def _scaled_exp(scale: ScalarLike, exponent: Float[Array, "A B"]) -> Float[Array, "A B"]:
    """scale² exp(exponent) in one pass: a gradient then needs the result only, not the exponential beside it."""
    return jnp.exp(exponent + 2.0 * jnp.log(scale))


def _root(r2: Float[Array, "A B"]) -> Float[Array, "A B"]:
    """√r² with gradient 0 at 0, where the distance itself has none in any direction that matters."""
    positive = r2 > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, r2, 1.0)), 0.0)
