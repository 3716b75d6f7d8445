import jax
import jax.numpy as jnp
import numpy as np
import pytest

import known_posteriors as known
from integrand.errors import InputError, NumericalError
from integrand.infer.base import Chains, Plan, TracedRows, keep_going
from integrand.infer.convergence import convergence
from integrand.infer.coordinates import Coordinates
from integrand.infer.sghmc import SGHMC

traces = {"logit": 0}

# --- logistic regression with few rows and an intercept far from zero: a skew posterior, known by quadrature

rng = np.random.default_rng(3)
N = 120
DESIGN = np.column_stack([np.ones(N), rng.standard_normal((N, 2))])
ANSWERS = (rng.uniform(size=N) < 1.0 / (1.0 + np.exp(-DESIGN @ [-1.5, 1.0, 2.0]))).astype(float)


def logit_log_prior(x, data):
    return -0.5 * x @ x / data


def logit_rows(x, rows, data):
    traces["logit"] += 1
    design, answers = rows
    score = design @ x
    return jnp.sum(answers * score - jnp.logaddexp(0.0, score))


LOGIT = TracedRows(logit_log_prior, logit_rows, (DESIGN, ANSWERS), np.asarray(25.0))


def quadrature():
    """Mean and covariance by a product rule around the mode, to about 1e-6."""

    def log_density(b):
        score = b @ DESIGN.T
        return np.sum(ANSWERS * score - np.logaddexp(0.0, score), axis=-1) - 0.5 * np.sum(b**2, axis=-1) / 25.0

    mode, precision = np.zeros(3), np.eye(3)
    for _ in range(30):  # Newton
        p = 1.0 / (1.0 + np.exp(-DESIGN @ mode))
        precision = DESIGN.T @ (DESIGN * (p * (1 - p))[:, None]) + np.eye(3) / 25.0
        mode = mode + np.linalg.solve(precision, DESIGN.T @ (ANSWERS - p) - mode / 25.0)
    axis = np.linspace(-7.0, 7.0, 41)
    eta = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)
    grid = mode + eta @ np.linalg.cholesky(np.linalg.inv(precision)).T
    log_weight = log_density(grid)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    mean = weight @ grid
    return mean, (grid - mean).T @ ((grid - mean) * weight[:, None])


TRUE_MEAN, TRUE_COVARIANCE = quadrature()
TRUE_SD = np.sqrt(np.diag(TRUE_COVARIANCE))
WHITENING = Coordinates(TRUE_MEAN, np.linalg.cholesky(TRUE_COVARIANCE))


def run(
    rows=LOGIT,
    coordinates=WHITENING,
    seed=(3,),
    chains=2,
    warmup=40,
    draws=40,
    parallel=2,
    first=None,
    callback=keep_going,
    **options,
):
    first = known.starts(coordinates, chains) if first is None else first
    plan = Plan(warmup, draws, seed, parallel)
    return SGHMC(rows, **options).run(known.UNUSED, first, coordinates, plan, callback)


def assert_same(a: Chains, b: Chains):
    for name, left, right in zip(Chains._fields, a, b, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=name)


@pytest.mark.parametrize("batch_size", [10, *(pytest.param(size, marks=pytest.mark.slow) for size in (None, N))])
def test_means_and_sds_of_a_logistic_regression(batch_size):
    result = run(chains=4, warmup=150, draws=1000, batch_size=batch_size)
    x = result.chains.x
    found = convergence(x)
    bias, ratio = (x.mean(axis=(0, 1)) - TRUE_MEAN) / TRUE_SD, x.std(axis=(0, 1)) / TRUE_SD
    steps, size = result.chains.n_steps[0, 0], result.chains.step_size[0, 0]
    print(f"B = {batch_size}: bias {bias.round(3)}, sd {ratio.round(3)}, {steps} x {size:.3f}, ESS {found.ess_bulk}")
    assert found.ess_bulk.min() >= 400
    # Half of the promise (0.2): with a tenth of the rows, the minibatches' noise alone would widen the sds by more.
    assert np.abs(bias).max() < 0.1
    assert np.abs(ratio - 1.0).max() < 0.1


def gp_rows(x, rows, data):
    """A GP's likelihood is no sum over rows: all data are the one row there is."""
    return jnp.sum(jax.vmap(lambda inputs, y: known.gp_log_likelihood(x, (inputs, y)))(*rows))


@pytest.mark.slow
def test_a_posterior_known_by_quadrature():
    target = TracedRows(known.gp_log_prior, gp_rows, (known.X[None], known.Y[None]), ())
    x = run(target, known.GP_WHITENING, chains=4, warmup=100, draws=1000).chains.x
    theta = np.exp(x)
    bias = (theta.mean(axis=(0, 1)) - known.GP_MEAN) / known.GP_SD
    ratio = theta.std(axis=(0, 1)) / known.GP_SD
    print(f"bias {bias.round(3)}, sd {ratio.round(3)}, ESS {convergence(x).ess_bulk.round()}")
    assert convergence(x).ess_bulk.min() >= 400
    assert np.abs(bias).max() < 0.2
    assert np.abs(ratio - 1.0).max() < 0.2


