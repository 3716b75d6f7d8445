"""Findings on the model: each from residuals that have just that fault, and none from residuals without one."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from integrand.bounds.collapsed import collapsed_bound
from integrand.bounds.exact import log_marginal_likelihood
from integrand.data.dataset import Dataset
from integrand.gp import BOUNDS, GP
from integrand.inducing import greedy_variance
from integrand.infer.verdict import MODEL_CODES, Sparseness
from integrand.kernels import RBF
from integrand.linalg import Jitter
from integrand.posterior.model_findings import (
    Rows,
    column_findings,
    count_findings,
    l_moment_ratios,
    residual_findings,
    size_findings,
    sparseness_findings,
)
from integrand.posterior.residuals import Residuals
from integrand.posterior.sparseness import dense_bound, further_points, log_marginal
from integrand.precision import float64_scope

N, NAMES = 300, ("age", "dose")


def rows(rng, n=N):
    return Rows(rng.uniform(-2, 2, (n, 2)), np.zeros(n), np.ones(n - 1, bool))


def codes(z, some, mean=None):
    mean = some.X[:, 0] if mean is None else mean
    found = residual_findings(Residuals(np.clip(z, -8, 8), mean, np.ones(len(z))), some, NAMES)
    for finding in found:
        assert finding.code in MODEL_CODES
        assert finding.sentence.endswith(".")
        assert not finding.serious
    return [f.code for f in found]


def autoregressive(rng, some):
    z = np.zeros(N)
    for i in range(1, N):
        z[i] = 0.7 * z[i - 1] + math.sqrt(1 - 0.49) * rng.standard_normal()
    return z


def with_outliers(rng, some):
    z = 0.3 * rng.standard_normal(N)
    z[rng.choice(N, 8, replace=False)] = 6.0 * rng.choice([-1, 1], 8)
    return z


FAULTS = {
    "heavy-tails": lambda rng, some: rng.standard_t(2.5, N),
    "outliers": with_outliers,
    "skewed": lambda rng, some: rng.exponential(size=N) - 1.0,
    "heteroscedastic": lambda rng, some: np.exp(some.X[:, 1]) * rng.standard_normal(N) / 2.0,
    "missed-structure": lambda rng, some: np.sin(3 * some.X[:, 1]) + 0.5 * rng.standard_normal(N),
    "autocorrelated": autoregressive,
    "intervals-wide": lambda rng, some: 0.5 * rng.standard_normal(N),
    "intervals-narrow": lambda rng, some: 1.7 * rng.standard_normal(N),
}


@pytest.mark.parametrize("code", FAULTS)
def test_a_fault_is_named(code):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        some = rows(rng)
        assert code in codes(FAULTS[code](rng, some), some)


@pytest.mark.slow
def test_sound_residuals_are_rarely_blamed():
    """Five tests at a level of 0.001 each: some 10 alarms in 2 000 sets, and more than 30 once in a million runs."""
    alarms = 0
    for seed in range(2_000):
        rng = np.random.default_rng(seed)
        some = rows(rng, 60)
        alarms += bool(codes(rng.standard_normal(60), some))
    assert alarms <= 30


def test_a_series_along_a_column_is_one_finding():
    """Rows that are sorted by a column follow each other along it: structure, and not a second finding."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-2, 2, (N, 1)), axis=0)
    some = Rows(X, np.zeros(N), np.ones(N - 1, bool))
    assert codes(autoregressive(rng, some), some) == ["missed-structure"]


def test_few_residuals_say_nothing():
    rng = np.random.default_rng(0)
    some = rows(rng, 10)
    assert codes(10.0 * rng.standard_normal(10), some) == []


def test_columns():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 1))
    near, other = x + 0.05 * rng.standard_normal((200, 1)), rng.standard_normal((200, 1))
    names = ("a", "b", "c", "d")
    (same,) = column_findings(np.hstack([x, other, -2.0 * x + 1.0]), names)
    assert same.code == "duplicate-columns"
    assert "a and c" in same.sentence
    (close,) = column_findings(np.hstack([x, other, near, np.zeros((200, 1))]), names)
    assert close.code == "collinear-columns"
    assert column_findings(np.hstack([x, other]), names) == []
    assert column_findings(np.zeros((200, 2)), names) == []


def test_size():
    assert [f.code for f in size_findings(12, 4)] == ["few-rows"]
    assert size_findings(40, 4) == []


