"""The mixture of observations: against the Gaussian one, against sums and integrals, against draws."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from scipy.integrate import quad

from integrand.errors import InputError
from integrand.likelihoods import Bernoulli, Gaussian, Poisson, StudentT
from integrand.posterior import observed as module
from integrand.posterior.mixture import GaussianMixture
from integrand.posterior.observed import ObservedMixture

ALL = [Gaussian(), StudentT(), StudentT(1.5), Bernoulli(), Bernoulli("logit"), Poisson()]
every = pytest.mark.parametrize("likelihood", ALL, ids=map(repr, ALL))
LEVELS = np.array([1e-9, 0.025, 0.3, 0.5, 0.8, 0.975, 1 - 1e-6])


def random_mixture(likelihood, seed=0, draws=7, rows=5):
    rng = np.random.default_rng(seed)
    means, variances = rng.normal(size=(draws, rows)), rng.gamma(2.0, 0.3, size=(draws, rows))
    return ObservedMixture(likelihood, means, variances, rng.gamma(4.0, 0.1, size=draws))


def single(likelihood, means, variances, noise=None):
    noise = np.ones(len(means)) if noise is None else noise
    return ObservedMixture(likelihood, np.array(means, float)[:, None], np.array(variances, float)[:, None], noise)


def typical(likelihood):
    return {
        "bernoulli": np.array([0.0, 1.0, 1.0, 0.0, 1.0]),
        "poisson": np.array([0.0, 1.0, 4.0, 20.0, 2.0]),
    }.get(likelihood.name, np.array([-2.0, 0.1, 0.7, 6.0, -0.3]))


def repeated(mixture, rows, sign=1.0):
    """The only row of a mixture, or its mirror image, many times over: many y in one call."""
    means, variances = (np.repeat(a, rows, axis=1) for a in (sign * mixture.means, mixture.variances))
    return ObservedMixture(mixture.likelihood, means, variances, mixture.noise)


def count_cdf(mixture, counts):
    """F of a one-row mixture of counts by a rule for each draw, far finer than needed."""
    z = np.linspace(-10, 10, 401)
    f = mixture.means[:, :1] + np.sqrt(mixture.variances[:, :1]) * z
    given_f = special.gammaincc(np.asarray(counts)[:, None, None] + 1, np.exp(f))
    return np.mean(given_f @ (stats.norm.pdf(z) / stats.norm.pdf(z).sum()), axis=1)


# Against the mixture of Gaussians, whose numbers are closed


@pytest.mark.parametrize("seed", [0, 1])
def test_a_gaussian_likelihood_gives_the_gaussian_mixture(seed):
    mixture = random_mixture(Gaussian(), seed)
    expected = GaussianMixture(mixture.means, mixture.variances).plus_noise(mixture.noise**2)
    y = np.array([[-2.0, 0.1, 0.7, 6.0, -30.0], [0.0, 1e4, 3.0, -1.0, 0.5]])
    np.testing.assert_allclose(mixture.mean, expected.mean, rtol=1e-14)
    np.testing.assert_allclose(mixture.sd, expected.sd, rtol=1e-14)
    for name in ("cdf", "pit", "density", "log_density", "expected_log_density"):
        np.testing.assert_allclose(getattr(mixture, name)(y), getattr(expected, name)(y), rtol=1e-12)
    np.testing.assert_allclose(mixture.crps(y), expected.crps(y), rtol=1e-9)
    np.testing.assert_allclose(mixture.quantile(LEVELS), expected.quantile(LEVELS), rtol=1e-11, atol=1e-12)


def test_a_student_t_with_many_degrees_of_freedom_is_nearly_gaussian():
    wide = random_mixture(StudentT(1e6))
    gaussian = ObservedMixture(Gaussian(), wide.means, wide.variances, wide.noise)
    y = typical(wide.likelihood)
    for name in ("cdf", "log_density", "crps"):
        np.testing.assert_allclose(getattr(wide, name)(y), getattr(gaussian, name)(y), rtol=2e-5)


# Densities and distribution functions


@pytest.mark.parametrize("likelihood", [StudentT(), StudentT(1.5)], ids=repr)
def test_density_integrates_to_the_cdf(likelihood):
    mixture = single(likelihood, [-1.0, 0.3, 2.0], [0.2, 1e-4, 0.0], [0.1, 1.0, 0.3])
    for a, b in itertools.pairwise([-3.0, -1.0, 0.3, 1.8, 2.1, 9.0]):
        mass, _ = quad(lambda y: mixture.density([y])[0], a, b, epsabs=1e-12)
        assert mixture.cdf([b])[0] - mixture.cdf([a])[0] == pytest.approx(mass, abs=1e-10)
    assert mixture.cdf([1e9])[0] == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Bernoulli("logit"), Poisson()], ids=repr)
def test_probabilities_add_up_to_the_cdf(likelihood):
    mixture = random_mixture(likelihood)
    counts = np.arange(2.0 if likelihood.name == "bernoulli" else 60.0)
    grid = np.broadcast_to(counts[:, None], (len(counts), 5))
    total = np.cumsum(mixture.density(grid), axis=0)
    np.testing.assert_allclose(mixture.cdf(grid), total, atol=1e-10)
    np.testing.assert_allclose(mixture.cdf(grid + 0.99), total, atol=1e-10)
    assert (mixture.cdf(np.full(5, -1e-9)) == 0).all()


@every
def test_log_density_is_the_log_of_the_mean(likelihood):
    mixture, y = random_mixture(likelihood), typical(likelihood)
    parts = [
        ObservedMixture(likelihood, mixture.means[j : j + 1], mixture.variances[j : j + 1], mixture.noise[j : j + 1])
        for j in range(7)
    ]
    logs = np.array([part.log_density(y) for part in parts])
    np.testing.assert_allclose(mixture.log_density(y), np.log(np.mean(np.exp(logs), axis=0)), rtol=1e-9)
    np.testing.assert_allclose(mixture.expected_log_density(y), logs.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(mixture.cdf(y), np.mean([part.cdf(y) for part in parts], axis=0), atol=1e-10)
    assert (mixture.expected_log_density(y) <= mixture.log_density(y)).all()


def test_probit_is_closed():
    mixture = random_mixture(Bernoulli())
    p = special.ndtr(mixture.means / np.sqrt(1 + mixture.variances)).mean(axis=0)
    np.testing.assert_allclose(mixture.probability, p, rtol=1e-13)
    np.testing.assert_allclose(mixture.variance, p * (1 - p), rtol=1e-13)
    np.testing.assert_allclose(mixture.log_density(np.zeros(5)), np.log1p(-p), rtol=1e-12)
    np.testing.assert_array_equal(mixture.mean, mixture.probability)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Bernoulli("logit")], ids=repr)
def test_far_classes_do_not_underflow(likelihood):
    mixture = single(likelihood, [-300.0, -200.0], [1.0, 4.0])
    expected = special.log_ndtr(-200 / np.sqrt(5)) if likelihood.link == "probit" else -200 + 2
    np.testing.assert_allclose(mixture.log_density([1.0]), expected - np.log(2), rtol=1e-12)
    assert mixture.log_density([0.0])[0] == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize(
    ("means", "variances", "y"), [([0, 0.5], [4, 3], 80), ([-10, -3], [0.1, 1], 30), ([9], [0], 9)]
)
def test_count_log_density_in_the_tail(means, variances, y):
    """Against quad around the peak of each integrand."""
    mixture = single(Poisson(), means, variances)
    logs = []
    for m, v in zip(means, variances, strict=True):
        if v == 0:
            logs.append(stats.poisson.logpmf(y, np.exp(m)))
            continue
        f = np.linspace(-40, 40, 400_001)
        exponent = y * f - np.exp(f) - special.gammaln(y + 1) - (f - m) ** 2 / (2 * v) - 0.5 * np.log(2 * np.pi * v)
        logs.append(special.logsumexp(exponent) + np.log(f[1] - f[0]))
    expected = special.logsumexp(logs) - np.log(len(means))
    np.testing.assert_allclose(mixture.log_density([y]), expected, rtol=1e-10)


@pytest.mark.slow
def test_student_t_with_little_noise():
    mixture = single(StudentT(), [0.0, 0.5], [1.0, 4.0], [1e-3, 1e-2])
    for y in (0.0, 1.0, 7.0, 60.0):
        expected = 0.0
        for m, s, noise in ((0.0, 1.0, 1e-3), (0.5, 2.0, 1e-2)):
            ends = np.concatenate(
                [m + s * np.linspace(-12, 12, 25), *[y + sign * noise * 4.0 ** np.arange(-2, 9) for sign in (-1, 1)]]
            )
            for a, b in itertools.pairwise(np.unique(ends)):
                integrand = lambda f: stats.t._pdf((y - f) / noise, 4) / noise * stats.norm._pdf((f - m) / s) / s  # noqa: B023, E731
                expected += 0.5 * quad(integrand, a, b, epsabs=0, epsrel=1e-10)[0]
        np.testing.assert_allclose(mixture.log_density([y]), np.log(expected), rtol=1e-8, atol=1e-8)


# Draws


@every
def test_moments_quantiles_and_cdf_against_draws(likelihood):
    mixture, n = random_mixture(likelihood), 100_000
    draws = mixture.sample(np.random.default_rng(1), n)
    assert draws.shape == (n, 5)
    assert draws.dtype == float
    likelihood.check_y(draws)
    if getattr(likelihood, "df", 9) > 2:
        assert (np.abs(draws.mean(axis=0) - mixture.mean) < 5 * mixture.sd / np.sqrt(n)).all()
        assert np.abs(np.corrcoef(draws.T) - np.eye(5)).max() < 0.03
    if getattr(likelihood, "df", 9) > 4:
        squares = (draws - mixture.mean) ** 2
        error = squares.std(axis=0) / np.sqrt(n)
        assert (np.abs(squares.mean(axis=0) - mixture.variance) < 5 * error).all()
    for y in (typical(likelihood), mixture.quantile(0.7)):
        p = mixture.cdf(y)
        assert (np.abs((draws <= y).mean(axis=0) - p) <= 5 * np.sqrt(p * (1 - p) / n) + 1e-9).all()


@every
def test_crps_against_draws(likelihood):
    """E|Y - y| - ½ E|Y - Y'|, where the mean exists."""
    mixture, y, n = random_mixture(likelihood), typical(likelihood), 200_000
    one, two = (mixture.sample(np.random.default_rng(seed), n) for seed in (1, 2))
    terms = np.abs(one - y) - 0.5 * np.abs(one - two)
    assert (np.abs(mixture.crps(y) - terms.mean(axis=0)) < 6 * terms.std(axis=0) / np.sqrt(n)).all()


