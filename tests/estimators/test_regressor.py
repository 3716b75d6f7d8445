"""The scikit-learn contract of `SparseGPRegressor`, and that its results are in the user's units."""

import copy
import pickle
import pickletools
import subprocess
import sys
import warnings

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

import integrand as ig
from integrand import RBF, Gamma, Matern32, SparseGPRegressor
from integrand.storage.model_file import model_from_bytes

CHEAP = SparseGPRegressor(method="ml2", n_inducing=8, steps=15, random_state=0)
SAMPLED = SparseGPRegressor(
    n_inducing=5, chains=2, max_draws=30, target_ess=10, settings={"warm_steps": 10, "max_rounds": 1}, random_state=0
)


# ---- the contract


# Each of these fits data of a shape of its own, which compiles some ten programs: the slow suite has them.
DEAR_CHECKS = {
    "check_dtype_object",
    "check_estimators_fit_returns_self",
    "check_f_contiguous_array_estimator",
    "check_n_features_in",
    "check_pipeline_consistency",
    "check_fit_score_takes_y",
    "check_estimators_overwrite_params",
    "check_dont_overwrite_parameters",
    "check_n_features_in_after_fitting",
    "check_positive_only_tag_during_fit",
    "check_estimators_dtypes",
    "check_regressors_no_decision_function",
    "check_regressors_int",
    "check_fit2d_1feature",
    "check_fit_idempotent",
    "check_fit_check_is_fitted",
    "check_readonly_memmap_input",
    "check_methods_sample_order_invariance",
    "check_estimators_nan_inf",
    "check_fit2d_1sample",
}


def checks():
    """The checks of scikit-learn, the dear ones marked as slow."""
    for estimator, check in estimator_checks_generator(CHEAP):
        name = getattr(check, "func", check).__name__
        yield pytest.param(estimator, check, marks=pytest.mark.slow if name in DEAR_CHECKS else (), id=name)


@pytest.mark.parametrize(("estimator", "check"), list(checks()))
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::integrand.ConvergenceWarning")  # 30 draws are not meant to converge
@parametrize_with_checks([SAMPLED])
def test_scikit_learn_checks_with_draws(estimator, check):
    check(estimator)


# All tests below share these shapes, so that few programs are compiled.
@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(40)
    return X, y


@pytest.fixture(scope="module")
def fitted(data):
    return clone(CHEAP).set_params(steps=60).fit(*data)


@pytest.fixture(scope="module")
def sampled(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ig.ConvergenceWarning)
        return clone(SAMPLED).set_params(n_inducing=8).fit(*data)


def test_constructor_only_stores():
    kernel = RBF(lengthscale=Gamma(2, 1))
    estimator = SparseGPRegressor(kernel, n_inducing=-1, method="nonsense")
    assert estimator.get_params()["kernel"] is kernel
    assert clone(estimator).kernel == kernel
    assert repr(estimator) == repr(clone(estimator))


def test_in_a_pipeline(data, fitted):
    X, y = data
    pipeline = make_pipeline(StandardScaler(), clone(fitted)).fit(X, y)
    # The estimator standardises too, and standardising twice changes nothing but rounding, which the climb enlarges.
    np.testing.assert_allclose(pipeline.predict(X), fitted.predict(X), rtol=1e-4, atol=1e-4)
    assert pipeline.score(X, y) > 0.9


@pytest.mark.slow
def test_in_a_grid_search_on_two_processes(data):
    grid = {"kernel": [RBF(), Matern32()]}
    search = GridSearchCV(CHEAP, grid, cv=2, n_jobs=2).fit(*data)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_params_["kernel"] in grid["kernel"]


def through_pickle(estimator, path):
    return pickle.loads(pickle.dumps(estimator))


def through_joblib(estimator, path):
    joblib.dump(estimator, path)
    return joblib.load(path)


@pytest.mark.slow
def test_cross_val_predict(data):
    X, y = data
    out = cross_val_predict(CHEAP, X, y, cv=2)
    assert out.shape == y.shape
    assert np.isfinite(out).all()


@pytest.mark.parametrize("through", [through_pickle, through_joblib])
@pytest.mark.parametrize("which", ["fitted", "sampled"])
def test_pickle_and_joblib(which, through, data, request, tmp_path):
    estimator = request.getfixturevalue(which)
    again = through(estimator, tmp_path / "model.joblib")
    np.testing.assert_array_equal(again.predict(data[0]), estimator.predict(data[0]))
    assert str(again.diagnostics_) == str(estimator.diagnostics_)


