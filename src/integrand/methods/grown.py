"""Few passes over many rows: a sample of them does the searching, all of them decide.

Chains move by the corrected bound of a sample (`corrected.py`) and are accepted by the bound of all rows
(`infer/surrogate.py`), so they draw from the same posterior as without a sample, with one value of the bound a draw
and none while they tune. Whether the sample is good enough for that is tried out; if not, NUTS runs on all rows.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from integrand.data.dataset import Dataset, block_rows_for
from integrand.infer.chains import LogDensity, SampledRun, Watch
from integrand.infer.metric import Whitening
from integrand.infer.nuts import sample_nuts
from integrand.infer.optimise import maximise_lbfgs
from integrand.infer.surrogate import Bend, bend_from_gradients, sample_with_surrogate
from integrand.methods.checkpoint import WarmStart
from integrand.methods.corrected import Corrected, climb_theta
from integrand.methods.optimised import sample_of, warm_start
from integrand.methods.problem import Problem, starting_inducing
from integrand.methods.sampling import Density
from integrand.targets import CollapsedTarget, Factored, density, likelihood

# A round, where each draw costs a pass over all rows: draws that move Z and as many that judge, L-BFGS steps, and how
# many rounds there are at most.
MOVING, STEPS, ROUNDS = 4, 5, 2
# Draws of each chain that try a sample out, and the shares of accepted ones above which it is taken at once or at all.
_TRIAL, _GOOD, _USABLE = 8, 0.5, 0.25
# The smaller sample has this share of the rows that a sample has.
_SMALLER = 0.25
# L-BFGS steps of the sample on the way to the mode at a Z.
_ANCHOR_STEPS = 100
# Bytes of q*(u) that are kept of the values taken last.
_KEPT_BYTES = 256 * 2**20


class Grown:
    """A fit whose rows are many: `whole` has all of them, `near` a sample, `less` a part of that."""

    def __init__(self, problem: Problem, whole: CollapsedTarget):
        self.problem, self.whole, self.near = problem, whole, sample_of(problem)[0]
        self.less = CollapsedTarget(problem.model, _part_of_sample(problem), problem.jitter)
        self.taken = ""  # what the chains moved by
        self._gate = threading.Lock()
        self._seen: dict[bytes, tuple[float, np.ndarray, np.ndarray]] = {}
        self._anchors: dict[bytes, tuple] = {}

    def warm_start(self, move_Z: bool) -> WarmStart:
        """Lines 2-4 of Algorithm 1, mostly on the sample; over θ alone where Z stays."""
        if move_Z:
            return warm_start(self.problem, self.whole)
        phi = self.problem.model.start()
        Z, name = starting_inducing(self.problem, self.near, phi)
        phi, e = climb_theta(self.whole, self.near, (phi, Z), likelihood)
        return WarmStart(phi, Z, e.log_likelihood, name, phi)

    def density(self, phi: np.ndarray, Z: np.ndarray, whitening: Whitening | None, exact: bool) -> Density:
        """The sampled density at fixed Z as the sample has it, corrected: to first order without a whitening, to
        second with one. If `exact`, chains are accepted by all rows.
        """
        at, whole = self._anchor(phi if whitening is None else whitening.centre, Z)
        corrected = Corrected(self.less, at, whole)
        if whitening is None:
            return Density(lambda x: density(corrected.evaluate(x)))
        if exact:
            return Density(lambda x: density(corrected.evaluate(x)), own=self._accepted(at, whole))
        return Density(self._cheap(corrected, whitening))

    def factored(self, phi: np.ndarray, Z: np.ndarray) -> Factored:
        """L(θ, Z) and q*(u) by all rows. The latest are kept: the draws that predict are among those tried."""
        key, M = phi.tobytes() + Z.tobytes(), len(Z)
        below, kept = np.tril_indices(M), self._seen.get(key)
        if kept is not None:
            LB = np.zeros((M, M))
            LB[below] = kept[2]
            return Factored(kept[0], kept[1], LB)
        with self._gate:  # a pass over all rows takes all cores
            found = self.whole.factored(phi, Z)
            self._seen[key] = found.log_likelihood, found.m, found.LB[below]
            while len(self._seen) > max(1, _KEPT_BYTES // (4 * M * (M + 1))):
                del self._seen[next(iter(self._seen))]
        return found

    def _anchor(self, phi: np.ndarray, Z: np.ndarray) -> tuple:
        """The mode at this Z, by all rows, and what they say there: a correction belongs in the posterior's middle.

        The sample climbs first, from φ or, where that is better (ML-II ran away), from the prior's medians.
        """
        if Z.tobytes() not in self._anchors:

            def of_sample(phi: np.ndarray) -> tuple[float, np.ndarray]:
                return density(self.near.evaluate(phi, Z))

            start = max((phi, self.problem.model.start()), key=lambda x: of_sample(x)[0])
            mode = maximise_lbfgs(of_sample, start, max_steps=_ANCHOR_STEPS).x
            mode, whole = climb_theta(self.whole, self.near, (mode, Z), density)
            self._anchors = {Z.tobytes(): ((mode, Z), whole)}
        return self._anchors[Z.tobytes()]

    def _cheap(self, corrected: Corrected, whitening: Whitening) -> LogDensity:
        """A sample's density with the gradient and the curvature that all rows have in the middle of the posterior."""
        bend = self._bend(corrected, whitening)
        return lambda x: bend(x, *density(corrected.evaluate(x)))

    def _bend(self, corrected: Corrected, whitening: Whitening) -> Bend:
        def miss(x: np.ndarray) -> np.ndarray:
            whole = self.whole.evaluate(x, corrected.Z)
            return whole.d_likelihood - corrected.evaluate(x).d_likelihood

        return bend_from_gradients(miss, corrected.phi, whitening)

    def _accepted(self, at: tuple, whole) -> Callable[..., SampledRun]:
        """A sampler of its own for the final chains."""
        Z = at[1]

        def dear(x: np.ndarray) -> float:
            return self.factored(x, Z).log_likelihood + self.less.evaluate(x, Z).log_prior

        def own(starts: np.ndarray, whitening: Whitening, **options) -> SampledRun:
            trial: dict[str, Any] = {"tune": options["tune"], "draws": _TRIAL, "seed": [*options["seed"], 9]}
            trial |= {"parallel": options["parallel"], "watch": self._in_time}
            best: tuple[float, LogDensity | None, SampledRun | None] = (0.0, None, None)
            for sample in (self.less, self.near):
                cheap = self._cheap(Corrected(sample, at, whole), whitening)
                tried = sample_with_surrogate(cheap, dear, starts, whitening, **trial)
                accepted = float(tried.chains.acceptance.mean()) if tried.chains.n_draws else 0.0
                if accepted > best[0]:
                    best = accepted, cheap, tried
                if tried.interrupted or self.problem.over_time:
                    self.taken = "ended while samples were tried out"
                    return tried._replace(failures=0)
                if accepted >= _GOOD:
                    break
            accepted, cheap, tried = best
            if cheap is None or tried is None or accepted < _USABLE:
                self.taken = f"a sample's proposals were accepted too seldom ({accepted:.2f}): NUTS on all rows"
                options["parallel"] = 1
                return sample_nuts(lambda x: density(self.whole.evaluate(x, Z)), starts, whitening, **options)
            self.taken = f"chains moved by a sample, {accepted:.2f} of the moves accepted by all rows"
            # On from where the trial has ended; values that failed are counted where they are taken.
            ends, steps = tried.chains.x[:, -1], tried.chains.step_size[:, -1]
            return sample_with_surrogate(cheap, dear, ends, whitening, steps=steps, **options)._replace(failures=0)

        return own

    def _in_time(self, w: Watch) -> int | None:
        return w.chains.n_draws if self.problem.over_time else None

    def judged(self, phis: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """L(θ_j, Z) of all rows for the draws that judge."""
        return np.array([self.whole.value(phi, Z) for phi in phis])

    def counts(self) -> dict[str, int]:
        """Passes over all rows that gave a mere value, and gradients of the samples."""
        return {
            "values": self.whole.counter.values,
            "sample_gradients": self.near.counter.gradients + self.less.counter.gradients,
        }

    def told(self) -> str:
        """How few passes there were."""
        counter, n = self.whole.counter, self.problem.data.n_rows
        passes = f"{counter.gradients} gradients and {counter.values} values of the bound of all {n} rows"
        return f"{passes}, {self.counts()['sample_gradients']} gradients of samples; {self.taken or 'no final chains'}."


def _part_of_sample(problem: Problem) -> Dataset:
    assert problem.sample is not None
    X, y = (np.asarray(a) for a in problem.sample.arrays())
    chosen = np.sort(problem.rng(78).choice(len(y), max(2, int(_SMALLER * len(y))), replace=False))
    length = block_rows_for(problem.settings.n_inducing)
    return Dataset.of(X[chosen], y[chosen], length).standing_for(problem.data.n_rows)
