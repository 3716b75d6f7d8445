"""The slope of f at new inputs: mean and variance of each ∂f/∂x_d under each draw, and the mixture over draws.

With mean(x), A(x) and C(x) of a draw as in `conditional.py`, where cov(x, x') = k(x, x') - A(x)ᵀA(x') + C(x)ᵀC(x'):

    E ∂f/∂x_d = ∂mean/∂x_d,   Var ∂f/∂x_d = ∂²k/∂x_d∂x'_d - |∂A/∂x_d|² + |∂C/∂x_d|²   at x' = x

The derivatives of mean, A and C are automatic. That of k at x' = x is a rule for each kind of kernel, because a Matérn
kernel is a function of a distance, which has no derivative at 0. With e = -r²/2, and Φ the features of a stationary
kernel k(e) with weights w, it is k'(0) Σ_f (w_f ∂Φ_f/∂x_d)².
"""

from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from integrand.data.scaling import Standardiser
from integrand.errors import InputError
from integrand.kernels.base import Kernel, Product, Sum
from integrand.kernels.stationary import StationaryKernel
from integrand.linalg import Jitter
from integrand.model import Model
from integrand.posterior.conditional import Conditional, of_each_draw, over_draws
from integrand.posterior.mixture import GaussianMixture
from integrand.precision import in_float64

# Rows of a program, and bytes that means and variances of all draws may take.
_BLOCK, _MOST_BYTES = 512, 2**31
# Distance at which k'(e) is taken, extrapolated from it and twice of it to 0: errors of 1e-10.
_NEAR = 1e-5
# k'(e) grows like r^(p-2) towards r = 0 where k is 1 - r^p: twofold in half the distance for Matern12. Where functions
# have a derivative it hardly changes: by 2e-5 for Matern32, and by 0.02 for a RationalQuadratic with an alpha of 1e-8.
_KINK = 1.05


@dataclass(frozen=True, eq=False)
class PredictiveGradient:
    """∂f/∂x at T rows and in D columns, in units of y per unit of the column: a Gaussian mixture over J draws each."""

    means: Float[np.ndarray, "J T D"]
    variances: Float[np.ndarray, "J T D"]

    def __repr__(self) -> str:
        J, T, D = self.means.shape
        return f"<PredictiveGradient: {T} rows, {D} columns, {J} draws>"

    @cached_property
    def mixture(self) -> GaussianMixture:
        """The mixture at all rows, one column after the other within each."""
        J = len(self.means)
        return GaussianMixture(self.means.reshape(J, -1), self.variances.reshape(J, -1))

    @property
    def mean(self) -> Float[np.ndarray, "T D"]:
        """Mean of the mixture."""
        return self.mixture.mean.reshape(self.means.shape[1:])

    @property
    def sd(self) -> Float[np.ndarray, "T D"]:
        """Standard deviation of the mixture."""
        return self.mixture.sd.reshape(self.means.shape[1:])

    def quantile(self, p: float | Float[np.ndarray, " P"]) -> Float[np.ndarray, "..."]:
        """The p-quantile of the mixture: (T, D), or (P, T, D) for several p."""
        return self.mixture.quantile(p).reshape(*np.shape(p), *self.means.shape[1:])

    def interval(self, level: float) -> tuple[Float[np.ndarray, "T D"], Float[np.ndarray, "T D"]]:
        """Central interval that holds `level` of the mixture."""
        lower, upper = self.mixture.interval(level)
        return lower.reshape(self.means.shape[1:]), upper.reshape(self.means.shape[1:])


def predictive_gradient(
    model: Model, jitter: Jitter, scaler: Standardiser, conditional: Conditional, X: Float[np.ndarray, "T D"]
) -> PredictiveGradient:
    """The gradient at standardised rows, in units of the data."""
    J, M, (T, D) = conditional.n_draws, conditional.weights.shape[1], X.shape
    if 16 * J * T * D > _MOST_BYTES:
        most = _MOST_BYTES // (16 * J * D)
        raise InputError(f"gradients at {T} rows do not fit in memory: ask for at most {most} rows at a time")
    _refuse_kinks(model, conditional.phis[0])
    parts = []
    for first in range(0, T, _BLOCK):
        rows = X[first : first + _BLOCK]
        # Padded to a power of two, so that many sizes compile few programs.
        padded = np.zeros((max(16, 1 << (len(rows) - 1).bit_length()), D))
        padded[: len(rows)] = rows
        work = M**2 * (M + 2.0 * (1 + 2 * D) * len(padded))
        mean, variance = of_each_draw(_gradients, work, model, jitter, conditional, padded)
        parts.append((mean[:, : len(rows)], variance[:, : len(rows)]))
    mean, variance = (np.concatenate(p, axis=1) for p in zip(*parts, strict=True))
    if not (np.all(np.isfinite(mean)) and np.all(np.isfinite(variance))):
        raise InputError(f"the gradient of {model.kernel} cannot be computed here: use kernels that are differentiable")
    units = scaler.y_sd / scaler.x_sd
    return PredictiveGradient(mean * units, variance * units**2)


