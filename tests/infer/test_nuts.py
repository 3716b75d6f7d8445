import signal
import threading

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from integrand.errors import NumericalError
from integrand.infer.chains import Chains
from integrand.infer.metric import Whitening
from integrand.infer.nuts import sample_nuts

MEAN = np.array([2.0, -1.0, 0.3])
COVARIANCE = np.array([[1.0, 0.8, 0.0], [0.8, 2.0, -0.3], [0.0, -0.3, 0.25]])
PRECISION = np.linalg.inv(COVARIANCE)
PLAIN = Whitening(np.zeros(3), np.eye(3))
WHITE = Whitening(MEAN, np.linalg.cholesky(COVARIANCE))


def gaussian(x):
    d = x - MEAN
    return -0.5 * float(d @ PRECISION @ d), -PRECISION @ d


def run(log_density=gaussian, whitening=WHITE, seed=(3,), chains=2, tune=60, draws=60, **keywords):
    starts = np.random.default_rng(9).standard_normal((chains, len(whitening.centre))) + whitening.centre
    return sample_nuts(log_density, starts, whitening, tune=tune, draws=draws, seed=list(seed), **keywords)


def assert_same(a: Chains, b: Chains):
    for name, left, right in zip(Chains._fields, a, b, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=name)


def assert_mean(draws, truth, errors=4.0):
    """The mean of the draws (chain, draw) is the truth within so many Monte Carlo standard errors."""
    mcse = draws.std() / np.sqrt(float(arviz.ess(draws, method="mean")))
    assert abs(draws.mean() - truth) < errors * mcse, (draws.mean(), truth, mcse)
    return mcse


@pytest.mark.parametrize("whitening", [PLAIN, WHITE], ids=["plain", "white"])
def test_mean_and_covariance_of_a_correlated_gaussian(whitening):
    result = run(whitening=whitening, chains=4, tune=150, draws=700)
    x = result.chains.x
    assert x.shape == (4, 700, 3)
    assert not result.interrupted
    assert result.tuning_draws == 150
    for i in range(3):
        assert assert_mean(x[:, :, i], MEAN[i]) < 0.05 * np.sqrt(COVARIANCE[i, i])
        for j in range(i + 1):
            assert_mean((x[:, :, i] - MEAN[i]) * (x[:, :, j] - MEAN[j]), COVARIANCE[i, j])


def test_statistics_of_the_sampler():
    chains = run(target_accept=0.8, draws=200).chains
    for c in range(2):
        for n in (0, 7, 199):
            assert chains.log_density[c, n] == pytest.approx(gaussian(chains.x[c, n])[0], abs=1e-9)
    assert np.all((chains.acceptance > 0) & (chains.acceptance <= 1))
    assert 0.7 < chains.acceptance.mean() < 0.97
    assert np.all(chains.n_steps >= 1)
    assert np.all(chains.depth <= 8)
    assert np.all(2.0 ** (chains.depth + 1) > chains.n_steps)
    assert not chains.diverging.any()
    assert np.all(chains.step_size > 0)
    # Energy = potential + kinetic, and the potential is minus the log density.
    assert np.all(chains.energy >= -chains.log_density - 1e-9)


def test_the_depth_limit_holds():
    assert run(whitening=Whitening(MEAN, 0.01 * np.eye(3)), max_depth=3, tune=5).chains.n_steps.max() <= 2**3


# --- the same seed


def test_same_seed_same_draws_however_many_run_at_once():
    first = run(parallel=1, chains=3)
    assert_same(first.chains, run(parallel=2, chains=3).chains)
    assert_same(first.chains, run(parallel=3, chains=3).chains)


def test_another_seed_gives_other_draws_and_so_does_another_chain():
    first, second = run().chains, run(seed=(4,)).chains
    assert not np.any(np.all(first.x == second.x, axis=2))
    assert not np.any(np.all(first.x[0] == first.x[1], axis=1))


# --- failures


@pytest.mark.parametrize("value", [-np.inf, np.nan, np.inf])
def test_a_hole_is_a_rejected_proposal(value):
    """A normal cut off at 0.5: outside, the density is not a number of any use."""
    calls = []

    def cut(x):
        calls.append(x[0])
        if x[0] > 0.5:
            return value, np.full(1, np.nan)
        return -0.5 * float(x @ x), -x

    chains = sample_nuts(
        cut, np.full((4, 1), -0.5), Whitening(np.zeros(1), np.eye(1)), tune=150, draws=600, seed=[1]
    ).chains
    assert max(calls) > 0.5
    assert chains.x.max() <= 0.5
    truth = stats.truncnorm(-np.inf, 0.5)
    assert_mean(chains.x[:, :, 0], truth.mean(), errors=5.0)
    assert np.all(np.isfinite(chains.log_density))


