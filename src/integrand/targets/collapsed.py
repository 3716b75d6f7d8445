"""The density that Algorithm 1 samples: log p(θ) + L(θ, Z) over the unconstrained hyperparameters φ."""

import functools
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from integrand.bounds.collapsed import bound_from_factors, collapsed_bound, factorise, inducing_posterior
from integrand.data.dataset import Dataset
from integrand.infer.threads import available_cores
from integrand.infer.traced import Traced
from integrand.linalg import Jitter
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


def _bound_at(model: Model, jitter: Jitter):
    return lambda phi, Z, data: collapsed_bound(model.gp(model.theta(phi)), Z, data, jitter)


def _collapsed(phi, Z, data: Dataset, model: Model, jitter: Jitter):
    traces["collapsed"] += 1

    def program(phi, Z, data):
        value, (d_phi, dZ) = jax.value_and_grad(_bound_at(model, jitter), (0, 1))(phi, Z, data)
        return packed(value, d_phi, prior_terms(model, phi), dZ)

    return data.together(program, phi, Z)


class Factored(NamedTuple):
    """L(θ, Z) and the q*(u) behind it, whitened (`InducingPosterior`)."""

    log_likelihood: float
    m: Float[np.ndarray, " M"]
    LB: Float[np.ndarray, "M M"]


class _Found(NamedTuple):
    """What the program behind `factored` gives; arrays stay where it left them."""

    log_likelihood: float
    log_prior: float
    m: Any
    LB: Any


def _factored(phi, Z, data: Dataset, model: Model, jitter: Jitter):
    traces["factored"] += 1

    def program(phi, Z, data):
        factors = factorise(model.gp(model.theta(phi)), Z, data, jitter)
        values = jnp.stack([bound_from_factors(factors, data.n_rows), model.log_prior(phi)])
        return values, *inducing_posterior(factors)

    return data.together(program, phi, Z)


def _log_prior(phi, model: Model):
    return model.log_prior(phi)


@functools.cache
def _parts(model: Model, jitter: Jitter):
    """Log prior and bound as functions of φ that JAX traces; the same for equal models."""

    def log_prior(phi: Any, data: Any) -> Any:
        return model.log_prior(phi)

    def log_likelihood(phi: Any, data: Any) -> Any:
        Z, rows = data
        return collapsed_bound(model.gp(model.theta(phi)), Z, rows, jitter)

    return log_prior, log_likelihood


@dataclass(frozen=True)
class CollapsedTarget:
    """log p(θ) + L(θ, Z) over φ (and Z): the density of the paper's q*(θ) up to C_Z, in sampled coordinates."""

    model: Model
    data: Dataset
    jitter: Jitter = Jitter()
    counter: Counter = field(default_factory=Counter, compare=False)

    def threads(self, n_inducing: int) -> int:
        """1 when chains should run side by side, 0 (all) when the threads belong inside the products."""
        return 1 if self._local and 6.0 * self._rows * n_inducing**2 < LARGE else 0

    @functools.cached_property
    def _local(self) -> bool:
        """Whether all rows are here; asked at every evaluation, and a module takes its time to answer."""
        return self.data.local

    @functools.cached_property
    def _rows(self) -> float:
        """Rows that are really summed over."""
        return self.data.n_rows / self.data.scale

    def evaluate(self, phi: Float[np.ndarray, " P"], Z: Float[np.ndarray, "M D"]) -> Evaluation:
        """Everything at one point. Callable from any thread."""

        def run() -> Evaluation:
            with float64_scope():
                program = compiled(_collapsed, ("model", "jitter"), self.threads(len(Z)))
                out = timed(program, np.asarray(phi, float), Z, self.data, model=self.model, jitter=self.jitter)
                return evaluation(out, self.counter, Z.shape)

        return run() if self._local else self.data.call("evaluate", phi, Z, run)

    def factored(self, phi: Float[np.ndarray, " P"], Z: Float[np.ndarray, "M D"]) -> Factored:
        """L(θ, Z) without gradients, and q*(u), which costs nothing on top."""
        found = self._factored(phi, Z)
        return Factored(found.log_likelihood, np.asarray(found.m), np.asarray(found.LB))

    def _factored(self, phi: Float[np.ndarray, " P"], Z: Float[np.ndarray, "M D"]) -> _Found:
        def run() -> _Found:
            with float64_scope():
                program = compiled(_factored, ("model", "jitter"), self.threads(len(Z)))
                out = timed(program, np.asarray(phi, float), Z, self.data, model=self.model, jitter=self.jitter)
                value, prior = np.asarray(out[0]).tolist()
                self.counter.add(math.isfinite(value), gradient=False)
                return _Found(value, prior, out[1], out[2])

        return run() if self._local else self.data.call("factored", phi, Z, run)

    def prepare(self, n_inducing: int) -> None:
        """Compile what `evaluate` and then what `factored` runs, for so many inducing inputs."""
        phi, Z = self.model.start(), np.zeros((n_inducing, self.data.n_columns))
        for function in (_collapsed, _factored):
            with float64_scope():
                program = compiled(function, ("model", "jitter"), self.threads(n_inducing))
                timed(program, phi, Z, self.data, model=self.model, jitter=self.jitter)

    def log_prior(self, phi: Float[np.ndarray, " P"]) -> float:
        """log p(θ) with the Jacobian of φ, which needs no rows."""
        with float64_scope():
            return float(compiled(_log_prior, ("model",), 1)(np.asarray(phi, float), model=self.model))

    def value(self, phi: Float[np.ndarray, " P"], Z: Float[np.ndarray, "M D"]) -> float:
        """L(θ, Z) alone."""
        return self._factored(phi, Z).log_likelihood

    def log_density(self, phi: Float[np.ndarray, " P"], Z: Float[np.ndarray, "M D"]) -> float:
        """Bound + log prior + log Jacobian, without a gradient."""
        found = self._factored(phi, Z)
        return found.log_likelihood + found.log_prior

    def averaged(self, phis: Float[np.ndarray, "J P"], Z: Float[np.ndarray, "M D"]) -> tuple[np.ndarray, np.ndarray]:
        """L(θ_j, Z) for each draw, and the gradient of their mean in Z (equation (15)); draws side by side."""
        with ThreadPoolExecutor(available_cores() if self.threads(len(Z)) == 1 else 1) as pool:
            results = list(pool.map(lambda phi: self.evaluate(phi, Z), phis))
        return np.array([r.log_likelihood for r in results]), np.mean([r.dZ for r in results], axis=0)

    def traced(self, Z: Float[np.ndarray, "M D"]) -> Traced:
        """The same density at fixed Z for samplers that run inside JAX."""
        return Traced(*_parts(self.model, self.jitter), (Z, self.data))
