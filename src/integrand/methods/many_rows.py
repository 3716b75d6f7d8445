"""Algorithm 1 with very many rows: a subsample searches, and few passes over all rows decide.

The warm start maximises the bound of the subsample and then takes some steps with all rows (`warm_start.py`). Near its
mode the density of θ is known to third order from some gradients of all rows. Chains move by that expansion, which
costs no pass at all, and are accepted by the bound of all rows: one value per draw, and none during warm-up. With many
rows a posterior is close to its third order; a trial tells whether it is close enough, and if not, NUTS runs on all
rows (`infer/delayed_acceptance.py`).
"""

import threading

import numpy as np

from integrand.infer.base import Sampler, Target, Vector
from integrand.infer.coordinates import Coordinates, coordinates_from_hessian
from integrand.infer.delayed_acceptance import DelayedAcceptance, ThirdOrder
from integrand.infer.nuts import NUTS
from integrand.infer.optimise import Curvature, maximise_lbfgs
from integrand.infer.verdict import Finding
from integrand.methods.all_rows import RowStrategy, begin_small
from integrand.methods.problem import Problem
from integrand.methods.sampling import implausible
from integrand.methods.warm_start import (
    MODE_PASSES,
    maximise_theta,
    maximise_with_all_rows,
    starting_inducing,
    subsample_of,
    warm_start,
)
from integrand.storage.run_store import WarmStart
from integrand.targets.collapsed import BoundWithPosterior, CollapsedTarget, FixedZ
from integrand.targets.evaluation import density, likelihood

# Rounds at most: each draw that moves Z, or measures the gain, costs a pass over all rows.
MAX_ROUNDS = 2
# L-BFGS steps of the subsample on the way to the mode at a given Z.
_MODE_STEPS = 100
# Step, in φ, of the differences behind the first coordinates: curvature changes little, and rounding matters less.
_DIFFERENCE = 1e-3
# Bytes of q*(u) that are cached for the latest values.
_CACHE_BYTES = 256 * 2**20


