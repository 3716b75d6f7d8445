"""What is of BlackJAX's kernels alone; what they owe as samplers is in tests/contracts/test_samplers.py."""

import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import known_posteriors as known
from integrand.errors import InputError, NumericalError
from integrand.infer.base import Plan, Run, keep_going
from integrand.infer.blackjax_kernels import BlackJaxKernel, kernel_named, stepping_out
from integrand.infer.convergence import convergence
from integrand.infer.coordinates import Coordinates
from integrand.infer.verdict import verdict
from integrand.precision import float64_scope
from known_posteriors import (
    COVARIANCE,
    MEAN,
    PLAIN,
    WHITE,
    TracedTarget,
    assert_same,
    normal,
    starts,
    z_of_mean,
    z_of_sd,
)

SAMPLERS = ["hmc", "mala", "metropolis", "slice"]
GRADIENTS = ["hmc", "mala"]
NAMES = ("a", "b", "c")


def run(
    sampler,
    density=None,
    coordinates=WHITE,
    seed=(3,),
    chains=2,
    warmup=60,
    draws=60,
    parallel=2,
    first=None,
    callback=keep_going,
    **options,
) -> Run:
    kernel = BlackJaxKernel(sampler, min_warmup=0, **options)
    plan = Plan(warmup, draws, seed, parallel)
    first = starts(coordinates, chains) if first is None else first
    return kernel.run(TracedTarget(normal() if density is None else density, 3), first, coordinates, plan, callback)


# --- the right draws


@pytest.mark.parametrize(
    "sampler", [pytest.param(name, marks=() if name == "hmc" else pytest.mark.slow) for name in SAMPLERS]
)
def test_a_posterior_known_by_quadrature(sampler):
    began = time.process_time()
    result = run(sampler, known.GP, known.GP_WHITENING, chains=4, warmup=150, draws=800, seed=(1,))
    seconds = time.process_time() - began
    found = convergence(result.chains.x)
    theta = np.exp(result.chains.x)
    means = [z_of_mean(theta[:, :, i], known.GP_MEAN[i]) for i in range(3)]
    sds = [z_of_sd(theta[:, :, i], known.GP_SD[i]) for i in range(3)]
    print(f"{sampler}: ESS {found.ess_bulk.round()} {found.ess_tail.round()}, z {np.round(means, 2)} ", end="")
    print(f"{np.round(sds, 2)}, {result.evaluations} evaluations, {seconds:.1f} s")
    assert found.ess_bulk.min() >= 400
    assert found.ess_tail.min() >= 400
    assert np.abs(means).max() < 4
    assert np.abs(sds).max() < 4


@pytest.mark.parametrize("scale", [pytest.param(0.1, marks=pytest.mark.slow), 10.0])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_warmup_corrects_coordinates_of_the_wrong_scale(sampler, scale):
    coordinates = Coordinates(MEAN, scale * WHITE.factor)
    x = run(sampler, None, coordinates, (5,), warmup=200, draws=800, first=starts(WHITE)).chains.x
    assert convergence(x).ess_bulk.min() > 400
    assert np.all(np.abs(x.std(axis=(0, 1)) / np.sqrt(np.diag(COVARIANCE)) - 1.0) < 0.1)


# --- statistics


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_statistics_of_the_sampler(sampler):
    result = run(sampler, draws=300, chains=4, warmup=150)
    c = result.chains
    d = c.x - MEAN
    np.testing.assert_allclose(
        c.log_density, -0.5 * np.einsum("cni,ij,cnj->cn", d, np.linalg.inv(COVARIANCE), d), atol=1e-9
    )
    assert np.all((c.acceptance >= 0.0) & (c.acceptance <= 1.0))
    assert np.all(c.n_steps >= 1)
    assert np.all(c.depth == 0)
    assert not c.diverging.any()
    assert result.warmup == 150
    assert not result.interrupted
    assert result.evaluations > c.n_steps.sum()
    # Warm-up is over: one step size for each chain.
    assert np.all(np.ptp(c.step_size, axis=1) == 0.0)
    assert np.all(c.step_size > 0.0)
    if sampler == "hmc":
        assert np.all(c.energy >= -c.log_density - 1e-9)
        kinetic = c.energy + c.log_density  # of the momentum at the end, half a chi-squared of three
        assert abs(kinetic.mean() - 1.5) < 0.15
    else:
        assert np.all(np.isnan(c.energy))
    found = verdict(c, NAMES, target_ess=200.0)
    assert "e-bfmi" not in found.codes
    assert found.ok, found


