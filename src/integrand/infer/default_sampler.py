"""The default sampler of θ: independence Metropolis-Hastings, and NUTS where its proposals are rejected too often.

Independence MH is tried twice. It has failed if fewer than 8 % of its proposals are accepted at the end of warm-up, or
if its chains later yield too few effective draws per draw: they are then in a tail or a mode that q does not cover.
After the first failure 50 draws of NUTS find better starts and coordinates. After the second NUTS makes all draws.
"""

from dataclasses import dataclass

import numpy as np

from integrand.infer.base import Callback, Chains, Matrix, Plan, Run, Sampler, Snapshot, Target
from integrand.infer.convergence import convergence
from integrand.infer.coordinates import Coordinates
from integrand.infer.independence_mh import Adapted, IndependenceMH
from integrand.infer.nuts import NUTS

# Draws per chain that R-hat and ESS need.
MIN_DIAGNOSED = 4


@dataclass(frozen=True)
class DefaultSampler(Sampler):
    """Independence MH with NUTS as its fallback; `docs/evidence/speed.md` says which benchmark chose the numbers."""

    warps = True

    proposals: IndependenceMH = IndependenceMH()
    fallback: NUTS = NUTS()
    min_accepted: float = 0.08  # with fewer accepted, a draw of NUTS costs less per effective draw
    refit_after: int = 100  # draws per chain after which q is fitted again, once, to all draws
    min_ess_at_refit: float = 0.02  # effective draws per draw
    trial_draws: int = 400
    min_ess_of_trial: float = 0.05
    draws_between: int = 50  # draws of NUTS between two attempts
    careful_accept: float = 0.9  # target acceptance after a failure: steps were too long for where chains were stuck

    def warmup(self, dimension: int, wanted: int) -> int:
        """That of independence MH."""
        return self.proposals.warmup(dimension, wanted)

    def pilot(self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback) -> Run:
        """The draws of the second half of a warm-up, while the step size still adapts; NUTS if few are accepted."""
        warmup = plan.but(warmup=2 * plan.draws, seed=(*plan.seed, 0))
        adapted = self.proposals.warm_up(target, starts, coordinates, warmup, callback)
        if isinstance(adapted, Run):  # cut short
            return adapted
        if adapted.acceptance >= self.min_accepted and adapted.latest is not None:
            return adapted.latest
        return self.fallback.run(target, starts, coordinates, plan, callback)

    def run(self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback) -> Run:
        """All draws. Draws of a failed attempt are returned only if the run ends before there are others."""
        rejected: Run | None = None
        try:
            for attempt in (0, 1):
                attempted = self._attempt(target, starts, coordinates, plan, callback, attempt)
                if isinstance(attempted, Run):
                    return _or(attempted, rejected)
                rejected = attempted.run if attempted.run.chains else rejected
                coordinates, starts = attempted.coordinates, _finite_starts(target, attempted.ends)
                plan = plan.but(target_accept=max(plan.target_accept, self.careful_accept))
                short = plan.but(warmup=plan.short_warmup)
                if attempt == 1:
                    later = _after(callback, plan.warmup, None, plan.short_warmup)
                    run = self.fallback.run(target, starts, coordinates, short.but(seed=(*plan.seed, 1)), later)
                    notes = (f"{attempted.reason}: NUTS made the final draws.",) if run.chains else ()
                    return _or(run._replace(notes=notes), rejected)
                between = short.but(draws=self.draws_between, seed=(*plan.seed, 3))
                run = self.fallback.run(target, starts, coordinates, between, _without_draws(callback))
                if run.interrupted or run.chains.n_draws < self.draws_between:  # the time was up
                    return _or(run, rejected)
                coordinates, starts = coordinates.refit(run.chains.x, warp=True), run.chains.x[:, -1]
        except KeyboardInterrupt:  # between two runs of chains, which return what they have
            if rejected is None:
                raise
            return rejected._replace(interrupted=True)
        raise AssertionError("the last attempt returns")

    def discards(self, chains: Chains, n_theta: int) -> bool:
        """Whether these are independence draws with too small an ESS; draws of NUTS are kept."""
        if not np.isnan(chains.energy).all():  # NUTS made some
            return False
        trials = ((self.trial_draws, self.min_ess_of_trial), (self.refit_after, self.min_ess_at_refit))
        return next(
            (ess_per_draw(chains.first(n), n_theta) < least for n, least in trials if chains.n_draws >= n), False
        )

    def _attempt(
        self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback, attempt: int
    ) -> "Run | _Failed":
        """All draws by independence MH, or those until the time was up, or why it failed."""
        seeds = [(*plan.seed, 10 * attempt + k) for k in (0, 2, 4)]
        adapted = self.proposals.warm_up(target, starts, coordinates, plan.but(seed=seeds[0]), callback)
        if isinstance(adapted, Run):  # cut short
            return adapted._replace(chains=adapted.chains.first(0))
        if adapted.acceptance < self.min_accepted:
            assert adapted.latest is not None
            none = adapted.latest._replace(chains=adapted.latest.chains.first(0))  # its step size still adapted
            reason = f"{adapted.acceptance:.0%} of the independence proposals were accepted"
            return _Failed(reason, none, adapted.coordinates, adapted.ends)
        trial = _Trial(callback, target.n_theta, self.trial_draws, self.min_ess_of_trial)
        first = plan.but(draws=min(plan.draws, self.refit_after), seed=seeds[1])
        run = self.proposals.sample(target, adapted, first, _after(trial, plan.warmup, None, 0))
        if trial.stopped or run.interrupted or plan.draws <= run.chains.n_draws:
            return run
        try:
            if not trial.failed and not trial.fails(run.chains, self.min_ess_at_refit):
                adapted = adapted.refitted(run)
                run = self._more(target, adapted, plan.but(seed=seeds[2]), run, trial)
            if not trial.failed or run.interrupted or plan.draws <= run.chains.n_draws:
                return run
            coordinates = adapted.coordinates.refit(run.chains.x, warp=True)
        except KeyboardInterrupt:  # between runs, which return what they have
            return run._replace(interrupted=True)
        reason = f"{run.chains.n_draws} independence draws per chain had {trial.ess:.2f} effective draws each"
        return _Failed(reason, run, coordinates, run.chains.x[:, -1])

    def _more(self, target: Target, adapted: Adapted, plan: Plan, run: Run, trial: "_Trial") -> Run:
        """The draws of `run`, and after them those that are still to be made."""
        left = plan.but(draws=plan.draws - run.chains.n_draws)
        later = self.proposals.sample(target, adapted, left, _after(trial, plan.warmup, run.chains, 0))
        return later._replace(chains=run.chains.then(later.chains))


