"""With Z = X and Gaussian noise every method that should equal the exact GP at its own θ does (absolute jitter 1e-12).

The exact GP here is written in plain NumPy. Each method of the table has a place in one of the lists below, so a new
one must say what it claims.
"""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from integrand import METHODS, RBF, ConvergenceWarning, Dataset, Gamma, Jitter, Model, fit
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows
from integrand.infer.convergence import convergence
from integrand.posterior.conditional import VariationalConditional, marginals
from integrand.precision import float64_scope
from integrand.targets import ExactTarget, JointTarget

COLLAPSED = ("ml2", "map", "sgpr-hmc", "sgpr-hmc-fixed-z", "vi-collapsed")
EXACT = ("gpr-ml2", "gpr-map", "gpr-hmc", "gpr-vi")
DRAWN_U = ("joint-hmc", "gpr-latent", "pseudo-marginal")  # by the analytic Gaussian of v given θ
OPTIMISED_U = ("svgp",)  # at its optimum
DIFFERENT = {
    "fbgp": "Z is drawn, and is not X",
    "bsgp": "Z is drawn, and is not X",
    "vi-uncollapsed": "q(u) is the same for every θ, the exact conditional is not",
}

JITTER = Jitter(relative=0.0, absolute=1e-12)
RNG = np.random.default_rng(3)
X = np.linspace(-2.0, 2.0, 12)[:, None] + 0.05 * RNG.standard_normal((12, 1))
Y = np.sin(2.0 * X[:, 0]) + 0.2 * RNG.standard_normal(12)
X_NEW = np.linspace(-3.0, 3.0, 9)[:, None]
KERNEL = RBF(lengthscale=Gamma(4.0, 8.0), scale=Gamma(4.0, 4.0))
NOISE = Gamma(4.0, 16.0)


def test_every_method_has_its_place():
    assert sorted(METHODS) == sorted((*COLLAPSED, *EXACT, *DRAWN_U, *OPTIMISED_U, *DIFFERENT))


def covariance(A, B, lengthscale, scale):
    return scale**2 * np.exp(-0.5 * (A - B.T) ** 2 / lengthscale**2)


def exact(theta):
    """Mean and variance of f at the new inputs."""
    hyper = float(theta["lengthscale"][0]), float(theta["scale"])
    K = covariance(X, X, *hyper) + float(theta["noise"]) ** 2 * np.eye(len(X))
    cross = covariance(X, X_NEW, *hyper)
    weights = np.linalg.solve(K, cross)
    return weights.T @ Y, hyper[1] ** 2 - np.sum(cross * weights, axis=0)


def fitted(method, kernel=KERNEL, noise=NOISE, **settings):
    short = {"chains": 2, "warmup": 60, "max_draws": 20, "target_ess": 1e6, "round_draws": 10, "max_rounds": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a few draws are enough: each is looked at
        return fit(
            ArrayRows(X, Y, scaler=Standardiser.identity(1)),
            kernel=kernel,
            noise=noise,
            method=method,
            Z=X,
            jitter=JITTER,
            **(short | settings),
        )


def compare(model, conditional, tolerance):
    mean, variance, _ = marginals(model, JITTER, conditional, X_NEW)
    with float64_scope():
        for j, phi in enumerate(conditional.phis):
            theta = {name: np.asarray(v) for name, v in model.theta(jnp.asarray(phi)).items()}
            expected_mean, expected_variance = exact(theta)
            np.testing.assert_allclose(mean[j], expected_mean, atol=tolerance)
            np.testing.assert_allclose(variance[j], expected_variance, atol=tolerance)


# Those that share their last step with another, which is compared, are for the slow suite; so are draws of u.
SHARED = ("map", "gpr-map", "gpr-vi", "sgpr-hmc-fixed-z", "vi-collapsed")


@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=pytest.mark.slow if m in SHARED else ()) for m in (*COLLAPSED, *EXACT)]
)
def test_equals_the_exact_gp_at_every_draw(method):
    posterior = fitted(method)
    # Z begins at X, and moves as far as no gain can tell: how far depends on the draws.
    compare(posterior.model, posterior.conditional, 5e-3)


