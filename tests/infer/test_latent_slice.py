"""Slices of a latent Gaussian model whose posterior is known: everything is Gaussian."""

import jax.numpy as jnp
import numpy as np
import pytest

import known_posteriors as known
from integrand.errors import NumericalError
from integrand.infer.base import Plan, keep_going
from integrand.infer.convergence import convergence
from integrand.infer.coordinates import Coordinates
from integrand.infer.latent_slice import LatentGaussian, LatentSlice

N = 4
RNG = np.random.default_rng(0)
L = np.linalg.cholesky(np.exp(-0.5 * (np.arange(N)[:, None] - np.arange(N)) ** 2) + 1e-6 * np.eye(N))
Y = 2.0 + RNG.standard_normal(N)
NOISE = 0.5


def log_prior(phi, data):
    return -0.5 * phi @ phi


def root(phi, data):
    return phi[0], data[1]


def log_likelihood(f, phi, data):
    return -0.5 * jnp.sum(((data[0] - f) / NOISE) ** 2)


MODEL = LatentGaussian(log_prior, root, log_likelihood, (Y, L))


def exact():
    """Mean and sd of (φ, ν): y = φ + L ν + noise, with φ and ν standard normal."""
    A = np.concatenate([np.ones((N, 1)), L], axis=1)
    covariance = np.linalg.inv(np.eye(N + 1) + A.T @ A / NOISE**2)
    return covariance @ A.T @ Y / NOISE**2, np.sqrt(np.diagonal(covariance))


def run(W, model=MODEL, starts=None, seed=(0,), warmup=20, draws=1500, parallel=2, thin: int | None = 4):
    starts = RNG.standard_normal((4, N + 1)) if starts is None else starts
    plan, coordinates = Plan(warmup, draws, seed, parallel), Coordinates(np.zeros(1), np.eye(1))
    return LatentSlice(model, W, thin=thin).run(known.UNUSED, starts, coordinates, plan, keep_going)


W_GOOD = np.full(N, 1 / NOISE**2)


@pytest.mark.parametrize(
    "W", [W_GOOD, np.array([0.0, 20.0, 1.0, 0.0]), np.zeros(N)], ids=["matched", "any", "none: whitening by the prior"]
)
def test_moments(W):
    """Whatever the precision of the surrogate data, the draws are those of the model."""
    x = run(W).chains.x
    mean, sd = exact()
    size = convergence(x).ess_bulk
    assert size.min() > 400
    assert np.all(np.abs(x.mean(axis=(0, 1)) - mean) < 4 * sd / np.sqrt(size))
    np.testing.assert_allclose(x.std(axis=(0, 1)), sd, rtol=0.1)


def test_what_it_tells():
    result = run(W_GOOD, draws=40)
    chains = result.chains
    assert chains.x.shape == (4, 40, N + 1)
    assert result.warmup == 20
    assert result.evaluations >= chains.n_steps.sum() > 2 * 4 * 160
    f = chains.x[..., :1] + chains.x[..., 1:] @ L.T
    expected = -0.5 * np.sum(chains.x**2, axis=2) - 0.5 * np.sum(((Y - f) / NOISE) ** 2, axis=2)
    np.testing.assert_allclose(chains.log_density, expected - 0.5 * N * np.log(2 * np.pi), rtol=1e-10)


@pytest.mark.slow
def test_draws_depend_on_seed_and_position_alone():
    def drawn(seed, draws, parallel=2, chains=3):
        starts = np.zeros((chains, N + 1))
        return run(W_GOOD, starts=starts, warmup=5, draws=draws, seed=seed, parallel=parallel, thin=None).chains.x

    first = drawn((1, 2), 30)
    np.testing.assert_array_equal(first, drawn((1, 2), 30, parallel=1))
    np.testing.assert_array_equal(first[:, :10], drawn((1, 2), 10))
    np.testing.assert_array_equal(first[:2], drawn((1, 2), 30, chains=2))
    assert not np.any(first == drawn((1, 3), 30))
    assert not np.any(first[0] == first[1])


@pytest.mark.slow
def test_a_likelihood_that_fails_somewhere_is_left_there():
    """A NaN is outside every slice: half of the line is forbidden, and never entered."""

    def broken(f, phi, data):
        return jnp.where(phi[0] > 1.0, jnp.nan, log_likelihood(f, phi, data))

    model = MODEL._replace(log_likelihood=broken)
    starts = np.zeros((2, N + 1))
    x = run(W_GOOD, model, starts, warmup=5, draws=200, thin=None).chains.x
    assert np.all(np.isfinite(x))
    assert x[:, :, 0].max() <= 1.0
    assert np.all(x[:, :, 0].std(axis=1) > 0.05)
    starts[1, 0] = 2.0
    with pytest.raises(NumericalError, match="where a chain should start"):
        run(W_GOOD, model, starts, warmup=5, draws=200, thin=None)
