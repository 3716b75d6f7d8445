"""The skeletons of docs/extending do what the architecture page says: each is loaded from its file and used.

That of a kernel goes through the contract of all kernels (tests/contracts/test_kernels.py).
"""

import importlib.util
import itertools
import sqlite3
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import integrand
from integrand.infer.base import Counter, Plan, Target, keep_going
from integrand.infer.convergence import convergence
from integrand.infer.coordinates import Coordinates, TailWarp
from integrand.likelihoods import likelihood_named
from integrand.methods.table import METHODS, Method

FOLDER = Path(__file__).parents[1] / "docs" / "extending"


def skeleton(name, as_module=None):
    """The module of a skeleton file."""
    name_in_python = as_module or f"extending_{name}"
    spec = importlib.util.spec_from_file_location(name_in_python, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name_in_python] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (40, 1))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(40)


# ---- a likelihood


@pytest.fixture(scope="module")
def laplace():
    return skeleton("likelihood").Laplace()


@pytest.mark.parametrize("y", [-3.0, 0.4, 12.0])
@pytest.mark.parametrize("variance", [0.01, 2.0])
def test_likelihood_agrees_with_quadrature(laplace, y, variance):
    mean, noise, sd = 0.3, 0.7, np.sqrt(variance)

    def average(function):
        pieces = np.unique(np.clip([mean - 12 * sd, y, mean, mean + 12 * sd], mean - 12 * sd, mean + 12 * sd))
        density = stats.norm(mean, sd).pdf
        return sum(
            integrate.quad(lambda f: function(f) * density(f), a, b, limit=200)[0]
            for a, b in itertools.pairwise(pieces)
        )

    truth = stats.laplace(0.0, noise)
    with jax.enable_x64(True):
        assert np.isclose(float(laplace.log_prob(y, mean, noise)), truth.logpdf(y - mean))
        expected = float(laplace.expected_log_prob(y, mean, variance, noise))
    assert np.isclose(expected, average(lambda f: truth.logpdf(y - f)), rtol=1e-7)
    assert np.isclose(laplace.cdf(y, mean, noise), truth.cdf(y - mean))
    density = average(lambda f: truth.pdf(y - f))
    assert np.isclose(np.exp(laplace.marginal_log_prob(y, mean, variance, noise)), density, rtol=1e-7)
    assert np.isclose(laplace.marginal_cdf(y, mean, variance, noise), average(lambda f: truth.cdf(y - f)), atol=1e-9)
    assert np.isclose(laplace.marginal_variance(mean, variance, noise), variance + truth.var())


@pytest.mark.filterwarnings("ignore::integrand.ConvergenceWarning")
def test_likelihood_fits(laplace, rows, tmp_path):
    X, y = rows
    posterior = integrand.fit(X, y, likelihood=laplace, method="svgp", n_inducing=8, steps=1000)
    assert np.sqrt(np.mean((posterior.predict(X, include_noise=False).mean - np.sin(2 * X[:, 0])) ** 2)) < 0.3
    integrand.save_model(posterior, tmp_path / "model")
    assert integrand.load_model(tmp_path / "model").posterior.model.likelihood == laplace
    assert likelihood_named("laplace") == laplace


# ---- a sampler


class Gaussian(Target):
    """N(mean, covariance) in two dimensions."""

    n_theta = dimension = 2
    parallel = 2
    mean, covariance = np.array([1.0, -2.0]), np.array([[1.0, 0.8], [0.8, 2.0]])

    def __init__(self):
        self.counter = Counter()

    def value_and_gradient(self, x):
        gradient = -np.linalg.solve(self.covariance, x - self.mean)
        return 0.5 * float((x - self.mean) @ gradient), gradient