# Quantiles


@pytest.mark.parametrize("likelihood", [StudentT(), StudentT(1.0), StudentT(30.0)], ids=repr)
def test_quantile_inverts_cdf(likelihood):
    mixture = random_mixture(likelihood)
    q = mixture.quantile(LEVELS)
    np.testing.assert_allclose(mixture.cdf(q), np.broadcast_to(LEVELS[:, None], q.shape), rtol=1e-11)
    assert (np.diff(q, axis=0) > 0).all()
    mirrored = ObservedMixture(likelihood, -mixture.means, mixture.variances, mixture.noise)
    np.testing.assert_allclose(mirrored.quantile(1 - 2.0**-20), -mixture.quantile(2.0**-20), rtol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-100, 100), st.floats(0, 100), st.floats(1e-3, 10)), min_size=1, max_size=4),
    st.floats(1e-8, 1 - 1e-8),
    st.sampled_from([1.0, 4.0]),
)
def test_quantile_inverts_cdf_for_any_student_t(components, p, df):
    mixture = single(StudentT(df), *zip(*components, strict=True))
    q = mixture.quantile(p)
    below, above = mixture.cdf(np.nextafter(q, -np.inf)), mixture.cdf(np.nextafter(q, np.inf))
    np.testing.assert_allclose(mixture.cdf(q), p, rtol=1e-9, atol=max(1e-10, float(np.abs(above - below)[0])))


