"""Fits with a transformed target: the numbers of an exact GP, and the same in every place where a fit can be."""

import dataclasses
import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from typer.testing import CliRunner

import integrand as ig
from integrand import GP, METHODS, RBF, ArrayRows, Dataset, InputError, Jitter, MappedRows, SparseGPRegressor, open_rows
from integrand.bounds.collapsed import collapsed_bound
from integrand.bounds.exact import log_marginal_likelihood
from integrand.bounds.upper import upper_bound
from integrand.cli.app import app
from integrand.data.scaling import Standardiser
from integrand.metrics import evaluate
from integrand.model import Model
from integrand.posterior.conditional import exact_conditional
from integrand.posterior.posterior import compare
from integrand.report import write_report
from integrand.storage.model_file import load_model, save_model
from integrand.targets import CollapsedTarget
from integrand.transforms import BoxCox, Log, SinhArcsinh

N, TINY = 30, Jitter(1e-12)
SMALL = {"method": "ml2", "n_inducing": 8, "steps": 30}
DRAWN = {"n_inducing": 8, "chains": 2, "warmup": 40, "round_draws": 10, "max_rounds": 1, "max_draws": 60}
DRAWN |= {"target_ess": 20.0, "predictive_draws": 20}
NAMES = ("log", "box-cox", "sinh-arcsinh")
TRANSFORMS = {"log": Log(), "box-cox": BoxCox(power=0.3), "sinh-arcsinh": SinhArcsinh(skewness=0.5, tails=0.8)}