def ess_per_draw(chains: Chains, n_theta: int) -> float:
    """The smallest bulk or tail ESS of a hyperparameter, for each draw."""
    numbers = convergence(chains.x[:, :, :n_theta])
    return float(min(numbers.ess_bulk.min(), numbers.ess_tail.min())) / chains.x[:, :, 0].size


@dataclass(frozen=True)
class _Failed:
    """A failed attempt: why, what it drew, and where to go on from."""

    reason: str
    run: Run
    coordinates: Coordinates
    ends: Matrix


class _Trial:
    """A callback that ends independence chains once if they got few effective draws out of `draws`."""

    def __init__(self, callback: Callback, n_theta: int, draws: int, min_ess: float):
        self.callback, self.n_theta, self.draws, self.min_ess = callback, n_theta, draws, min_ess
        self.done, self.failed, self.ess = False, False, 1.0
        self.stopped = False  # whether the callback said how many draws to keep

    def __call__(self, s: Snapshot) -> int | None:
        due = not self.done and s.chains.n_draws >= self.draws
        # The callback sees no more than is tried, however many draws there are by now.
        visible = s._replace(chains=s.chains.first(self.draws)) if due else s
        keep = self.callback(visible)
        self.stopped = self.stopped or keep is not None
        if keep is not None or not due:
            return keep
        self.done = True
        return self.draws if self.fails(visible.chains, self.min_ess) else None

    def fails(self, chains: Chains, least: float) -> bool:
        """Whether chains have less than this ESS per draw."""
        self.ess = ess_per_draw(chains, self.n_theta)
        self.failed = self.ess < least
        return self.failed


def _or(run: Run, rejected: Run | None) -> Run:
    """The run, or the draws of a failed attempt where it has too few to judge."""
    return (
        run
        if rejected is None or run.chains.n_draws >= MIN_DIAGNOSED
        else rejected._replace(interrupted=run.interrupted)
    )


def _finite_starts(target: Target, ends: Matrix) -> Matrix:
    """Ends that a trajectory can start from: where there is no gradient, another chain's end."""
    evaluated = [target.value_and_gradient(x) for x in ends]
    finite = np.array([bool(np.isfinite(value) and np.all(np.isfinite(gradient))) for value, gradient in evaluated])
    return np.where(finite[:, None], ends, ends[np.argmax(finite)])


def _without_draws(callback: Callback) -> Callback:
    """A callback for draws that are thrown away: it sees none, and whatever number it returns ends the run."""

    def called(s: Snapshot) -> int | None:
        stop = callback(s._replace(chains=s.chains.first(0), done=0))
        return None if stop is None else s.chains.n_draws

    return called


def _after(callback: Callback, warmup: int, before: Chains | None, own_warmup: int) -> Callback:
    """A callback for chains that come after `warmup` draws and the draws `before`, which it sees too.

    The number it returns is of all draws together.
    """
    n_before = 0 if before is None else before.n_draws

    def called(s: Snapshot) -> int | None:
        chains = s.chains if before is None else before.then(s.chains)
        keep = callback(s._replace(chains=chains, done=warmup + n_before + max(0, s.done - own_warmup)))
        return None if keep is None else max(0, keep - n_before)

    return called
