"""What every method is given: a problem in standardised units, settings, and helpers to start from."""

import os
from dataclasses import dataclass, field
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from integrand.data.dataset import Dataset
from integrand.data.scaling import Standardiser
from integrand.errors import InputError
from integrand.inducing import candidates, distinct_rows
from integrand.infer.nuts import Chains
from integrand.linalg import Jitter
from integrand.model import Model
from integrand.posterior.storage import RunDirectory
from integrand.precision import float64_scope
from integrand.progress import Clock, Progress, Silent
from integrand.targets import CollapsedTarget


@dataclass(frozen=True)
class Settings:
    """How hard to try. The defaults are those of the estimator and the command line."""

    n_inducing: int = 100
    chains: int = 4
    target_ess: float = 400.0
    max_draws: int = 5_000  # for each chain
    max_minutes: float | None = None
    target_accept: float = 0.7
    optimiser: str = "lbfgs"  # or "adam", as in the paper
    steps: int = 1_000  # of the optimiser, for methods that only optimise
    warm_steps: int = 200
    tune: int = 60  # tuning steps of a chain; half as many where one is gone on with
    round_draws: int = 40  # draws of each chain in a round
    restarts: int = 1
    max_rounds: int = 5
    schedule: str = "default"  # or "paper"
    predictive_draws: int = 400  # draws kept for predicting, evenly thinned
    seed: int = 0

    def __post_init__(self):
        counts = "n_inducing chains max_draws steps restarts tune round_draws max_rounds predictive_draws"
        for name in counts.split():
            if int(getattr(self, name)) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.target_ess <= 0:
            raise InputError(f"target_ess must be positive, not {self.target_ess}")
        if not 0.0 < self.target_accept < 1.0:
            raise InputError(f"target_accept must lie between 0 and 1, not {self.target_accept}")
        if self.max_minutes is not None and self.max_minutes <= 0:
            raise InputError(f"max_minutes must be positive, not {self.max_minutes}")
        for name, known in (("optimiser", ("lbfgs", "adam")), ("schedule", ("default", "paper"))):
            if getattr(self, name) not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}")


@dataclass(frozen=True)
class Problem:
    """Standardised data, the model, and where progress and state go."""

    model: Model
    data: Dataset
    scaler: Standardiser
    settings: Settings
    jitter: Jitter = Jitter()
    progress: Progress = field(default_factory=Silent)
    run: RunDirectory | None = None
    clock: Clock = field(default_factory=Clock)
    Z: Float[np.ndarray, "M D"] | None = None  # inducing inputs to start from, standardised

    def rng(self, purpose: int) -> np.random.Generator:
        """A generator for one purpose, so that what one phase draws does not depend on another."""
        return np.random.default_rng([self.settings.seed, purpose])

    @cached_property
    def n_inducing(self) -> int:
        """M: what was asked for, but no more than there are distinct rows."""
        if self.Z is not None:
            return len(self.Z)
        return min(self.settings.n_inducing, len(distinct_rows(np.asarray(self.data.arrays()[0]))))

    @property
    def parallel(self) -> int:
        """Evaluations that may run at once."""
        return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def starting_inducing(
    problem: Problem, target: CollapsedTarget, phi: Float[np.ndarray, " P"], purpose: int = 0
) -> tuple[Float[np.ndarray, "M D"], str]:
    """The first Z: the candidate with the best bound at φ, and its name."""
    if problem.Z is not None:
        return problem.Z, "given"
    rng, m = problem.rng(purpose), problem.n_inducing
    with float64_scope():
        X = np.asarray(problem.data.arrays()[0])
        gp = problem.model.gp(problem.model.theta(jnp.asarray(phi)))
        found = candidates(rng, X, m, gp)
    bounds = {name: target.evaluate(phi, Z).log_likelihood for name, Z in found.items()}
    best = max(bounds, key=lambda name: bounds[name])
    return found[best], best


def one_draw(phi: Float[np.ndarray, " P"], log_density: float) -> Chains:
    """A single point in the form of draws, so that optimised and sampled results are used alike."""
    number = np.full((1, 1), log_density)
    zero = np.zeros((1, 1))
    return Chains(
        phi[None, None, :], number, -number, zero + 1.0, zero.astype(int), zero.astype(int), zero.astype(bool), zero
    )
