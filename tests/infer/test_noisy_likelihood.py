"""Metropolis with noisy but unbiased estimates draws from the truth; the noise costs length, not exactness."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import known_posteriors as known
from integrand.errors import NumericalError
from integrand.infer.base import Plan, keep_going
from integrand.infer.convergence import convergence
from integrand.infer.coordinates import Coordinates
from integrand.infer.pseudo_marginal import Estimated, PseudoMarginal

WHITENING = Coordinates(np.zeros(1), np.eye(1))


def log_prior(phi, data):
    return -0.5 * phi @ phi


def log_estimate(key, phi, data):
    """log N(1; φ, 1) with log-normal noise of mean one; the latent value is φ + that noise."""
    noise = data * jax.random.normal(key)
    return -0.5 * (1.0 - phi[0]) ** 2 + noise - 0.5 * data**2, phi + noise


def run(sd, draws=2500, seed=0, warmup=50, thin=4, parallel=2, chains=4, coordinates=WHITENING, estimate=log_estimate):
    sampler = PseudoMarginal(Estimated(log_prior, estimate, np.float64(sd)), 1, thin)
    plan = Plan(warmup, draws, (seed,), parallel)
    return sampler.run(known.UNUSED, np.zeros((chains, 1)), coordinates, plan, keep_going)


@pytest.mark.parametrize("sd", [0.0, 0.5, 1.2])
def test_moments(sd):
    """The posterior is N(½, ½); the noise of accepted estimates is tilted, N(sd², sd²)."""
    result = run(sd)
    x = result.chains.x
    size = convergence(x).ess_bulk
    assert size.min() > 300
    assert abs(x[..., 0].mean() - 0.5) < 4 * np.sqrt(0.5 / size[0])
    assert abs(x[..., 0].std() - np.sqrt(0.5)) < 4 * np.sqrt(0.25 / size[0])
    noise = x[..., 1] - x[..., 0]
    assert abs(noise.mean() - sd**2) < 4 * max(sd, 1e-12) * np.sqrt(
        1 / convergence(noise[..., None]).ess_bulk[0] if sd else 1
    )


def test_noise_makes_chains_stand_still():
    quiet, loud = run(0.0, draws=500), run(3.0, draws=500)
    assert 0.3 < quiet.chains.acceptance.mean() < 0.6
    assert convergence(loud.chains.x).ess_bulk[0] < 0.3 * convergence(quiet.chains.x).ess_bulk[0]


def test_the_step_size_adapts_and_is_then_frozen():
    wide = Coordinates(np.zeros(1), 30.0 * np.eye(1))
    result = run(0.0, draws=200, warmup=100, chains=2, coordinates=wide)
    sizes = result.chains.step_size
    assert np.all(sizes == sizes[:, :1])
    assert np.all((sizes > 0.02) & (sizes < 0.15))
    assert 0.25 < result.chains.acceptance.mean() < 0.65


def test_an_estimate_is_kept_while_the_chain_stands():
    chains = run(1.0, draws=400, thin=1).chains
    stood = np.diff(chains.x[..., 0], axis=1) == 0.0
    assert stood.mean() > 0.3
    assert np.all(np.diff(chains.log_density, axis=1)[stood] == 0.0)
    assert np.all(np.diff(chains.x[..., 1], axis=1)[stood] == 0.0)


def test_fresh_estimates():
    target = Estimated(log_prior, log_estimate, np.float64(1.5))
    phis = np.linspace(-1.0, 1.0, 8)[:, None]
    found = PseudoMarginal(target, 1).fresh_estimates(phis, 300, Plan(0, 0, (0,)))
    assert found.shape == (8, 300)
    exact = -0.5 * phis[:, 0] ** 2 - 0.5 * (1.0 - phis[:, 0]) ** 2
    np.testing.assert_allclose(found.mean(axis=1), exact - 1.125, atol=4 * 1.5 / np.sqrt(300))
    np.testing.assert_allclose(found.std(axis=1), 1.5, rtol=0.2)


def test_draws_depend_on_seed_alone():
    first = run(0.5, draws=30).chains.x
    np.testing.assert_array_equal(first, run(0.5, draws=30, parallel=1).chains.x)
    assert not np.any(first == run(0.5, draws=30, seed=1).chains.x)


def test_no_estimate_where_it_starts():
    def hopeless(key, phi, data):
        return jnp.asarray(jnp.nan), phi

    with pytest.raises(NumericalError, match="other priors"):
        run(0.0, draws=5, warmup=5, chains=2, estimate=hopeless)
