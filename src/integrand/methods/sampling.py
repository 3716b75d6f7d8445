"""What every sampling method does alike: start chains, watch them, and keep them on disk."""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from integrand.infer.chains import Chains, SampledRun, Watcher
from integrand.infer.metric import Whitening, whitening_from_draws
from integrand.infer.nuts import load_engine, sample_nuts
from integrand.methods.density import Density, pulled_in
from integrand.methods.jumping import jumping_round, jumping_run, stuck, tuning_draws
from integrand.methods.problem import TRACED, Problem
from integrand.methods.record import FitRecord
from integrand.methods.watch import FinalWatch
from integrand.targets import Counter

# Samplers that BlackJAX runs need more steps to find their step size than NUTS in whitened coordinates does.
_LEAST_TUNE = 300
# Samplers for which `run` calls NUTS; by default chains of φ alone jump first.
_BY_NUTS = ("default", "nuts", "nested")


class Sampling(FitRecord):
    """The chains of one fit, and its record."""

    def __init__(self, problem: Problem, counter: Counter, parallel: int):
        super().__init__(problem, counter, parallel)
        self.target_accept = self.settings.target_accept
        self.bends = True  # whether long tails may be bent, where jumps or NUTS draw
        self.least_tune = 1  # tuning steps of the final chains, where a method needs more than the settings say
        self.scouting: Chains | None = None  # draws that final chains begin from, and that stand in for them

    def loading(self, jumps: bool = False) -> list[Callable[[], object]]:
        """For `later`: the import of nutpie, where NUTS draws (if chains jump, it is rarely needed)."""
        rarely = jumps and self.settings.sampler == "default"
        return [load_engine] if self.settings.sampler in _BY_NUTS and not rarely else []

    def run(
        self,
        density: Density,
        whitening: Whitening,
        starts: np.ndarray,
        tune: int,
        draws: int,
        purpose: Sequence[int],
        watch: Watcher,
        max_depth: int | None = None,
    ) -> SampledRun:
        """One run of all chains with the method's own sampler, or that of the settings."""
        assert whitening.bend is None or self.may_bend(density, len(whitening.centre))
        sampler, seed = self.settings.sampler, [self.settings.seed, *purpose]
        common = {"draws": draws, "seed": seed, "parallel": self.parallel, "watch": watch}
        common |= {"tune": self.tuning(density, tune)}
        if density.own is not None:
            result = density.own(starts, whitening, **common)
            self.counter.gradients += result.evaluations
            self.counter.failures += result.failures
            return result
        if self.by_nuts(density):
            common |= {"target_accept": self.target_accept, "max_depth": max_depth or self.max_depth}
            return sample_nuts(density.at, starts, whitening, **common)
        from integrand.infer.samplers import sample_traced

        assert density.traced is not None  # `fit` refuses samplers that a method does not have
        common["target_accept"] = self.target_accept if sampler == "hmc" else None
        result = sample_traced(sampler, density.traced(), starts, whitening, **common)
        self.counter.gradients += result.evaluations
        self.counter.failures += result.failures
        return result

    def run_round(
        self,
        density: Density,
        whitening: Whitening,
        starts: np.ndarray,
        tune: int,
        draws: int,
        purpose: Sequence[int],
        max_depth: int | None = None,
    ) -> SampledRun:
        """Few draws, of a round or of scouting: by jumps, or by `run` where they are not made or not accepted."""
        if self.may_jump(density, len(whitening.centre)):
            watch = self.tell(2 * draws)
            result = jumping_round(self, density, whitening, starts, draws, purpose, watch)
            if result is not None:
                return result
        return self.run(density, whitening, starts, tune, draws, purpose, self.tell(tune + draws), max_depth)

    def final_draws(self, density: Density, whitening: Whitening) -> Chains | None:
        """Chains that go on until every hyperparameter has converged, or time or draws are used up; None before any."""
        self.clock.enter("final")
        chains, block = self.saved.draws(), self.saved.n_blocks
        if self.over_time():
            return chains or self._scouted_before()
        if self.settings.sampler == "nested" and density.traced is not None:
            return self._nested(density)
        begun = self._begin(density, whitening, chains)
        if isinstance(begun, Chains):
            return begun
        whitening, starts, tune = begun
        jumps = self.may_jump(density, len(whitening.centre))
        tune = tuning_draws(len(whitening.centre), tune) if jumps else self.tuning(density, tune)
        left = self.settings.max_draws - (chains.n_draws if chains else 0)
        if left <= 0 or (chains is not None and self.reached(chains)):
            return chains
        if jumps and chains is not None and stuck(chains, self.n_theta):  # a run that was cut short left them
            for k in range(block):
                self.saved.drop_draws(k)
            chains, block, left = None, 0, self.settings.max_draws
        self.problem.progress.phase("final draws")
        watch = FinalWatch(
            chains,
            self.n_theta,
            self.settings.target_ess,
            tune,
            lambda drawn: self.saved.save_draws(block, drawn),
            lambda: self.saved.drop_draws(block),
            self.over_time,
            self.problem.progress,
        )
        run = functools.partial(jumping_run, self) if jumps else self.run
        try:
            result = run(density, whitening, starts, tune, left, [4, block], watch)
        except KeyboardInterrupt:  # between two runs of chains, which return what they have
            self.interrupted = True
            return self.saved.draws() or self.scouting
        self.interrupted = result.interrupted
        self.saved.save_draws(block, result.chains)
        if chains is None and result.chains.n_draws == 0:
            return self.scouting or result.chains
        return chains.then(result.chains) if chains else result.chains

    def _begin(
        self, density: Density, whitening: Whitening, chains: Chains | None
    ) -> tuple[Whitening, np.ndarray, int] | Chains:
        """Coordinates, starts and tuning steps of final chains; draws, where the time was up or the user ended it."""
        if chains is not None and chains.n_draws >= 2:
            n = len(whitening.centre)
            tune = max(self.short_tune(), self.least_tune // 2)
            return self.rewhitened(chains.x[:, :, :n], whitening, density), chains.x[:, -1], tune
        if whitening.bend is None and self.may_bend(density, len(whitening.centre)):
            return self._scouted(density, whitening)
        whitening = self.usable(whitening, density)
        return whitening, self.dispersed(density, whitening, [3]), max(self.settings.tune, self.least_tune)

    def _scouted(self, density: Density, whitening: Whitening) -> tuple[Whitening, np.ndarray, int] | Chains:
        """The same from short chains that show the shape of the density; methods that move Z have their rounds."""
        found = self.saved.scouted()
        if found is None:
            self.enter("scouting")
            starts = self.dispersed(density, whitening, [3])
            draws = max(2, min(self.settings.round_draws, self.settings.max_draws))
            result = self.run_round(density, whitening, starts, self.settings.tune, draws, [5])
            self.interrupted = result.interrupted
            if self.interrupted or self.over_time():
                self.saved.save_draws(0, result.chains)
                return result.chains
            found = self.rewhitened(result.chains.x, whitening, density), result.chains
            self.saved.save_scouted(*found)
            self.clock.enter("final")
        whitening, self.scouting = found
        ends = self.scouting.x[:, -1]
        if len(ends) != self.settings.chains:  # a resumed run may have others
            ends = self.dispersed(density, whitening, [3])
        return whitening, ends, self.short_tune()

    def _scouted_before(self) -> Chains | None:
        found = self.saved.scouted()
        return None if found is None else found[1]

    def by_nuts(self, density: Density) -> bool:
        """Whether `run` draws with NUTS; nested sampling has no rounds of its own."""
        return density.own is None and self.settings.sampler in _BY_NUTS

    def may_jump(self, density: Density, n: int) -> bool:
        """Whether final chains jump, which takes values alone; a sampler that was asked for draws all by itself."""
        return density.values is not None and self.settings.sampler == "default" and self.may_bend(density, n)

    def may_bend(self, density: Density, n: int) -> bool:
        """Whether coordinates may be bent: where jumps or NUTS draw φ and nothing else."""
        return self.bends and self.by_nuts(density) and n == self.n_theta

    def usable(self, whitening: Whitening, density: Density) -> Whitening:
        """A whitening, perhaps from disk, as the sampler of this density can use it."""
        return whitening if self.may_bend(density, len(whitening.centre)) else whitening.straightened()

    def rewhitened(self, draws: np.ndarray, before: Whitening, density: Density) -> Whitening:
        """The whitening that draws (chain, draw, coordinate) tell, bent where jumps or NUTS draw φ alone."""
        n = draws.shape[2]
        return whitening_from_draws(draws.reshape(-1, n), before, self.may_bend(density, n))

    def tuning(self, density: Density, tune: int) -> int:
        """Tuning steps of the sampler that `run` will use."""
        traced = density.own is None and self.settings.sampler in TRACED
        return max(tune, _LEAST_TUNE) if traced else tune

    def _nested(self, density: Density) -> Chains:
        """Draws of equal weight from nested sampling, with their verdict and evidence."""
        from integrand.methods.nested import nested_draws, nested_verdict

        assert density.traced is not None
        drawn = nested_draws(self.problem, density.traced(), self.saved, self.parallel, self.over_time)
        self.counter.gradients += drawn.evaluations
        self.interrupted, self.evidence = drawn.interrupted, drawn.evidence
        self.judged = nested_verdict(drawn, self.problem, self.counter.failures, self.counter.gradients)
        self.notes.append(f"The log evidence is {drawn.evidence[0]:.2f} ± {drawn.evidence[1]:.2f}.")
        return drawn.chains

    def dispersed(self, density: Density, whitening: Whitening, purpose: Sequence[int]) -> np.ndarray:
        """Starts for the chains, wider than the posterior."""
        rng = np.random.default_rng([self.settings.seed, *purpose])
        starts = 1.5 * rng.standard_normal((self.settings.chains, len(whitening.centre)))
        return whitening.to_x(pulled_in(density, whitening, starts))

    def short_tune(self) -> int:
        """Tuning steps where a metric and a step size are nearly known."""
        return max(1, self.settings.tune // 2)
