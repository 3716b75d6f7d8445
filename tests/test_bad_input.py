"""Bad input through the estimator: a finite answer, or a typed error that names the cause."""

import warnings

import numpy as np
import pytest

import integrand as ig
from integrand import SparseGPRegressor

# Nearly all cases have this shape, so that few programs are compiled.
N, D, M = 24, 2, 6
rng = np.random.default_rng(0)
X = rng.standard_normal((N, D))
Y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1]
NOISY = Y + 0.1 * rng.standard_normal(N)
LIMIT = 300  # seconds: bad input must not hang; a busy machine may be slow


def cheap(**changes):
    return SparseGPRegressor(**{"method": "map", "n_inducing": M, "steps": 60, "random_state": 0} | changes)


def sampled(**changes):
    settings = {"warm_steps": 30, "max_rounds": 1}
    budget = {"n_inducing": M, "chains": 2, "max_draws": 30, "target_ess": 10, "settings": settings, "random_state": 0}
    return SparseGPRegressor(**budget | changes)


def frozen(array):
    array = array.copy()
    array.setflags(write=False)
    return array


def column(values, at=1):
    """X with one column replaced."""
    out = X.copy()
    out[:, at] = values
    return out


def with_value(array, value):
    out = array.copy()
    out[(3,) * array.ndim if array.ndim == 1 else (3, 1)] = value
    return out


def pandas_with_gaps():
    import pandas as pd

    index = np.arange(N) * 5 - 3
    return pd.DataFrame(X, columns=["a", "b"], index=index), pd.Series(NOISY, index=index[::-1])


def polars_with_gaps():
    import polars as pl

    table = pl.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": NOISY, "keep": np.arange(N) % 3 > 0})
    kept = pl.concat([table, table]).filter("keep").head(N)
    return kept.select("a", "b"), kept["y"]


