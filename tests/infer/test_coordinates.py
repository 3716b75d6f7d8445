"""Coordinates in which a density is nearly standard normal: affine, from a Hessian or from draws, and warped."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from integrand.infer.base import Plan, keep_going
from integrand.infer.convergence import convergence
from integrand.infer.coordinates import (
    Coordinates,
    TailWarp,
    coordinates_at_mode,
    coordinates_from_draws,
    coordinates_from_hessian,
    warp_from_draws,
)
from integrand.infer.nuts import NUTS
from known_posteriors import FunctionTarget

# --- affine

MEAN = np.array([1.0, -2.0, 30.0])
COVARIANCE = np.array([[4.0, 1.0, 0.1], [1.0, 0.5, 0.0], [0.1, 0.0, 0.01]])
PRECISION = np.linalg.inv(COVARIANCE)


def gradient(x):
    return -PRECISION @ (x - MEAN)


def test_the_hessian_of_a_gaussian_gives_its_covariance():
    coordinates = coordinates_from_hessian(gradient, MEAN)
    np.testing.assert_allclose(coordinates.covariance, COVARIANCE, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(coordinates.centre, MEAN)


def test_whitened_gaussian_is_standard_normal():
    coordinates = coordinates_from_hessian(gradient, MEAN)
    for eta in np.random.default_rng(0).standard_normal((5, 3)):
        # The gradient of log N(x; MEAN, COVARIANCE) in eta is that of a standard normal.
        np.testing.assert_allclose(gradient(coordinates.to_x(eta)) @ coordinates.factor, -eta, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 5, 3)])
def test_affine_round_trip(shape):
    coordinates = coordinates_from_hessian(gradient, MEAN)
    eta = np.random.default_rng(1).standard_normal(shape)
    x = coordinates.to_x(eta)
    assert x.shape == shape
    np.testing.assert_allclose(coordinates.to_eta(x), eta, rtol=1e-10, atol=1e-10)
    one = tuple(0 for _ in shape[:-1])
    np.testing.assert_allclose(x[one], MEAN + coordinates.factor @ eta[one], rtol=1e-12)


def test_a_flat_or_wrong_direction_has_a_limited_width():
    coordinates = coordinates_from_hessian(lambda x: np.array([0.0, -x[1], 3.0 * x[2]]), np.zeros(3))
    np.testing.assert_allclose(coordinates.covariance, np.diag([25.0, 1.0, 25.0]), rtol=1e-6)


def test_the_width_of_a_saddle_is_measured():
    """Between two shallow wells the Hessian has the wrong sign: the width is where half a nat is lost."""

    def value(x):
        return -40.0 * (x[0] ** 2 - 0.04) ** 2 - 0.5 * x[1] ** 2

    def slope(x):
        return np.array([-160.0 * x[0] * (x[0] ** 2 - 0.04), -x[1], 0.0])

    coordinates = coordinates_from_hessian(slope, np.zeros(3), value=value)
    at_half = np.sqrt(0.04 + np.sqrt(0.5 / 40.0 + 0.04**2))
    widths = np.sqrt(np.diag(coordinates.covariance))
    assert at_half / 2**0.125 <= widths[0] <= at_half
    np.testing.assert_allclose(widths[1:], [1.0, 5.0], rtol=1e-6)  # flat is not a saddle


def test_the_width_of_a_saddle_on_an_edge():
    """Beyond 0.3 nothing can be computed."""
    coordinates = coordinates_from_hessian(
        lambda x: 0.1 * x, np.zeros(1), value=lambda x: 0.0 if abs(x[0]) < 0.3 else -np.inf
    )
    assert 0.3 / 2**0.125 <= coordinates.factor[0, 0] < 0.3


def test_curvature_that_is_not_a_number_counts_as_flat():
    def broken(x):
        return np.array([np.nan if x[0] != 0.0 else 0.0, -4.0 * x[1]])

    coordinates = coordinates_from_hessian(broken, np.zeros(2))
    np.testing.assert_allclose(coordinates.covariance, np.diag([25.0, 0.25]), rtol=1e-6)


def test_the_covariance_of_draws_shrinks_towards_the_earlier_one():
    rng = np.random.default_rng(2)
    before = Coordinates(np.zeros(3), np.diag([2.0, 3.0, 0.1]))
    draws = rng.multivariate_normal(MEAN, COVARIANCE, size=45)
    after = coordinates_from_draws(draws, before)
    np.testing.assert_allclose(after.centre, draws.mean(axis=0))
    # 45 draws of 3 numbers weigh 45 / (45 + 15).
    expected = 0.75 * np.cov(draws.T) + 0.25 * np.diag([4.0, 9.0, 0.01])
    np.testing.assert_allclose(after.covariance, expected, rtol=1e-10)


def test_many_draws_overrule_the_earlier_covariance():
    rng = np.random.default_rng(3)
    draws = rng.multivariate_normal(MEAN, COVARIANCE, size=200_000)
    after = coordinates_from_draws(draws, Coordinates(np.zeros(3), np.eye(3)))
    np.testing.assert_allclose(after.covariance, COVARIANCE, rtol=0.03, atol=2e-3)


@pytest.mark.parametrize("n_draws", [2, 5])
def test_few_equal_draws_leave_usable_coordinates(n_draws):
    after = coordinates_from_draws(np.ones((n_draws, 3)), Coordinates(np.zeros(3), np.eye(3)))
    assert np.linalg.cond(after.factor) < 1e3
    np.testing.assert_allclose(after.covariance, 15.0 / (15.0 + n_draws) * np.eye(3))


def test_one_hyperparameter():
    coordinates = coordinates_from_hessian(lambda x: -4.0 * x, np.zeros(1))
    assert coordinates.covariance.shape == (1, 1)
    draws = np.random.default_rng(4).standard_normal((40, 1))
    assert coordinates_from_draws(draws, coordinates).factor.shape == (1, 1)


def test_at_the_mode_that_is_reached_from_the_best_start():
    def log_density(x):
        return -0.5 * float((x - MEAN) @ PRECISION @ (x - MEAN)), gradient(x)

    coordinates = coordinates_at_mode(log_density, (MEAN + 40.0, MEAN + np.array([0.5, 0.0, -0.1])))
    np.testing.assert_allclose(coordinates.centre, MEAN, atol=1e-2)
    np.testing.assert_allclose(coordinates.covariance, COVARIANCE, rtol=1e-6, atol=1e-8)
    assert coordinates.dimension == 3


@pytest.mark.parametrize("saddles", [False, True])
def test_at_a_saddle_the_width_is_measured_where_that_is_asked_for(saddles):
    def log_density(x):
        return -40.0 * (x[0] ** 2 - 0.04) ** 2, np.array([-160.0 * x[0] * (x[0] ** 2 - 0.04)])

    coordinates = coordinates_at_mode(log_density, (np.zeros(1),), saddles=saddles)
    assert coordinates.factor[0, 0] == pytest.approx(0.4 if saddles else 5.0, rel=0.1)


def test_identity():
    x = np.array([1.0, -2.0])
    np.testing.assert_array_equal(Coordinates.identity(2).to_x(x), x)


# --- warped

WARP = TailWarp(np.array([1.0, -1.0, 0.0]), np.array([0.5, -2.0, 0.0]))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.floats(-30.0, 30.0), min_size=3, max_size=3))
def test_warp_round_trip(values):
    psi = np.array(values)
    np.testing.assert_allclose(WARP.to_psi(WARP.to_x(psi)), psi, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("warped", [False, True])
def test_x_and_log_jacobian_together_are_those_apart(warped):
    rng = np.random.default_rng(4)
    n = len(WARP.side)
    psi = 20.0 * rng.standard_normal((50, n))
    x, log_slope = WARP.to_x_with_log_slope(psi)
    np.testing.assert_array_equal(x, WARP.to_x(psi))
    np.testing.assert_array_equal(log_slope, WARP.log_slope(psi))
    coordinates = Coordinates(rng.standard_normal(n), np.tril(rng.standard_normal((n, n))), WARP if warped else None)
    for eta in rng.standard_normal((5, n)):
        x, log_jacobian = coordinates.to_x_with_log_jacobian(eta)
        np.testing.assert_allclose(x, coordinates.to_x(eta), rtol=1e-12)
        assert log_jacobian == pytest.approx(float(coordinates.log_jacobian(eta)), rel=1e-12)


def test_far_out_nothing_overflows():
    psi = np.array([[-1e8, 1e8, 0.0], [1e8, -1e8, 0.0]])
    x = WARP.to_x(psi)
    assert np.all(np.isfinite(x))
    np.testing.assert_allclose(WARP.to_psi(x), psi, rtol=1e-6)
    assert np.all(np.isfinite(WARP.to_psi(np.array([-1e5, 1e5, 1e5]))))
    assert np.all(np.isfinite(WARP.log_slope(psi)) & np.isfinite(WARP.d_log_slope(psi)))


@pytest.mark.parametrize("psi", [-40.0, -3.0, -0.1, 0.0, 0.7, 5.0, 40.0])
def test_slopes_are_derivatives(psi):
    at, h = np.full(3, psi), 1e-5
    np.testing.assert_allclose(WARP.slope(at), (WARP.to_x(at + h) - WARP.to_x(at - h)) / (2 * h), rtol=1e-6, atol=1e-9)
    difference = (WARP.log_slope(at + h) - WARP.log_slope(at - h)) / (2 * h)
    np.testing.assert_allclose(WARP.d_log_slope(at), difference, rtol=1e-5, atol=1e-8)


def test_sides():
    # A tail to the right is counted in ψ itself, what lies on the left in exp of it; -1 the other way round.
    right, left = TailWarp(np.ones(1), np.zeros(1)), TailWarp(-np.ones(1), np.zeros(1))
    np.testing.assert_allclose(right.to_x(np.array([[50.0], [-50.0]])), [[50.0], [-np.log(50.0)]], rtol=1e-12)
    np.testing.assert_allclose(left.to_x(np.array([[-50.0], [50.0]])), [[-50.0], [np.log(50.0)]], rtol=1e-12)


def test_draws_choose_the_warp():
    rng = np.random.default_rng(0)
    relevance = np.abs(0.1 + 0.08 * rng.standard_normal(400))
    draws = np.stack([-np.log(relevance), np.log(relevance), rng.standard_normal(400), np.zeros(400)], axis=1)
    warp = warp_from_draws(draws)
    assert warp.side.tolist() == [1.0, -1.0, 0.0, 0.0]

    def skewness(x):
        return np.mean(((x - x.mean(axis=0)) / x.std(axis=0)) ** 3, axis=0)

    before, after = skewness(draws[:, :2]), skewness(warp.to_psi(draws)[:, :2])
    assert np.all(np.abs(before) > 1.5)
    assert np.all(np.abs(after) < 0.5)


def relevance_or_not(x):
    """log density of φ = (log l, z): a column whose relevance exp(-log l) is half-normal, and a Gaussian beside it."""
    r = np.exp(-x[0])
    value = -0.5 * (r / 0.3) ** 2 - x[0] - 0.5 * (x[1] - x[0] / 4.0) ** 2
    return value, np.array([(r / 0.3) ** 2 - 1.0 + (x[1] - x[0] / 4.0) / 4.0, -(x[1] - x[0] / 4.0)])


def drawn(coordinates, starts, draws):
    """Draws by NUTS in these coordinates."""
    target = FunctionTarget(relevance_or_not, dimension=2)
    return NUTS().run(target, starts, coordinates, Plan(warmup=100, draws=draws, seed=(7,)), keep_going).chains


def warped_coordinates():
    rng = np.random.default_rng(1)
    first = -np.log(np.abs(0.3 * rng.standard_normal(400)))
    draws = np.stack([first, first / 4.0 + rng.standard_normal(400)], axis=1)
    before = Coordinates(draws.mean(axis=0), np.linalg.cholesky(np.cov(draws.T)))
    return before, coordinates_from_draws(draws, before, warp=True)


def test_pulled_back_is_the_density_with_its_jacobian():
    _, coordinates = warped_coordinates()
    assert coordinates.warp is not None
    assert coordinates.warp.side[0] == 1.0
    at = coordinates.pull_back(relevance_or_not)
    for eta in np.random.default_rng(2).standard_normal((5, 2)):
        x, h = coordinates.to_x(eta), 1e-6
        np.testing.assert_allclose(coordinates.to_eta(x), eta, rtol=1e-9, atol=1e-9)
        columns = [(coordinates.to_x(eta + d) - coordinates.to_x(eta - d)) / (2 * h) for d in h * np.eye(2)]
        log_det = np.linalg.slogdet(np.array(columns).T)[1] - np.linalg.slogdet(coordinates.factor)[1]
        value, gradient = at(eta)
        assert coordinates.log_jacobian(eta) == pytest.approx(log_det, abs=1e-6)
        assert value == pytest.approx(relevance_or_not(x)[0] + log_det, abs=1e-6)
        difference = [(at(eta + d)[0] - at(eta - d)[0]) / (2 * h) for d in h * np.eye(2)]
        np.testing.assert_allclose(gradient, difference, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_same_posterior_in_fewer_steps():
    straight, warped = warped_coordinates()
    assert straight.warp is None
    runs = {}
    for name, coordinates in {"straight": straight, "warped": warped}.items():
        starts = coordinates.to_x(np.random.default_rng(3).standard_normal((4, 2)))
        runs[name] = drawn(coordinates, starts, 1000)
    # E[r] of a half-normal by quadrature, within Monte Carlo error of both.
    density = [integrate.quad(lambda r, k=k: r**k * np.exp(-0.5 * (r / 0.3) ** 2), 0.0, 5.0)[0] for k in (0, 1)]
    truth, worth = density[1] / density[0], {}
    for name, chains in runs.items():
        r = np.exp(-chains.x[:, :, :1])
        found = convergence(r)
        worth[name] = min(found.ess_bulk[0], found.ess_tail[0]) / chains.n_steps.sum()
        assert abs(r.mean() - truth) < 4.0 * r.std() / np.sqrt(found.ess_bulk[0])
        for c, n in ((0, 0), (3, 999)):
            assert chains.log_density[c, n] == pytest.approx(relevance_or_not(chains.x[c, n])[0], abs=1e-8)
    assert worth["warped"] > 1.2 * worth["straight"]


def test_an_earlier_warp_is_undone():
    _, warped = warped_coordinates()
    # Two equal draws tell nothing: what is left is the earlier covariance, near the middle.
    again = coordinates_from_draws(np.tile(warped.middle, (2, 1)), warped, warp=True)
    assert again.warp is not None
    assert again.warp.side.tolist() == [0.0, 0.0]
    slope = np.diag(warped.warp.slope(warped.centre))
    np.testing.assert_allclose(again.covariance, 10.0 / 12.0 * slope @ warped.covariance @ slope, rtol=1e-9)
    np.testing.assert_allclose(again.middle, warped.middle)


def test_unwarped_coordinates_are_the_same_near_the_middle():
    _, warped = warped_coordinates()
    straight = warped.unwarped()
    assert straight.warp is None
    assert straight.unwarped() is straight
    for eta in 1e-4 * np.eye(2):
        np.testing.assert_allclose(straight.to_x(eta), warped.to_x(eta), atol=1e-7)


def test_an_earlier_mode_far_from_the_draws_does_not_widen_them():
    rng = np.random.default_rng(5)
    draws = np.stack([-np.log(np.abs(0.01 * rng.standard_normal(160))), rng.standard_normal(160)], axis=1)
    warped = coordinates_from_draws(draws, Coordinates(np.array([-2.0, 0.0]), 0.5 * np.eye(2)), warp=True)
    assert warped.warp is not None
    assert warped.warp.side[0] == 1.0
    sd = np.sqrt(warped.covariance[0, 0])
    assert sd < 2.0 * warped.warp.to_psi(draws)[:, 0].std()


def test_energies_of_blocks_in_other_coordinates_are_of_one_level():
    straight, warped = warped_coordinates()
    wide = Coordinates(straight.centre, 3.0 * straight.factor)
    levels = []
    for coordinates in (straight, wide, warped):
        starts = coordinates.to_x(np.zeros((2, 2)))
        chains = drawn(coordinates, starts, 500)
        levels.append(np.median(chains.energy))
    assert np.ptp(levels) < 0.7
