"""What `fbgp` draws from, against numbers made another way."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from integrand import RBF, Dataset, Gamma, HalfNormal, Jitter, Model, collapsed_bound
from integrand.methods.fbgp import ThetaAndInducing
from integrand.precision import float64_scope
from integrand.targets import CollapsedTarget


def test_fbgp_draws_from_prior_times_prior_of_Z_times_bound():
    """log p(φ) + log N(Z; 0, I) + L(θ, Z) but for the normaliser, and its gradient by differences."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((15, 2))
    y = np.sin(2.0 * inputs[:, 0]) + 0.2 * rng.standard_normal(15)
    kernel = RBF(lengthscale=Gamma(2.0, 1.5), scale=HalfNormal(1.3))
    model, data, jitter = Model(kernel, 2, Gamma(2.0, 5.0)), Dataset.of(inputs, y), Jitter(1e-7)
    n, shape = model.n_theta, (4, 2)
    target = ThetaAndInducing(CollapsedTarget(model, data, jitter), shape)
    assert (target.n_theta, target.dimension) == (n, n + 8)
    bound_at = jax.jit(lambda phi, Z: collapsed_bound(model.gp(model.theta(phi)), Z, data, jitter))
    for _ in range(3):
        x = np.concatenate([model.start() + 0.3 * rng.standard_normal(n), 1.5 * rng.standard_normal(8)])
        phi, Z = x[:n], x[n:].reshape(shape)
        with float64_scope():
            theta = {name: np.asarray(value) for name, value in model.theta(jnp.asarray(phi)).items()}
            bound = float(bound_at(phi, Z))
        # Every prior is of a positive number whose logarithm is drawn: its Jacobian is the number itself.
        priors = {
            "lengthscale": stats.gamma(2.0, scale=1 / 1.5),
            "scale": stats.halfnorm(scale=1.3),
            "noise": stats.gamma(2.0, scale=1 / 5.0),
        }
        np.testing.assert_allclose(phi, np.log(np.concatenate([np.ravel(theta[name]) for name in theta])), rtol=1e-12)
        prior = sum(float(np.sum(d.logpdf(theta[name]) + np.log(theta[name]))) for name, d in priors.items())
        expected = prior + float(np.sum(stats.norm.logpdf(Z))) + 0.5 * Z.size * math.log(2.0 * math.pi) + bound
        value, gradient = target.value_and_gradient(x)
        assert value == pytest.approx(expected, abs=1e-8)
        numeric = [
            (target.value_and_gradient(x + d)[0] - target.value_and_gradient(x - d)[0]) / 2e-5
            for d in 1e-5 * np.eye(len(x))
        ]
        np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-5)
