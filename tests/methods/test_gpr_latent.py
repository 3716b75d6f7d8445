"""`gpr-latent` against posteriors known otherwise, and what a method that brings its own sampler owes its user."""

import warnings

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import integrand
from integrand import RBF, ConvergenceWarning, Gamma, HalfNormal, InputError, Jitter, LogNormal, on_variance
from integrand.compilation import one_blas_thread
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows
from integrand.infer.base import Plan, Target, keep_going
from integrand.infer.convergence import convergence
from integrand.infer.coordinates import Coordinates
from integrand.infer.nuts import NUTS
from integrand.likelihoods import Poisson, StudentT
from integrand.precision import float64_scope
from integrand.progress import Silent
from integrand.storage.model_file import load_model, save_model
from integrand.targets.laplace import latent

METHOD = "gpr-latent"
# posteriordb gp_pois_regr-gp_pois_regr, and its twin with Gaussian noise, known by quadrature.
X = np.arange(-10.0, 11.0, 2.0)[:, None]
COUNTS = np.array([40, 37, 29, 12, 4, 3, 9, 19, 77, 82, 33.0])
Y = np.array([4.75906, 1.59423, 2.99548, 5.27501, 1.66472, 2.24347, 2.8914, 4.08681, 4.60588, 0.802364, 3.92136])
KERNEL = RBF(lengthscale=Gamma(25.0, 4.0), scale=HalfNormal(2.0))
SHORT = {"chains": 2, "warmup": 5, "max_draws": 30, "target_ess": 1e6}


def fit(y=COUNTS, likelihood="poisson", method=METHOD, **settings):
    rows = ArrayRows(X, y, scaler=Standardiser.identity(1))
    return integrand.fit(rows, kernel=KERNEL, method=method, likelihood=likelihood, **settings)


