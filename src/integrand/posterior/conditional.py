"""What each draw of the hyperparameters keeps of the data, and the mean and covariance of f at new inputs from it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from integrand.bounds.exact import factorise_exact
from integrand.compilation import available_cores, one_blas_thread, program_for
from integrand.data.dataset import Dataset
from integrand.gp import GP
from integrand.linalg import Jitter, cholesky, triangular_inverse
from integrand.model import Model
from integrand.precision import in_float64

# Multiplications for all draws above which the draws are shared between threads: about a second.
_SHARED_WORK = 2e9
# Each draw of an exact GP keeps a factor of 8 N² bytes: as many draws predict as fit into this.
FACTOR_BYTES = 512 * 2**20

# Mean (T,), what the data explain of the prior (A), and what they leave open of that (C).
Projection = tuple[Float[Array, " T"], Float[Array, "M T"], Float[Array, "C T"]]


@dataclass(frozen=True, eq=False)
class Conditional(ABC):
    """p(f* | y, θ) for each of J draws of θ, as arrays with the names that they have in model files.

    Each kind gives, at new inputs X*, the mean and two matrices A and C such that cov* = k(X*, X*) - AᵀA + CᵀC.
    """

    phis: Float[np.ndarray, "J P"]  # the draws, unconstrained
    inputs: Float[np.ndarray, "M D"] | Float[np.ndarray, "J M D"]  # shared by all draws, or a set for each
    weights: Float[np.ndarray, "J M"]
    factors: Float[np.ndarray, "J M M"] | Float[np.ndarray, "J 0 0"]  # lower triangles

    kind: ClassVar[str]  # its name in model files

    @staticmethod
    @abstractmethod
    def project(gp: GP, inputs: Array, weights: Array, factor: Array, X: Array, jitter: Jitter) -> Projection:
        """Mean, A and C of one draw at the rows of X."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.n_draws} draws, inputs {self.inputs.shape}>"

    @property
    def n_draws(self) -> int:
        """J."""
        return len(self.phis)

    @property
    def inputs_vary(self) -> bool:
        """Whether each draw has inputs of its own."""
        return self.inputs.ndim == 3

    def subset(self, index: slice | Int[np.ndarray, " K"]) -> "Conditional":
        """Some of the draws."""
        inputs = self.inputs[index] if self.inputs_vary else self.inputs
        return type(self)(self.phis[index], inputs, self.weights[index], self.factors[index])


class SparseConditional(Conditional):
    """q*(u) of each draw in whitened coordinates: all that is needed to predict, without the training data.

    The inputs are Z, the weights m and the factors LB. With A = L⁻¹ k(Z, X*): mean* = mean + Aᵀm and C = LB⁻¹A, the
    paper's equation (16).
    """

    kind = "sparse"

    @staticmethod
    def project(gp: GP, inputs: Array, weights: Array, factor: Array, X: Array, jitter: Jitter) -> Projection:
        """A = L⁻¹ k(Z, X) and C = LB⁻¹A."""
        A = _whitened(gp, inputs, X, jitter)
        return gp.mean + weights @ A, A, triangular_inverse(factor) @ A


class ExactConditional(Conditional):
    """The exact GP of each draw, K + S = L Lᵀ with S = σ²I, or σ²I + diag(v): it has to keep the training inputs.

    The inputs are X, the weights α = (K + S)⁻¹(y - mean) and the factors L. With K* = k(X, X*):
    mean* = mean + K*ᵀα, A = L⁻¹K* and C = 0.
    """

    kind = "exact"

    @staticmethod
    def project(gp: GP, inputs: Array, weights: Array, factor: Array, X: Array, jitter: Jitter) -> Projection:
        """A = L⁻¹ k(X_train, X) and C = 0; there is no jitter."""
        K = gp.kernel(inputs, X)
        return gp.mean + weights @ K, triangular_inverse(factor) @ K, jnp.zeros((1, X.shape[0]))


class VariationalConditional(Conditional):
    """q(v) = N(m, S Sᵀ) of each draw, with u = L v.

    The inputs are Z, the weights m and the factors S. With A = L⁻¹ k(Z, X*): mean* = mean + Aᵀm and C = SᵀA. Where v
    itself was drawn (`joint-hmc`) m is that draw and S is empty: C = 0.
    """

    kind = "variational"

    @staticmethod
    def project(gp: GP, inputs: Array, weights: Array, factor: Array, X: Array, jitter: Jitter) -> Projection:
        """A = L⁻¹ k(Z, X) and C = SᵀA."""
        A = _whitened(gp, inputs, X, jitter)
        return gp.mean + weights @ A, A, factor.T @ A if factor.size else jnp.zeros((1, X.shape[0]))


def _whitened(gp: GP, Z: Array, X: Array, jitter: Jitter) -> Array:
    """A = L⁻¹ k(Z, X) with k(Z, Z) + jitter = L Lᵀ."""
    K = gp.kernel(Z, X)
    L, _ = cholesky(jitter.gram(gp.kernel, Z))
    return triangular_inverse(L) @ K


class InducingPosterior(Protocol):
    """q*(u) for one draw of θ, whitened: what `CollapsedTarget.inducing_posterior` gives."""

    @property
    def m(self) -> Float[np.ndarray, " M"]:
        """The mean."""
        ...

    @property
    def LB(self) -> Float[np.ndarray, "M M"]:
        """The factor of the precision, LB LBᵀ."""
        ...


