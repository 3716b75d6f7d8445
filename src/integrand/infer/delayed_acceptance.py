"""Delayed acceptance: a cheap surrogate of the density proposes, one exact value per draw accepts or rejects.

The surrogate is the log density to third order around its mode, from some gradients of it:

    c(x) = v + gᵀδ + δᵀHδ / 2 + Σ_ij W_ij τ_i² τ_j,        x = centre + F δ,    τ_i = δ_i / (1 + (δ_i / R_i)⁴)^¼

H and W come from gradients one standard deviation to either side in each of the P directions of the coordinates: 2 P of
them give all second derivatives, and of the third ones all but those in three different directions. Beyond R_i a
coordinate takes no further part in the third order, which would make c rise without end there.

To this ThirdOrder adds heavier tails, Σ log((1 - w) + w t(δ_i) / N(δ_i)): where d has longer tails than c, as along a
lengthscale that does not matter, few proposals would go there and chains would stay long.

A proposal is the end of some HMC transitions that leave c invariant and reversible. It is accepted with probability
min(1, [d(x') c(x)] / [d(x) c(x')]), which leaves the exact density d invariant, however poor c is (Christen & Fox
2005).
"""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from integrand.errors import NumericalError
from integrand.infer.base import Callback, Matrix, Plan, Run, Sampler, Snapshot, Target
from integrand.infer.chain_runner import DrawRecord, run_chains
from integrand.infer.coordinates import Coordinates
from integrand.infer.hmc import hmc_transition
from integrand.infer.nuts import NUTS
from integrand.infer.optimise import LogDensity, Vector, maximise_lbfgs

# R_i at most, in standard deviations; and the share of the second order that the third may take back in a coordinate.
_MAX_REACH, _MAX_SHARE = 4.0, 0.8
# The share of t tails in the surrogate, ν of them, and the standard deviations beyond which they grow no more.
_TAIL_SHARE, _TAIL_FREEDOM, _TAIL_END = 0.1, 3.0, 5.0
# Smallest curvature, of 1 in whitened coordinates: c has to fall in every direction.
_MIN_CURVATURE = 0.1
# Newton's method ends when it promises less than this (nats), or after this many gradients.
_NEWTON_GAIN, _NEWTON_GRADIENTS = 0.02, 8
# Where it still promises a nat then, L-BFGS goes on for this many gradients.
_LBFGS_GAIN, _LBFGS_GRADIENTS = 1.0, 40
# A chain whose end is this far below the mode, per dimension and besides, has left the region of the surrogate.
_IMPLAUSIBLE_NATS, _IMPLAUSIBLE_NATS_PER_DIMENSION = 100.0, 10.0


class Expansion(NamedTuple):
    """c(x), in whitened coordinates."""

    coordinates: Coordinates
    value: float  # v, at the mode
    gradient: Vector  # g
    H: Float[np.ndarray, "P P"]
    W: Float[np.ndarray, "P P"]
    reach: Vector  # R

    def value_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """c(x) and its gradient."""
        delta = self.coordinates.to_eta(x)
        flat = 1.0 + (delta / self.reach) ** 4
        tau = delta * flat**-0.25
        square, Hdelta, Wtau = tau * tau, self.H @ delta, self.W @ tau
        value = self.value + self.gradient @ delta + 0.5 * (delta @ Hdelta) + square @ Wtau
        gradient = self.gradient + Hdelta + flat**-1.25 * (2.0 * tau * Wtau + self.W.T @ square)
        return float(value), np.linalg.solve(self.coordinates.factor.T, gradient)


class ThirdOrder(Target):
    """The third-order expansion of a density around its mode; made when it is first evaluated."""

    def __init__(self, exact: Target, coordinates: Coordinates):
        self.exact, self.coordinates = exact, coordinates
        self.n_theta, self.dimension, self.parallel = exact.n_theta, exact.dimension, exact.parallel
        self.counter = exact.counter

    @functools.cached_property
    def expansion(self) -> Expansion:
        """c(x), by gradients of the exact density."""
        log_density = self.exact.value_and_gradient
        return expansion_around(log_density, centred_at_mode(log_density, self.coordinates))

    @functools.cached_property
    def _sds(self) -> Vector:
        """Of each whitened coordinate, by the second order alone."""
        return np.sqrt(np.diag(np.linalg.inv(-self.expansion.H)))

    def value_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """c(x) with heavier tails, and its gradient."""
        value, gradient = self.expansion.value_and_gradient(x)
        coordinates = self.expansion.coordinates
        more, slope = heavier_tails(coordinates.to_eta(x) / self._sds)
        return value + more, gradient + np.linalg.solve(coordinates.factor.T, slope / self._sds)