@pytest.mark.parametrize("warp", [None, TailWarp(np.array([1, 0]), np.array([1.5, 0.0]))], ids=["affine", "warped"])
def test_sampler_draws_from_its_target(warp):
    sampler, target = skeleton("sampler").RandomWalk(), Gaussian()
    coordinates = Coordinates(target.mean, np.linalg.cholesky(target.covariance), warp)
    starts = coordinates.to_x(np.random.default_rng(1).standard_normal((4, 2)))
    run = sampler.run(target, starts, coordinates, Plan(warmup=200, draws=4000, seed=(3,)), keep_going)
    draws, found = run.chains.x.reshape(-1, 2), convergence(run.chains.x)
    assert run.chains.n_draws == 4000
    assert found.r_hat.max() < 1.02
    error = np.sqrt(np.diagonal(target.covariance) / found.ess_bulk)
    assert np.all(np.abs(draws.mean(axis=0) - target.mean) < 5 * error)
    assert np.allclose(np.cov(draws.T), target.covariance, rtol=0.25)
    for x, value in zip(run.chains.x[0, :3], run.chains.log_density[0, :3], strict=True):
        assert np.isclose(value, target.value_and_gradient(x)[0])


def test_sampler_stops_when_told():
    target = Gaussian()
    coordinates = Coordinates(target.mean, np.linalg.cholesky(target.covariance))
    starts = np.tile(target.mean, (2, 1))
    plan = Plan(warmup=10, draws=500, seed=(3,))
    run = (
        skeleton("sampler")
        .RandomWalk()
        .run(target, starts, coordinates, plan, lambda s: 40 if s.chains.n_draws >= 40 else None)
    )
    assert run.chains.n_draws == 40
    assert np.all(np.isfinite(run.chains.x))


# ---- a method


@pytest.mark.slow
def test_method_is_offered_by_fit(rows, monkeypatch, tmp_path):
    skeleton("method", "integrand.methods.gpr_nuts")
    row = Method("gpr-nuts", "exact GP, θ drawn by NUTS", "gpr_nuts", "gpr_nuts", draws=True, sparse=False)
    monkeypatch.setitem(METHODS, "gpr-nuts", row)
    X, y = rows
    posterior = integrand.fit(X, y, method="gpr-nuts", target_ess=100, run_dir=tmp_path / "run")
    assert posterior.method == "gpr-nuts"
    assert posterior.verdict.ok
    reference = integrand.fit(X, y, method="gpr-hmc", sampler="nuts", target_ess=100)
    assert np.array_equal(posterior.chains.x, reference.chains.x)
    assert np.array_equal(*(p.predict(X, include_noise=True).mean for p in (posterior, reference)))


# ---- a row source


@pytest.fixture
def database(rows, tmp_path):
    X, y = rows
    with sqlite3.connect(tmp_path / "rows.db") as connection:
        connection.execute("CREATE TABLE points (x REAL, y REAL)")
        connection.executemany("INSERT INTO points VALUES (?, ?)", np.column_stack([X, y]).tolist())
    return tmp_path / "rows.db"


def test_row_source_gives_the_rows(rows, database):
    source = skeleton("row_source").SqliteRows(database, "points", ["x"], "y")
    assert source.n_rows == 40
    assert np.array_equal(source.read(3, 17), np.column_stack(rows)[3:17])


@pytest.mark.slow
def test_row_source_fits_like_arrays(rows, database):
    source = skeleton("row_source").SqliteRows(database, "points", ["x"], "y")
    of_table, of_arrays = (
        integrand.fit(data, method="map", n_inducing=10) for data in (source, integrand.MappedRows(*rows))
    )
    assert of_table.model.columns == ("x",)
    assert np.array_equal(of_table.optimum, of_arrays.optimum)


def test_row_source_names_the_place_of_a_bad_value(database):
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE points SET x = NULL WHERE rowid = 5")
    source = skeleton("row_source").SqliteRows(database, "points", ["x"], "y")
    with pytest.raises(integrand.InputError, match="table points, row 5"):
        integrand.fit(source, method="map")


# ---- a prior


def test_prior_agrees_with_scipy():
    prior = skeleton("prior").Chi2(3.0)
    truth = stats.chi2(3.0)
    assert np.isclose(prior.median, truth.median())
    with jax.enable_x64(True):
        for theta in (0.2, 1.0, 5.0):
            phi = prior.unconstrain(jnp.asarray(theta))
            assert np.isclose(float(prior.log_density(phi)), truth.logpdf(theta) + float(prior.log_jacobian(phi)))
    assert repr(prior) == "Chi2(3)"
    assert integrand.parse_kernel("rbf(lengthscale=chi2(3))") == integrand.RBF(lengthscale=prior)
