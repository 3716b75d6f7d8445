"""The contracts between densities and samplers: Target, Plan, Run, Sampler, Chains, Snapshot and Callback.

A sampler knows nothing of Gaussian processes. It sees a log density over an unconstrained vector x, starts, and
coordinates in which that density is close to a standard normal. A callback sees the draws while they come and may say
how many of them to keep, which ends the run; what it keeps depends on the draws alone, so the same seed gives the same
result on a fast and on a slow machine.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from integrand.errors import InputError
from integrand.infer.coordinates import Coordinates
from integrand.infer.modes import Mode
from integrand.infer.optimise import Vector

Matrix = Float[np.ndarray, "C P"]


class Chains(NamedTuple):
    """Draws of all chains, cut to the same length, with the sampler's statistics for each draw. False if empty."""

    x: Float[np.ndarray, "C n P"]
    log_density: Float[np.ndarray, "C n"]
    energy: Float[np.ndarray, "C n"]
    acceptance: Float[np.ndarray, "C n"]
    n_steps: Int[np.ndarray, "C n"]
    depth: Int[np.ndarray, "C n"]
    diverging: Bool[np.ndarray, "C n"]
    step_size: Float[np.ndarray, "C n"]

    def __repr__(self) -> str:
        chains, draws, dimension = self.x.shape
        return f"<Chains: {chains} of {draws} draws, {dimension} unknowns>"

    def __bool__(self) -> bool:
        return self.n_draws > 0

    @property
    def n_draws(self) -> int:
        """Draws in each chain."""
        return self.x.shape[1]

    @property
    def n_trajectories(self) -> int:
        """Draws that took a gradient or more, so that they could diverge; at least one."""
        return max(1, int(np.sum(self.n_steps > 0)))

    def first(self, n: int) -> "Chains":
        """The first `n` draws of each chain."""
        return Chains(*(a[:, :n] for a in self))

    def then(self, later: "Chains") -> "Chains":
        """These draws followed by later ones of the same chains."""
        return Chains(*(np.concatenate([a, b], axis=1) for a, b in zip(self, later, strict=True)))

    @classmethod
    def of_one_point(cls, x: Vector, log_density: float) -> "Chains":
        """A single draw of a single chain: where an optimiser ended, or where a fit had no time to draw."""
        zero = np.zeros((1, 1))
        none = zero.astype(int)
        return cls(x[None, None], zero + log_density, zero, zero + 1.0, none, none, zero.astype(bool), zero)


class Snapshot(NamedTuple):
    """What a callback sees."""

    chains: Chains  # finished draws of all chains
    done: int  # draws of the slowest chain, warm-up included
    seconds: float  # since the start


# Called a few times a second; returns how many draws to keep when it is time to stop.
Callback = Callable[[Snapshot], int | None]


class Counter:
    """Counts across threads: gradients and mere values taken, and evaluations where a factorisation failed."""

    def __init__(self):
        self._lock = threading.Lock()
        self.gradients = 0
        self.values = 0
        self.failures = 0

    def add(self, ok: bool, gradient: bool = True) -> None:
        """Count one evaluation."""
        with self._lock:
            self.gradients += gradient
            self.values += not gradient
            self.failures += not ok


class TracedDensity(NamedTuple):
    """log_prior(x, data) and log_likelihood(x, data), apart because nested sampling needs both; their sum is sampled.

    The functions are hashable and stay the same for equal models. `data` (a pytree of arrays) is an argument, so that
    compiled programs serve other data of the same shape.
    """

    log_prior: Callable[[Any, Any], Any]
    log_likelihood: Callable[[Any, Any], Any]
    data: Any


class TracedRows(NamedTuple):
    """A log density with a sum over rows: log_prior(x, data) + log_likelihood_rows(x, rows, data).

    `rows` is a pytree of arrays with a leading axis of N; `log_likelihood_rows` gives the sum over those that it gets.
    The functions must be the same objects from run to run: compiled programs are cached by them.
    """

    log_prior: Callable[[Any, Any], Any]
    log_likelihood_rows: Callable[[Any, Any, Any], Any]
    rows: Any
    data: Any

    @property
    def n_rows(self) -> int:
        """N."""
        return len(jax.tree.leaves(self.rows)[0])


