import time

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import known_posteriors as known
from integrand.errors import InputError, NumericalError
from integrand.infer.base import Plan, TracedDensity
from integrand.infer.convergence import convergence
from integrand.infer.nested import NestedSampling, equal_weights, errors, weigh
from integrand.infer.verdict import verdict

traces = {"normal": 0}


# --- a normal likelihood under a standard normal prior: the evidence is N(m; 0, 1 + s²) in each coordinate


def prior(x, data):
    return -0.5 * x @ x + 17.0  # a constant that a prior may have: it must not count


def likelihood(x, data):
    traces["normal"] += 1
    m, s, wall = data
    inside = jnp.sum(-0.5 * ((x - m) / s) ** 2 - jnp.log(s) - 0.5 * jnp.log(2.0 * jnp.pi))
    return jnp.where(x[0] < wall, inside, jnp.nan)


def problem(m=(1.0, -0.5), s=0.2, wall=np.inf):
    return TracedDensity(prior, likelihood, (np.array(m), np.asarray(s), np.asarray(wall)))


def run(target=None, n_live=200, seed=(3,), parallel=2, callback=None, **options):
    target = problem() if target is None else target
    draws = np.random.default_rng([*seed, 99]).standard_normal((n_live, len(target.data[0])))
    return NestedSampling(**options).run(target, draws, Plan(0, 0, seed, parallel), callback)


