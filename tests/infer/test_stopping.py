"""Draws end when everything that has to mix does, and does so again after half as many draws more."""

import numpy as np

from integrand.infer.base import Chains
from integrand.infer.coordinates import Coordinates
from integrand.infer.modes import Mode
from integrand.infer.stopping import StoppingRule, mixing
from known_posteriors import SEED_SHIFT


def chains_of(x, log_density=None) -> Chains:
    zero = np.zeros(x.shape[:2])
    none = zero.astype(int)
    return Chains(
        x, x[:, :, 0] if log_density is None else log_density, zero, zero, none, none, none.astype(bool), zero
    )


def normal(n, p=2, seed=0):
    return np.random.default_rng([SEED_SHIFT, seed]).standard_normal((4, n, p))


def test_the_rule_has_to_hold_twice():
    chains = chains_of(normal(1_000))
    rule = StoppingRule(2, 300.0)
    first = next(n for n in range(100, 1_000, 25) if StoppingRule(2, 300.0).holds(chains.first(n)))
    assert rule.enough(first, chains.first) is None
    assert rule.enough(1_000, chains.first) == int(np.ceil(1.5 * first))


def test_what_held_once_by_luck_is_not_enough():
    """After 150 draws one chain goes elsewhere."""
    x = normal(400)
    x[0, 120:] += 3.0
    assert StoppingRule(2, 300.0).enough(100, chains_of(x).first) is None
    assert StoppingRule(2, 300.0).enough(400, chains_of(x).first) is None


def test_the_log_density_has_to_mix():
    x = normal(600)
    level = np.repeat(np.array([0.0, 0.0, 0.0, 2.0])[:, None], 600, axis=1) + normal(600, 1, 3)[:, :, 0]
    assert StoppingRule(2, 300.0).enough(600, chains_of(x).first) is not None
    assert StoppingRule(2, 300.0).enough(600, chains_of(x, level).first) is None


def test_narrow_directions_and_modes_have_to_mix():
    x = normal(500)
    x[:, :, 1] = x[:, :, 0] + 0.01 * x[:, :, 1]
    narrow = mixing(chains_of(x), 2)[:, :, 3:]
    assert np.abs(np.corrcoef(narrow.reshape(-1, 2).T)[0, 1]) < 0.2
    modes = tuple(Mode(Coordinates(np.full(2, c), np.eye(2)), 0.0, 0.0) for c in (0.0, 9.0))
    y = normal(500)
    assert mixing(chains_of(y), 2, modes).shape[2] == 5  # hardly any draw is in the second
    y[:2] += 9.0
    both = mixing(chains_of(y), 2, modes)
    assert both.shape[2] == 7
    np.testing.assert_array_equal(both[:, 0, 5], [0.0, 0.0, 1.0, 1.0])