class Target(ABC):
    """A log density over x, whose first `n_theta` entries are the hyperparameters φ; only they must converge."""

    n_theta: int
    dimension: int
    parallel: int  # evaluations that may run at the same time; 1 where each one uses all cores
    counter: Counter
    fast_values: ClassVar[bool] = False  # whether `values` is cheaper than gradients, so that independence MH pays

    @abstractmethod
    def value_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Log density at x and its gradient; not finite where it cannot be computed. Callable from any thread."""

    def values(self, xs: Float[np.ndarray, "K P"]) -> Float[np.ndarray, " K"]:
        """Log densities at several x."""
        return np.array([self.value_and_gradient(x)[0] for x in xs])

    def coarse(self) -> "Target":
        """A density with nearly the same optima that takes less time; itself where there is none."""
        return self

    def traced(self) -> TracedDensity:
        """The same density for samplers whose loop runs inside XLA."""
        raise InputError("this density cannot be traced by JAX: choose the sampler default or nuts")


@dataclass(frozen=True)
class Plan:
    """How long to run, from which seed, and how carefully."""

    warmup: int  # draws of each chain that adapt and are thrown away
    draws: int  # draws of each chain that are kept
    seed: tuple[int, ...]
    parallel: int = 2  # evaluations at the same time
    target_accept: float = 0.8
    max_depth: int = 8  # of a trajectory of NUTS: at most 2^depth - 1 leapfrog steps
    short_warmup: int = 30  # warm-up of chains that go on with adapted coordinates

    def but(self, **changes: Any) -> "Plan":
        """A plan with some fields changed."""
        return replace(self, **changes)


class Finding(NamedTuple):
    """One thing that the verdict of a fit says. The code is stable; the sentence is for people."""

    code: str
    serious: bool
    sentence: str
    remedy: str


class Proposals(NamedTuple):
    """Independent draws x of a normalised density q, with the log density of the target and log q there."""

    x: Float[np.ndarray, "S P"]
    log_density: Float[np.ndarray, " S"]
    log_q: Float[np.ndarray, " S"]

    def then(self, later: "Proposals") -> "Proposals":
        """These and others, each with the q that it was drawn from."""
        return Proposals(*(np.concatenate([a, b]) for a, b in zip(self, later, strict=True)))


class Run(NamedTuple):
    """What a sampler gives back."""

    chains: Chains
    interrupted: bool = False  # by Ctrl-C
    warmup: int = 0  # draws of warm-up that every chain finished
    warmup_divergences: int = 0
    evaluations: int = 0  # gradients and values that the target's counter has not counted
    failures: int = 0  # those among them that failed numerically
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    proposals: Proposals | None = None  # all independence proposals of the kept draws, where q was fixed


class Sampler(ABC):
    """Draws from a target. Implementations are frozen dataclasses whose fields are their options."""

    warps: ClassVar[bool] = False  # whether it can run in warped coordinates

    @abstractmethod
    def run(self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback) -> Run:
        """Adapt for `plan.warmup` draws and keep `plan.draws`, one chain from each row of `starts`."""

    def pilot(self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback) -> Run:
        """A few draws that show the shape of the density; they may come while the sampler still adapts."""
        return self.run(target, starts, coordinates, plan, callback)

    def warmup(self, dimension: int, wanted: int) -> int:
        """Draws of warm-up that this sampler makes where `wanted` were asked for."""
        return wanted

    def can_warp(self, target: Target) -> bool:
        """Whether coordinates of this target may be warped: those of φ alone are fitted to enough draws for that."""
        return self.warps and target.dimension == target.n_theta

    def between(self, modes: Sequence[Mode], broad: Sequence[Coordinates] = ()) -> "Sampler":
        """The same sampler with modes of the density, and coordinates that hold all of it, if it can use them."""
        return self


def keep_going(_: Snapshot) -> None:
    """The callback that never ends a run."""
