"""Few passes over many rows: a sample of them does the searching, all of them decide.

Near its mode the density of θ is known to third order from some gradients of all rows (`infer/cubic.py`). Chains move
by that, which costs no pass at all, and are accepted by the bound of all rows (`infer/surrogate.py`), so they draw from
the same posterior as NUTS would, with one value of the bound a draw and none while they tune. With many rows a
posterior is close to its third order; whether it is close enough is tried out, and if not, NUTS runs on all rows.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from integrand.infer.chains import Chains, LogDensity, SampledRun, Watch
from integrand.infer.cubic import Cubic, at_mode, cubic_around
from integrand.infer.metric import Whitening, whitening_from_hessian
from integrand.infer.nuts import sample_nuts
from integrand.infer.optimise import maximise_lbfgs
from integrand.infer.surrogate import sample_with_surrogate
from integrand.methods.checkpoint import WarmStart
from integrand.methods.corrected import climb_theta
from integrand.methods.density import Density, hopeless
from integrand.methods.optimised import sample_of, warm_start
from integrand.methods.problem import Problem, starting_inducing
from integrand.targets import CollapsedTarget, Factored, density, likelihood

# A round, where each draw costs a pass over all rows: draws that move Z and as many that judge, L-BFGS steps, and how
# many rounds there are at most.
MOVING, STEPS, ROUNDS = 4, 5, 2
# Draws of each chain that try the third order out, and the share of accepted ones above which it is taken.
_TRIAL, _USABLE = 8, 0.25
# L-BFGS steps of the sample on the way to the mode at a given Z.
_MODE_STEPS = 100
# Step, in φ, of the differences that give the first metric: curvature changes little on the way, and rounding is less.
_DIFFERENCE = 1e-3
# Bytes of q*(u) that are kept of the values taken last.
_KEPT_BYTES = 256 * 2**20


class Grown:
    """A fit whose rows are many: `whole` has all of them, `near` a sample."""

    def __init__(self, problem: Problem, whole: CollapsedTarget):
        self.problem, self.whole, self.near = problem, whole, sample_of(problem)[0]
        self.taken = ""  # what the chains moved by
        self._gate = threading.Lock()
        self._seen: dict[bytes, tuple[float, np.ndarray, np.ndarray]] = {}
        self._cubics: dict[bytes, Cubic] = {}

    def warm_start(self, move_Z: bool) -> WarmStart:
        """Lines 2-4 of Algorithm 1, mostly on the sample; over θ alone where Z stays."""
        if move_Z:
            return warm_start(self.problem, self.whole)
        phi = self.problem.model.start()
        Z, name = starting_inducing(self.problem, self.near, phi)
        phi, e = climb_theta(self.whole, self.near, (phi, Z), likelihood)
        return WarmStart(phi, Z, e.log_likelihood, name, self._mode(phi, Z))

    def _mode(self, phi: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """The mode of the sampled density at this Z: by the sample, then by all rows.

        Where ML-II ran away, the prior's medians are the better start.
        """

        def of_sample(x: np.ndarray) -> tuple[float, np.ndarray]:
            return density(self.near.evaluate(x, Z))

        begin = max((phi, self.problem.model.start()), key=lambda x: of_sample(x)[0])
        mode = maximise_lbfgs(of_sample, begin, max_steps=_MODE_STEPS).x
        return climb_theta(self.whole, self.near, (mode, Z), density)[0]

    def metric(self, start: WarmStart) -> Whitening:
        """The Hessian of the sampled density of all rows near its mode, by 2 P gradients and some values."""
        Z, at, mode, medians = start.Z, self._at(start.Z), start.mode, self.problem.model.start()
        if self.near.evaluate(medians, Z).log_density > self.near.evaluate(mode, Z).log_density:
            mode = self._mode(mode, Z)  # the run of an earlier version, which kept the ML-II point alone
        failures = self.whole.counter.failures
        whitening = whitening_from_hessian(lambda x: at(x)[1], mode, _DIFFERENCE, lambda x: self._value(x, Z))
        self.whole.counter.failures = failures  # how far one can go was the question
        return whitening

    def density(self, Z: np.ndarray, whitening: Whitening, exact: bool) -> Density:
        """The sampled density at fixed Z to third order. If `exact`, chains are accepted by all rows."""
        return Density(lambda x: self._cubic(Z, whitening)(x), own=self._accepted(Z) if exact else None)

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

    def _at(self, Z: np.ndarray) -> LogDensity:
        return lambda x: density(self.whole.evaluate(x, Z))

    def _value(self, x: np.ndarray, Z: np.ndarray) -> float:
        return self.whole.value(x, Z) + self.whole.log_prior(x)

    def _cubic(self, Z: np.ndarray, whitening: Whitening) -> Cubic:
        """The third order around the mode at this Z; made once, when it is first asked for."""
        if Z.tobytes() not in self._cubics:
            at = self._at(Z)
            self._cubics = {Z.tobytes(): cubic_around(at, at_mode(at, whitening))}
        return self._cubics[Z.tobytes()]

    def _accepted(self, Z: np.ndarray) -> Callable[..., SampledRun]:
        """A sampler of its own for the final chains."""

        def dear(x: np.ndarray) -> float:
            return self.factored(x, Z).log_likelihood + self.whole.log_prior(x)

        def own(starts: np.ndarray, whitening: Whitening, **options) -> SampledRun:
            cheap = self._cubic(Z, whitening)
            trial: dict[str, Any] = {"tune": options["tune"], "draws": _TRIAL, "seed": [*options["seed"], 9]}
            trial |= {"parallel": options["parallel"], "watch": self._in_time}
            tried = sample_with_surrogate(cheap, dear, starts, whitening, **trial)
            lost = self._lost(tried.chains, cheap.value)
            if tried.interrupted or self.problem.over_time:
                self.taken = "ended while the third order was tried out"
                return tried._replace(chains=tried.chains.first(0) if lost.any() else tried.chains, failures=0)
            accepted, ends = float(tried.chains.acceptance.mean()), tried.chains.x[:, -1]
            if accepted < _USABLE or lost.any():
                why = "led astray" if lost.any() else f"were accepted too seldom ({accepted:.2f})"
                self.taken = f"moves by the third order {why}: NUTS on all rows"
                self.problem.progress.phase("NUTS on all rows")
                begin = np.where(lost[:, None], cheap.whitening.centre, ends)
                options["parallel"] = 1
                return sample_nuts(self._at(Z), begin, whitening, **options)
            self.taken = f"chains moved by the third order, {accepted:.2f} of the moves accepted by all rows"
            # On from where the trial has ended; values that failed are counted where they are taken.
            steps = tried.chains.step_size[:, -1]
            return sample_with_surrogate(cheap, dear, ends, whitening, steps=steps, **options)._replace(failures=0)

        return own

    def _lost(self, chains: Chains, best: float) -> np.ndarray:
        """Which chains have ended where no draw can be."""
        ends = chains.log_density[:, -1:]
        return np.array([any(hopeless(v, best, chains.x.shape[2]) for v in end) for end in ends])

    def trusts(self, phis: np.ndarray, Z: np.ndarray, whitening: Whitening) -> bool:
        """Whether all rows agree that draws from the third order are no nonsense."""
        best = self._cubic(Z, whitening).value
        return not any(hopeless(self._value(phi, Z), best, len(phi)) for phi in phis)

    def _in_time(self, w: Watch) -> int | None:
        return w.chains.n_draws if self.problem.over_time else None

    def judged(self, phis: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """L(θ_j, Z) of all rows for the draws that judge."""
        return np.array([self.whole.value(phi, Z) for phi in phis])

    def counts(self) -> dict[str, int]:
        """Passes over all rows that gave a mere value, and gradients of the sample."""
        return {"values": self.whole.counter.values, "sample_gradients": self.near.counter.gradients}

    def told(self) -> str:
        """How few passes there were."""
        counter, n = self.whole.counter, self.problem.data.n_rows
        passes = f"{counter.gradients} gradients and {counter.values} values of the bound of all {n} rows"
        return f"{passes}, {self.near.counter.gradients} gradients of a sample; {self.taken or 'no final chains'}."
