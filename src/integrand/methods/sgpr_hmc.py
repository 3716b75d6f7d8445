"""Algorithm 1 of the paper, `sgpr-hmc`: sample θ at fixed Z, move Z along the bound averaged over the draws, repeat.

    Warm-Start (lines 2-4)      `warm_start`       climb L(θ, Z) over both
    Train (lines 5-18)          `rounds`
      draw J samples (14-17)    `draw_round`       NUTS on log p(θ) + L(θ, Z) with Z fixed
      stochastic bound (18)     `move_inducing`    1/J Σ_j L(θ_j, Z), climbed over Z (line 11, equation (15))
      while not converged (9)   `Round.converged`  until the gain, on draws that did not move Z, is within its noise
    Return Z and draws          `final_draws`      chains that go on until R-hat and ESS are reached

Lines count the numbered statements of the paper's listing, not its blank lines.

The paper takes one gradient step of Z at a time; here Z climbs the averaged bound for a few L-BFGS steps between two
samplings, which needs fewer samplings for the same Z. `paper_schedule.py` has the paper's own schedule.
"""

import numpy as np

from integrand.infer.diagnostics import convergence, verdict
from integrand.infer.metric import Whitening, whitening_from_draws, whitening_from_hessian
from integrand.infer.nuts import Chains, SampledRun, Watch, Watcher, sample_nuts
from integrand.infer.optimise import maximise_lbfgs
from integrand.infer.threads import available_cores, one_blas_thread
from integrand.methods.checkpoint import Checkpoint, Round, WarmStart
from integrand.methods.optimised import climb_theta_and_inducing
from integrand.methods.problem import Problem, one_draw, starting_inducing
from integrand.methods.watch import FinalWatch
from integrand.posterior.conditional import sparse_conditional
from integrand.posterior.posterior import BoundPoint, Posterior
from integrand.targets import CollapsedTarget, density, likelihood

# A round: draws that move Z and as many that judge the move, and L-BFGS steps of Z.
MOVING_DRAWS = 16
INDUCING_STEPS = 25


def sgpr_hmc(problem: Problem, move_Z: bool = True) -> Posterior:
    """Fit by Algorithm 1, or with Z where it starts (`sgpr-hmc-fixed-z`, the paper's ablation)."""
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)
    with one_blas_thread(target.threads(problem.n_inducing) == 1):
        return _Fit(problem, target, move_Z).run()