def heavier_tails(z: Vector) -> tuple[float, Vector]:
    """Σ log((1 - w) + w t(z_i) / N(z_i)): with it a normal density has a share w of t tails; and the gradient.

    Beyond five standard deviations it rises no more: directions are not quite independent, and c has to fall in all.
    """
    nu, near = _TAIL_FREEDOM, np.clip(z, -_TAIL_END, _TAIL_END)
    constant = math.lgamma(0.5 * (nu + 1.0)) - math.lgamma(0.5 * nu) + 0.5 * math.log(2.0 / nu)
    ratio = np.exp(constant - 0.5 * (nu + 1.0) * np.log1p(near**2 / nu) + 0.5 * near**2)
    total = 1.0 - _TAIL_SHARE + _TAIL_SHARE * ratio
    slope = np.where(z == near, _TAIL_SHARE * ratio * (near - (nu + 1.0) * near / (nu + near**2)) / total, 0.0)
    return float(np.sum(np.log(total))), slope


def expansion_around(log_density: LogDensity, coordinates: Coordinates) -> Expansion:
    """c(x) of a log density whose mode is near the centre of the coordinates: 2 P + 1 gradients of it.

    Where a side cannot be computed, the density is taken to curve as the coordinates say.
    """
    centre, F = coordinates.centre, coordinates.factor
    steps = np.eye(len(centre))

    def gradient_at(delta: np.ndarray) -> np.ndarray:
        value, gradient = log_density(centre + F @ delta)
        finite = np.isfinite(value) and np.all(np.isfinite(gradient))
        return F.T @ gradient if finite else np.full(len(delta), np.nan)

    value, gradient = log_density(centre)
    if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
        raise NumericalError("the density is not finite where its mode should be: use fewer inducing points")
    slope = F.T @ gradient
    forward, backward = (np.array([gradient_at(sign * d) for d in steps]) for sign in (1.0, -1.0))
    known = np.all(np.isfinite(forward + backward), axis=1)
    H, third = (
        np.where(known[:, None], a, 0.0) for a in (0.5 * (forward - backward), forward + backward - 2.0 * slope)
    )
    # A mixed derivative is known from either of its directions: the mean of those there are.
    H = (H + H.T) / np.maximum(1.0, known[:, None] + known.astype(float)) - np.diag(~known + 0.0)
    curvature, directions = np.linalg.eigh(-H)
    H = -(directions * np.maximum(curvature, _MIN_CURVATURE)) @ directions.T
    # δ_i³ is once among the terms of third order, δ_i² δ_j three times; all are divided by six.
    W = third * np.where(steps == 1.0, 1.0 / 6.0, 0.5)
    skewed = np.maximum(np.abs(np.diag(W)), 1e-300)
    return Expansion(
        coordinates, float(value), slope, H, W, np.minimum(_MAX_REACH, -0.5 * _MAX_SHARE * np.diag(H) / skewed)
    )


def centred_at_mode(log_density: LogDensity, coordinates: Coordinates) -> Coordinates:
    """The coordinates with their centre moved to the mode, by Newton's method or else L-BFGS; never downhill."""
    x, F, n_gradients = coordinates.centre, coordinates.factor, 1
    value, gradient = log_density(x)

    def promised_gain(gradient: np.ndarray) -> float:
        return 0.5 * float(np.sum((F.T @ gradient) ** 2))

    while n_gradients < _NEWTON_GRADIENTS and promised_gain(gradient) > _NEWTON_GAIN:
        move = F @ (F.T @ gradient)
        for share in (1.0, 0.3, 0.1):
            new_value, new_gradient = log_density(x + share * move)
            n_gradients += 1
            if new_value > value and np.all(np.isfinite(new_gradient)):
                x, value, gradient = x + share * move, new_value, new_gradient
                break
        else:
            break
    if promised_gain(gradient) > _LBFGS_GAIN:  # the curvature is another one here, as near two columns that are alike
        local, counted = Coordinates(x, F), itertools.count(1)

        def enough(_: np.ndarray, __: float) -> str:
            return "gradients used up" if next(counted) >= _LBFGS_GRADIENTS else ""

        optimum = maximise_lbfgs(
            local.pull_back(log_density), np.zeros(len(x)), max_steps=_LBFGS_GRADIENTS, callback=enough
        )
        if optimum.ended == "interrupted":
            raise KeyboardInterrupt
        x = local.to_x(optimum.x)
    return Coordinates(x, F)


