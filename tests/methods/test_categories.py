"""Columns of categories: equal to coregionalisation by hand, wherever rows are, and codes that nothing moves."""

import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from typer.testing import CliRunner

import integrand as ig
from integrand import (
    GP,
    RBF,
    ArrayRows,
    Categorical,
    Constant,
    Dataset,
    InputError,
    Jitter,
    Linear,
    MappedRows,
    Model,
    SparseGPRegressor,
    UnknownCategoryWarning,
    open_rows,
    parse_kernel,
)
from integrand.bounds.collapsed import collapsed_bound
from integrand.bounds.exact import log_marginal_likelihood
from integrand.cli.app import app
from integrand.data.parquet import open_source
from integrand.data.sources import as_rows
from integrand.inducing import k_means
from integrand.kernels import Product, categorical
from integrand.kernels.categorical import pivots
from integrand.methods import examine
from integrand.methods.fit import FitSpec, Settings
from integrand.posterior.conditional import marginals, sparse_conditional
from integrand.precision import float64_scope
from integrand.priors import Normal, bare
from integrand.report import write_report
from integrand.targets import CollapsedTarget

LEVELS, TINY = ("A", "B", "C"), Jitter(1e-12)
W, KAPPA = np.array([[1.2, 0.0], [0.8, 0.5], [-0.6, 0.9]]), np.array([0.1, 0.2, 0.3])
FLAT = tuple(W[np.nonzero(np.tri(3, 2))].tolist())
OPTIONS = {"method": "ml2", "n_inducing": 9, "steps": 20}
SMALL = OPTIONS | {"check_model": False}


def table(n=60, seed=0):
    rng = np.random.default_rng(seed)
    t, station = rng.uniform(0.0, 6.0, n), rng.integers(0, 3, n)
    f = W[station, 0] * np.sin(2.0 * t) + W[station, 1] * np.cos(t)
    return pd.DataFrame({"t": t, "station": np.array(LEVELS)[station]}), f + 0.1 * rng.standard_normal(n)


def codes(frame):
    return np.column_stack([frame["t"], [LEVELS.index(s) for s in frame["station"]]])


def fixed(convert=jnp.asarray, **fields):
    """Categorical × RBF with numbers, for the columns t and station."""
    given = {"weights": np.array(FLAT), "kappa": KAPPA, "scale": 1.3} | fields
    numbers = {name: convert(value) for name, value in given.items()}
    of_t = RBF(convert(0.7), convert(1.0), active=(0,))
    return Product(parts=(Categorical(1, 2, levels=LEVELS, **numbers), of_t))


def by_hand(X1, X2):
    """1.3² B[c, c'] exp(-½ (t - t')² / 0.7²) with B = W Wᵀ + diag(κ)."""
    B, c1, c2 = W @ W.T + np.diag(KAPPA), X1[:, 1].astype(int), X2[:, 1].astype(int)
    return 1.3**2 * B[np.ix_(c1, c2)] * np.exp(-0.5 * ((X1[:, :1] - X2[:, 0]) / 0.7) ** 2)


def run(*arguments, code=0):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output + str(result.exception)
    return result


# ---- the numbers


@pytest.mark.usefixtures("strict_float64")
def test_with_Z_at_the_rows_it_is_the_exact_GP_by_hand():
    frame, y = table(24)
    X = codes(frame)
    K = by_hand(X, X) + 0.4**2 * np.eye(24)
    wanted = -0.5 * (y @ np.linalg.solve(K, y) + np.linalg.slogdet(K)[1] + 24 * np.log(2.0 * np.pi))
    gp = GP(fixed(), jnp.asarray(0.4), jnp.asarray(0.0))
    for rows in (Dataset.of(X, y), Dataset.of(X, y, 7)):  # one block, and several of which the last is padded
        assert float(log_marginal_likelihood(gp, X, y)) == pytest.approx(wanted, abs=1e-8)
        assert float(collapsed_bound(gp, X, rows, TINY)) == pytest.approx(wanted, abs=1e-8)


