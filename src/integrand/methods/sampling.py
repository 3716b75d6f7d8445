"""Steps of every sampling method: search for modes, choose a sampler and starts, draw pilots, draw until converged."""

import time
from collections.abc import Callable

import numpy as np

from integrand.errors import counted
from integrand.infer.base import Chains, Proposals, Sampler, Snapshot, Target
from integrand.infer.coordinates import Coordinates
from integrand.infer.default_sampler import DefaultSampler
from integrand.infer.evidence import evidence, second_opinion
from integrand.infer.mixture import DISPERSED, broad_components, dispersed_points
from integrand.infer.modes import find_modes
from integrand.infer.nuts import NUTS
from integrand.infer.stopping import StoppingRule
from integrand.methods.problem import FitContext, Settings
from integrand.model import Model
from integrand.progress import Progress

# Points that a search for modes starts from: half of them plausible, the others not even that.
SEARCH_STARTS = 16
# Values of a search that are computed where rows are few, so that little is known and a value costs microseconds: this
# divided by N², with an upper limit. (`make bench-truth` has posteriors that need them.)
SEARCH_WORK, MOST_POINTS = 4e7, 4_000
# Values that a search computes between two looks at the clock.
VALUES_AT_ONCE = 16
# How far below its prior's median the logarithm of the noise is in a quarter of them.
LITTLE_NOISE = 3.0
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


