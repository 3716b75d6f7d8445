"""Algorithm 1 of the paper, `sgpr-hmc`: sample θ at fixed Z, move Z along the bound averaged over the draws, repeat.

    Warm-Start (lines 2-4)      `warm_start`       climb L(θ, Z) over both
    Train (lines 5-18)          `rounds`
      draw J samples (14-17)    `draw_round`       NUTS on log p(θ) + L(θ, Z) with Z fixed
      stochastic bound (18)     `move_inducing`    1/J Σ_j L(θ_j, Z), climbed over Z (line 11, equation (15))
      while not converged (9)   `Round.converged`  until the gain, on draws that did not move Z, is within its noise
    Return Z and draws          `final_draws`      chains that go on until R-hat and ESS are reached

Lines are numbered as LaTeX numbers the statements of the paper's listing.

The paper takes one gradient step of Z at a time; here Z climbs the averaged bound for a few L-BFGS steps between two
samplings, which needs fewer samplings for the same Z. `paper_schedule.py` has the paper's own schedule.
"""

import numpy as np

from integrand.infer.diagnostics import convergence, verdict
from integrand.infer.metric import Whitening, whitening_from_draws, whitening_from_hessian
from integrand.infer.nuts import Chains, SampledRun, Watch, Watcher, sample_nuts
from integrand.infer.optimise import maximise_lbfgs
from integrand.infer.threads import blas_threads
from integrand.methods.checkpoint import Checkpoint, Round
from integrand.methods.optimised import climb_theta_and_inducing
from integrand.methods.problem import Problem, one_draw, starting_inducing
from integrand.posterior.conditional import sparse_conditional
from integrand.posterior.posterior import BoundPoint, Posterior
from integrand.targets import CollapsedTarget

# A round: draws that move Z and as many that judge the move, and L-BFGS steps of Z.
MOVING_DRAWS = 16
INDUCING_STEPS = 25
FIRST_CHECK, CHECK_EVERY = 100, 25
SAVE_SECONDS = 5.0


