"""The exact density log p(θ) + log p(y | θ) over φ."""

import functools
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from integrand.bounds.exact import log_marginal_likelihood
from integrand.compilation import LARGE, available_cores, jitted, timed, trace_counts
from integrand.data.dataset import Dataset
from integrand.infer.base import Counter, Target, TracedDensity, Vector
from integrand.model import Model
from integrand.precision import float64_scope
from integrand.targets.evaluation import Evaluation, density, evaluation, packed, prior_terms


def _exact(phi, X, y, v, model: Model):
    trace_counts["exact"] += 1
    value, d_phi = jax.value_and_grad(lambda phi: log_marginal_likelihood(model.gp(model.theta(phi)), X, y, v))(phi)
    return packed(value, d_phi, prior_terms(model, phi))


def _exact_value(phi, X, y, v, model: Model):
    trace_counts["exact value"] += 1
    return log_marginal_likelihood(model.gp(model.theta(phi)), X, y, v) + model.log_prior(phi)


@functools.cache
def _parts(model: Model):
    """Log prior and log likelihood as functions of φ that JAX traces; the same for equal models."""

    def log_prior(phi: Any, data: Any) -> Any:
        return model.log_prior(phi)

    def log_likelihood(phi: Any, data: Any) -> Any:
        return log_marginal_likelihood(model.gp(model.theta(phi)), *data)

    return log_prior, log_likelihood


class ExactTarget(Target):
    """log p(θ) + log p(y | θ) over φ."""

    fast_values = True

    def __init__(self, model: Model, data: Dataset):
        self.model, self.data, self.counter = model, data, Counter()
        self.n_theta = self.dimension = model.n_theta
        self.parallel = available_cores() if self.threads == 1 else 1

    @functools.cached_property
    def _arrays(self):
        """X, y and what is known of the variance of the noise."""
        with float64_scope():
            X, y = self.data.arrays()
            v = self.data.noise_variances()
            return X, y, np.zeros(()) if v is None else v

    @property
    def threads(self) -> int:
        """1 when chains should run side by side, 0 (all) when the threads belong inside the factorisation."""
        return 1 if self.data.n_rows**3 < LARGE else 0

    def evaluate(self, phi: Float[np.ndarray, " P"]) -> Evaluation:
        """Everything at one point. Callable from any thread."""
        with float64_scope():
            out = timed(
                jitted(_exact, ("model",), self.threads), np.asarray(phi, float), *self._arrays, model=self.model
            )
            return evaluation(out, self.counter, (0, self.data.n_columns))

    def value_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Log likelihood + log prior + log Jacobian, and the gradient."""
        return density(self.evaluate(x))

    def values(self, xs: Float[np.ndarray, "K P"]) -> Float[np.ndarray, " K"]:
        """The same of several φ without gradients, one by one."""
        return np.array([self._value(phi) for phi in xs])

    def _value(self, phi: Vector) -> float:
        with float64_scope():
            program = jitted(_exact_value, ("model",), self.threads)
            value = float(timed(program, np.asarray(phi, float), *self._arrays, model=self.model))
            self.counter.add(bool(np.isfinite(value)), gradient=False)
            return value

    def traced(self) -> TracedDensity:
        """The same density for samplers that run inside JAX."""
        return TracedDensity(*_parts(self.model), self._arrays)
