"""The mixture that is proposed from is a normalised density, bounds long tails, and learns modes."""

import numpy as np
import pytest
from scipy.special import gammaln

from integrand.infer.coordinates import Coordinates, TailWarp
from integrand.infer.mixture import Component, Mixture, broad_components, dispersed_points, resampled, truncated_weights

WARP = TailWarp(np.array([1.0, -1.0]), np.array([-1.5, 2.0]))
WARPED = Component(
    Coordinates(WARP.to_psi(np.array([2.0, -1.0])), 0.7 * np.eye(2), WARP),
    Coordinates(np.array([2.0, -1.0]), np.array([[1.0, 0.0], [-0.5, 0.4]])),
)
PLAIN = Component.at(Coordinates(np.array([0.0, 1.0]), np.array([[1.0, 0.0], [0.8, 0.5]])))
BOTH = Mixture((PLAIN, WARPED), np.array([0.3, 0.7]), 2)


@pytest.fixture(scope="module")
def grid():
    side = np.linspace(-45.0, 45.0, 751)
    points = np.stack(np.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
    return points, np.exp(BOTH.log_density(points)) * (side[1] - side[0]) ** 2


def test_it_is_normalised(grid):
    assert grid[1].sum() == pytest.approx(1.0, abs=5e-4)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("low", "high"), [(-3.0, 0.0), (0.0, 2.0), (3.0, 10.0), (-20.0, -3.0)])
def test_draws_have_its_density(grid, axis, low, high):
    rng = np.random.default_rng(0)
    n = 8_000
    draws = np.array([BOTH.draw(rng) for _ in range(n)])[:, axis]
    inside = grid[1][(grid[0][:, axis] > low) & (grid[0][:, axis] < high)].sum()
    error = np.sqrt(inside * (1.0 - inside) / n) + 3e-3  # cells of the grid have edges
    assert abs(np.mean((draws > low) & (draws < high)) - inside) < 5.0 * error


def test_the_density_of_a_row_does_not_depend_on_the_others():
    x = np.random.default_rng(1).standard_normal((50, 2))
    one_by_one = np.concatenate([BOTH.log_density(row[None]) for row in x])
    np.testing.assert_array_equal(BOTH.log_density(x), one_by_one)


@pytest.mark.parametrize("dimension", [3, 15])
def test_a_long_tail_of_one_entry_is_bounded(dimension):
    """Exponential on the side that the warp squeezes; the others are normal."""
    warp = TailWarp(np.eye(dimension)[0], np.zeros(dimension))
    component = Component(Coordinates(np.zeros(dimension), np.eye(dimension), warp), Coordinates.identity(dimension))
    q = Mixture((component,), np.ones(1), 1)
    far = np.linspace(-5.0, -80.0, 60)
    x = np.zeros((60, dimension))
    x[:, 0] = far
    log_d = far - 0.5 * (dimension - 1) * np.log(2.0 * np.pi)
    assert np.max(log_d - q.log_density(x)) < np.log(200.0 * dimension)


def test_weights_and_shapes_come_from_all_proposals():
    """Chains that never left the first mode, and proposals that have met the second."""
    rng = np.random.default_rng(2)
    before = Mixture.over([Coordinates.identity(2), Coordinates(np.full(2, 9.0), np.eye(2))], [0.0, -3.0])
    proposed = np.array([before.draw(rng) for _ in range(2_000)])
    first, second = -0.5 * np.sum(proposed**2, axis=1), -0.5 * np.sum((proposed - 9.0) ** 2, axis=1) / 0.25
    log_d = np.logaddexp(np.log(0.3) + first, np.log(0.7 / 0.25) + second) - np.log(2.0 * np.pi)
    after = before.refitted(rng.standard_normal((200, 2)), proposed, log_d - before.log_density(proposed))
    assert after.weights[1] > 2.0 * before.weights[1]
    np.testing.assert_allclose(np.diag(after.components[1].plain.covariance), 0.25, atol=0.4)
    np.testing.assert_allclose(after.components[1].plain.centre, 9.0, atol=0.3)


def test_every_component_keeps_some_proposals():
    mixture = Mixture.over([Coordinates.identity(1), Coordinates(np.full(1, 50.0), np.eye(1))], [0.0, -500.0])
    assert mixture.weights.min() > 0.01
    assert {mixture.choose(np.random.default_rng(k), of_modes=True) for k in range(300)} == {0, 1}


def test_weights_are_truncated_and_resampling_is_in_proportion():
    w = truncated_weights(np.array([0.0, 0.0, 100.0, -np.inf]))
    assert w.sum() == pytest.approx(1.0)
    assert w[3] == 0.0
    np.testing.assert_array_equal(truncated_weights(np.full(4, -np.inf)), 0.25)
    np.testing.assert_array_equal(np.bincount(resampled(np.array([1.0, 2.0, 1.0]), 400)), [100, 200, 100])


def test_plausible_points_are_near_the_density():
    def values(x):
        return -0.5 * np.sum((x - 1.0) ** 2, axis=1) / 0.01 + gammaln(3.0)

    points, plausible = dispersed_points(values, np.zeros(2), np.random.default_rng(3))
    assert points.shape == plausible.shape
    assert np.abs(plausible - 1.0).mean() < 0.5 * np.abs(points - 1.0).mean()
    nowhere, same = dispersed_points(lambda x: np.full(len(x), np.nan), np.zeros(2), np.random.default_rng(3))
    np.testing.assert_array_equal(nowhere, same)


def test_groups_of_plausible_points_find_a_shelf_beside_a_mode():
    """Where many points are plausible, those far from the mode have a component of their own."""
    rng = np.random.default_rng(4)
    mode, shelf = rng.standard_normal((1_500, 2)), np.array([40.0, 0.0]) + 3.0 * rng.standard_normal((100, 2))
    points = np.concatenate([mode, shelf])
    together, *groups = broad_components(points, Coordinates.identity(2), rng)
    np.testing.assert_allclose(together.centre, points.mean(axis=0), atol=1e-8)
    assert min(abs(group.centre[0] - 40.0) for group in groups) < 2.0
    assert len(broad_components(points[:500], Coordinates.identity(2), rng)) == 1