def test_one_draw_without_spread_is_scipys():
    mixture = single(StudentT(3.0), [2.0], [0.0], [0.5])
    np.testing.assert_allclose(mixture.quantile(LEVELS)[:, 0], stats.t.ppf(LEVELS, 3, 2.0, 0.5), rtol=1e-9)
    mixture = single(Poisson(), [np.log(7.3)], [0.0])
    np.testing.assert_array_equal(mixture.quantile(LEVELS)[:, 0], stats.poisson.ppf(LEVELS, 7.3))
    np.testing.assert_allclose(mixture.cdf([[3.0], [9.5]])[:, 0], stats.poisson.cdf([3, 9], 7.3), rtol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-5, 9), st.floats(0, 4)), min_size=1, max_size=4),
    st.floats(1e-6, 1 - 1e-6),
    st.sampled_from([Poisson(), Bernoulli(), Bernoulli("logit")]),
)
def test_discrete_quantile_is_the_smallest_that_reaches(components, p, likelihood):
    mixture = single(likelihood, *zip(*components, strict=True))
    q = mixture.quantile(p)
    likelihood.check_y(q)
    # F is known to 1e-10: which of two neighbours is the quantile may hang on that.
    assert mixture.cdf(q)[0] >= p - 1e-9
    assert mixture.cdf(q - 1)[0] < p + 1e-9