def make_rows(seed=0, n=40):
    """y is exp(f + ε), so it is skewed and its noise grows with it."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (n, 2))
    return X, np.exp(1.0 + np.sin(2.0 * X[:, 0]) + 0.4 * rng.standard_normal(n))


def quietly(function, *arguments, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ig.ConvergenceWarning)
        return function(*arguments, **settings)


_fitted: dict = {}


def fitted(name):
    """One fit for each transform, for all of its tests: by Algorithm 1 where there is most to draw."""
    if name not in _fitted:
        settings = DRAWN if name == "sinh-arcsinh" else SMALL
        _fitted[name] = quietly(ig.fit, *make_rows(), target_transform=name, **settings)
    return _fitted[name]


def plain():
    """One fit without a transform."""
    if "plain" not in _fitted:
        _fitted["plain"] = ig.fit(*make_rows(), **SMALL)
    return _fitted["plain"]


# ---- the numbers


def gp(name):
    transform = jax.tree.map(jnp.asarray, TRANSFORMS[name])
    kernel = RBF(lengthscale=jnp.array([0.9, 1.4]), scale=jnp.array(1.2))
    return GP(kernel, jnp.array(0.3), jnp.array(0.1), transform)


def difference(a, b):
    return max(float(jnp.max(jnp.abs(p - q))) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.usefixtures("strict_float64")
@pytest.mark.parametrize(
    ("name", "known"),
    [
        pytest.param("box-cox", False, marks=pytest.mark.slow),
        ("sinh-arcsinh", True),
        pytest.param("log", False, marks=pytest.mark.slow),
    ],
)
def test_with_Z_at_the_rows_bound_and_gradient_are_those_of_a_plain_exact_GP(name, known):
    """By automatic differentiation of N x N matrices, which knows nothing of closed forms."""
    rng = np.random.default_rng(0)
    X, y = make_rows(n=N)[0], rng.standard_normal(N)
    v = rng.uniform(0.01, 0.3, N) if known else np.zeros(N)
    data = Dataset.of(X, y, 7, v if known else None)  # several blocks, the last one padded

    def naive(gp):
        covariance = gp.kernel.gram(jnp.asarray(X)) + jnp.diag(gp.noise**2 + v)
        residuals = gp.transform(jnp.asarray(y)) - gp.mean
        normal = jax.scipy.stats.multivariate_normal.logpdf(residuals, jnp.zeros(N), covariance)
        return normal + jnp.sum(jnp.log(jax.vmap(jax.grad(gp.transform))(jnp.asarray(y))))

    @jax.jit
    def everything(gp):
        sparse = jax.value_and_grad(lambda gp: collapsed_bound(gp, X, data, TINY))(gp)
        exact = jax.value_and_grad(lambda gp: log_marginal_likelihood(gp, X, y, v))(gp)
        return sparse, exact, jax.value_and_grad(naive)(gp), upper_bound(gp, X, data, TINY)

    sparse, exact, wanted, upper = everything(gp(name))
    assert difference(sparse, wanted) < 1e-7
    assert difference(exact, wanted) < 1e-9
    assert exact[0] <= upper + 1e-9 < exact[0] + 1e-7


@pytest.mark.parametrize(
    ("name", "bound"),
    [("box-cox", "tight"), pytest.param("sinh-arcsinh", "titsias", marks=pytest.mark.slow)],
)
def test_the_gradient_is_that_of_differences(name, bound):
    X, y = make_rows()
    rows = ArrayRows(X, y) if name == "sinh-arcsinh" else ArrayRows(X, y).with_log_target()
    scaler = rows.overview(1_000, 0).scaler
    target = CollapsedTarget(Model(RBF(), 2, bound=bound, target_transform=name), rows.dataset(scaler, 8))
    Z, phi = scaler.transform_X(X[:8]), target.model.start() + 0.1
    evaluation = target.evaluate(phi, Z)
    for i in range(len(phi)):
        step = 1e-5 * np.eye(len(phi))[i]
        slope = (target.value(phi + step, Z) - target.value(phi - step, Z)) / 2e-5
        np.testing.assert_allclose(evaluation.d_likelihood[i], slope, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_sources_give_the_same_rows(tmp_path):
    """Arrays, memory maps and Parquet; in memory, and read from disk at every pass."""
    X, y = make_rows(n=500)
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_parquet(tmp_path / "t.parquet", row_group_size=70)
    sources = [ArrayRows(X, y), MappedRows(X, y), open_rows(tmp_path / "t.parquet", "y", memory=0)]
    sources = [rows.with_log_target() for rows in sources]
    scalers = [rows.overview(50, 0).scaler for rows in sources]
    np.testing.assert_allclose([scalers[0].y_mean, scalers[0].y_sd], [np.log(y).mean(), np.log(y).std()], rtol=1e-12)
    model, Z = Model(RBF(), 2, target_transform="box-cox"), scalers[0].transform_X(X[:5])
    parts = [rows.dataset(scalers[0], 5) for rows in sources]
    assert [data.local for data in parts] == [True, True, False]
    values = [CollapsedTarget(model, data).evaluate(model.start() + 0.1, Z) for data in parts]
    for scaler, value in zip(scalers[1:], values[1:], strict=True):
        np.testing.assert_allclose([scaler.y_mean, scaler.y_sd], [scalers[0].y_mean, scalers[0].y_sd], rtol=1e-12)
        np.testing.assert_allclose(value.log_likelihood, values[0].log_likelihood, rtol=1e-11)
        np.testing.assert_allclose(value.d_likelihood, values[0].d_likelihood, rtol=1e-8, atol=1e-9)


# ---- fits


def test_the_logarithm_is_a_fit_to_the_logarithm():
    X, y = make_rows()
    inside, outside = fitted("log"), ig.fit(X, np.log(y), **SMALL)
    np.testing.assert_allclose(inside.optimum, outside.optimum, rtol=1e-8, atol=1e-10)
    one, two = (posterior.predict(X[:5], include_noise=True) for posterior in (inside, outside))
    np.testing.assert_allclose(one.quantile(0.9), np.exp(two.quantile(0.9)), rtol=1e-8)
    np.testing.assert_allclose(one.log_density(y[:5]), two.log_density(np.log(y[:5])) - np.log(y[:5]), rtol=1e-7)
    joint = two.joint_log_density(np.log(y[:5])) - np.log(y[:5]).sum()
    np.testing.assert_allclose(one.joint_log_density(y[:5]), joint, rtol=1e-7)
    assert np.all(np.isneginf(one.joint_log_density(-y[:5])))


@pytest.mark.slow
def test_the_units_are_those_of_y():
    X, y = make_rows()
    large = ig.fit(X, 100.0 * y, target_transform="box-cox", **SMALL)
    a, b = (posterior.predict(X[:5], include_noise=True) for posterior in (fitted("box-cox"), large))
    np.testing.assert_allclose(b.quantile(0.9), 100.0 * a.quantile(0.9), rtol=1e-3)
    np.testing.assert_allclose(b.crps(100.0 * y[:5]), 100.0 * a.crps(y[:5]), rtol=1e-3)
    np.testing.assert_allclose(b.log_density(100.0 * y[:5]), a.log_density(y[:5]) - np.log(100.0), atol=1e-3)


@pytest.mark.parametrize("name", ["log", "box-cox", pytest.param("sinh-arcsinh", marks=pytest.mark.slow)])
def test_it_predicts_better_than_the_plain_model(name):
    new = make_rows(1, n=200)
    before = plain().predict(new[0], include_noise=True).log_density(new[1])
    predictive = fitted(name).predict(new[0], include_noise=True)
    gain = predictive.log_density(new[1]) - before
    assert gain.mean() > 2.0 * gain.std(ddof=1) / np.sqrt(len(gain))
    scores = evaluate(predictive.mixture(), new[1])
    assert 0.8 < scores["coverage_95"] <= 1.0
    f = predictive.latent()
    assert np.all(f.quantile(0.9) < predictive.quantile(0.9))
    functions = predictive.sample_joint(np.random.default_rng(0), 400)
    inside = np.mean((functions > predictive.quantile(0.25)) & (functions < predictive.quantile(0.75)))
    assert abs(inside - 0.5) < 0.1


@pytest.mark.parametrize("name", ["log", "box-cox", pytest.param("sinh-arcsinh", marks=pytest.mark.slow)])
def test_a_saved_model_predicts_the_same(name, tmp_path):
    X, y = make_rows()
    posterior = fitted(name)
    save_model(posterior, tmp_path / "model")
    loaded = load_model(tmp_path / "model").posterior
    one, two = (p.predict(X, include_noise=True) for p in (posterior, loaded))
    np.testing.assert_array_equal(one.quantile(0.9), two.quantile(0.9))
    np.testing.assert_array_equal(one.log_density(y), two.log_density(y))
    assert loaded.model == posterior.model
    assert loaded.theta_original.keys() == posterior.theta_original.keys()


@pytest.mark.slow
def test_leave_one_out_is_in_the_units_of_y():
    """That of the exact GP is in closed form for one draw, so a fit without the row says the same."""
    X, y = make_rows()
    posterior = ig.fit(X, y, method="gpr-map", target_transform="box-cox", steps=30)
    loo, i = posterior.loo(X, y), 7
    others = np.arange(len(y)) != i
    kept = posterior._standardised(X[others], y[others], None)
    conditional = exact_conditional(posterior.model, posterior.conditional.phis, kept)
    without = dataclasses.replace(posterior, conditional=conditional).predict(X[[i]], include_noise=True)
    np.testing.assert_allclose(loo.log_scores[0, i], without.log_density(y[[i]])[0], rtol=1e-6, atol=1e-8)
    with pytest.raises(InputError, match="not the rows"):
        posterior.loo(X, y + 1.0)
    with pytest.raises(InputError, match="not the rows"):
        fitted("box-cox").loo(X, y + 1.0)
    models = {name: fitted(name) for name in NAMES} | {"plain": plain()}
    assert compare(models, X, y).models[-1].name == "plain"


@pytest.mark.slow
def test_a_run_goes_on_with_its_transform(tmp_path):
    X, y = make_rows()
    settings = DRAWN | {"max_draws": 20, "target_ess": 1e6}
    first = quietly(ig.fit, X, y, target_transform="box-cox", run_dir=tmp_path / "run", **settings)
    resumed = quietly(ig.resume, tmp_path / "run", max_draws=30)
    assert resumed.model == first.model
    np.testing.assert_array_equal(resumed.chains.x[:, :20], first.chains.x)
    assert (resumed.scaler.y_mean, resumed.scaler.y_sd) == (first.scaler.y_mean, first.scaler.y_sd)


@pytest.mark.slow
def test_a_fit_reads_rows_from_disk(tmp_path):
    X, y = make_rows()
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    maps = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "Xy"]
    rows = MappedRows(*maps, memory=0)
    streamed = ig.fit(rows, target_transform="box-cox", **SMALL)
    one, two = (posterior.predict(X, include_noise=True) for posterior in (streamed, fitted("box-cox")))
    np.testing.assert_allclose(one.quantile(0.9), two.quantile(0.9), rtol=0.3)
    assert streamed.model == fitted("box-cox").model


@pytest.mark.slow
@pytest.mark.parametrize("method", [m for m in METHODS if METHODS[m].transforms_target])
def test_other_methods_take_it(method):
    X, y = make_rows()
    posterior = quietly(ig.fit, X, y, method=method, target_transform="sinh-arcsinh", **(DRAWN | {"steps": 100}))
    assert posterior.model.names[-2:] == ("transform.skewness", "transform.tails")
    predictive = posterior.predict(X, include_noise=True)
    assert np.corrcoef(predictive.quantile(0.5), y)[0, 1] > 0.7
    assert np.isfinite(predictive.log_density(y)).all()


@pytest.mark.slow
def test_draws_before_the_fit_are_in_the_units_of_y():
    X, y = make_rows()
    for name in ("box-cox", "sinh-arcsinh"):
        model = Model(RBF(), 2, target_transform=name)
        draws = ig.prior_predictive(model, X, y, n_draws=100)
        assert (np.all(draws >= 0.0)) == (name != "sinh-arcsinh")
        assert 0.1 * np.median(y) < np.median(draws) < 10.0 * np.median(y)
    assert fitted("log").prior_predictive(X, 5).shape == (5, len(X))


@pytest.mark.slow
def test_arviz_and_the_report_have_y_in_its_units(tmp_path):
    X, y = make_rows()
    posterior = fitted("box-cox")
    data = posterior.to_arviz(X, y)
    observed = np.asarray(data.posterior_predictive["y"])
    assert 0.5 * np.median(y) < np.median(observed) < 2.0 * np.median(y)
    assert np.isfinite(np.asarray(data.log_likelihood["y"])).all()
    assert "transform.power" in data.posterior
    write_report(tmp_path / "report.html", posterior, data=(X, y), target="y", n_rows=len(y))
    page = (tmp_path / "report.html").read_text()
    assert "box-cox" in page
    assert "log y" in page
    assert "unit of the transformed y" in str(posterior.model)


# ---- estimator and command line


@pytest.mark.slow
def test_the_estimator_keeps_it(tmp_path):
    X, y = make_rows()
    gp = SparseGPRegressor(n_inducing=8, method="ml2", steps=30, target_transform="sinh-arcsinh", random_state=0)
    gp.fit(X, y)
    gp.save(tmp_path / "model")
    loaded = SparseGPRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X, quantiles=[0.5])[1], gp.predict(X, quantiles=[0.5])[1])
    assert clone(loaded).target_transform == gp.posterior_.model.given.target_transform
    assert gp.sample_y(X, 3, joint=False).shape == (len(X), 3)
    assert gp.prior_predictive(X, y, n_samples=2).shape == (len(X), 2)


@pytest.mark.slow
def test_the_command_line_takes_it(tmp_path):
    X, y = make_rows()
    table, model = tmp_path / "t.csv", tmp_path / "model"
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_csv(table, index=False)
    runner, common = CliRunner(), [str(table), "--target", "y"]
    small = ["--method", "ml2", "--inducing", "8", "--set", "steps=30", "--json"]
    done = runner.invoke(app, ["fit", *common, "--out", str(model), "--target-transform", "box-cox", *small])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["target_transform"] == "box-cox"
    assert "transform.power" in facts["hyperparameters"]
    done = runner.invoke(app, ["evaluate", str(model), str(table), "--json"])
    assert json.loads(done.stdout)["coverage_95"] > 0.8
    done = runner.invoke(app, ["predict", str(model), str(table), "--samples", "1"])
    assert "q0.5" in done.stdout
    done = runner.invoke(app, ["prior", *common, "--target-transform", "log"])
    assert done.exit_code == 0, done.output
    assert "a priori" in done.stdout
    done = runner.invoke(app, ["fit", *common, "--out", str(model), "--target-transform", "sqrt", *small])
    assert done.exit_code == 2
    assert "log, box-cox, sinh-arcsinh" in done.stderr


# ---- what is refused, and what the verdict says


@pytest.mark.parametrize("method", [m for m in METHODS if not METHODS[m].transforms_target])
def test_other_methods_refuse_it(method):
    with pytest.raises(InputError, match=r"takes no target_transform: leave it out, or use .*sgpr-hmc.*gpr-hmc"):
        ig.fit(*make_rows(), method=method, target_transform="log")


@pytest.mark.parametrize("name", ["log", "box-cox"])
def test_rows_without_a_logarithm_are_named(name, tmp_path):
    X, y = make_rows()
    y[7] = -0.5
    with pytest.raises(InputError, match=r"row 7: y is -0.5.*sinh-arcsinh"):
        ig.fit(X, y, target_transform=name, **SMALL)
    pd.DataFrame({"a": X[:, 0], "price": y}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"row 8: 'price' is -0\.5"):
        ig.fit(open_rows(tmp_path / "t.parquet", "price"), target_transform=name, **SMALL)
    with pytest.raises(InputError, match=r"row 7: y is -0\.5"):
        fitted("box-cox").loo(X, y)
    assert np.isneginf(fitted("log").predict(X, include_noise=True).log_density(y)[7])


def test_known_noise_is_refused():
    X, y = make_rows()
    with pytest.raises(InputError, match="noise_variance is in squared units of y"):
        ig.fit(X, y, noise_variance=np.ones(len(y)), target_transform="sinh-arcsinh", **SMALL)
    for call in (fitted("log").predict, fitted("log").to_arviz):
        with pytest.raises(InputError, match="noise_variance is in squared units of y"):
            call(
                X,
                **({"include_noise": True} if call == fitted("log").predict else {"y": y}),
                noise_variance=np.ones(len(y)),
            )


def test_a_scaler_for_y_itself_is_refused():
    X, y = make_rows()
    with pytest.raises(InputError, match="scaler for y itself"):
        ig.fit(ArrayRows(X, y, scaler=Standardiser.fit(X, y)), target_transform="log", **SMALL)


def test_a_constant_target_is_named_in_its_units():
    X, _ = make_rows()
    with pytest.raises(InputError, match="y is 3 in all"):
        ig.fit(X, np.full(len(X), 3.0), target_transform="log", **DRAWN)


@pytest.mark.parametrize(("shift", "advice"), [(0.0, "box-cox"), (-20.0, "sinh-arcsinh")])
def test_the_verdict_suggests_it(shift, advice):
    X, y = make_rows(n=150)
    found = {f.code: f.remedy for f in ig.fit(X, y + shift, **SMALL).verdict.findings}
    remedies = [found[code] for code in ("skewed", "heteroscedastic") if code in found]
    assert remedies
    assert all(f'`target_transform="{advice}"`' in remedy for remedy in remedies)


@pytest.mark.slow
def test_a_warning_speaks_of_the_logarithm_where_y_is_one():
    X, y = make_rows()
    noise = Model(RBF(), 2, noise=5.0, mean=100.0, target_transform="log")
    with pytest.warns(ig.PriorWarning) as said:
        ig.prior_predictive(noise, X, y, n_draws=1)
    texts = " ".join(str(warning.message) for warning in said)
    assert f"noise is 5, above the standard deviation of log of y ({np.log(y).std():.3g})" in texts
    assert "mean is 100, far from all of log of y" in texts
