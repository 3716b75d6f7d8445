import jax.numpy as jnp
import numpy as np
import pytest

import integrand
from integrand import RBF, Dataset, Gamma, InputError, Jitter, Model, on_variance
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows
from integrand.methods import paper_schedule
from integrand.targets import CollapsedTarget, ExactTarget, likelihood, penalised

SPARSE, EXACT = ("ml2", "map"), ("gpr-ml2", "gpr-map")
N, M = 40, 8


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (N, 2))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.standard_normal(N)


def fit(data, method, **settings):
    return integrand.fit(*data, method=method, **({"n_inducing": M} | settings))


def standardised(posterior, data):
    return Dataset.of(posterior.scaler.transform_X(data[0]), posterior.scaler.transform_y(data[1]))


def objective(posterior, data, phi):
    """What the method maximises, at φ and the Z that it found."""
    model, rows = posterior.model, standardised(posterior, data)
    if posterior.method in EXACT:
        e = ExactTarget(model, rows).evaluate(phi)
    else:
        e = CollapsedTarget(model, rows, posterior.jitter).evaluate(phi, posterior.Z_path[-1])
    return (penalised if posterior.method.endswith("map") else likelihood)(e)


@pytest.mark.parametrize("method", [*SPARSE, *EXACT])
def test_an_optimum_of_the_right_function(method, data):
    posterior = fit(data, method)
    assert posterior.method == method
    assert posterior.verdict is not None
    assert posterior.verdict.ok
    assert not posterior.verdict.sampled
    value, gradient = objective(posterior, data, posterior.optimum)
    start, _ = objective(posterior, data, posterior.model.start())
    assert value > start + 5.0
    assert np.abs(gradient).max() < 0.05
    assert posterior.history[-1].bound == pytest.approx(value, rel=1e-9)
    assert np.all(np.diff([point.bound for point in posterior.history]) >= 0)
    assert posterior.counts["gradients"] >= len(posterior.history) > 3
    assert posterior.chains.x.shape == (1, 1, posterior.model.n_theta)
    np.testing.assert_array_equal(posterior.chains.x[0, 0], posterior.optimum)
    assert posterior.chains.log_density[0, 0] == pytest.approx(value, rel=1e-9)
    # Nearby points are no better.
    for step in 0.05 * np.random.default_rng(1).standard_normal((5, len(gradient))):
        assert objective(posterior, data, posterior.optimum + step)[0] < value + 1e-6


@pytest.mark.parametrize("method", [*SPARSE, *EXACT])
def test_predictions_follow_the_data(method, data):
    X, y = data
    p = fit(data, method).predict(X, include_noise=True)
    assert np.sqrt(np.mean((p.mean - y) ** 2)) < 0.3
    lower, upper = p.interval(0.95)
    assert 0.85 <= np.mean((lower < y) & (y < upper)) <= 1.0


def test_the_prior_makes_the_difference_between_ml2_and_map(data):
    ml2, map_ = fit(data, "ml2"), fit(data, "map")
    assert objective(ml2, data, ml2.optimum)[0] >= objective(ml2, data, map_.optimum)[0] - 1e-3
    assert np.abs(ml2.optimum - map_.optimum).max() > 0.01


@pytest.mark.slow
def test_every_row_inducing_gives_the_exact_objective(data):
    posterior = fit(data, "gpr-map")
    rows = standardised(posterior, data)
    X = np.asarray(rows.arrays()[0])
    model = Model(RBF(), 2)
    sparse = CollapsedTarget(model, rows, Jitter(0.0, 1e-12)).evaluate(posterior.optimum, X)
    exact = ExactTarget(model, rows).evaluate(posterior.optimum)
    assert sparse.log_likelihood == pytest.approx(exact.log_likelihood, abs=1e-6)
    np.testing.assert_allclose(sparse.d_likelihood, exact.d_likelihood, atol=1e-4)
    # And few inducing points give less: it is a lower bound.
    few = CollapsedTarget(model, rows, Jitter()).evaluate(posterior.optimum, X[:M])
    assert few.log_likelihood < exact.log_likelihood


@pytest.mark.parametrize("method", ["ml2", pytest.param("gpr-ml2", marks=pytest.mark.slow)])
def test_several_starts_are_never_worse(method, data):
    one, three = fit(data, method), fit(data, method, restarts=3)
    assert three.history[-1].bound >= one.history[-1].bound - 1e-9
    assert three.counts["gradients"] > one.counts["gradients"]
    again = fit(data, method, restarts=3)
    np.testing.assert_array_equal(again.optimum, three.optimum)


