"""Counts from hundreds to millions: Newton's method gets to the mode from afar, and fits predict them."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import integrand
from integrand import ConvergenceWarning, Dataset, Gamma, HalfNormal, Jitter, Matern32, Model
from integrand.bounds.laplace import laplace
from integrand.likelihoods import Poisson
from integrand.precision import float64_scope
from integrand.targets import JointTarget
from integrand.targets.laplace import LaplaceTarget, latent

JITTER = Jitter(0.0, 1e-12)
X = np.linspace(0.0, 1.0, 6)[:, None]
MODEL = Model(Matern32(Gamma(2.0, 1.0), HalfNormal(5.0)), 1, likelihood=Poisson())
RNG = np.random.default_rng(0)
PHIS = [MODEL.start(), *(MODEL.start() + RNG.standard_normal((3, 2)))]
sizes = pytest.mark.parametrize("size", [1e2, 1e4, 1e6])


def counts(size):
    return np.round(size * np.exp(np.sin(3.0 * X[:, 0])))


@jax.jit
def from_the_prior_mean(phi, y):
    """Laplace's evidence without a guess, and L."""
    rows, prior = latent(phi, jnp.asarray(X), y, MODEL, JITTER)
    return laplace(rows, prior).log_evidence, prior.L


@pytest.mark.slow
@sizes
def test_the_mode_is_found(size):
    """Also from f = 0, where the first step is as long as the counts are large; and by the sites, another way there.

    At the mode Lᵀ(y - eᶠ) = ν, and where Z = X the sites' evidence is Laplace's, less 3 log 2π.
    """
    y = counts(size)
    target, joint = LaplaceTarget(MODEL, Dataset.of(X, y), JITTER), JointTarget(MODEL, Dataset.of(X, y), JITTER)
    for phi in PHIS:
        evidence, (nu, W) = target.evaluate(phi), target.mode(phi)
        f = target.f_mode(phi)
        with float64_scope():
            from_afar, L = (np.asarray(a) for a in from_the_prior_mean(jnp.asarray(phi), y))
        slope = L.T @ (y - np.exp(f)) - nu
        decrement = slope @ np.linalg.solve(np.eye(6) + L.T @ (W[:, None] * L), slope)
        assert decrement < 1e-8
        assert float(from_afar) == pytest.approx(evidence.log_likelihood, abs=1e-4)
        x = np.concatenate([phi, np.zeros(6)])
        value = joint.evaluate(x, X, joint.sites(phi, X))[0] + 3.0 * math.log(2.0 * math.pi)
        assert value == pytest.approx(evidence.log_density, abs=1e-4)


@pytest.mark.parametrize("y", [1e2, 1e4, 1e6])
def test_the_evidence_of_one_count(y):
    """Against an integral over f; Laplace's method is off by a part in y or so."""
    target = LaplaceTarget(MODEL, Dataset.of(X[:1], [y]), JITTER)
    for phi in PHIS:
        with float64_scope():
            scale = float(MODEL.theta(jnp.asarray(phi))["scale"])
        expected = Poisson().marginal_log_prob(y, 0.0, scale**2, 1.0)
        assert target.evaluate(phi).log_likelihood == pytest.approx(float(expected), abs=0.2 / math.sqrt(y))


@sizes
def test_sites_with_few_inducing_points(size):
    """What the sites call the mode of v is one: no value of the density nearby is higher."""
    joint, Z = JointTarget(MODEL, Dataset.of(X, counts(size)), JITTER), X[::2]
    for phi in PHIS:
        m, LB = joint.moments(phi, Z, joint.sites(phi, Z))
        _, gradient = joint.evaluate(np.concatenate([phi, m]), Z)
        assert np.max(np.abs(np.linalg.solve(LB, gradient[2:]))) < 1e-3  # in standard deviations


@pytest.mark.slow
@pytest.mark.parametrize("method", ["joint-hmc", "gpr-latent", "pseudo-marginal"])
def test_fits(method):
    """Means within a few standard deviations of the rates, and intervals as wide as a count scatters."""
    X = np.linspace(0.0, 1.0, 12)[:, None]
    settings = {"chains": 2, "warmup": 60, "max_draws": 60, "target_ess": 1e6, "n_inducing": 6, "seed": 1}
    for size in (1e4, 1e6):
        rate = size * np.exp(np.sin(3.0 * X[:, 0]))
        y = np.random.default_rng(0).poisson(rate).astype(float)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            posterior = integrand.fit(X, y, method=method, likelihood="poisson", **settings)
        predictive = posterior.predict(X, include_noise=True)
        np.testing.assert_allclose(predictive.mean, rate, rtol=6.0 / math.sqrt(size))
        assert np.all(predictive.sd < 4.0 * np.sqrt(rate))
        assert np.all(predictive.sd > 0.8 * np.sqrt(rate))
