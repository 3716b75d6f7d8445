"""Chains that jump, and NUTS where that does not pay: rounds, scouting and final draws of φ."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from integrand.infer.chains import Chains, SampledRun, Watch, Watcher
from integrand.infer.diagnostics import convergence
from integrand.infer.jumps import STAGES, Tuned, refitted, sample_jumps, tune_jumps
from integrand.infer.metric import Whitening
from integrand.methods.density import Density
from integrand.methods.problem import Settings

# Tuning draws of a final chain for each coordinate, and at most: they tell what the proposal of jumps looks like.
_EACH, _MOST = 7, 200
# With a smaller share of jumps accepted NUTS leads on.
_LEAST = 0.08
# So many final draws a chain tell more of the shape than tuning did: q is fitted once more, to all of them.
_REFIT = 100
# At the refit, and after so many draws a chain, there must be this much ESS for each: else chains are stuck, in a tail
# or a mode that q does not know. Those draws are thrown away.
_LEAST_ESS_AT_REFIT, _TRIAL, _LEAST_ESS = 0.02, 400, 0.05
# Chains that are stuck begin anew, so many times, from where so many draws of NUTS led them; then NUTS draws.
_AGAIN, _LEADING = 1, 50
# The acceptance that they aim at from then on, at least: steps were too long for where they were stuck.
_CAREFUL = 0.9
# Draws a chain that diagnostics need at least.
_JUDGED = 4


class Chaining(Protocol):
    """What is needed of `Sampling`, which uses this."""

    settings: Settings
    parallel: int
    n_theta: int
    target_accept: float
    notes: list[str]

    def run(
        self,
        density: Density,
        whitening: Whitening,
        starts: np.ndarray,
        tune: int,
        draws: int,
        purpose: Sequence[int],
        watch: Watcher,
    ) -> SampledRun:
        """All chains by NUTS."""
        ...

    def short_tune(self) -> int:
        """Tuning steps where a metric is nearly known."""
        ...

    def rewhitened(self, draws: np.ndarray, before: Whitening, density: Density) -> Whitening:
        """The whitening that draws tell."""
        ...


def tuning_draws(n: int, tune: int) -> int:
    """Tuning draws of final chains that jump in n coordinates, equal stages; `tune` is what NUTS would take."""
    each = -(-max(tune, min(_EACH * n, _MOST)) // STAGES)
    return STAGES * each


def jumping_round(
    sampling: Chaining,
    density: Density,
    whitening: Whitening,
    starts: np.ndarray,
    draws: int,
    purpose: Sequence[int],
    watch: Watcher,
) -> SampledRun | None:
    """Draws of a round, from the second half of tuning, whose step still moves; None where few jumps were accepted."""
    found = _tuned(sampling, density, whitening, starts, 2 * draws, [*purpose, 0], watch)
    if isinstance(found, SampledRun):  # cut short
        return found
    return found.latest if found.acceptance >= _LEAST else None


def jumping_run(
    sampling: Chaining,
    density: Density,
    whitening: Whitening,
    starts: np.ndarray,
    tune: int,
    draws: int,
    purpose: Sequence[int],
    watch: Watcher,
) -> SampledRun:
    """Final draws, as `Sampling.run` has them from NUTS alone; where jumps fail NUTS leads on, and at last draws."""
    return _Final(sampling, density, tune, draws, purpose, watch).run(whitening, starts)


def stuck(chains: Chains, n_theta: int) -> bool:
    """Whether draws, perhaps from disk, are those of jumps that the trials of a run would throw away."""
    if not np.isnan(chains.energy).all():  # NUTS made some
        return False
    trials = ((_TRIAL, _LEAST_ESS), (_REFIT, _LEAST_ESS_AT_REFIT))
    return next((_share(chains.first(n), n_theta) < least for n, least in trials if chains.n_draws >= n), False)


def _share(chains: Chains, n_theta: int) -> float:
    """The least ESS of a hyperparameter for each draw."""
    numbers = convergence(chains.x[:, :, :n_theta])
    return float(min(numbers.ess_bulk.min(), numbers.ess_tail.min())) / chains.x[:, :, 0].size


def _sound(density: Density, ends: np.ndarray) -> np.ndarray:
    """Ends that a trajectory can start from: where there is no gradient, another chain's."""
    found = [density.at(x) for x in ends]
    good = np.array([bool(np.isfinite(value) and np.all(np.isfinite(slope))) for value, slope in found])
    return np.where(good[:, None], ends, ends[np.argmax(good)])