def short(**settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return fit(**(SHORT | settings))


def mean_and_error(draws):
    x = np.ascontiguousarray(draws)
    return x.mean(), float(arviz.mcse(x, method="mean"))


# ---- known posteriors


@pytest.fixture(scope="module")
def poisson():
    return fit(target_ess=1500, seed=3)


@pytest.mark.slow
def test_poisson_anchor(poisson):
    """Reference means of posteriordb, which have an error of 0.007 themselves."""
    assert poisson.verdict.ok, str(poisson.verdict)
    for draws, reference, sd in (
        (poisson.theta["lengthscale"][..., 0], 5.6665, 0.676),
        (poisson.theta["scale"], 2.9213, 0.786),
    ):
        mean, error = mean_and_error(draws)
        assert error < 0.04 * sd
        assert abs(mean - reference) < 4 * np.hypot(error, 0.007)
        assert draws.std() == pytest.approx(sd, rel=0.1)


@pytest.mark.slow
def test_few_draws_are_enough(poisson):
    """A kept draw is worth at least a third of an independent one."""
    assert poisson.verdict.convergence.ess_bulk.min() > poisson.chains.diverging.size / 3


@pytest.mark.slow
def test_gaussian_noise_against_quadrature():
    """E[rho, alpha, sigma] of the twin with noise; sigma is a variance."""
    posterior = fit(
        Y, "gaussian", noise=on_variance(HalfNormal(1.0)), jitter=Jitter(0.0, 1e-10), target_ess=1500, seed=1
    )
    theta = posterior.theta
    draws = (theta["lengthscale"][..., 0], theta["scale"], theta["noise"] ** 2)
    for one, expected, sd in zip(draws, (6.89343, 2.43810, 1.83169), (1.28970, 0.79007, 0.50018), strict=True):
        mean, error = mean_and_error(one)
        assert error < 0.04 * sd
        assert abs(mean - expected) < 4 * error


# ---- predictions at a fixed θ: three rows, where a grid over f does


NARROW = RBF(lengthscale=LogNormal(np.log(1.5), 1e-4), scale=1.4)
X3, COUNTS3, X_NEW = np.array([[0.0], [1.0], [2.5]]), np.array([0.0, 6.0, 2.0]), np.array([[0.4], [2.5], [5.0]])


def grid_moments():
    """Mean and variance of f, and mean of y, at the new inputs, by a sum over a grid of whitened f."""

    def k(A, B):
        return 1.4**2 * np.exp(-0.5 * (A - B.T) ** 2 / 1.5**2)

    nu = np.linspace(-7.0, 7.0, 141)
    grid = np.stack(np.meshgrid(nu, nu, nu, indexing="ij"), axis=-1).reshape(-1, 3)
    L = np.linalg.cholesky(k(X3, X3))
    f = grid @ L.T
    weight = np.exp(np.sum(COUNTS3 * f - np.exp(f), axis=1) - 0.5 * np.sum(grid**2, axis=1))
    weight /= weight.sum()
    A = np.linalg.solve(L, k(X3, X_NEW))
    means, left = grid @ A, 1.4**2 - np.sum(A**2, axis=0)
    mean = weight @ means
    return mean, weight @ (means - mean) ** 2 + left, weight @ np.exp(means + 0.5 * left)


def check_predictions(method):
    posterior = integrand.fit(
        ArrayRows(X3, COUNTS3, scaler=Standardiser.identity(1)),
        kernel=NARROW,
        method=method,
        likelihood=Poisson(),
        target_ess=1000,
        predictive_draws=100_000,
        seed=2,
    )
    mean, variance, rate = grid_moments()
    components = posterior.predict(X_NEW, include_noise=False).mixture()
    chains = len(posterior.chains.x)
    for t in range(len(X_NEW)):
        found, error = mean_and_error(components.means[:, t].reshape(chains, -1))
        assert error < 0.05
        assert abs(found - mean[t]) < 4 * error
    np.testing.assert_allclose(posterior.predict(X_NEW, include_noise=False).variance, variance, rtol=0.1)
    np.testing.assert_allclose(posterior.predict(X_NEW, include_noise=True).mean, rate, rtol=0.1)


@pytest.mark.slow
def test_predictions_at_a_fixed_theta():
    check_predictions(METHOD)


# ---- the contract


def check_compiles_once(method):
    """Tuning, drawing and other data of the same shape are one program."""
    short(method=method)
    compilations = []

    def listen(event, seconds, **_):
        if "backend_compile" in event:
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        short(method=method, y=COUNTS[::-1].copy(), seed=4, warmup=7, max_draws=21)
        assert compilations == []
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def check_same_seed(method):
    first, again, other = (short(method=method, seed=seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.chains.x, again.chains.x)
    np.testing.assert_array_equal(first.conditional.weights, again.conditional.weights)
    assert not np.any(first.chains.x == other.chains.x)


def check_saved(method, tmp_path):
    posterior = short(method=method)
    save_model(posterior, tmp_path / "model")
    loaded = load_model(tmp_path / "model").posterior
    for include_noise in (False, True):
        one, two = (p.predict(X + 0.5, include_noise=include_noise) for p in (posterior, loaded))
        np.testing.assert_array_equal(one.mean, two.mean)
        np.testing.assert_array_equal(one.variance, two.variance)
    assert loaded.notes == posterior.notes


class Interrupts(Silent):
    """Ctrl-C once there are some draws."""

    def __init__(self):
        self.final = False

    def phase(self, name):
        self.final = name == "final draws"

    def update(self, done, total, text=""):
        if self.final and done > 30:
            raise KeyboardInterrupt


def check_interrupted(method, tmp_path):
    """What was drawn stays, is told, and is gone on from."""
    settings = {"max_draws": 5_000, "run_dir": tmp_path / "run", "progress": Interrupts()}
    posterior = short(method=method, **settings)
    assert "interrupted" in posterior.verdict.codes
    n = posterior.chains.n_draws
    assert 25 <= n < 5_000
    assert posterior.predict(X, include_noise=True).n_draws > 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        resumed = integrand.resume(tmp_path / "run", max_draws=n + 20)
    assert resumed.chains.n_draws == n + 20
    np.testing.assert_array_equal(resumed.chains.x[:, :n], posterior.chains.x)
    assert np.all(np.ptp(resumed.chains.x[:, n:], axis=1) > 0)


def check_refusals(method):
    with pytest.raises(InputError, match=r"11 rows.*limit 10.*raise max_exact_rows"):
        fit(method=method, max_exact_rows=10)
    with pytest.raises(InputError, match="sampler of its own"):
        fit(method=method, sampler="slice")


@pytest.mark.slow
def test_a_second_fit_compiles_nothing():
    check_compiles_once(METHOD)


@pytest.mark.slow
def test_same_seed_same_draws():
    check_same_seed(METHOD)


@pytest.mark.slow
def test_a_saved_model_predicts_the_same(tmp_path):
    check_saved(METHOD, tmp_path)


def test_an_interrupted_run_keeps_its_draws(tmp_path):
    check_interrupted(METHOD, tmp_path)


def test_refusals():
    check_refusals(METHOD)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_poisson_anchor_with_more_draws(seed):
    posterior = fit(target_ess=10_000, max_draws=20_000, seed=seed)
    for draws, reference in ((posterior.theta["lengthscale"][..., 0], 5.6665), (posterior.theta["scale"], 2.9213)):
        mean, error = mean_and_error(draws)
        assert abs(mean - reference) < 4 * np.hypot(error, 0.007)


FORTY = np.random.default_rng(0).standard_normal((40, 2))
LATENT = 2.0 * np.sin(2.0 * FORTY[:, 0]) + FORTY[:, 1]
KERNEL_2 = RBF(lengthscale=Gamma(3.0, 2.0), scale=HalfNormal(2.0))


def assert_means_agree(one, two):
    """Draws (chain, draw, entry) of two samplers, within their Monte Carlo error."""
    for i in range(one.shape[2]):
        (a, error_a), (b, error_b) = (mean_and_error(x[:, :, i]) for x in (one, two))
        assert abs(a - b) < 4 * np.hypot(error_a, error_b), i


@pytest.mark.slow
def test_the_two_exact_methods_agree_on_classes():
    y = (LATENT > 0.0).astype(float)
    settings = {"likelihood": "bernoulli", "target_ess": 1_000, "max_draws": 20_000}
    one, two = (integrand.fit(FORTY, y, KERNEL_2, method=m, **settings) for m in (METHOD, "pseudo-marginal"))
    assert_means_agree(one.chains.x, two.chains.x)
    means = [p.predict(FORTY, include_noise=False).mean for p in (one, two)]
    sd = one.predict(FORTY, include_noise=False).sd
    assert np.abs((means[0] - means[1]) / sd).max() < 0.3  # 400 draws each


@pytest.mark.slow
def test_nuts_over_everything_agrees_where_noise_has_heavy_tails():
    """NUTS on log p(φ) + log N(ν; 0, I) + log p(y | f), a sampler that shares nothing with this one."""
    y = LATENT + 0.2 * np.random.default_rng(1).standard_t(3, 40)
    rows = ArrayRows(FORTY, y, scaler=Standardiser.identity(2))
    settings = {"likelihood": StudentT(4.0), "target_ess": 1_000, "max_draws": 20_000}
    posterior = integrand.fit(rows, kernel=KERNEL_2, method=METHOD, noise=HalfNormal(0.5), **settings)
    model, n = posterior.model, posterior.model.n_theta

    @jax.jit
    @jax.value_and_grad
    def joint(x):
        rows, prior = latent(x[:n], jnp.asarray(FORTY), jnp.asarray(y), model, Jitter())
        return model.log_prior(x[:n]) - 0.5 * jnp.sum(x[n:] ** 2) + jnp.sum(rows(prior.f(x[n:])))

    class Everything(Target):
        n_theta, dimension, parallel = n, n + 40, 2

        def value_and_gradient(self, x):
            with float64_scope():
                value, gradient = joint(x)
                return float(value), np.asarray(gradient)

    # The draws to be checked tell how wide things are, which makes NUTS quick but no different.
    drawn = np.concatenate([posterior.conditional.phis, posterior.conditional.weights], axis=1)
    coordinates = Coordinates(drawn.mean(axis=0), np.linalg.cholesky(np.cov(drawn.T) + 1e-3 * np.eye(n + 40)))
    with one_blas_thread():
        run = NUTS().run(Everything(), drawn[::100], coordinates, Plan(150, 800, (0,), target_accept=0.9), keep_going)
    assert convergence(run.chains.x[:, :, :n]).ess_bulk.min() > 300
    assert_means_agree(posterior.chains.x, run.chains.x[:, :, :n])
    assert_means_agree(drawn[:, n:].reshape(4, 100, 40), run.chains.x[:, :, n:])
