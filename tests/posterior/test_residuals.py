"""Leave-one-out residuals in closed form, against leaving rows out."""

import jax.numpy as jnp
import numpy as np
import pytest

from integrand.data.dataset import Dataset
from integrand.kernels import RBF
from integrand.likelihoods import Poisson, StudentT
from integrand.linalg import Jitter
from integrand.model import Model
from integrand.posterior.conditional import exact_conditional, marginals, sparse_conditional
from integrand.posterior.residuals import (
    Marginals,
    left_out_exact,
    left_out_sparse,
    marginals_of,
    weighted_residuals,
)
from integrand.precision import float64_scope
from integrand.targets.collapsed import CollapsedTarget

JITTER = Jitter()


def case(n=25, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(n)
    model = Model(RBF(), 2)
    phis = model.start() + 0.3 * rng.standard_normal((3, model.n_theta))
    return model, phis, X, y, rng.uniform(-2, 2, (6, 2))


def gram(model, phi, points):
    with float64_scope():
        gp = model.gp(model.theta(jnp.asarray(phi)))
        return np.asarray(gp.kernel.gram(jnp.asarray(points))), float(gp.noise**2), float(gp.mean)


def sparse(model, phis, Z, X, y):
    target = CollapsedTarget(model, Dataset.of(X, y), JITTER)
    return sparse_conditional(phis, Z, target.inducing_posterior)


@pytest.mark.slow
def test_a_sparse_fit_without_a_row():
    """At the same θ and Z, q(u) of the other rows predicts the row as the closed form says."""
    model, phis, X, y, Z = case()
    conditional, parts, noises = sparse(model, phis, Z, X, y), [], []
    for j, phi in enumerate(phis):
        K, noise, mean = gram(model, phi, np.concatenate([Z, X]))
        parts.append(marginals_of(conditional, j, K, mean, JITTER))
        noises.append(noise)
    f = Marginals(*(np.array(p) for p in zip(*parts, strict=True)), np.array(noises))
    mean, variance, noise = marginals(model, JITTER, conditional, X)
    np.testing.assert_allclose(f.mean, mean, atol=1e-9)
    np.testing.assert_allclose(f.explained + f.open, variance, atol=1e-9)
    left_out = left_out_sparse(f, y)
    for i in (0, 7, 24):
        others = np.arange(len(y)) != i
        mean, variance, noise = marginals(model, JITTER, sparse(model, phis, Z, X[others], y[others]), X[i : i + 1])
        np.testing.assert_allclose(left_out.means[:, i], mean[:, 0], atol=1e-8)
        np.testing.assert_allclose(left_out.variances[:, i], variance[:, 0] + noise, atol=1e-8)


def test_an_exact_fit_without_a_row():
    model, phis, X, y, _ = case()
    left_out = left_out_exact(exact_conditional(model, phis, Dataset.of(X, y)), np.arange(3), y)
    for i in (0, 7, 24):
        others = np.arange(len(y)) != i
        conditional = exact_conditional(model, phis, Dataset.of(X[others], y[others]))
        mean, variance, noise = marginals(model, JITTER, conditional, X[i : i + 1])
        np.testing.assert_allclose(left_out.means[:, i], mean[:, 0], atol=1e-8)
        np.testing.assert_allclose(left_out.variances[:, i], variance[:, 0] + noise, atol=1e-8)


@pytest.mark.parametrize("likelihood", [Poisson(), StudentT()])
def test_scores_of_other_likelihoods_are_standard_normal(likelihood):
    """Data from the model itself, whose latent function is known: weights are equal, scores those of F(y)."""
    rng = np.random.default_rng(3)
    n = 4000
    mean, noise = rng.normal(1.0, 0.5, n), 0.4
    y = likelihood.sample(rng, mean + np.sqrt(0.1) * rng.standard_normal(n), noise)
    model = Model(RBF(), 1, likelihood=likelihood)
    f = Marginals(mean[None], np.zeros((1, n)), np.full((1, n), 0.1), np.array([noise**2]))
    r = weighted_residuals(model, f, y, rng)
    assert abs(r.scores.mean()) < 4.0 / np.sqrt(n)
    assert abs(r.scores.std() - 1.0) < 4.0 / np.sqrt(2 * n)
