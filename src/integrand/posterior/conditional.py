"""f at new inputs given one draw of θ, for a stack of draws: what prediction keeps and what it computes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from integrand.bounds.exact import factorise_exact
from integrand.data.dataset import Dataset
from integrand.linalg import Jitter, cholesky, triangular_inverse
from integrand.model import Model
from integrand.precision import in_float64
from integrand.targets import Factored


class SparseConditional(NamedTuple):
    """q*(u) of each draw in whitened coordinates: all that is needed to predict, without the training data.

    With A = L⁻¹ k(Z, X*): mean* = Aᵀm and cov* = k** - AᵀA + (LB⁻¹A)ᵀ(LB⁻¹A), the paper's equation (16).
    """

    phis: Float[np.ndarray, "J P"]
    Z: Float[np.ndarray, "M D"] | Float[np.ndarray, "J M D"]  # one for all draws, or each draw's own
    m: Float[np.ndarray, "J M"]
    LB: Float[np.ndarray, "J M M"]


class ExactConditional(NamedTuple):
    """The exact GP of each draw: K + σ²I = L Lᵀ and α; it has to keep the training inputs."""

    phis: Float[np.ndarray, "J P"]
    X: Float[np.ndarray, "N D"]
    alpha: Float[np.ndarray, "J N"]
    L: Float[np.ndarray, "J N N"]


class VariationalConditional(NamedTuple):
    """q(v) = N(m, S Sᵀ) of each draw, with u = L v: mean* = Aᵀm and cov* = k** - AᵀA + (SᵀA)ᵀ(SᵀA).

    Where v itself was drawn (`joint-hmc`) m is that draw and S is empty: nothing of u is left open.
    """

    phis: Float[np.ndarray, "J P"]
    Z: Float[np.ndarray, "M D"] | Float[np.ndarray, "J M D"]
    m: Float[np.ndarray, "J M"]
    S: Float[np.ndarray, "J M M"] | Float[np.ndarray, "J 0 0"]


Conditional = SparseConditional | ExactConditional | VariationalConditional


@partial(jax.jit, static_argnames="model")
def _exact_factors(phi, X, y, model: Model):
    return factorise_exact(model.gp(model.theta(phi)), X, y)


def sparse_conditional(
    phis: Float[np.ndarray, "J P"],
    Z: Float[np.ndarray, "M D"] | Float[np.ndarray, "J M D"],
    factored: Callable[[np.ndarray, np.ndarray], Factored],
    parallel: int = 1,
) -> SparseConditional:
    """Factor the bound at each draw (`CollapsedTarget.factored`), so many side by side, and keep q*(u)."""
    each = Z if Z.ndim == 3 else [Z] * len(phis)
    with ThreadPoolExecutor(parallel) as pool:
        found = list(pool.map(factored, phis, each))
    return SparseConditional(phis, Z, np.array([f.m for f in found]), np.array([f.LB for f in found]))


@in_float64
def exact_conditional(model: Model, phis: Float[np.ndarray, "J P"], data: Dataset) -> ExactConditional:
    """Factor the covariance of the observations at each draw."""
    X, y = data.arrays()
    parts = [_exact_factors(np.asarray(phi), X, y, model=model) for phi in phis]
    alpha, L = np.array([np.asarray(p.alpha) for p in parts]), np.array([np.asarray(p.L) for p in parts])
    return ExactConditional(np.asarray(phis), np.asarray(X), alpha, L)


def _explain(model: Model, jitter: Jitter, kind: type, draw: tuple[Array, Array, Array, Array], X: Array):
    """The GP of one draw, the mean of f, what the data explain away of the prior (A) and what they leave open (C)."""
    phi, inputs, weights, factor = draw
    gp = model.gp(model.theta(phi))
    K = gp.kernel(inputs, X)
    if kind is ExactConditional:
        return gp, gp.mean + weights @ K, triangular_inverse(factor) @ K, jnp.zeros((1, X.shape[0]))
    L, _ = cholesky(jitter.gram(gp.kernel, inputs))
    A = triangular_inverse(L) @ K
    if kind is SparseConditional:
        C = triangular_inverse(factor) @ A
    else:
        C = factor.T @ A if factor.size else jnp.zeros((1, X.shape[0]))
    return gp, gp.mean + weights @ A, A, C


def _over_draws(one, inputs: Array, draws: tuple[Array, Array, Array]):
    """`one` at a time, so that memory does not grow with the number of draws; inputs are shared or each draw's own."""
    phis, weights, factors = draws
    if inputs.ndim == 3:
        return jax.lax.map(one, (phis, inputs, weights, factors))
    return jax.lax.map(lambda d: one((d[0], inputs, *d[1:])), draws)


@partial(jax.jit, static_argnames=("model", "jitter", "kind"))
def _marginals(inputs, draws, X, model: Model, jitter: Jitter, kind: type):
    def one(draw):
        gp, mean, A, C = _explain(model, jitter, kind, draw, X)
        # Floored at zero, then a sum of squares is added: a variance cannot be negative.
        open_variance = jnp.maximum(gp.kernel.diagonal(X) - jnp.sum(A**2, axis=0), 0.0)
        return mean, open_variance + jnp.sum(C**2, axis=0), gp.noise**2

    return _over_draws(one, inputs, draws)


@partial(jax.jit, static_argnames=("model", "jitter", "kind"))
def _joints(inputs, draws, X, model: Model, jitter: Jitter, kind: type):
    def one(draw):
        gp, mean, A, C = _explain(model, jitter, kind, draw, X)
        return mean, gp.kernel.gram(X) - A.T @ A + C.T @ C, gp.noise**2

    return _over_draws(one, inputs, draws)


def draws_of(conditional: Conditional, index: slice | Int[np.ndarray, " k"]) -> Conditional:
    """Some of the draws."""
    phis, inputs, a, b = conditional
    return type(conditional)(phis[index], inputs[index] if inputs.ndim == 3 else inputs, a[index], b[index])


def _call(program, model: Model, jitter: Jitter, conditional: Conditional, X: np.ndarray):
    phis, inputs, a, b = conditional
    out = program(inputs, (phis, a, b), np.asarray(X, float), model=model, jitter=jitter, kind=type(conditional))
    return tuple(np.asarray(o) for o in out)


@in_float64
def marginals(
    model: Model, jitter: Jitter, conditional: Conditional, X: Float[np.ndarray, "T D"]
) -> tuple[Float[np.ndarray, "J T"], Float[np.ndarray, "J T"], Float[np.ndarray, " J"]]:
    """Mean and variance of f at each row under each draw, and each draw's noise variance."""
    # Rows are padded to a power of two, so that predicting at many sizes compiles few programs.
    n_rows = len(X)
    padded = np.zeros((max(64, 1 << (n_rows - 1).bit_length()), X.shape[1]))
    padded[:n_rows] = X
    mean, variance, noise = _call(_marginals, model, jitter, conditional, padded)
    return mean[:, :n_rows], variance[:, :n_rows], noise


@in_float64
def joints(
    model: Model, jitter: Jitter, conditional: Conditional, X: Float[np.ndarray, "T D"]
) -> tuple[Float[np.ndarray, "J T"], Float[np.ndarray, "J T T"], Float[np.ndarray, " J"]]:
    """Mean and full covariance of f at all rows under each draw, and each draw's noise variance."""
    mean, covariance, noise = _call(_joints, model, jitter, conditional, X)
    return mean, covariance, noise