def v_given_theta(theta):
    """Mean and covariance of v given y: f = L v with L Lᵀ = K, v ~ N(0, I), y = f + noise."""
    L = np.linalg.cholesky(covariance(X, X, float(theta["lengthscale"][0]), float(theta["scale"])) + 1e-12 * np.eye(12))
    precision = np.eye(len(X)) + L.T @ L / float(theta["noise"]) ** 2
    spread = np.linalg.inv(precision)
    return spread @ L.T @ Y / float(theta["noise"]) ** 2, 0.5 * (spread + spread.T)


@pytest.mark.slow
@pytest.mark.parametrize("method", DRAWN_U)
def test_methods_that_draw_u_equal_it_once_v_is_averaged(method):
    posterior = fitted(method, max_draws=400, round_draws=400, predictive_draws=800)
    conditional = posterior.conditional
    assert isinstance(conditional, VariationalConditional)
    np.testing.assert_allclose(conditional.inputs, X, atol=0.01)  # Z = X is the optimum, up to what a step can tell
    # The draws of v are draws of the Gaussian that is known: whitened by it, they are standard normal.
    epsilon = []
    with float64_scope():
        for phi, v in zip(conditional.phis, conditional.weights, strict=True):
            m, spread = v_given_theta(posterior.model.theta(jnp.asarray(phi)))
            epsilon.append(np.linalg.solve(np.linalg.cholesky(spread), v - m))
    epsilon = np.array(epsilon).reshape(2, -1, len(X))
    assert epsilon.shape[1] >= 400
    squared = np.sum(epsilon**2, axis=2)
    size = convergence(squared[:, :, None]).ess_bulk[0]
    print(method, "ESS", size, "chi-square", squared.mean())
    assert size > 150
    assert abs(squared.mean() - 12.0) < 4.0 * np.sqrt(24.0 / size)
    sizes = convergence(epsilon).ess_bulk
    assert np.all(np.abs(epsilon.mean(axis=(0, 1))) < 4.0 / np.sqrt(sizes))


def test_the_moments_of_v_given_theta_are_the_known_ones():
    """What `joint-hmc` takes v from: mean and width, and with them the exact GP."""
    model = Model(KERNEL, 1, NOISE)
    target = JointTarget(model, Dataset.of(X, Y), JITTER)
    sites = target.sites(model.start(), X)
    phis, found = model.start() + 0.3 * RNG.standard_normal((3, model.n_theta)), []
    for phi in phis:
        m, LB = target.moments(phi, X, sites)
        root = np.linalg.cholesky(np.linalg.inv(LB @ LB.T))
        with float64_scope():
            expected, spread = v_given_theta(model.theta(jnp.asarray(phi)))
        np.testing.assert_allclose(m, expected, atol=1e-6)
        np.testing.assert_allclose(root @ root.T, spread, atol=1e-8)
        found.append((m, root))
    averaged = VariationalConditional(phis, X, np.array([m for m, _ in found]), np.array([root for _, root in found]))
    compare(model, averaged, 1e-6)


def test_the_joint_density_is_the_exact_one_times_that_gaussian():
    model = Model(KERNEL, 1, NOISE)
    data = Dataset.of(X, Y)
    joint, alone = JointTarget(model, data, JITTER), ExactTarget(model, data)
    for phi in model.start() + 0.3 * RNG.standard_normal((3, model.n_theta)):
        with float64_scope():
            m, spread = v_given_theta(model.theta(jnp.asarray(phi)))
        v = m + np.linalg.cholesky(spread) @ RNG.standard_normal(12)
        value, _ = joint.evaluate(np.concatenate([phi, v]), X)
        expected = alone.evaluate(phi).log_density + multivariate_normal(m, spread).logpdf(v)
        assert value == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", OPTIMISED_U)
def test_an_optimised_u_equals_it_at_fixed_theta(method):
    posterior = fitted(method, RBF(lengthscale=0.7, scale=1.1), 0.3, steps=3_000)
    mean, variance, _ = marginals(posterior.model, JITTER, posterior.conditional, X_NEW)
    expected_mean, expected_variance = exact({"lengthscale": [0.7], "scale": 1.1, "noise": 0.3})
    np.testing.assert_allclose(mean[0], expected_mean, atol=1e-4)
    np.testing.assert_allclose(variance[0], expected_variance, atol=1e-4)
