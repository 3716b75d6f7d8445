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
from known_posteriors import COVARIANCE, MEAN, WHITE, FunctionTarget, assert_mean, assert_same, shifted, starts

# The densities are called a hundred thousand times, and so is what leads to them.
pytestmark = pytest.mark.usefixtures("as_users_see_it")

PRECISION = np.linalg.inv(COVARIANCE)
# Forty draws of chains that never move have the ESS of four.
JUDGED_AT_40 = {"refit_after": 40, "min_ess_at_refit": 0.1}
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


@dataclasses.dataclass(frozen=True)
class Proposals(IndependenceMH):
    """Independence MH whose first chains are stuck where they begin, if `stuck`; its runs are noted."""

    stuck: bool = False
    at: np.ndarray | None = None  # where stuck chains are
    begun: list = dataclasses.field(default_factory=list, compare=False)
    runs: list = dataclasses.field(default_factory=list, compare=False)

    def sample(self, target, adapted, plan, callback):
        self.begun.append(adapted)
        run = super().sample(target, adapted, plan, callback)
        if self.stuck and len(self.begun) == 1:
            x = np.tile(run.chains.x[:, :1] if self.at is None else self.at, (1, run.chains.n_draws, 1))
            run = run._replace(chains=run.chains._replace(x=x))
        self.runs.append(run)
        return run


@dataclasses.dataclass(frozen=True)
class Fallback(NUTS):
    """NUTS that notes how it is asked, and gives back no more than `first` draws."""

    first: int = 10**6
    asked: list = dataclasses.field(default_factory=list, compare=False)

    def run(self, target, starts, coordinates, plan, callback):
        self.asked.append((starts, plan))
        run = super().run(target, starts, coordinates, plan, callback)
        return run._replace(chains=run.chains.first(self.first))


# --- where nothing fails


def test_it_takes_fewer_gradients_than_nuts():
    mine, other = normal(), normal()
    assert by_independence_mh(run(DefaultSampler(), mine).chains)
    NUTS().run(other, starts(WHITE), WHITE, PLAN, keep_going)
    assert mine.counter.values > 3 * 4 * 100
    assert mine.counter.gradients < other.counter.gradients / 2


def test_the_first_draws_are_kept_and_the_others_have_a_better_proposal():
    proposals = Proposals()
    result = run(DefaultSampler(proposals=proposals, refit_after=40))
    first, second = proposals.runs
    assert result.chains.n_draws == 100
    assert_same(result.chains, first.chains.then(second.chains))
    assert first.chains.n_draws == 40
    np.testing.assert_array_equal(proposals.begun[1].ends, first.chains.x[:, -1])
    assert proposals.begun[1].draws.shape[1] > 40  # those of warm-up too


def test_a_callback_sees_all_draws_as_those_of_one_run():
    seen = []

    def callback(s):
        seen.append((s.done, s.chains.n_draws))
        return 72 if s.chains.n_draws >= 72 else None

    result = run(DefaultSampler(refit_after=40), callback=callback)
    assert result.chains.n_draws == 72
    assert_same(result.chains, run(DefaultSampler(refit_after=40)).chains.first(72))
    done = [d for d, _ in seen]
    assert done == sorted(done)
    assert all(n == max(0, d - 60) for d, n in seen)
    assert any(n == 40 for _, n in seen)


def test_ctrl_c_between_two_proposals_keeps_the_draws():
    @dataclasses.dataclass(frozen=True)
    class Interrupted(Proposals):
        def sample(self, target, adapted, plan, callback):
            if self.begun:
                raise KeyboardInterrupt
            return super().sample(target, adapted, plan, callback)

    result = run(DefaultSampler(proposals=Interrupted(), refit_after=40))
    assert result.interrupted
    assert result.chains.n_draws == 40


def test_warm_up_is_that_of_independence_mh():
    assert DefaultSampler().warmup(20, 60) == IndependenceMH().warmup(20, 60) > 60


# --- where proposals fail


def test_nuts_draws_where_few_proposals_are_accepted():
    result = run(DefaultSampler(min_accepted=1.1))
    assert np.isfinite(result.chains.energy).all()
    (note,) = result.notes
    assert "of the independence proposals were accepted: NUTS made the final draws." in note
    assert_same(result.chains, run(DefaultSampler(min_accepted=1.1)).chains)


def test_nuts_draws_where_chains_have_few_effective_draws_time_and_again():
    result = run(DefaultSampler(trial_draws=50, min_ess_of_trial=2.0))
    assert np.isfinite(result.chains.energy).all()  # nothing of what was thrown away
    assert any("50 independence draws per chain had" in note for note in result.notes)
    for i in range(3):
        assert_mean(result.chains.x[:, :, i], MEAN[i])