def test_quantile_shapes_and_interval():
    for likelihood in (StudentT(), Poisson(), Bernoulli()):
        mixture = random_mixture(likelihood)
        assert mixture.quantile(0.5).shape == (5,)
        assert mixture.quantile([0.5]).shape == (1, 5)
        assert mixture.quantile([]).shape == (0, 5)
        lower, upper = mixture.interval(0.9)
        np.testing.assert_allclose(lower, mixture.quantile(0.05), rtol=1e-13)
        np.testing.assert_allclose(upper, mixture.quantile(0.95), rtol=1e-13)


# CRPS


def test_brier():
    mixture, y = random_mixture(Bernoulli()), typical(Bernoulli())
    np.testing.assert_allclose(mixture.crps(y), (y - mixture.probability) ** 2, rtol=1e-14)


@pytest.mark.parametrize("df", [0.7, 1.0, 4.0, 40.0])
@pytest.mark.parametrize("y", [-3.0, 2.0, 50.0])
def test_student_t_crps_against_its_integral(df, y):
    mixture = single(StudentT(df), [-1.0, 0.3, 2.0], [0.2, 1e-4, 0.0], [0.1, 1.0, 0.05])
    # x = y ± sinh(t): the tails are exponential in t. The mixture's own F, which other tests check, in one call.
    end = {0.7: 60.0, 1.0: 25.0, 4.0: 12.0, 40.0: 9.0}[df]
    offsets = np.array([0.0, 0.1, 0.3, 1.0, 3.0])
    structure = [m + sign * offsets * s for m, s in ((-1.0, 0.5), (0.3, 1.0), (2.0, 0.3)) for sign in (-1, 1)]
    ends = np.unique(np.concatenate([np.linspace(0, end, 61), np.arcsinh(np.abs(np.concatenate(structure) - y))]))
    nodes, weights = np.polynomial.legendre.leggauss(12)
    half = np.diff(ends)[:, None] / 2
    t = (ends[:-1, None] + half * (1 + nodes)).ravel()
    below, above = repeated(mixture, len(t)).cdf(y - np.sinh(t)), repeated(mixture, len(t), -1.0).cdf(-y - np.sinh(t))
    expected = np.sum((half * weights).ravel() * (below**2 + above**2) * np.cosh(t))
    np.testing.assert_allclose(mixture.crps([y]), expected, rtol=1e-7)


def test_crps_without_a_tail_integral():
    assert single(StudentT(0.5), [0.0], [1.0]).crps([0.0]) == np.inf


@pytest.mark.parametrize(
    ("means", "variances", "y"),
    [
        ([-1.0, 0.5], [0.3, 1.0], 0),
        ([1.0, 1.5, 0.2], [0.01, 0.2, 0.05], 3),
        ([3.0, 3.2], [1e-4, 0.3], 35),
        ([3.0, 3.2], [1e-4, 0.3], 2000),
        ([6.0, 6.1], [1e-4, 1e-3], 380),
        ([6.0, 6.1], [1e-4, 1e-3], 0),
        ([4.0], [0.4], 100),
    ],
)
def test_count_crps_against_its_sum(means, variances, y):
    mixture = single(Poisson(), means, variances)
    counts = np.arange(4000.0)
    F = np.cumsum(repeated(mixture, len(counts)).density(counts))
    expected = np.sum(F[counts < y] ** 2) + np.sum((1 - F[counts >= y]) ** 2)
    np.testing.assert_allclose(mixture.crps([y]), expected, rtol=1e-7)
    some = counts[[0, 1, 2, 5, 20, 80, 300, 450, 600]]
    np.testing.assert_allclose(mixture.cdf(some[:, None])[:, 0], count_cdf(mixture, some), atol=1e-9)