def test_predictions_are_those_by_hand():
    frame, y = table(24)
    X, new = codes(frame), np.array([[1.0, 0.0], [2.5, 2.0], [2.5, 3.0]])
    model = Model(fixed(convert=lambda v: v), ["t", "station"], noise=ig.Gamma(2, 1), mean=0.0)
    target, phi = CollapsedTarget(model, Dataset.of(X, y), TINY), model.unconstrained({"noise": 0.4})
    conditional = sparse_conditional(phi[None], X, target.inducing_posterior)
    mean, variance, _ = marginals(model, TINY, conditional, new)
    K, cross = by_hand(X, X) + 0.4**2 * np.eye(24), by_hand(X, new[:2])
    np.testing.assert_allclose(mean[0, :2], cross.T @ np.linalg.solve(K, y), atol=1e-8)
    left = np.diagonal(by_hand(new[:2], new[:2]) - cross.T @ np.linalg.solve(K, cross))
    np.testing.assert_allclose(variance[0, :2], left, atol=1e-8)
    # An unknown category: the mean of the levels' variances, and no correlation.
    assert mean[0, 2] == 0.0
    assert variance[0, 2] == pytest.approx(1.3**2 * np.mean(np.diagonal(W @ W.T) + KAPPA), rel=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("strict_float64")
def test_the_gradient_leaves_codes_alone_and_is_right_beside_them():
    frame, y = table(20)
    X, gp = codes(frame), GP(fixed(), jnp.asarray(0.4), jnp.asarray(0.1))
    rows, Z = Dataset.of(X, y, 8), jnp.asarray(X[:7] + np.array([0.05, 0.0]))
    value = jax.jit(lambda Z: collapsed_bound(gp, Z, rows))
    dZ = np.asarray(jax.grad(value)(Z))
    assert np.all(dZ[:, 1] == 0.0)
    direction = np.column_stack([np.random.default_rng(1).standard_normal(7), np.zeros(7)])
    slope = (value(Z + 1e-6 * direction) - value(Z - 1e-6 * direction)) / 2e-6
    assert float(slope) == pytest.approx(np.sum(dZ * direction), rel=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_prior_of_B_does_not_know_the_order_of_levels(rank):
    """Row i of W has i numbers N(0, 1) and a χ² with rank - i degrees: in every row the squares are χ² with `rank`."""
    kernel = Categorical(0, rank, levels=tuple("ABCDE"))
    rows, _ = kernel._places()
    degrees = np.zeros(5)
    for row, prior in zip(rows, kernel._priors(), strict=True):
        degrees[row] += 1.0 if prior == Normal() else 2.0 * prior.arguments[0]
        assert prior.squared == (prior != Normal())
    assert np.all(degrees == rank)


def test_pivots_are_coordinates_alone():
    """W in the coordinates of other pivots, by an LQ decomposition, gives the same B."""
    other = Categorical(1, 2, levels=LEVELS, pivots=("C", "A"), kappa=KAPPA, scale=1.0, weights=FLAT)
    Q = np.linalg.qr(W[[2, 0]].T)[0]
    rotated = W @ Q
    rotated *= np.sign([rotated[2, 0], rotated[0, 1]])
    rows, columns = other._places()
    assert rotated[2, 1] == pytest.approx(0.0, abs=1e-15)
    same = Categorical(1, 2, levels=LEVELS, pivots=("C", "A"), weights=rotated[rows, columns], kappa=KAPPA, scale=1.0)
    with float64_scope():
        np.testing.assert_allclose(same.covariance(), W @ W.T + np.diag(KAPPA), atol=1e-14)


def test_pivots_are_levels_with_large_loadings():
    """The first two levels are alike, so that they are not both pivots; the last one is alone."""
    rng = np.random.default_rng(0)
    t, level = rng.uniform(-1.7, 1.7, 600), rng.integers(0, 4, 600)
    f = np.column_stack([np.sin(4 * t), np.sin(4 * t), np.cos(3 * t), 0.05 * t])
    chosen = pivots(t[:, None], f[np.arange(600), level] + 0.05 * rng.standard_normal(600), level.astype(float), 4, 2)
    assert sorted(chosen) in ([0, 2], [1, 2])


def test_candidates_have_codes():
    frame, _ = table(80)
    Z = k_means(np.random.default_rng(0), codes(frame), 12, {1: LEVELS})
    assert set(Z[:, 1]) == {0.0, 1.0, 2.0}
    assert np.ptp(Z[:, 0]) > 3.0


# ---- a fit


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run") / "run"
    frame, y = table()
    settings = {"n_inducing": 12, "chains": 2, "target_ess": 20, "warmup": 30, "max_rounds": 1, "max_draws": 60}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ig.ConvergenceWarning)
        return ig.fit(frame, y, Categorical("station") * RBF(), run_dir=directory, **settings), directory


def test_levels_are_named_and_inducing_points_keep_theirs(fitted):
    posterior, _ = fitted
    first, _ = posterior.model.kernel.parts[0].pivots
    assert posterior.model.levels == {1: LEVELS}
    assert f"0.weights[station={first},1]" in posterior.model.names
    assert f"0.weights[station={first},2]" not in posterior.model.names
    assert "0.kappa[station=A]" in str(posterior.model)
    assert set(posterior.Z_path[..., 1].ravel()) <= {0.0, 1.0, 2.0}
    np.testing.assert_array_equal(posterior.Z_path[0][:, 1], posterior.Z_path[-1][:, 1])
    assert list(posterior.scaler.x_sd[1:]) == [1.0]
    assert list(posterior.to_arviz()["posterior"]["0.kappa"].coords["0.kappa_column"].values) == [
        f"station={level}" for level in LEVELS
    ]
    names, correlations = posterior.level_correlations("station")
    assert names == LEVELS
    assert correlations.shape == (*posterior.chains.x.shape[:2], 3, 3)
    np.testing.assert_allclose(np.diagonal(correlations, axis1=2, axis2=3), 1.0)
    with pytest.raises(InputError, match="holds no categories: those that do are station"):
        posterior.level_correlations("t")


@pytest.mark.slow
def test_a_run_and_a_file_keep_the_levels(fitted, tmp_path):
    posterior, directory = fitted
    frame, _ = table(5, seed=1)
    ig.save_model(posterior, tmp_path / "model")
    wanted = posterior.predict(frame, include_noise=True).mean
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ig.ConvergenceWarning)
        again = ig.resume(directory)
    np.testing.assert_array_equal(again.chains.x, posterior.chains.x)
    for other in (again, ig.load_model(tmp_path / "model").posterior):
        assert other.model == posterior.model
        np.testing.assert_array_equal(other.predict(codes(frame), include_noise=True).mean, wanted)


