"""Stationary kernels: functions of the scaled distance r² = Σ_d (x_d - x'_d)² / lengthscale_d².

They are computed from exponents e = -r²/2 with a gradient in closed form. The exponent and not r² itself, because a
squared exponential kernel then needs one pass less over a block of k(Z, X) for its gradient.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

from integrand.kernels.base import LeafKernel, hyperparameter
from integrand.kernels.registry import register_kernel
from integrand.linalg import transposed
from integrand.priors import HalfCauchy, LogNormal


def _by_product(X1: Array, X2: Array, w: Array) -> Array:
    # a·b - ½‖a‖² - ½‖b‖² as one product of [a, -½‖a‖², 1] and [b, 1, -½‖b‖²].
    a, b = X1 * w, X2 * w
    left = jnp.concatenate([a, _half_norms(a), jnp.ones((len(a), 1), a.dtype)], axis=1)
    right = jnp.concatenate([b, jnp.ones((len(b), 1), b.dtype), _half_norms(b)], axis=1)
    # The barrier keeps XLA from pulling the kernel's exponential into the product, where it is slower.
    return jnp.minimum(jax.lax.optimization_barrier(left @ right.T), 0.0)


def _half_norms(a: Array) -> Array:
    return -0.5 * jnp.sum(a**2, axis=1, keepdims=True)


def _by_difference(X1: Array, X2: Array, w: Array) -> Array:
    # Differences before weights: x w - x' w may round to something else than 0 where x = x' (a fused multiply-add).
    # Columns of X2 lie beside each other, so that the loop over its rows is one of vectors.
    columns = transposed(X2)
    total = jnp.zeros((len(X1), len(X2)), X1.dtype)
    for d in range(X1.shape[1]):  # unrolled, so that XLA makes one loop without an A x B x D array
        total = total - 0.5 * (w[d] * (X1[:, d, None] - columns[None, d])) ** 2
    return total


def _with_row_sums(G: Array, X: Array) -> tuple[Array, Array]:
    """G X and the sums of G's rows (A, 1), by one product."""
    sums = G @ jnp.concatenate([X, jnp.ones((len(X), 1), G.dtype)], axis=1)
    return sums[:, :-1], sums[:, -1:]


def _with_gradient(
    exponents: Callable[[Array, Array, Array], Array],
) -> Callable[[Float[Array, "A D"], Float[Array, "B D"], Float[Array, " D"]], Float[Array, "A B"]]:
    def forward(X1, X2, w):
        return exponents(X1, X2, w), (X1, X2, w)

    def backward(saved, G):
        # With GX = G X2: ∂/∂X1 = w² (GX - X1 ∘ G1) and ∂/∂w = -w Σ G (x - x')², the square expanded. X2 is
        # usually data, and XLA then drops its slow transposed product.
        X1, X2, w = saved
        GX, rows = _with_row_sums(G, X2)
        columns = jnp.sum(G, axis=0)
        dX1 = w**2 * (GX - X1 * rows)
        dX2 = w**2 * (G.T @ X1 - X2 * columns[:, None])
        dw = w * (jnp.sum(2.0 * X1 * GX - rows * X1**2, axis=0) - columns @ X2**2)
        return dX1, dX2, dw

    function = jax.custom_vjp(exponents)
    function.defvjp(forward, backward)
    return function


# A matrix product; its rounding error is about 1e-16 ‖w x‖².
exponents_by_product = _with_gradient(_by_product)


# Exactly zero where rows coincide: for kernels with a kink there.
exponents_by_difference = _with_gradient(_by_difference)


@jax.custom_vjp
def exponents_within(X: Float[Array, "A D"], w: Float[Array, " D"]) -> Float[Array, "A A"]:
    """The exponents among the rows of X, exactly zero where rows coincide: for k(Z, Z)."""
    return _by_difference(X, X, w)


def _within_forward(X, w):
    return _by_difference(X, X, w), (X, w)


def _within_backward(saved, G):
    X, w = saved
    GX, rows = _with_row_sums(G + G.T, X)
    from_rows = GX - X * rows
    return w**2 * from_rows, w * jnp.sum(X * from_rows, axis=0)


exponents_within.defvjp(_within_forward, _within_backward)


class StationaryKernel(LeafKernel):
    """k(x, x') is a function of r² alone, and scale² at r² = 0."""

    lengthscale: Any = hyperparameter(per_column=True, unit="x")
    scale: Any = hyperparameter(default=lambda n_columns: HalfCauchy(1.0), unit="y")
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
        """The covariance at distance 0 for each row: scale² for all kernels here."""
        return jnp.broadcast_to(self.covariance(jnp.zeros((1, 1), X.dtype))[0, 0], (X.shape[0],))


@register_kernel
class RBF(StationaryKernel):
    """Squared exponential: scale² exp(-r²/2)."""

    def covariance(self, e: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """scale² exp(-r²/2)."""
        return _scaled_exp(self.scale, e)


@register_kernel
class Matern12(StationaryKernel):
    """Matérn with smoothness 1/2: scale² exp(-r)."""

    kinked: ClassVar[bool] = True

    def covariance(self, e: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """scale² exp(-r)."""
        return _scaled_exp(self.scale, -distance_root(-2.0 * e))


@register_kernel
class Matern32(StationaryKernel):
    """Matérn with smoothness 3/2: scale² (1 + √3 r) exp(-√3 r)."""

    kinked: ClassVar[bool] = True

    def covariance(self, e: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """scale² (1 + √3 r) exp(-√3 r)."""
        r = distance_root(-6.0 * e)
        return (1.0 + r) * _scaled_exp(self.scale, -r)


@register_kernel
class Matern52(StationaryKernel):
    """Matérn with smoothness 5/2: scale² (1 + √5 r + 5 r²/3) exp(-√5 r)."""

    kinked: ClassVar[bool] = True

    def covariance(self, e: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """scale² (1 + √5 r + 5 r²/3) exp(-√5 r)."""
        r = distance_root(-10.0 * e)
        return (1.0 + r + r**2 / 3.0) * _scaled_exp(self.scale, -r)


@register_kernel(alias=("rq",))
class RationalQuadratic(StationaryKernel):
    """Scale mixture of squared exponentials: scale² (1 + r² / 2α)^(-α)."""

    alpha: Any = hyperparameter(default=lambda n_columns: LogNormal(0.0, 1.0))

    def covariance(self, e: Float[Array, "A B"]) -> Float[Array, "A B"]:
        """scale² (1 + r² / 2α)^(-α)."""
        return _scaled_exp(self.scale, -self.alpha * jnp.log1p(-e / self.alpha))


@register_kernel
class Periodic(StationaryKernel):
    """scale² exp(-2 Σ_d sin²(π (x_d - x'_d) / period) / lengthscale_d²).

    Since 4 sin²(δ/2) is the squared distance of (cos, sin) at angles δ apart, this is a squared exponential
    kernel of the points (cos, sin)(2π x_d / period) on circles.
    """

    # The lengthscale is a distance on the circle, so it has no unit; the period has that of its column.
    lengthscale: Any = hyperparameter(per_column=True)
    period: Any = hyperparameter(default=lambda n_columns: LogNormal(0.0, 1.0), unit="x")

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


def distance_root(r2: Float[Array, "A B"]) -> Float[Array, "A B"]:
    """√r² with gradient 0 at 0, where the distance itself has none in any direction that matters."""
    positive = r2 > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, r2, 1.0)), 0.0)
