"""Chains that jump, and NUTS where that does not pay: rounds, scouting and final draws of φ."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from integrand.infer.chains import Chains, SampledRun, Watch, Watcher
from integrand.infer.diagnostics import convergence
from integrand.infer.jumps import STAGES, Tuned, refitted, sample_jumps, tune_jumps
from integrand.infer.metric import Whitening
from integrand.methods.density import Density
from integrand.methods.problem import Settings

# Tuning draws of a final chain for each coordinate, and at most: they tell what the proposal of jumps looks like.
_EACH, _MOST = 7, 200
# With a smaller share of jumps accepted NUTS draws; in a round the fit is young.
_LEAST_FINAL, _LEAST_ROUND = 0.25, 0.08
# So many final draws a chain tell more of the shape than tuning did: q is fitted once more, to all of them.
_REFIT = 100
# After so many draws a chain there must be this much ESS for each: else a tail holds chains, and NUTS goes on.
_TRIAL, _LEAST_ESS = 400, 0.05


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
    return found.latest if found.acceptance >= _LEAST_ROUND else None


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
    """Final draws, as `Sampling.run` has them from NUTS alone; the first ones tell a better q for the others."""
    assert density.values is not None
    tuned = _tuned(sampling, density, whitening, starts, tune, [*purpose, 0], watch)
    if isinstance(tuned, SampledRun):  # cut short
        return tuned._replace(chains=tuned.chains.first(0))
    short = sampling.short_tune()
    if tuned.acceptance < _LEAST_FINAL:
        sampling.notes.append(f"{tuned.acceptance:.0%} of the jumps were accepted: NUTS made the final draws.")
        told = _after(watch, tune, None, short)
        return sampling.run(density, tuned.whitening, tuned.ends, short, draws, [*purpose, 1], told)
    trial = _Trial(watch, sampling.n_theta)
    found = _jumped(sampling, density, tuned, min(draws, _REFIT), [*purpose, 2], _after(trial, tune, None, 0))
    found = found._replace(tuning_draws=tune)
    if not trial.over and not found.interrupted and draws > found.chains.n_draws:
        try:
            tuned, left = refitted(tuned, found, bent=True), draws - found.chains.n_draws
            told = _after(trial, tune, found.chains, 0)
            found = _then(found, _jumped(sampling, density, tuned, left, [*purpose, 4], told))
        except KeyboardInterrupt:  # between the two, which return what they have
            return found._replace(interrupted=True)
    if not trial.failed or found.interrupted or draws <= found.chains.n_draws:
        return found
    sampling.notes.append(f"Jumps gave {trial.ess:.2f} effective draws a draw: NUTS went on after {_TRIAL} a chain.")
    whitening, ends = sampling.rewhitened(found.chains.x, tuned.whitening, density), found.chains.x[:, -1]
    told = _after(watch, tune, found.chains, short)
    left = draws - found.chains.n_draws
    return _then(found, sampling.run(density, whitening, ends, short, left, [*purpose, 3], told))


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
        keep = self._kept(w)
        self.over = self.over or keep is not None
        return keep

    def _kept(self, w: Watch) -> int | None:
        keep = self.watch(w)
        if keep is not None or self.looked or w.chains.n_draws < _TRIAL:
            return keep
        self.looked = True
        x = w.chains.first(_TRIAL).x[:, :, : self.n_theta]
        numbers = convergence(x)
        self.ess = float(min(numbers.ess_bulk.min(), numbers.ess_tail.min())) / (len(x) * _TRIAL)
        self.failed = self.ess < _LEAST_ESS
        return _TRIAL if self.failed else None


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
