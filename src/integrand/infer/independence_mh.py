"""Independence Metropolis-Hastings with an HMC transition every few draws: few gradients per draw.

A proposal from a fixed density q costs one value of the density d and no gradient. It does not depend on where the
chain is, so the values of many proposals are computed together:

    x' ~ q,  accepted with probability min(1, [d(x') q(x)] / [d(x) q(x')])

(an independence sampler, Tierney 1994). q is a mixture over the modes of d with heavy tails (`mixture.py`), so chains
travel between modes by the same rule. Where d/q is large, proposals are rarely accepted. A transition of HMC with a few
leapfrog steps leads out of there, in the coordinates of a component that is chosen without a look at the state. Both
leave d invariant, however poor q is.

q and step size adapt during warm-up, from draws that are thrown away, and are then frozen. All proposals count in that,
the rejected ones by their importance weights (adaptive importance sampling, Cappé et al. 2008).
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from integrand.errors import NumericalError
from integrand.infer.base import Callback, Matrix, Plan, Proposals, Run, Sampler, Snapshot, Target, Vector
from integrand.infer.chain_runner import DrawRecord, run_chains
from integrand.infer.coordinates import Coordinates, coordinates_from_draws
from integrand.infer.evidence import evidence
from integrand.infer.hmc import hmc_transition
from integrand.infer.mixture import Mixture
from integrand.infer.modes import Mode

# Warm-up has two stages: the second proposes from what the first has drawn. One is enough where most proposals of the
# first are accepted; there are more where proposals do not cover the density yet.
STAGES, MORE_STAGES = 2, 3
# Steps of EM after each stage.
_EM_STEPS = 3


class Mix(NamedTuple):
    """What one draw is made of."""

    proposals: int  # independence proposals
    hmc_every: int  # one draw in this many has an HMC transition


_WARMUP_MIX, _GROUPED_MIX = Mix(proposals=3, hmc_every=3), Mix(proposals=12, hmc_every=3)


@dataclass(frozen=True)
class IndependenceMH(Sampler):
    """Options of the sampler; the benchmark named in `docs/evidence/speed.md` chose those without a reference."""

    warps = True

    modes: tuple[Mode, ...] = ()  # where the density has several: components of q to start from
    broad: tuple[Coordinates, ...] = ()  # of the last components, which may hold what is far from all modes
    enough_k_hat: float = 0.4  # of the weights of a stage: their variance is finite below 0.5
    max_leapfrog: int = 4  # steps of an HMC transition, drawn uniformly from 1 to this
    step_jitter: float = 0.2  # relative; avoids periodic trajectories (Neal 2011, section 5.3.2)
    burn_in: float = 0.25  # share of the first stage that q is not fitted to
    first_step: float = 0.5
    step_decay: float = 0.6  # exponent of the Robbins-Monro gains; must lie in (1/2, 1]
    warmup_per_dimension: int = 7
    max_warmup_of_dimensions: int = 200
    warmup_mix: Mix = _WARMUP_MIX
    grouped_mix: Mix = _GROUPED_MIX
    well_accepted: float = 0.5  # share of proposals; from there one stage of warm-up and one proposal are enough
    # By the share of proposals accepted in the last stage of warm-up. With the share a, k proposals per draw give
    # (1 - (1-a)^k) / (1 + (1-a)^k) / k effective draws per value: one is best. But an HMC transition takes several
    # gradients: it is rarely needed where q fits well. Where q fits less well more proposals should lie between two.
    mixes: tuple[tuple[float, Mix], ...] = ((0.5, Mix(1, 32)), (0.25, Mix(2, 12)), (0.0, Mix(3, 1)))

    def between(self, modes: Sequence[Mode], broad: Sequence[Coordinates] = ()) -> "IndependenceMH":
        """Proposals from all of these modes, and from all of the prior."""
        return replace(self, modes=tuple(modes), broad=tuple(broad))

    def run(self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback) -> Run:
        """Warm up, then draw with everything frozen."""
        adapted = self.warm_up(target, starts, coordinates, plan.but(seed=(*plan.seed, 0)), callback)
        if isinstance(adapted, Run):
            return adapted._replace(chains=adapted.chains.first(0))

        def after_warm_up(s: Snapshot) -> int | None:
            return callback(s._replace(done=plan.warmup + s.done))

        return self.sample(target, adapted, plan.but(seed=(*plan.seed, 2)), after_warm_up)

    def warmup(self, dimension: int, wanted: int) -> int:
        """Equal stages, long enough for a covariance matrix of this dimension."""
        enough = min(self.warmup_per_dimension * dimension, self.max_warmup_of_dimensions)
        return STAGES * -(-max(wanted, enough) // STAGES)

    def first_mixture(self, coordinates: Coordinates) -> Mixture:
        """Around the coordinates, or over the modes where there are several."""
        if len(self.modes) < 2:
            return Mixture.over([coordinates], [0.0], self.broad)
        among, masses = [m.coordinates for m in self.modes], [m.log_mass for m in self.modes]
        if coordinates.warp is not None:  # of draws: they know more than curvatures do
            among, masses = [coordinates, *among], [float(np.logaddexp.reduce(masses)), *masses]
        return Mixture.over(among, masses, self.broad)

    def warm_up(
        self,
        target: Target,
        starts: Matrix,
        coordinates: Coordinates,
        plan: Plan,
        callback: Callback,
        before: "Adapted | None" = None,
    ) -> "Adapted | Run":
        """Fit q and find a step size by `plan.warmup` draws per chain; the run of the last stage if it was cut short.

        The callback sees no draws; whatever number it returns ends the warm-up. With what an earlier warm-up adapted
        `before`, this one goes on from there.
        """
        adapted = before or Adapted(
            coordinates, self.first_mixture(coordinates), self.first_step, starts, _first_values(target, starts)
        )
        count, done = -(-plan.warmup // STAGES), 0
        # Of groups of plausible points, most of which hold next to nothing of the density, more has to be learned.
        groups = len(self.broad) > 1
        mix = self.grouped_mix if groups else self.warmup_mix

        def without_draws(s: Snapshot) -> int | None:
            stop = callback(s._replace(chains=s.chains.first(0), done=min(done + s.done, plan.warmup)))
            return None if stop is None else s.chains.n_draws

        for stage in range(STAGES + MORE_STAGES):
            fits = stage > 0 and adapted.k_hat <= self.enough_k_hat
            if fits and (stage >= STAGES or (adapted.acceptance >= self.well_accepted and not groups)):
                break
            adapt = functools.partial(self._adapted_log_step, plan.target_accept)
            stage_plan = plan.but(draws=count, seed=(*plan.seed, stage))
            run, steps = self._run(target, adapted, stage_plan, without_draws, adapt, mix)
            if run.interrupted or run.chains.n_draws < count:
                return run if stage >= STAGES - 1 else run._replace(chains=run.chains.first(0))
            done += count
            adapted = adapted.refitted(run, int(self.burn_in * count) if stage == 0 and before is None else 0)
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
        transitions = _Transitions(self, target, adapted.mixture, adapt, mix)
        log_step = math.log(adapted.step)
        log_q = adapted.mixture.log_density(adapted.ends)
        states = [
            _State(x, float(v), float(q), None, log_step, 0)
            for x, v, q in zip(adapted.ends, adapted.values, log_q, strict=True)
        ]
        proposed: list[list[Proposals]] = [[] for _ in states]

        def advance(chain: int, state: _State, first: int, count: int) -> tuple[_State, DrawRecord]:
            # The random numbers of a draw depend on its number alone.
            rngs = {
                number: np.random.default_rng([*plan.seed, chain, number]) for number in range(first, first + count)
            }
            with np.errstate(over="ignore", invalid="ignore"):  # a trajectory may diverge
                state, record, proposals = transitions.draws(state, rngs)
            proposed[chain].append(proposals)
            return state, record

        n = target.dimension
        run = run_chains(advance, states, n, warmup=0, draws=plan.draws, parallel=plan.parallel, callback=callback)
        steps = run.chains.step_size[:, -1] if run.chains else np.full(len(states), adapted.step)
        kept = _first(proposed, run.chains.n_draws * mix.proposals)
        return run._replace(evaluations=0, failures=0, warmup=plan.warmup, proposals=kept), steps

    def _adapted_log_step(self, target_accept: float, state: "_State", acceptance: float) -> float:
        """The logarithm of the step size after a transition with this acceptance probability (Robbins & Monro 1951)."""
        return state.log_step + (acceptance - target_accept) / (state.transitions + 1) ** self.step_decay


def _first(proposed: Sequence[Sequence[Proposals]], n: int) -> Proposals | None:
    """The first n proposals of each chain; None without any."""
    if n == 0:
        return None
    chains = [functools.reduce(Proposals.then, parts) for parts in proposed]
    return functools.reduce(Proposals.then, [Proposals(*(a[:n] for a in chain)) for chain in chains])


class Adapted(NamedTuple):
    """What warm-up has fitted, and where its chains ended."""

    coordinates: Coordinates  # of all draws together
    mixture: Mixture
    step: float
    ends: Matrix
    values: Float[np.ndarray, " C"]  # log densities at the ends
    acceptance: float = 0.0  # of independence proposals, in the last stage
    draws: Float[np.ndarray, "C n P"] | None = None  # all draws that q was fitted to
    latest: Run | None = None  # the last stage
    stages: tuple[tuple[Mixture, Proposals], ...] = ()  # what each stage proposed from, and its proposals

    @property
    def k_hat(self) -> float:
        """Of the proposals of the last stage."""
        result = evidence(self.stages[-1][1])
        return math.inf if result is None else result.k_hat

    def refitted(self, run: Run, burn_in: int = 0) -> "Adapted":
        """q fitted again to all draws and proposals so far, those of `run` among them; chains go on where it ended."""
        chains = run.chains
        assert run.proposals is not None
        new = chains.x[:, burn_in:]
        x = new if self.draws is None else np.concatenate([self.draws, new], axis=1)
        stages = (*self.stages, (self.mixture, run.proposals))
        flat = x.reshape(-1, x.shape[2])
        return self._replace(
            coordinates=coordinates_from_draws(flat, self.coordinates, warp=True),
            mixture=_refitted(self.mixture, flat, *_weighted(stages)),
            ends=chains.x[:, -1],
            values=chains.log_density[:, -1],
            acceptance=float(chains.acceptance.mean()),
            draws=x,
            latest=run,
            stages=stages,
        )


def _refitted(mixture: Mixture, draws: np.ndarray, proposed: np.ndarray, log_weights: np.ndarray) -> Mixture:
    """Some steps of the EM algorithm."""
    for _ in range(_EM_STEPS):
        mixture = mixture.refitted(draws, proposed, log_weights)
    return mixture


def _weighted(stages: Sequence[tuple[Mixture, Proposals]]) -> tuple[np.ndarray, np.ndarray]:
    """All proposals with log d / q, q being the mixture of what each stage proposed from (Owen & Zhou 2000)."""
    proposals = functools.reduce(Proposals.then, [p for _, p in stages])
    parts = [m.log_density(proposals.x) + math.log(len(p.log_q)) for m, p in stages]
    log_q = np.asarray(logsumexp(parts, axis=0)) - math.log(len(proposals.log_q))
    return proposals.x, proposals.log_density - log_q


class _State(NamedTuple):
    x: np.ndarray
    value: float  # log density of x
    log_q: float
    gradient: np.ndarray | None  # of the log density, if it is known
    log_step: float
    transitions: int  # of HMC so far


class _Transitions:
    """Independence proposals and HMC transitions with a fixed q."""

    def __init__(self, options: IndependenceMH, target: Target, q: Mixture, adapt, mix: Mix):
        self.options, self.target, self.q, self.adapt, self.mix = options, target, q, adapt, mix

    def draws(self, state: _State, rngs: dict[int, np.random.Generator]) -> tuple[_State, DrawRecord, Proposals]:
        """The state after some draws, each with its number and generator, these draws, and what was proposed."""
        n = self.mix.proposals
        proposed = self.propose([rng for rng in rngs.values() for _ in range(n)])
        records = []
        for i, (number, rng) in enumerate(rngs.items()):
            state, record = self.draw(state, number, rng, Proposals(*(a[i * n : (i + 1) * n] for a in proposed)))
            records.append(record)
        return state, DrawRecord(*(np.array(a) for a in zip(*records, strict=True))), proposed

    def propose(self, rngs: Sequence[np.random.Generator]) -> Proposals:
        """One draw of q from each generator, with the log density there."""
        x = np.array([self.q.draw(rng) for rng in rngs])
        values = self.target.values(x)
        return Proposals(x, np.where(np.isfinite(values), values, -np.inf), self.q.log_density(x))

    def draw(self, state: _State, number: int, rng: np.random.Generator, proposed: Proposals) -> tuple[_State, tuple]:
        """One draw: some proposals and every so often an HMC transition; with all that a record holds."""
        acceptances = []
        for x, value, log_q in zip(proposed.x, proposed.log_density.tolist(), proposed.log_q.tolist(), strict=True):
            state, acceptance = self.accept(state, state._replace(x=x, value=value, log_q=log_q, gradient=None), rng)
            acceptances.append(acceptance)
        steps, diverged = 0, False
        if number % self.mix.hmc_every == self.mix.hmc_every - 1:
            steps = int(rng.integers(1, self.options.max_leapfrog + 1))
            state, diverged = self.hmc(state, steps, rng)
        # Independence proposals have no momentum, so there is no energy (NaN) whose mixing could be judged.
        acceptance = sum(acceptances) / len(acceptances)
        return state, (state.x, state.value, np.nan, acceptance, steps, diverged, math.exp(state.log_step), 0)

    def accept(self, state: _State, proposal: _State, rng: np.random.Generator) -> tuple[_State, float]:
        """The accept rule: [d(x') q(x)] / [d(x) q(x')] on the log scale; also the acceptance probability."""
        log_ratio = (proposal.value - proposal.log_q) - (state.value - state.log_q)
        acceptance = math.exp(min(0.0, log_ratio)) if np.isfinite(proposal.value) else 0.0
        return (proposal if rng.random() < acceptance else state), acceptance

    def hmc(self, state: _State, n_leapfrog: int, rng: np.random.Generator) -> tuple[_State, bool]:
        """A transition of HMC in the coordinates of a component, and whether it diverged."""
        chosen = self.q.choose(rng, of_modes=True)
        coordinates = self.q.components[chosen].coordinates
        value, gradient = state.value, state.gradient
        if gradient is None:
            value, gradient = self._value_and_gradient(state.x)
        eta = coordinates.to_eta(state.x)
        if not (np.isfinite(value) and np.all(np.isfinite(eta))):
            # Values exist here, gradients do not: no trajectory can start or end here.
            return state._replace(transitions=state.transitions + 1), True
        begin, latest = state.x, (state.x, value, gradient)

        def log_density(eta: Vector) -> tuple[float, Vector]:
            nonlocal latest
            x = coordinates.to_x(eta)
            latest = (x, *self._value_and_gradient(x))
            return coordinates.pull_back(lambda _: latest[1:])(eta)

        jitter = self.options.step_jitter
        step = math.exp(state.log_step) * rng.uniform(1.0 - jitter, 1.0 + jitter)
        first = coordinates.pull_back(lambda _: latest[1:])(eta)
        end, _, _, acceptance = hmc_transition(log_density, eta, *first, step, n_leapfrog, rng)
        log_step = state.log_step if self.adapt is None else self.adapt(state, acceptance)
        state = state._replace(value=value, gradient=gradient, log_step=log_step, transitions=state.transitions + 1)
        if end is not eta:
            x, value, gradient = latest
            log_q = float(self.q.log_density(x[None])[0])
            state = state._replace(x=x, value=value, gradient=gradient, log_q=log_q)
        # In the coordinates of another mode a trajectory ends in nothing: that says nothing of the density.
        return state, acceptance == 0.0 and int(np.argmax(self.q.responsibilities(begin[None])[0])) == chosen

    def _value_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Log density of x and its gradient; -inf where it fails."""
        value, gradient = self.target.value_and_gradient(x)
        finite = np.isfinite(value) and np.all(np.isfinite(gradient))
        return (value, gradient) if finite else (-np.inf, np.zeros_like(x))


def _first_values(target: Target, starts: Matrix) -> Float[np.ndarray, " C"]:
    """The log density where chains start; where rounding makes one of the two ways fail, the other may succeed."""
    values = target.values(starts)
    values = [v if np.isfinite(v) else target.value_and_gradient(x)[0] for v, x in zip(values, starts, strict=True)]
    if not np.all(np.isfinite(values)):
        raise NumericalError("the log density is not finite where a chain should start: try other priors")
    return np.array(values)
