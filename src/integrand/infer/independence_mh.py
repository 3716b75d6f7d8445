"""Independence Metropolis-Hastings with an HMC transition every few draws: few gradients per draw.

In coordinates η in which the density d is close to a standard normal, a proposal from a fixed density q costs one value
of d and no gradient. It does not depend on where the chain is, so the values of many proposals are computed together:

    η' ~ q,  accepted with probability min(1, [d(η') q(η)] / [d(η) q(η')]),    q = (1 - w) N(0, s² I) + w t_ν(0, s² I)

(an independence sampler, Tierney 1994). In tails where d/q is large, proposals are rarely accepted. A transition of HMC
with a few leapfrog steps leads out of there. Both leave d invariant, however poor q is. The t component bounds d/q
where the tails of d are a little longer than those of a Gaussian.

Coordinates and step size adapt during warm-up, from draws that are thrown away, and are then frozen.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import gammaln

from integrand.errors import NumericalError
from integrand.infer.base import Callback, Matrix, Plan, Run, Sampler, Snapshot, Target, Vector
from integrand.infer.chain_runner import DrawRecord, run_chains
from integrand.infer.coordinates import Coordinates, coordinates_from_draws
from integrand.infer.hmc import hmc_transition

# Warm-up has two stages: the second proposes from what the first has drawn.
STAGES = 2


class Mix(NamedTuple):
    """What one draw is made of."""

    proposals: int  # independence proposals
    hmc_every: int  # one draw in this many has an HMC transition


_WARMUP_MIX = Mix(proposals=3, hmc_every=3)


@dataclass(frozen=True)
class IndependenceMH(Sampler):
    """Options of the sampler; the benchmark named in `docs/evidence/speed.md` chose those without a reference."""

    warps = True

    t_share: float = 0.1  # w: the heavy-tailed share of q
    t_freedom: float = 5.0  # ν: tails of q fall as a power, yet moments that warm-up needs exist
    width: float = 1.1  # s: a little wider than the draws that q is fitted to, so that d/q stays bounded
    max_leapfrog: int = 4  # steps of an HMC transition, drawn uniformly from 1 to this
    step_jitter: float = 0.2  # relative; avoids periodic trajectories (Neal 2011, section 5.3.2)
    burn_in: float = 0.25  # share of the first stage that q is not fitted to
    first_step: float = 0.5
    step_decay: float = 0.6  # exponent of the Robbins-Monro gains; must lie in (1/2, 1]
    warmup_per_dimension: int = 7
    max_warmup_of_dimensions: int = 200
    warmup_mix: Mix = _WARMUP_MIX
    # By the share of proposals accepted in the last stage of warm-up. An HMC transition takes several gradients: where
    # q fits well it is rarely needed, and where q fits less well another proposal is worth more.
    mixes: tuple[tuple[float, Mix], ...] = ((0.5, Mix(3, 8)), (0.25, Mix(4, 6)), (0.0, Mix(3, 1)))

    def run(self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback) -> Run:
        """Warm up, then draw with everything frozen."""
        adapted = self.warm_up(target, starts, coordinates, plan.but(seed=(*plan.seed, 0)), callback)
        if isinstance(adapted, Run):
            return adapted._replace(chains=adapted.chains.first(0))
        return self.sample(target, adapted, plan.but(seed=(*plan.seed, 2)), callback)

    def warmup(self, dimension: int, wanted: int) -> int:
        """Equal stages, long enough for a covariance matrix of this dimension."""
        enough = min(self.warmup_per_dimension * dimension, self.max_warmup_of_dimensions)
        return STAGES * -(-max(wanted, enough) // STAGES)

    def warm_up(
        self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback
    ) -> "Adapted | Run":
        """Fit q and find a step size by `plan.warmup` draws per chain; the run of the last stage if it was cut short.

        The callback sees no draws; whatever number it returns ends the warm-up.
        """
        adapted = Adapted(coordinates, self.first_step, starts, _first_values(target, starts))
        count, done = -(-plan.warmup // STAGES), 0

        def without_draws(s: Snapshot) -> int | None:
            stop = callback(s._replace(chains=s.chains.first(0), done=done + s.done))
            return None if stop is None else s.chains.n_draws

        for stage in range(STAGES):
            adapt = functools.partial(self._adapted_log_step, plan.target_accept)
            stage_plan = plan.but(draws=count, seed=(*plan.seed, stage))
            run, steps = self._run(target, adapted, stage_plan, without_draws, adapt, self.warmup_mix)
            if run.interrupted or run.chains.n_draws < count:
                return run if stage == STAGES - 1 else run._replace(chains=run.chains.first(0))
            done += count
            adapted = adapted.refitted(run, int(self.burn_in * count) if stage == 0 else 0)
            adapted = adapted._replace(step=float(np.exp(np.mean(np.log(steps)))))
        return adapted

    def sample(self, target: Target, adapted: "Adapted", plan: Plan, callback: Callback) -> Run:
        """`plan.draws` draws per chain, from where warm-up ended, with q and step size as they are."""
        mix = next(mix for least, mix in self.mixes if adapted.acceptance >= least)
        return self._run(target, adapted, plan, callback, None, mix)[0]

    def _run(
        self,
        target: Target,
        adapted: "Adapted",
        plan: Plan,
        callback: Callback,
        adapt: "Callable[[_State, float], float] | None",
        mix: Mix,
    ) -> tuple[Run, Float[np.ndarray, " C"]]:
        """Chains from the ends of `adapted`, and the step size that each ended with."""
        coordinates = adapted.coordinates
        transitions = _Transitions(self, target, coordinates, adapt, mix)
        etas = coordinates.to_eta(adapted.ends)
        values = adapted.values + coordinates.log_jacobian(etas)
        log_step = math.log(adapted.step)
        states = [_State(eta, float(v), None, log_step, 0) for eta, v in zip(etas, values, strict=True)]

        def advance(chain: int, state: _State, first: int, count: int) -> tuple[_State, DrawRecord]:
            # The random numbers of a draw depend on its number alone.
            rngs = {
                number: np.random.default_rng([*plan.seed, chain, number]) for number in range(first, first + count)
            }
            with np.errstate(over="ignore", invalid="ignore"):  # a trajectory may diverge
                return transitions.draws(state, rngs)

        n = coordinates.dimension
        run = run_chains(advance, states, n, warmup=0, draws=plan.draws, parallel=plan.parallel, callback=callback)
        steps = run.chains.step_size[:, -1] if run.chains else np.full(len(states), adapted.step)
        return run._replace(evaluations=0, failures=0, warmup=plan.warmup), steps

    def _adapted_log_step(self, target_accept: float, state: "_State", acceptance: float) -> float:
        """The logarithm of the step size after a transition with this acceptance probability (Robbins & Monro 1951)."""
        return state.log_step + (acceptance - target_accept) / (state.transitions + 1) ** self.step_decay


class Adapted(NamedTuple):
    """What warm-up has fitted, and where its chains ended."""

    coordinates: Coordinates
    step: float
    ends: Matrix
    values: Float[np.ndarray, " C"]  # log densities at the ends
    acceptance: float = 0.0  # of independence proposals, in the last stage
    draws: Float[np.ndarray, "C n P"] | None = None  # all draws that q was fitted to
    latest: Run | None = None  # the last stage

    def refitted(self, run: Run, burn_in: int = 0) -> "Adapted":
        """q fitted again to all draws so far, those of `run` among them; chains go on where it ended."""
        chains = run.chains
        new = chains.x[:, burn_in:]
        x = new if self.draws is None else np.concatenate([self.draws, new], axis=1)
        return self._replace(
            coordinates=coordinates_from_draws(x.reshape(-1, x.shape[2]), self.coordinates, warp=True),
            ends=chains.x[:, -1],
            values=chains.log_density[:, -1],
            acceptance=float(chains.acceptance.mean()),
            draws=x,
            latest=run,
        )


class _State(NamedTuple):
    eta: np.ndarray
    value: float  # log density of η
    gradient: np.ndarray | None  # of it, if it is known
    log_step: float
    transitions: int  # of HMC so far


class _Proposed(NamedTuple):
    """A draw of q."""

    eta: Vector
    value: float  # log density of η; -inf where it fails
    log_q: float


class _Transitions:
    """Independence proposals and HMC transitions in fixed coordinates."""

    def __init__(self, options: IndependenceMH, target: Target, coordinates: Coordinates, adapt, mix: Mix):
        self.options, self.target, self.coordinates, self.adapt, self.mix = options, target, coordinates, adapt, mix
        self._log_density = coordinates.pull_back(target.value_and_gradient)
        self.q = Proposal(coordinates.dimension, options.t_share, options.t_freedom, options.width)

    def draws(self, state: _State, rngs: dict[int, np.random.Generator]) -> tuple[_State, DrawRecord]:
        """The state after some draws, each with its number and generator, and these draws."""
        n = self.mix.proposals
        proposed = self.propose([rng for rng in rngs.values() for _ in range(n)])
        etas, records = [], []
        for i, (number, rng) in enumerate(rngs.items()):
            state, record = self.draw(state, number, rng, proposed[i * n : (i + 1) * n])
            etas.append(state.eta)
            records.append(record)
        x, log_jacobians = self._to_x(etas)
        values, *others = (np.array(a) for a in zip(*records, strict=True))
        return state, DrawRecord(x, values - log_jacobians, *others)

    def propose(self, rngs: Sequence[np.random.Generator]) -> list[_Proposed]:
        """One draw of q from each generator, with the log density there."""
        etas = [self.q.draw(rng) for rng in rngs]
        x, log_jacobians = self._to_x(etas)
        values = self.target.values(x) + log_jacobians
        values = np.where(np.isfinite(values), values, -np.inf).tolist()
        return [_Proposed(eta, v, self.q.log_density(eta)) for eta, v in zip(etas, values, strict=True)]

    def draw(
        self, state: _State, number: int, rng: np.random.Generator, proposed: Sequence[_Proposed]
    ) -> tuple[_State, tuple]:
        """One draw: some proposals and every so often an HMC transition; with all that a record holds but x."""
        acceptances = []
        for proposal in proposed:
            state, acceptance = self.accept(state, proposal, rng)
            acceptances.append(acceptance)
        steps, diverged = 0, False
        if number % self.mix.hmc_every == self.mix.hmc_every - 1:
            steps = int(rng.integers(1, self.options.max_leapfrog + 1))
            state, diverged = self.hmc(state, steps, rng)
        # Independence proposals have no momentum, so there is no energy (NaN) whose mixing could be judged.
        acceptance = sum(acceptances) / len(acceptances)
        return state, (state.value, np.nan, acceptance, steps, diverged, math.exp(state.log_step), 0)

    def accept(self, state: _State, proposal: _Proposed, rng: np.random.Generator) -> tuple[_State, float]:
        """The accept rule: [d(η') q(η)] / [d(η) q(η')] on the log scale; also the acceptance probability."""
        log_ratio = (proposal.value - proposal.log_q) - (state.value - self.q.log_density(state.eta))
        acceptance = math.exp(min(0.0, log_ratio)) if np.isfinite(proposal.value) else 0.0
        if rng.random() < acceptance:
            state = state._replace(eta=proposal.eta, value=proposal.value, gradient=None)
        return state, acceptance

    def hmc(self, state: _State, n_leapfrog: int, rng: np.random.Generator) -> tuple[_State, bool]:
        """A transition of HMC, and whether it diverged."""
        value, gradient = state.value, state.gradient
        if gradient is None:
            value, gradient = self._value_and_gradient(state.eta)
        if not np.isfinite(value):  # values exist here, gradients do not: no trajectory can start or end here
            return state._replace(transitions=state.transitions + 1), True
        jitter = self.options.step_jitter
        step = math.exp(state.log_step) * rng.uniform(1.0 - jitter, 1.0 + jitter)
        eta, value, gradient, acceptance = hmc_transition(
            self._value_and_gradient, state.eta, value, gradient, step, n_leapfrog, rng
        )
        log_step = state.log_step if self.adapt is None else self.adapt(state, acceptance)
        return _State(eta, value, gradient, log_step, state.transitions + 1), acceptance == 0.0

    def _value_and_gradient(self, eta: Vector) -> tuple[float, Vector]:
        """Log density of η and its gradient; -inf where it fails."""
        value, gradient = self._log_density(eta)
        finite = np.isfinite(value) and np.all(np.isfinite(gradient))
        return (value, gradient) if finite else (-np.inf, np.zeros_like(eta))

    def _to_x(self, etas: Sequence[Vector]) -> tuple[np.ndarray, np.ndarray]:
        """x and the log Jacobian of each, one by one: a product of many rows rounds otherwise than one of few."""
        x, log_jacobians = zip(*(self.coordinates.to_x_with_log_jacobian(eta) for eta in etas), strict=True)
        return np.array(x), np.array(log_jacobians)


class Proposal(NamedTuple):
    """q = (1 - w) N(0, s² I) + w t_ν(0, s² I) in n dimensions."""

    n: int
    t_share: float = IndependenceMH.t_share
    t_freedom: float = IndependenceMH.t_freedom
    width: float = IndependenceMH.width

    def draw(self, rng: np.random.Generator) -> Vector:
        """One draw."""
        eta, nu = self.width * rng.standard_normal(self.n), self.t_freedom
        return eta / math.sqrt(rng.chisquare(nu) / nu) if rng.random() < self.t_share else eta

    def log_density(self, eta: Vector) -> float:
        """log q(η) + n log s: the constant cancels in the accept rule."""
        n, nu, square = self.n, self.t_freedom, float(eta @ eta) / self.width**2
        normal = -0.5 * n * math.log(2.0 * math.pi) - 0.5 * square
        t = gammaln(0.5 * (nu + n)) - gammaln(0.5 * nu) - 0.5 * n * math.log(nu * math.pi)
        t -= 0.5 * (nu + n) * math.log1p(square / nu)
        return float(np.logaddexp(math.log(1.0 - self.t_share) + normal, math.log(self.t_share) + t))


def _first_values(target: Target, starts: Matrix) -> Float[np.ndarray, " C"]:
    """The log density where chains start; where rounding makes one of the two ways fail, the other may succeed."""
    values = target.values(starts)
    values = [v if np.isfinite(v) else target.value_and_gradient(x)[0] for v, x in zip(values, starts, strict=True)]
    if not np.all(np.isfinite(values)):
        raise NumericalError("the log density is not finite where a chain should start: try other priors")
    return np.array(values)