def test_unknown_categories_are_predicted_by_the_prior(fitted):
    posterior, _ = fitted
    new = pd.DataFrame({"t": [1.0, 1.0], "station": ["A", "Z"]})
    with pytest.warns(UnknownCategoryWarning, match="1 of 2 rows in the column 'station'"):
        predictive = posterior.predict(new, include_noise=False)
    with float64_scope():
        theta = posterior.model.theta(jnp.asarray(posterior.conditional.phis[0]))
        B = np.asarray(posterior.model.gp(theta).kernel.parts[0].covariance())
    mean, variance, _ = predictive.components()
    np.testing.assert_allclose(mean[:, 1], posterior.scaler.y_mean, atol=1e-12)
    assert variance[0, 1] == pytest.approx(float(np.mean(np.diagonal(B))) * posterior.scaler.y_sd**2, rel=1e-4)
    with pytest.raises(InputError, match="categories that the fit did not know"):
        posterior.predict(new, include_noise=False, strict=True)
    for wrong, words in ((0.5, "holds 0.5, which is no category"), (-1.0, "holds -1, which")):
        with pytest.raises(InputError, match=words):
            posterior.predict([[1.0, wrong]], include_noise=False)


@pytest.mark.slow
def test_the_report_and_loo_take_tables(fitted, tmp_path):
    posterior, _ = fitted
    frame, y = table()
    assert np.isfinite(posterior.loo(frame, y).elpd)
    write_report(tmp_path / "r.html", posterior, data=(codes(frame), y))
    page = (tmp_path / "r.html").read_text()
    assert "kappa[station=B]" in page
    write_report(tmp_path / "r.html", posterior, data=(frame, y))
    assert (tmp_path / "r.html").read_text() == page
    dots = [[ax.lines[0].get_xdata() for ax in ig.plot(posterior, X, y)] for X in (frame, codes(frame))]
    np.testing.assert_array_equal(*dots)