def test_large_counts_are_nearly_continuous():
    """exp(f) for f ~ N(12, 0.3²) dwarfs the scatter of a count: the CRPS is that of a lognormal, which is closed."""
    mean, sd = 12.0, 0.3
    y = np.rint(np.exp([11.5, 12.0, 12.7]))
    w = (np.log(y) - mean) / sd
    # Baran and Lerch (2015).
    tail = special.ndtr(w - sd) + special.ndtr(sd / np.sqrt(2)) - 1
    expected = y * (2 * special.ndtr(w) - 1) - 2 * np.exp(mean + sd**2 / 2) * tail
    mixture = ObservedMixture(Poisson(), np.full((2, 3), mean), np.full((2, 3), sd**2))
    np.testing.assert_allclose(mixture.crps(y), expected, rtol=1e-4)
    np.testing.assert_allclose(mixture.quantile(0.975), np.exp(mean + sd * stats.norm.ppf(0.975)), rtol=1e-4)


def test_shared_and_separate_rules_agree(monkeypatch):
    mixture = random_mixture(Poisson())
    counts = np.array([[0.0] * 5, [3.0] * 5, [500.0] * 5])
    expected = mixture.cdf(counts), mixture.crps(counts), mixture.quantile(LEVELS)
    monkeypatch.setattr(module, "MAX_SHARED_NODES", 0)
    for value, other in zip(
        (mixture.cdf(counts), mixture.crps(counts), mixture.quantile(LEVELS)), expected, strict=True
    ):
        np.testing.assert_allclose(value, other, rtol=1e-8, atol=1e-10)


def test_few_summands_stand_for_many():
    """The rule for a sum is exact for polynomials up to degree 19, of any number of terms."""
    for size in (1.0, 4.0, 10.0, 11.0, 37.0, 1000.0):
        nodes, weights = module.sum_rule(size)
        assert len(nodes) == min(size, 10)
        terms = np.arange(size) / size
        for degree in (0, 1, 7, min(19, 2 * len(nodes) - 1)):
            np.testing.assert_allclose(weights @ (nodes / size) ** degree, np.sum(terms**degree), rtol=1e-11)


# Extremes


@every
@pytest.mark.parametrize(("mean", "variance"), [(0.0, 0.0), (40.0, 0.0), (-40.0, 1e-20), (0.0, 100.0), (-900.0, 0.0)])
def test_extremes_are_numbers(likelihood, mean, variance):
    mixture = single(likelihood, [mean, mean + 0.1], [variance, variance], [1e-3, 1.0])
    y = [1.0]
    values = [mixture.mean, mixture.variance, mixture.cdf(y), mixture.crps(y), *mixture.interval(0.95)]
    if getattr(likelihood, "df", 9) > 2:
        assert np.isfinite(values).all()
    assert np.isfinite(mixture.log_density(y))
    assert np.isfinite(mixture.expected_log_density(y))
    assert (mixture.crps(y) >= 0).all()


def test_counts_beyond_all_numbers_are_infinite():
    mixture = single(Poisson(), [0.0, 700.0], [1.0, 1e4])
    assert mixture.mean == mixture.variance == np.inf
    assert np.isfinite(mixture.log_density([3.0]))
    assert np.isfinite(mixture.cdf([3.0]))


def test_spreads_below_the_spacing_of_doubles():
    mixture = single(StudentT(), [1e9, 1e9 + 1], [0.0, 0.0], [1e-12, 1e-12])
    np.testing.assert_allclose(mixture.crps([1e9 + 2]), 0.25 + 1.0, rtol=1e-3)
    assert mixture.quantile(0.25) == pytest.approx(1e9)


def test_a_level_that_rounding_keeps_out_of_reach():
    mixture = random_mixture(Poisson())
    assert np.isfinite(mixture.quantile(np.nextafter(1.0, 0.0))).all()


def test_moments_survive_an_offset():
    plain = random_mixture(StudentT(5.0))
    shifted = ObservedMixture(plain.likelihood, plain.means + 1e9, plain.variances, plain.noise)
    np.testing.assert_allclose(shifted.mean - 1e9, plain.mean, atol=2e-7)
    np.testing.assert_allclose(shifted.variance, plain.variance, rtol=1e-6)


