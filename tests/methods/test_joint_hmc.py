"""`joint-hmc`: posteriors known by quadrature or from a reference, other likelihoods, and what a fit owes its user."""

import warnings
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import integrand
from integrand import RBF, ConvergenceWarning, Gamma, HalfNormal, InputError, Jitter, LogNormal, on_variance, targets
from integrand.data.dataset import Dataset
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows
from integrand.errors import NumericalError
from integrand.likelihoods import Gaussian, Poisson, StudentT
from integrand.methods import joint_hmc
from integrand.methods import joint_hmc as minibatch
from integrand.methods import sampling as callback
from integrand.methods import warm_start as joint_start
from integrand.methods.problem import Problem, Settings
from integrand.methods.warm_start import log_evidence
from integrand.model import Model
from integrand.precision import float64_scope
from integrand.storage.model_file import load_model, save_model
from integrand.storage.run_directory import RunDirectory
from integrand.storage.run_store import RunStore
from integrand.targets import CollapsedTarget, JointTarget
from integrand.targets.laplace import LaplaceTarget

# posteriordb: gp_pois_regr-gp_regr (y, by quadrature) and gp_pois_regr-gp_pois_regr (counts, its reference draws).
X = np.arange(-10.0, 11.0, 2.0)[:, None]
Y = np.array([4.75906, 1.59423, 2.99548, 5.27501, 1.66472, 2.24347, 2.8914, 4.08681, 4.60588, 0.802364, 3.92136])
COUNTS = np.array([40.0, 37.0, 29.0, 12.0, 4.0, 3.0, 9.0, 19.0, 77.0, 82.0, 33.0])
QUADRATURE = {"rho": (6.89343, 1.28970), "alpha": (2.43810, 0.79007), "sigma": (1.83169, 0.50018)}
REFERENCE = {"rho": (5.6665, 0.676), "alpha": (2.9213, 0.786)}
ANCHOR = {
    "method": "joint-hmc",
    "Z": X,
    "jitter": Jitter(0.0, 1e-10),
    "target_accept": 0.8,
    "seed": 1,
}
SHORT = {"method": "joint-hmc", "n_inducing": 8, "chains": 2, "warmup": 20, "target_ess": 1e6, "max_draws": 40}