@pytest.mark.parametrize("optimiser", ["lbfgs", "adam"])
def test_optimisers_leave_codes_where_they_are(optimiser):
    frame, y = table(40)
    kernel = Categorical("station", rank=1) * RBF()
    Z = codes(frame)[:9]
    posterior = ig.fit(frame, y, kernel, Z=Z, **(SMALL | {"n_inducing": 9}), optimiser=optimiser)
    assert np.array_equal(posterior.Z[:, 1], Z[:, 1])
    assert not np.any(posterior.Z[:, 0] == Z[:, 0])


# ---- rows from elsewhere


@pytest.mark.slow
def test_all_sources_of_rows_give_one_model(tmp_path):
    frame, y = table()
    X, kernel = codes(frame), Categorical("station", rank=1) * RBF()
    wanted = ig.fit(frame, y, kernel, **SMALL).predict(X, include_noise=True).mean
    frame.assign(y=y).to_parquet(tmp_path / "t.parquet", row_group_size=25)
    for rows in (
        MappedRows(X, y, ["t", "station"], memory=0),
        open_rows(tmp_path / "t.parquet", "y", categories=["station"], memory=0),
    ):
        got = ig.fit(rows, kernel=kernel, **SMALL)
        np.testing.assert_allclose(got.predict(X, include_noise=True).mean, wanted, atol=0.05)
    assert got.model.levels == {1: LEVELS}
    again = open_source(rows.describe())
    assert again.levels == {"station": LEVELS}
    np.testing.assert_array_equal(again.read(0, 60)[:, 1], X[:, 1])


@pytest.mark.slow
def test_estimators_take_tables_of_words():
    frame, y = table()
    kernel = Categorical("station", rank=1) * RBF()
    gp = SparseGPRegressor(kernel, settings={"check_model": False}, random_state=0, **OPTIONS)
    pipeline = make_pipeline(FunctionTransformer(), clone(gp)).fit(frame, y)
    gp.fit(frame.assign(station=frame["station"].astype("category")), y)
    np.testing.assert_array_equal(pipeline.predict(frame), gp.predict(frame))
    again = pickle.loads(pickle.dumps(gp))
    np.testing.assert_array_equal(again.predict(frame.iloc[:5]), gp.predict(frame.iloc[:5]))
    with pytest.warns(UnknownCategoryWarning):
        gp.predict(frame.iloc[:1].assign(station="Z"))
    gp.set_params(strict=True)
    with pytest.raises(InputError, match="did not know"):
        gp.predict(frame.iloc[:1].assign(station="Z"))


def levels_for(X, y, kernel):
    rows = as_rows(X, y, categories=kernel.category_levels())
    return FitSpec.of("ml2", Model(kernel, rows.columns), rows, Settings()).model.levels


def test_levels_are_those_of_the_type_or_those_that_occur():
    frame, y = table()
    kernel = Categorical("station") + RBF() + Constant()
    listed = frame.astype({"station": pd.CategoricalDtype(["C", "never", "A", "B"])})
    assert levels_for(listed, y, kernel) == {1: ("C", "never", "A", "B")}
    numbers = frame.assign(station=frame["station"].map({"A": 101, "B": 20, "C": 7}))
    assert levels_for(numbers, y, kernel) == {1: ("7", "20", "101")}
    own = Categorical("station", levels=("B", "A", "C", "D"))
    assert levels_for(frame, y, own) == {1: ("B", "A", "C", "D")}
    assert levels_for(np.array(frame, object), y, Categorical(1) * RBF()) == {1: LEVELS}
    assert levels_for(codes(frame), y, Categorical(1) * RBF()) == {1: ("0", "1", "2")}