class _Stuck(NamedTuple):
    """Chains that jumps do not move: why, what they drew, and where to go on from."""

    why: str
    run: SampledRun
    whitening: Whitening
    ends: np.ndarray


class _Final:
    """The final chains of one fit: attempts at jumps, with NUTS between and after them."""

    def __init__(
        self, sampling: Chaining, density: Density, tune: int, draws: int, purpose: Sequence[int], watch: Watcher
    ):
        self.sampling, self.density, self.purpose, self.watch = sampling, density, purpose, watch
        self.tune, self.draws = tune, draws
        self.fallen: SampledRun | None = None  # draws of chains that were stuck

    def run(self, whitening: Whitening, starts: np.ndarray) -> SampledRun:
        """All of it; where it is ended before it has other draws, those that would have been thrown away."""
        try:
            found = self.led(whitening, starts)
        except KeyboardInterrupt:  # between two runs of chains, which return what they have
            if self.fallen is None:
                raise
            return self.fallen._replace(interrupted=True)
        if found.chains.n_draws >= _JUDGED or self.fallen is None:
            return found
        return self.fallen._replace(interrupted=found.interrupted)

    def led(self, whitening: Whitening, starts: np.ndarray) -> SampledRun:
        """Jumps, and where they fail NUTS: first to lead chains to another attempt, at last to draw."""
        for attempt in range(1 + _AGAIN):
            tried = self.tried(whitening, starts, attempt)
            if isinstance(tried, SampledRun):
                return tried
            if tried.run.chains.n_draws:
                self.fallen = tried.run
            whitening, starts = tried.whitening, _sound(self.density, tried.ends)
            self.sampling.target_accept = max(self.sampling.target_accept, _CAREFUL)
            if attempt == _AGAIN:
                return self.by_nuts(whitening, starts, tried.why)
            short, purpose = self.sampling.short_tune(), [*self.purpose, 3]
            told = _unseen(self.watch)
            found = self.sampling.run(self.density, whitening, starts, short, _LEADING, purpose, told)
            if found.interrupted or found.chains.n_draws < _LEADING:  # the time was up
                return found
            whitening = self.sampling.rewhitened(found.chains.x, whitening, self.density)
            starts = found.chains.x[:, -1]
        raise AssertionError("the last attempt returns")

    def by_nuts(self, whitening: Whitening, starts: np.ndarray, why: str) -> SampledRun:
        """All draws by NUTS."""
        short, purpose = self.sampling.short_tune(), [*self.purpose, 1]
        told = _after(self.watch, self.tune, None, short)
        found = self.sampling.run(self.density, whitening, starts, short, self.draws, purpose, told)
        if found.chains.n_draws:
            self.sampling.notes.append(f"{why}: NUTS made the final draws.")
        return found

    def tried(self, whitening: Whitening, starts: np.ndarray, attempt: int) -> SampledRun | _Stuck:
        """All draws by jumps, or those until the time was up; the first ones tell a better q for the others."""
        sampling, density, tune, draws = self.sampling, self.density, self.tune, self.draws
        seeds = [[*self.purpose, 10 * attempt + k] for k in (0, 2, 4)]
        tuned = _tuned(sampling, density, whitening, starts, tune, seeds[0], self.watch)
        if isinstance(tuned, SampledRun):  # cut short
            return tuned._replace(chains=tuned.chains.first(0))
        if tuned.acceptance < _LEAST:
            assert tuned.latest is not None
            none = tuned.latest._replace(chains=tuned.latest.chains.first(0))  # the step was still learned
            return _Stuck(f"{tuned.acceptance:.0%} of the jumps were accepted", none, tuned.whitening, tuned.ends)
        trial = _Trial(self.watch, sampling.n_theta)
        found = _jumped(sampling, density, tuned, min(draws, _REFIT), seeds[1], _after(trial, tune, None, 0))
        found = found._replace(tuning_draws=tune)
        if trial.over or found.interrupted or draws <= found.chains.n_draws:
            return found
        try:
            if not trial.failed and not trial.fails(found.chains, _LEAST_ESS_AT_REFIT):
                tuned, left = refitted(tuned, found, bent=True), draws - found.chains.n_draws
                told = _after(trial, tune, found.chains, 0)
                found = _then(found, _jumped(sampling, density, tuned, left, seeds[2], told))
            if not trial.failed or found.interrupted or draws <= found.chains.n_draws:
                return found
            whitening = sampling.rewhitened(found.chains.x, tuned.whitening, density)
        except KeyboardInterrupt:  # between runs, which return what they have
            return found._replace(interrupted=True)
        why = f"{found.chains.n_draws} jumping draws a chain had {trial.ess:.2f} effective draws each"
        return _Stuck(why, found, whitening, found.chains.x[:, -1])


