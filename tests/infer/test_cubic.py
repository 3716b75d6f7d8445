"""The third order of a log density around its mode, from gradients."""

import numpy as np
import pytest

from integrand.errors import NumericalError
from integrand.infer.cubic import Cubic, at_mode, cubic_around
from integrand.infer.metric import Whitening
from integrand.infer.surrogate import sample_with_surrogate

rng = np.random.default_rng(5)
CENTRE = np.array([2.0, -1.0, 0.5])
A = np.linalg.inv(np.cov(rng.standard_normal((3, 9))))
F = np.linalg.inv(np.linalg.cholesky(A)).T  # F Fᵀ is the inverse of A
WHITE = Whitening(CENTRE, F)


def gamma(x):
    """Logs of three gamma variables, skewed but no more than third order can tell nearby."""
    shape = np.array([6.0, 15.0, 40.0])
    return float(np.sum(shape * x - shape * np.exp(x))), shape - shape * np.exp(x)


GAMMA_WHITE = Whitening(np.zeros(3), np.diag(np.array([6.0, 15.0, 40.0]) ** -0.5))


def slope_by_differences(f, x, step=1e-5):
    return np.array([(f(x + d)[0] - f(x - d)[0]) / (2 * step) for d in step * np.eye(len(x))])


def test_the_gradient_is_that_of_the_value():
    H, W = -np.eye(3) - 0.1 * np.ones((3, 3)), 0.3 * rng.standard_normal((3, 3))
    cubic = Cubic(WHITE, 1.0, rng.standard_normal(3), H, W, np.array([4.0, 2.0, 0.5]))
    for scale in (0.0, 0.1, 1.0, 3.0, 10.0):
        x = CENTRE + scale * F @ rng.standard_normal(3)
        np.testing.assert_allclose(cubic(x)[1], slope_by_differences(cubic, x), rtol=1e-5, atol=1e-5)


def test_a_polynomial_without_products_of_three_is_found_exactly():
    """In whitened coordinates: any quadratic, and third-order terms in at most two coordinates."""
    H, W, g = -np.eye(3) + 0.2 * np.ones((3, 3)), 0.1 * rng.standard_normal((3, 3)), np.array([0.1, -0.3, 0.2])

    def f(x):
        d = WHITE.to_eta(x)
        value = 7.0 + g @ d + 0.5 * d @ H @ d + (d * d) @ W @ d
        return float(value), np.linalg.solve(F.T, g + H @ d + 2.0 * d * (W @ d) + W.T @ (d * d))

    found = cubic_around(f, WHITE)
    assert found.value == pytest.approx(7.0)
    for wanted, got in ((g, found.slope), (H, found.H), (W, found.W)):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)
    x = CENTRE + 0.05 * F @ np.ones(3)
    assert found(x)[0] == pytest.approx(f(x)[0], abs=1e-7)


def test_it_has_no_mode_but_the_one_it_was_made_at():
    """Among twenty coordinates one is the log of an exponential variable, as skewed as a hyperparameter gets."""
    P = 20

    def f(x):
        return float(x[0] - np.exp(x[0]) - 0.5 * x[1:] @ x[1:]), np.r_[1.0 - np.exp(x[0]), -x[1:]]

    cubic = cubic_around(f, Whitening(np.zeros(P), np.eye(P)))
    for _ in range(50):
        others = rng.standard_normal(P - 1)
        along = [cubic(np.r_[r, others])[0] for r in np.linspace(-0.5, -30.0, 60)]
        assert np.all(np.diff(along) < 0.0)  # on the side with the long tail it falls all the way
    there = np.r_[-2.0, np.zeros(P - 1)]
    assert abs(cubic(there)[0] - f(there)[0]) < abs(cubic._replace(W=0.0 * cubic.W)(there)[0] - f(there)[0])