@pytest.mark.parametrize("refit_after", [40, 100])
def test_chains_that_are_stuck_begin_again_after_some_draws_of_nuts(refit_after):
    proposals, fallback = Proposals(stuck=True), Fallback()
    result = run(
        DefaultSampler(proposals, fallback, refit_after=refit_after, min_ess_at_refit=0.1), plan=PLAN.but(draws=120)
    )
    ((begin, plan),) = fallback.asked
    assert plan.draws == 50
    assert plan.warmup == PLAN.short_warmup
    assert plan.target_accept == 0.9  # steps were too long for where chains were stuck
    stuck = proposals.runs[0].chains
    np.testing.assert_array_equal(begin, stuck.x[:, -1])
    assert by_independence_mh(result.chains)
    assert result.notes == ()
    assert result.chains.n_draws == 120
    assert not np.isin(stuck.x, result.chains.x).any()
    assert_same(result.chains, proposals.runs[1].chains.then(proposals.runs[2].chains))


def test_a_callback_sees_that_chains_begin_again():
    seen = []
    fallback = Fallback()
    run(
        DefaultSampler(Proposals(stuck=True), fallback, **JUDGED_AT_40),
        callback=lambda s: seen.append((s.chains.n_draws, s.done)),
    )
    again = next(i for i in range(1, len(seen)) if seen[i][0] < seen[i - 1][0])
    assert seen[again] == (0, 0)
    assert seen[-1] == (100, 160)
    assert [n for n, _ in seen[again:]] == sorted(n for n, _ in seen[again:])


def test_a_trial_does_not_depend_on_how_many_draws_there_are_when_it_is_made():
    seen = []
    result = run(
        DefaultSampler(trial_draws=20, min_ess_of_trial=2.0), callback=lambda s: seen.append((s.chains.n_draws, s.done))
    )
    first_of_nuts = next(i for i, (n, done) in enumerate(seen) if done == 0 and i > 0)
    assert max(n for n, _ in seen[:first_of_nuts]) <= 20
    assert any("20 independence draws per chain had" in note for note in result.notes)


def test_a_chain_without_a_gradient_goes_on_from_where_another_is():
    """Values exist at the ends of the first two chains, gradients do not."""
    at = np.array([[[9.0, 0.0, 0.0]], [[9.0, 0.0, 0.0]], [[2.0, -1.0, 0.3]], [[2.5, -1.0, 0.3]]])

    def log_density(x):
        value, gradient = gaussian(x)
        return value, np.full(3, np.nan) if x[0] == 9.0 else gradient

    proposals, fallback = Proposals(stuck=True, at=at), Fallback()
    target = FunctionTarget(log_density, lambda x: gaussian(x)[0], dimension=3)
    run(DefaultSampler(proposals, fallback, **JUDGED_AT_40), target)
    np.testing.assert_array_equal(fallback.asked[0][0], at[[2, 2, 2, 3], 0])


# --- where it is ended before it has other draws


def interrupts(*_):
    raise KeyboardInterrupt


def test_ctrl_c_while_chains_begin_again_returns_the_stuck_draws():
    @dataclasses.dataclass(frozen=True)
    class Interrupted(Fallback):
        run = interrupts

    proposals = Proposals(stuck=True)
    result = run(DefaultSampler(proposals, Interrupted(), **JUDGED_AT_40))
    assert result.interrupted
    assert_same(result.chains, proposals.runs[0].chains)
    with pytest.raises(KeyboardInterrupt):  # there is nothing to return
        run(DefaultSampler(fallback=Interrupted(), min_accepted=1.1))


@pytest.mark.parametrize(("n", "drawn"), [(0, 40), (3, 40), (4, 4)])
def test_where_time_is_up_while_nuts_draws_there_are_the_stuck_draws_or_enough_others(n, drawn):
    result = run(DefaultSampler(Proposals(stuck=True), Fallback(first=n), **JUDGED_AT_40))
    assert result.chains.n_draws == drawn


# --- pilots, and draws on disk


@pytest.mark.parametrize("min_accepted", [0.08, 1.1])
def test_a_pilot_is_by_nuts_where_few_proposals_are_accepted(min_accepted):
    plan = PLAN.but(draws=30)
    sampler = DefaultSampler(min_accepted=min_accepted)
    chains = sampler.pilot(normal(), starts(WHITE), WHITE, plan, keep_going).chains
    assert by_independence_mh(chains) == (min_accepted < 1.0)
    assert chains.n_draws == 30


def test_only_independence_draws_that_are_hardly_effective_are_discarded():
    sampler = DefaultSampler(trial_draws=80, **JUDGED_AT_40)
    good = run(DefaultSampler(refit_after=40)).chains
    stuck = good._replace(x=np.repeat(good.x[:, ::50], 50, axis=1))
    assert not sampler.discards(good, 3)
    assert sampler.discards(stuck, 3)
    assert not sampler.discards(stuck.first(30), 3)  # too few to be judged
    assert not sampler.discards(stuck._replace(energy=np.zeros_like(stuck.energy)), 3)  # draws of NUTS
