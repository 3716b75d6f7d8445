"""Algorithm 1 of the paper, `sgpr-hmc`: sample θ at fixed Z, move Z along the bound averaged over the draws, repeat.

    Warm-Start (lines 2-4)      `climbed`          climb L(θ, Z) over both
    Train (lines 5-18)          `rounds`
      draw J samples (14-17)    `draw_round`       chains on log p(θ) + L(θ, Z) with Z fixed
      stochastic bound (18)     `move_inducing`    1/J Σ_j L(θ_j, Z), climbed over Z (line 11, equation (15))
      while not converged (9)   `Round.converged`  until the gain, on draws that did not move Z, is within its noise
    Return Z and draws          `Sampling.final_draws`  chains that go on until R-hat and ESS are reached

Lines count the numbered statements of the paper's listing, not its blank lines.

The paper takes one gradient step of Z at a time; here Z climbs the averaged bound for a few L-BFGS steps between two
samplings. `paper_schedule.py` has the paper's own schedule.
"""

from collections.abc import Callable

import numpy as np

from integrand.infer.chains import Chains, SampledRun
from integrand.infer.diagnostics import Finding
from integrand.infer.metric import Whitening
from integrand.infer.optimise import maximise_lbfgs
from integrand.infer.threads import one_blas_thread
from integrand.methods import grown
from integrand.methods.checkpoint import Round, WarmStart
from integrand.methods.density import Density, metric
from integrand.methods.grown import Grown
from integrand.methods.optimised import warm_start
from integrand.methods.paper_schedule import paper_schedule
from integrand.methods.problem import Problem, starting_inducing
from integrand.methods.sampling import Sampling
from integrand.posterior.conditional import sparse_conditional
from integrand.posterior.posterior import Posterior
from integrand.targets import CollapsedTarget, density, likelihood

# A round: draws that move Z and as many that judge the move, and L-BFGS steps of Z.
MOVING_DRAWS, INDUCING_STEPS = 16, 25
# Where NUTS draws it, trajectories of 7 steps: whitened, that is a turn, and while NUTS tunes it would take many more.
ROUND_DEPTH = 3

_APPROXIMATE = Finding(
    "approximate",
    True,
    "The fit ended before all rows could accept or reject a draw: these are from an approximation around the mode.",
    "Allow more minutes, or resume the run.",
)
_NONSENSE = "by the bound of all rows, draws from the third order around the mode were far below it"


def fit(problem: Problem) -> Posterior:
    """`sgpr-hmc` with the schedule of the settings."""
    return (paper_schedule if problem.settings.schedule == "paper" else sgpr_hmc)(problem)


def sgpr_hmc(problem: Problem, move_Z: bool = True) -> Posterior:
    """Fit by Algorithm 1, or with Z where it starts (`sgpr-hmc-fixed-z`, the paper's ablation)."""
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)
    with one_blas_thread(target.threads(problem.n_inducing) == 1):
        return _Fit(problem, target, move_Z).run()


