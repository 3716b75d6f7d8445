"""Laplace's approximation: exact where the likelihood is Gaussian, and a good place to draw from where it is not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaln

from integrand import GP, RBF, Jitter, log_marginal_likelihood
from integrand.bounds.laplace import importance_draws, laplace, latent_prior
from integrand.likelihoods import Bernoulli, Gaussian, Poisson, StudentT

pytestmark = pytest.mark.usefixtures("strict_float64")

TINY = Jitter(0.0, 1e-12)
RNG = np.random.default_rng(2)
X = RNG.standard_normal((9, 2))
Y = {
    Gaussian(): RNG.standard_normal(9),
    StudentT(3.0): np.append(RNG.standard_normal(8), 30.0),
    Bernoulli(): RNG.integers(0, 2, 9).astype(float),
    Poisson(): RNG.poisson(20.0, 9).astype(float),
}
X3, COUNTS = X[:3], np.array([0.0, 6.0, 1.0])


def parts(likelihood, lengthscale=1.3, scale=1.7, noise=0.3, mean=0.4):
    gp = GP(RBF(jnp.asarray([lengthscale] * 2), jnp.asarray(scale)), jnp.asarray(noise), jnp.asarray(mean))
    return lambda f: likelihood.log_prob(Y[likelihood], f, gp.noise), latent_prior(gp, jnp.asarray(X), TINY), gp


@functools.cache
def found_for(likelihood):
    """The approximation, the slope of the log posterior at its mode, and the mode from another guess."""

    @jax.jit
    def found(guess):
        rows, prior, _ = parts(likelihood)
        there = laplace(rows, prior)
        slope = jax.grad(lambda nu: jnp.sum(rows(prior.f(nu))) - 0.5 * nu @ nu)(there.mode)
        return there, slope, laplace(rows, prior, guess).mode

    return found(np.random.default_rng(0).standard_normal(9))


@functools.cache
def evidence_of(likelihood):
    """Log evidence and its gradient at (lengthscale, scale, noise, mean)."""

    @jax.jit
    @jax.value_and_grad
    def evidence(theta):
        rows, prior, _ = parts(likelihood, *theta)
        return laplace(rows, prior).log_evidence

    return evidence


@pytest.mark.slow
def test_gaussian_noise_is_met_exactly():
    expected = float(jax.jit(lambda: log_marginal_likelihood(parts(Gaussian())[2], X, Y[Gaussian()]))())
    found = found_for(Gaussian())[0]
    assert float(found.log_evidence) == pytest.approx(expected, abs=1e-8)
    weighted = jax.jit(lambda key, found: importance_draws(key, *parts(Gaussian())[:2], found, 7))(
        jax.random.PRNGKey(0), found
    )
    assert weighted.nu.shape == (7, 9)
    np.testing.assert_allclose(weighted.log_weights, expected, atol=1e-8)


@pytest.mark.parametrize("likelihood", Y, ids=lambda one: one.name)
def test_the_mode_is_one_and_any_guess_leads_there(likelihood):
    found, slope, guessed = found_for(likelihood)
    assert np.abs(slope).max() < 1e-6
    assert np.all(np.asarray(found.W) >= 0.0)
    np.testing.assert_allclose(guessed, found.mode, atol=1e-6)


def test_an_outlier_bends_nothing():
    """Far out a Student-t is convex in f; there W is zero and q as wide as the prior."""
    assert float(found_for(StudentT(3.0))[0].W[-1]) == 0.0


@pytest.mark.parametrize(
    ("likelihood", "noise"),
    [
        pytest.param(Gaussian(), 0.3, marks=pytest.mark.slow),
        (Poisson(), 0.3),
        pytest.param(StudentT(3.0), 0.15, marks=pytest.mark.slow),
        (StudentT(3.0), 0.3),
        pytest.param(StudentT(3.0), 0.6, marks=pytest.mark.slow),
    ],
    ids=lambda one: getattr(one, "name", one),
)
def test_gradient_against_differences(likelihood, noise):
    at, evidence = np.array([1.3, 1.7, noise, 0.4]), evidence_of(likelihood)
    differences = [(evidence(at + d)[0] - evidence(at - d)[0]) / 2e-5 for d in 1e-5 * np.eye(4)]
    np.testing.assert_allclose(evidence(at)[1], differences, rtol=1e-5, atol=1e-6)


def three():
    """Three counts."""
    gp = parts(Poisson())[2]
    return lambda f: Poisson().log_prob(COUNTS, f, gp.noise), latent_prior(gp, jnp.asarray(X3), TINY)


def evidence_of_three():
    """p(y) by a sum over a grid of ν, in NumPy."""
    nu = np.linspace(-7.0, 7.0, 141)
    grid = np.stack(np.meshgrid(nu, nu, nu, indexing="ij"), axis=-1).reshape(-1, 3)
    squares = np.sum((X3[:, None] - X3) ** 2, axis=2)
    L = np.linalg.cholesky(1.7**2 * np.exp(-0.5 * squares / 1.3**2) + 1e-12 * np.eye(3))
    f = 0.4 + grid @ L.T
    fit = np.sum(COUNTS * f - np.exp(f) - gammaln(COUNTS + 1), axis=1)
    return np.sum(np.exp(fit - 0.5 * np.sum(grid**2, axis=1))) * (0.1 / np.sqrt(2 * np.pi)) ** 3


@pytest.mark.slow
@pytest.mark.parametrize("n_draws", [1, 64])
def test_estimates_are_unbiased(n_draws):
    rows, prior = three()
    expected = evidence_of_three()
    found = jax.jit(lambda: laplace(rows, prior))()
    keys = jax.random.split(jax.random.PRNGKey(n_draws), 4000)
    estimate = jax.jit(jax.vmap(lambda key: importance_draws(key, rows, prior, found, n_draws).log_estimate))
    estimates = np.exp(estimate(keys))
    error = estimates.std() / np.sqrt(len(keys))
    assert error < 0.02 * expected
    assert abs(estimates.mean() - expected) < 4 * error
    if n_draws == 64:
        assert abs(np.exp(float(found.log_evidence)) - expected) > 4 * error  # Laplace alone is off