def test_an_error_in_the_log_density_reaches_the_caller():
    lock, calls = threading.Lock(), []

    class Mine(LookupError):
        pass

    def f(x):
        with lock:
            calls.append(1)
        if len(calls) > 80:
            raise Mine("in the density")
        return gaussian(x)

    before = threading.active_count()
    with pytest.raises(Mine, match="in the density"):
        run(f, draws=10_000)
    assert threading.active_count() <= before + 1
    assert run().chains.n_draws == 60  # and the next run is not hurt


def test_a_start_without_density_is_a_numerical_error():
    with pytest.raises(NumericalError, match="where a chain should start"):
        run(lambda x: (-np.inf, np.zeros(3)))


def test_a_start_where_the_slope_is_zero():
    chains = sample_nuts(gaussian, np.array([MEAN, MEAN]), PLAIN, tune=50, draws=100, seed=[0]).chains
    assert np.all(np.ptp(chains.x, axis=1) > 0.5)


@pytest.mark.timeout(60)
def test_a_chain_that_nutpie_gives_up_is_an_error_not_a_wait():
    def flat(x):  # no slope at all in the second coordinate
        return -0.5 * float(x[0] ** 2), np.array([-x[0], 0.0, -x[2]])

    with pytest.raises(NumericalError, match="could not go on"):
        run(flat, whitening=PLAIN)


def test_a_gradient_that_is_not_a_number_is_a_rejected_proposal():
    def f(x):
        value, gradient = gaussian(x)
        return value, gradient if x[0] < 3.0 else np.full(3, np.nan)

    chains = run(f, draws=200).chains
    assert np.all(np.isfinite(chains.x))
    assert chains.x[:, :, 0].max() < 3.0


# --- watching


def test_a_watch_ends_the_run_at_a_number_that_the_draws_determine():
    everything = run(draws=400).chains
    seen = []

    def watch(w):
        seen.append((w.done, w.chains.n_draws, w.seconds))
        return 37 if w.chains.n_draws >= 37 else None

    result = run(draws=400, watch=watch)
    assert result.chains.n_draws == 37
    assert not result.interrupted
    assert_same(result.chains, everything.first(37))
    done, n_draws, seconds = (np.array(column) for column in zip(*seen, strict=True))
    for column in (done, n_draws, seconds):
        assert np.all(np.diff(column) >= 0)
    np.testing.assert_array_equal(n_draws, np.maximum(done - 60, 0))


def test_what_a_watch_sees_is_a_prefix():
    final = run(draws=300).chains
    seen = []
    result = run(draws=300, watch=lambda w: seen.append(w.chains))
    assert_same(result.chains, final)
    assert seen[0].x.shape[0] == 2
    for chains in seen[:: max(1, len(seen) // 5)]:
        assert_same(chains, final.first(chains.n_draws))


@pytest.mark.parametrize("how", ["raise", "signal"])
def test_ctrl_c_returns_the_draws_so_far(how):
    def watch(w):
        if w.chains.n_draws >= 20:
            if how == "raise":
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)

    def slow(x):
        threading.Event().wait(1e-4)
        return gaussian(x)

    result = run(slow, draws=20_000, watch=watch)
    assert result.interrupted
    n = result.chains.n_draws
    assert 20 <= n < 20_000
    assert result.chains.x.shape == (2, n, 3)
    assert_same(result.chains.first(20), run(draws=20).chains)


def test_ctrl_c_while_tuning_returns_no_draws():
    def watch(w):
        if w.done >= 5:
            raise KeyboardInterrupt

    def slow(x):
        threading.Event().wait(1e-3)
        return gaussian(x)

    result = run(slow, tune=5_000, watch=watch)
    assert result.interrupted
    assert result.chains.x.shape == (2, 0, 3)
    assert 5 <= result.tuning_draws < 5_000


def test_an_error_in_the_watch_reaches_the_caller():
    def watch(w):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run(draws=5_000, watch=watch)


# --- precision


def test_float64_in_the_samplers_threads_and_flags_as_they_were():
    from integrand import RBF, Dataset, Model
    from integrand.targets import CollapsedTarget

    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 1))
    model = Model(RBF(), 1)
    target = CollapsedTarget(model, Dataset.of(X, np.sin(X[:, 0])))
    threads, dtypes = set(), set()

    def log_density(phi):
        e = target.evaluate(phi, X[:5])
        threads.add(threading.get_ident())
        dtypes.update({phi.dtype, e.gradient.dtype, e.dZ.dtype})
        return e.log_density, e.gradient

    before = jax.config.jax_enable_x64
    start = model.start()[None]
    sample_nuts(log_density, start, Whitening(start[0], np.eye(3)), tune=10, draws=10, seed=[0])
    assert len(threads - {threading.get_ident()}) >= 1
    assert dtypes == {np.dtype("float64")}
    assert not before
    assert not jax.config.jax_enable_x64
    assert jnp.ones(1).dtype == jnp.float32


def test_chains_join_and_split():
    whole = run(draws=50).chains
    assert_same(whole.first(20).then(Chains(*(a[:, 20:] for a in whole))), whole)
    assert whole.first(20).n_draws == 20