@pytest.mark.parametrize(("sampler", "wanted"), [("hmc", 0.9), ("mala", None), ("mala", 0.8), ("metropolis", None)])
def test_acceptance_is_what_was_asked_for(sampler, wanted):
    target = kernel_named(sampler).target(3) if wanted is None else wanted
    chains = run(sampler, warmup=400, draws=400, target_accept=wanted, chains=4).chains
    assert abs(chains.acceptance.mean() - target) < (0.08 if sampler == "hmc" else 0.04)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_fixed_step_size_stays(sampler):
    for warmup in (0, 20):
        chains = run(sampler, warmup=warmup, draws=20, step_size=0.37).chains
        assert np.all(chains.step_size == 0.37)


def test_energy_is_that_of_the_draw_not_of_a_rejected_proposal():
    """With position and momentum drawn together, the kinetic energy is half a chi-squared of three, rejected or not."""
    c = run("hmc", draws=1000, chains=4, step_size=1.7, n_leapfrog=3).chains
    assert c.acceptance.mean() < 0.9
    assert abs((c.energy + c.log_density).mean() - 1.5) < 0.1


def test_the_papers_preset():
    """10 leapfrog steps of 0.01, nothing adapted, nothing random but the momentum."""
    result = run("hmc", warmup=0, draws=50, step_size=0.01, n_leapfrog=10, jitter=0.0, thin=1)
    assert np.all(result.chains.n_steps == 10)
    assert np.all(result.chains.step_size == 0.01)
    assert result.chains.acceptance.min() > 0.999
    moved = np.linalg.norm(np.diff(WHITE.to_eta(result.chains.x), axis=1), axis=-1)
    assert 0.0 < moved.max() < 0.1 * 5.0  # a trajectory of length 0.1, times the norm of the momentum


def test_thinning_keeps_every_so_manieth():
    """Evaluations are counted for all transitions; with a fixed step each transition is one of a longer run."""
    assert np.all(run("metropolis", thin=7).chains.n_steps == 7)
    assert np.all(run("metropolis").chains.n_steps == 12)
    assert np.all(run("mala").chains.n_steps == 5)
    one, many = (run("metropolis", draws=400, chains=4, thin=t).chains for t in (1, 20))
    assert convergence(many.x).ess_bulk.min() > 3 * convergence(one.x).ess_bulk.min()


@pytest.mark.slow
def test_stepping_out_is_blackjaxs_with_both_ends_in_one_loop():
    from blackjax.mcmc import slice as slices

    def in_slice(t):
        return jnp.abs(t - 0.4) < 2.0

    def both(k):
        key, width = jax.random.key(k), 0.2 + 0.1 * k
        return stepping_out(key, in_slice, width, 6)[:3], slices.stepping_out(key, in_slice, width, 6)[:3]

    with float64_scope():
        ours, theirs = jax.jit(jax.vmap(both))(jnp.arange(40))
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
        assert np.ptp(ours[2]) >= 4  # some were widened as often as they may be, some not at all


# --- warm-up


def test_warmup_stops_when_it_should():
    """Draws after the same warm-up do not depend on how many follow; other warm-up gives another step size."""
    a, b = run("mala", warmup=50, draws=10).chains, run("mala", warmup=50, draws=500).chains
    assert_same(a, b.first(10))
    assert np.all(run("mala", warmup=51).chains.step_size[:, 0] != a.step_size[:, 0])


