"""Short ascents from dispersed points find the optima that are distinct, with their masses."""

import numpy as np
import pytest

from integrand.infer.modes import find_modes, membership

P = 3


def three_modes(x):
    """Normal densities of masses 0.6, 0.4 and e⁻²⁰."""
    centres, sds = np.array([[0.0] * P, [7.0] * P, [-9.0] * P]), np.array([1.0, 0.8, 1.0])
    logs = np.log([0.6, 0.4, np.exp(-20.0)]) - P * np.log(sds) - 0.5 * P * np.log(2.0 * np.pi)
    logs = logs - 0.5 * np.sum((x - centres) ** 2, axis=1) / sds**2
    value = np.logaddexp.reduce(logs)
    return float(value), np.exp(logs - value) @ (-(x - centres) / sds[:, None] ** 2)


STARTS = np.random.default_rng(0).uniform(-10.0, 10.0, (24, P))


def test_optima_with_mass_are_found():
    modes = find_modes(three_modes, list(STARTS), [np.full(P, 0.3)])
    np.testing.assert_allclose([m.coordinates.centre for m in modes], [[0.0] * P, [7.0] * P], atol=1e-2)
    np.testing.assert_allclose(np.exp([m.log_mass for m in modes]), [0.6, 0.4], rtol=0.02)
    np.testing.assert_allclose(modes[1].coordinates.covariance, 0.64 * np.eye(P), atol=0.01)
    np.testing.assert_array_equal(membership(modes, np.array([[0.5] * P, [6.5] * P])), [0, 1])


def test_ascents_are_short():
    calls = []

    def counted(x):
        calls.append(1)
        return three_modes(x)

    find_modes(counted, list(STARTS), [np.full(P, 0.3)])
    assert len(calls) < 24 * 20


def test_points_without_a_density_are_left_out():
    assert find_modes(lambda x: (np.nan, x), list(STARTS[:3])) == ()


def test_a_search_ends_when_the_time_is_up():
    modes = find_modes(three_modes, list(STARTS), [np.full(P, 0.3)], lambda: True)
    assert len(modes) == 1


def test_ctrl_c_ends_the_search():
    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_modes(interrupted, list(STARTS[:1]))
