"""Densities whose moments are known, as targets of samplers, and how far draws are from the truth.

What JAX traces is at module level, so that compiled programs are kept.
"""

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from integrand.infer.base import Chains, Counter, Plan, Target, TracedDensity
from integrand.infer.coordinates import Coordinates
from integrand.precision import float64_scope

# Added to seeds: what is stated holds for any (`pytest --seed-shift`).
SEED_SHIFT = int(os.environ.get("INTEGRAND_SEED_SHIFT", "0"))


class FunctionTarget(Target):
    """A log density given as a function of x: its value and gradient, and, if it is another function, its value.

    All entries of x are hyperparameters unless `n_theta` says otherwise.
    """

    def __init__(
        self,
        log_density: Callable[[np.ndarray], tuple[float, np.ndarray]],
        value: Callable[[np.ndarray], float] | None = None,
        *,
        dimension: int,
        n_theta: int | None = None,
        parallel: int = 2,
    ):
        self.log_density, self.value = log_density, value
        self.dimension, self.n_theta = dimension, dimension if n_theta is None else n_theta
        self.parallel, self.counter = parallel, Counter()

    def value_and_gradient(self, x):
        """Log density and gradient."""
        value, gradient = self.log_density(x)
        self.counter.add(bool(np.isfinite(value)))
        return value, gradient

    def values(self, xs):
        """Log densities of several x."""
        if self.value is None:
            return super().values(xs)
        values = np.array([self.value(x) for x in xs])
        for value in values:
            self.counter.add(bool(np.isfinite(value)), gradient=False)
        return values


class TracedTarget(Target):
    """A density that JAX traces, for samplers in Python and inside XLA."""

    fast_values = True

    def __init__(self, density: TracedDensity, dimension: int):
        self.density, self.counter, self.parallel = density, Counter(), 2
        self.dimension = self.n_theta = dimension

    def value_and_gradient(self, x):
        """Log density and gradient."""
        with float64_scope():
            value, gradient = _value_and_gradient(*self.density[:2])(np.asarray(x, float), self.density.data)
        self.counter.add(bool(np.isfinite(value)))
        return float(value), np.asarray(gradient)

    def values(self, xs):
        """Log densities of several x, without gradients."""
        program = _value(*self.density[:2])
        with float64_scope():
            values = np.array([float(program(np.asarray(x, float), self.density.data)) for x in xs])
        for value in values:
            self.counter.add(bool(np.isfinite(value)), gradient=False)
        return values

    def traced(self):
        """The same density for loops inside XLA."""
        return self.density


def _nothing(x):
    raise AssertionError("this sampler has a density of its own")


# For samplers that do not evaluate the target that they are given.
UNUSED = FunctionTarget(_nothing, dimension=1)


@functools.cache
def _value(log_prior, log_likelihood) -> Any:
    return jax.jit(lambda x, data: log_prior(x, data) + log_likelihood(x, data))


@functools.cache
def _value_and_gradient(log_prior, log_likelihood) -> Any:
    return jax.jit(jax.value_and_grad(lambda x, data: log_prior(x, data) + log_likelihood(x, data)))


# --- a correlated normal, with a wall and a region without a slope where a test wants them

MEAN = np.array([2.0, -1.0, 0.3])
COVARIANCE = np.array([[1.0, 0.8, 0.0], [0.8, 2.0, -0.3], [0.0, -0.3, 0.25]])
WHITE = Coordinates(MEAN, np.linalg.cholesky(COVARIANCE))
PLAIN = Coordinates(np.zeros(3), np.eye(3))

traces = {"normal": 0, "gp": 0}


class Normal(NamedTuple):
    mean: np.ndarray
    precision: np.ndarray
    wall: np.ndarray  # beyond it, in the first coordinate, the log density is `beyond`
    beyond: np.ndarray
    steep: np.ndarray  # beyond it the gradient is not a number, though the value is


@jax.custom_jvp
def _without_slope(x, wall):
    return jnp.zeros_like(x)


@_without_slope.defjvp
def _(primals, tangents):
    x, wall = primals
    return jnp.zeros_like(x), jnp.where(x > wall, jnp.nan, 0.0) * tangents[0]


def normal_log_prior(x, data: Normal):
    traces["normal"] += 1
    d = x - data.mean
    return -0.5 * d @ data.precision @ d


def normal_log_likelihood(x, data: Normal):
    return jnp.where(x[0] > data.wall, data.beyond, 0.0) + _without_slope(x[0], data.steep)


