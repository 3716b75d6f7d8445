import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from integrand import metrics
from integrand.errors import InputError
from integrand.posterior.mixture import GaussianMixture

# No level whose tail is a multiple of 1/12: rounded values on the very edge of an interval are ties.
LEVELS = [0.1, 0.51, 0.8, 0.95]


def random_case(seed=0, draws=6, rows=40):
    rng = np.random.default_rng(seed)
    mixture = GaussianMixture(rng.normal(size=(draws, rows)), rng.gamma(2.0, size=(draws, rows)))
    return mixture, mixture.sample(rng, 1)[0]


def test_point_errors():
    assert metrics.rmse([1.0, 2.0], [1.0, 4.0]) == pytest.approx(np.sqrt(2))
    assert metrics.mae([1.0, 2.0], [1.0, 4.0]) == 1.0


def test_densities_against_scipy():
    mixture, y = random_case()
    normal = stats.norm(mixture.means, np.sqrt(mixture.variances))
    assert metrics.nlpd(mixture, y) == pytest.approx(-np.mean(np.log(normal.pdf(y).mean(axis=0))), rel=1e-12)
    assert metrics.expected_nlpd(mixture, y) == pytest.approx(-np.mean(normal.logpdf(y)), rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8))
def test_jensen(seed, draws):
    mixture, y = random_case(seed, draws, rows=5)
    assert metrics.nlpd(mixture, y) <= metrics.expected_nlpd(mixture, y) + 1e-12


def test_one_draw_has_one_nlpd():
    mixture, y = random_case(draws=1)
    joint = stats.norm.logpdf(y, mixture.means, np.sqrt(mixture.variances)).sum(axis=1)
    expected = metrics.nlpd(mixture, y)
    assert metrics.expected_nlpd(mixture, y) == pytest.approx(expected, rel=1e-12)
    # With a diagonal covariance the joint density is the product over points.
    assert metrics.joint_nlpd(joint, y.size) == pytest.approx(expected, rel=1e-12)


def test_joint_nlpd_is_the_mean_over_draws_per_point():
    assert metrics.joint_nlpd([-10.0, -30.0], 5) == 4.0


def test_units():
    mixture, y = random_case()
    scaled, z = mixture.transformed(2.0, 10.0), 10.0 * y + 2.0
    a, b = metrics.evaluate(mixture, y), metrics.evaluate(scaled, z)
    for name in ("nlpd", "expected_nlpd"):
        assert b[name] == pytest.approx(a[name] + np.log(10.0))
    for name in ("rmse", "crps"):
        assert b[name] == pytest.approx(10.0 * a[name])
    assert b["coverage_80"] == a["coverage_80"]


def test_crps_and_pit_are_the_mixtures():
    mixture, y = random_case()
    assert metrics.crps(mixture, y) == mixture.crps(y).mean()
    np.testing.assert_array_equal(metrics.pit(mixture, y), mixture.cdf(y))


@pytest.mark.parametrize("with_point_masses", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_coverage_counts_the_interval(seed, with_point_masses):
    mixture, y = random_case(seed, rows=200)
    if with_point_masses:
        rng = np.random.default_rng(seed)
        variances = np.where(rng.random(mixture.means.shape) < 0.7, 0.0, mixture.variances)
        variances[:, :60] = 0.0
        mixture = GaussianMixture(np.round(mixture.means), variances)
        y = np.round(y)
    table = metrics.calibration(mixture, y, LEVELS)
    for level, covered in zip(LEVELS, table["coverage"], strict=True):
        lower, upper = mixture.interval(level)
        expected = np.mean((lower <= y) & (y <= upper))
        assert covered == metrics.coverage(mixture, y, level) == expected


def test_calibrated_data_are_covered():
    mixture, y = random_case(rows=20_000, draws=3)
    table = metrics.calibration(mixture, y, LEVELS)
    np.testing.assert_array_equal(table["level"], LEVELS)
    assert (np.abs(table["coverage"] - LEVELS) < 4 * table["standard_error"]).all()
    assert stats.kstest(metrics.pit(mixture, y), "uniform").pvalue > 1e-3


def test_a_point_mass_covers_itself():
    mixture = GaussianMixture(np.ones((4, 2)), np.zeros((4, 2)))
    assert metrics.coverage(mixture, [1.0, 1.0], 0.5) == 1.0
    assert metrics.coverage(mixture, [1.0, 1.1], 0.5) == 0.5


def test_point_masses_on_the_edge_of_the_interval():
    # q(1/4) = 0 and q(3/4) = 2, both inside; 3 is not.
    mixture = GaussianMixture(np.repeat(np.arange(4.0)[:, None], 4, axis=1), np.zeros((4, 4)))
    assert metrics.coverage(mixture, [0.0, 1.0, 2.0, 3.0], 0.5) == 0.75


def test_evaluate():
    mixture, y = random_case()
    scores = metrics.evaluate(mixture, y)
    names = ["rmse", "nlpd", "expected_nlpd", "crps", "coverage_50", "coverage_80", "coverage_95"]
    assert list(scores) == names
    assert all(type(value) is float for value in scores.values())
    assert scores["rmse"] == metrics.rmse(mixture.mean, y)
    assert scores["coverage_95"] == metrics.coverage(mixture, y, 0.95)
    with_joint = metrics.evaluate(mixture, y, joint_log_density=np.full(6, -80.0))
    assert with_joint.pop("joint_nlpd") == 2.0
    assert with_joint == scores


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, y: metrics.rmse(m.mean, y[:-1]), "equally long"),
        (lambda m, y: metrics.rmse([], []), "non-empty"),
        (lambda m, y: metrics.mae(m.mean * np.nan, y), "predictions has NaN"),
        (lambda m, y: metrics.nlpd(m, y[:-1]), "one value for each of the 40 rows"),
        (lambda m, y: metrics.crps(m, y[:, None]), "one value for each"),
        (lambda m, y: metrics.evaluate(m, np.where(y > 0, np.nan, y)), "y has NaN"),
        (lambda m, y: metrics.pit(m, ["a"] * 40), "array of numbers"),
        (lambda m, y: metrics.coverage(m, y, 95), "between 0 and 1"),
        (lambda m, y: metrics.calibration(m, y, 0.5), "levels must be a list"),
        (lambda m, y: metrics.joint_nlpd([-1.0, np.inf], 3), "joint_log_densities has NaN"),
        (lambda m, y: metrics.joint_nlpd([[-1.0]], 3), "shape"),
        (lambda m, y: metrics.joint_nlpd([-1.0], 0), "at least 1"),
        (lambda m, y: metrics.joint_nlpd([-1.0], 2.5), "whole number"),
        (lambda m, y: metrics.nlpd(GaussianMixture(m.means, 0 * m.variances), y), "zero variance"),
        (lambda m, y: metrics.evaluate(GaussianMixture(np.zeros((2, 0)), np.zeros((2, 0))), []), "not 0"),
    ],
)
def test_errors_name_the_cause(call, message):
    with pytest.raises(InputError, match=message):
        call(*random_case())
