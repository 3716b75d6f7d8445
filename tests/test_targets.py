import threading
from types import SimpleNamespace

import arviz
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
    StudentT,
    Uniform,
    Weibull,
    on_variance,
    targets,
)
from integrand.bounds.averaged import averaged_bound
from integrand.distributed.together import _number_of
from integrand.infer.metric import whitening_from_hessian
from integrand.infer.nuts import sample_nuts
from integrand.precision import float64_scope
from integrand.targets import CollapsedTarget, ExactTarget
from reference import LONG, naive_bound, naive_exact

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
    "StudentT": (StudentT(4.0, -0.1, 0.6), stats.t(4.0, -0.1, 0.6)),
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


@pytest.mark.parametrize("k", range(len(FAMILIES)), ids=list(FAMILIES))
def test_density_is_bound_plus_prior_plus_jacobian(k, case):
    """Each family once as the prior of a lengthscale, of a scale, and of a noise variance."""
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


@pytest.mark.parametrize("kind", ["collapsed", "exact"])
def test_compiled_gradients_are_those_of_the_compiled_density(kind, case):
    phi = 0.5 * case.rng.standard_normal(MODEL.n_theta)
    if kind == "exact":
        target = ExactTarget(MODEL, case.data)
        e, f = target.evaluate(phi), target.evaluate
        _, gp = constrained(MODEL, phi)
        assert e.log_likelihood == pytest.approx(float(naive_exact(gp, case.X, case.y)), rel=1e-10)
    else:
        target = CollapsedTarget(MODEL, case.data, JITTER)
        e, f = target.evaluate(phi, case.Z), lambda p: target.evaluate(p, case.Z)
        flat = differences(lambda z: target.evaluate(phi, z.reshape(4, 2)).log_density, case.Z.ravel())
        np.testing.assert_allclose(e.dZ.ravel(), flat, rtol=1e-6, atol=1e-6 * np.abs(flat).max())
    numeric = differences(lambda p: f(p).log_density, phi)
    np.testing.assert_allclose(e.gradient, numeric, rtol=1e-6, atol=1e-6 * np.abs(numeric).max())


def test_averaged_is_the_averaged_bound(case):
    phis = 0.5 * case.rng.standard_normal((5, MODEL.n_theta))
    target = CollapsedTarget(MODEL, case.data, JITTER)
    bounds, gradient = target.averaged(phis, case.Z)
    assert bounds.shape == (5,)
    with float64_scope():
        value, dZ = averaged_bound(lambda phi: MODEL.gp(MODEL.theta(phi)), phis, case.Z, case.data, JITTER)
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
    target.averaged(np.array([fine] * 7), case.Z)
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
    ExactTarget(MODEL, case.data).evaluate(phi)
    before = dict(targets.traces)
    other = Dataset.of(case.X[::-1].copy(), -case.y)
    same = Model(RBF(), ["a", "b"])
    CollapsedTarget(same, other, JITTER).evaluate(phi + 1.0, case.Z + 1.0)
    ExactTarget(same, other).evaluate(phi + 1.0)
    assert targets.traces == before
    CollapsedTarget(same, other, JITTER).evaluate(phi, case.Z[:3])
    ExactTarget(Model(RBF(ard=False), 2), other).evaluate(phi[:3])
    assert targets.traces == before | {k: before[k] + 1 for k in ("collapsed", "exact")}


def test_the_density_without_a_gradient_is_the_one_that_has_it(case):
    """Chains jump by the one and drift by the other: they must be of one posterior, Jacobian included."""
    sparse, exact = CollapsedTarget(MODEL, case.data, JITTER), ExactTarget(MODEL, case.data)
    for shift in (-0.7, 0.0, 0.9):
        phi = MODEL.start() + shift
        found = sparse.evaluate(phi, case.Z)
        assert sparse.log_densities(phi[None], case.Z) == pytest.approx(found.log_density, rel=1e-10)
        assert sparse.value(phi, case.Z) == pytest.approx(found.log_likelihood, rel=1e-10)
        assert exact.log_density(phi) == pytest.approx(exact.evaluate(phi).log_density, rel=1e-10)
    assert (sparse.counter.gradients, sparse.counter.values) == (3, 6)
    assert (exact.counter.gradients, exact.counter.values) == (3, 3)