def test_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame, y = table()
    frame.assign(y=y).to_csv("t.csv", index=False)
    frame.assign(y=y).to_parquet("t.parquet")
    frame.iloc[:4].assign(station=["A", "B", "C", "Z"]).to_csv("new.csv", index=False)
    options = ["--target", "y", "--method", "ml2", "--inducing", "9", "--set", "steps=20", "--quiet", "--out", "m"]
    for source in ("t.csv", "t.parquet"):  # one program for both
        run("fit", source, *options, "--kernel", "categorical(station, rank=1)*rbf")
        predicted = run("predict", "m", "new.csv", "--out", "p.csv")
        assert "1 row of categories that the fit did not know, in station" in predicted.stderr
        posterior = ig.load_model("m").posterior
        assert posterior.model.levels == {1: LEVELS}
        X = np.column_stack([frame["t"][:4], [0.0, 1.0, 2.0, 3.0]])
        with pytest.warns(UnknownCategoryWarning):
            wanted = posterior.predict(X, include_noise=True).mean
        np.testing.assert_allclose(pd.read_csv("p.csv")["mean"], wanted, rtol=1e-6)
    assert "nlpd" in run("evaluate", "m", "t.csv").stdout
    refused = run("fit", "t.csv", *options, "--kernel", "rbf", code=2).stderr
    assert "categorical('station')" in refused
    assert "--drop station" in refused


# ---- expressions and what is refused


def test_expressions():
    kernel = parse_kernel("categorical(station, rank=1)*rbf + rbf")
    assert kernel == Categorical("station", rank=1) * RBF() + RBF()
    assert kernel.parts[0].parts[1].scale == 1.0
    assert parse_kernel("rbf * categorical('two words')").parts[1].active == ("two words",)
    assert parse_kernel(repr(fixed(tuple_of))) == fixed(tuple_of)


def tuple_of(value):
    return tuple(map(float, value)) if np.ndim(value) else float(value)


def test_levels_are_independent_without_weights():
    model = Model(Categorical(0, rank=0, levels=LEVELS, kappa=(1, 2, 3), scale=1.0), 1)
    with float64_scope():
        np.testing.assert_allclose(model.gp({"noise": 1.0}).kernel.covariance(), np.diag([1.0, 2.0, 3.0]))
    assert all(isinstance(bare(p.prior), ig.Prior) for p in model.parameters)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Categorical(), "write Categorical"),
        (lambda: Categorical(("a", "b")), "for one column"),
        (lambda: Categorical("a", rank=-1), "whole number from 0"),
        (lambda: Categorical("a", weights=ig.Normal(0, 1)), "all entries of W as numbers"),
        (lambda: Categorical("a", levels=("x", "x")), "different names"),
        (lambda: Categorical("a", 1, levels=("x", "y"), pivots=("z",)), "pivots are 1 of the levels x, y"),
        (lambda: Model(Categorical(0, levels=LEVELS, kappa=(1.0, 2.0)), 1), "kappa has 2 values, .* 3 entries"),
        (lambda: Model(Categorical("a") * RBF(active=("a", "b")), ["a", "b"]), "'a', which holds categories"),
        (lambda: Model(Categorical("a") * Linear(), ["a"]), "has no column to see"),
        (lambda: Model(Categorical("c"), ["a"]), "no column 'c'"),
    ],
)
def test_kernels_that_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_fits_that_are_refused():
    frame, y = table(30)
    X, kernel = codes(frame), Categorical("station") * RBF()
    for method in ("fbgp", "bsgp"):
        with pytest.raises(InputError, match=f"{method} draws Z, which categories have no density for: use .*sgpr-hmc"):
            ig.fit(frame, y, kernel, method=method)
    with pytest.raises(InputError, match="no schedule for categories"):
        ig.fit(frame, y, kernel, schedule="paper")
    words = r"column 'station' holds words: use Categorical\('station'\) in the kernel, or drop it"
    with pytest.raises(InputError, match=words):
        ig.fit(frame, y)
    with pytest.raises(InputError, match=words):
        SparseGPRegressor().fit(frame, y)
    for wrong, cause in ((-1.0, "holds? -1"), (0.5, "0.5 in the column"), (1e9, "codes 0, 1")):
        bad = X.copy()
        bad[3, 1] = wrong
        with pytest.raises(InputError, match=cause):
            ig.fit(ArrayRows(bad, y, ["t", "station"]), kernel=kernel)
    with pytest.raises(InputError, match="inducing inputs hold 7"):
        ig.fit(frame, y, kernel, Z=[[0.1, 7.0]])
    with pytest.raises(InputError, match="missing in row 4"):
        ig.fit(frame.assign(station=[None if i == 4 else s for i, s in enumerate(frame["station"])]), y, kernel)
    many = pd.DataFrame({"t": np.arange(120.0), "station": [f"s{i}" for i in range(120)]})
    with pytest.raises(InputError, match="120 different categories"):
        ig.fit(many, np.arange(120.0), kernel)


