import numpy as np
import pytest

from integrand.errors import InputError
from integrand.infer.base import Chains, Counter, Plan, Sampler
from known_posteriors import FunctionTarget, assert_same


def chains(n, steps=1, seed=0):
    rng, zero = np.random.default_rng(seed), np.zeros((2, n))
    return Chains(
        rng.standard_normal((2, n, 3)), *rng.standard_normal((3, 2, n)), zero.astype(int) + steps, zero.astype(int),
        zero.astype(bool), zero + 0.5,
    )  # fmt: skip


def test_chains_join_and_split():
    whole = chains(50)
    assert_same(whole.first(20).then(Chains(*(a[:, 20:] for a in whole))), whole)
    assert whole.first(20).n_draws == 20
    assert whole
    assert not whole.first(0)


def test_draws_without_a_gradient_are_no_trajectories():
    assert chains(50).n_trajectories == 100
    assert chains(50, steps=0).n_trajectories == 1  # so that a share of them is a number


def test_one_point_is_a_draw():
    one = Chains.of_one_point(np.array([1.0, 2.0]), -3.0)
    np.testing.assert_array_equal(one.x, [[[1.0, 2.0]]])
    assert one.log_density == -3.0
    assert one.n_draws == 1
    assert not one.diverging.any()


def test_evaluations_are_counted_by_kind():
    counter = Counter()
    for ok, gradient in ((True, True), (False, True), (True, False), (False, False)):
        counter.add(ok, gradient)
    assert (counter.gradients, counter.values, counter.failures) == (2, 2, 2)


def test_a_target_has_values_where_it_has_gradients():
    target = FunctionTarget(lambda x: (-float(x @ x), -2.0 * x), dimension=2)
    np.testing.assert_array_equal(target.values(np.array([[1.0, 2.0], [0.0, 0.5]])), [-5.0, -0.25])
    with pytest.raises(InputError, match="choose the sampler default or nuts"):
        target.traced()


def test_a_plan_is_changed_by_name():
    plan = Plan(warmup=10, draws=20, seed=(1,))
    assert plan.but(draws=5) == Plan(warmup=10, draws=5, seed=(1,))
    assert plan.draws == 20


@pytest.mark.parametrize(("warps", "nuisances", "can"), [(True, 0, True), (True, 2, False), (False, 0, False)])
def test_only_coordinates_of_theta_alone_are_warped(warps, nuisances, can):
    class Anything(Sampler):
        def run(self, target, starts, coordinates, plan, callback):
            raise NotImplementedError

    sampler = Anything()
    sampler.warps = warps
    assert sampler.can_warp(FunctionTarget(lambda x: (0.0, x), dimension=3 + nuisances, n_theta=3)) is can
    assert sampler.warmup(3, 60) == 60
    assert sampler.between(()) is sampler
