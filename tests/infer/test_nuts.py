"""What is NUTS's own; what it owes as a sampler is in tests/contracts/test_samplers.py."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from integrand.errors import NumericalError
from integrand.infer.base import Plan, keep_going
from integrand.infer.coordinates import Coordinates
from integrand.infer.nuts import NUTS
from known_posteriors import COVARIANCE, MEAN, PLAIN, WHITE, FunctionTarget, shifted, starts

PRECISION = np.linalg.inv(COVARIANCE)


def gaussian(x):
    d = x - MEAN
    return -0.5 * float(d @ PRECISION @ d), -PRECISION @ d


def run(log_density=gaussian, coordinates=WHITE, at=None, **options):
    plan = shifted(Plan(**({"warmup": 60, "draws": 60, "seed": (3,)} | options)))
    target = FunctionTarget(log_density, dimension=3)
    return NUTS().run(target, starts(coordinates, 2) if at is None else at, coordinates, plan, keep_going)


def test_statistics_of_the_sampler():
    chains = run(target_accept=0.8, draws=200).chains
    assert np.all((chains.acceptance > 0) & (chains.acceptance <= 1))
    assert 0.7 < chains.acceptance.mean() < 0.97
    assert np.all(chains.n_steps >= 1)
    assert np.all(chains.depth <= 8)
    assert np.all(2.0 ** (chains.depth + 1) > chains.n_steps)
    assert not chains.diverging.any()
    # Energy = potential + kinetic, and the potential is minus the log density.
    assert np.all(chains.energy >= -chains.log_density - 1e-9)


def test_the_depth_limit_holds():
    narrow = Coordinates(MEAN, 0.01 * np.eye(3))
    assert run(coordinates=narrow, max_depth=3, warmup=5).chains.n_steps.max() <= 2**3


def test_a_start_where_the_gradient_is_zero():
    chains = run(coordinates=PLAIN, at=np.array([MEAN, MEAN]), warmup=50, draws=100).chains
    assert np.all(np.ptp(chains.x, axis=1) > 0.5)


@pytest.mark.timeout(60)
def test_a_chain_that_nutpie_gives_up_is_an_error_not_a_wait():
    def flat(x):  # no slope at all in the second coordinate
        return -0.5 * float(x[0] ** 2), np.array([-x[0], 0.0, -x[2]])

    with pytest.raises(NumericalError, match="could not go on"):
        run(flat, coordinates=PLAIN)


def test_a_gradient_that_is_not_a_number_is_a_rejected_proposal():
    def f(x):
        value, gradient = gaussian(x)
        return value, gradient if x[0] < 3.0 else np.full(3, np.nan)

    chains = run(f, draws=200).chains
    assert np.all(np.isfinite(chains.x))
    assert chains.x[:, :, 0].max() < 3.0


@pytest.mark.parametrize("parallel", [1, 2])
def test_evaluations_run_at_the_same_time_only_where_the_plan_says_so(parallel):
    lock, running, most = threading.Lock(), [0], [0]

    def slow(x):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(1e-3)
        with lock:
            running[0] -= 1
        return gaussian(x)

    run(slow, parallel=parallel, warmup=10, draws=10)
    assert most[0] == parallel


@pytest.mark.slow
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
    run(log_density, Coordinates(start[0], np.eye(3)), start, warmup=10, draws=10)
    assert len(threads - {threading.get_ident()}) >= 1
    assert dtypes == {np.dtype("float64")}
    assert not before
    assert not jax.config.jax_enable_x64
    assert jnp.ones(1).dtype == jnp.float32