def test_a_pickle_holds_a_model_file(sampled, data):
    """Numbers and names, which later versions can read; of this library only the estimator and its parameters."""
    content = pickle.dumps(sampled)
    state = sampled.__getstate__()
    assert model_from_bytes(state["model_file"]).posterior.model == sampled.posterior_.model
    assert state["model_file"] in content
    named = {
        str(argument) for op, argument, _ in pickletools.genops(content) if op.name in ("SHORT_BINUNICODE", "GLOBAL")
    }
    assert {name for name in named if name.startswith("integrand.")} == {"integrand.estimators"}
    # All draws stay, also where a file would thin them.
    assert pickle.loads(content).posterior_.conditional.n_draws == sampled.posterior_.conditional.n_draws
    assert sampled.posterior_.verdict is sampled.diagnostics_  # pickling changes nothing


def test_a_copy_is_deep(sampled, data):
    again = copy.deepcopy(sampled)
    assert again.posterior_ is not sampled.posterior_
    np.testing.assert_array_equal(again.predict(data[0]), sampled.predict(data[0]))


@pytest.mark.parametrize(
    "call", [lambda e, X: e.predict(X), lambda e, X: e.sample_y(X), lambda e, X: e.log_density(X, X[:, 0])]
)
def test_not_fitted(call, data):
    with pytest.raises(NotFittedError):
        call(SparseGPRegressor(), data[0])


def test_attributes(data, fitted, sampled):
    X, _ = data
    assert fitted.n_features_in_ == 2
    assert fitted.n_inducing_ == 8
    assert str(fitted.diagnostics_).startswith("Optimised")
    assert not hasattr(fitted, "feature_names_in_")
    assert sampled.diagnostics_ is sampled.posterior_.verdict
    assert "draws" in str(sampled.diagnostics_)
    np.testing.assert_array_equal(fitted.feature_ranges_, np.column_stack([X.min(axis=0), X.max(axis=0)]))


@pytest.mark.slow
def test_no_more_inducing_points_than_distinct_rows(data):
    X, y = data
    assert clone(CHEAP).set_params(n_inducing=500, steps=2).fit(X, y).n_inducing_ == 40


# ---- seeds


def test_a_seed_is_that_of_the_function(data, fitted):
    posterior = ig.fit(*data, method="ml2", n_inducing=8, steps=60, seed=0)
    expected = posterior.predict(data[0], include_noise=True).mean
    np.testing.assert_array_equal(fitted.predict(data[0]), expected)


def test_random_states(data, sampled):
    X, _ = data
    first, again = (sampled.sample_y(X, 3, random_state=np.random.RandomState(1)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, sampled.sample_y(X, 3, random_state=2))
    assert not np.array_equal(sampled.sample_y(X, 3), sampled.sample_y(X, 3))
    with pytest.raises(ValueError, match="seed"):
        sampled.sample_y(X, random_state="no seed")


def test_global_state_of_numpy_is_left_alone_with_a_seed(data, fitted):
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    clone(fitted).fit(*data).sample_y(data[0], random_state=1)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


# ---- kinds of data


def frames(X, y):
    """The data as pandas and polars, rows missing from the pandas index."""
    import pandas as pd
    import polars as pl

    gaps = np.arange(len(y)) * 3 + 7
    yield pd.DataFrame(X, columns=["a", "b"], index=gaps), pd.Series(y, index=gaps, name="strength")
    table = pl.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y})
    yield table.select("a", "b"), table["y"]


def test_pandas_and_polars(data, fitted):
    X, y = data
    for frame, target in frames(X, y):
        estimator = clone(fitted).fit(frame, target)
        assert list(estimator.feature_names_in_) == ["a", "b"]
        assert estimator.posterior_.model.columns == ("a", "b")
        mean, sd = estimator.predict(frame, return_std=True)
        assert type(mean) is type(sd) is np.ndarray
        np.testing.assert_array_equal(mean, fitted.predict(X))
        np.testing.assert_allclose(estimator.log_density(frame, target), fitted.log_density(X, y))
        assert estimator.score(frame, target) == fitted.score(X, y)


@pytest.mark.slow
def test_integers_and_booleans(data):
    import pandas as pd
    import polars as pl

    X, y = data
    whole, flag = np.round(3 * X[:, 0]).astype(int), X[:, 1] > 0
    plain = np.column_stack([whole, flag]).astype(float)
    expected = clone(CHEAP).fit(plain, y).predict(plain)
    columns = {"whole": whole, "flag": flag}
    for frame in (
        pd.DataFrame(columns),
        pl.DataFrame(columns),
        pd.DataFrame(columns).astype({"whole": "Int64", "flag": "boolean"}),
        np.column_stack([whole, flag]),
        plain.tolist(),
    ):
        np.testing.assert_array_equal(clone(CHEAP).fit(frame, y).predict(frame), expected)


