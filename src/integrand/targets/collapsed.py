"""The density that Algorithm 1 samples: log p(θ) + L(θ, Z) over the unconstrained hyperparameters φ."""

import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from integrand.bounds.collapsed import bound_from_factors, collapsed_bound, factorise, inducing_posterior
from integrand.compilation import LARGE, jitted, parallel_calls, program_for, timed, trace_counts
from integrand.data.dataset import Dataset, block_rows_for
from integrand.infer.base import Counter, Target, TracedDensity, Vector
from integrand.linalg import Jitter
from integrand.model import Model
from integrand.precision import float64_scope
from integrand.targets.evaluation import Evaluation, density, evaluation, packed, prior_terms

# Multiplications of a value and gradient that takes some milliseconds and holds some megabytes.
_SHORT = 1e9
# Rows of a coarse density, and how many times more there must be: below that compiling it takes longer than it saves.
_COARSE_ROWS, _COARSE_FOLD = 1_500, 4
# Values that one call computes at most, and entries of all their LB, which it fills.
_MAX_BATCH, _MAX_ENTRIES = 8, 2_000_000


def _bound_at(model: Model, jitter: Jitter):
    return lambda phi, Z, data: collapsed_bound(model.gp(model.theta(phi)), Z, data, jitter, model.bound)


def _collapsed(phi, Z, data: Dataset, model: Model, jitter: Jitter):
    trace_counts["collapsed"] += 1

    def program(phi, Z, data):
        value, (d_phi, dZ) = jax.value_and_grad(_bound_at(model, jitter), (0, 1))(phi, Z, data)
        return packed(value, d_phi, prior_terms(model, phi), dZ)

    return data.on_all_devices(program, phi, Z)


class BoundWithPosterior(NamedTuple):
    """L(θ, Z) and the q*(u) behind it, whitened (`bounds.collapsed.InducingPosterior`)."""

    log_likelihood: float
    m: Float[np.ndarray, " M"]
    LB: Float[np.ndarray, "M M"]


class _Output(NamedTuple):
    """Output of the program behind `inducing_posterior`; processes compare the bound, arrays stay on the device."""

    log_likelihood: float
    log_prior: float
    m: Any
    LB: Any


def _factors_at(model: Model, jitter: Jitter):
    """Bound and log prior, and q*(u), as a function of φ, Z and the data."""

    def program(phi, Z, data):
        factors = factorise(model.gp(model.theta(phi)), Z, data, jitter, model.bound)
        values = jnp.stack([bound_from_factors(factors, data.n_rows), model.log_prior(phi)])
        return values, *inducing_posterior(factors)

    return program


def _factored(phi, Z, data: Dataset, model: Model, jitter: Jitter):
    trace_counts["factored"] += 1
    return data.on_all_devices(_factors_at(model, jitter), phi, Z)


def _factored_each(phis, Z, n, data: Dataset, model: Model, jitter: Jitter):
    """The same at the first n of several φ, one after the other."""
    trace_counts["factored each"] += 1
    program = _factors_at(model, jitter)
    empty = [jnp.zeros((len(phis), *a.shape), a.dtype) for a in jax.eval_shape(program, phis[0], Z, data)]

    def one(i, filled):
        return [a.at[i].set(b) for a, b in zip(filled, program(phis[i], Z, data), strict=True)]

    return jax.lax.fori_loop(0, n, one, empty)


def _log_prior(phi, model: Model):
    return model.log_prior(phi)


@functools.cache
def _parts(model: Model, jitter: Jitter):
    """Log prior and bound as functions of φ that JAX traces; the same for equal models."""

    def log_prior(phi: Any, data: Any) -> Any:
        return model.log_prior(phi)

    def log_likelihood(phi: Any, data: Any) -> Any:
        Z, rows = data
        return collapsed_bound(model.gp(model.theta(phi)), Z, rows, jitter, model.bound)

    return log_prior, log_likelihood