@pytest.mark.parametrize(("value", "levels"), [(2.0, ("A", "B")), (0.5, None), (-1.0, None)])
def test_codes_are_checked_in_all_rows_and_not_in_a_subsample(value, levels):
    """In memory and on disk; every row but one is right, so that a subsample of 20 most likely misses it."""
    X, y = np.column_stack([np.linspace(0.0, 1.0, 60), np.arange(60) % 2.0]), np.linspace(0.0, 1.0, 60)
    kernel, settings = Categorical(1, levels=levels) * RBF(), Settings(subsample_rows=20)
    FitSpec.of("ml2", Model(kernel, 2), ArrayRows(X, y), settings)
    for row in (7, 8, 9):
        bad = X.copy()
        bad[row, 1] = value
        for rows in (ArrayRows(bad, y), MappedRows(bad, y, memory=1)):
            with pytest.raises(InputError, match=f"rows hold {value:g} in the column 'x1'"):
                FitSpec.of("ml2", Model(kernel, 2), rows, settings)


@pytest.mark.slow
def test_update_refuses_rows_whose_codes_are_of_other_levels(fitted):
    posterior, _ = fitted
    frame, y = table(6, seed=1)
    same, other = (ArrayRows(codes(frame), y, ["t", "station"], levels={"station": v}) for v in ("ABC", "BAC"))
    posterior.update(same, strict=False)
    with pytest.raises(InputError, match="new rows have the levels B, A, C in the column 'station'"):
        posterior.update(other)
    seen, of_y = table()
    old = ArrayRows(codes(seen), of_y, ["t", "station"], levels={"station": "CBA"})
    with pytest.raises(InputError, match="old rows have the levels C, B, A"):
        ig.methods.fit._old_rows(old, posterior.model)


def test_kernels_of_one_column_agree_about_its_levels():
    frame, y = table(30)
    first = Categorical("station", levels=("B", "A", "C"))
    kernel = Categorical(1, levels=("B", "A", "C")) * RBF() + Categorical(1)
    assert levels_for(codes(frame), y, kernel) == {1: ("B", "A", "C")}
    for other in (("A", "B", "C"), ("B", "A", "C", "D")):
        with pytest.raises(InputError, match=f"the levels B, A, C in one kernel and {', '.join(other)} in"):
            Model(first * RBF() + Categorical("station", rank=0, levels=other), ["t", "station"])


def test_residuals_are_not_held_against_codes(fitted, monkeypatch):
    posterior, _ = fitted
    frame, y = table()
    seen = []
    monkeypatch.setattr(examine, "residual_findings", lambda r, rows, names, _: seen.append((rows.X, names)) or [])
    rows = as_rows(frame, y, categories={1: LEVELS})
    problem = FitSpec.of("sgpr-hmc", posterior.model, rows, Settings(n_inducing=12)).problem()
    examine._examination(posterior, problem)
    [(X, names)] = seen
    assert list(names) == ["t"]
    assert X.shape == (60, 1)