def test_a_density_that_rises_on_both_sides_is_made_to_fall():
    def saddle(x):
        return float(0.5 * x[0] ** 2 - 0.5 * x[1] ** 2), np.array([x[0], -x[1]])

    found = cubic_around(saddle, Whitening(np.zeros(2), np.eye(2)))
    assert np.linalg.eigvalsh(found.H).max() < 0.0
    np.testing.assert_allclose(found.H[1, 1], -1.0)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_gradient_without_a_number_tells_nothing(bad):
    """Beyond x_0 = 1/2 the density cannot be computed: only from x_1 is it known how the two go together."""
    H = np.array([[-1.5, 0.4], [0.4, -0.7]])

    def f(x):
        return (0.5 * float(x @ H @ x), H @ x) if x[0] < 0.5 else (bad, np.zeros(2))

    found = cubic_around(f, Whitening(np.zeros(2), np.eye(2)))
    np.testing.assert_allclose(found.H, [[-1.0, 0.4], [0.4, -0.7]])
    np.testing.assert_allclose(found.W, 0.0)


def test_a_centre_without_a_number_is_an_error():
    with pytest.raises(NumericalError, match="not finite where its mode should be"):
        cubic_around(lambda x: (np.nan, x), WHITE)


def test_it_takes_two_gradients_a_direction_and_one():
    calls = []
    cubic_around(lambda x: calls.append(x) or gamma(x), GAMMA_WHITE)
    assert len(calls) == 2 * 3 + 1


def test_it_is_nearer_to_a_skewed_density_than_a_gaussian_is():
    cubic = cubic_around(gamma, GAMMA_WHITE)
    gaussian = cubic._replace(W=np.zeros((3, 3)))
    draws = np.log(rng.gamma([6.0, 15.0, 40.0], size=(400, 3)) / [6.0, 15.0, 40.0])
    miss, miss_gaussian = (np.std([f(x)[0] - gamma(x)[0] for x in draws]) for f in (cubic, gaussian))
    assert miss < 0.4 * miss_gaussian


@pytest.mark.usefixtures("as_users_see_it")
def test_chains_that_move_by_it_are_accepted():
    def accepted(cheap):
        starts = GAMMA_WHITE.to_x(np.zeros((4, 3)))
        run = sample_with_surrogate(cheap, lambda x: gamma(x)[0], starts, GAMMA_WHITE, tune=50, draws=100, seed=(1,))
        return run.chains.acceptance.mean()

    cubic = cubic_around(gamma, GAMMA_WHITE)
    assert accepted(cubic) > 0.9 > accepted(cubic._replace(W=np.zeros((3, 3))))


def test_newton_finds_the_mode():
    off = Whitening(np.array([0.4, -0.5, 0.2]), GAMMA_WHITE.factor)
    calls = []
    found = at_mode(lambda x: calls.append(x) or gamma(x), off)
    assert gamma(found.centre)[0] > gamma(np.zeros(3))[0] - 0.02
    assert len(calls) <= 8
    np.testing.assert_array_equal(found.factor, off.factor)


def test_newton_never_goes_downhill():
    def cliff(x):  # steps as long as the whitening says lead nowhere
        return (float(x[0]), np.ones(1)) if x[0] < 0.01 else (-np.inf, np.zeros(1))

    found = at_mode(cliff, Whitening(np.zeros(1), np.eye(1)))
    np.testing.assert_array_equal(found.centre, [0.0])


def test_a_mode_at_the_end_of_a_curved_valley():
    """The curvature at the start says nothing of the way: Newton's method gives up and L-BFGS goes on."""
    calls = []

    def valley(x):
        calls.append(x)
        off = x[1] - x[0] ** 2
        value = -50.0 * off**2 - 2.0 * (x[0] - 1.5) ** 2
        return value, np.array([200.0 * x[0] * off - 4.0 * (x[0] - 1.5), -100.0 * off])

    start = np.array([-1.0, 1.0])
    white = Whitening(start, np.diag([0.3, 0.1]))
    found = at_mode(valley, white)
    assert valley(found.centre)[0] > -0.5 > valley(start)[0] + 10.0
    np.testing.assert_array_equal(found.factor, white.factor)
    assert len(calls) < 60