def _jumped(
    sampling: Chaining, density: Density, tuned: Tuned, draws: int, purpose: Sequence[int], watch: Watcher
) -> SampledRun:
    """Draws by what tuning found."""
    assert density.values is not None
    seed = [sampling.settings.seed, *purpose]
    return sample_jumps(
        density.at, density.values, tuned, draws=draws, seed=seed, parallel=sampling.parallel, watch=watch
    )


def _then(first: SampledRun, later: SampledRun) -> SampledRun:
    """Two runs of the same chains as one."""
    return later._replace(chains=first.chains.then(later.chains), tuning_draws=first.tuning_draws)


class _Trial:
    """Watches chains that jump, and ends them once if they got little out of their draws."""

    def __init__(self, watch: Watcher, n_theta: int):
        self.watch, self.n_theta = watch, n_theta
        self.looked, self.failed, self.ess = False, False, 1.0
        self.over = False  # whether a number of draws to keep was said

    def __call__(self, w: Watch) -> int | None:
        look = not self.looked and w.chains.n_draws >= _TRIAL
        # Whoever watches sees no more than is tried, however many draws there are by now.
        seen = w._replace(chains=w.chains.first(_TRIAL)) if look else w
        keep = self.watch(seen)
        self.over = self.over or keep is not None
        if keep is not None or not look:
            return keep
        self.looked = True
        return _TRIAL if self.fails(seen.chains, _LEAST_ESS) else None

    def fails(self, chains: Chains, least: float) -> bool:
        """Whether chains have less than this ESS for each of their draws."""
        self.ess = _share(chains, self.n_theta)
        self.failed = self.ess < least
        return self.failed


def _unseen(watch: Watcher) -> Watcher:
    """A watcher of draws that are thrown away: it sees none, and whatever number it says ends them."""

    def told(w: Watch) -> int | None:
        over = watch(w._replace(chains=w.chains.first(0), done=0))
        return None if over is None else w.chains.n_draws

    return told


def _after(watch: Watcher, tune: int, before: Chains | None, own_tune: int) -> Watcher:
    """A watcher of chains that come after `tune` draws of tuning and the draws `before`, which it sees too.

    What it says to keep is of all draws together.
    """
    n_before = 0 if before is None else before.n_draws

    def told(w: Watch) -> int | None:
        chains = w.chains if before is None else before.then(w.chains)
        keep = watch(w._replace(chains=chains, done=tune + n_before + max(0, w.done - own_tune)))
        return None if keep is None else max(0, keep - n_before)

    return told


def _tuned(
    sampling: Chaining,
    density: Density,
    whitening: Whitening,
    starts: np.ndarray,
    draws: int,
    purpose: Sequence[int],
    watch: Watcher,
) -> Tuned | SampledRun:
    assert density.values is not None
    return tune_jumps(
        density.at,
        density.values,
        starts,
        whitening,
        draws=draws,
        seed=[sampling.settings.seed, *purpose],
        bent=True,
        target_accept=sampling.target_accept,
        parallel=sampling.parallel,
        watch=watch,
    )