def test_pivots_see_the_logarithm_where_the_model_does(monkeypatch):
    frame, y = table(40)
    seen = []
    monkeypatch.setattr(categorical, "pivots", lambda X, y, *_: seen.append(y) or [0])
    kernel = Categorical(1, rank=1, levels=LEVELS) * RBF()
    for transform, rows in ((None, ArrayRows), ("log", ArrayRows), ("log", MappedRows)):
        target = np.exp(y) if transform else y
        model = Model(kernel, 2, target_transform=transform)
        FitSpec.of("ml2", model, rows(codes(frame), target), Settings())
    np.testing.assert_allclose(seen[1], seen[0], atol=1e-12)
    np.testing.assert_allclose(seen[2], seen[0], atol=1e-12)


@pytest.mark.slow
def test_rows_without_names_of_columns_and_Z_of_words_are_taken_or_refused_in_words():
    frame, y = table(40)
    model = Model(Categorical("station", rank=1) * RBF(), ["t", "station"])
    drawn = ig.prior_predictive(model, np.array(frame, object), y, at=[["1.0", "A"]], n_draws=2)
    assert drawn.shape == (2, 1)
    with pytest.raises(InputError, match="of the columns x0, x1: there is no 'zz'"):
        ArrayRows(codes(frame), y, levels={"zz": LEVELS})
    rows = as_rows(frame, y, categories={1: LEVELS})
    assert rows.but(["a", "b"]).levels == {"b": LEVELS}
    words, numbers = [FitSpec.of("ml2", model, rows, Settings(), Z).Z for Z in (frame[:5], codes(frame)[:5])]
    np.testing.assert_array_equal(words, numbers)
    with pytest.raises(InputError, match="Z is no table of 2 columns of numbers"):
        FitSpec.of("ml2", model, rows, Settings(), [["soon", "A"]])


@pytest.mark.slow
def test_correlations_of_levels_are_numbers_where_f_is_zero_at_the_means():
    """A line through the means of the columns has no variance there; one deviation beside them it has."""
    frame, y = table(40)
    posterior = ig.fit(frame, y, Categorical("station", rank=1) * Linear(), **SMALL)
    _, correlations = posterior.level_correlations("station")
    model, phi = posterior.model, np.asarray(posterior.conditional.phis)[0]
    with float64_scope():
        B = np.asarray(jax.jit(lambda phi: model.gp(model.theta(phi)).kernel.parts[0].covariance())(phi))
    sd = np.sqrt(np.diagonal(B))
    np.testing.assert_allclose(correlations[0, 0], B / np.outer(sd, sd), atol=1e-5)


@pytest.mark.slow
def test_arrays_of_numbers_are_refused_where_levels_are_other_numbers():
    frame, y = table(40)
    numbers = frame.assign(station=frame["station"].map({"A": 1, "B": 2, "C": 7}))
    kernel = Categorical("station", rank=1) * RBF()
    gp = SparseGPRegressor(kernel, settings={"check_model": False}, random_state=0, **OPTIONS).fit(numbers, y)
    wanted = gp.posterior_.predict(numbers, include_noise=True).mean
    np.testing.assert_array_equal(gp.predict(numbers), wanted)
    np.testing.assert_array_equal(gp.posterior_.predict(np.array(numbers, object), include_noise=True).mean, wanted)
    with pytest.raises(InputError, match="are the numbers 1, 2, 7, and an array"):
        gp.predict(numbers.to_numpy())


def test_columns_of_a_frame_are_taken_by_name():
    frame, y = table(40)
    kernel = Categorical("station", rank=1) * RBF()
    gp = SparseGPRegressor(kernel, settings={"check_model": False}, random_state=0, **OPTIONS).fit(frame, y)
    np.testing.assert_array_equal(gp.predict(frame[["station", "t"]]), gp.predict(frame))


def test_an_estimator_takes_words_after_codes_and_names_a_new_one():
    frame, y = table(40)
    kernel = Categorical(1, rank=1, levels=LEVELS) * RBF()
    gp = SparseGPRegressor(kernel, settings={"check_model": False}, random_state=0, **OPTIONS).fit(codes(frame), y)
    words = np.array(frame, object)
    np.testing.assert_array_equal(gp.predict(words), gp.predict(codes(frame)))
    words[3, 1] = "Z"
    for update in (gp.update, gp.posterior_.update):
        with pytest.raises(InputError, match="'Z', which is none of its 3 levels"):
            update(words, y)