# Data from which a finite answer is due.
FINITE = {
    "plain": (X, NOISY),
    "duplicate rows": (np.repeat(X[: N // 3], 3, axis=0), NOISY),
    "duplicate rows with equal targets": (np.repeat(X[: N // 3], 3, axis=0), np.repeat(NOISY[: N // 3], 3)),
    "all rows equal": (np.ones((N, D)), NOISY),
    "all rows equal and y constant": (np.ones((N, D)), np.ones(N)),
    "one constant column": (column(3.0), NOISY),
    "a column constant up to rounding": (column(0.1 + 1e-17 * np.arange(N)), NOISY),
    "y constant": (X, np.full(N, 7.0)),
    "y zero": (X, np.zeros(N)),
    "X of scale 1e-12": (1e-12 * X, NOISY),
    "X of scale 1e12": (1e12 * X, NOISY),
    "y of scale 1e-12": (X, 1e-12 * NOISY),
    "y of scale 1e12": (X, 1e12 * NOISY),
    "columns of scales 1e-12 and 1e12": (X * [1e-12, 1e12], NOISY),
    "X with an offset of 1e9": (X + 1e9, NOISY),
    "y with an offset of 1e9": (X, NOISY + 1e9),
    "tiny variation on an offset of 1e9": (1e-6 * X + 1e9, 1e-6 * NOISY + 1e9),
    "X of subnormal numbers": (1e-310 * X, NOISY),
    "X of numbers near the largest": (1e300 * X, NOISY),
    "no noise": (X, Y),
    "no noise, linear": (X, X @ [1.0, -2.0]),
    "collinear columns": (column(2.0 * X[:, 0]), NOISY),
    "columns equal": (column(X[:, 0]), NOISY),
    "a huge outlier in y": (X, with_value(NOISY, 1e9)),
    "a huge outlier in X": (with_value(X, 1e9), NOISY),
    "y of two values": (X, np.sign(NOISY)),
    "read-only": (frozen(X), frozen(NOISY)),
    "columns in Fortran order": (np.asfortranarray(X), NOISY),
    "reversed views": (X[::-1], NOISY[::-1]),
    "float32": (X.astype(np.float32), NOISY.astype(np.float32)),
    "integers": (np.round(10 * X).astype(int), np.round(10 * NOISY).astype(int)),
    "unsigned bytes": (np.abs(100 * X).astype(np.uint8), np.abs(100 * NOISY).astype(np.uint8)),
    "booleans": (X > 0, NOISY > 0),
    "a boolean column": (column(X[:, 1] > 0), NOISY),
    "lists": (X.tolist(), NOISY.tolist()),
    "objects that are numbers": (X.astype(object), NOISY.astype(object)),
    "pandas with index gaps": pandas_with_gaps(),
    "polars with index gaps": polars_with_gaps(),
}
# Other shapes: each compiles its own program.
SHAPES = {
    "1 row": (X[:1], NOISY[:1], {}),
    "2 rows": (X[:2], NOISY[:2], {}),
    "2 equal rows": (X[[0, 0]], NOISY[:2], {}),
    "more columns than rows": (rng.standard_normal((5, 9)), NOISY[:5], {}),
    "more inducing points than rows": (X, NOISY, {"n_inducing": 1000}),
    "1 inducing point": (X, NOISY, {"n_inducing": 1}),
    "1 column": (X[:, :1], NOISY, {}),
}


def finite_answers(estimator, X, y):
    """Fit and ask for everything; the answers must be finite numbers and the spread positive."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ig.ConvergenceWarning)  # tiny budgets
        estimator.fit(X, y)
    mean, sd, quantiles = estimator.predict(X, return_std=True, quantiles=[0.025, 0.5, 0.975])
    assert np.isfinite(mean).all()
    assert np.isfinite(sd).all()
    assert (sd > 0).all()
    assert np.isfinite(quantiles).all()
    assert (np.diff(quantiles, axis=1) >= 0).all()
    assert np.isfinite(estimator.log_density(X, y)).all()
    assert np.isfinite(estimator.sample_y(X, 2, random_state=0)).all()
    return mean, sd


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("case", FINITE)
def test_finite_answer(case):
    finite_answers(cheap(), *FINITE[case])


QUICK_SHAPES = ("1 row",)


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK_SHAPES else pytest.mark.slow) for case in SHAPES]
)
def test_finite_answer_in_other_shapes(case):
    X, y, changes = SHAPES[case]
    finite_answers(cheap(**changes), X, y)


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize(
    "case",
    [
        "all rows equal",
        "y constant",
        *(
            pytest.param(case, marks=pytest.mark.slow)
            for case in ("duplicate rows", "one constant column", "X with an offset of 1e9", "no noise")
        ),
    ],
)
def test_finite_answer_without_priors(case):
    finite_answers(cheap(method="ml2"), *FINITE[case])


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize(
    "case",
    [
        "y constant",
        "no noise, linear",
        *(pytest.param(case, marks=pytest.mark.slow) for case in ("duplicate rows", "a huge outlier in y")),
    ],
)
def test_finite_answer_of_the_exact_methods(case):
    finite_answers(cheap(method="gpr-map"), *FINITE[case])


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize(
    "case",
    [
        "all rows equal",
        "no noise",
        "a huge outlier in y",
        *(
            pytest.param(case, marks=pytest.mark.slow)
            for case in ("plain", "duplicate rows", "collinear columns", "y of scale 1e12")
        ),
    ],
)
def test_finite_answer_with_draws(case):
    finite_answers(sampled(), *FINITE[case])


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("case", ["y constant", "y zero", "all rows equal and y constant", "1 row"])
def test_draws_of_a_constant(case):
    # Under the default priors the posterior cannot be normalised: the likelihood grows without end as noise vanishes.
    X, y, *_ = (FINITE | SHAPES)[case]
    with pytest.raises(ig.InputError, match="learn from a constant"):
        sampled().fit(X, y)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("case", ["2 rows", "1 inducing point"])
def test_finite_answer_with_draws_in_other_shapes(case):
    X, y, changes = SHAPES[case]
    finite_answers(sampled(**changes), X, y)


# ---- answers that are known


def test_scales_and_offsets_change_nothing():
    plain, spread = finite_answers(cheap(), X, NOISY)
    for case, shift, factor in (
        ("X of scale 1e-12", 0, 1),
        ("X of scale 1e12", 0, 1),
        ("columns of scales 1e-12 and 1e12", 0, 1),
        ("y of scale 1e-12", 0, 1e-12),
        ("y of scale 1e12", 0, 1e12),
        ("y with an offset of 1e9", 1e9, 1),
    ):
        mean, sd = finite_answers(cheap(), *FINITE[case])
        np.testing.assert_allclose((mean - shift) / factor, plain, atol=1e-3)
        np.testing.assert_allclose(sd / factor, spread, rtol=1e-2)


def test_a_constant_target_is_predicted():
    mean, _ = finite_answers(cheap(), *FINITE["y constant"])
    np.testing.assert_allclose(mean, 7.0, atol=1e-6)


def test_without_inputs_the_mean_is_predicted():
    mean, sd = finite_answers(cheap(), *FINITE["all rows equal"])
    np.testing.assert_allclose(mean, NOISY.mean(), atol=0.1)
    assert np.ptp(mean) < 1e-9
    np.testing.assert_allclose(sd, NOISY.std(), rtol=0.3)


# ---- refusals

LETTERS = np.array(["a", "b"] * (N // 2))
REFUSED = {
    "NaN in X": (with_value(X, np.nan), NOISY, "X contains NaN.*Drop these rows, or impute"),
    "NaN in y": (X, with_value(NOISY, np.nan), r"y contains NaN, the first in row \d+: leave such rows out.$"),
    "infinity in X": (with_value(X, np.inf), NOISY, "X contains infinity.*Drop these rows"),
    "minus infinity in y": (X, with_value(NOISY, -np.inf), "y contains infinity"),
    "None in X": (with_value(X.astype(object), None), NOISY, "X contains NaN"),
    "text in X": (np.column_stack([X[:, 0].astype(str), LETTERS]), NOISY, "could not convert string.*Categorical"),
    "text in y": (X, LETTERS, "the target holds words, such as 'a'.*SparseGPClassifier"),
    "categories in y": (X, LETTERS.astype(object), "the target holds words.*SparseGPClassifier"),
    "a list of words as y": (X, LETTERS.tolist(), "the target holds words.*SparseGPClassifier"),
    "complex X": (X + 1j, NOISY, "[Cc]omplex"),
    "complex y": (X, NOISY + 1j, "[Cc]omplex"),
    "y too short": (X, NOISY[:-1], "inconsistent numbers of samples"),
    "X too short": (X[:-1], NOISY, "inconsistent numbers of samples"),
    "no rows": (X[:0], NOISY[:0], "0 sample"),
    "no columns": (X[:, :0], NOISY, "0 feature"),
    "one dimension": (X[:, 0], NOISY, "[Rr]eshape"),
    "three dimensions": (X[None], NOISY[:1], "dim 3"),
    "a number": (3.0, NOISY, "scalar"),
    "two targets": (X, np.column_stack([NOISY, NOISY]), "1d array"),
    "no y": (X, None, "requires y"),
    "y of subnormal numbers": (X, 1e-310 * NOISY, "standard deviation of y is .*e-311: give y in other units"),
    "y of numbers near the largest": (X, 1e300 * NOISY, "give y in other units"),
    "ragged lists": ([[1.0], [1.0, 2.0]] * (N // 2), NOISY, "inhomogeneous|sequence"),
    "overflow of float64": (X, [10**400] * N, "too large|not numbers"),
}


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("case", REFUSED)
def test_refusal(case):
    X, y, cause = REFUSED[case]
    with pytest.raises(ig.InputError, match=f"(?s){cause}"):
        cheap().fit(X, y)


@pytest.mark.parametrize(
    ("ask", "cause"),
    [
        (lambda: cheap(noise=-1.0).fit(X, NOISY), "0 is for rows whose noise is known"),
        (lambda: cheap(n_inducing="lots").fit(X, NOISY), "or 'auto', not 'lots'"),
        (lambda: cheap(kernel="rbf").fit(X, NOISY), r"parse_kernel\('rbf'\)"),
        (lambda: 2.0 * ig.RBF(), r"RBF\(scale=2.0\)"),
        (lambda: ig.parse_kernel("rbf(active=[temp])"), "a column stands in quotes, 'temp'"),
        (lambda: ig.fit(text_numbers(), NOISY), r"convert it to numbers, or use Categorical\('b'\)"),
    ],
)
def test_settings_and_what_to_write_instead(ask, cause, as_users_see_it):
    with pytest.raises(ig.InputError, match=cause):
        ask()


def text_numbers():
    frame = pandas_with_gaps()[0]
    return frame.assign(b=frame["b"].astype(str).astype("string"))


def test_a_report_that_cannot_be_written(fitted, tmp_path):
    with pytest.raises(ig.InputError, match=r"cannot write .*r\.html: .*choose another path"):
        fitted.report(tmp_path / "none" / "r.html")


def test_refusal_of_sparse_matrices():
    import scipy.sparse

    with pytest.raises((TypeError, ig.InputError), match=r"[Ss]parse.*dense"):
        cheap().fit(scipy.sparse.csr_matrix(X), NOISY)


AS_COLUMNS = pandas_with_gaps()[0].reset_index(drop=True)
SERIES = "is a Series, not a table: give df"


@pytest.mark.parametrize("series", [AS_COLUMNS["a"], AS_COLUMNS.iloc[0]], ids=["column", "row"])
def test_a_series_is_not_a_table(series, fitted):
    for ask in (
        lambda: cheap().fit(series, NOISY),
        lambda: ig.fit(series, NOISY, method="map"),
        lambda: fitted.predict(series),
        lambda: fitted.posterior_.predict(series, include_noise=True),
    ):
        with pytest.raises(ig.InputError, match=SERIES):
            ask()
    with pytest.raises(ig.InputError, match=r"df\[\['a'\]\] for one column"):
        cheap().fit(AS_COLUMNS["a"], NOISY)


@pytest.mark.parametrize("field", ["noise", "mean"])
def test_one_number_for_all_rows(field):
    with pytest.raises(ig.InputError, match=f"{field} is one number or one prior for all rows, not {N} numbers"):
        ig.fit(X, NOISY, method="map", **{field: np.full(N, 0.1)})


@pytest.mark.parametrize("active", [1.5, [None], [True, False], {"a"}, "ab"])
def test_columns_of_a_kernel(active):
    with pytest.raises(ig.InputError, match=r"active|no column 'ab'"):
        ig.fit(X, NOISY, ig.RBF(active=active), method="map")


class PressCtrlC:
    """Progress during which Ctrl-C comes with the final draws."""

    def __init__(self):
        self.current = ""

    def phase(self, name):
        self.current = name

    def update(self, done, total, text=""):
        if self.current == "final draws" and "warm-up" not in text:
            raise KeyboardInterrupt

    def close(self):
        pass


@pytest.mark.parametrize(
    ("keep", "advice"),
    [pytest.param(False, "Fit again; with a run directory", marks=pytest.mark.slow), (True, "Resume the run")],
)
def test_only_a_fit_with_a_run_directory_can_be_resumed(keep, advice, tmp_path):
    settings = {"n_inducing": M, "chains": 2, "max_draws": 30, "target_ess": 1e9, "warm_steps": 30, "max_rounds": 1}
    run_dir = tmp_path / "run" if keep else None
    with pytest.warns(ig.ConvergenceWarning, match=advice):
        posterior = ig.fit(X, NOISY, progress=PressCtrlC(), run_dir=run_dir, **settings)
    assert "interrupted" in posterior.verdict.codes
    with pytest.warns(ig.ConvergenceWarning) as caught:
        ig.fit(X, NOISY, run_dir=tmp_path / "other" if keep else None, **settings)
    assert ("resuming" in str(caught[0].message)) == keep


def test_quantiles_are_probabilities(fitted):
    with pytest.raises(ig.InputError, match=r"quantiles must be .* between 0 and 1: write 0\.05 for 5 %"):
        fitted.predict(X, quantiles=[5, 95])
    with pytest.raises(ig.InputError, match="quantiles"):
        fitted.predict(X, quantiles=["a"])


def test_a_column_as_target_is_taken_with_a_word():
    from sklearn.exceptions import DataConversionWarning

    with pytest.warns(DataConversionWarning, match="ravel"):
        estimator = cheap().fit(X, NOISY[:, None])
    np.testing.assert_array_equal(estimator.predict(X), cheap().fit(X, NOISY).predict(X))


@pytest.mark.parametrize(
    ("rows", "cause"),
    [
        (with_value(X, np.nan), "X contains NaN"),
        (with_value(X, np.inf), "infinity"),
        (X[:0], "0 sample"),
        (X[:, :1], "expecting 2 features"),
        (X[0], "[Rr]eshape"),
        (np.array([["a", "b"]]), "could not convert string"),
    ],
)
def test_refusal_when_predicting(rows, cause, fitted):
    for ask in (fitted.predict, fitted.sample_y, fitted.predict_distribution):
        with pytest.raises(ig.InputError, match=cause):
            ask(rows)


@pytest.fixture(scope="module")
def fitted():
    return cheap().fit(X, NOISY)


@pytest.mark.parametrize("place", [1e3, 1e9, 1e100, -1e300])
def test_far_away_the_prior_is_back(place, fitted):
    mean, sd = fitted.predict(np.full((1, D), place), return_std=True)
    np.testing.assert_allclose(mean, NOISY.mean(), atol=1e-9)
    assert sd > 0.5 * NOISY.std()
    assert np.isfinite(fitted.sample_y(np.full((1, D), place))).all()
