import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad
from scipy.special import ndtr

from integrand.errors import InputError
from integrand.posterior.mixture import GRID_REACH, GRID_STEP, GaussianMixture

LEVELS = np.array([1e-12, 1e-6, 0.025, 0.3, 0.5, 0.8, 0.975, 1 - 1e-6, 1 - 1e-12])
WIDE = [1e-6, 0.3, 0.5, 0.975, 1 - 1e-6]


def random_mixture(seed=0, draws=7, rows=5):
    rng = np.random.default_rng(seed)
    return GaussianMixture(rng.normal(size=(draws, rows)), rng.gamma(2.0, size=(draws, rows)))


def single(means, variances):
    return GaussianMixture(np.array(means, float)[:, None], np.array(variances, float)[:, None])


def assert_inverts(mixture, p=LEVELS):
    """F(q) = p to 1e-9, or F passes p within one spacing of doubles of q."""
    p = np.asarray(p)
    q = mixture.quantile(p)
    error = np.abs(mixture.cdf(q) - p[:, None])
    before, after = mixture.cdf(np.nextafter(q, -np.inf)), mixture.cdf(np.nextafter(q, np.inf))
    passes = (before <= p[:, None]) & (after >= p[:, None])
    assert ((error <= 1e-9) | passes).all()
    assert (np.diff(q[np.argsort(p)], axis=0) >= 0).all()
    return error


# Quantiles


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(1e-6, 1e6)), min_size=1, max_size=8),
    st.floats(1e-9, 1 - 1e-9),
)
def test_quantile_inverts_cdf_for_any_mixture(components, p):
    mixture = single(*zip(*components, strict=True))
    assert_inverts(mixture, [p])


@pytest.mark.parametrize("draws", [1, 2, 5, 60])
@pytest.mark.parametrize(
    ("offset", "spread", "exponents"),
    [
        (0, 1, (-1, 1)),
        (0, 0, (-12, 12)),  # sds between 1e-6 and 1e6 around one place
        (0, 1e6, (-12, 12)),
        (1e9, 1, (-1, 1)),
        (-1e9, 1e3, (-24, 0)),
        (1e9, 1, (-22, -20)),  # sds below the spacing of doubles
        (0, 1e6, (-1, 1)),  # far apart
        (0, 1e-12, (-36, -12)),
        (0, 1e12, (0, 24)),
    ],
)
def test_quantile_inverts_cdf_at_extremes(draws, offset, spread, exponents):
    rng = np.random.default_rng(draws)
    shape = (draws, 20)
    means = offset + spread * rng.normal(size=shape)
    assert_inverts(GaussianMixture(means, 10 ** rng.uniform(*exponents, size=shape)))


def test_quantile_is_accurate_far_beyond_the_promise():
    assert assert_inverts(random_mixture(draws=200)).max() < 1e-12


@pytest.mark.parametrize("p", [1e-300, 1e-30, 1e-12])
def test_quantile_keeps_relative_precision_in_the_lower_tail(p):
    mixture = random_mixture()
    np.testing.assert_allclose(mixture.cdf(mixture.quantile(p)), p, rtol=1e-11)


def test_quantiles_mirror():
    mixture = random_mixture(3)
    mirrored = GaussianMixture(-mixture.means, mixture.variances)
    np.testing.assert_allclose(mixture.quantile(2.0**-30), -mirrored.quantile(1 - 2.0**-30), rtol=1e-12)


def test_far_apart_clusters():
    mixture = single([0, 0, 1e9], [1, 1, 1e-4])
    np.testing.assert_allclose(mixture.quantile(1 / 3), stats.norm.ppf(0.5), atol=1e-9)
    assert mixture.quantile(0.9) > 1e8


def test_one_draw_is_the_normal_quantile():
    mixture = single([2.0], [9.0])
    np.testing.assert_array_equal(mixture.quantile(LEVELS)[:, 0], 2.0 + 3.0 * stats.norm.ppf(LEVELS))


def test_equal_draws_are_one():
    mixture = single([2.0] * 5, [9.0] * 5)
    np.testing.assert_allclose(mixture.quantile(0.975), stats.norm.ppf(0.975, 2, 3), rtol=1e-14)


