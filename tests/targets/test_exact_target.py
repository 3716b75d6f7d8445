"""The exact density log p(θ) + log p(y | θ) over φ."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from integrand import RBF, Dataset, Model, targets
from integrand.precision import float64_scope
from integrand.targets import ExactTarget
from reference import naive_exact

MODEL = Model(RBF(), 2)


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(12)
    X = rng.standard_normal((14, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(14)
    return SimpleNamespace(X=X, y=y, data=Dataset.of(X, y), phi=MODEL.start() + 0.5 * rng.standard_normal(4))


def test_the_likelihood_is_that_of_the_naive_formula(case):
    with float64_scope():
        gp = MODEL.gp(MODEL.theta(jnp.asarray(case.phi)))
    e = ExactTarget(MODEL, case.data).evaluate(case.phi)
    assert e.log_likelihood == pytest.approx(float(naive_exact(gp, case.X, case.y)), rel=1e-10)
    with float64_scope():
        assert e.log_prior == pytest.approx(float(MODEL.log_prior(jnp.asarray(case.phi))), rel=1e-12)


def test_the_compiled_gradient_is_that_of_the_compiled_density(case):
    target = ExactTarget(MODEL, case.data)
    value, gradient = target.value_and_gradient(case.phi)
    steps = 1e-5 * np.eye(4)
    numeric = np.array([(target.values((case.phi + d)[None]) - target.values((case.phi - d)[None]))[0] for d in steps])
    np.testing.assert_allclose(gradient, numeric / 2e-5, rtol=1e-6, atol=1e-6 * np.abs(gradient).max())
    assert value == target.evaluate(case.phi).log_density


@pytest.mark.slow
def test_the_density_without_a_gradient_is_the_one_that_has_it(case):
    target = ExactTarget(MODEL, case.data)
    phis = MODEL.start() + np.array([[-0.7], [0.0], [0.9]])
    np.testing.assert_allclose(target.values(phis), [target.value_and_gradient(phi)[0] for phi in phis], rtol=1e-10)
    assert (target.counter.gradients, target.counter.values, target.counter.failures) == (3, 3, 0)
    density = target.traced()
    with float64_scope():
        parts = [float(f(jnp.asarray(phis[0]), density.data)) for f in (density.log_prior, density.log_likelihood)]
    assert sum(parts) == pytest.approx(target.values(phis[:1])[0], rel=1e-10)
    assert (target.n_theta, target.dimension) == (4, 4)
    assert target.fast_values


def test_what_cannot_be_factored_is_counted(case):
    target = ExactTarget(MODEL, Dataset.of(np.ones((14, 2)), case.y))
    bad = np.append(MODEL.start()[:-1], -500.0)  # noise of e⁻⁵⁰⁰ on equal rows
    assert not np.isfinite(target.value_and_gradient(bad)[0])
    assert not np.isfinite(target.values(bad[None])[0])
    assert (target.counter.gradients, target.counter.values, target.counter.failures) == (1, 1, 2)


def test_other_data_of_the_same_shape_trace_nothing(case):
    ExactTarget(MODEL, case.data).evaluate(case.phi)
    before = dict(targets.trace_counts)
    other = Dataset.of(case.X[::-1].copy(), -case.y)
    ExactTarget(Model(RBF(), ["a", "b"]), other).evaluate(case.phi + 1.0)
    assert targets.trace_counts == before
    ExactTarget(Model(RBF(ard=False), 2), other).evaluate(case.phi[:3])
    assert targets.trace_counts == before | {"exact": before["exact"] + 1}


def test_where_a_factorisation_is_large_work_evaluations_run_one_at_a_time(case, monkeypatch):
    target = ExactTarget(MODEL, case.data)
    assert target.threads == 1
    monkeypatch.setattr("integrand.targets.exact.LARGE", 0.0)
    large = ExactTarget(MODEL, case.data)
    assert (large.threads, large.parallel) == (0, 1)
    assert large.values(case.phi[None]) == pytest.approx(target.values(case.phi[None]), rel=1e-10)