@dataclass(frozen=True)
class CollapsedTarget:
    """log p(θ) + L(θ, Z) over φ (and Z): the density of the paper's q*(θ) up to C_Z, in sampled coordinates."""

    model: Model
    data: Dataset
    jitter: Jitter = Jitter()
    counter: Counter = field(default_factory=Counter, compare=False)
    _programs: dict[Any, Callable] = field(init=False, default_factory=dict, compare=False, repr=False)

    def threads(self, n_inducing: int) -> int:
        """1 when chains should run side by side, 0 (all) when the threads belong inside the products."""
        return 1 if self._local and self._work(n_inducing) < LARGE else 0

    def parallel(self, n_inducing: int) -> int:
        """How many evaluations to run at the same time."""
        return 1 if self.threads(n_inducing) == 0 else parallel_calls(short=self._work(n_inducing) < _SHORT)

    def _work(self, n_inducing: int) -> float:
        """Multiplications of a value and gradient."""
        return 6.0 * self._rows * n_inducing**2

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
            return evaluation(self._run(_collapsed, phi, Z), self.counter, Z.shape)

        return run() if self._local else self.data.on_all_processes("evaluate", phi, Z, run)

    def inducing_posterior(self, phi: Float[np.ndarray, " P"], Z: Float[np.ndarray, "M D"]) -> BoundWithPosterior:
        """L(θ, Z) and q*(u), without gradients; by the program of `values` if that is compiled already."""
        if (_factored_each, Z.shape) in self._programs:
            values, m, LB = (a[0].copy() for a in self._factored_each(phi[None], Z))
            return BoundWithPosterior(float(values[0]), m, LB)
        output = self._factored(phi, Z)
        return BoundWithPosterior(output.log_likelihood, np.asarray(output.m), np.asarray(output.LB))

    def _factored(self, phi: np.ndarray, Z: np.ndarray) -> _Output:
        def run() -> _Output:
            values, m, LB = self._run(_factored, phi, Z)
            bound, log_prior = np.asarray(values).tolist()
            output = _Output(bound, log_prior, m, LB)
            self.counter.add(math.isfinite(output.log_likelihood), gradient=False)
            return output

        return run() if self._local else self.data.on_all_processes("inducing_posterior", phi, Z, run)

    def _factored_each(self, phis: np.ndarray, Z: np.ndarray) -> list[np.ndarray]:
        """Bound and log prior, m and LB, for at most `batch_size` φ."""
        n = len(phis)
        padded = np.concatenate([phis, np.tile(phis[:1], (self.batch_size(len(Z)) - n, 1))])
        outputs = [np.asarray(a)[:n] for a in self._run(_factored_each, padded, Z, n)]
        for value in outputs[0][:, 0]:
            self.counter.add(math.isfinite(value), gradient=False)
        return outputs

    def batch_size(self, n_inducing: int) -> int:
        """How many values one call computes: several where one is cheap, to share the cost of the call; or 0."""
        if self.threads(n_inducing) == 0:
            return 0
        return max(1, min(_MAX_BATCH, _MAX_ENTRIES // n_inducing**2))

    def _run(self, function: Callable, phi: np.ndarray, Z: np.ndarray, *more: int) -> Any:
        """The output of the compiled program of `function`."""
        static = {"model": self.model, "jitter": self.jitter}
        with float64_scope():
            arguments = np.asarray(phi, float), np.asarray(Z, float), *more, self.data
            if not self._local:
                return timed(jitted(function, tuple(static), self.threads(len(Z))), *arguments, **static)
            program = self._programs.get((function, Z.shape))
            if program is None:
                program = timed(program_for, function, self.threads(len(Z)), arguments, static)
                self._programs[function, Z.shape] = program
            return program(*arguments)

    def log_prior(self, phi: Float[np.ndarray, " P"]) -> float:
        """log p(θ) with the Jacobian of φ, which needs no rows."""
        with float64_scope():
            return float(jitted(_log_prior, ("model",), 1)(np.asarray(phi, float), model=self.model))

    def value(self, phi: Float[np.ndarray, " P"], Z: Float[np.ndarray, "M D"]) -> float:
        """L(θ, Z) alone."""
        return self._factored(phi, Z).log_likelihood

    def values(self, phis: Float[np.ndarray, "K P"], Z: Float[np.ndarray, "M D"]) -> Float[np.ndarray, " K"]:
        """Bound + log prior + log Jacobian of each, without gradients."""
        if batch := self.batch_size(len(Z)):
            parts = [self._factored_each(phis[i : i + batch], Z)[0] for i in range(0, len(phis), batch)]
            return np.concatenate(parts).sum(axis=1)
        outputs = [self._factored(phi, Z) for phi in phis]
        return np.array([o.log_likelihood + o.log_prior for o in outputs])

    def evaluate_each(self, phis: Float[np.ndarray, "J P"], Z: Float[np.ndarray, "M D"]) -> list[Evaluation]:
        """Everything at several draws, in parallel."""
        with ThreadPoolExecutor(self.parallel(len(Z))) as pool:
            return list(pool.map(lambda phi: self.evaluate(phi, Z), phis))

    def mean_bound(self, phis: Float[np.ndarray, "J P"], Z: Float[np.ndarray, "M D"]) -> tuple[np.ndarray, np.ndarray]:
        """L(θ_j, Z) for each draw, and the gradient in Z of their mean (equation (15)); draws in parallel."""
        results = self.evaluate_each(phis, Z)
        return np.array([r.log_likelihood for r in results]), np.mean([r.dZ for r in results], axis=0)

    def traced(self, Z: Float[np.ndarray, "M D"]) -> TracedDensity:
        """The same density at fixed Z for samplers that run inside JAX."""
        return TracedDensity(*_parts(self.model, self.jitter), (Z, self.data))

    def at(self, Z: Float[np.ndarray, "M D"]) -> "FixedZ":
        """The density of θ at this Z, for samplers."""
        return FixedZ(self, Z)


class FixedZ(Target):
    """log p(θ) + L(θ, Z) over φ at a fixed Z: the paper's q*(θ) up to its normaliser."""

    fast_values = True

    def __init__(self, bound: CollapsedTarget, Z: Float[np.ndarray, "M D"]):
        self.bound, self.Z, self.counter = bound, Z, bound.counter
        self.n_theta = self.dimension = bound.model.n_theta
        self.parallel = bound.parallel(len(Z))

    def value_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Log density and gradient."""
        return density(self.bound.evaluate(x, self.Z))

    def values(self, xs: Float[np.ndarray, "K P"]) -> Float[np.ndarray, " K"]:
        """Log densities of several φ, without gradients."""
        return self.bound.values(xs, self.Z)

    def coarse(self) -> Target:
        """The density of some rows, whose sums are scaled to represent all, where there are many."""
        data = self.bound.data
        if not data.local or data.scale != 1.0 or data.n_rows < _COARSE_FOLD * _COARSE_ROWS:
            return self
        with float64_scope():
            (X, y), v = map(np.asarray, data.arrays()), data.noise_variances()
        some = np.random.default_rng(0).choice(len(y), _COARSE_ROWS, replace=False)
        v = None if v is None else np.asarray(v)[some]
        rows = Dataset.of(X[some], y[some], block_rows_for(len(self.Z)), v).representing(data.n_rows)
        return FixedZ(CollapsedTarget(self.bound.model, rows, self.bound.jitter), self.Z)

    def traced(self) -> TracedDensity:
        """The same for loops inside XLA."""
        return self.bound.traced(self.Z)