def sgpr_hmc(problem: Problem, move_Z: bool = True) -> Posterior:
    """Fit by Algorithm 1, or with Z where it starts (`sgpr-hmc-fixed-z`, the paper's ablation)."""
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)
    with blas_threads(1 if target.threads(problem.n_inducing) == 1 else None):
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
        self.parallel = problem.parallel if target.threads(problem.n_inducing) == 1 else 1

    def run(self) -> Posterior:
        """All of Algorithm 1."""
        phi, Z = self.warm_start()
        self.optimum, path, interrupted = phi, [Z], False
        if self.move_Z:
            whitening, interrupted = self.rounds(path)
        else:
            whitening = self.metric(phi, Z)
        chains, ended = self.final_draws(path[-1], whitening, interrupted)
        return self.posterior(chains, path, ended)

    def warm_start(self) -> tuple[np.ndarray, np.ndarray]:
        """Lines 2-4: climb L over (θ, Z) for a fixed number of steps. With fixed Z, θ alone is climbed later."""
        self._enter("warm start")
        if saved := self.saved.warm_start():
            self._note_bound("warm start", 0, self.target.evaluate(*saved).log_likelihood, 0.0)
            return saved
        phi, steps = self.problem.model.start(), self.settings.warm_steps
        Z, name = starting_inducing(self.problem, self.target, phi)
        self.notes.append(f"Z started from {name}.")
        if self.move_Z:
            phi, Z, optimum = climb_theta_and_inducing(self.target, phi, Z, self.settings, steps, with_prior=False)
            # Z goes on to the posterior's mode, which is nearer to the draws than the ML-II point is.
            _, Z, _ = climb_theta_and_inducing(self.target, phi, Z, self.settings, steps, with_prior=True)
        else:
            optimum = maximise_lbfgs(lambda x: _likelihood(self.target, x, Z), phi, max_steps=steps)
            phi = optimum.x
        self._note_bound("warm start", 0, optimum.value, 0.0)
        self.saved.save_warm_start(phi, Z)
        return phi, Z

    def metric(self, phi: np.ndarray, Z: np.ndarray) -> Whitening:
        """The Hessian of bound + prior + Jacobian at its own optimum, with Z fixed."""
        self._enter("metric")
        # Where ML-II ran away (a constant y), the prior's medians are the better start.
        starts = (phi, self.problem.model.start())
        start = max(starts, key=lambda x: self.target.evaluate(x, Z).log_density)
        optimum = maximise_lbfgs(lambda x: _density(self.target, x, Z), start, max_steps=100)
        return whitening_from_hessian(lambda x: self.target.evaluate(x, Z).gradient, optimum.x)

    def rounds(self, path: list[np.ndarray]) -> tuple[Whitening, bool]:
        """Lines 5-18: until moving Z gains nothing that its Monte Carlo noise does not hide."""
        saved = self.saved.rounds()
        path += [r.Z for r, _ in saved]
        for k, (r, _) in enumerate(saved):
            self._note_bound("round", k + 1, r.bound, r.bound_error)
        whitening = saved[-1][1] if saved else self.metric(self.optimum, path[-1])
        done = [r for r, _ in saved]
        self._enter("rounds")
        while not (done and done[-1].converged) and len(done) < self.settings.max_rounds:
            result = self.draw_round(path[-1], whitening, len(done))
            if result.interrupted:
                return whitening, True
            if self._over_time():
                self.notes.append("The minutes were used up before Z had settled.")
                return whitening, False
            chains = result.chains
            whitening = whitening_from_draws(chains.x.reshape(-1, chains.x.shape[2]), whitening)
            try:
                done.append(self.move_inducing(path[-1], chains))
            except KeyboardInterrupt:
                return whitening, True
            path.append(done[-1].Z)
            self._note_bound("round", len(done), done[-1].bound, done[-1].bound_error)
            self.saved.save_round(len(done), done[-1], whitening)
        if not done[-1].converged:
            self.notes.append(f"Z was still gaining {done[-1].gain:.2f} nats after {len(done)} rounds.")
        return whitening, False

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
        return Round(Z_new, gain, error, float(after.mean()), float(after.std(ddof=1) / np.sqrt(len(after))))

    def final_draws(self, Z: np.ndarray, whitening: Whitening, interrupted: bool) -> tuple[Chains | None, str]:
        """Return: chains that go on until every hyperparameter has converged or the budget is used up."""
        self._enter("final")
        chains: Chains | None = self.saved.draws()
        block = self.saved.n_blocks
        if interrupted:
            return chains, "interrupted"
        self.problem.progress.phase("final draws")
        if chains is None or chains.n_draws < 2:
            starts, tune = self._dispersed(whitening, Z, [3]), self.settings.tune
        else:
            flat = chains.x.reshape(-1, chains.x.shape[2])
            whitening = whitening_from_draws(flat, whitening)
            starts, tune = chains.x[:, -1], self._short_tune()
        left = self.settings.max_draws - (chains.n_draws if chains else 0)
        watch = _FinalWatch(self, chains, block, tune)
        if watch.reached_already() or left <= 0:
            return chains, "" if left > 0 else "budget"
        result = self._sample(Z, whitening, tune, left, [4, block], starts, watch)
        chains = chains.then(result.chains) if chains else result.chains
        self.saved.save_draws(block, result.chains)
        if result.interrupted:
            return chains, "interrupted"
        return chains, "" if watch.reached else "budget"

    def posterior(self, chains: Chains | None, path: list[np.ndarray], ended: str) -> Posterior:
        """Put the pieces together: verdict, thinned conditionals, history."""
        self._enter("conditional")
        problem, settings = self.problem, self.settings
        if chains is None or chains.n_draws == 0:
            chains = one_draw(self.optimum, self.target.evaluate(self.optimum, path[-1]).log_density)
        judged = verdict(
            chains,
            problem.model.names,
            target_ess=settings.target_ess,
            rejections=self.target.counter.failures,
            evaluations=self.target.counter.gradients,
            ended=ended,
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
            self.optimum,
            tuple(self.history),
            np.array(path),
            dict(self.clock.seconds),
            {
                "gradients": self.target.counter.gradients,
                "failures": self.target.counter.failures,
                "rounds": len(path) - 1,
                "blocks": self.saved.n_blocks,
            },
            tuple(self.notes),
        )

    def _sample(self, Z, whitening, tune, draws, purpose, starts, watch) -> SampledRun:
        return sample_nuts(
            lambda x: _density(self.target, x, Z),
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
        """Starts for the chains, wider than the posterior, each pulled in until the density there is finite."""
        rng = np.random.default_rng([self.settings.seed, *purpose])
        starts = 1.5 * rng.standard_normal((self.settings.chains, len(whitening.centre)))
        for start in starts:
            while not np.isfinite(self.target.evaluate(whitening.to_x(start), Z).log_density) and np.any(start != 0.0):
                start *= 0.5 if np.abs(start).max() > 1e-3 else 0.0
        return whitening.to_x(starts)

    def _short_tune(self) -> int:
        return max(1, self.settings.tune // 2)

    def _tell(self, total: int) -> Watcher:
        def watch(w: Watch) -> int | None:
            self.problem.progress.update(w.done, total, f"{w.done} of {total} draws")
            return w.chains.n_draws if self._over_time() and w.chains.n_draws else None

        return watch

    def _enter(self, phase: str) -> None:
        self.clock.enter(phase)
        if phase in ("warm start", "metric"):
            self.problem.progress.phase(phase)

    def _note_bound(self, phase: str, step: int, bound: float, error: float) -> None:
        self.history.append(BoundPoint(phase, step, self.clock.elapsed, bound, error))

    def _over_time(self) -> bool:
        minutes = self.settings.max_minutes
        return minutes is not None and self.clock.elapsed > 60.0 * minutes


class _FinalWatch:
    """Looks at the growing chains at fixed numbers of draws, saves them, and says when they are enough."""

    def __init__(self, fit: _Fit, before: Chains | None, block: int, tune: int):
        self.fit, self.before, self.block, self.tune = fit, before, block, tune
        self.reached = False
        self.n_before = before.n_draws if before else 0
        self.next_check = max(FIRST_CHECK, self.n_before + CHECK_EVERY)
        self.saved_at = 0.0
        self.text = ""

    def reached_already(self) -> bool:
        """Whether the draws of earlier blocks are enough."""
        if self.before is None or self.n_before < FIRST_CHECK:
            return False
        self.reached = convergence(self.before.x).reached(self.fit.settings.target_ess)
        return self.reached

    def __call__(self, w: Watch) -> int | None:
        """How many draws of this block to keep, once it is time to stop."""
        n = self.n_before + w.chains.n_draws
        while self.next_check <= n:
            here = self.next_check - self.n_before
            x = w.chains.first(here).x
            x = np.concatenate([self.before.x, x], axis=1) if self.before else x
            numbers = convergence(x)
            least = min(numbers.ess_bulk.min(), numbers.ess_tail.min())
            self.text = f"R-hat {numbers.r_hat.max():.3f}, ESS {least:.0f}"
            self.next_check += CHECK_EVERY * max(1, self.next_check // 1000)
            if numbers.reached(self.fit.settings.target_ess):
                self.reached = True
                return here
        if w.chains.n_draws and w.seconds - self.saved_at > SAVE_SECONDS:
            self.fit.saved.save_draws(self.block, w.chains)
            self.saved_at = w.seconds
        self._tell(w, n)
        if self.fit._over_time():
            return max(w.chains.n_draws, 1) if w.chains.n_draws else None
        return None

    def _tell(self, w: Watch, n: int) -> None:
        divergences = int(w.chains.diverging.sum())
        text = f"tuning, {w.done} draws" if w.done < self.tune else f"{n} draws, {divergences} divergences. {self.text}"
        # The time left is that to the next check beyond the target, as far as one can tell.
        expected = self.n_before + self.tune + max(FIRST_CHECK, self.next_check)
        self.fit.problem.progress.update(self.n_before + w.done, expected, text)


def _likelihood(target: CollapsedTarget, phi: np.ndarray, Z: np.ndarray):
    e = target.evaluate(phi, Z)
    return e.log_likelihood, e.d_likelihood


def _density(target: CollapsedTarget, phi: np.ndarray, Z: np.ndarray):
    e = target.evaluate(phi, Z)
    return e.log_density, e.gradient