@pytest.mark.parametrize("method", ["map", pytest.param("gpr-map", marks=pytest.mark.slow)])
def test_adam(method, data):
    lbfgs = fit(data, method)
    adam = fit(data, method, optimiser="adam", steps=600)
    assert adam.history[-1].bound > lbfgs.history[0].bound + 5.0
    assert adam.history[-1].bound == pytest.approx(lbfgs.history[-1].bound, abs=3.0)
    assert adam.counts["gradients"] >= 600
    assert any("Adam" in note.title() for note in adam.notes)


def test_inducing_inputs_that_are_given_are_where_it_starts(data):
    Z = data[0][:M]
    posterior = fit(data, "ml2", Z=Z, steps=1)
    assert posterior.Z.shape == (M, 2)
    assert np.abs(posterior.Z - Z).max() < 1.5
    assert "Z started from given." in posterior.notes
    moved = fit(data, "ml2", Z=Z)
    assert np.abs(moved.Z - Z).max() > 1e-3


@pytest.mark.parametrize("method", ["gpr-ml2", "gpr-map", "gpr-hmc", "gpr-vi"])
def test_too_many_rows_for_an_exact_gp(data, method):
    with pytest.raises(InputError, match=r"40 rows.*use a sparse method.*raise max_exact_rows"):
        fit(data, method, max_exact_rows=N - 1)


def hard(name):
    rng = np.random.default_rng(2)
    X = rng.standard_normal((N, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(N)
    return {
        "constant y": (X, np.full(N, 3.0)),
        "constant column": (np.column_stack([X[:, 0], np.full(N, 7.0)]), y),
        "two rows": (X[:2], y[:2]),
        "repeated rows": (np.repeat(X[:20], 2, axis=0), y),
        "all rows equal": (np.ones((N, 2)), y),
    }[name]


# The tests of bad input through the estimator have more of these, of one shape.
HARD = ("two rows", "constant y", "constant column", "repeated rows", "all rows equal")


@pytest.mark.parametrize("method", ["map", "gpr-map"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in HARD])
def test_hard_data_have_finite_predictions(method, name):
    X, y = hard(name)
    posterior = integrand.fit(X, y, method=method, n_inducing=100, steps=100)  # more than there are rows
    assert method == "gpr-map" or len(posterior.Z) <= len(np.unique(X, axis=0))
    p = posterior.predict(np.vstack([X[:3], X[:3] + 0.5]), include_noise=True)
    for values in (p.mean, p.variance, p.quantile(0.9)):
        assert np.all(np.isfinite(values))
    assert np.all(p.variance > 0)
    if name == "constant y":
        np.testing.assert_allclose(p.mean, 3.0, atol=1e-3)


def test_a_scaler_of_ones_is_obeyed(data):
    posterior = fit((ArrayRows(*data, scaler=Standardiser.identity(2)),), "map", steps=5)
    np.testing.assert_array_equal(posterior.scaler.x_sd, 1.0)


def test_the_papers_coordinates_start_where_its_runs_did():
    """GPyTorch's raw parameters at 0: lengthscales and variances of log 2, the noise a little above."""
    model = Model(RBF(), 2)
    theta = model.theta(jnp.asarray(paper_schedule._phi(model, np.zeros(model.n_theta))))
    np.testing.assert_allclose(theta["lengthscale"], np.log(2.0), rtol=1e-6)
    assert float(theta["scale"]) ** 2 == pytest.approx(np.log(2.0), rel=1e-6)
    assert float(theta["noise"]) ** 2 == pytest.approx(np.log(2.0) + 1e-4, rel=1e-6)


def test_the_papers_coordinates_pull_gradients_back():
    model, rng = Model(RBF(), 2, noise=on_variance(Gamma(2.0, 1.0))), np.random.default_rng(0)
    raw, d_phi, step = rng.standard_normal(model.n_theta), rng.standard_normal(model.n_theta), 1e-6
    slopes = [
        (paper_schedule._phi(model, raw + step * e) - paper_schedule._phi(model, raw - step * e)) @ d_phi / (2 * step)
        for e in np.eye(model.n_theta)
    ]
    np.testing.assert_allclose(paper_schedule._raw_gradient(model, raw, d_phi), slopes, rtol=1e-6, atol=1e-9)


def test_the_papers_sgpr_climbs_by_small_steps(data, monkeypatch):
    Z = data[0][:M]
    first = fit(data, "ml2", schedule="paper", Z=Z)
    assert first.counts["gradients"] == paper_schedule.STEPS + 1
    free = fit(data, "ml2", Z=Z)
    # Adam at rate 0.01 ends near a summit of this small problem, and never above the best.
    assert free.history[-1].bound - 5.0 < first.history[-1].bound < free.history[-1].bound + 1.0
    monkeypatch.setattr(paper_schedule, "STEPS", 3)
    short = fit(data, "ml2", schedule="paper", Z=Z)
    assert np.abs(short.Z - Z).max() < 0.05
    with pytest.raises(InputError, match="schedule"):
        fit(data, "map", schedule="paper")
