"""`pseudo-marginal` against posteriors known otherwise; what it shares with `gpr-latent` has the same checks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_gpr_latent import (
    COUNTS,
    KERNEL,
    X,
    Y,
    check_compiles_once,
    check_interrupted,
    check_predictions,
    check_refusals,
    check_same_seed,
    check_saved,
    fit,
    mean_and_error,
    short,
)

from integrand import Dataset, InputError, Jitter, Model, log_marginal_likelihood
from integrand.likelihoods import Poisson
from integrand.methods import latent_function as pseudo_marginal
from integrand.precision import float64_scope
from integrand.targets.laplace import LaplaceTarget

METHOD = "pseudo-marginal"


@pytest.fixture(scope="module")
def poisson():
    return fit(method=METHOD, target_ess=1500, seed=3)


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
def test_what_it_tells(poisson):
    assert poisson.notes[-1].startswith("With 64 importance draws log p̂(y | θ) has variance ")
    assert 0.2 < poisson.chains.acceptance.mean() < 0.5
    assert poisson.verdict.convergence.ess_bulk.min() > poisson.chains.diverging.size / 3


def test_advice_where_estimates_are_noisy():
    """Either fresh estimates scatter, or chains stand on ones that are far too high."""
    rng = np.random.default_rng(0)
    fresh = rng.normal(-0.5 * 0.1**2, 0.1, (30, 16))
    assert pseudo_marginal.describe_variance(np.full(30, 0.005), fresh, 64).endswith("variance 0.01.")
    assert "raise importance_draws" in pseudo_marginal.describe_variance(np.full(30, 0.005), 20.0 * fresh, 64)
    assert "1.9 too high where chains stood" in pseudo_marginal.describe_variance(np.full(30, 1.9), fresh, 64)


def test_gaussian_estimates_have_no_variance():
    """Laplace's q is the posterior then: every weight is p(y | θ)."""
    model, jitter = Model(KERNEL, 1, 0.8), Jitter(0.0, 1e-12)
    target = LaplaceTarget(model, Dataset.of(X, Y), jitter)
    phi = model.start() - 0.3
    _, log_estimate = pseudo_marginal._estimate_parts(model, jitter, 3)
    data = (*target.arrays, target.f_mode(phi))
    with float64_scope():
        estimate = jax.jit(log_estimate)
        exact = jax.jit(lambda phi: log_marginal_likelihood(model.gp(model.theta(phi)), X, Y))
        expected = float(exact(jnp.asarray(phi)))
        for seed in range(3):
            assert float(estimate(jax.random.PRNGKey(seed), phi, data)[0]) == pytest.approx(expected, abs=1e-8)
    assert target.evaluate(phi).log_likelihood == pytest.approx(expected, abs=1e-8)


@pytest.mark.slow
def test_estimates_do_not_depend_on_the_number_of_draws():
    """On the eleven counts: means of exp(log p̂) with few and with many importance draws agree."""
    model = Model(KERNEL, 1, likelihood=Poisson())
    target = LaplaceTarget(model, Dataset.of(X, COUNTS))
    phi = model.start()
    data = (*target.arrays, target.f_mode(phi))
    found = []
    with float64_scope():
        for n_draws in (2, 200):
            log_estimate = pseudo_marginal._estimate_parts(model, Jitter(), n_draws)[1]
            keys = jax.random.split(jax.random.PRNGKey(n_draws), 800)
            logs = np.asarray(jax.jit(jax.vmap(log_estimate, (0, None, None)))(keys, phi, data)[0])
            estimates = np.exp(logs + 53.0)
            found.append((estimates.mean(), estimates.std() / np.sqrt(len(keys))))
    assert found[1][1] < found[0][1]
    assert abs(found[0][0] - found[1][0]) < 4 * np.hypot(found[0][1], found[1][1])


@pytest.mark.slow
def test_predictions_at_a_fixed_theta():
    check_predictions(METHOD)


@pytest.mark.slow
def test_a_second_fit_compiles_nothing():
    check_compiles_once(METHOD)


@pytest.mark.slow
def test_same_seed_same_draws():
    check_same_seed(METHOD)


@pytest.mark.slow
def test_a_saved_model_predicts_the_same(tmp_path):
    check_saved(METHOD, tmp_path)


@pytest.mark.slow
def test_an_interrupted_run_keeps_its_draws(tmp_path):
    check_interrupted(METHOD, tmp_path)


def test_refusals():
    check_refusals(METHOD)
    with pytest.raises(InputError, match="importance_draws must be a whole number"):
        short(method=METHOD, importance_draws=0)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "importance_draws"), [(0, 64), (1, 64), (2, 1), (3, 2)])
def test_poisson_anchor_with_more_draws(seed, importance_draws):
    """However few the importance draws are."""
    posterior = fit(method=METHOD, target_ess=10_000, max_draws=20_000, seed=seed, importance_draws=importance_draws)
    for draws, reference in ((posterior.theta["lengthscale"][..., 0], 5.6665), (posterior.theta["scale"], 2.9213)):
        mean, error = mean_and_error(draws)
        assert abs(mean - reference) < 4 * np.hypot(error, 0.007)
