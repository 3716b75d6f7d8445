"""Kernels of the scalar product x·x', and the constant kernel."""

from collections.abc import Collection, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from integrand.errors import InputError
from integrand.kernels.base import Kernel, LeafKernel, hyperparameter
from integrand.kernels.registry import register_kernel
from integrand.priors import HalfCauchy


@register_kernel
class Linear(LeafKernel):
    """Linear functions that are zero at the means of the columns: Σ_d scale_d² x_d x'_d, with x from its mean.

    `scale` is the standard deviation of the slope, in units of y per unit of x: one for all columns unless `ard`.
    The level at the mean is the `mean` of the model, or a `Constant` beside this kernel.
    """

    scale: Any = hyperparameter(default=lambda n_columns: HalfCauchy(1.0), per_column=True, unit="y/x")
    ard: bool = eqx.field(default=False, static=True, kw_only=True)

    def __call__(self, X1: Float[Array, "A D"], X2: Float[Array, "B D"]) -> Float[Array, "A B"]:
        """X1 diag(scale²) X2ᵀ."""
        return (self.columns(X1) * jnp.asarray(self.scale) ** 2) @ self.columns(X2).T

    def gram(self, X: Float[Array, "A D"]) -> Float[Array, "A A"]:
        """X diag(scale²) Xᵀ."""
        F = self.columns(X) * jnp.asarray(self.scale)
        return F @ F.T

    def diagonal(self, X: Float[Array, "A D"]) -> Float[Array, " A"]:
        """Σ_d scale_d² x_d²."""
        return jnp.sum((self.columns(X) * jnp.asarray(self.scale)) ** 2, axis=1)


@register_kernel
class Polynomial(LeafKernel):
    """Polynomials up to `degree` in the standardised columns: scale² (x·x' + offset)^degree.

    `scale` is in units of y. `offset` has no unit: it belongs to columns with mean 0 and variance 1.
    """

    degree: int = eqx.field(default=2, static=True)
    offset: Any = hyperparameter(default=lambda n_columns: HalfCauchy(1.0))
    scale: Any = hyperparameter(default=lambda n_columns: HalfCauchy(1.0), unit="y")

    def __check_init__(self):
        if not isinstance(self.degree, int) or self.degree < 1:
            raise InputError(f"Polynomial: degree must be a whole number from 1, not {self.degree!r}")

    def __call__(self, X1: Float[Array, "A D"], X2: Float[Array, "B D"]) -> Float[Array, "A B"]:
        """scale² (X1 X2ᵀ + offset)^degree."""
        return self.scale**2 * (self.columns(X1) @ self.columns(X2).T + self.offset) ** self.degree

    def gram(self, X: Float[Array, "A D"]) -> Float[Array, "A A"]:
        """scale² (X Xᵀ + offset)^degree."""
        return self(X, X)

    def diagonal(self, X: Float[Array, "A D"]) -> Float[Array, " A"]:
        """scale² (‖x‖² + offset)^degree."""
        return self.scale**2 * (jnp.sum(self.columns(X) ** 2, axis=1) + self.offset) ** self.degree


@register_kernel
class Constant(LeafKernel):
    """An unknown constant: scale² for every pair of rows."""

    scale: Any = hyperparameter(default=lambda n_columns: HalfCauchy(1.0), unit="y")

    def without_columns(self, columns: Collection[int], names: Sequence[str]) -> Kernel:
        """Itself: it looks at no column."""
        return self

    def __call__(self, X1: Float[Array, "A D"], X2: Float[Array, "B D"]) -> Float[Array, "A B"]:
        """scale² everywhere."""
        return jnp.broadcast_to(self.scale**2, (X1.shape[0], X2.shape[0]))

    def gram(self, X: Float[Array, "A D"]) -> Float[Array, "A A"]:
        """scale² everywhere."""
        return self(X, X)

    def diagonal(self, X: Float[Array, "A D"]) -> Float[Array, " A"]:
        """scale² everywhere."""
        return jnp.broadcast_to(self.scale**2, (X.shape[0],))
