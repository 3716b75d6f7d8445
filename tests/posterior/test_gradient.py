"""Gradients of f: against differences of predictions, against draws of functions, and in closed form."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import integrand as ig
from integrand import (
    RBF,
    Constant,
    InputError,
    Jitter,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    RationalQuadratic,
)
from integrand.data.dataset import Dataset
from integrand.data.scaling import Standardiser
from integrand.kernels.registry import registered_kernels
from integrand.kernels.stationary import StationaryKernel
from integrand.model import Model
from integrand.posterior.conditional import VariationalConditional, exact_conditional, joints, sparse_conditional
from integrand.posterior.gradient import _refuse_kinks, predictive_gradient
from integrand.targets import CollapsedTarget

rng = np.random.default_rng(4)
X = rng.uniform(-2.0, 2.0, (30, 2)) * [1.0, 10.0]
Y = 5.0 + 2.0 * np.sin(X[:, 0]) + 0.05 * X[:, 1] + 0.2 * rng.standard_normal(30)
NEW = rng.uniform(-1.5, 1.5, (4, 2)) * [1.0, 10.0]
SCALER = Standardiser.fit(X, Y)
KERNELS = {
    "rbf": RBF(),
    "matern32": Matern32(),
    "matern52": Matern52(ard=False),
    "rq": RationalQuadratic(),
    "periodic": Periodic(active=0) + Linear(active=1),
    "product": RBF(active=0) * Polynomial() + Constant(),
}
# Terms add up: two kinds in one. The slow suite has each by itself.
KERNELS["two"] = KERNELS["matern32"] + KERNELS["periodic"]


def made(kernel, exact, J=2):
    """Model, conditional and gradient, without a fit."""
    model = Model(kernel, 2, noise=0.3).for_data(SCALER)
    phis = model.start() + 0.2 * np.random.default_rng(0).standard_normal((J, model.n_theta))
    data = Dataset.of(SCALER.transform_X(X), SCALER.transform_y(Y))
    if exact:
        conditional = exact_conditional(model, phis, data)
    else:
        conditional = sparse_conditional(
            phis, SCALER.transform_X(X[:12]), CollapsedTarget(model, data).inducing_posterior
        )
    return model, conditional


def gradient(model, conditional, new=NEW):
    return predictive_gradient(model, Jitter(), SCALER, conditional, SCALER.transform_X(new))


@pytest.mark.parametrize(
    ("name", "exact"),
    [("two", False), ("product", True)]
    + [pytest.param(name, exact, marks=pytest.mark.slow) for name in KERNELS for exact in (False, True)],
)
def test_mean_and_variance_are_those_of_difference_quotients(name, exact):
    """The variance of a difference quotient of f tends to that of its derivative, for Matern32 in proportion to h."""
    model, conditional = made(KERNELS[name], exact)
    found, h = gradient(model, conditional), 1e-4
    for d in range(2):
        step = np.zeros(2)
        step[d] = h * SCALER.x_sd[d]
        pairs = np.concatenate([NEW + step, NEW - step])
        mean, covariance, _ = joints(model, Jitter(), conditional, SCALER.transform_X(pairs))
        unit = SCALER.y_sd / (2.0 * step[d])
        quotient = (mean[:, :4] - mean[:, 4:]) * unit
        scale = np.abs(found.means[:, :, d]).max() + 1e-3
        np.testing.assert_allclose(found.means[:, :, d], quotient, atol=1e-4 * scale)
        own = np.diagonal(covariance, axis1=1, axis2=2)
        variance = own[:, :4] + own[:, 4:] - 2.0 * np.diagonal(covariance[:, :4, 4:], axis1=1, axis2=2)
        # Rounding of f, 1e-16, is divided by h² = 1e-8.
        np.testing.assert_allclose(
            found.variances[:, :, d], variance * unit**2, rtol=5e-3, atol=1e-6 * unit**2 * h**2 * 1e2
        )


def test_an_rbf_in_closed_form():
    """With few rows far away the prior is left: variance scale² / lengthscale², in the units of the data."""
    model, conditional = made(RBF(lengthscale=ig.standardised((0.7, 1.3)), scale=ig.standardised(1.5)), True)
    far = gradient(model, conditional, np.full((1, 2), 1e3))
    np.testing.assert_allclose(far.means, 0.0, atol=1e-12)
    wanted = 1.5 / np.array([0.7, 1.3]) * SCALER.y_sd / SCALER.x_sd
    np.testing.assert_allclose(far.sd[0], wanted, rtol=1e-9)
    # At the rows: ∂K*/∂x = -(x - x') K* / lengthscale².
    x, rows, ls = SCALER.transform_X(NEW), conditional.inputs, np.array([0.7, 1.3])
    K = 2.25 * np.exp(-0.5 * (((x[:, None] - rows) / ls) ** 2).sum(axis=2))
    for d in range(2):
        dK = -(x[:, None, d] - rows[None, :, d]) / ls[d] ** 2 * K
        unit = SCALER.y_sd / SCALER.x_sd[d]
        found = gradient(model, conditional)
        np.testing.assert_allclose(found.means[0, :, d], dK @ conditional.weights[0] * unit, rtol=1e-9)
        L = conditional.factors[0]
        variance = 2.25 / ls[d] ** 2 - np.sum(np.linalg.solve(L, dK.T) ** 2, axis=0)
        np.testing.assert_allclose(found.variances[0, :, d], variance * unit**2, rtol=1e-7)


@pytest.mark.slow
def test_draws_of_functions_have_these_slopes():
    model, conditional = made(Matern52(), False)
    conditional = conditional.subset(slice(0, 1))
    found, h = gradient(model, conditional), 1e-2
    step = np.array([h * SCALER.x_sd[0], 0.0])
    pairs = np.concatenate([NEW + step, NEW - step])
    mean, covariance, _ = joints(model, Jitter(), conditional, SCALER.transform_X(pairs))
    drawn = np.random.default_rng(0).multivariate_normal(mean[0], covariance[0], 20_000, method="eigh") * SCALER.y_sd
    slopes = (drawn[:, :4] - drawn[:, 4:]) / (2.0 * step[0])
    np.testing.assert_allclose(slopes.mean(axis=0), found.mean[:, 0], atol=0.05 * found.sd[:, 0].max())
    np.testing.assert_allclose(slopes.std(axis=0), found.sd[:, 0], rtol=0.05)


@pytest.mark.slow
def test_the_mixture_has_means_quantiles_and_intervals():
    model, conditional = made(RBF(), False)
    found = gradient(model, conditional)
    np.testing.assert_allclose(found.mean, found.means.mean(axis=0))
    np.testing.assert_allclose(found.sd**2, found.variances.mean(axis=0) + found.means.var(axis=0))
    low, high = found.interval(0.9)
    both = found.quantile(np.array([0.05, 0.95]))
    assert both.shape == (2, 4, 2)
    np.testing.assert_array_equal(both, [low, high])
    assert found.quantile(0.5).shape == (4, 2)
    assert np.all((low < found.mean) & (found.mean < high))
    assert "4 rows, 2 columns, 2 draws" in repr(found)
    # Drawn u (no factor) leaves what A leaves.
    drawn = VariationalConditional(conditional.phis, conditional.inputs, conditional.weights, np.zeros((2, 0, 0)))
    assert np.all(gradient(model, drawn).variances < found.variances)


def test_posterior_and_estimator(monkeypatch):
    gp = ig.SparseGPRegressor(n_inducing=10, method="ml2", steps=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ig.ConvergenceWarning)
        gp.fit(X, Y)
    found = gp.posterior_.predict_gradient(NEW)
    mean, sd, quantiles = gp.predict_gradient(NEW, return_std=True, quantiles=[0.1, 0.5, 0.9])
    np.testing.assert_array_equal(mean, found.mean)
    np.testing.assert_array_equal(sd, found.sd)
    assert quantiles.shape == (4, 2, 3)
    np.testing.assert_array_equal(gp.predict_gradient(NEW), mean)
    h = 1e-4
    step = np.array([0.0, h])
    quotient = (gp.predict(NEW + step) - gp.predict(NEW - step)) / (2.0 * h)
    np.testing.assert_allclose(mean[:, 1], quotient, atol=1e-6)
    with pytest.raises(InputError, match="X has 1 columns"):
        gp.posterior_.predict_gradient(NEW[:, :1])
    monkeypatch.setattr("integrand.posterior.gradient._MOST_BYTES", 16 * 2 * 3)
    with pytest.raises(InputError, match="at most 3 rows at a time"):
        gp.predict_gradient(NEW)


class Rough(StationaryKernel):
    """exp(-r^1.5), whose functions have no derivative, although they are smoother than those of Matern12."""

    def covariance(self, e):
        return self.scale**2 * jnp.exp(-((-2.0 * e) ** 0.75))


def test_only_kernels_without_a_gradient_are_refused():
    stationary = [kind for kind in registered_kernels().values() if issubclass(kind, StationaryKernel)]
    kinds = [kind for kind in stationary if kind.__module__ == StationaryKernel.__module__]
    assert Matern12 in kinds
    for kind in kinds:
        model = Model(kind(), 2).for_data(SCALER)
        for phi in model.start() + 3.0 * np.random.default_rng(5).standard_normal((4, model.n_theta)):
            if kind is Matern12:
                with pytest.raises(InputError, match="no gradient"):
                    _refuse_kinks(model, phi)
            else:
                _refuse_kinks(model, phi)
    rough = Model(Rough(), 2).for_data(SCALER)
    with pytest.raises(InputError, match="Rough kernel have no gradient"):
        _refuse_kinks(rough, rough.start())


def test_functions_with_kinks_have_no_gradient():
    model, conditional = made(RBF(active=0) + Matern12(active=1), True)
    with pytest.raises(InputError, match="Matern12 kernel have no gradient: fit with Matern32"):
        gradient(model, conditional)
