"""How Algorithm 1 evaluates the bound: what a strategy provides, and the plain one, which uses all rows."""

from abc import ABC, abstractmethod

import numpy as np

from integrand.infer.base import Sampler, Target
from integrand.infer.coordinates import Coordinates, coordinates_at_mode
from integrand.infer.optimise import Curvature, maximise_lbfgs
from integrand.infer.verdict import Finding
from integrand.methods.problem import AUTO, Problem
from integrand.methods.sampling import sampler_for
from integrand.methods.warm_start import (
    WARM_ENOUGH,
    Point,
    maximise_theta_and_inducing,
    starting_inducing,
    warm_start,
)
from integrand.storage.run_store import WarmStart
from integrand.targets.collapsed import BoundWithPosterior, CollapsedTarget
from integrand.targets.evaluation import density, likelihood


class RowStrategy(ABC):
    """How Algorithm 1 evaluates the bound: with all rows (`AllRows`), or a subsample first (`many_rows.ManyRows`)."""

    bound: CollapsedTarget  # of all rows
    moving_draws: int  # draws that move Z in a round; as many more measure the gain
    move_gradients: int  # of the bound of a draw, at most, in a move of Z
    curvature: Curvature  # of log p(θ) + L(θ, Z) in (φ, Z): the warm start learns it, moves of Z go on
    max_rounds: int
    pilot_finding: Finding | None = None  # what the verdict says if a round's draws are all there is

    @abstractmethod
    def warm_start(self, move_Z: bool) -> WarmStart:
        """Lines 2-4: maximise L over (θ, Z), or over θ alone."""

    @abstractmethod
    def coordinates(self, start: WarmStart) -> Coordinates:
        """The first coordinates of θ, from the Hessian of log p(θ) + L(θ, Z) at its mode."""

    @abstractmethod
    def pilot(self, Z: np.ndarray, coordinates: Coordinates) -> tuple[Target, Sampler]:
        """What a round draws from, and with what."""

    @abstractmethod
    def final(self, Z: np.ndarray, coordinates: Coordinates) -> tuple[Target, Sampler]:
        """What the final chains draw from, and with what."""

    @abstractmethod
    def bounds(self, phis: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """L(θ_j, Z) for each draw."""

    @abstractmethod
    def inducing_posterior(self, phi: np.ndarray, Z: np.ndarray) -> BoundWithPosterior:
        """q*(u) of a draw."""

    @abstractmethod
    def ascend(self, phi: np.ndarray, Z: np.ndarray) -> WarmStart:
        """From (φ, Z) to a mode of log p(θ) + L(θ, Z), with a new `curvature`."""

    def plausible(self, phis: np.ndarray, Z: np.ndarray, coordinates: Coordinates) -> bool:
        """Whether draws of a round are from the posterior, so that they may move Z."""
        return True

    def notes(self) -> list[str]:
        """What the posterior's notes say about the rows."""
        return []

    def counts(self) -> dict[str, int]:
        """Evaluations beyond those of the bound of all rows."""
        return {}


def begin_small(problem: Problem, bound: CollapsedTarget) -> Point | None:
    """With `n_inducing="auto"` θ and Z after doublings; else None."""
    if problem.settings.n_inducing != AUTO:
        return None
    from integrand.methods.auto_inducing import doubled  # few fits need it

    return doubled(problem, bound)


class AllRows(RowStrategy):
    """Every evaluation sums over all rows."""

    moving_draws, move_gradients = 16, 400

    def __init__(self, problem: Problem):
        self.problem, self.max_rounds = problem, problem.settings.max_rounds
        self.bound, self.curvature = CollapsedTarget(problem.model, problem.data, problem.jitter), Curvature()

    def warm_start(self, move_Z: bool) -> WarmStart:
        """By L-BFGS, from the best candidate for Z."""
        problem = self.problem
        if move_Z:
            return warm_start(problem, self.bound, curvature=self.curvature, begin=begin_small(problem, self.bound))
        phi = problem.model.start()
        Z, name = starting_inducing(problem, self.bound, phi)
        steps = problem.settings.warm_steps
        optimum = maximise_lbfgs(lambda x: likelihood(self.bound.evaluate(x, Z)), phi, max_steps=steps)
        return WarmStart(optimum.x, Z, optimum.value, name, optimum.x)

    def ascend(self, phi: np.ndarray, Z: np.ndarray) -> WarmStart:
        """By L-BFGS."""
        self.curvature, settings = Curvature(), self.problem.settings
        phi, Z, optimum = maximise_theta_and_inducing(
            self.bound, phi, Z, settings, settings.warm_steps, density, self.curvature, WARM_ENOUGH
        )
        return WarmStart(phi, Z, optimum.value, "", phi)

    def coordinates(self, start: WarmStart) -> Coordinates:
        """By differences of gradients at the mode."""
        starts = (start.mode, self.problem.model.start())
        return coordinates_at_mode(self.bound.at(start.Z).value_and_gradient, starts, saddles=True)

    def pilot(self, Z: np.ndarray, coordinates: Coordinates) -> tuple[Target, Sampler]:
        """q*(θ), with the sampler of the settings."""
        target = self.bound.at(Z)
        return target, sampler_for(self.problem.settings, target)

    def final(self, Z: np.ndarray, coordinates: Coordinates) -> tuple[Target, Sampler]:
        """The same."""
        return self.pilot(Z, coordinates)

    def bounds(self, phis: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """L(θ_j, Z), from the evaluations that also give gradients."""
        return self.bound.mean_bound(phis, Z)[0]

    def inducing_posterior(self, phi: np.ndarray, Z: np.ndarray) -> BoundWithPosterior:
        """q*(u) of a draw."""
        return self.bound.inducing_posterior(phi, Z)