# --- compiled once


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_nothing_is_compiled_twice(sampler):
    run(sampler)
    before = known.traces["normal"]
    run(sampler, warmup=7, draws=300, coordinates=PLAIN, seed=(8,), chains=3)
    run(sampler, normal(MEAN + 1.0, 2.0 * COVARIANCE), step_size=0.3, thin=2, jitter=0.1, n_leapfrog=4)
    run(sampler, normal(wall=4.0), target_accept=0.5, callback=keep_going)
    assert known.traces["normal"] == before


# --- failures


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_proposals_in_a_hole_are_counted(sampler):
    """A normal cut off half a standard deviation above its mean."""
    first = np.tile(MEAN - [0.5, 0.0, 0.0], (4, 1))
    result = run(sampler, normal(wall=2.5), seed=(2,), warmup=150, draws=300, first=first)
    chains = result.chains
    assert np.all(np.isfinite(chains.acceptance))
    # Of a slice, what lies outside for this reason is not told from what lies outside.
    assert (result.failures > 0) == (sampler != "slice")
    assert result.failures < 0.5 * result.evaluations
    if sampler == "hmc":
        assert np.all(np.isfinite(chains.energy))
        assert chains.diverging.any()
        assert result.warmup_divergences > 0


@pytest.mark.parametrize("sampler", GRADIENTS)
def test_a_gradient_that_is_not_a_number_is_a_rejected_proposal(sampler):
    first = np.tile(MEAN, (4, 1))
    chains = run(sampler, normal(steep=2.5), seed=(2,), warmup=100, draws=300, first=first).chains
    assert np.all(np.isfinite(chains.x))
    assert chains.x[:, :, 0].max() <= 2.5 + 1e-12
    assert np.all(np.ptp(chains.x, axis=1) > 0.1)


@pytest.mark.parametrize("sampler", GRADIENTS)
def test_a_start_without_a_slope_is_a_numerical_error(sampler):
    with pytest.raises(NumericalError, match="where a chain should start"):
        run(sampler, normal(steep=-50.0))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_start_at_the_mode(sampler):
    chains = run(sampler, seed=(0,), warmup=50, draws=100, first=np.array([MEAN, MEAN])).chains
    assert np.all(np.ptp(chains.x, axis=1) > 0.5)


@pytest.mark.parametrize(
    "bad", [{"thin": 0}, {"step_size": 0.0}, {"step_size": np.nan}, {"n_leapfrog": 0}, {"target_accept": 1.0}]
)
def test_a_setting_that_cannot_be_is_named(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        run("hmc", **bad)


def test_an_unknown_sampler_is_named():
    with pytest.raises(InputError, match=r"'gibbs'.*hmc, mala, metropolis, slice"):
        run("gibbs")


def test_an_error_in_the_program_reaches_the_caller():
    from integrand.infer.chain_runner import run_chains

    def advance(chain, state, first, count):
        raise LookupError("in the program")

    with pytest.raises(LookupError, match="in the program"):
        run_chains(advance, [None, None], 3, warmup=5, draws=5, parallel=2, callback=None)


# --- the user's process


def test_float64_and_flags_as_they_were():
    before = jax.config.jax_enable_x64
    chains = run("hmc", known.GP, known.GP_WHITENING, draws=5).chains
    assert chains.x.dtype == chains.log_density.dtype == np.float64
    assert np.mean(chains.x.astype(np.float32) == chains.x) < 0.1  # and not float32 made longer
    assert not before
    assert not jax.config.jax_enable_x64
    assert jnp.ones(1).dtype == jnp.float32


@pytest.mark.slow
def test_importing_the_samplers_does_not_import_blackjax():
    program = (
        "import sys, integrand.infer.blackjax_kernels, integrand.infer.nested, integrand.infer.sghmc, jax;"
        "assert not [m for m in sys.modules if m.startswith('blackjax')]; assert not jax.config.jax_enable_x64"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
