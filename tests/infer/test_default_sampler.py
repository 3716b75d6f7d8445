"""Who draws: independence MH where it pays, NUTS where few proposals are accepted or few draws are effective.

What every sampler owes is in tests/contracts/test_samplers.py.
"""

import dataclasses

import numpy as np
import pytest

from integrand.infer.base import Chains, Plan, Run, keep_going
from integrand.infer.default_sampler import DefaultSampler
from integrand.infer.independence_mh import IndependenceMH
from integrand.infer.nuts import NUTS
from known_posteriors import COVARIANCE, MEAN, WHITE, FunctionTarget, assert_same, shifted, starts

# The densities are called a hundred thousand times, and so is what leads to them.
pytestmark = pytest.mark.usefixtures("as_users_see_it")

PRECISION = np.linalg.inv(COVARIANCE)
PLAN = shifted(Plan(warmup=60, draws=100, seed=(3,), short_warmup=30))


def gaussian(x):
    d = x - MEAN
    return -0.5 * float(d @ PRECISION @ d), -PRECISION @ d


def normal() -> FunctionTarget:
    return FunctionTarget(gaussian, lambda x: gaussian(x)[0], dimension=3)


def run(sampler: DefaultSampler, target=None, plan=PLAN, callback=keep_going, chains=4) -> Run:
    return sampler.run(normal() if target is None else target, starts(WHITE, chains), WHITE, plan, callback)


def by_independence_mh(chains: Chains) -> bool:
    """Independence proposals have no energy."""
    return bool(np.isnan(chains.energy).all())


# --- where nothing fails


def test_it_takes_fewer_gradients_than_nuts():
    mine, other = normal(), normal()
    assert by_independence_mh(run(DefaultSampler(), mine).chains)
    NUTS().run(other, starts(WHITE), WHITE, PLAN, keep_going)
    assert mine.counter.values > 4 * 100
    assert mine.counter.gradients < other.counter.gradients / 2


def test_a_callback_sees_all_draws_as_those_of_one_run():
    seen = []

    def callback(s):
        seen.append((s.done, s.chains.n_draws))
        return 72 if s.chains.n_draws >= 72 else None

    result = run(DefaultSampler(), callback=callback)
    assert result.chains.n_draws == 72
    assert_same(result.chains, run(DefaultSampler()).chains.first(72))
    done = [d for d, _ in seen]
    assert done == sorted(done)
    assert all(n == max(0, d - 60) for d, n in seen)


def test_warm_up_is_that_of_independence_mh():
    assert DefaultSampler().warmup(20, 60) == IndependenceMH().warmup(20, 60) > 60


# --- where proposals fail


def test_nuts_draws_where_few_proposals_are_accepted():
    result = run(DefaultSampler(min_accepted=1.1))
    assert np.isfinite(result.chains.energy).all()
    (note,) = result.notes
    assert "of the independence proposals were accepted: NUTS made the final draws." in note
    assert_same(result.chains, run(DefaultSampler(min_accepted=1.1)).chains)


def test_ctrl_c_in_warm_up_returns_no_draws():
    @dataclasses.dataclass(frozen=True)
    class Interrupted(IndependenceMH):
        def warm_up(self, *arguments):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(DefaultSampler(proposals=Interrupted()))


def test_warm_up_is_made_twice_before_nuts_draws():
    warmups = []

    @dataclasses.dataclass(frozen=True)
    class Counted(IndependenceMH):
        def warm_up(self, target, starts, coordinates, plan, callback, before=None):
            warmups.append(before)
            return super().warm_up(target, starts, coordinates, plan, callback, before)

    run(DefaultSampler(proposals=Counted(), min_accepted=1.1))
    assert len(warmups) == 2
    assert warmups[0] is None
    assert warmups[1] is not None


# --- pilots


@pytest.mark.parametrize("min_accepted", [0.08, 1.1])
def test_a_pilot_is_by_nuts_where_few_proposals_are_accepted(min_accepted):
    plan = PLAN.but(draws=30)
    sampler = DefaultSampler(min_accepted=min_accepted)
    chains = sampler.pilot(normal(), starts(WHITE), WHITE, plan, keep_going).chains
    assert by_independence_mh(chains) == (min_accepted < 1.0)
    assert chains.n_draws == 30