class ManyRows(RowStrategy):
    """`bound` has all rows, `subsample_bound` some of them that represent all."""

    moving_draws, move_gradients = 4, 40
    pilot_finding = Finding(
        "approximate",
        True,
        "The fit ended before all rows could accept or reject a draw: these are from an approximation around the mode.",
        "Allow more `max_minutes`, or resume the run.",
    )

    def __init__(self, problem: Problem):
        self.problem, self.max_rounds = problem, min(MAX_ROUNDS, problem.settings.max_rounds)
        self.bound, self.curvature = CollapsedTarget(problem.model, problem.data, problem.jitter), Curvature()
        self.subsample_bound = subsample_of(problem)[0]
        self._pass_lock = threading.Lock()
        self._posteriors: dict[bytes, tuple[float, np.ndarray, np.ndarray]] = {}
        self._surrogate: ThirdOrder | None = None
        self._surrogate_Z = b""

    def warm_start(self, move_Z: bool) -> WarmStart:
        """Lines 2-4, mostly on the subsample."""
        if move_Z:
            begin = begin_small(subsample_of(self.problem)[1], self.subsample_bound)
            return warm_start(self.problem, self.bound, curvature=self.curvature, begin=begin)
        phi = self.problem.model.start()
        Z, name = starting_inducing(self.problem, self.subsample_bound, phi)
        phi, e = maximise_theta(self.bound, self.subsample_bound, (phi, Z), likelihood)
        return WarmStart(phi, Z, e.log_likelihood, name, self._mode(phi, Z))

    def ascend(self, phi: np.ndarray, Z: np.ndarray) -> WarmStart:
        """By L-BFGS with all rows."""
        self.curvature = Curvature()
        phi, Z, e = maximise_with_all_rows(self.bound, (phi, Z), density, MODE_PASSES, self.curvature)
        return WarmStart(phi, Z, e.log_likelihood, "", phi)

    def coordinates(self, start: WarmStart) -> Coordinates:
        """By 2 P gradients of all rows near the mode, and some values."""
        Z, mode, medians = start.Z, start.mode, self.problem.model.start()
        subsample = self.subsample_bound
        if subsample.evaluate(medians, Z).log_density > subsample.evaluate(mode, Z).log_density:
            mode = self._mode(mode, Z)  # the run of an earlier version, which kept the ML-II point alone
        target, failures = self.bound.at(Z), self.bound.counter.failures
        coordinates = coordinates_from_hessian(
            lambda x: target.value_and_gradient(x)[1], mode, _DIFFERENCE, lambda x: self._value(x, Z)
        )
        self.bound.counter.failures = failures  # failures while measuring widths are expected, so they do not count
        return coordinates

    def pilot(self, Z: np.ndarray, coordinates: Coordinates) -> tuple[Target, Sampler]:
        """The third order alone, by NUTS."""
        return self._third_order(Z, coordinates), NUTS(warps=False)

    def final(self, Z: np.ndarray, coordinates: Coordinates) -> tuple[Target, Sampler]:
        """The third order, accepted by all rows."""
        return self._third_order(Z, coordinates), DelayedAcceptance(_CachedFixedZ(self, Z))

    def plausible(self, phis: np.ndarray, Z: np.ndarray, coordinates: Coordinates) -> bool:
        """Whether, by all rows, no draw from the third order is far below the mode."""
        best = self._third_order(Z, coordinates).expansion.value
        return not any(implausible(self._value(phi, Z), best, len(phi)) for phi in phis)

    def bounds(self, phis: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """L(θ_j, Z) of all rows, without gradients."""
        return np.array([self.bound.value(phi, Z) for phi in phis])

    def inducing_posterior(self, phi: np.ndarray, Z: np.ndarray) -> BoundWithPosterior:
        """L(θ, Z) and q*(u) by all rows. The latest are cached: draws that predict are among them."""
        key, M = phi.tobytes() + Z.tobytes(), len(Z)
        below, cached = np.tril_indices(M), self._posteriors.get(key)
        if cached is not None:
            LB = np.zeros((M, M))
            LB[below] = cached[2]
            return BoundWithPosterior(cached[0], cached[1], LB)
        with self._pass_lock:  # a pass over all rows takes all cores
            result = self.bound.inducing_posterior(phi, Z)
            self._posteriors[key] = result.log_likelihood, result.m, result.LB[below]
            while len(self._posteriors) > max(1, _CACHE_BYTES // (4 * M * (M + 1))):
                del self._posteriors[next(iter(self._posteriors))]
        return result

    def counts(self) -> dict[str, int]:
        """Passes over all rows that gave a value alone, and gradients of the subsample."""
        return {
            "values": self.bound.counter.values,
            "sample_gradients": self.subsample_bound.counter.gradients,
        }

    def notes(self) -> list[str]:
        """How few passes there were."""
        counter, n = self.bound.counter, self.problem.data.n_rows
        passes = f"{counter.gradients} gradients and {counter.values} values of the bound of all {n} rows"
        return [f"{passes}, {self.subsample_bound.counter.gradients} gradients of a subsample."]

    def _mode(self, phi: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """The mode of the sampled density at this Z: by the subsample, then by all rows.

        Where ML-II ran away, the prior's medians are the better start.
        """

        def of_subsample(x: np.ndarray) -> tuple[float, np.ndarray]:
            return density(self.subsample_bound.evaluate(x, Z))

        begin = max((phi, self.problem.model.start()), key=lambda x: of_subsample(x)[0])
        mode = maximise_lbfgs(of_subsample, begin, max_steps=_MODE_STEPS).x
        return maximise_theta(self.bound, self.subsample_bound, (mode, Z), density)[0]

    def _value(self, x: Vector, Z: np.ndarray) -> float:
        return self.bound.value(x, Z) + self.bound.log_prior(x)

    def _third_order(self, Z: np.ndarray, coordinates: Coordinates) -> ThirdOrder:
        """The expansion at this Z, shared by a round and the final chains where Z does not move between them."""
        if self._surrogate is None or Z.tobytes() != self._surrogate_Z:
            self._surrogate, self._surrogate_Z = ThirdOrder(self.bound.at(Z), coordinates), Z.tobytes()
        return self._surrogate


class _CachedFixedZ(FixedZ):
    """log p(θ) + L(θ, Z) by all rows, whose values keep q*(u) for later."""

    def __init__(self, rows: ManyRows, Z: np.ndarray):
        super().__init__(rows.bound, Z)
        self.rows = rows

    def values(self, xs: np.ndarray) -> Vector:
        """One pass over all rows for each."""
        return np.array([self.rows.inducing_posterior(x, self.Z).log_likelihood + self.bound.log_prior(x) for x in xs])
