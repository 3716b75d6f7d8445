"""The exact density log p(θ) + log p(y | θ) over φ."""

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from integrand.bounds.exact import log_marginal_likelihood
from integrand.data.dataset import Dataset
from integrand.infer.traced import Traced
from integrand.model import Model
from integrand.precision import float64_scope
from integrand.targets.program import (
    LARGE,
    Counter,
    Evaluation,
    compiled,
    evaluation,
    packed,
    prior_terms,
    timed,
    traces,
)


def _exact(phi, X, y, model: Model):
    traces["exact"] += 1
    value, d_phi = jax.value_and_grad(lambda phi: log_marginal_likelihood(model.gp(model.theta(phi)), X, y))(phi)
    return packed(value, d_phi, prior_terms(model, phi))


def _exact_value(phi, X, y, model: Model):
    traces["exact value"] += 1
    return log_marginal_likelihood(model.gp(model.theta(phi)), X, y) + model.log_prior(phi)


@functools.cache
def _parts(model: Model):
    """Log prior and log likelihood as functions of φ that JAX traces; the same for equal models."""

    def log_prior(phi: Any, data: Any) -> Any:
        return model.log_prior(phi)

    def log_likelihood(phi: Any, data: Any) -> Any:
        return log_marginal_likelihood(model.gp(model.theta(phi)), *data)

    return log_prior, log_likelihood


@dataclass(frozen=True)
class ExactTarget:
    """log p(θ) + log p(y | θ) over φ."""

    model: Model
    data: Dataset
    counter: Counter = field(default_factory=Counter, compare=False)

    @functools.cached_property
    def _arrays(self):
        with float64_scope():
            return self.data.arrays()

    @property
    def threads(self) -> int:
        """1 when chains should run side by side, 0 (all) when the threads belong inside the factorisation."""
        return 1 if self.data.n_rows**3 < LARGE else 0

    def evaluate(self, phi: Float[np.ndarray, " P"]) -> Evaluation:
        """Everything at one point. Callable from any thread."""
        with float64_scope():
            out = timed(
                compiled(_exact, ("model",), self.threads), np.asarray(phi, float), *self._arrays, model=self.model
            )
            return evaluation(out, self.counter, (0, self.data.n_columns))

    def log_density(self, phi: Float[np.ndarray, " P"]) -> float:
        """Log likelihood + log prior + log Jacobian, without a gradient."""
        with float64_scope():
            program = compiled(_exact_value, ("model",), self.threads)
            value = float(timed(program, np.asarray(phi, float), *self._arrays, model=self.model))
            self.counter.add(bool(np.isfinite(value)), gradient=False)
            return value

    def log_densities(self, phis: Float[np.ndarray, "K P"]) -> Float[np.ndarray, " K"]:
        """`log_density` of each."""
        return np.array([self.log_density(phi) for phi in phis])

    def traced(self) -> Traced:
        """The same density for samplers that run inside JAX."""
        return Traced(*_parts(self.model), self._arrays)
