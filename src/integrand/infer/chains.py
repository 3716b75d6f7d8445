"""Draws of several chains, and what samplers share: how they are watched and what they give back."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

Vector = Float[np.ndarray, " P"]
LogDensity = Callable[[Vector], tuple[float, Vector]]


class Chains(NamedTuple):
    """Draws of all chains, cut to the same length, with the sampler's statistics for each draw."""

    x: Float[np.ndarray, "C n P"]
    log_density: Float[np.ndarray, "C n"]
    energy: Float[np.ndarray, "C n"]
    acceptance: Float[np.ndarray, "C n"]
    n_steps: Int[np.ndarray, "C n"]
    depth: Int[np.ndarray, "C n"]
    diverging: Bool[np.ndarray, "C n"]
    step_size: Float[np.ndarray, "C n"]

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


class Watch(NamedTuple):
    """What a watcher sees: finished draws of all chains, draws including tuning, and seconds since the start."""

    chains: Chains
    done: int  # draws of the slowest chain, tuning included
    seconds: float


# Called a few times a second; returns how many draws to keep when it is time to stop.
Watcher = Callable[[Watch], int | None]


class SampledRun(NamedTuple):
    """What a run gave; `interrupted` if Ctrl-C ended it."""

    chains: Chains
    tuning_draws: int
    tuning_divergences: int
    interrupted: bool
    evaluations: int = 0  # of the log density or its gradient, with tuning, where the sampler counts them
    failures: int = 0  # evaluations among them that failed numerically, where the sampler counts them