def assert_same(a, b):
    for name in ("log_weights", "log_evidence", "log_evidence_error", "ess", "evaluations"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    np.testing.assert_array_equal(a.points.x, b.points.x)
    np.testing.assert_array_equal(a.chains.x, b.chains.x)


def z_of_means(result, x, mean, sd):
    w = np.exp(result.log_weights)
    return (w @ x - mean) / (sd / np.sqrt(result.ess))


def test_evidence_and_posterior_of_a_normal():
    m, s = np.array([1.0, -0.5]), 0.2
    result = run(problem(m, s), n_live=400)
    truth = stats.norm(0.0, np.sqrt(1.0 + s**2)).logpdf(m).sum()
    assert result.log_evidence_error < 0.15
    assert abs(result.log_evidence - truth) < 3 * result.log_evidence_error
    # The information and the error that follows from it (Skilling 2006).
    variance = 1.0 / (1.0 + s**-2)
    mean = m * variance / s**2
    information = 0.5 * np.sum(variance + mean**2 - 1.0 - np.log(variance))
    assert result.information == pytest.approx(information, abs=4 * result.log_evidence_error)
    assert result.log_evidence_error == pytest.approx(np.sqrt(information / 400), rel=0.3)
    assert result.ess > 400
    assert np.abs(z_of_means(result, result.points.x, mean, np.sqrt(variance))).max() < 4
    w = np.exp(result.log_weights)
    assert w.sum() == pytest.approx(1.0)
    sd = np.sqrt(w @ (result.points.x - w @ result.points.x) ** 2)
    assert np.abs(sd / np.sqrt(variance) - 1.0).max() < 4 / np.sqrt(2 * result.ess)
    assert result.remaining < 1e-3


@pytest.mark.slow
def test_evidence_and_posterior_known_by_quadrature():
    began = time.process_time()
    result = NestedSampling().run(known.GP, known.gp_prior_draws(500, seed=1), Plan(0, 0, (1,)))
    seconds = time.process_time() - began
    z = (result.log_evidence - known.GP_LOG_EVIDENCE) / result.log_evidence_error
    theta = np.exp(result.points.x)
    means = z_of_means(result, theta, known.GP_MEAN, known.GP_SD)
    w = np.exp(result.log_weights)
    sds = np.sqrt(w @ (theta - w @ theta) ** 2)
    print(
        f"log Z {result.log_evidence:.3f} +- {result.log_evidence_error:.3f} (z {z:.2f}), ESS {result.ess:.0f}, ",
        end="",
    )
    print(f"z of means {means.round(2)}, sds {(sds / known.GP_SD).round(3)}, {result.evaluations} in {seconds:.1f} s")
    assert result.log_evidence_error < 0.2
    assert abs(z) < 3
    assert result.ess >= 400
    assert np.abs(means).max() < 4
    assert np.abs(sds / known.GP_SD - 1.0).max() < 0.1


@pytest.mark.slow
def test_the_error_of_the_evidence_is_its_error():
    z, means = [], []
    for seed in range(40):
        result = NestedSampling().run(known.GP, known.gp_prior_draws(200, seed), Plan(0, 0, (seed,)))
        z.append((result.log_evidence - known.GP_LOG_EVIDENCE) / result.log_evidence_error)
        means.append(z_of_means(result, np.exp(result.points.x), known.GP_MEAN, known.GP_SD))
    print(f"mean z {np.mean(z):.2f}, sd {np.std(z):.2f}; sd of z of means {np.std(means, axis=0).round(2)}")
    assert abs(np.mean(z)) < 4 / np.sqrt(40)
    assert 0.65 < np.std(z) < 1.4
    assert np.all(np.std(means, axis=0) < 1.4)


def test_a_region_without_likelihood_counts_as_nothing():
    """Where the likelihood is not a number it is zero; nothing that is not a number is weighed or resampled."""
    result = run(problem((0.0, 0.0), 1.0, wall=0.0), n_live=400)
    truth = 2 * stats.norm(0.0, np.sqrt(2.0)).logpdf(0.0) + np.log(0.5)
    assert abs(result.log_evidence - truth) < 3 * result.log_evidence_error
    assert np.isfinite(result.log_evidence_error)
    assert np.all(result.chains.x[:, :, 0] < 0.0)
    assert np.all(np.isfinite(result.chains.log_density))


@pytest.mark.slow
def test_a_likelihood_that_is_flat_where_it_is_not_zero():
    """A plateau has no order: its points must die together, or the volume is wrong."""
    result = run(problem((0.0, 0.0), 1e6, wall=-1.0), n_live=400)
    flat = 2 * stats.norm(0.0, 1e6).logpdf(0.0)
    assert abs(result.log_evidence - flat - stats.norm.logcdf(-1.0)) < 3 * result.log_evidence_error
    assert result.log_evidence_error < 0.2
    assert not result.stuck
    level = run(problem((0.0, 0.0), 1e12, wall=-1.0), n_live=100)  # flat to the last digit: nothing lies above
    assert level.stuck
    assert len(np.unique(level.points.x[-100:], axis=0)) == 100


def test_draws_of_equal_weight():
    result = run(n_chains=3, n_live=400)
    chains = result.chains
    n = int(result.ess) // 3
    assert chains.x.shape == (3, n, 2)
    assert not chains.diverging.any()
    assert np.all(np.isnan(chains.energy))
    w = np.exp(result.log_weights)
    np.testing.assert_allclose(chains.x.mean(axis=(0, 1)), w @ result.points.x, atol=0.02)
    np.testing.assert_allclose(
        chains.x.std(axis=(0, 1)), np.sqrt(np.diag(np.cov(result.points.x.T, aweights=w))), rtol=0.1
    )
    assert convergence(chains.x).r_hat.max() < 1.02
    assert "e-bfmi" not in verdict(chains, ("a", "b"), target_ess=100.0).codes


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_however_many_walk_at_once():
    first = run(parallel=2)
    assert_same(first, run(parallel=3))
    assert_same(first, run(callback=lambda w: None))
    assert run(seed=(4,)).log_evidence != first.log_evidence


@pytest.mark.slow
def test_one_at_a_time_gives_the_same_run():
    assert run(parallel=1).log_evidence == pytest.approx(run(parallel=2).log_evidence, abs=1e-6)


def test_nothing_is_compiled_twice():
    run()
    before = traces["normal"]
    run(problem((0.3, 0.1), 0.5, wall=1.0), precision=0.1, n_slices=3, seed=(8,))
    assert traces["normal"] == before


@pytest.mark.slow
def test_a_coarser_precision_ends_earlier():
    coarse, fine = run(precision=0.1), run()
    assert 1e-3 < coarse.remaining < 0.1
    assert coarse.evaluations < fine.evaluations
    assert len(coarse.log_weights) < len(fine.log_weights)


def test_a_budget_of_evaluations_ends_the_run():
    result = run(max_evaluations=2000)
    assert 2000 <= result.evaluations < 4000
    assert result.remaining > 0.1
    assert not result.interrupted


def test_a_watch_sees_the_run_and_may_end_it():
    seen = []

    def callback(w):
        seen.append(w)
        return True

    result = run(callback=callback)
    assert len(seen) == 1
    assert seen[0].dead == 20
    assert 0.0 < seen[0].remaining <= 1.0
    assert np.isfinite(seen[0].log_evidence)
    assert len(result.log_weights) == 220
    assert not result.interrupted


def test_ctrl_c_returns_what_there_is():
    def callback(w):
        raise KeyboardInterrupt

    result = run(callback=callback)
    assert result.interrupted
    assert len(result.log_weights) == 220
    assert np.isfinite(result.log_evidence)
    assert result.remaining > 0.1


def test_too_few_live_points_are_refused():
    with pytest.raises(InputError, match="at least 20 live points"):
        run(n_live=10)


def test_a_likelihood_that_is_nowhere_finite_is_a_numerical_error():
    with pytest.raises(NumericalError, match="not finite at any draw"):
        run(problem(wall=-100.0))


# --- weights


def test_a_likelihood_of_one_has_an_evidence_of_one():
    """100 points live, ten blocks of ten deaths: the volumes add up to the prior's, to order 1/K."""
    w = weigh([np.zeros(10) for _ in range(10)], np.zeros(100))
    assert w.log_evidence == pytest.approx(0.0, abs=0.01)
    assert w.information == pytest.approx(0.0, abs=0.01)
    # After ten deaths of a hundred, nine tenths of the volume are left, ten times over.
    assert w.remaining == pytest.approx(0.9**10, rel=0.02)


def test_resampling_is_in_proportion_to_the_weights():
    weights = np.array([0.5, 0.0, 0.3, 0.2])
    with np.errstate(divide="ignore"):
        chosen = equal_weights(np.log(weights), 40.9, 4, np.random.default_rng(0))
    assert chosen.shape == (4, 10)
    np.testing.assert_array_equal(np.bincount(chosen.ravel(), minlength=4), [20, 0, 12, 8])


@pytest.mark.parametrize("below", [25.0, 2000.0])  # nats by which the best point is ahead
def test_a_run_cut_off_while_one_point_has_all_the_weight_is_worth_one_draw(below):
    rng = np.random.default_rng(0)
    dead, live = [np.sort(rng.normal(-5e4, 1e3, 4)) for _ in range(3)], np.append(np.full(39, -900.0 - below), -900.0)
    x = rng.standard_normal((52, 2))
    found = errors(dead, live, x, rng)
    assert 1.0 <= found.ess < 1.1
    chosen = equal_weights(weigh(dead, live).log_weights, found.ess, 4, rng)
    assert chosen.shape == (4, 1)
    assert np.all(chosen == 51)