def test_point_masses_give_the_generalised_inverse():
    mixture = single([3.0, 0.0, 1.0, 2.0], [0, 0, 0, -0.0])
    p = [1e-6, 0.25, 0.2500001, 0.5, 0.75, 0.76, 1 - 1e-6]
    np.testing.assert_array_equal(mixture.quantile(p)[:, 0], [0, 0, 1, 1, 2, 3, 3])


@pytest.mark.parametrize("place", [0.0, 1.0, -1e9, 1e-300])
def test_point_mass_among_gaussians(place):
    mixture = single([place, place, -5e9, 6e9], [0, 0, 1, 1e12])
    np.testing.assert_array_equal(mixture.quantile([0.26, 0.5, 0.74])[:, 0], [place] * 3)
    assert_inverts(mixture)


def test_quantile_shapes_and_interval():
    mixture = random_mixture(rows=5)
    assert mixture.quantile(0.5).shape == (5,)
    assert mixture.quantile([0.5]).shape == (1, 5)
    assert mixture.quantile([]).shape == (0, 5)
    lower, upper = mixture.interval(0.9)
    np.testing.assert_allclose(mixture.cdf(upper) - mixture.cdf(lower), 0.9, atol=1e-12)
    np.testing.assert_allclose(mixture.cdf(lower), 0.05, atol=1e-12)


# Density and moments


def test_density_integrates_to_one_and_to_the_cdf():
    mixture = random_mixture(rows=1)
    ends = mixture.mean - 12 * mixture.sd, mixture.mean + 12 * mixture.sd
    total, _ = quad(lambda y: mixture.density([y])[0], ends[0][0], ends[1][0], limit=200)
    part, _ = quad(lambda y: mixture.density([y])[0], ends[0][0], 0.7, limit=200)
    assert total == pytest.approx(1, abs=1e-9)
    assert part == pytest.approx(mixture.cdf([0.7])[0], abs=1e-9)