@pytest.mark.parametrize("jumps", [False, True])
def test_what_is_prepared_need_not_be_traced_or_counted(case, jumps):
    target = CollapsedTarget(MODEL, case.data, Jitter(3e-7 if jumps else 4e-7))  # programs that no other test has
    before = dict(targets.traces)
    for compile_one in target.programs(len(case.Z), jumps):
        compile_one()
    prepared = before | {k: before[k] + 1 for k in ("collapsed", "factored each" if jumps else "factored")}
    assert targets.traces == prepared
    assert (target.counter.gradients, target.counter.values, target.counter.failures) == (0, 0, 0)
    assert np.isfinite(target.evaluate(MODEL.start(), case.Z).log_likelihood)
    factored = target.factored_again if jumps else target.factored
    assert np.isfinite(factored(MODEL.start(), case.Z).log_likelihood)
    assert targets.traces == prepared
    assert (target.counter.gradients, target.counter.values) == (1, 1)


@pytest.mark.parametrize("n", [1, 3, 8, 19])
def test_many_values_are_those_of_one_at_a_time(case, n):
    target = CollapsedTarget(MODEL, case.data, JITTER)
    phis = MODEL.start() + np.random.default_rng(n).normal(size=(n, MODEL.n_theta))
    phis[0, -1] = np.nan
    found = target.log_densities(phis, case.Z)
    assert np.isnan(found[0])
    np.testing.assert_allclose(found[1:], [target.evaluate(phi, case.Z).log_density for phi in phis[1:]], rtol=1e-10)
    # However many are asked for together, bit by bit: else draws would depend on how fast the machine is.
    np.testing.assert_array_equal(found, np.concatenate([target.log_densities(phi[None], case.Z) for phi in phis]))
    assert (target.counter.values, target.counter.failures) == (2 * n, 2)


def test_where_a_value_is_large_work_each_has_its_own_call(case, monkeypatch):
    target, phis = CollapsedTarget(MODEL, case.data, JITTER), MODEL.start() + np.arange(3.0)[:, None] / 4
    together = target.log_densities(phis, case.Z)
    monkeypatch.setattr("integrand.targets.collapsed.LARGE", 0.0)
    assert target.together(len(case.Z)) == 0
    np.testing.assert_allclose(target.log_densities(phis, case.Z), together, rtol=1e-10)
    assert target.counter.values == 6


def test_factored_again_is_factored(case):
    target = CollapsedTarget(MODEL, case.data, JITTER)
    one, again = (f(MODEL.start(), case.Z) for f in (target.factored, target.factored_again))
    # Processes that compute one bound together compare what the leader and the others see of it.
    assert _number_of(target._factored(MODEL.start(), case.Z)) == _number_of(one) != 0.0
    assert again.log_likelihood == pytest.approx(one.log_likelihood, rel=1e-12)
    np.testing.assert_allclose(again.m, one.m, rtol=1e-9)
    np.testing.assert_allclose(again.LB, one.LB, rtol=1e-9)


def test_one_call_computes_fewer_where_Z_is_large(case):
    target = CollapsedTarget(MODEL, case.data, JITTER)
    assert [target.together(m) for m in (10, 500, 1000, 1500)] == [8, 8, 2, 1]


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
    target, Z = one_hyperparameter.target, one_hyperparameter.Z

    def log_density(phi):
        e = target.evaluate(phi, Z)
        return e.log_density, e.gradient

    log_densities, _ = evaluations(one_hyperparameter, Z)
    optimum = one_hyperparameter.grid[[np.argmax(log_densities)]]
    whitening = whitening_from_hessian(lambda phi: log_density(phi)[1], optimum)
    chains = sample_nuts(log_density, np.tile(optimum + 0.01, (4, 1)), whitening, tune=80, draws=250, seed=[2]).chains
    gradients = np.array([[target.evaluate(phi, Z).dZ[:, 0] for phi in chain] for chain in chains.x])
    for m in range(len(Z)):
        draws = gradients[:, :, m]
        mcse = draws.std() / np.sqrt(float(arviz.ess(draws, method="mean")))
        assert abs(draws.mean() - averaged_gradient[m, 0]) < 4.0 * mcse
        assert mcse < 0.3 * np.abs(averaged_gradient).max()
    _, mean = target.averaged(chains.x.reshape(-1, 1), Z)
    np.testing.assert_allclose(mean[:, 0], gradients.mean(axis=(0, 1)), rtol=1e-9, atol=1e-9)
