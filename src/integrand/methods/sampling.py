"""What every sampling method does alike: choose a sampler, disperse starts, draw pilots, and draw until converged."""

import time
from collections.abc import Callable

import numpy as np

from integrand.errors import counted
from integrand.infer.base import Chains, Sampler, Snapshot, Target
from integrand.infer.convergence import convergence
from integrand.infer.coordinates import Coordinates
from integrand.infer.default_sampler import DefaultSampler
from integrand.infer.nuts import NUTS
from integrand.methods.problem import FitContext, Settings
from integrand.progress import Progress

# Convergence is first checked at this many draws per chain, then every 25.
FIRST_CHECK, CHECK_EVERY = 100, 25
# Seconds between two saves of the draws; more if saving would take a larger share of the time than this.
SAVE_SECONDS, SAVE_SHARE = 5.0, 0.02
# Starts of chains: wider than the posterior, so that R-hat can see chains that have not found it.
START_WIDTH = 1.5
# Pilot trajectories of NUTS have up to 7 steps. In whitened coordinates that is half a period.
PILOT_DEPTH = 3
# With more divergences than this share of a pilot's trajectories, the target acceptance is raised.
MAX_DIVERGING, CAREFUL_ACCEPT = 0.01, 0.9


def sampler_for(settings: Settings, target: Target) -> Sampler:
    """The sampler of the settings; by default independence MH where values alone are cheap, else NUTS."""
    if settings.sampler == "default" and target.fast_values and target.dimension == target.n_theta:
        return DefaultSampler()
    # Nested sampling has no rounds: pilots are drawn by NUTS.
    if settings.sampler in ("default", "nuts", "nested"):
        return NUTS()
    from integrand.infer.blackjax_kernels import BlackJaxKernel

    return BlackJaxKernel(settings.sampler)


def one_draw(x: np.ndarray, target: Target) -> Chains:
    """A single draw at x, for a fit that ended before it had any other."""
    return Chains.of_one_point(x, target.value_and_gradient(x)[0])


def implausible(value: float, best: float, dimension: int) -> bool:
    """Whether a log density is too low, beside the one at a mode, for a draw or the start of a chain.

    1.5 standard deviations cost a Gaussian about one nat per dimension. Where it is a hundred nats more, as on the edge
    of what can be factored when the noise is nearly zero, a chain would not find its way back.
    """
    return not (np.isfinite(value) and value >= best - 100.0 - 10.0 * dimension)


def dispersed_starts(
    context: FitContext, target: Target, coordinates: Coordinates, seed: tuple[int, ...]
) -> np.ndarray:
    """Starts of the chains, each moved towards the centre until its log density is plausible."""
    rng = np.random.default_rng([context.settings.seed, *seed])
    etas = START_WIDTH * rng.standard_normal((context.settings.chains, coordinates.dimension))
    best = target.value_and_gradient(coordinates.middle)[0]
    for eta in etas:
        while np.any(eta != 0.0) and implausible(target.value_and_gradient(coordinates.to_x(eta))[0], best, len(eta)):
            eta *= 0.5 if np.abs(eta).max() > 1e-3 else 0.0
    return coordinates.to_x(etas)


def draw_pilot(
    context: FitContext, target: Target, sampler: Sampler, coordinates: Coordinates, round_number: int
) -> Chains:
    """The draws of a round; if some diverge, the target acceptance is higher from here on."""
    settings = context.settings
    context.progress.phase(f"round {round_number + 1}: draw θ")
    if not sampler.can_warp(target):
        coordinates = coordinates.unwarped()
    starts = dispersed_starts(context, target, coordinates, (1, round_number))
    plan = context.plan(
        (2, round_number),
        target,
        warmup=settings.warmup if round_number == 0 else context.short_warmup,
        draws=settings.round_draws,
        max_depth=PILOT_DEPTH,
    )
    callback = context.stop_in_time(2 * settings.round_draws)
    chains = context.record(target, sampler.pilot(target, starts, coordinates, plan, callback)).chains
    divergences = int(chains.diverging.sum())
    if divergences > MAX_DIVERGING * chains.n_trajectories and context.target_accept < CAREFUL_ACCEPT:
        context.target_accept = CAREFUL_ACCEPT
        context.notes.append(
            f"{divergences} draws of round {round_number + 1} diverged: target_accept was raised to {CAREFUL_ACCEPT}."
        )
    return chains