def test_density_and_cdf_against_scipy():
    mixture = random_mixture()
    y = np.linspace(-3, 3, 5)
    normal = stats.norm(mixture.means, np.sqrt(mixture.variances))
    np.testing.assert_allclose(mixture.density(y), normal.pdf(y).mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(mixture.cdf(y), normal.cdf(y).mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(mixture.expected_log_density(y), normal.logpdf(y).mean(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(mixture.pit(y), mixture.cdf(y))


def test_log_density_far_out_does_not_underflow():
    mixture = single([0, 1], [1, 1])
    expected = stats.norm.logpdf(999) - np.log(2)
    np.testing.assert_allclose(mixture.log_density([1000.0]), expected, rtol=1e-14)


def test_moments_against_draws():
    mixture = random_mixture(draws=6, rows=4)
    n = 200_000
    draws = mixture.sample(np.random.default_rng(1), n)
    assert draws.shape == (n, 4)
    assert (np.abs(draws.mean(axis=0) - mixture.mean) < 5 * mixture.sd / np.sqrt(n)).all()
    np.testing.assert_allclose(draws.var(axis=0), mixture.variance, rtol=0.03)
    assert np.abs(np.corrcoef(draws.T) - np.eye(4)).max() < 0.02
    np.testing.assert_allclose((draws <= mixture.quantile(0.3)).mean(axis=0), 0.3, atol=0.006)


def test_moments_survive_an_offset():
    plain = random_mixture(draws=400)
    shifted = GaussianMixture(plain.means + 1e9, plain.variances)
    np.testing.assert_allclose(shifted.mean - 1e9, plain.mean, atol=2e-7)
    np.testing.assert_allclose(shifted.variance, plain.variance, rtol=1e-6)
    constant = single([1e9 + 0.1] * 1000, [0.0] * 1000)
    assert constant.variance == 0
    assert constant.mean == 1e9 + 0.1


def test_zero_variance_density_and_cdf():
    mixture = single([0.0, 1.0], [0.0, 0.0])
    grid = np.array([[-1.0], [0.0], [0.5], [1.0]])
    np.testing.assert_array_equal(mixture.cdf(grid)[:, 0], [0, 0.5, 0.5, 1])
    np.testing.assert_array_equal(mixture.density(grid)[:, 0], [0, np.inf, 0, np.inf])
    np.testing.assert_array_equal(mixture.log_density(grid)[:, 0], [-np.inf, np.inf, -np.inf, np.inf])
    np.testing.assert_array_equal(mixture.sample(np.random.default_rng(0), 50) % 1, 0)


# CRPS


def test_crps_of_one_gaussian():
    y, mean, sd = 0.7, 0.2, 1.3
    z = (y - mean) / sd
    # Gneiting and Raftery (2007), equation 21.
    expected = sd * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    np.testing.assert_allclose(single([mean], [sd**2]).crps([y]), expected, rtol=1e-13)


@pytest.mark.parametrize("y", [-4.0, 0.1, 2.5])
def test_crps_against_its_integral(y):
    mixture = single([-1.0, 0.3, 2.0, 0.0], [0.2, 1.5, 0.05, 0.4])
    below, _ = quad(lambda x: mixture.cdf([x])[0] ** 2, -25, y, limit=200)
    above, _ = quad(lambda x: (mixture.cdf([x])[0] - 1) ** 2, y, 25, limit=200)
    np.testing.assert_allclose(mixture.crps([y]), below + above, rtol=1e-7)


def test_crps_with_point_masses():
    np.testing.assert_array_equal(single([1.0], [0.0]).crps([[1.0], [3.5]])[:, 0], [0, 2.5])
    # ∫ of 1/4 over (0, 1), plus 1 over (1, 2).
    np.testing.assert_allclose(single([0.0, 1.0], [0.0, 0.0]).crps([2.0]), 0.25 + 1.0)
    np.testing.assert_array_equal(single([2.0, 2.0, 2.0], [0, 0, 0]).crps([2.0]), 0)


# Derived mixtures


def test_transformed():
    mixture, shift, scale = random_mixture(), 3.0, 2.5
    out = mixture.transformed(shift, scale)
    y = np.linspace(-2, 2, 5)
    np.testing.assert_allclose(out.mean, scale * mixture.mean + shift)
    np.testing.assert_allclose(out.sd, scale * mixture.sd)
    np.testing.assert_allclose(out.cdf(scale * y + shift), mixture.cdf(y))
    np.testing.assert_allclose(out.log_density(scale * y + shift), mixture.log_density(y) - np.log(scale))
    np.testing.assert_allclose(out.quantile(WIDE), scale * mixture.quantile(WIDE) + shift)
    np.testing.assert_allclose(out.crps(scale * y + shift), scale * mixture.crps(y))
    per_row = mixture.transformed(np.full(5, shift), np.full(5, scale))
    np.testing.assert_array_equal(per_row.means, out.means)


def test_plus_noise():
    mixture = random_mixture(draws=5, rows=5)
    noise = np.arange(5.0)
    np.testing.assert_array_equal(mixture.plus_noise(noise).variances, mixture.variances + noise[:, None])
    full = np.arange(25.0).reshape(5, 5)
    np.testing.assert_array_equal(mixture.plus_noise(full).variances, mixture.variances + full)
    np.testing.assert_array_equal(mixture.plus_noise(noise).means, mixture.means)
    assert GaussianMixture(np.zeros((3, 0)), np.zeros((3, 0))).plus_noise(np.ones(3)).means.shape == (3, 0)


# Shapes, blocks, errors


@pytest.mark.parametrize("elements", [1, 7, 50, 10**6])
def test_blocks_change_nothing(monkeypatch, elements):
    mixture = random_mixture(draws=7, rows=11)
    y = np.random.default_rng(2).normal(size=(3, 11))

    def results():
        per_y = [mixture.cdf(y), mixture.log_density(y), mixture.crps(y), mixture.quantile(WIDE)]
        return np.concatenate([*per_y, [mixture.mean, mixture.variance]])

    expected = results()
    monkeypatch.setattr("integrand.posterior.mixture.BLOCK_ELEMENTS", elements)
    np.testing.assert_allclose(results(), expected, rtol=1e-12, atol=1e-13)


def test_grid_is_row_by_row():
    mixture = random_mixture()
    grid = np.random.default_rng(0).normal(size=(4, 5))
    for method in (mixture.cdf, mixture.density, mixture.crps, mixture.expected_log_density):
        np.testing.assert_array_equal(method(grid), [method(y) for y in grid])


def test_no_rows():
    empty = GaussianMixture(np.zeros((3, 0)), np.zeros((3, 0)))
    assert empty.mean.shape == empty.sd.shape == empty.quantile(0.5).shape == empty.crps([]).shape == (0,)


def test_repr_and_immutability():
    means = np.zeros((2, 3))
    mixture = GaussianMixture(means, np.ones((2, 3), dtype=np.float32))
    assert repr(mixture) == "GaussianMixture(draws=2, rows=3)"
    assert mixture.variances.dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        mixture.means[0, 0] = 1
    means[0, 0] = 0  # the caller's array stays writeable


@pytest.mark.parametrize(
    ("means", "variances", "message"),
    [
        (np.zeros(3), np.zeros(3), "shape"),
        (np.zeros((0, 3)), np.zeros((0, 3)), "at least one draw"),
        (np.zeros((2, 3)), np.zeros((3, 2)), "shape"),
        (np.zeros((1, 2)), [[1.0, -1e-12]], "negative"),
        (np.full((1, 1), np.nan), [[1.0]], "means has NaN"),
        ([[0.0]], [[np.inf]], "variances has NaN or infinite"),
        ([["a"]], [[1.0]], "means must be an array of numbers"),
    ],
)
def test_bad_components(means, variances, message):
    with pytest.raises(InputError, match=message):
        GaussianMixture(means, variances)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.cdf(np.zeros(4)),
        lambda m: m.cdf(0.0),
        lambda m: m.cdf(np.zeros((2, 2, 5))),
        lambda m: m.log_density([0, 1, 2, 3, np.nan]),
        lambda m: m.quantile(0.0),
        lambda m: m.quantile([0.5, 1.0]),
        lambda m: m.quantile(-0.1),
        lambda m: m.quantile(np.nan),
        lambda m: m.quantile([[0.5]]),
        lambda m: m.interval(1.0),
        lambda m: m.interval(95),
        lambda m: m.transformed(0.0, 0.0),
        lambda m: m.transformed(0.0, -1.0),
        lambda m: m.transformed(np.nan, 1.0),
        lambda m: m.transformed(np.zeros((7, 1)), 1.0),
        lambda m: m.plus_noise(1.0),
        lambda m: m.plus_noise(np.ones(5)),
        lambda m: m.plus_noise(-np.ones(7)),
    ],
)
def test_bad_arguments(call):
    with pytest.raises(InputError):
        call(random_mixture(draws=7, rows=5))


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (1e9, 1e-3), (0.0, 1e-12)])
def test_crps_on_a_grid_is_that_of_all_pairs(shift, scale):
    rng = np.random.default_rng(4)
    means, sds = rng.standard_normal((300, 5)), 0.5 + 0.2 * rng.random((300, 5))
    y = rng.standard_normal(5)
    mixture = GaussianMixture(shift + scale * means, (scale * sds) ** 2)
    assert np.all(np.ptp(means, axis=0) + 2 * GRID_REACH < 100 * GRID_STEP * sds.min(axis=0))  # the grid is used
    m, s = means[:, None] - means[None], np.sqrt(sds[:, None] ** 2 + sds[None] ** 2)
    z = m / s
    spread = (s * np.sqrt(2 / np.pi) * np.exp(-0.5 * z**2) + m * (2 * ndtr(z) - 1)).mean(axis=(0, 1)) / 2
    z = (y - means) / sds
    first = (sds * np.sqrt(2 / np.pi) * np.exp(-0.5 * z**2) + (y - means) * (2 * ndtr(z) - 1)).mean(axis=0)
    rtol = 1e-4 if shift else 1e-12  # rounding of the inputs
    np.testing.assert_allclose(mixture.crps(shift + scale * y) / scale, first - spread, rtol=rtol)
