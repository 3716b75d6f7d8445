"""The value and gradients that every target computes at a point, and what optimisers and samplers take from them.

One program gives everything the methods need at a point: the bound (or exact likelihood), the log prior, and
their gradients in φ and Z. Optimisers, samplers and the steps of Z all call it, so a fit compiles it once and a
second fit of the same shape compiles nothing.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from integrand.compilation import jitted
from integrand.gp import GP
from integrand.infer.base import Counter
from integrand.model import Model


class Evaluation(NamedTuple):
    """Log likelihood (bound) and log prior at φ, with their gradients."""

    log_likelihood: float
    log_prior: float
    log_jacobian: float  # the part of the log prior that comes from the change of coordinates
    d_likelihood: Float[np.ndarray, " P"]
    d_prior: Float[np.ndarray, " P"]
    d_jacobian: Float[np.ndarray, " P"]
    dZ: Float[np.ndarray, "M D"]  # empty for an exact GP

    @property
    def log_density(self) -> float:
        """Unnormalised log posterior of φ: log_likelihood + log_prior, which includes the log Jacobian."""
        return self.log_likelihood + self.log_prior

    @property
    def gradient(self) -> Float[np.ndarray, " P"]:
        """Gradient of `log_density`."""
        return self.d_likelihood + self.d_prior


def likelihood(e: Evaluation) -> tuple[float, Float[np.ndarray, " P"]]:
    """The objective of ML-II: the bound, or the exact log likelihood."""
    return e.log_likelihood, e.d_likelihood


def density(e: Evaluation) -> tuple[float, Float[np.ndarray, " P"]]:
    """The log density of φ, which is sampled: bound + log prior, which includes the log Jacobian."""
    return e.log_density, e.gradient


def penalised(e: Evaluation) -> tuple[float, Float[np.ndarray, " P"]]:
    """The objective of MAP: bound + log p(θ), without the Jacobian: a mode of what priors are on, and not of φ."""
    return e.log_density - e.log_jacobian, e.gradient - e.d_jacobian


def prior_terms(model: Model, phi: Any):
    """Log prior and log Jacobian of φ, each with its gradient."""
    return jax.value_and_grad(model.log_prior)(phi), jax.value_and_grad(model.log_jacobian)(phi)


def _gp(phi: Any, model: Model) -> GP:
    return model.gp(model.theta(phi))


def gp_at(model: Model, phi: Any) -> GP:
    """The GP at φ by one program: op by op, each transform of a prior would be compiled by itself."""
    return jitted(_gp, ("model",), 1)(phi, model=model)


def packed(value: Any, d_phi: Any, priors: Any, dZ: Any = None) -> Array:
    """The result of a program as one array: every array that leaves XLA costs time."""
    (prior, d_prior), (jacobian, d_jacobian) = priors
    parts = [jnp.stack([value, prior, jacobian]), d_phi, d_prior, d_jacobian]
    return jnp.concatenate(parts if dZ is None else [*parts, dZ.ravel()])


def evaluation(out: Array, counter: Counter, shape: tuple[int, int]) -> Evaluation:
    """Unpack and count the result of a program; `shape` is that of Z, which is empty for an exact GP."""
    numbers = np.asarray(out)
    n = (len(numbers) - 3 - shape[0] * shape[1]) // 3
    value, prior, jacobian = numbers[:3].tolist()
    counter.add(math.isfinite(value))
    d_phi, d_prior, d_jacobian = numbers[3 : 3 + 3 * n].reshape(3, n)
    return Evaluation(value, prior, jacobian, d_phi, d_prior, d_jacobian, numbers[3 + 3 * n :].reshape(shape))