def draw_until_converged(
    context: FitContext, target: Target, sampler: Sampler, coordinates: Coordinates, min_warmup: int = 1
) -> Chains | None:
    """Final chains, until R-hat and ESS of θ are reached or the budget ends; None before the first draw.

    `min_warmup` is for methods whose chains need a longer warm-up than the settings say.
    """
    pilot: Chains | None = None
    try:
        settings, store = context.settings, context.store
        context.phase("final")
        before, block = store.draws(), store.n_blocks
        if context.over_time:
            saved = store.scouted()
            return before or (None if saved is None else saved[1])
        if settings.sampler == "nested":
            from integrand.methods.nested import draw_nested

            return draw_nested(context, target)
        if before is not None and before.n_draws >= 2:
            x = before.x[:, :, : coordinates.dimension]  # draws may hold latent values too
            coordinates = coordinates.refit(x, warp=sampler.can_warp(target))
            starts, warmup = before.x[:, -1], max(context.short_warmup, min_warmup // 2)
        elif coordinates.warp is None and sampler.can_warp(target):
            coordinates, pilot = _scout(context, target, sampler, coordinates)
            if context.interrupted or context.over_time:
                return pilot
            starts, warmup = pilot.x[:, -1], context.short_warmup
            if len(starts) != settings.chains:  # a resumed run may have another number of chains
                starts = dispersed_starts(context, target, coordinates, (3,))
        else:
            coordinates = coordinates if sampler.can_warp(target) else coordinates.unwarped()
            starts = dispersed_starts(context, target, coordinates, (3,))
            warmup = max(settings.warmup, min_warmup)
        warmup = sampler.warmup(target.dimension, warmup)
        left = settings.max_draws - (before.n_draws if before is not None else 0)
        if left <= 0 or (before is not None and context.converged(before)):
            return before
        if before is not None and sampler.discards(before, target.n_theta):
            for k in range(block):
                store.drop_draws(k)
            before, block, left = None, 0, settings.max_draws
        context.progress.phase("final draws")
        monitor = ConvergenceMonitor(
            before,
            target.n_theta,
            settings.target_ess,
            warmup,
            save=lambda chains: context.save_draws(block, chains),
            drop=lambda: store.drop_draws(block),
            over_time=lambda: context.over_time,
            progress=context.progress,
        )
        plan = context.plan((4, block), target, warmup=warmup, draws=left)
        run = context.record(target, sampler.run(target, starts, coordinates, plan, monitor))
        store.save_draws(block, run.chains)
        if before is None:
            return run.chains or pilot or run.chains
        return before.then(run.chains)
    except KeyboardInterrupt:  # between two runs of chains, which return what they have
        context.interrupted = True
        return context.store.draws() or pilot


def _scout(
    context: FitContext, target: Target, sampler: Sampler, coordinates: Coordinates
) -> tuple[Coordinates, Chains]:
    """Short chains that show the shape of the density, for methods without rounds; kept in the run directory."""
    saved = context.store.scouted()
    if saved is not None:
        return saved
    settings = context.settings
    context.phase("scouting")
    starts = dispersed_starts(context, target, coordinates, (3,))
    draws = max(2, min(settings.round_draws, settings.max_draws))
    plan = context.plan((5,), target, warmup=settings.warmup, draws=draws)
    run = context.record(target, sampler.pilot(target, starts, coordinates, plan, context.stop_in_time(2 * draws)))
    if run.interrupted or context.over_time:
        context.store.save_draws(0, run.chains)
        return coordinates, run.chains
    coordinates = coordinates.refit(run.chains.x, warp=True)
    context.store.save_scouted(coordinates, run.chains)
    context.clock.enter("final")
    return coordinates, run.chains


class ConvergenceMonitor:
    """The callback of final chains: saves draws, shows progress, and says when the draws are enough for θ.

    Checks are at 100 draws per chain and every 25 after that (every 50 from 2000, every 75 from 3000, and so on), so
    the number of draws that are kept depends on the draws alone. Fewer draws than at the last call mean that the
    sampler began again: draws on disk are removed, and checks begin again.
    """

    def __init__(
        self,
        before: Chains | None,
        n_theta: int,
        target_ess: float,
        warmup: int,
        *,
        save: Callable[[Chains], None],
        drop: Callable[[], None],
        over_time: Callable[[], bool],
        progress: Progress,
    ):
        self.before, self.n_theta, self.target_ess, self.warmup = before, n_theta, target_ess, warmup
        self.save, self.drop, self.over_time, self.progress = save, drop, over_time, progress
        self.n_before = before.n_draws if before is not None else 0
        self.next_check = self.first_check = max(FIRST_CHECK, self.n_before + CHECK_EVERY)
        self.n_draws = 0  # of this block
        self.saved_at, self.save_took = 0.0, 0.0
        self.seconds = 0.0  # of the latest call, since these chains began
        self.text = ""

    def __call__(self, s: Snapshot) -> int | None:
        """How many draws of this block to keep, once it is time to stop."""
        if s.chains.n_draws < self.n_draws:
            self.drop()
            self.next_check, self.text = self.first_check, ""
        self.n_draws = s.chains.n_draws
        n = self.n_before + s.chains.n_draws
        while self.next_check <= n:
            current = self.next_check - self.n_before
            x = s.chains.first(current).x
            x = np.concatenate([self.before.x, x], axis=1) if self.before is not None else x
            numbers = convergence(x[:, :, : self.n_theta])
            least = min(numbers.ess_bulk.min(), numbers.ess_tail.min())
            self.text = f", R-hat {numbers.r_hat.max():.3f}, ESS {least:.0f}"
            self.next_check += CHECK_EVERY * max(1, self.next_check // 1000)
            if numbers.reached(self.target_ess):
                return current
        if s.seconds < self.seconds:  # other chains go on where those before ended, with a clock that starts at zero
            self.saved_at -= self.seconds
        self.seconds = s.seconds
        if s.chains and s.seconds - self.saved_at > max(SAVE_SECONDS, self.save_took / SAVE_SHARE):
            began = time.monotonic()
            self.save(s.chains)
            self.saved_at, self.save_took = s.seconds, time.monotonic() - began
        self._show(s, n)
        return s.chains.n_draws if self.over_time() else None

    def _show(self, s: Snapshot, n: int) -> None:
        divergences = int(s.chains.diverging.sum())
        diverged = f", {divergences} diverged" if divergences else ""
        text = f"warm-up, {s.done} draws" if s.done < self.warmup else f"{counted(n, 'draw')}{diverged}{self.text}"
        # The next check may be the last one: that is all the total can say.
        self.progress.update(self.n_before + s.done, self.n_before + self.warmup + self.next_check, text)
