"""What every fit that gives draws of φ writes down: its start, phases, bound, notes, and in the end its posterior."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

import numpy as np

from integrand.infer.chains import Chains, Watch, Watcher
from integrand.infer.diagnostics import Finding, Verdict, convergence, verdict
from integrand.infer.threads import available_cores, one_blas_thread
from integrand.methods.ahead import ahead
from integrand.methods.checkpoint import Checkpoint, WarmStart
from integrand.methods.density import Density
from integrand.methods.problem import Problem, one_draw
from integrand.posterior.conditional import Conditional
from integrand.posterior.posterior import BoundPoint, Posterior
from integrand.targets import Counter


class FitRecord:
    """The record of one fit. Draws are judged by their first entries, φ; what follows (u, Z) are nuisances."""

    def __init__(self, problem: Problem, counter: Counter, parallel: int):
        self.problem, self.counter, self.parallel = problem, counter, parallel
        self.settings, self.clock = problem.settings, problem.clock
        self.n_theta = problem.model.n_theta
        self.saved = Checkpoint(problem.run)
        self.saved.refuse_another_kind(self.settings.sampler == "nested")
        self.history: list[BoundPoint] = []
        self.notes: list[str] = []
        self.max_depth = 8  # of NUTS, where it draws
        self.interrupted = False
        self.findings: list[Finding] = []  # what else the verdict has to say
        self.judged: Verdict | None = None  # by a method that judges its draws in its own way
        self.evidence: tuple[float, float] | None = None

    @classmethod
    @contextmanager
    def of(cls, problem: Problem, counter: Counter, threads: int) -> Iterator[Self]:
        """For a target that uses one thread, so that chains run side by side, or all of them (0)."""
        with one_blas_thread(threads == 1):
            yield cls(problem, counter, available_cores() if threads == 1 else 1)

    def warm_start(self, climb: Callable[[], WarmStart], *later: Callable[[], object]) -> WarmStart:
        """Where to begin: from the run directory, or climbed to and kept there.

        Meanwhile is done what is needed `later`, such as loading the sampler.
        """
        self.enter("warm start")
        start = self.saved.warm_start()
        if start is None:
            with ahead(*later):
                start = climb()
            self.saved.save_warm_start(start)
        if start.candidate:
            self.notes.append(f"Z started from {start.candidate}.")
        self.note_bound("warm start", 0, start.bound)
        return start

    def enter(self, phase: str) -> None:
        """Begin a phase; those that tell more of themselves are not announced."""
        self.clock.enter(phase)
        if phase not in ("rounds", "final", "conditional"):
            self.problem.progress.phase(phase)

    def tell(self, total: int) -> Watcher:
        """A watcher that reports, and ends a run whose time is up."""

        def watch(w: Watch) -> int | None:
            self.problem.progress.update(w.done, total, f"{w.done} of {total} draws")
            return w.chains.n_draws if self.over_time() else None

        return watch

    def over_time(self) -> bool:
        """Whether the minutes are used up."""
        return self.problem.over_time

    def note_bound(self, phase: str, step: int, bound: float, error: float = 0.0) -> None:
        """Add to the history of the bound."""
        self.history.append(BoundPoint(phase, step, self.clock.elapsed, bound, error))

    def reached(self, chains: Chains) -> bool:
        """Whether these draws are enough."""
        return convergence(chains.x[:, :, : self.n_theta]).reached(self.settings.target_ess)

    def thinned(self, chains: Chains, most: int | None = None) -> np.ndarray:
        """The draws that predict: evenly spaced, as many from every chain; no more than `most` if that is given."""
        wanted = min(self.settings.predictive_draws, most or self.settings.predictive_draws)
        each = min(max(wanted // len(chains.x), 1), chains.n_draws)
        evenly = np.linspace(0, chains.n_draws - 1, each).astype(int)
        return chains.x[:, evenly].reshape(-1, chains.x.shape[2])

    def or_one(self, chains: Chains | None, density: Density, x: np.ndarray) -> Chains:
        """The draws, or, where a fit ended before the first, the one point there is."""
        if chains is not None and chains.n_draws > 0:
            return chains
        return one_draw(x, density.at(x)[0])

    def verdict(self, chains: Chains) -> Verdict:
        """Judge the draws of φ."""
        reached = chains.n_draws >= 4 and self.reached(chains)
        found = verdict(
            chains,
            self.problem.model.names,
            target_ess=self.settings.target_ess,
            rejections=self.counter.failures,
            evaluations=self.counter.gradients + self.counter.values,
            max_depth=self.max_depth,
            ended="interrupted" if self.interrupted else "" if reached else "budget",
        )
        return replace(found, findings=(*found.findings, *self.findings))

    def posterior(
        self,
        method: str,
        chains: Chains,
        conditional: Conditional,
        optimum: np.ndarray,
        Z_path: np.ndarray | None = None,
        counts: dict[str, int] | None = None,
    ) -> Posterior:
        """Put the pieces together, with the verdict."""
        counter, problem = self.counter, self.problem
        chains = chains._replace(x=chains.x[:, :, : self.n_theta])
        self.clock.enter("")
        return Posterior(
            method=method,
            model=problem.model,
            scaler=problem.scaler,
            jitter=problem.jitter,
            chains=chains,
            conditional=conditional,
            verdict=self.judged or self.verdict(chains),
            optimum=optimum,
            history=tuple(self.history),
            Z_path=Z_path,
            seconds=dict(self.clock.seconds),
            counts={"gradients": counter.gradients, "values": counter.values}
            | {"failures": counter.failures, "blocks": self.saved.n_blocks}
            | (counts or {}),
            notes=tuple(self.notes),
            evidence=self.evidence,
        )