class _Fit:
    """The state of one run of Algorithm 1, saved after each step that is worth keeping."""

    def __init__(self, problem: Problem, target: CollapsedTarget, move_Z: bool):
        self.problem, self.target, self.move_Z = problem, target, move_Z
        self.settings, self.clock = problem.settings, problem.clock
        self.saved = Checkpoint(problem.run)
        self.history: list[BoundPoint] = []
        self.notes: list[str] = []
        self.target_accept = self.settings.target_accept
        self.parallel = available_cores() if target.threads(problem.n_inducing) == 1 else 1
        self.latest: Chains | None = None  # draws of the latest round, at the Z of that round
        self.interrupted = False

    def run(self) -> Posterior:
        """All of Algorithm 1."""
        start = self.warm_start()
        path = [start.Z]
        whitening = self.rounds(start, path) if self.move_Z else self.metric(start.phi, start.Z)
        chains = self.latest if self.interrupted else self.final_draws(path[-1], whitening)
        if chains is None or chains.n_draws == 0:  # ended before a draw: the mode is all there is
            chains = one_draw(start.phi, self.target.evaluate(start.phi, path[-1]).log_density)
        return self.posterior(chains, path, start.phi)

    def warm_start(self) -> WarmStart:
        """Lines 2-4: climb L over (θ, Z), or over θ alone where Z is fixed, for a fixed number of steps."""
        self._enter("warm start")
        start = self.saved.warm_start() or self._climbed()
        self.saved.save_warm_start(start)
        self.notes.append(f"Z started from {start.candidate}.")
        self._note_bound("warm start", 0, start.bound, 0.0)
        return start

    def _climbed(self) -> WarmStart:
        phi, steps = self.problem.model.start(), self.settings.warm_steps
        Z, name = starting_inducing(self.problem, self.target, phi)
        if not self.move_Z:
            optimum = maximise_lbfgs(lambda x: likelihood(self.target.evaluate(x, Z)), phi, max_steps=steps)
            return WarmStart(optimum.x, Z, optimum.value, name)
        phi, Z, optimum = climb_theta_and_inducing(self.target, phi, Z, self.settings, steps, likelihood)
        # Z goes on to the mode of the sampled density, which is nearer to the draws than the ML-II point is.
        _, Z, _ = climb_theta_and_inducing(self.target, phi, Z, self.settings, steps, density)
        return WarmStart(phi, Z, optimum.value, name)

    def metric(self, phi: np.ndarray, Z: np.ndarray) -> Whitening:
        """The Hessian of bound + prior + Jacobian at its own optimum, with Z fixed."""
        self._enter("metric")
        # Where ML-II ran away (a constant y), the prior's medians are the better start.
        starts = (phi, self.problem.model.start())
        start = max(starts, key=lambda x: self.target.evaluate(x, Z).log_density)
        optimum = maximise_lbfgs(lambda x: density(self.target.evaluate(x, Z)), start, max_steps=100)
        return whitening_from_hessian(lambda x: self.target.evaluate(x, Z).gradient, optimum.x)

    def rounds(self, start: WarmStart, path: list[np.ndarray]) -> Whitening:
        """Lines 5-18: until moving Z gains nothing that its Monte Carlo noise does not hide."""
        saved = self.saved.rounds()
        done = [r for r, _ in saved]
        for r in done:
            path.append(r.Z)
            self.target_accept = r.target_accept
            self._note_bound("round", len(path) - 1, r.bound, r.bound_error)
        whitening = saved[-1][1] if saved else self.metric(start.phi, start.Z)
        self._enter("rounds")
        # Once final draws are on disk Z stays: draws at another Z would belong to another posterior.
        while not (done and done[-1].converged) and len(done) < self.settings.max_rounds and not self.saved.n_blocks:
            result = self.draw_round(path[-1], whitening, len(done))
            self.latest, self.interrupted = result.chains, result.interrupted
            if self.interrupted or self._over_time():
                return whitening
            whitening = whitening_from_draws(self.latest.x.reshape(-1, self.latest.x.shape[2]), whitening)
            try:
                done.append(self.move_inducing(path[-1], self.latest))
            except KeyboardInterrupt:
                self.interrupted = True
                return whitening
            path.append(done[-1].Z)
            self._note_bound("round", len(done), done[-1].bound, done[-1].bound_error)
            self.saved.save_round(len(done), done[-1], whitening)
        if done and not done[-1].converged:
            self.notes.append(f"Z was still gaining {done[-1].gain:.2f} nats after {len(done)} rounds.")
        return whitening

    def draw_round(self, Z: np.ndarray, whitening: Whitening, k: int) -> SampledRun:
        """Lines 14-17: draw J samples of θ from q*(θ) ∝ p(θ) exp L(θ, Z) with Z fixed."""
        tune, draws = self.settings.tune if k == 0 else self._short_tune(), self.settings.round_draws
        total = tune + draws
        self.problem.progress.phase(f"round {k + 1}: draw θ")
        starts = self._dispersed(whitening, Z, [1, k])
        result = self._sample(Z, whitening, tune, draws, [2, k], starts, self._tell(total))
        divergences = int(result.chains.diverging.sum())
        if divergences > 0.01 * result.chains.diverging.size and self.target_accept < 0.9:
            self.target_accept = 0.9
            self.notes.append(f"{divergences} draws of round {k + 1} diverged: target_accept was raised to 0.9.")
        return result

    def move_inducing(self, Z: np.ndarray, chains: Chains) -> Round:
        """Lines 11 and 18: climb 1/J Σ_j L(θ_j, Z) over Z, and judge the gain on draws that did not take part."""
        phis = chains.x.reshape(-1, chains.x.shape[2])
        picked = phis[np.linspace(0, len(phis) - 1, min(2 * MOVING_DRAWS, len(phis))).astype(int)]
        moving, judging = picked[::2], picked[1::2]
        self.problem.progress.phase("move Z")

        def f(x: np.ndarray):
            bounds, gradient = self.target.averaged(moving, x.reshape(Z.shape))
            return float(bounds.mean()), gradient.ravel()

        Z_new = maximise_lbfgs(f, Z.ravel(), max_steps=INDUCING_STEPS).x.reshape(Z.shape)
        before, after = (self.target.averaged(judging, z)[0] for z in (Z, Z_new))
        gains = after - before
        gain, error = float(gains.mean()), float(gains.std(ddof=1) / np.sqrt(len(gains)))
        if not np.isfinite(gain) or gain <= 0.0:  # the move fitted the draws that made it, not the posterior
            Z_new, after, gain = Z, before, 0.0
            error = error if np.isfinite(error) else 0.0
        bound_error = float(after.std(ddof=1) / np.sqrt(len(after)))
        return Round(Z_new, gain, error, float(after.mean()), bound_error, self.target_accept)

    def final_draws(self, Z: np.ndarray, whitening: Whitening) -> Chains | None:
        """Return: chains that go on until every hyperparameter has converged or the budget is used up."""
        self._enter("final")
        chains, block = self.saved.draws(), self.saved.n_blocks
        if chains is None and self._over_time():
            return self.latest  # no time for chains of their own: the draws of the last round are from this Z
        if chains is not None and chains.n_draws >= 2:
            whitening = whitening_from_draws(chains.x.reshape(-1, chains.x.shape[2]), whitening)
            starts, tune = chains.x[:, -1], self._short_tune()
        else:
            starts, tune = self._dispersed(whitening, Z, [3]), self.settings.tune
        left = self.settings.max_draws - (chains.n_draws if chains else 0)
        if left <= 0 or (chains is not None and self._reached(chains)):
            return chains
        self.problem.progress.phase("final draws")
        watch = FinalWatch(
            chains,
            self.settings.target_ess,
            tune,
            lambda drawn: self.saved.save_draws(block, drawn),
            self._over_time,
            self.problem.progress,
        )
        result = self._sample(Z, whitening, tune, left, [4, block], starts, watch)
        self.saved.save_draws(block, result.chains)
        self.interrupted = result.interrupted
        return chains.then(result.chains) if chains else result.chains

    def posterior(self, chains: Chains, path: list[np.ndarray], optimum: np.ndarray) -> Posterior:
        """Put the pieces together: verdict, thinned conditionals, history."""
        self._enter("conditional")
        problem, settings, counter = self.problem, self.settings, self.target.counter
        reached = chains.n_draws >= 4 and self._reached(chains)
        judged = verdict(
            chains,
            problem.model.names,
            target_ess=settings.target_ess,
            rejections=counter.failures,
            evaluations=counter.gradients,
            ended="interrupted" if self.interrupted else "" if reached else "budget",
        )
        each = min(max(settings.predictive_draws // len(chains.x), 1), chains.n_draws)  # evenly from every chain
        evenly = np.linspace(0, chains.n_draws - 1, each).astype(int)
        thinned = chains.x[:, evenly].reshape(-1, chains.x.shape[2])
        conditional = sparse_conditional(problem.model, thinned, path[-1], problem.data, problem.jitter)
        self.clock.enter("")
        return Posterior(
            "sgpr-hmc" if self.move_Z else "sgpr-hmc-fixed-z",
            problem.model,
            problem.scaler,
            problem.jitter,
            chains,
            conditional,
            judged,
            optimum,
            tuple(self.history),
            np.array(path),
            dict(self.clock.seconds),
            {
                "gradients": counter.gradients,
                "failures": counter.failures,
                "rounds": len(path) - 1,
                "blocks": self.saved.n_blocks,
            },
            tuple(self.notes),
        )

    def _reached(self, chains: Chains) -> bool:
        return convergence(chains.x).reached(self.settings.target_ess)

    def _sample(self, Z, whitening, tune, draws, purpose, starts, watch) -> SampledRun:
        return sample_nuts(
            lambda x: density(self.target.evaluate(x, Z)),
            starts,
            whitening,
            tune=tune,
            draws=draws,
            seed=[self.settings.seed, *purpose],
            target_accept=self.target_accept,
            parallel=self.parallel,
            watch=watch,
        )

    def _dispersed(self, whitening: Whitening, Z: np.ndarray, purpose: list[int]) -> np.ndarray:
        """Starts for the chains, wider than the posterior, each pulled in until it is not hopeless there.

        1.5 standard deviations cost a Gaussian about P nats; where it is a hundred, as on the edge of what can be
        factored when the noise is nearly zero, a chain would not find its way back.
        """
        rng = np.random.default_rng([self.settings.seed, *purpose])
        n = len(whitening.centre)
        starts = 1.5 * rng.standard_normal((self.settings.chains, n))
        least = self.target.evaluate(whitening.centre, Z).log_density - 100.0 - 10.0 * n

        def hopeless(start: np.ndarray) -> bool:
            density = self.target.evaluate(whitening.to_x(start), Z).log_density
            return not (np.isfinite(density) and density >= least)

        for start in starts:
            while np.any(start != 0.0) and hopeless(start):
                start *= 0.5 if np.abs(start).max() > 1e-3 else 0.0
        return whitening.to_x(starts)

    def _short_tune(self) -> int:
        return max(1, self.settings.tune // 2)

    def _tell(self, total: int) -> Watcher:
        def watch(w: Watch) -> int | None:
            self.problem.progress.update(w.done, total, f"{w.done} of {total} draws")
            return w.chains.n_draws if self._over_time() else None

        return watch

    def _enter(self, phase: str) -> None:
        self.clock.enter(phase)
        if phase in ("warm start", "metric"):  # the others tell more of themselves
            self.problem.progress.phase(phase)

    def _note_bound(self, phase: str, step: int, bound: float, error: float) -> None:
        self.history.append(BoundPoint(phase, step, self.clock.elapsed, bound, error))

    def _over_time(self) -> bool:
        minutes = self.settings.max_minutes
        return minutes is not None and self.clock.elapsed > 60.0 * minutes
