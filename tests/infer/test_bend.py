import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from integrand.infer.bend import Bend, bend_from_draws
from integrand.infer.diagnostics import convergence
from integrand.infer.metric import Whitening, whitening_from_draws
from integrand.infer.nuts import sample_nuts

BEND = Bend(np.array([1.0, -1.0, 0.0]), np.array([0.5, -2.0, 0.0]))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.floats(-30.0, 30.0), min_size=3, max_size=3))
def test_round_trip(values):
    psi = np.array(values)
    np.testing.assert_allclose(BEND.to_psi(BEND.to_x(psi)), psi, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bent", [False, True])
def test_placed_is_both_in_one_go(bent):
    rng = np.random.default_rng(4)
    n = len(BEND.side)
    psi = 20.0 * rng.standard_normal((50, n))
    x, log_slope = BEND.placed(psi)
    np.testing.assert_array_equal(x, BEND.to_x(psi))
    np.testing.assert_array_equal(log_slope, BEND.log_slope(psi))
    white = Whitening(rng.standard_normal(n), np.tril(rng.standard_normal((n, n))), BEND if bent else None)
    for eta in rng.standard_normal((5, n)):
        x, log_jacobian = white.placed(eta)
        np.testing.assert_allclose(x, white.to_x(eta), rtol=1e-12)
        assert log_jacobian == pytest.approx(float(white.log_jacobian(eta)), rel=1e-12)


def test_far_out_nothing_overflows():
    psi = np.array([[-1e8, 1e8, 0.0], [1e8, -1e8, 0.0]])
    x = BEND.to_x(psi)
    assert np.all(np.isfinite(x))
    np.testing.assert_allclose(BEND.to_psi(x), psi, rtol=1e-6)
    assert np.all(np.isfinite(BEND.to_psi(np.array([-1e5, 1e5, 1e5]))))
    assert np.all(np.isfinite(BEND.log_slope(psi)) & np.isfinite(BEND.d_log_slope(psi)))


@pytest.mark.parametrize("psi", [-40.0, -3.0, -0.1, 0.0, 0.7, 5.0, 40.0])
def test_slopes_are_derivatives(psi):
    at, h = np.full(3, psi), 1e-5
    np.testing.assert_allclose(BEND.slope(at), (BEND.to_x(at + h) - BEND.to_x(at - h)) / (2 * h), rtol=1e-6, atol=1e-9)
    difference = (BEND.log_slope(at + h) - BEND.log_slope(at - h)) / (2 * h)
    np.testing.assert_allclose(BEND.d_log_slope(at), difference, rtol=1e-5, atol=1e-8)


def test_sides():
    # A tail to the right is counted in ψ itself, what lies on the left in exp of it; -1 the other way round.
    right, left = Bend(np.ones(1), np.zeros(1)), Bend(-np.ones(1), np.zeros(1))
    np.testing.assert_allclose(right.to_x(np.array([[50.0], [-50.0]])), [[50.0], [-np.log(50.0)]], rtol=1e-12)
    np.testing.assert_allclose(left.to_x(np.array([[-50.0], [50.0]])), [[-50.0], [np.log(50.0)]], rtol=1e-12)


def test_draws_choose_the_bend():
    rng = np.random.default_rng(0)
    relevance = np.abs(0.1 + 0.08 * rng.standard_normal(400))
    draws = np.stack([-np.log(relevance), np.log(relevance), rng.standard_normal(400), np.zeros(400)], axis=1)
    bend = bend_from_draws(draws)
    assert bend.side.tolist() == [1.0, -1.0, 0.0, 0.0]

    def skewness(x):
        return np.mean(((x - x.mean(axis=0)) / x.std(axis=0)) ** 3, axis=0)

    before, after = skewness(draws[:, :2]), skewness(bend.to_psi(draws)[:, :2])
    assert np.all(np.abs(before) > 1.5)
    assert np.all(np.abs(after) < 0.5)


def relevance_or_not(x):
    """log density of φ = (log l, z): a column whose relevance exp(-log l) is half-normal, and a Gaussian beside it."""
    r = np.exp(-x[0])
    value = -0.5 * (r / 0.3) ** 2 - x[0] - 0.5 * (x[1] - x[0] / 4.0) ** 2
    return value, np.array([(r / 0.3) ** 2 - 1.0 + (x[1] - x[0] / 4.0) / 4.0, -(x[1] - x[0] / 4.0)])


def bent_whitening():
    rng = np.random.default_rng(1)
    first = -np.log(np.abs(0.3 * rng.standard_normal(400)))
    draws = np.stack([first, first / 4.0 + rng.standard_normal(400)], axis=1)
    before = Whitening(draws.mean(axis=0), np.linalg.cholesky(np.cov(draws.T)))
    return before, whitening_from_draws(draws, before, bent=True)


def test_pulled_back_is_the_density_with_its_jacobian():
    _, white = bent_whitening()
    assert white.bend is not None
    assert white.bend.side[0] == 1.0
    at = white.pulled_back(relevance_or_not)
    for eta in np.random.default_rng(2).standard_normal((5, 2)):
        x, h = white.to_x(eta), 1e-6
        np.testing.assert_allclose(white.to_eta(x), eta, rtol=1e-9, atol=1e-9)
        columns = [(white.to_x(eta + d) - white.to_x(eta - d)) / (2 * h) for d in h * np.eye(2)]
        log_det = np.linalg.slogdet(np.array(columns).T)[1] - np.linalg.slogdet(white.factor)[1]
        value, gradient = at(eta)
        assert white.log_jacobian(eta) == pytest.approx(log_det, abs=1e-6)
        assert value == pytest.approx(relevance_or_not(x)[0] + log_det, abs=1e-6)
        difference = [(at(eta + d)[0] - at(eta - d)[0]) / (2 * h) for d in h * np.eye(2)]
        np.testing.assert_allclose(gradient, difference, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_same_posterior_in_fewer_steps():
    straight, bent = bent_whitening()
    assert straight.bend is None
    runs = {}
    for name, white in {"straight": straight, "bent": bent}.items():
        starts = white.to_x(np.random.default_rng(3).standard_normal((4, 2)))
        runs[name] = sample_nuts(relevance_or_not, starts, white, tune=100, draws=1000, seed=[7]).chains
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
    assert worth["bent"] > 1.2 * worth["straight"]


def test_an_earlier_bend_is_seen_through():
    _, bent = bent_whitening()
    # Two equal draws tell nothing: what is left is the earlier whitening, near its middle.
    again = whitening_from_draws(np.tile(bent.middle, (2, 1)), bent, bent=True)
    assert again.bend is not None
    assert again.bend.side.tolist() == [0.0, 0.0]
    slope = np.diag(bent.bend.slope(bent.centre))
    np.testing.assert_allclose(again.covariance, 10.0 / 12.0 * slope @ bent.covariance @ slope, rtol=1e-9)
    np.testing.assert_allclose(again.middle, bent.middle)


def test_straightened_is_the_same_near_the_middle():
    _, bent = bent_whitening()
    straight = bent.straightened()
    assert straight.bend is None
    assert straight.straightened() is straight
    for eta in 1e-4 * np.eye(2):
        np.testing.assert_allclose(straight.to_x(eta), bent.to_x(eta), atol=1e-7)


def test_an_earlier_mode_far_from_the_draws_does_not_blow_up_the_metric():
    rng = np.random.default_rng(5)
    draws = np.stack([-np.log(np.abs(0.01 * rng.standard_normal(160))), rng.standard_normal(160)], axis=1)
    bent = whitening_from_draws(draws, Whitening(np.array([-2.0, 0.0]), 0.5 * np.eye(2)), bent=True)
    assert bent.bend is not None
    assert bent.bend.side[0] == 1.0
    sd = np.sqrt(bent.covariance[0, 0])
    assert sd < 2.0 * bent.bend.to_psi(draws)[:, 0].std()


def test_energies_of_blocks_in_other_coordinates_are_of_one_level():
    straight, bent = bent_whitening()
    wide = Whitening(straight.centre, 3.0 * straight.factor)
    levels = []
    for white in (straight, wide, bent):
        starts = white.to_x(np.zeros((2, 2)))
        chains = sample_nuts(relevance_or_not, starts, white, tune=100, draws=500, seed=[8]).chains
        levels.append(np.median(chains.energy))
    assert np.ptp(levels) < 0.7
