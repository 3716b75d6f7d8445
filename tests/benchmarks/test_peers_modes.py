"""The masses of modes, by which chains that disagree are explained."""

import sys
from pathlib import Path

import numpy as np
import pytest

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
sys.path.insert(0, str(PEERS))

from modes import mode_from  # noqa: E402


def test_the_mass_of_a_gaussian_is_exact():
    mean, precision = np.array([1.0, -2.0, 0.5]), np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 2.0]])
    log_density_at_mean = 7.0 + 0.5 * np.linalg.slogdet(precision / (2.0 * np.pi))[1]  # so that the mass is e⁷

    def loss(phi):
        pull = precision @ (phi - mean)
        return 0.5 * (phi - mean) @ pull - log_density_at_mean, pull

    mass, value, place = mode_from(loss, np.zeros(3))
    assert mass == pytest.approx(7.0, abs=1e-6)
    assert value == pytest.approx(log_density_at_mean, abs=1e-9)
    assert place == pytest.approx(mean, abs=1e-4)