@pytest.mark.slow
def test_statistics():
    result = run()
    c = result.chains
    assert c.x.shape == (2, 40, 3)
    assert np.all(np.isfinite(c.log_density))
    assert np.all(np.isnan(c.energy))
    assert np.all(c.acceptance == 1.0)
    assert not c.diverging.any()
    assert np.all(c.n_steps == c.n_steps[0, 0])
    assert result.evaluations == 2 + 2 * 80 * c.n_steps[0, 0]
    assert result.warmup == 40


@pytest.mark.slow
def test_with_all_rows_the_log_density_is_exact():
    c = run(batch_size=N, draws=10).chains
    score = c.x @ DESIGN.T
    exact = np.sum(ANSWERS * score - np.logaddexp(0.0, score), axis=-1) - 0.5 * np.sum(c.x**2, axis=-1) / 25.0
    np.testing.assert_allclose(c.log_density, exact, rtol=1e-10)


def test_same_seed_same_draws_and_a_watch_sees_a_prefix():
    everything = run(draws=600, chains=3).chains
    assert_same(everything, run(draws=600, chains=3, parallel=3).chains)
    assert not np.any(everything.x[0] == everything.x[1])
    assert not np.any(run(draws=600, chains=3, seed=(4,)).chains.x == everything.x)
    result = run(draws=600, chains=3, callback=lambda w: 7 if w.chains.n_draws >= 7 else None)
    assert result.chains.n_draws == 7
    assert_same(result.chains, everything.first(7))


def test_nothing_is_compiled_twice():
    run()
    before = traces["logit"]
    other = LOGIT._replace(rows=(DESIGN[::-1].copy(), 1.0 - ANSWERS), data=np.asarray(4.0))
    run(other, warmup=3, draws=300, step_size=0.05, friction=2.0, thin=3, chains=3)
    assert traces["logit"] == before


def test_ctrl_c_returns_the_draws_so_far():
    def callback(w):
        if w.chains.n_draws >= 20:
            raise KeyboardInterrupt

    result = run(draws=1_000_000, callback=callback)
    assert result.interrupted
    assert 20 <= result.chains.n_draws < 1_000_000
    assert_same(result.chains.first(20), run(draws=20).chains)


def walled_rows(x, rows, data):
    return jnp.where(x[0] > data, jnp.nan, 0.0) + 0.0 * jnp.sum(rows)


def standard_normal(x, data):
    return -0.5 * x @ x


@pytest.mark.slow
def test_a_wall_is_bounced_off():
    """Half a normal: the step that left is taken back, so nothing that is not a number is ever kept."""
    target = TracedRows(standard_normal, walled_rows, np.zeros(4), np.asarray(0.0))
    flat = Coordinates(np.zeros(2), np.eye(2))
    first = np.full((4, 2), -0.5)
    result = run(target, flat, (0,), warmup=100, draws=1000, first=first, step_size=0.05)
    x = result.chains.x
    assert np.all(np.isfinite(x))
    assert x[:, :, 0].max() <= 0.0
    assert result.chains.diverging.any()
    # All rows at every step: the density told is the one where the chain stands, taken back or not.
    np.testing.assert_allclose(result.chains.log_density, -0.5 * np.sum(x**2, axis=2), rtol=1e-10)
    assert abs(x[:, :, 0].mean() + np.sqrt(2.0 / np.pi)) < 0.2
    assert abs(x[:, :, 1].std() - 1.0) < 0.1
    with pytest.raises(NumericalError, match="where a chain should start"):
        run(target, flat, (0,), warmup=1, draws=1, first=first + 1.0)


def notched_normal(x, data):
    """A normal with a notch 20 nats deep and far narrower than a step."""
    return -0.5 * x @ x - 20.0 * jnp.exp(-0.5 * ((x[0] - 0.5) / data) ** 2)


@pytest.mark.parametrize("batch_size", [pytest.param(4, marks=pytest.mark.slow), 2])
def test_a_narrow_notch_throws_no_chain_out(batch_size):
    """Its slope is 12 000 standard deviations a step: chains land there some fifty times, and go on."""
    target = TracedRows(notched_normal, lambda x, rows, data: jnp.sum(rows), np.zeros(4), np.asarray(1e-3))
    flat = Coordinates(np.zeros(2), np.eye(2))
    options = {"batch_size": batch_size, "step_size": 0.05, "thin": 40}
    x = run(target, flat, (1,), warmup=100, draws=250, first=np.zeros((4, 2)), **options).chains.x
    assert np.abs(x).max() < 6.0
    assert np.abs(x.mean(axis=(0, 1))).max() < 0.25
    assert np.abs(x.std(axis=(0, 1)) - 1.0).max() < 0.2


@pytest.mark.parametrize("bad", [{"batch_size": 7}, {"batch_size": 0}, {"step_size": 0.0}, {"step_size": 2.0}])
def test_a_setting_that_cannot_be_is_named(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        run(**bad)
