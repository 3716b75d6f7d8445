"""Rows with noise of known variance: equal to the exact GP, wherever rows are, and better than one noise for all."""

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_validate
from typer.testing import CliRunner

import integrand as ig
from integrand import GP, RBF, ArrayRows, Dataset, InputError, Jitter, MappedRows, SparseGPRegressor, open_rows
from integrand.bounds.collapsed import collapsed_bound
from integrand.bounds.exact import log_marginal_likelihood
from integrand.bounds.joint import centred_log_density, gaussian_sites, refined_sites
from integrand.bounds.upper import upper_bound
from integrand.cli.app import app
from integrand.data.scaling import Standardiser
from integrand.likelihoods import Gaussian
from integrand.model import Model
from integrand.posterior.conditional import exact_conditional, marginals, sparse_conditional
from integrand.posterior.residuals import Marginals, left_out_sparse, marginals_of
from integrand.report import sections
from integrand.report.tables import metrics
from integrand.storage.model_format import upgraded
from integrand.targets import CollapsedTarget

N, TINY = 30, Jitter(1e-12)
SMALL = {"method": "ml2", "n_inducing": 8, "steps": 30}


def make_rows(seed=0, n=N):
    """Known standard deviations from 0.1 to 1, a factor of ten."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (n, 2))
    sd = 10.0 ** rng.uniform(-1.0, 0.0, n)
    return X, np.sin(2.0 * X[:, 0]) + sd * rng.standard_normal(n), sd**2


def gp(noise):
    arrays = RBF(lengthscale=jnp.array([0.9, 1.4]), scale=jnp.array(1.2))
    return GP(arrays, jnp.array(noise), jnp.array(0.1))


def difference(a, b):
    return max(float(jnp.max(jnp.abs(p - q))) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


# ---- the numbers


@pytest.mark.usefixtures("strict_float64")
@pytest.mark.parametrize("noise", [pytest.param(0.3, marks=pytest.mark.slow), 0.0])
def test_with_Z_at_the_rows_bound_and_gradient_are_those_of_the_exact_GP(noise):
    X, y, v = make_rows()
    data = Dataset.of(X, y, 7, v)  # several blocks, the last one padded

    @jax.jit
    def everything(gp):
        sparse = jax.value_and_grad(lambda gp: collapsed_bound(gp, X, data, TINY))(gp)
        exact = jax.value_and_grad(lambda gp: log_marginal_likelihood(gp, X, y, v))(gp)
        return *sparse, *exact, upper_bound(gp, X, data, TINY)

    value, gradient, exact, exact_gradient, upper = everything(gp(noise))
    assert abs(value - exact) < 1e-8
    assert difference(gradient, exact_gradient) < 1e-8
    assert exact <= upper < exact + 1e-8


@pytest.mark.usefixtures("strict_float64")
@pytest.mark.parametrize("bound", [pytest.param("titsias", marks=pytest.mark.slow), "tight"])
def test_bound_and_gradient_are_those_of_the_dense_formula(bound):
    X, y, v = map(jnp.asarray, make_rows())
    data = Dataset.of(X, y, 7, v)

    def dense(gp, Z):
        K = gp.kernel(Z, X)
        Q, S = K.T @ jnp.linalg.solve(Jitter().gram(gp.kernel, Z), K), gp.noise**2 + v
        normal = jax.scipy.stats.multivariate_normal.logpdf(y, gp.mean * jnp.ones(N), Q + jnp.diag(S))
        left = (gp.kernel.diagonal(X) - jnp.diagonal(Q)) / S
        return normal - 0.5 * jnp.sum(left if bound == "titsias" else jnp.log1p(left))

    point = gp(0.3), X[:6] + 0.1
    program = jax.jit(jax.value_and_grad(lambda *p: collapsed_bound(*p, data, Jitter(), bound), (0, 1)))
    value, gradient = program(*point)
    wanted, wanted_gradient = jax.jit(jax.value_and_grad(dense, (0, 1)))(*point)
    assert abs(value - wanted) < 1e-9
    assert difference(gradient, wanted_gradient) < 1e-8


@pytest.mark.slow
@pytest.mark.usefixtures("strict_float64")
def test_equal_variances_are_the_noise_of_the_model():
    X, y, _ = make_rows()
    Z = jnp.asarray(X[:6])
    alike = Dataset.of(X, y, 7, np.full(N, 0.4**2))
    bound = jax.jit(collapsed_bound)
    np.testing.assert_allclose(bound(gp(0.3), Z, alike), bound(gp(0.5), Z, Dataset.of(X, y, 7)), rtol=1e-13)


@pytest.mark.usefixtures("strict_float64")
def test_the_joint_density_at_its_mode_is_the_collapsed_bound():
    X, y, v = make_rows()
    data, Z = Dataset.of(X, y, 7, v), jnp.asarray(X[:6])
    sites = gaussian_sites(data)

    @jax.jit
    def everything(gp):
        value = centred_log_density(Gaussian(), gp, Z, jnp.zeros(6), sites, data)
        return value, collapsed_bound(gp, Z, data), refined_sites(Gaussian(), gp, Z, jnp.full(6, 0.2), data)

    value, bound, refined = everything(gp(0.3))
    np.testing.assert_allclose(value, bound - 3.0 * np.log(2.0 * np.pi), rtol=1e-11)
    # A step of Newton's is exact.
    mask = np.asarray(data.held.weight, bool)
    np.testing.assert_allclose(np.asarray(refined.precision)[mask], 1.0, rtol=1e-10)
    np.testing.assert_allclose(np.asarray(refined.linear)[mask], np.asarray(data.held.y)[mask], atol=1e-10)


@pytest.mark.slow
def test_predictions_are_those_of_the_exact_GP():
    X, y, v = make_rows()
    model, data = Model(RBF(), 2), Dataset.of(X, y, 7, v)
    phis, new = np.stack([model.start(), model.start() + 0.2]), make_rows(1)[0]
    target = CollapsedTarget(model, data, TINY)
    sparse = sparse_conditional(phis, X, target.inducing_posterior)
    exact = exact_conditional(model, phis, data)
    for a, b in zip(marginals(model, TINY, sparse, new), marginals(model, TINY, exact, new), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)


@pytest.mark.usefixtures("strict_float64")
def test_leave_one_out_residuals_know_the_noise():
    """Those of the closed form are those of the exact GP without the row."""
    X, y, v = make_rows(n=12)
    model, data = Model(RBF(), 2, noise=0.3, mean=0.0), Dataset.of(X, y, 20, v)
    phis = model.start()[None]
    sparse = sparse_conditional(phis, X, CollapsedTarget(model, data, TINY).inducing_posterior)
    K = np.asarray(model.gp(model.theta(jnp.asarray(phis[0]))).kernel.gram(jnp.concatenate([X, X])))
    parts = (np.array(a)[None] for a in marginals_of(sparse, 0, K, 0.0, TINY))
    left_out = left_out_sparse(Marginals(*parts, 0.3**2 + v[None]), y)
    for i in range(12):
        others = np.arange(12) != i
        solved = np.linalg.solve(K[:12, :12][np.ix_(others, others)] + np.diag(0.09 + v[others]), K[:12, i][others])
        np.testing.assert_allclose(left_out.means[0, i], solved @ y[others], atol=1e-6)
        wanted = K[i, i] - solved @ K[:12, i][others] + 0.09 + v[i]
        np.testing.assert_allclose(left_out.variances[0, i], wanted, rtol=1e-6)


@pytest.mark.slow
def test_sources_give_the_same_rows(tmp_path):
    """Arrays, memory maps and Parquet; in memory, and streamed."""
    X, y, v = make_rows(n=500)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y, "v": v})[["a", "v", "b", "y"]]
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=70)
    for name, array in (("X", X), ("y", y), ("v", v)):
        np.save(tmp_path / f"{name}.npy", array)
    maps = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("X", "y", "v")]
    scaler, model = Standardiser.fit(X, y), Model(RBF(), 2)
    Z = scaler.transform_X(X[:5])
    sources = [
        ArrayRows(X, y, noise_variance=v),
        MappedRows(*maps[:2], noise_variance=maps[2]),
        open_rows(tmp_path / "t.parquet", "y", noise_column="v"),
        open_rows(tmp_path / "t.parquet", "y", noise_column="v", memory=0),
    ]
    values = [CollapsedTarget(model, rows.dataset(scaler, 5)).evaluate(model.start(), Z) for rows in sources]
    assert [rows.dataset(scaler, 5).local for rows in sources] == [True, True, True, False]
    for other in values[1:]:
        np.testing.assert_allclose(other.log_likelihood, values[0].log_likelihood, rtol=1e-11)
        np.testing.assert_allclose(other.dZ, values[0].dZ, rtol=1e-8, atol=1e-10)
    overviews = [rows.overview(50, 0) for rows in sources]
    for overview in overviews:
        assert len(overview.low) == 3
        assert overview.noise_variances == pytest.approx((v.min(), v.max()))
        np.testing.assert_array_equal(overview.subsample, overviews[0].subsample)
    again = ig.data.parquet.open_source(sources[2].describe())
    np.testing.assert_array_equal(again.read(3, 9), sources[0].read(3, 9))


# ---- fits


@pytest.mark.slow
def test_it_predicts_better_than_one_noise_for_all_rows():
    X, y, v = make_rows(n=300)
    new = make_rows(1, n=300)
    one = ig.fit(X, y, **SMALL).predict(new[0], include_noise=True).log_density(new[1])
    known = ig.fit(X, y, noise_variance=v, **SMALL)
    gain = known.predict(new[0], include_noise=True, noise_variance=new[2]).log_density(new[1]) - one
    assert gain.mean() > 2.0 * gain.std(ddof=1) / np.sqrt(len(gain))


@pytest.mark.slow
def test_the_units_are_those_of_y_squared():
    X, y, v = make_rows(n=60)
    plain = ig.fit(X, y, noise_variance=v, **SMALL).predict(X[:5], include_noise=True, noise_variance=v[:5])
    large = ig.fit(X, 7.0 + 100.0 * y, noise_variance=1e4 * v, **SMALL)
    scaled = large.predict(X[:5], include_noise=True, noise_variance=1e4 * v[:5])
    np.testing.assert_allclose(scaled.mean, 7.0 + 100.0 * plain.mean, rtol=1e-4)
    np.testing.assert_allclose(scaled.sd, 100.0 * plain.sd, rtol=1e-4)
    np.testing.assert_allclose(
        scaled.variance - scaled.latent().variance, 1e4 * v[:5] + large.theta_original["noise"][0, 0] ** 2
    )
    joint, rows = scaled.joint_log_density(7.0 + 100.0 * y[:5]), scaled.sample_joint(np.random.default_rng(0), 4000)
    assert np.isfinite(joint).all()
    np.testing.assert_allclose(rows.std(axis=0), scaled.sd, rtol=0.1)


@pytest.mark.slow
def test_a_run_goes_on_with_its_noise(tmp_path):
    X, y, v = make_rows(n=60)
    settings = {"n_inducing": 8, "chains": 2, "target_ess": 10, "warm_steps": 20, "max_rounds": 1, "warmup": 20}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ig.ConvergenceWarning)
        first = ig.fit(X, y, noise=0.0, noise_variance=v, run_dir=tmp_path / "run", max_draws=20, **settings)
        again = ig.resume(tmp_path / "run")
    np.testing.assert_array_equal(first.chains.x, again.chains.x)
    np.testing.assert_allclose(first.conditional.weights, again.conditional.weights, rtol=1e-9)


@pytest.mark.slow
def test_scikit_learn_hands_the_variances_on():
    X, y, v = make_rows(n=60)
    gp = SparseGPRegressor(noise=0.0, random_state=0, **SMALL)
    with sklearn.config_context(enable_metadata_routing=True):
        gp.set_fit_request(noise_variance=True)
        scores = cross_validate(
            gp, X, y, params={"noise_variance": v}, cv=2, return_estimator=True, error_score="raise"
        )
        search = GridSearchCV(gp, {"steps": [10]}, cv=2, error_score="raise").fit(X, y, noise_variance=v)
    half = clone(gp).fit(X[30:], y[30:], noise_variance=v[30:])
    np.testing.assert_array_equal(scores["estimator"][0].predict(X), half.predict(X))
    mean, std = search.best_estimator_.predict(X, return_std=True, noise_variance=v)
    assert (std**2 >= v).all()
    assert mean.shape == (60,)


@pytest.mark.slow
def test_the_command_line_takes_a_column(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y, v = make_rows(n=60)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y, "v": v})
    frame.to_csv("t.csv", index=False)
    frame.to_parquet("t.parquet", row_group_size=30)
    frame.drop(columns="v").to_csv("without.csv", index=False)

    def run(*arguments, code=0):
        result = CliRunner().invoke(app, list(map(str, arguments)))
        assert result.exit_code == code, result.output + str(result.exception)
        return result

    fit = ["--target", "y", "--noise-column", "v", "--method", "ml2", "--inducing", "8", "--quiet"]
    for table, more in (("t.csv", ["--noise", "0"]), ("t.parquet", ["--memory", "0"])):
        run("fit", table, "--out", "m", *fit, *more)
        saved = ig.load_model("m")
        assert saved.feature_names == ("a", "b")
        run("predict", "m", "t.csv", "--out", "p.csv")
        got = pd.read_csv("p.csv")
        wanted = saved.posterior.predict(X, include_noise=True, noise_variance=v)
        np.testing.assert_allclose(got["sd_y"], wanted.sd, rtol=1e-6)
        scores = json.loads(run("evaluate", "m", "t.csv", "--json").stdout)
        assert scores["nlpd"] == pytest.approx(-wanted.log_density(y).mean(), rel=1e-6)
    assert "without the known noise" in run("predict", "m", "without.csv", "--out", "q.csv").stderr
    assert "no column 'v'" in run("evaluate", "m", "without.csv", code=2).stderr
    assert (
        "no column 'w'" in run("fit", "t.csv", "--out", "m", *fit[:2], "--noise-column", "w", *fit[4:], code=2).stderr
    )


def test_rows_without_their_noise_are_a_warning(tmp_path, monkeypatch):
    X, y, v = make_rows(n=60)
    gp = SparseGPRegressor(**SMALL, random_state=0).fit(X, y, noise_variance=v)
    posterior = gp.posterior_
    for ask in (
        lambda: posterior.predict(X, include_noise=True),
        lambda: posterior.update(X[:5], y[:5]),
        lambda: gp.predict(X, return_std=True),
        lambda: gp.predict(X, quantiles=[0.5]),
        lambda: gp.log_density(X, y),
        lambda: gp.sample_y(X),
    ):
        with pytest.warns(ig.KnownNoiseWarning, match="noise_variance=, a variance for each row"):
            ask()
    # Where noise has no part, nothing is said.
    known = posterior.predict(X, include_noise=True, noise_variance=v)
    np.testing.assert_array_equal(gp.predict(X), known.mean)
    assert gp.score(X, y) > 0.0
    posterior.predict(X, include_noise=False)
    gp.predict(X, return_std=True, include_noise=False)
    with pytest.raises(InputError, match="give it again, as noise_variance="):
        posterior.loo(X, y)
    assert "without known noise" in ig.plot(gp)[0].get_legend_handles_labels()[1][-1]
    # A file keeps it. Those of before say it by the column of the command line.
    gp.save(tmp_path / "m")
    assert ig.load_model(tmp_path / "m").posterior.known_noise
    for extra, told in (({"noise_column": "v"}, True), ({}, False)):
        assert upgraded({"format": 2, "extra": extra})["known_noise"] is told

    def scored(s):
        return "", "", str(metrics(s.posterior, s.X, s.y, s.noise_variance))

    monkeypatch.setattr(sections, "SECTIONS", (scored, scored))
    with pytest.warns(ig.KnownNoiseWarning) as caught:
        sections.report_html(posterior, data=(X, y))
    assert len(caught) == 1
    # The report holds predictions against the data with the noise of each row.
    rows = []
    monkeypatch.setattr("integrand.report.write_report", lambda path, posterior, data, **_: rows.append(data))
    gp.report(tmp_path / "r.html", X, y, noise_variance=v)
    nlpd = next(row["value"] for row in metrics(posterior, *rows[0]) if row["metric"] == "nlpd")
    assert nlpd == pytest.approx(-known.log_density(y).mean())
    for bad, words in ((v[:-1], "one number for each of the 60 rows"), (-v, "not negative")):
        with pytest.raises(InputError, match=words):
            gp.report(tmp_path / "r.html", X, y, noise_variance=bad)


# ---- what is refused


def test_mistakes_are_named(tmp_path):
    X, y, v = make_rows()
    for bad, words in (
        (v[:-1], "one number for each of the 30 rows"),
        (-v, "not negative"),
        (np.full(N, np.nan), "NaN"),
    ):
        with pytest.raises(InputError, match=words):
            ig.fit(X, y, noise_variance=bad)
    with pytest.raises(InputError, match="noise=0 is for rows with a noise_variance"):
        ig.fit(X, y, noise=0)
    with pytest.raises(InputError, match="variances above zero"):
        ig.fit(X, y, noise=0, noise_variance=np.zeros(N))
    with pytest.raises(InputError, match=r"svgp cannot use .*sgpr-hmc"):
        ig.fit(X, y, noise_variance=v, method="svgp")
    with pytest.raises(InputError, match="poisson likelihood takes no `noise_variance`"):
        ig.fit(X, np.ones(N), noise_variance=v, method="joint-hmc", likelihood="poisson")
    with pytest.raises(InputError, match="noise_column"):
        ig.fit(ArrayRows(X, y), noise_variance=v)
    table = pd.DataFrame({"a": X[:, 0], "y": y, "v": v})
    table.loc[3, "v"] = -1.0
    table.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"t\.parquet, row 4: column 'v' is -1"):
        open_rows(tmp_path / "t.parquet", "y", noise_column="v").read(0, N)