def test_read_only_arrays_and_other_layouts(data, fitted):
    X, y = data
    frozen, target = np.asfortranarray(X), y.copy()
    frozen.setflags(write=False)
    target.setflags(write=False)
    estimator = clone(fitted).fit(frozen, target)
    np.testing.assert_array_equal(estimator.predict(frozen), fitted.predict(X))


def test_other_columns_than_those_fitted(data, fitted):
    (frame, target), _ = frames(*data)
    estimator = clone(CHEAP).fit(frame, target)
    with pytest.raises(ig.InputError, match="feature names should match"):
        estimator.predict(frame.rename(columns={"a": "c"}))
    with pytest.raises(ig.InputError, match="same order"):
        estimator.predict(frame[["b", "a"]])
    with pytest.raises(ig.InputError, match="missing"):
        estimator.predict(frame[["a"]])
    with pytest.raises(ig.InputError, match="expecting 2 features"):
        fitted.predict(data[0][:, :1])
    with pytest.raises(
        ig.InputError, match=r"^Expected 2D array, got 1D array instead\. Reshape your data .*sample\.$"
    ):
        fitted.predict(data[0][:, 0])


# ---- refusals


def test_categories_text_and_times_are_refused_by_name(data):
    import pandas as pd
    import polars as pl

    X, y = data
    letters = ["a", "b"] * 20
    for column, cause in (
        (pd.Categorical(letters), r"'kind' holds words: use Categorical\('kind'\) in the kernel, or drop it"),
        (pd.Categorical([1, 2] * 20), "'kind' holds words"),
        (pd.Series(letters, dtype="string"), "'kind' holds words"),
        (pd.Series(letters, dtype=object), "'kind' holds words"),
        (pd.date_range("2020-01-01", periods=40), "'kind' holds times .*days since"),
    ):
        with pytest.raises(ig.InputError, match=cause):
            clone(CHEAP).fit(pd.DataFrame({"x": X[:, 0]}).assign(kind=column), y)
    for dtype in (pl.String, pl.Categorical, pl.Enum(["a", "b"])):
        with pytest.raises(ig.InputError, match="'kind' holds words"):
            clone(CHEAP).fit(pl.DataFrame({"x": X[:, 0], "kind": pl.Series(letters, dtype=dtype)}), y)


def test_missing_values_are_refused_with_advice(data):
    import pandas as pd
    import polars as pl

    X, y = data
    holes = X.copy()
    holes[3, 1] = np.nan
    table = pl.DataFrame({"a": [None, *X[1:, 0]], "b": X[:, 1]})
    for frame in (holes, pd.DataFrame(holes), pd.DataFrame(holes).astype("Float64"), table):
        with pytest.raises(ig.InputError, match=r"Input X contains NaN\. Drop these rows, or impute"):
            clone(CHEAP).fit(frame, y)
    with pytest.raises(ig.InputError, match="Input y contains NaN"):
        clone(CHEAP).fit(X, np.where(y > 1, np.nan, y))


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"method": "hmc"}, "no method 'hmc'"),
        ({"kernel": "rbf"}, "kernel must be a kernel"),
        ({"priors": "flat"}, "no preset 'flat'"),
        ({"n_inducing": 0}, "n_inducing must be a whole number of at least 1"),
        ({"target_accept": 2.0}, "target_accept"),
        ({"settings": {"stepz": 1}}, "no setting 'stepz'"),
        ({"noise": -1.0}, "noise must be positive"),
        ({"random_state": "x"}, "seed"),
    ],
)
def test_parameters_are_checked_by_fit(changes, cause, data, as_users_see_it):
    with pytest.raises(ValueError, match=cause):
        clone(CHEAP).set_params(**changes).fit(*data)


# ---- results