# Shapes, blocks, errors


@every
@pytest.mark.parametrize("elements", [1, 50])
def test_blocks_change_nothing(monkeypatch, likelihood, elements):
    mixture, y = random_mixture(likelihood, draws=3), typical(likelihood)[None].repeat(2, axis=0)

    def results():
        per_y = [mixture.cdf(y), mixture.log_density(y), mixture.crps(y[:1]), mixture.quantile([0.1, 0.6])]
        return np.concatenate([*per_y, [mixture.mean, mixture.variance]])

    expected = results()
    monkeypatch.setattr("integrand.posterior.mixture.BLOCK_ELEMENTS", elements)
    monkeypatch.setattr("integrand.posterior.observed.BLOCK_ELEMENTS", elements)
    np.testing.assert_allclose(results(), expected, rtol=3e-8)


@every
def test_grid_is_row_by_row(likelihood):
    mixture = random_mixture(likelihood)
    grid = np.stack([typical(likelihood), typical(likelihood)[::-1]])
    for method in (mixture.cdf, mixture.density, mixture.crps, mixture.expected_log_density):
        np.testing.assert_allclose(method(grid), [method(y) for y in grid], rtol=1e-9)


@every
def test_no_rows(likelihood):
    empty = ObservedMixture(likelihood, np.zeros((3, 0)), np.zeros((3, 0)), np.ones(3))
    assert empty.mean.shape == empty.sd.shape == empty.quantile(0.5).shape == empty.crps([]).shape == (0,)
    assert empty.cdf([]).shape == empty.log_density([]).shape == (0,)
    assert empty.sample(np.random.default_rng(0), 4).shape == (4, 0)


def test_repr_and_immutability():
    noise = np.ones(2)
    mixture = ObservedMixture(StudentT(), np.zeros((2, 3)), np.ones((2, 3)), noise)
    assert repr(mixture) == "ObservedMixture(StudentT(df=4.0), draws=2, rows=3)"
    for array in (mixture.means, mixture.variances, mixture.noise):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    noise[0] = 2  # the caller's array stays writeable


def test_noise_is_not_asked_for_without_need():
    assert ObservedMixture(Poisson(), [[0.0]], [[1.0]]).mean == pytest.approx(np.exp(0.5))


@pytest.mark.parametrize(
    ("likelihood", "means", "variances", "noise", "message"),
    [
        ("poisson", [[0.0]], [[1.0]], [1.0], "likelihood must be one such as"),
        (Poisson(), np.zeros(3), np.zeros(3), [1.0], "shape"),
        (Poisson(), np.zeros((0, 3)), np.zeros((0, 3)), [], "at least one draw"),
        (Poisson(), [[0.0]], [[-1.0]], [1.0], "negative"),
        (Bernoulli(), [[np.nan]], [[1.0]], [1.0], "means has NaN"),
        (StudentT(), [[0.0]], [[1.0]], [1.0, 2.0], "noise must be 1 positive"),
        (StudentT(), [[0.0], [0.0]], [[1.0], [1.0]], [1.0, 0.0], "noise must be 2 positive"),
        (StudentT(), [[0.0]], [[1.0]], [np.nan], "noise has NaN"),
    ],
)
def test_bad_components(likelihood, means, variances, noise, message):
    with pytest.raises(InputError, match=message):
        ObservedMixture(likelihood, means, variances, noise)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.cdf(np.zeros(4)),
        lambda m: m.cdf(0.0),
        lambda m: m.cdf(np.zeros((2, 2, 5))),
        lambda m: m.log_density([0, 1, 2, 3, np.nan]),
        lambda m: m.log_density([0, 1, 2, 3, 0.5]),
        lambda m: m.crps([0, 1, 2, 3, -1]),
        lambda m: m.crps(np.zeros(4)),
        lambda m: m.quantile(0.0),
        lambda m: m.quantile([0.5, 1.0]),
        lambda m: m.quantile(np.nan),
        lambda m: m.quantile([[0.5]]),
        lambda m: m.interval(1.0),
        lambda m: m.probability,
    ],
)
def test_bad_arguments(call):
    with pytest.raises(InputError):
        call(random_mixture(Poisson()))
