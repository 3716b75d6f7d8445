"""Kernels of the scaled distance r² = Σ_d (x_d - x'_d)² / lengthscale_d²."""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from integrand.kernels.leaf import LeafKernel, hyperparameter
from integrand.kernels.distance import squared_distances, squared_distances_by_difference


class StationaryKernel(LeafKernel):
    """k(x, x') = scale² · profile(r²) with profile(0) = 1."""

    lengthscale: eqx.AbstractVar[Any]
    scale: eqx.AbstractVar[Any]
    # A kernel with a kink at r = 0 turns rounding in r² into errors of √rounding in k, so it takes differences.
    kinked: ClassVar[bool] = False

    @abstractmethod
    def profile(self, r2: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """Correlation as a function of the squared scaled distance."""

    def features(self, X: Float[Array, "A D"]) -> Float[Array, "A F"]:
        """The inputs between which Euclidean distances are taken."""
        return self.columns(X) / self.lengthscale

    def __call__(self, X1: Float[Array, "A D"], X2: Float[Array, "B D"]) -> Float[Array, "A B"]:
        """scale² · profile(r²)."""
        distances = squared_distances_by_difference if self.kinked else squared_distances
        return self.scale**2 * self.profile(distances(self.features(X1), self.features(X2)))

    def gram(self, X: Float[Array, "A D"]) -> Float[Array, "A A"]:
        """scale² · profile(r²) with exact zeros where rows coincide."""
        F = self.features(X)
        return self.scale**2 * self.profile(squared_distances_by_difference(F, F))

    def diagonal(self, X: Float[Array, "A D"]) -> Float[Array, " A"]:
        """scale² for each row."""
        return jnp.broadcast_to(self.scale**2, (X.shape[0],))


class RBF(StationaryKernel):
    """Squared exponential: scale² exp(-r²/2)."""

    lengthscale: Any = hyperparameter(per_column=True)
    scale: Any = hyperparameter()
    ard: bool = eqx.field(default=True, static=True)
    active: tuple[int, ...] | None = eqx.field(default=None, static=True)
    name: str | None = eqx.field(default=None, static=True)

    def profile(self, r2: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """exp(-r²/2)."""
        return jnp.exp(-0.5 * r2)


class Matern12(StationaryKernel):
    """Matérn with smoothness 1/2: scale² exp(-r)."""

    lengthscale: Any = hyperparameter(per_column=True)
    scale: Any = hyperparameter()
    ard: bool = eqx.field(default=True, static=True)
    active: tuple[int, ...] | None = eqx.field(default=None, static=True)
    name: str | None = eqx.field(default=None, static=True)
    kinked: ClassVar[bool] = True

    def profile(self, r2: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """exp(-r)."""
        return jnp.exp(-_root(r2))


class Matern32(StationaryKernel):
    """Matérn with smoothness 3/2: scale² (1 + √3 r) exp(-√3 r)."""

    lengthscale: Any = hyperparameter(per_column=True)
    scale: Any = hyperparameter()
    ard: bool = eqx.field(default=True, static=True)
    active: tuple[int, ...] | None = eqx.field(default=None, static=True)
    name: str | None = eqx.field(default=None, static=True)
    kinked: ClassVar[bool] = True

    def profile(self, r2: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """(1 + √3 r) exp(-√3 r)."""
        r = _root(3.0 * r2)
        return (1.0 + r) * jnp.exp(-r)


class Matern52(StationaryKernel):
    """Matérn with smoothness 5/2: scale² (1 + √5 r + 5 r²/3) exp(-√5 r)."""

    lengthscale: Any = hyperparameter(per_column=True)
    scale: Any = hyperparameter()
    ard: bool = eqx.field(default=True, static=True)
    active: tuple[int, ...] | None = eqx.field(default=None, static=True)
    name: str | None = eqx.field(default=None, static=True)
    kinked: ClassVar[bool] = True

    def profile(self, r2: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """(1 + √5 r + 5 r²/3) exp(-√5 r)."""
        r = _root(5.0 * r2)
        return (1.0 + r + (5.0 / 3.0) * r2) * jnp.exp(-r)


class RationalQuadratic(StationaryKernel):
    """Scale mixture of squared exponentials: scale² (1 + r² / 2α)^(-α)."""

    lengthscale: Any = hyperparameter(per_column=True)
    scale: Any = hyperparameter()
    alpha: Any = hyperparameter()
    ard: bool = eqx.field(default=True, static=True)
    active: tuple[int, ...] | None = eqx.field(default=None, static=True)
    name: str | None = eqx.field(default=None, static=True)

    def profile(self, r2: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """(1 + r² / 2α)^(-α)."""
        return jnp.exp(-self.alpha * jnp.log1p(r2 / (2.0 * self.alpha)))


class Periodic(StationaryKernel):
    """scale² exp(-2 Σ_d sin²(π (x_d - x'_d) / period) / lengthscale_d²).

    Since 4 sin²(δ/2) is the squared distance of (cos, sin) at angles δ apart, this is a squared exponential
    kernel of the points (cos, sin)(2π x_d / period) on circles.
    """

    period: Any = hyperparameter()
    lengthscale: Any = hyperparameter(per_column=True)
    scale: Any = hyperparameter()
    ard: bool = eqx.field(default=True, static=True)
    active: tuple[int, ...] | None = eqx.field(default=None, static=True)
    name: str | None = eqx.field(default=None, static=True)

    def features(self, X: Float[Array, "A D"]) -> Float[Array, "A F"]:
        """(cos, sin)(2π x / period) / lengthscale."""
        angle = 2.0 * jnp.pi * self.columns(X) / self.period
        return jnp.concatenate([jnp.cos(angle) / self.lengthscale, jnp.sin(angle) / self.lengthscale], axis=1)

    def profile(self, r2: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """exp(-r²/2) of the distances between points on circles."""
        return jnp.exp(-0.5 * r2)


def _root(r2: Float[Array, "A B"]) -> Float[Array, "A B"]:
    """√r² with gradient 0 at 0, where the distance itself has none in any direction that matters."""
    positive = r2 > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, r2, 1.0)), 0.0)