def test_units(data, fitted):
    X, y = data
    factors = np.array([1e-6, 1e3])
    other = clone(fitted).fit(X * factors + 5.0, 1000.0 * y - 300.0)
    mean, sd, quantiles = fitted.predict(X, return_std=True, quantiles=[0.1, 0.9])
    mean_, sd_, quantiles_ = other.predict(X * factors + 5.0, return_std=True, quantiles=[0.1, 0.9])
    # Rounding differs, and a climb of 60 steps enlarges that; a mistake of units would be a thousand times as large.
    np.testing.assert_allclose(mean_, 1000.0 * mean - 300.0, rtol=1e-3, atol=2.0)
    np.testing.assert_allclose(sd_, 1000.0 * sd, rtol=1e-2)
    np.testing.assert_allclose(quantiles_, 1000.0 * quantiles - 300.0, rtol=1e-3, atol=5.0)
    densities = other.log_density(X * factors + 5.0, 1000.0 * y - 300.0)
    np.testing.assert_allclose(densities, fitted.log_density(X, y) - np.log(1000.0), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("which", ["fitted", "sampled"])
def test_what_predict_returns(which, data, request):
    estimator = request.getfixturevalue(which)
    X = data[0][:7]
    mean = estimator.predict(X)
    assert mean.shape == (7,)
    pair = estimator.predict(X, return_std=True)
    assert [a.shape for a in pair] == [(7,), (7,)]
    alone = estimator.predict(X, quantiles=[0.05, 0.5, 0.95])
    assert [a.shape for a in alone] == [(7,), (7, 3)]
    three = estimator.predict(X, return_std=True, quantiles=0.5)
    assert [a.shape for a in three] == [(7,), (7,), (7, 1)]
    for results in (pair, alone, three):
        np.testing.assert_array_equal(results[0], mean)
    assert (np.diff(alone[1], axis=1) > 0).all()
    predictive = estimator.predict_distribution(X)
    np.testing.assert_allclose(predictive.cdf(alone[1][:, 0]), 0.05, rtol=1e-9)
    # Noise widens the spread and leaves the mean.
    f_mean, f_sd = estimator.predict(X, return_std=True, include_noise=False)
    np.testing.assert_allclose(f_mean, mean)
    assert (f_sd < pair[1]).all()
    with pytest.raises(ig.InputError, match=r"between 0 and 1|probabilit"):
        estimator.predict(X, quantiles=[1.5])


@pytest.mark.parametrize("joint", [True, False])
def test_sample_y(joint, data, sampled):
    X = data[0]
    draws = sampled.sample_y(X, 2000, random_state=0, joint=joint)
    assert draws.shape == (40, 2000)
    mean, sd = sampled.predict(X, return_std=True)
    assert np.abs((draws.mean(axis=1) - mean) / (sd / np.sqrt(2000))).max() < 5
    np.testing.assert_allclose(draws.std(axis=1), sd, rtol=0.2)
    assert sampled.sample_y(X).shape == (40, 1)
    assert sampled.sample_y(X, 500, 0, joint, include_noise=False).std() < draws.std()


def test_log_density(data, sampled):
    X, y = data
    values = sampled.log_density(X, y)
    assert values.shape == (40,)
    np.testing.assert_array_equal(values, sampled.predict_distribution(X).log_density(y))
    with pytest.raises(ig.InputError, match="inconsistent numbers of samples"):
        sampled.log_density(X, y[:-1])


@pytest.mark.slow
def test_warning_and_strict_mode(data):
    with pytest.warns(ig.ConvergenceWarning) as caught:
        clone(SAMPLED).set_params(n_inducing=8, target_ess=1000, max_draws=8).fit(*data)
    assert caught[0].filename == __file__
    with pytest.raises(ig.NotConvergedError):
        clone(SAMPLED).set_params(n_inducing=8, target_ess=1000, max_draws=8, strict=True).fit(*data)


@pytest.mark.slow
def test_run_directory(data, sampled, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ig.ConvergenceWarning)
        estimator = clone(sampled).set_params(run_dir=tmp_path / "run").fit(*data)
        resumed = ig.resume(tmp_path / "run")
    np.testing.assert_array_equal(estimator.predict(data[0]), sampled.predict(data[0]))
    np.testing.assert_array_equal(resumed.chains.x, estimator.posterior_.chains.x)


# ---- files


@pytest.mark.parametrize("which", ["fitted", "sampled"])
def test_save_and_load(which, data, request, tmp_path):
    estimator = request.getfixturevalue(which)
    X, y = data
    estimator.save(tmp_path / "model.ig")
    again = SparseGPRegressor.load(tmp_path / "model.ig")
    for a, b in zip(
        again.predict(X, return_std=True, quantiles=[0.1]),
        estimator.predict(X, return_std=True, quantiles=[0.1]),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    assert (again.n_features_in_, again.n_inducing_, again.method) == (2, 8, estimator.method or "sgpr-hmc")
    assert again.steps == estimator.steps
    assert again.settings == estimator.settings
    assert str(again.diagnostics_) == str(estimator.diagnostics_)
    assert not hasattr(again, "feature_names_in_")
    np.testing.assert_array_equal(again.feature_ranges_, estimator.feature_ranges_)
    # What was loaded can be fitted again, and saved again.
    if which == "fitted":
        refitted = clone(again).set_params(random_state=0).fit(X, y)
        np.testing.assert_array_equal(refitted.predict(X), estimator.predict(X))
    again.save(tmp_path / "again.ig")
    assert (tmp_path / "again.ig").read_bytes() == (tmp_path / "model.ig").read_bytes()


def test_a_file_of_the_command_line_can_be_loaded_and_fitted_again(data, tmp_path):
    """It notes the method, priors and kernel beside the settings."""
    settings = {"method": "ml2", "kernel": "rbf", "priors": "pooled", "likelihood": "gaussian", "seed": 3, "warmup": 50}
    posterior = ig.fit(*data, method="ml2", n_inducing=8, steps=15, seed=3)
    ig.save_model(posterior, tmp_path / "model", settings=settings | {"n_inducing": 8, "steps": 15})
    again = SparseGPRegressor.load(tmp_path / "model")
    assert (again.n_inducing, again.steps, again.random_state, again.settings) == (8, 15, 3, {"warmup": 50})
    np.testing.assert_array_equal(clone(again).fit(*data).predict(data[0]), again.predict(data[0]))


def test_save_and_load_keep_names(data, tmp_path):
    (frame, target), _ = frames(*data)
    estimator = clone(CHEAP).fit(frame, target)
    estimator.save(tmp_path / "model.ig")
    again = SparseGPRegressor.load(tmp_path / "model.ig")
    np.testing.assert_array_equal(again.predict(frame), estimator.predict(frame))
    assert list(again.feature_names_in_) == ["a", "b"]
    with pytest.raises(NotFittedError):
        SparseGPRegressor().save(tmp_path / "nothing.ig")


# ---- importing


def fresh(code):
    """Output of a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
def test_importing_the_estimator_loads_no_other_package():
    code = """
import sys
from integrand import SparseGPRegressor
print(sorted({"matplotlib", "arviz", "nutpie", "typer"} & set(sys.modules)))
"""
    assert fresh(code) == "[]"


def test_unknown_names_of_the_package_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'SparseGPClusterer'"):
        _ = ig.SparseGPClusterer


# ---- in a notebook


def test_a_fit_is_a_line_and_a_table(tmp_path):
    import pandas as pd

    rng = np.random.default_rng(0)
    table = pd.DataFrame({"<age>": rng.uniform(20, 80, 60), "dose": rng.uniform(0, 5, 60)})
    response = pd.Series(np.sin(table["dose"]) + 0.1 * rng.standard_normal(60), name="response")
    gp = SparseGPRegressor(method="ml2", n_inducing=6, steps=20).fit(table, response)
    posterior = gp.posterior_
    for value in (posterior, posterior.predict(table, include_noise=True), posterior.chains, posterior.conditional):
        assert len(repr(value)) < 120
        assert "\n" not in repr(value)
    page = posterior._repr_html_()
    assert "lengthscale[&lt;age&gt;]" in page
    noise = float(posterior.theta_original["noise"][0, 0])
    assert f"<td>{noise:.4g}</td>" in page
    assert "SparseGPRegressor" in gp._repr_html_()
    gp.report(tmp_path / "r.html", table, response, held_out=True)
    text = (tmp_path / "r.html").read_text()
    assert "Sparse Gaussian process for response" in text
    assert "took no part in the fit" in text
    with pytest.raises(ig.InputError, match="give both X and y"):
        gp.report(tmp_path / "r.html", table)


def test_scikit_learn_s_containers_and_metadata():
    import pandas as pd
    from sklearn import config_context
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((40, 2)), columns=["a", "b"])
    y = np.sin(table["a"])
    gp = SparseGPRegressor(method="ml2", n_inducing=6, steps=20)
    pipeline = make_pipeline(StandardScaler(), gp).set_output(transform="pandas").fit(table, y)
    assert list(pipeline[-1].feature_names_in_) == ["a", "b"]
    with config_context(enable_metadata_routing=True):
        make_pipeline(StandardScaler(), gp).fit(table, y).predict(table)
        assert gp.get_metadata_routing().fit.requests == {"noise_variance": None}
    assert "Pipeline" in pipeline._repr_html_()