def search_modes(context: FitContext, target: Target, coordinates: Coordinates, name: str) -> None:
    """Look for optima from dispersed points, and around those known; `context.modes` are those that are distinct.

    Only where θ is all that is drawn and a value is cheap. With many rows some of them search, and from the optima that
    they have all rows go on. What was found is kept in the run directory under `name`.
    """
    context.searched = target.fast_values and target.dimension == context.problem.model.n_theta
    if not context.searched or context.over_time:
        return
    context.progress.phase("look for modes")
    failures, coarse = target.counter.failures, target.coarse()
    rng = np.random.default_rng([context.settings.seed, 6, len(name)])

    def over_time() -> bool:
        return context.over_half_time(0.0)

    def values(x: np.ndarray) -> np.ndarray:
        """A few at a time: with many rows and few minutes, not all of them."""
        parts = [x[i : i + VALUES_AT_ONCE] for i in range(0, len(x), VALUES_AT_ONCE)]
        return np.concatenate([np.full(len(p), -np.inf) if over_time() else coarse.values(p) for p in parts])

    count = int(np.clip(SEARCH_WORK / context.problem.data.n_rows**2, DISPERSED, MOST_POINTS))
    points, plausible = dispersed_points(values, context.problem.model.start(), rng, count)
    context.broad = broad_components(plausible, coordinates, rng)
    saved = context.store.modes(name)
    if saved is None:
        known = [coordinates.middle, *(mode.coordinates.centre for mode in context.modes)]
        half = SEARCH_STARTS // 2
        rough = with_little_noise(context.problem.model, points[:half])
        starts = [*rough, *plausible[:: max(1, len(plausible) // half)][:half]]
        saved = find_modes(coarse.value_and_gradient, starts, known, over_time)
        if coarse is not target:
            known += [mode.coordinates.centre for mode in saved]
            saved = find_modes(target.value_and_gradient, (), known, over_time)
        context.store.save_modes(name, saved)
    context.modes = saved
    target.counter.failures = failures  # far out in the prior some are expected, so they do not count


def with_little_noise(model: Model, points: np.ndarray) -> np.ndarray:
    """Points of which every second is moved to where lengthscales are short, each more so, and the noise is small.

    Few rows allow that explanation beside a smooth function with much noise, and ascents from elsewhere seldom find it.
    """
    points = points.copy()
    for p in model.parameters:
        field = p.name.rsplit(".", 1)[-1]
        for k, x in enumerate(points[::2]):
            if field == "lengthscale":
                x[p.start : p.start + p.size] -= 1.0 + k
            elif field == "noise":
                x[p.start : p.start + p.size] = model.start()[p.start : p.start + p.size] - LITTLE_NOISE
    return points


def dispersed_starts(
    context: FitContext, target: Target, coordinates: Coordinates, seed: tuple[int, ...]
) -> np.ndarray:
    """Starts of the chains, each moved towards the centre until its log density is plausible.

    Where several modes are known, chains start around one after the other: R-hat then sees if they do not meet.
    """
    rng = np.random.default_rng([context.settings.seed, *seed])
    centres = [mode.coordinates for mode in context.modes] if len(context.modes) > 1 else [coordinates]
    starts = []
    for chain, eta in enumerate(START_WIDTH * rng.standard_normal((context.settings.chains, coordinates.dimension))):
        around = centres[chain % len(centres)]
        best = target.value_and_gradient(around.middle)[0]
        while np.any(eta != 0.0) and implausible(target.value_and_gradient(around.to_x(eta))[0], best, len(eta)):
            eta *= 0.5 if np.abs(eta).max() > 1e-3 else 0.0
        starts.append(around.to_x(eta))
    return np.array(starts)


def draw_pilot(
    context: FitContext, target: Target, sampler: Sampler, coordinates: Coordinates, round_number: int
) -> Chains:
    """The draws of a round; if some diverge, the target acceptance is higher from here on."""
    settings = context.settings
    context.progress.phase(f"round {round_number + 1}: draw θ")
    if not sampler.can_warp(target):
        coordinates = coordinates.unwarped()
    if round_number == 0 or not context.searched:
        search_modes(context, target, coordinates, "modes_rounds")
    starts, sampler = (
        dispersed_starts(context, target, coordinates, (1, round_number)),
        sampler.between(context.modes, context.broad),
    )
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
        search_modes(context, target, coordinates, "modes")
        sampler = sampler.between(context.modes, context.broad)
        rule = StoppingRule(target.n_theta, settings.target_ess, context.modes)
        if before is not None:
            left = settings.max_draws - before.n_draws
            enough = left <= 0 or rule.enough(before.n_draws, before.first) is not None
            if enough:
                context.confirmed = left > 0
                _judge(context, before, store.proposals(), target)
                return before
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
        context.progress.phase("final draws")
        monitor = ConvergenceMonitor(
            before,
            rule,
            warmup,
            save=lambda chains: context.save_draws(block, chains),
            over_time=lambda: context.over_time,
            progress=context.progress,
        )
        left = settings.max_draws - (before.n_draws if before is not None else 0)
        plan = context.plan((4, block), target, warmup=warmup, draws=left)
        run = context.record(target, sampler.run(target, starts, coordinates, plan, monitor))
        store.save_draws(block, run.chains)
        if run.proposals is not None:
            store.save_proposals(block, run.proposals)
        context.confirmed = monitor.confirmed
        chains = run.chains if before is None else before.then(run.chains)
        if chains:
            earlier = store.proposals(block)
            both = run.proposals if earlier is None or run.proposals is None else earlier.then(run.proposals)
            _judge(context, chains, both or earlier, target)
        return chains or pilot or run.chains
    except KeyboardInterrupt:  # between two runs of chains, which return what they have
        context.interrupted = True
        return context.store.draws() or pilot


def _judge(context: FitContext, chains: Chains, proposals: Proposals | None, target: Target) -> None:
    """What independence proposals say besides the chains: k̂ and the evidence, or why there are none."""
    result = None if proposals is None else evidence(proposals)
    if result is None or proposals is None:
        context.notes.append("k̂ and the evidence are not known: the final draws are not by independence proposals.")
        if not context.searched:
            context.notes.append("Other modes were not looked for: that is done where θ alone is drawn.")
        return
    names = context.problem.model.names
    context.findings += second_opinion(proposals, chains, names, result, context.modes)
    if result.reliable:
        context.evidence = (result.log_evidence, result.error)
    value = f"{result.log_evidence:.2f} ± {result.error:.2g}" if result.reliable else "not reliable"
    context.notes.append(
        f"Pareto k̂ of {len(proposals.log_q)} proposals is {result.k_hat:.2f}; the log evidence is {value}."
    )


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
    """The callback of final chains: saves draws, shows progress, and says when the stopping rule has had enough."""

    def __init__(
        self,
        before: Chains | None,
        rule: StoppingRule,
        warmup: int,
        *,
        save: Callable[[Chains], None],
        over_time: Callable[[], bool],
        progress: Progress,
    ):
        self.before, self.rule, self.warmup = before, rule, warmup
        self.save, self.over_time, self.progress = save, over_time, progress
        self.n_before = before.n_draws if before is not None else 0
        self.confirmed = False
        self.saved_at, self.save_took = 0.0, 0.0
        self.seconds = 0.0  # of the latest call, since these chains began

    def __call__(self, s: Snapshot) -> int | None:
        """How many draws of this block to keep, once it is time to stop."""

        def first(n: int) -> Chains:
            new = s.chains.first(max(0, n - self.n_before))
            return new if self.before is None else self.before.first(n).then(new)

        n = self.n_before + s.chains.n_draws
        enough = self.rule.enough(n, first)
        if enough is not None:
            self.confirmed = True
            return max(0, enough - self.n_before)
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
        numbers, mixed = self.rule.numbers, ""
        if numbers is not None:
            least = min(numbers.ess_bulk.min(), numbers.ess_tail.min())
            mixed = f", R-hat {numbers.r_hat.max():.3f}, ESS {least:.0f}"
        text = f"warm-up, {s.done} draws" if s.done < self.warmup else f"{counted(n, 'draw')}{diverged}{mixed}"
        # The next check may be the last one: that is all the total can say.
        self.progress.update(self.n_before + s.done, self.n_before + self.warmup + self.rule.next_check, text)