def mcse(x, method="mean"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz

        return float(arviz.mcse(np.ascontiguousarray(x), method=method))


def quadrature_fit(**settings):
    kernel = RBF(lengthscale=Gamma(25.0, 4.0), scale=HalfNormal(2.0))
    rows = ArrayRows(X, Y, scaler=Standardiser.identity(1))
    posterior = integrand.fit(rows, kernel=kernel, noise=on_variance(HalfNormal(1.0)), **(ANCHOR | settings))
    theta = posterior.theta
    return posterior, {"rho": theta["lengthscale"][..., 0], "alpha": theta["scale"], "sigma": theta["noise"] ** 2}


def assert_agrees(draws, truth, own_error=0.0):
    for name, (mean, sd) in truth.items():
        error = np.hypot(mcse(draws[name]), own_error)
        assert error < 0.05 * sd, f"{name}: {error / sd:.3f} of the sd"
        assert abs(draws[name].mean() - mean) < 4 * error, f"{name}: z = {(draws[name].mean() - mean) / error:.2f}"
        print(name, f"z {(draws[name].mean() - mean) / error:+.2f}")


def short(data, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return integrand.fit(*data, **(SHORT | settings))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((40, 2))
    return inputs, np.sin(2 * inputs[:, 0]) + 0.2 * rng.standard_normal(40)


# --- the right posterior


@pytest.mark.slow
def test_quadrature_posterior():
    posterior, draws = quadrature_fit(target_ess=1_000, max_draws=2_000)
    assert posterior.verdict.ok
    assert_agrees(draws, QUADRATURE)
    for name, (_, sd) in QUADRATURE.items():
        assert abs(draws[name].std() - sd) < 4 * mcse(draws[name], "sd")


@pytest.mark.slow
def test_poisson_reference():
    kernel = RBF(lengthscale=Gamma(25.0, 4.0), scale=HalfNormal(2.0))
    rows = ArrayRows(X, COUNTS, scaler=Standardiser.identity(1))
    posterior = integrand.fit(rows, kernel=kernel, likelihood="poisson", target_ess=1_000, max_draws=2_000, **ANCHOR)
    assert posterior.verdict.ok
    assert posterior.model.names == ("lengthscale[x0]", "scale")
    theta = posterior.theta
    assert_agrees({"rho": theta["lengthscale"][..., 0], "alpha": theta["scale"]}, REFERENCE, own_error=0.007)
    # The rates follow the counts, and a draw of y is a count.
    predictive = posterior.predict(X, include_noise=True)
    assert np.max(np.abs(predictive.mean - COUNTS) / np.sqrt(COUNTS)) < 2.0


@pytest.mark.slow
def test_quadrature_posterior_by_hmc():
    _, draws = quadrature_fit(sampler="hmc", target_ess=2_000, max_draws=3_000)
    assert_agrees(draws, QUADRATURE)


def test_both_sets_of_coordinates_hold_one_density():
    """What is drawn over (φ, ε) is the density of Hensman et al. over (φ, v) with the Jacobian of v = m + LB⁻ᵀ ε."""
    model = Model(RBF(lengthscale=Gamma(25.0, 4.0), scale=HalfNormal(2.0)), 1, noise=on_variance(HalfNormal(1.0)))
    target = JointTarget(model, Dataset.of(X, Y), Jitter(0.0, 1e-10))
    sites = target.sites(model.start(), X)
    rng = np.random.default_rng(0)
    for _ in range(3):
        x = np.concatenate([model.start() + 0.3 * rng.standard_normal(3), rng.standard_normal(11)])
        m, LB = target.moments(x[:3], X, sites)
        v, log_jacobian = target.inducing_values(x[:3], x[3:], X, sites)
        np.testing.assert_allclose(LB.T @ (v - m), x[3:], rtol=1e-8, atol=1e-8)
        plain = target.evaluate(np.concatenate([x[:3], v]), X)[0]
        assert target.evaluate(x, X, sites)[0] == pytest.approx(plain + log_jacobian, rel=1e-10)


# --- other likelihoods


@lru_cache
def prior_sets(n_sets, n_rows, seed=5):
    """Data sets from the prior: inputs, f, and the probability of 1."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n_sets):
        inputs = np.sort(rng.uniform(-2.0, 2.0, n_rows))[:, None]
        ell, scale = np.exp(0.3 * rng.standard_normal()), 2.0 * np.exp(0.3 * rng.standard_normal())
        K = scale**2 * np.exp(-0.5 * (inputs - inputs.T) ** 2 / ell**2)
        f = np.linalg.cholesky(K + 1e-9 * np.eye(n_rows)) @ rng.standard_normal(n_rows)
        p = 1.0 / (1.0 + np.exp(-f))
        found.append((inputs, p, (rng.uniform(size=n_rows) < p).astype(float)))
    return found


@pytest.mark.slow
def test_bernoulli_probabilities_are_calibrated():
    """Probabilities of held-out outcomes, over data sets from the prior: as many ones as the sum of them says."""
    predicted, outcomes = [], []
    for k, (inputs, _, y) in enumerate(prior_sets(40, 60)):
        train, test = np.arange(60) % 3 != 0, np.arange(60) % 3 == 0
        if np.ptp(y[train]) == 0:
            continue
        posterior = short(
            (ArrayRows(inputs[train], y[train], scaler=Standardiser.identity(1)),),
            kernel=RBF(lengthscale=LogNormal(0.0, 0.3), scale=LogNormal(np.log(2.0), 0.3)),
            likelihood="bernoulli",
            chains=2,
            warmup=40,
            max_draws=150,
            n_inducing=15,
            seed=k,
        )
        predicted.append(posterior.predict(inputs[test], include_noise=True).mean)
        outcomes.append(y[test])
    predicted, outcomes = np.concatenate(predicted), np.concatenate(outcomes)
    assert len(predicted) > 600
    # In five groups by predicted probability: the number of ones, in standard deviations of what was predicted.
    edges = np.quantile(predicted, np.linspace(0.0, 1.0, 6))
    group = np.clip(np.searchsorted(edges, predicted) - 1, 0, 4)

    def deviations(p):
        return np.bincount(group, outcomes - p) / np.sqrt(np.bincount(group, p * (1.0 - p)))

    print("z of the groups", np.round(deviations(predicted), 2))
    assert np.max(np.abs(deviations(predicted))) < 3.5
    overconfident = predicted**2 / (predicted**2 + (1.0 - predicted) ** 2)  # twice the logit
    assert np.max(np.abs(deviations(overconfident))) > 3.5
    # And they are worth something: better than the base rate.
    base = outcomes.mean()
    score = np.mean(outcomes * np.log(predicted) + (1 - outcomes) * np.log1p(-predicted))
    assert score > base * np.log(base) + (1 - base) * np.log1p(-base) + 0.1


@pytest.mark.slow
def test_bernoulli_recovers_probabilities():
    inputs, p, y = prior_sets(1, 150)[0]
    posterior = short((inputs, y), likelihood="bernoulli", chains=2, warmup=40, max_draws=150, n_inducing=12)
    predicted = posterior.predict(inputs, include_noise=True).mean
    assert np.sqrt(np.mean((predicted - p) ** 2)) < 0.15
    z = (y.sum() - predicted.sum()) / np.sqrt(np.sum(predicted * (1 - predicted)))
    assert abs(z) < 3.0
    assert np.all((predicted > 0.0) & (predicted < 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("count", [0.0, 3.0])
def test_equal_counts_are_counts(data, count):
    """They say how large the rate is, unlike the constant that a standardised y would be."""
    posterior = short((data[0], np.full(40, count)), likelihood="poisson", max_draws=40)
    rate = posterior.predict(data[0], include_noise=True).mean
    assert abs(rate.mean() - count) < 1.0


@pytest.mark.slow
def test_student_t_resists_an_outlier():
    rng = np.random.default_rng(3)
    inputs = np.linspace(-2.0, 2.0, 40)[:, None]
    truth = np.sin(2.0 * inputs[:, 0])
    y = truth + 0.1 * rng.standard_normal(40)
    y[20] += 8.0
    common = {"chains": 2, "warmup": 40, "max_draws": 150, "n_inducing": 10}
    near = np.abs(inputs[:, 0] - inputs[20, 0]) < 0.5
    robust = short((inputs, y), likelihood=StudentT(df=4.0), **common)
    gaussian = short((inputs, y), method="map", n_inducing=10)
    robust_error, gaussian_error = (
        np.sqrt(np.mean((p.predict(inputs, include_noise=False).mean - truth)[near] ** 2)) for p in (robust, gaussian)
    )
    assert robust_error < 0.15
    assert robust_error < 0.5 * gaussian_error


# --- what a fit owes its user


@pytest.fixture(scope="module")
def posterior(data):
    return short(data, max_draws=100)


@pytest.mark.slow
def test_what_it_tells(posterior, data):
    assert posterior.method == "joint-hmc"
    assert posterior.chains.x.shape == (2, 100, 4)
    assert posterior.conditional.factors.shape == (200, 0, 0)
    assert posterior.conditional.weights.shape == (200, 8)
    assert posterior.Z_path.shape == (1, 8, 2)
    assert [point.phase for point in posterior.history] == ["warm start"]
    assert "ess-bulk" in posterior.verdict.codes
    predictive = posterior.predict(data[0], include_noise=True)
    assert np.sqrt(np.mean((predictive.mean - data[1]) ** 2)) < 0.35


@pytest.mark.slow
def test_agrees_with_the_collapsed_bound(posterior, data):
    """For Gaussian noise the marginal of θ is that of sgpr-hmc-fixed-z, and so are the predictions."""
    other = short(data, method="sgpr-hmc-fixed-z", Z=posterior.Z, max_draws=100)
    a, b = (p.predict(data[0], include_noise=False) for p in (posterior, other))
    assert np.max(np.abs(a.mean - b.mean)) < 0.1
    np.testing.assert_allclose(a.sd, b.sd, rtol=0.5)


def test_a_second_fit_traces_nothing(posterior, data):
    before = dict(targets.trace_counts)
    short((data[0][::-1] + 1.0, data[1] ** 2), seed=3)
    assert targets.trace_counts == before


@pytest.mark.slow
def test_a_saved_model_predicts_the_same(posterior, data, tmp_path):
    save_model(posterior, tmp_path / "model", settings=SHORT)
    loaded = load_model(tmp_path / "model").posterior
    for include_noise in (True, False):
        one, two = (p.predict(data[0], include_noise=include_noise) for p in (posterior, loaded))
        np.testing.assert_array_equal(one.mean, two.mean)
        np.testing.assert_array_equal(one.variance, two.variance)


@pytest.mark.slow
def test_the_papers_schedule(data, monkeypatch, tmp_path):
    for name, value in {"PAPER_STEPS": 30, "PAPER_WARMUP": 60, "PAPER_DRAWS": 80, "PAPER_PREDICTIVE": 7}.items():
        monkeypatch.setattr(joint_hmc, name, value)
    with pytest.warns(ConvergenceWarning):
        posterior = integrand.fit(*data, **(SHORT | {"schedule": "paper"}))
    assert posterior.chains.x.shape == (1, 80, 4)
    assert np.all(posterior.chains.n_steps == 10)
    assert posterior.predict(data[0], include_noise=True).n_draws == 7
    with pytest.raises(InputError, match="keeps no state on disk"):
        integrand.fit(*data, run_dir=tmp_path / "run", **(SHORT | {"schedule": "paper"}))


class Killed(SystemExit):
    """Stands for a kill: no code of the library catches it."""


def test_resume_after_a_kill(data, tmp_path, monkeypatch):
    run_dir = tmp_path / "run"
    monkeypatch.setattr(callback, "SAVE_SECONDS", 0.0)
    save = RunStore.save_draws

    def then_die(self, *arguments):
        save(self, *arguments)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(RunStore, "save_draws", then_die)
        with pytest.raises(Killed):
            short(data, run_dir=run_dir, max_draws=400)
    before = RunStore(RunDirectory.open(run_dir))
    kept = before.draws()
    before.directory.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        resumed = integrand.resume(run_dir)
        assert resumed.chains.n_draws == 400
        np.testing.assert_array_equal(resumed.chains.x[:, : kept.n_draws], kept.x[:, :, :4])
    assert np.all(np.isfinite(resumed.predict(data[0], include_noise=True).mean))


@pytest.mark.slow
def test_the_sites_on_disk_serve_any_sampler(data, tmp_path):
    """These rows are few enough for SG-HMC to use them all."""
    before = short(data, run_dir=tmp_path / "run", max_draws=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        more = integrand.resume(tmp_path / "run", sampler="sghmc", max_draws=30)
    np.testing.assert_array_equal(more.chains.x[:, :20], before.chains.x)


@pytest.mark.slow
def test_sghmc_on_some_rows_is_not_gone_on_with_by_others(data, tmp_path, monkeypatch):
    monkeypatch.setattr(minibatch, "SITE_ROWS", 20)
    run_dir = tmp_path / "run"
    posterior = short(data, n_inducing=5, sampler="sghmc", batch_size=20, run_dir=run_dir, max_draws=20)
    assert np.all(np.isfinite(posterior.predict(data[0], include_noise=True).mean))
    with pytest.raises(InputError, match="begun with sampler='sghmc'"):
        integrand.resume(run_dir, sampler="nuts")


def test_mistakes(data, as_users_see_it):
    inputs, y = data
    with pytest.raises(InputError, match=r"constant \(`method=.map.`"):
        integrand.fit(inputs, np.ones(40), method="joint-hmc")
    with pytest.raises(InputError, match=r"constant$"):
        integrand.fit(inputs, np.ones(40), method="joint-hmc", likelihood="student-t")
    with pytest.raises(InputError, match="one class only: there is nothing to tell apart"):
        integrand.fit(inputs, np.ones(40), method="joint-hmc", likelihood="bernoulli")
    with pytest.raises(InputError, match="NaN"):
        integrand.fit(np.where(inputs == inputs[0, 0], np.nan, inputs), y, method="joint-hmc")
    with pytest.raises(InputError, match="no sampler 'slice': it has nuts, hmc, sghmc"):
        integrand.fit(inputs, y, method="joint-hmc", sampler="slice")
    with pytest.raises(InputError, match="bernoulli likelihood wants 0 and 1"):
        integrand.fit(inputs, y, method="joint-hmc", likelihood="bernoulli")


# --- the target


@pytest.mark.slow
def test_target_in_its_forms(data):
    """Value, gradient, traced parts, and a sum over batches of rows: one density."""
    inputs, y = data
    model = Model(RBF(), 2, likelihood=Poisson())
    rows, Z = Dataset.of(inputs, np.round(np.exp(y)), 20), inputs[:5] + 0.1
    target = JointTarget(model, rows, Jitter(0.0))
    rng = np.random.default_rng(1)
    phi, epsilon = model.start(), rng.standard_normal(5)
    x = np.concatenate([phi, epsilon])
    value, gradient = target.evaluate(x, Z)
    step = 1e-5 * np.eye(len(x))
    numeric = [(target.evaluate(x + d, Z)[0] - target.evaluate(x - d, Z)[0]) / 2e-5 for d in step]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-5)
    assert target.counter.gradients == 1 + 2 * len(x)

    everything = np.concatenate([phi, Z.ravel(), epsilon])
    with_Z, slope = target.evaluate_with_Z(everything)
    assert with_Z == value
    np.testing.assert_array_equal(slope[:3], gradient[:3])
    np.testing.assert_array_equal(slope[-5:], gradient[3:])

    sites = target.sites(phi, Z)
    centred = target.evaluate(x, Z, sites)[0]
    with float64_scope():
        x, everything, traced = jnp.asarray(x), jnp.asarray(everything), target.traced(Z)
        parts = sum(jax.jit(f)(x, traced.data) for f in traced[:2])
        assert float(parts) == pytest.approx(value, rel=1e-12)
        traced = target.traced(Z, sites)
        parts = sum(jax.jit(f)(x, traced.data) for f in traced[:2])
        assert float(parts) == pytest.approx(centred, rel=1e-12)
        # By batches of rows: with the sites of all rows, and with those of some and Z among the unknowns.
        normal = stats.norm.logpdf(Z).sum()
        for some, point, fixed, added in (
            (np.zeros(0, int), x, Z, 0.0),
            (np.arange(0, 40, 2), everything, None, normal),
        ):
            surrogate = target.surrogate(phi, Z, some)
            v, log_jacobian = target.inducing_values(phi, epsilon, Z, *surrogate)
            expected = target.evaluate(np.concatenate([phi, v]), Z)[0] + log_jacobian + added
            from_rows = target.from_rows(surrogate, Z, move_Z=fixed is None)
            assert from_rows.value_and_gradient(np.asarray(point))[0] == pytest.approx(expected, rel=1e-10)
            by_rows = from_rows.rows()
            fit = jax.jit(by_rows.log_likelihood_rows)
            total = sum(float(fit(point, tuple(a[i::2] for a in by_rows.rows), by_rows.data)) for i in range(2))
            prior = float(jax.jit(by_rows.log_prior)(point, by_rows.data))
            assert prior + total == pytest.approx(expected, rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "likelihood", [Gaussian(), pytest.param(Poisson(), marks=pytest.mark.slow)], ids=["gaussian", "poisson"]
)
def test_the_evidence_that_is_told(data, likelihood):
    """The collapsed bound for Gaussian noise; else log p(y | θ) with neither priors nor Jacobians in it."""
    inputs, y = data
    y = y if isinstance(likelihood, Gaussian) else np.round(np.exp(y))
    model, rows, jitter = Model(RBF(), 2, likelihood=likelihood), Dataset.of(inputs, y), Jitter(0.0, 1e-10)
    phi, Z = model.start() + 0.1, inputs[:8]
    told = log_evidence(JointTarget(model, rows, jitter), phi, Z)
    if isinstance(likelihood, Gaussian):
        assert told == pytest.approx(CollapsedTarget(model, rows, jitter).evaluate(phi, Z).log_likelihood, abs=1e-6)
    else:  # a sparse fit can only do worse, and with Z = X it is Laplace's
        whole = LaplaceTarget(model, rows, jitter).evaluate(phi).log_likelihood
        assert told < whole
        assert log_evidence(JointTarget(model, rows, jitter), phi, inputs) == pytest.approx(whole, abs=1e-3)


@pytest.mark.slow
def test_a_candidate_that_cannot_be_factored_loses(data, monkeypatch):
    inputs, y = data
    model, rows = Model(RBF(), 2, likelihood=Poisson()), Dataset.of(inputs, np.round(np.exp(y)), 20)
    problem = Problem(model, rows, Standardiser.identity(2), Settings(n_inducing=5, jitter=Jitter(0.0)))
    target, found = JointTarget(model, rows, Jitter(0.0)), {"equal": np.zeros((5, 2)), "rows": inputs[:5]}
    monkeypatch.setattr(joint_start, "candidates", lambda *_: found)
    Z, name = joint_start.laplace_candidate(problem, target, model.start())
    assert name == "rows"
    np.testing.assert_array_equal(Z, inputs[:5])
    del found["rows"]
    with pytest.raises(NumericalError, match="where the fit should start"):
        joint_start.laplace_candidate(problem, target, model.start())


@pytest.mark.slow
def test_some_rows_stand_for_all():
    """With one row in three, v keeps its place and its width, nearly, at another θ too."""
    rng = np.random.default_rng(2)
    inputs = rng.uniform(-2.0, 2.0, (600, 1))
    y = np.sin(2.0 * inputs[:, 0]) + 0.3 * rng.standard_normal(600)
    model, Z = Model(RBF(), 1), np.linspace(-2.0, 2.0, 6)[:, None]
    target, phi = JointTarget(model, Dataset.of(inputs, y)), np.array([-0.3, 0.0, -1.2])
    whole = target.surrogate(phi, Z, np.zeros(0, int))
    some = target.surrogate(phi, Z, np.arange(0, 600, 3))
    assert some.data.n_rows == 200
    for at in (phi, phi + 0.1):
        (m, LB), (m_some, LB_some) = (target.moments(at, Z, *s) for s in (whole, some))
        epsilon = LB.T @ (m_some - m)
        assert np.max(np.abs(epsilon)) < 1.5  # in standard deviations of v
        ratio = np.linalg.eigvalsh(np.linalg.solve(LB, LB_some) @ np.linalg.solve(LB, LB_some).T)
        assert np.all((ratio > 0.5) & (ratio < 2.0))
