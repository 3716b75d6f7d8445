"""The density that Algorithm 1 samples, log p(θ) + L(θ, Z) over φ: value, gradient, counts and programs."""

import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from integrand import (
    RBF,
    Beta,
    Dataset,
    Exponential,
    Gamma,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    Jitter,
    LogNormal,
    Model,
    Normal,
    StudentTPrior,
    Uniform,
    Weibull,
    collapsed_bound,
    on_variance,
    targets,
)
from integrand.data.processes import _number_of
from integrand.infer.base import Plan, keep_going
from integrand.infer.coordinates import coordinates_from_hessian
from integrand.infer.nuts import NUTS
from integrand.precision import float64_scope
from integrand.targets import CollapsedTarget
from known_posteriors import assert_mean
from reference import LONG, naive_bound

# Every family over positive numbers: ours, SciPy's, and the ends of its support.
FAMILIES = {
    "Gamma": (Gamma(2.0, 1.5), stats.gamma(2.0, scale=1 / 1.5), (0.0, np.inf)),
    "InverseGamma": (InverseGamma(3.0, 2.0), stats.invgamma(3.0, scale=2.0), (0.0, np.inf)),
    "HalfCauchy": (HalfCauchy(1.3), stats.halfcauchy(scale=1.3), (0.0, np.inf)),
    "HalfNormal": (HalfNormal(1.7), stats.halfnorm(scale=1.7), (0.0, np.inf)),
    "LogNormal": (LogNormal(0.3, 0.8), stats.lognorm(0.8, scale=np.exp(0.3)), (0.0, np.inf)),
    "Exponential": (Exponential(0.7), stats.expon(scale=1 / 0.7), (0.0, np.inf)),
    "Weibull": (Weibull(1.4, 1.8), stats.weibull_min(1.8, scale=1.4), (0.0, np.inf)),
    "Uniform": (Uniform(0.2, 3.0), stats.uniform(0.2, 2.8), (0.2, 3.0)),
    "Beta": (Beta(2.0, 3.0), stats.beta(2.0, 3.0), (0.0, 1.0)),
}
MEANS = {
    "Normal": (Normal(0.2, 0.7), stats.norm(0.2, 0.7)),
    "StudentT": (StudentTPrior(4.0, -0.1, 0.6), stats.t(4.0, -0.1, 0.6)),
}
JITTER = Jitter(1e-7)


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(12)
    X = rng.standard_normal((14, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(14)
    return SimpleNamespace(X=X, y=y, Z=X[:4] + 0.1, data=Dataset.of(X, y), rng=np.random.default_rng(5))


def constrained(model, phi):
    with float64_scope():
        theta = model.theta(jnp.asarray(phi))
        return {k: np.asarray(v) for k, v in theta.items()}, model.gp(theta)


def log_prior_of(frozen, support, squared, theta):
    """Log density of φ from SciPy's of x, with |dx/dφ| of the exponential or logistic map onto the support."""
    x = theta**2 if squared else theta
    low, high = support
    slope = x - low if np.isinf(high) else (x - low) * (high - x) / (high - low)
    return np.sum(frozen.logpdf(x) + np.log(slope))


def differences(function, phi, step=1e-5):
    eye = step * np.eye(len(phi))
    return np.array([(function(phi + d) - function(phi - d)) / (2 * step) for d in eye])


# --- the density that is sampled


@pytest.mark.parametrize(
    "k",
    [pytest.param(k, marks=pytest.mark.slow if k % 3 else (), id=name) for k, name in enumerate(FAMILIES)],
)
def test_density_is_bound_plus_prior_plus_jacobian(k, case):
    """Each family once, and in the slow suite in each place: of a lengthscale, of a scale, of a noise variance."""
    names = list(FAMILIES)
    priors = {slot: FAMILIES[names[(k + i) % len(names)]] for i, slot in enumerate(("lengthscale", "scale", "noise"))}
    mean, frozen_mean = MEANS[list(MEANS)[k % 2]]
    kernel = RBF(lengthscale=priors["lengthscale"][0], scale=priors["scale"][0], ard=k % 2 == 0)
    model = Model(kernel, 2, noise=on_variance(priors["noise"][0]), mean=mean)
    target = CollapsedTarget(model, case.data, JITTER)
    for phi in 0.7 * case.rng.standard_normal((3, model.n_theta)):
        theta, gp = constrained(model, phi)
        log_prior = frozen_mean.logpdf(theta["mean"]) + sum(
            log_prior_of(frozen, support, slot == "noise", theta[slot]) for slot, (_, frozen, support) in priors.items()
        )
        e, bound = target.evaluate(phi, case.Z), naive_bound(gp, case.Z, case.X, case.y, JITTER)
        assert e.log_likelihood == pytest.approx(float(bound), rel=1e-10)
        assert e.log_prior == pytest.approx(log_prior, rel=1e-10, abs=1e-10)
        assert e.log_density == pytest.approx(float(bound + LONG(log_prior)), rel=1e-10, abs=1e-10)

    # The gradient that the sampler gets is that of the density.
    numeric = differences(lambda p: target.evaluate(p, case.Z).log_density, phi)
    np.testing.assert_allclose(e.gradient, numeric, rtol=1e-6, atol=1e-6 * np.abs(numeric).max())


MODEL = Model(RBF(), 2)


def test_the_compiled_gradient_in_Z_is_that_of_the_compiled_density(case):
    phi = 0.5 * case.rng.standard_normal(MODEL.n_theta)
    target = CollapsedTarget(MODEL, case.data, JITTER)
    flat = differences(lambda z: target.evaluate(phi, z.reshape(4, 2)).log_density, case.Z.ravel())
    dZ = target.evaluate(phi, case.Z).dZ
    np.testing.assert_allclose(dZ.ravel(), flat, rtol=1e-6, atol=1e-6 * np.abs(flat).max())


@pytest.mark.slow
def test_the_mean_bound_is_the_mean_of_the_bounds(case):
    phis = 0.5 * case.rng.standard_normal((5, MODEL.n_theta))
    target = CollapsedTarget(MODEL, case.data, JITTER)
    bounds, gradient = target.mean_bound(phis, case.Z)
    assert bounds.shape == (5,)

    def mean_of_bounds(Z):
        bounds = [collapsed_bound(MODEL.gp(MODEL.theta(phi)), Z, case.data, JITTER) for phi in jnp.asarray(phis)]
        return sum(bounds) / len(bounds)

    with float64_scope():
        value, dZ = jax.jit(jax.value_and_grad(mean_of_bounds))(jnp.asarray(case.Z))
    assert bounds.mean() == pytest.approx(float(value), rel=1e-12)
    np.testing.assert_allclose(gradient, dZ, rtol=1e-9, atol=1e-9)
    assert [target.evaluate(phi, case.Z).log_likelihood for phi in phis] == list(bounds)


def test_counts(case):
    target = CollapsedTarget(MODEL, case.data, JITTER)
    fine = MODEL.start()
    assert np.isfinite(target.evaluate(fine, case.Z).log_density)
    assert (target.counter.gradients, target.counter.failures) == (1, 0)
    bad = target.evaluate(np.append(fine[:-1], -500.0), case.Z)  # noise of e⁻⁵⁰⁰
    assert bad.log_likelihood == -np.inf
    assert np.all(np.isfinite(bad.gradient))
    assert (target.counter.gradients, target.counter.failures) == (2, 1)
    target.mean_bound(np.array([fine] * 7), case.Z)
    assert (target.counter.gradients, target.counter.failures) == (9, 1)


def test_counts_of_many_threads(case):
    target = CollapsedTarget(MODEL, case.data, JITTER)
    target.evaluate(MODEL.start(), case.Z)
    values = []

    def work():
        for _ in range(25):
            e = target.evaluate(MODEL.start(), case.Z)
            values.append((e.log_density, e.gradient.dtype))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert target.counter.gradients == 201
    assert set(values) == {(target.evaluate(MODEL.start(), case.Z).log_density, np.dtype("float64"))}
    assert not jax.config.jax_enable_x64


# --- compiled once


def test_other_data_of_the_same_shape_trace_nothing(case):
    phi = MODEL.start()
    CollapsedTarget(MODEL, case.data, JITTER).evaluate(phi, case.Z)
    before = dict(targets.trace_counts)
    other = Dataset.of(case.X[::-1].copy(), -case.y)
    same = Model(RBF(), ["a", "b"])
    CollapsedTarget(same, other, JITTER).evaluate(phi + 1.0, case.Z + 1.0)
    assert targets.trace_counts == before
    CollapsedTarget(same, other, JITTER).evaluate(phi, case.Z[:3])
    assert targets.trace_counts == before | {"collapsed": before["collapsed"] + 1}


# --- values without gradients


@pytest.mark.slow
def test_the_density_without_a_gradient_is_the_one_that_has_it(case):
    """Chains propose by the one and take HMC transitions by the other: they must be of one posterior."""
    target = CollapsedTarget(MODEL, case.data, JITTER)
    for shift in (-0.7, 0.0, 0.9):
        phi = MODEL.start() + shift
        e = target.evaluate(phi, case.Z)
        assert target.values(phi[None], case.Z) == pytest.approx(e.log_density, rel=1e-10)
        assert target.value(phi, case.Z) == pytest.approx(e.log_likelihood, rel=1e-10)
        assert target.log_prior(phi) == pytest.approx(e.log_prior, rel=1e-10)
    assert (target.counter.gradients, target.counter.values) == (3, 6)


@pytest.mark.slow
def test_at_a_fixed_Z_it_is_the_target_of_samplers(case):
    bound = CollapsedTarget(MODEL, case.data, JITTER)
    target, phi = bound.at(case.Z), MODEL.start() + 0.2
    e = bound.evaluate(phi, case.Z)
    value, gradient = target.value_and_gradient(phi)
    assert value == e.log_density
    np.testing.assert_array_equal(gradient, e.gradient)
    np.testing.assert_array_equal(target.values(phi[None]), bound.values(phi[None], case.Z))
    density = target.traced()
    with float64_scope():
        parts = [float(f(jnp.asarray(phi), density.data)) for f in (density.log_prior, density.log_likelihood)]
    np.testing.assert_allclose(parts, [e.log_prior, e.log_likelihood], rtol=1e-10)
    assert (target.n_theta, target.dimension, target.parallel) == (4, 4, bound.parallel(4))
    assert target.fast_values
    assert target.counter is bound.counter


@pytest.mark.parametrize("n", [1, 3, 8, 19])
def test_many_values_are_those_of_one_at_a_time(case, n):
    target = CollapsedTarget(MODEL, case.data, JITTER)
    phis = MODEL.start() + np.random.default_rng(n).normal(size=(n, MODEL.n_theta))
    phis[0, -1] = np.nan
    found = target.values(phis, case.Z)
    assert np.isnan(found[0])
    np.testing.assert_allclose(found[1:], [target.evaluate(phi, case.Z).log_density for phi in phis[1:]], rtol=1e-10)
    # However many are asked for together, bit by bit: else draws would depend on how fast the machine is.
    np.testing.assert_array_equal(found, np.concatenate([target.values(phi[None], case.Z) for phi in phis]))
    assert (target.counter.values, target.counter.failures) == (2 * n, 2)


def test_where_a_value_is_large_work_each_has_its_own_call(case, monkeypatch):
    target, phis = CollapsedTarget(MODEL, case.data, JITTER), MODEL.start() + np.arange(3.0)[:, None] / 4
    batched = target.values(phis, case.Z)
    monkeypatch.setattr("integrand.targets.collapsed.LARGE", 0.0)
    assert target.batch_size(len(case.Z)) == 0
    np.testing.assert_allclose(target.values(phis, case.Z), batched, rtol=1e-10)
    assert target.counter.values == 6


def test_the_posterior_of_u_is_the_same_by_either_program(case):
    """Once several values are computed by one call, its program gives q*(u) too."""
    target = CollapsedTarget(MODEL, case.data, JITTER)
    one = target.inducing_posterior(MODEL.start(), case.Z)
    # Processes that compute one bound together compare what the leader and the others see of it.
    assert _number_of(target._factored(MODEL.start(), case.Z)) == _number_of(one) != 0.0
    target.values(MODEL.start()[None], case.Z)
    before = dict(targets.trace_counts)
    again = target.inducing_posterior(MODEL.start(), case.Z)
    assert targets.trace_counts == before
    assert again.log_likelihood == pytest.approx(one.log_likelihood, rel=1e-12)
    np.testing.assert_allclose(again.m, one.m, rtol=1e-9)
    np.testing.assert_allclose(again.LB, one.LB, rtol=1e-9)
    assert (target.counter.gradients, target.counter.values) == (0, 4)


def test_one_call_computes_fewer_where_Z_is_large(case):
    target = CollapsedTarget(MODEL, case.data, JITTER)
    assert [target.batch_size(m) for m in (10, 500, 1000, 1500)] == [8, 8, 2, 1]


# --- the paper's gradient identity: ∂ log C_Z / ∂Z is the average of ∂L/∂Z over q*(θ)


@pytest.fixture(scope="module")
def one_hyperparameter():
    rng = np.random.default_rng(3)
    X = np.sort(rng.uniform(-2.0, 2.0, (15, 1)), axis=0)
    y = np.sin(2.5 * X[:, 0]) + 0.3 * rng.standard_normal(15)
    model = Model(RBF(lengthscale=Gamma(2.0, 1.0), scale=1.0), 1, noise=0.3)
    target = CollapsedTarget(model, Dataset.of(X, y), Jitter(1e-8))
    Z = np.array([[-1.6], [-0.5], [0.4], [1.5]])
    grid = np.linspace(-4.0, 3.5, 301)
    return SimpleNamespace(target=target, Z=Z, grid=grid)


def evaluations(problem, Z):
    found = [problem.target.evaluate(np.array([phi]), Z) for phi in problem.grid]
    log_density = np.array([e.log_density for e in found])
    return log_density, np.array([e.dZ for e in found])


def log_evidence(problem, Z):
    """log C_Z = log ∫ p(φ) exp L(θ(φ), Z) dφ by the trapezoidal rule; the density vanishes at both ends."""
    log_density, _ = evaluations(problem, Z)
    top = log_density.max()
    assert max(log_density[0], log_density[-1]) < top - 20.0
    return top + np.log(np.sum(np.exp(log_density - top)) * (problem.grid[1] - problem.grid[0]))


@pytest.fixture(scope="module")
def averaged_gradient(one_hyperparameter):
    log_density, dZ = evaluations(one_hyperparameter, one_hyperparameter.Z)
    weights = np.exp(log_density - log_density.max())
    return np.einsum("g,gmd->md", weights / weights.sum(), dZ)


def test_gradient_identity_by_quadrature(one_hyperparameter, averaged_gradient):
    Z, step = one_hyperparameter.Z, 1e-3
    for m in range(len(Z)):
        shifted = np.zeros_like(Z)
        shifted[m] = 1.0

        def slope(h, shifted=shifted):
            up, down = (log_evidence(one_hyperparameter, Z + sign * h * shifted) for sign in (1, -1))
            return (up - down) / (2 * h)

        # Richardson: the error is of fourth order in the step.
        derivative = (4.0 * slope(step) - slope(2.0 * step)) / 3.0
        assert averaged_gradient[m, 0] == pytest.approx(derivative, rel=1e-6, abs=1e-6)


def test_gradient_identity_by_draws(one_hyperparameter, averaged_gradient):
    bound, Z = one_hyperparameter.target, one_hyperparameter.Z
    target = bound.at(Z)
    log_density, _ = evaluations(one_hyperparameter, Z)
    optimum = one_hyperparameter.grid[[np.argmax(log_density)]]
    coordinates = coordinates_from_hessian(lambda phi: target.value_and_gradient(phi)[1], optimum)
    plan = Plan(warmup=80, draws=250, seed=(2,))
    chains = NUTS().run(target, np.tile(optimum + 0.01, (4, 1)), coordinates, plan, keep_going).chains
    gradients = np.array([[bound.evaluate(phi, Z).dZ[:, 0] for phi in chain] for chain in chains.x])
    for m in range(len(Z)):
        error = assert_mean(gradients[:, :, m], averaged_gradient[m, 0])
        assert error < 0.3 * np.abs(averaged_gradient).max()
    _, mean = bound.mean_bound(chains.x.reshape(-1, 1), Z)
    np.testing.assert_allclose(mean[:, 0], gradients.mean(axis=(0, 1)), rtol=1e-9, atol=1e-9)
