"""Log densities over the unconstrained hyperparameters φ, compiled once per model and shape.

One program gives everything the methods need at a point: the bound (or exact likelihood), the log prior, and
their gradients in φ and Z. Optimisers, samplers and the steps of Z all call it, so a fit compiles it once and a
second fit of the same shape compiles nothing.
"""

import functools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from integrand.bounds.collapsed import collapsed_bound
from integrand.bounds.exact import log_marginal_likelihood
from integrand.data.dataset import Dataset
from integrand.infer.threads import available_cores, compiler_options
from integrand.linalg import Jitter
from integrand.model import Model
from integrand.precision import float64_scope

# Above this many multiplications for one value and gradient, threads inside a product beat chains side by side.
_LARGE = 2e10

# How often each program has been traced, and the seconds of first calls: a second fit must not add to them.
traces: dict[str, int] = {"collapsed": 0, "exact": 0}
_first_calls: list[float] = []


def compile_seconds() -> float:
    """Seconds that calls which traced a program took in this process, so almost all of it compiling."""
    return sum(_first_calls)


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
        """Unnormalised log posterior of φ: bound + log prior + log Jacobian."""
        return self.log_likelihood + self.log_prior

    @property
    def gradient(self) -> Float[np.ndarray, " P"]:
        """Gradient of `log_density`."""
        return self.d_likelihood + self.d_prior


def likelihood(e: Evaluation) -> tuple[float, Float[np.ndarray, " P"]]:
    """What ML-II maximises: the bound, or the exact log likelihood."""
    return e.log_likelihood, e.d_likelihood


def density(e: Evaluation) -> tuple[float, Float[np.ndarray, " P"]]:
    """What is sampled: bound + log prior + log Jacobian, the log density of φ."""
    return e.log_density, e.gradient


def penalised(e: Evaluation) -> tuple[float, Float[np.ndarray, " P"]]:
    """What MAP maximises: bound + log p(θ), without the Jacobian, so that the mode is one of θ and not of φ."""
    return e.log_density - e.log_jacobian, e.gradient - e.d_jacobian


def _collapsed(phi, Z, data: Dataset, model: Model, jitter: Jitter):
    traces["collapsed"] += 1
    value, (d_phi, dZ) = jax.value_and_grad(
        lambda phi, Z: collapsed_bound(model.gp(model.theta(phi)), Z, data, jitter), (0, 1)
    )(phi, Z)
    return value, d_phi, _prior_terms(model, phi), dZ


def _prior_terms(model: Model, phi):
    return jax.value_and_grad(model.log_prior)(phi), jax.value_and_grad(model.log_jacobian)(phi)


def _exact(phi, X, y, model: Model):
    traces["exact"] += 1
    value, d_phi = jax.value_and_grad(lambda phi: log_marginal_likelihood(model.gp(model.theta(phi)), X, y))(phi)
    return value, d_phi, _prior_terms(model, phi)


@functools.cache
def _compiled(function, threads: int):
    static = ("model", "jitter") if function is _collapsed else ("model",)
    return jax.jit(function, static_argnames=static, compiler_options=compiler_options(threads))


class Counter:
    """Counts across threads: gradients taken, and evaluations where a factorisation failed."""

    def __init__(self):
        self._lock = threading.Lock()
        self.gradients = 0
        self.failures = 0

    def add(self, ok: bool) -> None:
        """Count one evaluation."""
        with self._lock:
            self.gradients += 1
            self.failures += not ok


@dataclass(frozen=True)
class CollapsedTarget:
    """log p(θ) + L(θ, Z) over φ (and Z): the density of the paper's q*(θ) up to C_Z, in sampled coordinates."""

    model: Model
    data: Dataset
    jitter: Jitter = Jitter()
    counter: Counter = field(default_factory=Counter, compare=False)

    def threads(self, n_inducing: int) -> int:
        """1 when chains should run side by side, 0 (all) when the threads belong inside the products."""
        return 1 if 6.0 * self.data.n_rows * n_inducing**2 < _LARGE else 0

    def evaluate(self, phi: Float[np.ndarray, " P"], Z: Float[np.ndarray, "M D"]) -> Evaluation:
        """Everything at one point. Callable from any thread."""
        with float64_scope():
            program = _compiled(_collapsed, self.threads(len(Z)))
            out = _timed(program, np.asarray(phi, float), Z, self.data, model=self.model, jitter=self.jitter)
            return _evaluation(out, self.counter)

    def averaged(self, phis: Float[np.ndarray, "J P"], Z: Float[np.ndarray, "M D"]) -> tuple[np.ndarray, np.ndarray]:
        """L(θ_j, Z) for each draw, and the gradient of their mean in Z (equation (15)); draws side by side."""
        with ThreadPoolExecutor(available_cores() if self.threads(len(Z)) == 1 else 1) as pool:
            results = list(pool.map(lambda phi: self.evaluate(phi, Z), phis))
        return np.array([r.log_likelihood for r in results]), np.mean([r.dZ for r in results], axis=0)


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

    def evaluate(self, phi: Float[np.ndarray, " P"]) -> Evaluation:
        """Everything at one point. Callable from any thread."""
        with float64_scope():
            threads = 1 if self.data.n_rows**3 < _LARGE else 0
            out = _timed(_compiled(_exact, threads), np.asarray(phi, float), *self._arrays, model=self.model)
            return _evaluation((*out, np.zeros((0, self.data.n_columns))), self.counter)


def _timed(program, *args, **static):
    """Call a compiled program, and note the seconds if this call had to trace it first."""
    before, began = sum(traces.values()), time.monotonic()
    out = program(*args, **static)
    if sum(traces.values()) > before:
        _first_calls.append(time.monotonic() - began)
    return out


def _evaluation(out, counter: Counter) -> Evaluation:
    value, d_phi, ((prior, d_prior), (jacobian, d_jacobian)), dZ = out
    numbers = (float(value), float(prior), float(jacobian))
    counter.add(bool(np.isfinite(numbers[0])))
    return Evaluation(*numbers, *(np.asarray(a) for a in (d_phi, d_prior, d_jacobian, dZ)))
