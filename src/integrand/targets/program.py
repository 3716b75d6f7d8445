"""What all targets share: one compiled program for each model and shape, counted and timed, and what it evaluates to.

One program gives everything the methods need at a point: the bound (or exact likelihood), the log prior, and
their gradients in φ and Z. Optimisers, samplers and the steps of Z all call it, so a fit compiles it once and a
second fit of the same shape compiles nothing.
"""

import functools
import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from integrand.gp import GP
from integrand.infer.threads import compiler_options
from integrand.model import Model

# Above this many multiplications for one value and gradient, threads go inside its products; else chains share them.
LARGE = 2e10

# How often each program has been traced, and when first calls began and ended: a second fit must not add to them.
traces: dict[str, int] = {"collapsed": 0, "factored": 0, "factored each": 0, "exact": 0, "exact value": 0}
_first_calls: list[tuple[float, float]] = []


def compile_seconds() -> float:
    """Seconds in which calls of this process traced a program, almost all of it compiling; side by side counts once."""
    total, until = 0.0, -math.inf
    for began, ended in sorted(_first_calls):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


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


def prior_terms(model: Model, phi: Any):
    """Log prior and log Jacobian of φ, each with its gradient."""
    return jax.value_and_grad(model.log_prior)(phi), jax.value_and_grad(model.log_jacobian)(phi)


def options_for(threads: int) -> dict[str, bool | int]:
    """What XLA is told.

    What runs on one thread is small, and LLVM's first level of optimisation compiles it sooner for as fast a program.
    """
    return compiler_options(threads) | ({"xla_backend_optimization_level": 1} if threads == 1 else {})


@functools.cache
def compiled(function: Callable, static: tuple[str, ...], threads: int) -> Any:
    """`function`, jitted once for this number of threads (1, or 0 for all)."""
    return jax.jit(function, static_argnames=static, compiler_options=options_for(threads))


def _gp(phi: Any, model: Model) -> GP:
    return model.gp(model.theta(phi))


def gp_at(model: Model, phi: Any) -> GP:
    """The GP at φ by one program: op by op, each transform of a prior would be compiled by itself."""
    return compiled(_gp, ("model",), 1)(phi, model=model)


class Counter:
    """Counts across threads: gradients and mere values taken, and evaluations where a factorisation failed."""

    def __init__(self):
        self._lock = threading.Lock()
        self.gradients = 0
        self.values = 0
        self.failures = 0

    def add(self, ok: bool, gradient: bool = True) -> None:
        """Count one evaluation."""
        with self._lock:
            self.gradients += gradient
            self.values += not gradient
            self.failures += not ok


def timed(program: Callable, *args: Any, **static: Any) -> Any:
    """Call a compiled program, and note the seconds if this call had to trace it first."""
    before, began = sum(traces.values()), time.monotonic()
    out = program(*args, **static)
    if sum(traces.values()) > before:
        _first_calls.append((began, time.monotonic()))
    return out


def packed(value: Any, d_phi: Any, priors: Any, dZ: Any = None) -> Array:
    """The result of a program as one array: each array that leaves XLA has a cost of its own."""
    (prior, d_prior), (jacobian, d_jacobian) = priors
    parts = [jnp.stack([value, prior, jacobian]), d_phi, d_prior, d_jacobian]
    return jnp.concatenate(parts if dZ is None else [*parts, dZ.ravel()])


def evaluation(out: Array, counter: Counter, shape: tuple[int, int]) -> Evaluation:
    """What a program packed, counted; `shape` is that of Z, which is empty for an exact GP."""
    numbers = np.asarray(out)
    n = (len(numbers) - 3 - shape[0] * shape[1]) // 3
    value, prior, jacobian = numbers[:3].tolist()
    counter.add(math.isfinite(value))
    d_phi, d_prior, d_jacobian = numbers[3 : 3 + 3 * n].reshape(3, n)
    return Evaluation(value, prior, jacobian, d_phi, d_prior, d_jacobian, numbers[3 + 3 * n :].reshape(shape))