@dataclass(frozen=True)
class DelayedAcceptance(Sampler):
    """Chains on the target (the surrogate), accepted by `exact`; NUTS on `exact` if a trial accepts too few.

    A draw takes one value of the exact density and no gradient; warm-up takes none, because the step size is that of
    the surrogate.
    """

    exact: Target
    trial_draws: int = 8  # of each chain
    min_accepted: float = 0.25  # with fewer, NUTS needs fewer passes over the rows per effective draw
    transitions: int = 3  # of HMC to a proposal
    max_leapfrog: int = 8  # steps of a transition, drawn uniformly from 1 to this
    target_accept: float = 0.85  # of the HMC transitions
    first_step: float = 0.5
    step_decay: float = 0.6  # exponent of the Robbins-Monro gains
    fallback: Sampler = NUTS(warps=False)
    fallback_accept: float = 0.8

    def run(self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback) -> Run:
        """A trial of the surrogate, then all draws by it, or by NUTS on the exact density."""
        trial_plan = plan.but(draws=self.trial_draws, seed=(*plan.seed, 9))
        stopped = False

        def in_time(s: Snapshot) -> int | None:
            nonlocal stopped
            keep = callback(s._replace(chains=s.chains.first(0), done=0))
            stopped = stopped or keep is not None
            return None if keep is None else s.chains.n_draws

        trial = self.sample(target, starts, coordinates, trial_plan, in_time)
        assert isinstance(target, ThirdOrder)
        mode = target.expansion
        astray = _implausible(trial.chains.log_density[:, -1:], mode.value, target.dimension)
        if trial.interrupted or stopped:
            chains = trial.chains.first(0) if astray.any() else trial.chains
            return trial._replace(chains=chains, notes=("The fit ended while the third order was tried out.",))
        accepted, ends = float(trial.chains.acceptance.mean()), trial.chains.x[:, -1]
        if accepted < self.min_accepted or astray.any():
            reason = "left the posterior" if astray.any() else f"were accepted too seldom ({accepted:.2f})"
            begin = np.where(astray[:, None], mode.coordinates.centre, ends)
            careful = plan.but(parallel=1, target_accept=self.fallback_accept)
            run = self.fallback.run(self.exact, begin, coordinates, careful, callback)
            return run._replace(notes=(f"Moves by the third order {reason}: NUTS on all rows.",))
        steps = trial.chains.step_size[:, -1]
        run = self.sample(target, ends, coordinates, plan, callback, steps)
        note = f"Chains moved by the third order; {accepted:.2f} of the moves were accepted by all rows."
        return run._replace(notes=(note,))

    def sample(
        self,
        target: Target,
        starts: Matrix,
        coordinates: Coordinates,
        plan: Plan,
        callback: Callback,
        steps: Float[np.ndarray, " C"] | None = None,
    ) -> Run:
        """Draw from exp(exact), moving by the target; with `steps`, a step size for each chain, nothing adapts."""
        warmup = plan.warmup if steps is None else 0

        def surrogate(eta: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = target.value_and_gradient(coordinates.to_x(eta))
            if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
                return -np.inf, np.zeros_like(eta)
            return value, gradient @ coordinates.factor

        states = []
        first_steps = np.full(len(starts), self.first_step) if steps is None else steps
        for start, step in zip(starts, first_steps, strict=True):
            eta = coordinates.to_eta(start)
            value, gradient = surrogate(eta)
            if not np.isfinite(value):
                raise NumericalError(
                    "the density is not finite where a chain should start: try fewer inducing points, or NUTS with "
                    "all rows (subsample=False)"
                )
            states.append(_State(eta, value, gradient, None, float(np.log(step)), 0))
        exact = functools.partial(_exact_value, self.exact, coordinates)
        moves = _Moves(self, surrogate, exact, coordinates, warmup, plan.seed)
        run = run_chains(
            moves.advance,
            states,
            starts.shape[1],
            warmup=warmup,
            draws=plan.draws,
            parallel=plan.parallel,
            callback=callback,
        )
        return run._replace(evaluations=0, failures=0)  # the exact target's counter has them


class _State(NamedTuple):
    eta: np.ndarray
    surrogate: float
    gradient: np.ndarray  # of the surrogate, in η
    exact: float | None  # None until the first draw asks for it
    log_step: float
    adapted: int  # transitions so far that adapted the step size


class _Moves:
    """Transitions of the chains."""

    def __init__(
        self,
        options: DelayedAcceptance,
        surrogate: LogDensity,
        exact: Callable[[Vector], float],
        coordinates: Coordinates,
        warmup: int,
        seed: tuple[int, ...],
    ):
        self.options, self.surrogate, self.exact = options, surrogate, exact
        self.coordinates, self.warmup, self.seed = coordinates, warmup, seed

    def advance(self, chain: int, state: _State, first: int, count: int) -> tuple[_State, DrawRecord]:
        """`count` more draws of a chain; the random numbers of a draw depend on its number alone."""
        records = []
        for number in range(first, first + count):
            rng = np.random.default_rng([*self.seed, chain, number])
            state, record = self.draw(state, rng, number < self.warmup)
            records.append(record)
        return state, DrawRecord(*(np.array(a) for a in zip(*records, strict=True)))

    def draw(self, state: _State, rng: np.random.Generator, warming_up: bool) -> tuple[_State, DrawRecord]:
        """Some transitions on the surrogate, accepted by the exact density once the step size is fixed."""
        options = self.options
        eta, surrogate, gradient, log_step, adapted = (
            state.eta,
            state.surrogate,
            state.gradient,
            state.log_step,
            state.adapted,
        )
        acceptance = 0.0
        for _ in range(options.transitions):
            n_leapfrog = int(rng.integers(1, options.max_leapfrog + 1))
            step = float(np.exp(log_step))
            eta, surrogate, gradient, acceptance = hmc_transition(
                self.surrogate, eta, surrogate, gradient, step, n_leapfrog, rng
            )
            if warming_up:
                adapted += 1
                log_step += (acceptance - options.target_accept) / adapted**options.step_decay
        if warming_up:
            state = _State(eta, surrogate, gradient, None, log_step, adapted)
            return state, self._record(state, surrogate, acceptance, 0)
        before = self.exact(state.eta) if state.exact is None else state.exact
        before = before if np.isfinite(before) else -np.inf  # a chain that begins without a value does not stay
        after = self.exact(eta)
        failed = not np.isfinite(after)
        # [d(x') c(x)] / [d(x) c(x')] on the log scale.
        log_ratio = -np.inf if failed else (after - surrogate) - (before - state.surrogate)
        acceptance = float(np.exp(min(0.0, log_ratio)))
        moved = _State(eta, surrogate, gradient, after, log_step, adapted)
        state = moved if rng.random() < acceptance else state._replace(exact=before)
        assert state.exact is not None
        return state, self._record(state, state.exact, acceptance, int(failed))

    def _record(self, state: _State, value: float, acceptance: float, failures: int) -> DrawRecord:
        # Momenta belong to the surrogate, so there is no energy (NaN) whose mixing could be judged.
        x, step = self.coordinates.to_x(state.eta), float(np.exp(state.log_step))
        return DrawRecord(x, value, np.nan, acceptance, 0, False, step, failures)


def _exact_value(exact: Target, coordinates: Coordinates, eta: Vector) -> float:
    return float(exact.values(coordinates.to_x(eta)[None])[0])


def _implausible(values: Float[np.ndarray, "C n"], best: float, dimension: int) -> np.ndarray:
    """Which chains have ended where no draw can be."""
    limit = best - _IMPLAUSIBLE_NATS - _IMPLAUSIBLE_NATS_PER_DIMENSION * dimension
    return np.array([any(not (np.isfinite(v) and v >= limit) for v in end) for end in values])
