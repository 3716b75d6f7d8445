"""Jumps to where a fitted density proposes, and drifts along gradients between them: few gradients for a draw.

Where draws have told what a density looks like, there are coordinates η in which most of it is close to a standard
normal. Then a *jump* takes one value of the log density d and no gradient, and forgets where it came from (so values of
many proposals can be computed together, before it is known which are accepted):

    η' ~ q,  accepted with probability min(1, [d(η') q(η)] / [d(η) q(η')]),    q = (1 - w) N(0, s² I) + w t_ν(0, s² I)

(an independence sampler; Tierney 1994). From a place in the tails that q knows little of, jumps are hardly accepted: a
*drift*, a transition of HMC with a few leapfrog steps, leads out of it. Both leave the density invariant, however
poor q is; the long tails of t keep d / q bounded where d has tails that are a little longer than a Gaussian's.

What q, the coordinates and the step size are is learned while tuning, from draws that are thrown away, and then frozen.
Once in a run q may be fitted anew to the draws so far (`refitted`): those before and those after are each drawn by a
kernel that leaves the density invariant.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import gammaln

from integrand.errors import NumericalError
from integrand.infer.chains import LogDensity, SampledRun, Watch, Watcher
from integrand.infer.leapfrog import transition
from integrand.infer.metric import Whitening, whitening_from_draws
from integrand.infer.side_by_side import run_side_by_side
from integrand.infer.slots import Slot

# w, ν and s of q: a little wider than the draws it was fitted to, with a share of long tails.
_SHARE, _FREEDOM, _WIDTH = 0.1, 5.0, 1.1
# Leapfrog steps of a drift at most (drawn anew each time), and how far its step size strays.
_MOST_LEAPS, _STRAY = 4, 0.2
# While tuning coordinates are fitted twice, and of the draws of the first stage the first quarter does not count.
STAGES, _BURN_IN = 2, 0.25
_FIRST_STEP, _FORGETTING = 0.5, 0.6


class Mix(NamedTuple):
    """What a draw is made of."""

    jumps: int
    every: int  # one draw in so many has a drift


# While tuning; then by the share of jumps that is accepted. A drift takes several gradients: it is seldom where jumps
# can do without it, and where fewer are accepted another of them, a mere value, is worth more.
_TUNING = Mix(jumps=3, every=3)
_MIXES = ((0.5, Mix(jumps=3, every=8)), (0.25, Mix(jumps=4, every=6)), (0.0, Mix(jumps=3, every=1)))

Values = Callable[[Float[np.ndarray, "K P"]], Float[np.ndarray, " K"]]


class Tuned(NamedTuple):
    """What tuning found, and where its chains ended."""

    whitening: Whitening
    step: float
    ends: Float[np.ndarray, "C P"]
    values: Float[np.ndarray, " C"]  # log density at the ends
    acceptance: float = 0.0  # of jumps, in the last stage
    seen: Float[np.ndarray, "C n P"] | None = None  # all draws that q was fitted to
    latest: SampledRun | None = None  # the run of the last stage

    @property
    def mix(self) -> Mix:
        """What draws are made of from here on."""
        return next(mix for least, mix in _MIXES if self.acceptance >= least)


class _State(NamedTuple):
    eta: np.ndarray
    value: float  # log density of η
    slope: np.ndarray | None  # of it, if it is known
    log_step: float
    drifts: int  # so far


def tune_jumps(
    log_density: LogDensity,
    values: Values,
    starts: Float[np.ndarray, "C P"],
    whitening: Whitening,
    *,
    draws: int,
    seed: Sequence[int],
    bent: bool,
    target_accept: float = 0.8,
    parallel: int = 2,
    watch: Watcher | None = None,
) -> Tuned | SampledRun:
    """Fit q and find a step size with `draws` draws a chain; where that was cut short, the run of the last stage.

    Parameters
    ----------
    log_density, values
        Of x, with its gradient; of several x, without. Called from several threads.
    whitening
        The coordinates to begin with; if `bent`, those fitted to the draws may be bent.
    watch
        Sees no draws, only how many slots are done; whatever number it returns ends the run.
    """
    told = Tuned(whitening, _FIRST_STEP, starts, _first_values(log_density, values, starts))
    count = -(-draws // STAGES)
    done = 0

    def only_slots(w: Watch) -> int | None:
        over = None if watch is None else watch(w._replace(chains=w.chains.first(0), done=done + w.done))
        return None if over is None else w.chains.n_draws

    for stage in range(STAGES):
        adapt = functools.partial(_adapted, target_accept)
        run, steps = _run(log_density, values, told, count, [*seed, stage], parallel, only_slots, adapt, _TUNING)
        if run.interrupted or run.chains.n_draws < count:
            return run if stage == STAGES - 1 else run._replace(chains=run.chains.first(0))
        done += count
        told = refitted(told, run, bent, int(_BURN_IN * count) if stage == 0 else 0)
        told = told._replace(step=float(np.exp(np.mean(np.log(steps)))))
    return told


def refitted(tuned: Tuned, run: SampledRun, bent: bool, burn_in: int = 0) -> Tuned:
    """q fitted anew to all draws so far, those of a later run among them; chains go on where that one ended."""
    chains = run.chains
    new = chains.x[:, burn_in:]
    x = new if tuned.seen is None else np.concatenate([tuned.seen, new], axis=1)
    return tuned._replace(
        whitening=whitening_from_draws(x.reshape(-1, x.shape[2]), tuned.whitening, bent),
        ends=chains.x[:, -1],
        values=chains.log_density[:, -1],
        acceptance=float(chains.acceptance.mean()),
        seen=x,
        latest=run,
    )


def sample_jumps(
    log_density: LogDensity,
    values: Values,
    tuned: Tuned,
    *,
    draws: int,
    seed: Sequence[int],
    parallel: int = 2,
    watch: Watcher | None = None,
) -> SampledRun:
    """Draw from exp(log_density), one chain from each of the ends of tuning."""
    return _run(log_density, values, tuned, draws, seed, parallel, watch, None, tuned.mix)[0]


def _run(
    log_density: LogDensity,
    values: Values,
    tuned: Tuned,
    draws: int,
    seed: Sequence[int],
    parallel: int,
    watch: Watcher | None,
    adapt: Callable[[_State, float], float] | None,
    mix: Mix,
) -> tuple[SampledRun, Float[np.ndarray, " C"]]:
    """Chains from the ends of `tuned`, and the step size that each ended with."""
    whitening = tuned.whitening
    kernel = _Kernel(log_density, values, whitening, adapt, mix)
    etas = whitening.to_eta(tuned.ends)
    here = tuned.values + whitening.log_jacobian(etas)
    states = [_State(eta, float(v), None, math.log(tuned.step), 0) for eta, v in zip(etas, here, strict=True)]

    def advance(chain: int, state: _State, first: int, count: int) -> tuple[_State, Slot]:
        # What a slot draws depends on its number alone.
        rngs = {number: np.random.default_rng([*seed, chain, number]) for number in range(first, first + count)}
        with np.errstate(over="ignore", invalid="ignore"):  # of a drift that goes astray
            return kernel.slots(state, rngs)

    n = len(whitening.centre)
    run = run_side_by_side(advance, states, n, tune=0, draws=draws, parallel=parallel, watch=watch)
    steps = run.chains.step_size[:, -1] if run.chains.n_draws else np.full(len(states), tuned.step)
    return run, steps


def _first_values(log_density: LogDensity, values: Values, starts: Float[np.ndarray, "C P"]) -> Float[np.ndarray, " C"]:
    """The log density where chains start; on the brink of what can be computed one of the two may fail."""
    found = values(starts)
    found = np.array([v if np.isfinite(v) else log_density(x)[0] for v, x in zip(found, starts, strict=True)])
    if not np.all(np.isfinite(found)):
        raise NumericalError("the log density is not finite where a chain should start: try other priors")
    return found


def _adapted(target: float, state: _State, chance: float) -> float:
    """The logarithm of the step size after a drift whose chance of acceptance was this (Robbins & Monro 1951)."""
    return state.log_step + (chance - target) / (state.drifts + 1) ** _FORGETTING


class _Jump(NamedTuple):
    """A proposal of q."""

    eta: Float[np.ndarray, " P"]
    value: float  # log density of η; -inf where it fails
    log_q: float


class _Kernel:
    """Jumps and drifts in the coordinates of a whitening."""

    def __init__(self, log_density: LogDensity, values: Values, whitening: Whitening, adapt, mix: Mix):
        self.whitening, self.adapt, self.mix = whitening, adapt, mix
        self._values, self._pulled_back = values, whitening.pulled_back(log_density)
        self.proposal = Proposal(len(whitening.centre))

    def here(self, eta: np.ndarray) -> tuple[float, np.ndarray]:
        """Log density of η and its gradient; -inf where it fails."""
        value, slope = self._pulled_back(eta)
        good = np.isfinite(value) and np.all(np.isfinite(slope))
        return (value, slope) if good else (-np.inf, np.zeros_like(eta))

    def slots(self, state: _State, rngs: dict[int, np.random.Generator]) -> tuple[_State, Slot]:
        """The state after some draws, each with its number and generator, and these draws."""
        n = self.mix.jumps
        proposed = self.proposed([rng for rng in rngs.values() for _ in range(n)])
        etas, told = [], []
        for i, (number, rng) in enumerate(rngs.items()):
            state, numbers = self.slot(state, number, rng, proposed[i * n : (i + 1) * n])
            etas.append(state.eta)
            told.append(numbers)
        x, log_jacobians = self.placed(etas)
        values, *others = (np.array(a) for a in zip(*told, strict=True))
        return state, Slot(x, values - log_jacobians, *others)

    def proposed(self, rngs: Sequence[np.random.Generator]) -> list[_Jump]:
        """One proposal from each generator, with the log density there."""
        etas = [self.proposal.draw(rng) for rng in rngs]
        x, log_jacobians = self.placed(etas)
        values = self._values(x) + log_jacobians
        values = np.where(np.isfinite(values), values, -np.inf).tolist()
        return [_Jump(eta, v, self.proposal.log_density(eta)) for eta, v in zip(etas, values, strict=True)]

    def placed(self, etas: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """x and the log Jacobian of each; one by one, for a product of many rounds otherwise than one of few."""
        x, log_jacobians = zip(*(self.whitening.placed(eta) for eta in etas), strict=True)
        return np.array(x), np.array(log_jacobians)

    def slot(
        self, state: _State, number: int, rng: np.random.Generator, proposed: Sequence[_Jump]
    ) -> tuple[_State, tuple]:
        """One draw, some jumps and every so often a drift, and all that a `Slot` has but x."""
        chances = []
        for jump in proposed:
            state, chance = self.jump(state, jump, rng)
            chances.append(chance)
        steps, diverged = 0, False
        if number % self.mix.every == self.mix.every - 1:
            steps = int(rng.integers(1, _MOST_LEAPS + 1))
            state, diverged = self.drift(state, steps, rng)
        # Jumps have no momentum: there is no energy whose mixing could be judged.
        acceptance = sum(chances) / len(chances)
        return state, (state.value, np.nan, acceptance, steps, diverged, math.exp(state.log_step), 0)

    def jump(self, state: _State, to: _Jump, rng: np.random.Generator) -> tuple[_State, float]:
        """To a proposal, or not, and the chance of it."""
        # [d(η') q(η)] / [d(η) q(η')] on the log scale.
        log_ratio = (to.value - to.log_q) - (state.value - self.proposal.log_density(state.eta))
        chance = math.exp(min(0.0, log_ratio)) if np.isfinite(to.value) else 0.0
        if rng.random() < chance:
            state = state._replace(eta=to.eta, value=to.value, slope=None)
        return state, chance

    def drift(self, state: _State, leaps: int, rng: np.random.Generator) -> tuple[_State, bool]:
        """A transition of HMC, and whether it went astray."""
        value, slope = self.here(state.eta) if state.slope is None else (state.value, state.slope)
        if not np.isfinite(value):  # on the brink of what can be computed: no drift leads there either
            return state._replace(drifts=state.drifts + 1), True
        step = math.exp(state.log_step) * rng.uniform(1.0 - _STRAY, 1.0 + _STRAY)
        eta, value, slope, chance = transition(self.here, state.eta, value, slope, step, leaps, rng)
        log_step = state.log_step if self.adapt is None else self.adapt(state, chance)
        return _State(eta, value, slope, log_step, state.drifts + 1), chance == 0.0


class Proposal(NamedTuple):
    """q in so many dimensions."""

    n: int

    def draw(self, rng: np.random.Generator) -> Float[np.ndarray, " P"]:
        """One draw."""
        eta = _WIDTH * rng.standard_normal(self.n)
        return eta / math.sqrt(rng.chisquare(_FREEDOM) / _FREEDOM) if rng.random() < _SHARE else eta

    def log_density(self, eta: Float[np.ndarray, " P"]) -> float:
        """log q(η), of densities in η / s."""
        n, nu, square = self.n, _FREEDOM, float(eta @ eta) / _WIDTH**2
        normal = -0.5 * n * math.log(2.0 * math.pi) - 0.5 * square
        t = gammaln(0.5 * (nu + n)) - gammaln(0.5 * nu) - 0.5 * n * math.log(nu * math.pi)
        t -= 0.5 * (nu + n) * math.log1p(square / nu)
        return float(np.logaddexp(math.log(1.0 - _SHARE) + normal, math.log(_SHARE) + t))