def normal(mean=MEAN, covariance=COVARIANCE, wall=np.inf, beyond=np.nan, steep=np.inf) -> TracedDensity:
    numbers = Normal(*(np.asarray(a, float) for a in (mean, np.linalg.inv(covariance), wall, beyond, steep)))
    return TracedDensity(normal_log_prior, normal_log_likelihood, numbers)


# --- skewed: the log of a gamma variable, and a normal around it. Both are wide; the first has a long tail to the left.

SHAPE, SLOPE, WIDTH = 2.0, 0.5, 1.0


def skewed_log_prior(x, data):
    return SHAPE * x[0] - jnp.exp(x[0])


def skewed_log_likelihood(x, data):
    return -0.5 * ((x[1] - SLOPE * x[0]) / WIDTH) ** 2


SKEWED = TracedDensity(skewed_log_prior, skewed_log_likelihood, ())

# --- posteriordb gp_pois_regr-gp_regr, by 120³-point quadrature; x = log (rho, alpha, sigma)

X = np.arange(-10.0, 11.0, 2.0)
Y = np.array([4.75906, 1.59423, 2.99548, 5.27501, 1.66472, 2.24347, 2.8914, 4.08681, 4.60588, 0.802364, 3.92136])
GP_MEAN, GP_SD = np.array([6.89343, 2.43810, 1.83169]), np.array([1.28970, 0.79007, 0.50018])
GP_LOG_EVIDENCE = -27.555456
# From the moments above, as if the logs were normal and independent: good, not perfect.
GP_WHITENING = Coordinates(np.log(GP_MEAN), np.diag(GP_SD / GP_MEAN))


def gp_log_prior(x, data):
    rho, alpha, sigma = jnp.exp(x)
    half_normals = jnp.log(2.0 / jnp.pi) - jnp.log(2.0) - 0.5 * (alpha / 2.0) ** 2 - 0.5 * sigma**2
    gamma = 25.0 * np.log(4.0) - gammaln(25.0) + 24.0 * jnp.log(rho) - 4.0 * rho
    return gamma + half_normals + jnp.sum(x)


def gp_log_likelihood(x, data):
    traces["gp"] += 1
    inputs, y = data
    rho, alpha, sigma = jnp.exp(x)
    K = alpha**2 * jnp.exp(-0.5 * ((inputs[:, None] - inputs) / rho) ** 2) + sigma * jnp.eye(len(inputs))
    L = jnp.linalg.cholesky(K)
    a = jax.scipy.linalg.solve_triangular(L, y, lower=True)
    return -0.5 * a @ a - jnp.sum(jnp.log(jnp.diag(L))) - 0.5 * len(inputs) * jnp.log(2.0 * jnp.pi)


GP = TracedDensity(gp_log_prior, gp_log_likelihood, (X, Y))


def gp_prior_draws(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, 77])
    draws = rng.gamma(25.0, 0.25, n), np.abs(2.0 * rng.standard_normal(n)), np.abs(rng.standard_normal(n))
    return np.log(np.stack(draws, axis=1))


# --- how far draws (chain, draw) are from the truth, in Monte Carlo standard errors


def z_of_mean(draws: np.ndarray, truth: float) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz

    return float((draws.mean() - truth) / arviz.mcse(np.ascontiguousarray(draws), method="mean"))


def z_of_sd(draws: np.ndarray, truth: float) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz

    return float((draws.std() - truth) / arviz.mcse(np.ascontiguousarray(draws), method="sd"))


def starts(coordinates: Coordinates, chains: int = 4, seed: int = 9) -> np.ndarray:
    eta = 1.5 * np.random.default_rng(seed).standard_normal((chains, len(coordinates.centre)))
    return coordinates.to_x(eta)


def assert_mean(draws: np.ndarray, truth: float, errors: float = 4.0) -> float:
    """The mean of the draws (chain, draw) is the truth within so many Monte Carlo standard errors, of which one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz

    error = float(draws.std() / np.sqrt(arviz.ess(np.ascontiguousarray(draws), method="mean")))
    assert abs(draws.mean() - truth) < errors * error, (draws.mean(), truth, error)
    return error


def assert_same(a: Chains, b: Chains) -> None:
    """The same draws with the same statistics, bit by bit."""
    for name, left, right in zip(Chains._fields, a, b, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=name)


def shifted(plan: Plan) -> Plan:
    """The plan with another seed, where the tests are run with others."""
    return plan.but(seed=(plan.seed[0] + SEED_SHIFT, *plan.seed[1:]))
