"""Densities whose moments are known, as functions that JAX traces: module level, so that compiled programs are kept."""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from integrand.infer.metric import Whitening
from integrand.infer.traced import Traced

# --- a correlated normal, with a wall and a region without a slope where a test wants them

MEAN = np.array([2.0, -1.0, 0.3])
COVARIANCE = np.array([[1.0, 0.8, 0.0], [0.8, 2.0, -0.3], [0.0, -0.3, 0.25]])
WHITE = Whitening(MEAN, np.linalg.cholesky(COVARIANCE))
PLAIN = Whitening(np.zeros(3), np.eye(3))

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


def normal(mean=MEAN, covariance=COVARIANCE, wall=np.inf, beyond=np.nan, steep=np.inf) -> Traced:
    numbers = Normal(*(np.asarray(a, float) for a in (mean, np.linalg.inv(covariance), wall, beyond, steep)))
    return Traced(normal_log_prior, normal_log_likelihood, numbers)


# --- posteriordb gp_pois_regr-gp_regr, by 120³-point quadrature; x = log (rho, alpha, sigma)

X = np.arange(-10.0, 11.0, 2.0)
Y = np.array([4.75906, 1.59423, 2.99548, 5.27501, 1.66472, 2.24347, 2.8914, 4.08681, 4.60588, 0.802364, 3.92136])
GP_MEAN, GP_SD = np.array([6.89343, 2.43810, 1.83169]), np.array([1.28970, 0.79007, 0.50018])
GP_LOG_EVIDENCE = -27.555456
# From the moments above, as if the logs were normal and independent: good, not perfect.
GP_WHITENING = Whitening(np.log(GP_MEAN), np.diag(GP_SD / GP_MEAN))


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


GP = Traced(gp_log_prior, gp_log_likelihood, (X, Y))


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


def starts(whitening: Whitening, chains: int = 4, seed: int = 9) -> np.ndarray:
    eta = 1.5 * np.random.default_rng(seed).standard_normal((chains, len(whitening.centre)))
    return whitening.to_x(eta)