def test_counts():
    rng = np.random.default_rng(0)
    one = np.ones(N)
    assert [f.code for f in count_findings(Residuals(1.5 * rng.standard_normal(N), one, one))] == ["overdispersed"]
    assert count_findings(Residuals(rng.standard_normal(N), one, one)) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"gain_sd": 0.9}, ["sparse-posterior"]),
        ({"gain_sd": 0.9, "slack": 1.0, "slack_sd": 0.1}, []),  # the slack itself is known, and does not vary
        ({"slack": 1.0, "slack_sd": 0.8}, ["sparse-posterior"]),
        ({"gain": 12.0}, ["few-inducing"]),
        ({"fresh_gain": 50.0}, ["inducing-stuck"]),
    ],
)
def test_sparseness(changes, expected):
    s = Sparseness(30, 20, 0.2, 0.1, -1.0, math.nan, math.nan)._replace(**changes)
    found, given = (sparseness_findings(s, 500, 20, Z_given) for Z_given in (False, True))
    assert [f.code for f in given] == expected
    assert not any("`Z`" in f.remedy for f in found)
    assert all("`Z`" in f.remedy for f in given if f.code == "inducing-stuck")
    assert [f.code for f in found] == expected
    assert "nats" in str(s)
    for finding in found:
        if "more" in finding.remedy:
            assert "`n_inducing=40`" in finding.remedy


def test_l_moments_of_known_distributions():
    """Uniform 0 and 0; normal 0 and 0.1226; exponential 1/3 and 1/6 (Hosking 1990)."""
    rng = np.random.default_rng(0)
    for sample, skewness, kurtosis in (
        (rng.uniform(size=100_000), 0.0, 0.0),
        (rng.standard_normal(100_000), 0.0, 0.1226),
        (rng.exponential(size=100_000), 1 / 3, 1 / 6),
    ):
        assert l_moment_ratios(sample) == pytest.approx((skewness, kurtosis), abs=0.01)


# ---- what more inducing points would gain

JITTER = Jitter()


def case(n=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(n)
    with float64_scope():
        gp = GP(RBF(lengthscale=(0.7, 1.3), scale=1.2), jnp.asarray(0.3), jnp.asarray(0.1))
        K = np.asarray(gp.kernel.gram(jnp.asarray(X)))
    return X, y, gp, K


def bound_at(points, y, K, bound="titsias"):
    return dense_bound(JITTER.added(K[np.ix_(points, points)]), K[points], np.diagonal(K), y - 0.1, 0.3**2, bound)


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_bound_is_the_one_that_is_sampled(bound):
    X, y, gp, K = case()
    points = np.arange(7)
    expected = float(collapsed_bound(gp, X[points], Dataset.of(X, y), bound=bound))
    assert bound_at(points, y, K, bound) == pytest.approx(expected, abs=1e-8)


def test_the_exact_density():
    X, y, gp, K = case()
    assert log_marginal(K, y - 0.1, 0.3**2) == pytest.approx(float(log_marginal_likelihood(gp, X, y)), abs=1e-9)


def test_with_all_rows_as_points_nothing_is_missing():
    _, y, _, K = case()
    gap = log_marginal(K, y - 0.1, 0.3**2) - bound_at(np.arange(len(y)), y, K)
    assert 0.0 <= gap < 1e-3


def test_more_points_never_lose():
    _, y, _, K = case()
    points = further_points(K, 0, 20, JITTER)
    bounds = [bound_at(points[:m], y, K) for m in (1, 2, 5, 10, 20)]
    assert np.all(np.diff(bounds) > -1e-6)


def test_points_are_those_of_the_greedy_start():
    X, _, gp, K = case()
    chosen = further_points(K, 0, 6, JITTER)
    np.testing.assert_array_equal(X[chosen], greedy_variance(np.random.default_rng(0), X, 6, gp))


def test_points_after_some_go_on_where_those_ended():
    _, _, _, K = case()
    chosen = further_points(K, 0, 6, JITTER)
    order = np.concatenate([chosen[:3], np.arange(len(K))])
    np.testing.assert_array_equal(further_points(K[np.ix_(order, order)], 3, 3, JITTER), chosen[3:])


def test_there_are_no_further_points_where_all_is_explained():
    _, _, _, K = case(n=10)
    order = np.tile(np.arange(10), 2)
    assert len(further_points(K[np.ix_(order, order)], 10, 5, JITTER)) == 0


def test_a_matrix_that_has_no_factor_gives_nan():
    bad = -np.eye(3)
    assert math.isnan(log_marginal(bad, np.zeros(3), 0.5))
    assert math.isnan(dense_bound(bad, np.ones((3, 3)), np.ones(3), np.zeros(3), 0.5, "tight"))
