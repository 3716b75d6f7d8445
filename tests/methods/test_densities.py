"""What `fbgp` draws from and what `gpr-vi` climbs, against numbers made another way."""

import math
import re

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from integrand import RBF, Dataset, Gamma, HalfNormal, Jitter, Model, collapsed_bound, fit, on_variance
from integrand.data.scaling import Standardiser
from integrand.methods.fbgp import joint_density
from integrand.precision import float64_scope
from integrand.targets import CollapsedTarget

# posteriordb gp_pois_regr-gp_regr, and its log evidence by 120³-point quadrature.
X = np.arange(-10.0, 11.0, 2.0)[:, None]
Y = np.array([4.75906, 1.59423, 2.99548, 5.27501, 1.66472, 2.24347, 2.8914, 4.08681, 4.60588, 0.802364, 3.92136])
LOG_EVIDENCE = -27.555456


def test_fbgp_draws_from_prior_times_prior_of_Z_times_bound():
    """log p(φ) + log N(Z; 0, I) + L(θ, Z) but for the normaliser, and its gradient by differences."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((15, 2))
    y = np.sin(2.0 * inputs[:, 0]) + 0.2 * rng.standard_normal(15)
    kernel = RBF(lengthscale=Gamma(2.0, 1.5), scale=HalfNormal(1.3))
    model, data, jitter = Model(kernel, 2, Gamma(2.0, 5.0)), Dataset.of(inputs, y), Jitter(1e-7)
    n, shape = model.n_theta, (4, 2)
    density = joint_density(CollapsedTarget(model, data, jitter), n, shape)
    for _ in range(3):
        x = np.concatenate([model.start() + 0.3 * rng.standard_normal(n), 1.5 * rng.standard_normal(8)])
        phi, Z = x[:n], x[n:].reshape(shape)
        with float64_scope():
            theta = {name: np.asarray(value) for name, value in model.theta(jnp.asarray(phi)).items()}
            bound = float(collapsed_bound(model.gp(model.theta(jnp.asarray(phi))), Z, data, jitter))
        # Every prior is of a positive number whose logarithm is drawn: its Jacobian is the number itself.
        priors = {
            "lengthscale": stats.gamma(2.0, scale=1 / 1.5),
            "scale": stats.halfnorm(scale=1.3),
            "noise": stats.gamma(2.0, scale=1 / 5.0),
        }
        np.testing.assert_allclose(phi, np.log(np.concatenate([np.ravel(theta[name]) for name in theta])), rtol=1e-12)
        prior = sum(float(np.sum(d.logpdf(theta[name]) + np.log(theta[name]))) for name, d in priors.items())
        expected = prior + float(np.sum(stats.norm.logpdf(Z))) + 0.5 * Z.size * math.log(2.0 * math.pi) + bound
        value, gradient = density.at(x)
        assert value == pytest.approx(expected, abs=1e-8)
        numeric = [(density.at(x + d)[0] - density.at(x - d)[0]) / 2e-5 for d in 1e-5 * np.eye(len(x))]
        np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-5)


def test_gpr_vi_bounds_the_evidence():
    """Below log p(y), and not by much: the posterior is nearly Gaussian in the logarithms."""
    kernel = RBF(lengthscale=Gamma(25.0, 4.0), scale=HalfNormal(2.0))
    noise = on_variance(HalfNormal(1.0))
    posterior = fit(X, Y, kernel, noise=noise, method="gpr-vi", scaler=Standardiser.identity(1), seed=1)
    told = re.search(r"is (\S+) ± (\S+) nats", " ".join(posterior.notes))
    assert told is not None
    elbo, error = float(told[1]), float(told[2])
    assert error < 0.05
    assert elbo < LOG_EVIDENCE + 3.0 * error + 0.01  # told to two digits
    assert elbo > LOG_EVIDENCE - 0.3
