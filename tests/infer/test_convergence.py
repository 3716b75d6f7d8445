"""R-hat and effective sample sizes of all coordinates at once are those of ArviZ, one by one."""

import logging
import warnings

import numpy as np
import pytest

from integrand.infer.base import Chains
from integrand.infer.convergence import convergence, e_bfmi, ess_bulk, ess_tail, r_hat
from integrand.infer.coordinates import Coordinates
from integrand.infer.modes import Mode
from integrand.infer.stopping import StoppingRule, mixing
from known_posteriors import SEED_SHIFT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import arviz

TAILS = (0.05, 0.95)


def by_arviz(x):
    logging.getLogger("arviz").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        columns = [np.ascontiguousarray(x[:, :, p]) for p in range(x.shape[2])]
        return np.array(
            [[arviz.rhat(c), arviz.ess(c, method="bulk"), arviz.ess(c, method="tail", prob=TAILS)] for c in columns],
            float,
        ).T


def chains(rng, n_chains, n, correlation, apart=0.0, coordinates=3):
    """Autoregressive chains whose means are `apart`."""
    noise = rng.standard_normal((n_chains, n, coordinates))
    x = noise.copy()
    for i in range(1, n):
        x[:, i] = correlation * x[:, i - 1] + noise[:, i]
    return x + apart * rng.standard_normal((n_chains, 1, coordinates))


@pytest.mark.parametrize("correlation", [-0.9, -0.4, 0.0, 0.5, 0.95])
@pytest.mark.parametrize("n_chains", [2, 4, 5])
def test_the_numbers_are_those_of_arviz(n_chains, correlation):
    rng = np.random.default_rng(n_chains)
    compared = 0
    for n in (4, 5, 11, 38, 150, 333):
        for apart in (0.0, 1.0):
            if (n_chains * n - 1) % 20 == 0:  # a quantile that is a draw: rounding would decide on which side it is
                continue
            x = chains(rng, n_chains, n, correlation, apart)
            np.testing.assert_allclose([r_hat(x), ess_bulk(x), ess_tail(x)], by_arviz(x), rtol=1e-9)
            compared += 1
    assert compared >= 8


def test_draws_that_repeat_as_in_a_sampler_that_rejects():
    rng = np.random.default_rng(0)
    x = chains(rng, 4, 200, 0.3)
    stays = rng.random(200) < 0.4
    for i in range(1, 200):
        if stays[i]:
            x[:, i] = x[:, i - 1]
    np.testing.assert_allclose([r_hat(x), ess_bulk(x), ess_tail(x)], by_arviz(x), rtol=1e-9)


def test_a_coordinate_that_never_moves_does_not_spoil_the_others():
    x = chains(np.random.default_rng(1), 4, 100, 0.2)
    x[:, :, 1] = 3.0
    alone = x[:, :, [0, 2]]
    for measure in (r_hat, ess_bulk, ess_tail):
        np.testing.assert_array_equal(measure(x)[[0, 2]], measure(alone))


def independent(n=400, seed=1):
    return np.random.default_rng(seed).standard_normal((4, n, 3))


def test_convergence_has_all_three_of_every_coordinate():
    x = independent()
    found = convergence(x)
    np.testing.assert_array_equal(found, [r_hat(x), ess_bulk(x), ess_tail(x)])


def test_e_bfmi_is_arviz():
    energy = np.cumsum(independent()[:, :, 0], axis=1) * 0.1 + independent(seed=5)[:, :, 1]
    # ArviZ divides n - 1 squared differences by n - 1 and the n squared deviations by n - 1 too.
    np.testing.assert_allclose(e_bfmi(energy) * 399 / 400, arviz.bfmi(energy), rtol=1e-12)


def test_a_coordinate_that_never_moves_has_not_converged():
    x = independent()
    x[:, :, 2] = 1.0
    numbers = convergence(x)
    assert numbers.r_hat[2] == np.inf
    assert numbers.ess_bulk[2] == numbers.ess_tail[2] == 0.0
    assert not numbers.reached(1.0)
    assert np.all(numbers.r_hat[:2] < 1.01)


def test_reached_needs_all_three():
    good = convergence(independent())
    assert good.reached(400.0)
    assert not good._replace(r_hat=np.array([1.0, 1.02, 1.0])).reached(400.0)
    assert not good._replace(ess_bulk=np.array([500.0, 399.0, 500.0])).reached(400.0)
    assert not good._replace(ess_tail=np.array([500.0, 399.0, 500.0])).reached(400.0)


def test_draws_without_an_energy_do_not_count_for_e_bfmi():
    energy = independent()[:, :, 0]
    some = energy.copy()
    some[:, :100] = np.nan
    np.testing.assert_allclose(e_bfmi(some), e_bfmi(energy[:, 100:]))
    assert np.isnan(e_bfmi(np.full((2, 10), np.nan))).all()


def test_too_few_or_infinite_draws_have_not_converged():
    few = convergence(independent(3))
    assert np.all(few.r_hat == np.inf)
    assert np.all(few.ess_bulk == 0.0)
    x = independent()
    x[0, 0, 1] = np.nan
    assert not convergence(x).reached(1.0)


# ---- when enough has been drawn


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
