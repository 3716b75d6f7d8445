"""A sampler to copy: random-walk Metropolis, all chains side by side.

A sampler sees a target (a log density over x) and coordinates η in which that density is close to a standard normal.
It knows nothing of Gaussian processes. To offer it as `sampler="walk"`:

- put the file into `integrand/infer/`; it may not import data, kernels, model or bounds;
- add the name to `SAMPLERS` in `integrand/methods/problem.py` and to the methods that may use it in
  `integrand/methods/table.py`, and the class to `sampler_for` in `integrand/methods/sampling.py`;
- add it to `run` in `tests/contracts/test_samplers.py`, and to the table in `docs/guides/methods.md`.
The draws are `Chains`, eight arrays by chain and draw. Verdicts, model files and the report read them:

- `x` are the points, in the target's own unknowns and not in η;
- `log_density` is that of x, which `target.values` gives, and not that of η: it has no Jacobian. Acceptance is
  decided by the density of η, which has the Jacobian, as `weight` below;
- `energy` is that of Hamiltonian trajectories, NaN for samplers without momentum. The verdict's E-BFMI is made of it;
- `acceptance` is the probability with which the proposal is accepted, between 0 and 1;
- `n_steps` and `depth` count the gradients and the doublings of a trajectory, `diverging` says that it went astray:
  zeros and False for samplers without trajectories;
- `step_size` is the step that made the draw.

Give them by name, as `_empty` below does. That function is part of this file and not of the library, so copy it too.
"""

import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from integrand.infer.base import Callback, Chains, Plan, Run, Sampler, Snapshot, Target
from integrand.infer.coordinates import Coordinates


@dataclass(frozen=True)
class RandomWalk(Sampler):
    """Propose η + step · N(0, I), and accept with probability min(1, p(proposal)/p(η))."""

    target_accept: float = 0.234  # Gelman, Roberts & Gilks (1996): best for many independent dimensions
    look_every: int = 20  # draws between two calls of the callback
    warps: ClassVar[bool] = True  # it only needs values, so warped coordinates are welcome

    def run(self, target: Target, starts: np.ndarray, coordinates: Coordinates, plan: Plan, callback: Callback) -> Run:
        """Adapt the step for `plan.warmup` draws, then keep `plan.draws`, one chain from each row of `starts`."""
        began, rng = time.monotonic(), np.random.default_rng(plan.seed)
        n_chains, dimension = starts.shape
        eta, step = coordinates.to_eta(starts), 2.4 / np.sqrt(dimension)
        x, value, weight = self._evaluate(target, coordinates, eta)
        chains = _empty(n_chains, plan.draws, dimension)
        finished = 0  # draws that are kept
        try:
            for i in range(plan.warmup + plan.draws):
                proposal = eta + step * rng.standard_normal(eta.shape)
                new_x, new_value, new_weight = self._evaluate(target, coordinates, proposal)
                acceptance = np.exp(np.minimum(new_weight - weight, 0.0))
                accept = rng.random(n_chains) < acceptance
                eta, x = np.where(accept[:, None], proposal, eta), np.where(accept[:, None], new_x, x)
                value, weight = np.where(accept, new_value, value), np.where(accept, new_weight, weight)
                if i < plan.warmup:
                    step *= np.exp((acceptance.mean() - self.target_accept) / np.sqrt(1.0 + i))
                else:
                    chains.x[:, finished] = x
                    chains.log_density[:, finished] = value
                    chains.acceptance[:, finished] = acceptance
                    chains.step_size[:, finished] = step
                    finished += 1
                if i % self.look_every == 0:
                    keep = callback(Snapshot(chains.first(finished), i + 1, time.monotonic() - began))
                    if keep is not None:  # the caller has what it wants
                        return Run(chains.first(keep), warmup=plan.warmup)
        except KeyboardInterrupt:
            return Run(chains.first(finished), interrupted=True)
        return Run(chains.first(finished), warmup=plan.warmup)

    @staticmethod
    def _evaluate(
        target: Target, coordinates: Coordinates, eta: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The points x, their log densities, and the log densities of η; -inf where the target fails."""
        x = coordinates.to_x(eta)
        value = np.asarray(target.values(x))
        value = np.where(np.isfinite(value), value, -np.inf)
        return x, value, value + coordinates.log_jacobian(eta)


def _empty(n_chains: int, n_draws: int, dimension: int) -> Chains:
    """Room for the draws. Without momentum there is no energy, and without trajectories no depth."""
    numbers = np.full((n_chains, n_draws), np.nan)
    zeros = np.zeros((n_chains, n_draws), int)
    x = np.empty((n_chains, n_draws, dimension))
    return Chains(
        x=x,
        log_density=numbers.copy(),
        energy=numbers,
        acceptance=numbers.copy(),
        n_steps=zeros,
        depth=zeros,
        diverging=zeros.astype(bool),
        step_size=numbers.copy(),
    )