def _gradients(inputs, draws, X, model: Model, jitter: Jitter, kind: type[Conditional]):
    def one(draw):
        phi, own_inputs, weights, factor = draw
        gp = model.gp(model.theta(phi))

        def project(X):
            return kind.project(gp, own_inputs, weights, factor, X, jitter)

        # Each output column depends on its own row alone. The transpose of the transpose gives their derivatives along
        # a direction: kernels have a gradient of their own, and no forward mode.
        outputs, pull = jax.vjp(project, X)
        _, push = jax.vjp(lambda u: pull(u)[0], jax.tree.map(jnp.zeros_like, outputs))
        _, _, prior = _at_one_point(gp.kernel, X)

        def along(direction):
            ((mean, A, C),) = push(jnp.broadcast_to(direction, X.shape))
            unexplained = jnp.maximum(prior @ direction - jnp.sum(A**2, axis=0), 0.0)
            return mean, unexplained + jnp.sum(C**2, axis=0)

        mean, variance = jax.lax.map(along, jnp.eye(X.shape[1], dtype=X.dtype))
        return mean.T, variance.T

    return over_draws(one, inputs, draws)


# k(x, x), ∂k(x, x')/∂x_d at x' = x, and ∂²k(x, x')/∂x_d∂x'_d there.
_Point = tuple[Float[Array, " T"], Float[Array, "T D"], Float[Array, "T D"]]


def _at_one_point(kernel: Kernel, X: Float[Array, "T D"]) -> _Point:
    if isinstance(kernel, Sum):
        return reduce(lambda a, b: (a[0] + b[0], a[1] + b[1], a[2] + b[2]), _of_parts(kernel, X))
    if isinstance(kernel, Product):
        return reduce(_product, _of_parts(kernel, X))
    value = kernel.diagonal(X)
    if isinstance(kernel, StationaryKernel):
        slopes = jax.vmap(jax.jacfwd(lambda x: kernel.features(x[None])[0]))(X)  # (T, F, D)
        near, far = _slope(kernel, _NEAR), _slope(kernel, 2.0 * _NEAR)
        squares = jnp.sum((kernel.weights(slopes.shape[1])[:, None] * slopes) ** 2, axis=1)
        return value, jnp.zeros_like(X), (2.0 * near - far) * squares

    def k(x, other):
        return kernel(x[None], other[None])[0, 0]

    first = jax.vmap(jax.grad(k))(X, X)
    mixed = jax.vmap(jax.jacrev(jax.grad(k), 1))(X, X)
    return value, first, jnp.diagonal(mixed, axis1=1, axis2=2)


def _of_parts(kernel: Sum | Product, X: Array) -> list[_Point]:
    return [_at_one_point(part, X) for part in kernel.parts]


def _product(a: _Point, b: _Point) -> _Point:
    first = a[1] * b[0][:, None] + a[0][:, None] * b[1]
    return a[0] * b[0], first, a[2] * b[0][:, None] + 2.0 * a[1] * b[1] + a[0][:, None] * b[2]


def _slope(kernel: StationaryKernel, distance: float) -> Array:
    """k'(e) at e = -distance²/2."""
    return jax.grad(lambda e: kernel.covariance(e[None, None])[0, 0])(jnp.asarray(-0.5 * distance**2))


@in_float64
def _refuse_kinks(model: Model, phi: Float[np.ndarray, " P"]) -> None:
    """An InputError if functions of the model have no derivative."""

    def check(kernel: Any) -> None:
        if isinstance(kernel, Sum | Product):
            for part in kernel.parts:
                check(part)
        elif isinstance(kernel, StationaryKernel) and not _slope(kernel, _NEAR) < _KINK * _slope(kernel, 2.0 * _NEAR):
            name = type(kernel).__name__
            raise InputError(f"functions of a {name} kernel have no gradient: fit with Matern32, Matern52 or RBF")

    check(model.gp(model.theta(jnp.asarray(phi))).kernel)