def sparse_conditional(
    phis: Float[np.ndarray, "J P"],
    Z: Float[np.ndarray, "M D"] | Float[np.ndarray, "J M D"],
    inducing_posterior: Callable[[np.ndarray, np.ndarray], InducingPosterior],
    parallel: int = 1,
) -> SparseConditional:
    """q*(u) of each draw, by `inducing_posterior(phi, Z)` in `parallel` threads."""
    Z_of_draws = Z if Z.ndim == 3 else [Z] * len(phis)
    with ThreadPoolExecutor(parallel) as pool:
        posteriors = list(pool.map(inducing_posterior, phis, Z_of_draws))
    return SparseConditional(phis, Z, np.array([q.m for q in posteriors]), np.array([q.LB for q in posteriors]))


@in_float64
def exact_conditional(model: Model, phis: Float[np.ndarray, "J P"], data: Dataset) -> ExactConditional:
    """Factor the covariance of the observations at each draw."""
    (X, y), v = data.arrays(), data.noise_variances()
    parts = [_exact_factors(np.asarray(phi), X, y, 0.0 if v is None else v, model=model) for phi in phis]
    alpha, L = np.array([np.asarray(p.alpha) for p in parts]), np.array([np.asarray(p.L) for p in parts])
    return ExactConditional(np.asarray(phis), np.asarray(X), alpha, L)


@partial(jax.jit, static_argnames="model")
def _exact_factors(phi, X, y, v, model: Model):
    return factorise_exact(model.gp(model.theta(phi)), X, y, v)


@in_float64
def marginals(
    model: Model, jitter: Jitter, conditional: Conditional, X: Float[np.ndarray, "T D"]
) -> tuple[Float[np.ndarray, "J T"], Float[np.ndarray, "J T"], Float[np.ndarray, " J"]]:
    """Mean and variance of f at each row under each draw, and each draw's noise variance."""
    # Rows are padded to a power of two, so that predicting at many sizes compiles few programs.
    n_rows = len(X)
    padded = np.zeros((max(64, 1 << (n_rows - 1).bit_length()), X.shape[1]))
    padded[:n_rows] = X
    M = conditional.weights.shape[1]
    mean, variance, noise = of_each_draw(_marginals, M**2 * (M + 2.0 * len(padded)), model, jitter, conditional, padded)
    return mean[:, :n_rows], variance[:, :n_rows], noise


@in_float64
def joints(
    model: Model, jitter: Jitter, conditional: Conditional, X: Float[np.ndarray, "T D"]
) -> tuple[Float[np.ndarray, "J T"], Float[np.ndarray, "J T T"], Float[np.ndarray, " J"]]:
    """Mean and full covariance of f at all rows under each draw, and each draw's noise variance."""
    M, T = conditional.weights.shape[1], len(X)
    mean, covariance, noise = of_each_draw(_joints, M**3 + M**2 * T + M * T**2, model, jitter, conditional, X)
    return mean, covariance, noise


def of_each_draw(
    function, work: float, model: Model, jitter: Jitter, conditional: Conditional, X: np.ndarray
) -> tuple[np.ndarray, ...]:
    """The results of all draws, `work` multiplications for each; much work is shared between the cores.

    Each share has one thread. Threads inside small products would wait for each other wherever the cores are busy.
    """
    J = conditional.n_draws
    shares = min(available_cores(), J) if work * J > _SHARED_WORK else 1
    ends = [J * k // shares for k in range(shares + 1)]

    @in_float64  # threads do not inherit the scope
    def run(first: int, last: int) -> tuple[np.ndarray, ...]:
        part = conditional.subset(slice(first, last))
        arguments = part.inputs, (part.phis, part.weights, part.factors), np.asarray(X, float)
        program = program_for(function, 1, arguments, {"model": model, "jitter": jitter, "kind": type(part)})
        return tuple(np.asarray(out) for out in program(*arguments))

    with one_blas_thread(), ThreadPoolExecutor(shares) as pool:
        parts = list(pool.map(run, ends[:-1], ends[1:]))
    return parts[0] if shares == 1 else tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))


def _marginals(inputs, draws, X, model: Model, jitter: Jitter, kind: type[Conditional]):
    def one(draw):
        phi, own_inputs, weights, factor = draw
        gp = model.gp(model.theta(phi))
        mean, A, C = kind.project(gp, own_inputs, weights, factor, X, jitter)
        # Floored at zero, then a sum of squares is added: a variance cannot be negative.
        unexplained = jnp.maximum(gp.kernel.diagonal(X) - jnp.sum(A**2, axis=0), 0.0)
        return mean, unexplained + jnp.sum(C**2, axis=0), gp.noise**2

    return over_draws(one, inputs, draws)


def _joints(inputs, draws, X, model: Model, jitter: Jitter, kind: type[Conditional]):
    def one(draw):
        phi, own_inputs, weights, factor = draw
        gp = model.gp(model.theta(phi))
        mean, A, C = kind.project(gp, own_inputs, weights, factor, X, jitter)
        return mean, gp.kernel.gram(X) - A.T @ A + C.T @ C, gp.noise**2

    return over_draws(one, inputs, draws)


def over_draws(one, inputs: Array, draws: tuple[Array, Array, Array]):
    """`one` draw at a time, so that memory does not grow with their number."""
    phis, weights, factors = draws
    if inputs.ndim == 3:
        return jax.lax.map(one, (phis, inputs, weights, factors))
    return jax.lax.map(lambda draw: one((draw[0], inputs, *draw[1:])), draws)
