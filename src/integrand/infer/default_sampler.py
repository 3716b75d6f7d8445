"""The default sampler of θ: independence Metropolis-Hastings, and NUTS where its proposals are rejected too often.

Warm-up of independence MH is made twice at most: the second time from what the first has found. If fewer than 8 % of
the proposals are accepted then, NUTS makes all draws.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from integrand.infer.base import Callback, Matrix, Plan, Run, Sampler, Snapshot, Target
from integrand.infer.coordinates import Coordinates
from integrand.infer.independence_mh import IndependenceMH
from integrand.infer.modes import Mode
from integrand.infer.nuts import NUTS


@dataclass(frozen=True)
class DefaultSampler(Sampler):
    """Independence MH with NUTS as its fallback; `docs/evidence/speed.md` says which benchmark chose the numbers."""

    warps = True

    proposals: IndependenceMH = IndependenceMH()
    fallback: NUTS = NUTS()
    min_accepted: float = 0.08  # with fewer accepted, a draw of NUTS costs less per effective draw
    careful_accept: float = 0.9  # target acceptance of NUTS where proposals fit badly

    def between(self, modes: Sequence[Mode], broad: Sequence[Coordinates] = ()) -> "DefaultSampler":
        """Proposals from all of these modes, and from all of the prior."""
        return replace(self, proposals=self.proposals.between(modes, broad))

    def warmup(self, dimension: int, wanted: int) -> int:
        """That of independence MH."""
        return self.proposals.warmup(dimension, wanted)

    def pilot(self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback) -> Run:
        """The draws of the second half of a warm-up, while the step size still adapts; NUTS if few are accepted."""
        warmup = plan.but(warmup=2 * plan.draws, seed=(*plan.seed, 0))
        proposals = replace(self.proposals, enough_k_hat=math.inf)  # these draws only move Z: tails can wait
        adapted = proposals.warm_up(target, starts, coordinates, warmup, callback)
        if isinstance(adapted, Run):  # cut short
            return adapted
        if adapted.acceptance >= self.min_accepted and adapted.latest is not None:
            return adapted.latest
        return self.fallback.run(target, starts, coordinates, plan, callback)

    def run(self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback) -> Run:
        """All draws, by what the warm-up says is quicker."""
        adapted = None
        for attempt in (0, 1):
            seeds = [(*plan.seed, 10 * attempt + k) for k in (0, 2)]
            adapted = self.proposals.warm_up(
                target, starts, coordinates, plan.but(seed=seeds[0]), _after(callback, attempt * plan.warmup), adapted
            )
            if isinstance(adapted, Run):  # cut short
                return adapted._replace(chains=adapted.chains.first(0))
            if adapted.acceptance >= self.min_accepted:
                sampled = plan.but(seed=seeds[1])
                return self.proposals.sample(target, adapted, sampled, _after(callback, plan.warmup))
        assert adapted is not None
        careful = plan.but(target_accept=max(plan.target_accept, self.careful_accept), seed=(*plan.seed, 1))
        ends = _finite_starts(target, adapted.ends)
        run = self.fallback.run(target, ends, adapted.coordinates, careful, callback)
        note = f"{adapted.acceptance:.0%} of the independence proposals were accepted: NUTS made the final draws."
        return run._replace(notes=(note,)) if run.chains else run


def _finite_starts(target: Target, ends: Matrix) -> Matrix:
    """Ends that a trajectory can start from: where there is no gradient, another chain's end."""
    evaluated = [target.value_and_gradient(x) for x in ends]
    finite = np.array([bool(np.isfinite(value) and np.all(np.isfinite(gradient))) for value, gradient in evaluated])
    return np.where(finite[:, None], ends, ends[np.argmax(finite)])


def _after(callback: Callback, warmup: int) -> Callback:
    """A callback for chains that come after `warmup` draws."""

    def called(s: Snapshot) -> int | None:
        return callback(s._replace(done=warmup + s.done))

    return called