class _Fit:
    """The state of one run of Algorithm 1, saved after each step that is worth keeping."""

    def __init__(self, problem: Problem, target: CollapsedTarget, move_Z: bool):
        self.problem, self.target, self.move_Z = problem, target, move_Z
        self.settings = problem.settings
        # With very many rows a sample of them does the searching, and passes over all rows are few.
        self.grown = Grown(problem, target) if problem.grows else None
        self.moving, self.steps, self.most_rounds = MOVING_DRAWS, INDUCING_STEPS, self.settings.max_rounds
        if self.grown is not None:
            self.moving, self.steps, self.most_rounds = grown.MOVING, grown.STEPS, min(grown.ROUNDS, self.most_rounds)
        parallel = target.at_once(problem.n_inducing)
        self.sampling = Sampling(problem, target.counter, parallel)
        self.sampling.bends = self.grown is None  # the third order knows straight coordinates
        self.saved = self.sampling.saved
        self.latest: Chains | None = None  # draws of the latest round,
        self.latest_at = 0  # and the number of moves of Z before it

    def run(self) -> Posterior:
        """All of Algorithm 1."""
        sampling = self.sampling
        start = sampling.warm_start(self.climbed, *self.later())
        path = [start.Z]
        whitening = self.rounds(start, path) if self.move_Z else self.metric(start)
        # Return: where there is no time for chains of their own, the draws of the last round, with the Z they are from.
        chains = None if sampling.interrupted else self.final_draws(path[-1], whitening)
        if chains is None and self.latest is not None and self.latest.n_draws > 0:
            chains, path = self.latest, path[: self.latest_at + 1]
            if self.grown is not None:
                sampling.findings.append(_APPROXIMATE)
        chains = sampling.or_one(chains, self.of_all_rows(path[-1]), start.mode)
        sampling.enter("conditional")
        thinned = sampling.thinned(chains)
        factored = self.target.factored_again if self.jumps else (self.grown or self.target).factored
        conditional = sparse_conditional(thinned, path[-1], factored, sampling.parallel)
        method = "sgpr-hmc" if self.move_Z else "sgpr-hmc-fixed-z"
        counts = {"rounds": len(path) - 1}
        if self.grown is not None:
            counts |= self.grown.counts()
            sampling.notes.append(self.grown.told())
        return sampling.posterior(method, chains, conditional, start.phi, np.array(path), counts)

    def later(self) -> list[Callable[[], object]]:
        """What can be made while the first Z is selected and climbs: programs, where that leaves a core idle."""
        if self.grown is not None or self.target.threads(self.problem.n_inducing) == 0:
            return []
        gradient, values = self.target.programs(self.problem.n_inducing, self.jumps)
        # A Z that was given is climbed from at once: who climbs compiles the gradient, and two would both do it.
        programs = [gradient, values] if self.problem.Z is None else [values]
        return [*programs, *self.sampling.loading(jumps=True)]

    @property
    def jumps(self) -> bool:
        """Whether chains jump, if they can."""
        return self.grown is None and self.settings.sampler == "default"

    def density(self, Z: np.ndarray, whitening: Whitening, final: bool = False) -> Density:
        """q*(θ) ∝ p(θ) exp L(θ, Z) at fixed Z, over φ; with very many rows, rounds draw from an approximation of it."""
        if self.grown is not None:
            return self.grown.density(Z, whitening, exact=final)
        return self.of_all_rows(Z)

    def of_all_rows(self, Z: np.ndarray) -> Density:
        """The same, without approximation."""
        return Density(
            lambda phi: density(self.target.evaluate(phi, Z)),
            lambda: self.target.traced(Z),
            values=lambda phis: self.target.log_densities(phis, Z),
        )

    def final_draws(self, Z: np.ndarray, whitening: Whitening) -> Chains | None:
        """Chains until they have converged; None if there was no time for a single draw."""
        try:
            chains = self.sampling.final_draws(self.density(Z, whitening, final=True), whitening)
        except KeyboardInterrupt:  # not while chains run: they return what they have
            self.sampling.interrupted = True
            chains = self.saved.draws()
        return chains if chains is not None and chains.n_draws > 0 else None

    def climbed(self) -> WarmStart:
        """Lines 2-4: climb L over (θ, Z), or over θ alone where Z is fixed, for a fixed number of steps."""
        if self.grown is not None:
            return self.grown.warm_start(self.move_Z)
        if self.move_Z:
            return warm_start(self.problem, self.target)
        phi = self.problem.model.start()
        Z, name = starting_inducing(self.problem, self.target, phi)
        f, steps = (lambda x: likelihood(self.target.evaluate(x, Z))), self.settings.warm_steps
        optimum = maximise_lbfgs(f, phi, max_steps=steps)
        return WarmStart(optimum.x, Z, optimum.value, name, optimum.x)

    def metric(self, start: WarmStart) -> Whitening:
        """The Hessian of bound + prior + Jacobian at its own optimum, with Z fixed."""
        self.sampling.enter("metric")
        if self.grown is not None:
            return self.grown.metric(start)
        return metric(self.of_all_rows(start.Z), (start.mode, self.problem.model.start()), saddles=True)

    def rounds(self, start: WarmStart, path: list[np.ndarray]) -> Whitening:
        """Lines 5-18: until moving Z gains nothing that its Monte Carlo noise does not hide, or time is short."""
        saved = self.saved.rounds()
        done = [r for r, _ in saved]
        for r in done:
            path.append(r.Z)
            self.sampling.target_accept = r.target_accept
            self.sampling.note_bound("round", len(path) - 1, r.bound, r.bound_error)
        whitening = self.metric(start) if not saved else self.sampling.usable(saved[-1][1], self.of_all_rows(path[-1]))
        self.sampling.enter("rounds")
        took = 0.0  # seconds of the latest round
        # Once final draws are on disk Z stays: draws at another Z would belong to another posterior.
        while not (done and done[-1].converged) and len(done) < self.most_rounds and not self.saved.n_blocks:
            if self.late(took):
                self.sampling.notes.append(f"Z had {len(done)} rounds: one more would go past half of the minutes.")
                break
            began = self.problem.clock.elapsed
            try:
                result = self.draw_round(path[-1], whitening, len(done))
                self.sampling.interrupted = result.interrupted
                if not self.trusts(result.chains, path[-1], whitening):
                    self.sampling.notes.append(f"Z was left alone after {len(done)} rounds: {_NONSENSE}.")
                    return whitening
                if self.latest is None or result.chains.n_draws >= self.latest.n_draws:
                    self.latest, self.latest_at = result.chains, len(path) - 1
                if self.sampling.interrupted or self.sampling.over_time():
                    return whitening
                whitening = self.sampling.rewhitened(result.chains.x, whitening, self.of_all_rows(path[-1]))
                done.append(self.move_inducing(path[-1], result.chains))
            except KeyboardInterrupt:
                self.sampling.interrupted = True
                return whitening
            path.append(done[-1].Z)
            self.sampling.note_bound("round", len(done), done[-1].bound, done[-1].bound_error)
            self.saved.save_round(len(done), done[-1], whitening)
            took = self.problem.clock.elapsed - began
        if done and not done[-1].converged:
            self.sampling.notes.append(f"Z was still gaining {done[-1].gain:.2f} nats after {len(done)} rounds.")
        return whitening

    def late(self, took: float) -> bool:
        """Whether a round more, of as many seconds, would end past half of the minutes: final chains need the rest."""
        minutes = self.settings.max_minutes
        return minutes is not None and self.problem.clock.elapsed + took > 30.0 * minutes

    def trusts(self, chains: Chains, Z: np.ndarray, whitening: Whitening) -> bool:
        """Whether the draws that would move Z are from the posterior; the third order may have led astray."""
        return self.grown is None or self.grown.trusts(self.picked(chains), Z, whitening)

    def picked(self, chains: Chains) -> np.ndarray:
        """Draws, evenly spaced: every other one moves Z, those between judge the move."""
        phis = chains.x.reshape(-1, chains.x.shape[2])
        return phis[np.linspace(0, len(phis) - 1, min(2 * self.moving, len(phis))).astype(int)]

    def draw_round(self, Z: np.ndarray, whitening: Whitening, k: int) -> SampledRun:
        """Lines 14-17: draw J samples of θ from q*(θ) ∝ p(θ) exp L(θ, Z) with Z fixed."""
        sampling = self.sampling
        tune = self.settings.tune if k == 0 else sampling.short_tune()
        self.problem.progress.phase(f"round {k + 1}: draw θ")
        density = self.density(Z, whitening)
        starts = sampling.dispersed(density, whitening, [1, k])
        draws = self.settings.round_draws
        result = sampling.run_round(density, whitening, starts, tune, draws, [2, k], ROUND_DEPTH)
        divergences = int(result.chains.diverging.sum())
        if divergences > 0.01 * result.chains.n_trajectories and self.sampling.target_accept < 0.9:
            self.sampling.target_accept = 0.9
            self.sampling.notes.append(
                f"{divergences} draws of round {k + 1} diverged: target_accept was raised to 0.9."
            )
        return result

    def move_inducing(self, Z: np.ndarray, chains: Chains) -> Round:
        """Lines 11 and 18: climb 1/J Σ_j L(θ_j, Z) over Z, and judge the gain on draws that did not take part."""
        picked = self.picked(chains)
        moving, judging = picked[::2], picked[1::2]
        self.problem.progress.phase("move Z")

        def f(x: np.ndarray):
            bounds, gradient = self.target.averaged(moving, x.reshape(Z.shape))
            return float(bounds.mean()), gradient.ravel()

        judged = (lambda phis, Z: self.target.averaged(phis, Z)[0]) if self.grown is None else self.grown.judged
        Z_new = maximise_lbfgs(f, Z.ravel(), max_steps=self.steps).x.reshape(Z.shape)
        before, after = (judged(judging, z) for z in (Z, Z_new))
        gains = after - before
        gain, error = float(gains.mean()), float(gains.std(ddof=1) / np.sqrt(len(gains)))
        if not np.isfinite(gain) or gain <= 0.0:  # the move fitted the draws that made it, not the posterior
            Z_new, after, gain = Z, before, 0.0
            error = error if np.isfinite(error) else 0.0
        bound_error = float(after.std(ddof=1) / np.sqrt(len(after)))
        return Round(Z_new, gain, error, float(after.mean()), bound_error, self.sampling.target_accept)
