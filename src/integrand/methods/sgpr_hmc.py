"""Algorithm 1 of the paper, `sgpr-hmc`: sample θ at fixed Z, move Z along the bound averaged over the draws, repeat.

    Warm-Start (lines 2-4)      `AllRows.warm_start`    maximise L(θ, Z) over both
    Train (lines 5-18)          `Rounds.run`
      draw J samples (14-17)    `Rounds.draw`           chains on log p(θ) + L(θ, Z) with Z fixed
      stochastic bound (18)     `Rounds.move`           1/J Σ_j L(θ_j, Z), maximised over Z (line 11, equation (15));
                                                    value and gradient by its function `averaged_bound`
      while not converged (9)   `Rounds.converged`      until the gain, on draws that did not move Z, is noise
    Return Z and draws          `draw_until_converged`  chains that go on until R-hat and ESS are reached

Lines count the numbered statements of the paper's listing, not its blank lines.

The paper takes one gradient step of Z at a time. Here Z takes a few L-BFGS steps on the averaged bound between two
samplings. `paper_schedule.py` has the paper's own schedule.
"""

import math

import numpy as np

from integrand.compilation import one_blas_thread
from integrand.infer.base import Chains, Finding
from integrand.infer.coordinates import Coordinates
from integrand.infer.optimise import Curvature, maximise_lbfgs
from integrand.infer.verdict import TOLERANCE_NATS
from integrand.methods.all_rows import AllRows, RowStrategy
from integrand.methods.paper_schedule import paper_schedule
from integrand.methods.problem import AUTO, FitContext, Problem
from integrand.methods.sampling import draw_pilot, draw_until_converged, one_draw
from integrand.posterior.conditional import sparse_conditional
from integrand.posterior.posterior import Posterior
from integrand.storage.run_store import Round, WarmStart
from integrand.targets.evaluation import Evaluation

# A move of Z ends when this many steps together gain less than this. Draws move it that cost the others no more than
# MOVE_LOSS nats, by estimate, and at least this many.
MOVE_ENOUGH, MOVE_LOSS, FEWEST_DRAWS = (5, 0.05), 0.1, 2
# Draws that say what the bound is after M has doubled.
DOUBLED_DRAWS = 8


def sgpr_hmc(problem: Problem, context: FitContext, move_Z: bool = True) -> Posterior:
    """Fit by Algorithm 1, or with Z where it starts (`sgpr-hmc-fixed-z`, the paper's ablation)."""
    if problem.settings.schedule == "paper":
        return paper_schedule(problem, context)
    rows = _strategy(problem)
    with one_blas_thread(rows.bound.threads(problem.n_inducing) == 1):
        start = context.warm_start(lambda: _warm_start(context, rows, move_Z))  # lines 2-4
        rounds = Rounds(context, rows, start)
        if move_Z:
            rounds.run()  # lines 5-18
        target, sampler = rows.final(rounds.Z, rounds.coordinates)
        chains = None if context.interrupted else draw_until_converged(context, target, sampler, rounds.coordinates)
        if (
            not chains and rounds.last_draws
        ):  # no time for final draws: those of the last round, with the Z they are from
            chains, rounds.Z_path = rounds.last_draws, rounds.last_path
            context.findings += [rows.pilot_finding] if rows.pilot_finding else []
        chains = chains or one_draw(start.mode, rows.bound.at(rounds.Z))
        context.phase("conditional")
        conditional = sparse_conditional(context.thinned(chains), rounds.Z, rows.inducing_posterior, target.parallel)
        context.notes += rows.notes()
        return context.sampled(
            chains,
            conditional,
            optimum=start.phi,
            counter=rows.bound.counter,
            Z_path=rounds.Z_path,
            counts={"rounds": len(rounds.Z_path) - 1, "doublings": rounds.n_doublings} | rows.counts(),
        )


def _warm_start(context: FitContext, rows: RowStrategy, move_Z: bool) -> WarmStart:
    start = rows.warm_start(move_Z)
    context.store.save_state("curvature", rows.curvature.arrays())
    return start


def _strategy(problem: Problem) -> RowStrategy:
    if not problem.use_subsample:
        return AllRows(problem)
    from integrand.methods.many_rows import ManyRows  # few fits need it and the samplers behind it

    return ManyRows(problem)


class Rounds:
    """The loop of Algorithm 1 (lines 5-18): the path of Z, and the coordinates in which θ is drawn. Resumable."""

    def __init__(self, context: FitContext, rows: RowStrategy, start: WarmStart):
        self.context, self.rows, self.Z_path = context, rows, [start.Z]
        self.finished: list[Round] = []
        self.last_draws: Chains | None = None  # of the latest round with as many draws as any before it
        self.last_path = list(self.Z_path)  # Z before that round
        self.n_doublings, self.enough = 0, context.settings.n_inducing != AUTO  # of M; whether M is settled
        self.curvature = rows.curvature  # of log p(θ) + L(θ, Z) in (φ, Z), as the warm start left it
        learned = context.store.state("curvature")
        if learned is not None:
            self.curvature = Curvature.of(learned)
        coordinates: Coordinates | None = None
        for result, saved in context.store.rounds():  # a resumed run
            self._finish(result)
            coordinates = saved
        if coordinates is None:
            context.phase("metric")
            coordinates = rows.coordinates(start)
        self.coordinates = coordinates

    @property
    def Z(self) -> np.ndarray:
        """Z as it is now."""
        return self.Z_path[-1]

    def run(self) -> None:
        """Line 9: until a move of Z gains nothing beyond its Monte Carlo error, or rounds or minutes run out."""
        context, seconds = self.context, 0.0
        context.phase("rounds")
        try:
            # Once final draws are on disk Z stays: draws at another Z would belong to another posterior.
            while not self.converged and self._n_moves < self.rows.max_rounds and not context.store.n_blocks:
                began = context.clock.elapsed
                if context.over_half_time(seconds):  # the final draws need the other half
                    context.notes.append(f"Z had {self._n_moves} rounds: one more would go past half of the minutes.")
                    break
                if not self.draw():
                    return
                self._finish(self.more_points() or self.move())
                context.store.save_round(len(self.finished), self.finished[-1], self.coordinates)
                seconds = context.clock.elapsed - began
        except KeyboardInterrupt:
            context.interrupted = True
            return
        if self.finished and not self.converged:
            gain = self.finished[-1].gain
            sentence = f"Z was still gaining {gain:.2f} nats after {self._n_moves} rounds."
            remedy = f"Let it move longer: `max_rounds={4 * self._n_moves}`."
            context.findings.append(Finding("inducing-moving", False, sentence, remedy))

    @property
    def converged(self) -> bool:
        """The stopping rule: the gain is at most 0.25 nats plus twice its Monte Carlo standard error."""
        moved = self.finished and len(self.Z_path) > 1
        return bool(moved) and self.finished[-1].gain <= TOLERANCE_NATS + 2.0 * self.finished[-1].error

    def draw(self) -> bool:
        """Lines 14-17: J draws of θ from q*(θ) ∝ p(θ) exp L(θ, Z) with Z fixed; False if Z must not move by them."""
        context, k = self.context, len(self.finished)
        target, sampler = self.rows.pilot(self.Z, self.coordinates)
        chains = draw_pilot(context, target, sampler, self.coordinates, k)
        self.picked = _evenly_spaced(chains, 2 * self.rows.moving_draws)
        if not self.rows.plausible(self.picked, self.Z, self.coordinates):
            context.notes.append(
                f"Z was left alone after {k} rounds: by the bound of all rows, draws from the third order around the "
                "mode were far below it."
            )
            return False
        if self.last_draws is None or chains.n_draws >= self.last_draws.n_draws:
            self.last_draws, self.last_path = chains, list(self.Z_path)
        if context.interrupted or context.over_time:
            return False
        self.coordinates = self.coordinates.refit(chains.x, warp=sampler.can_warp(target))
        return True

    @property
    def _n_moves(self) -> int:
        return len(self.finished) - self.n_doublings

    def more_points(self) -> Round | None:
        """With `n_inducing="auto"`: twice as many points, at the mode for them, where these draws want them."""
        if self.enough:
            return None
        from integrand.methods.auto_inducing import after_draws  # few fits need it

        context, rows, Z = self.context, self.rows, self.Z
        context.progress.phase("count inducing points")
        doubling, more = after_draws(context, rows.bound, self.picked, Z, self.n_doublings)
        if len(more) == 0:
            self.enough = True
            return None
        start = rows.ascend(self.picked.mean(axis=0), np.concatenate([Z, more]))
        self.curvature, self.coordinates = rows.curvature, rows.coordinates(start)
        context.store.save_state("curvature", self.curvature.arrays())
        bound, error = _mean_and_error(rows.bounds(self.picked[:DOUBLED_DRAWS], start.Z))
        return Round(start.Z, doubling.gain, 0.0, bound, error, context.target_accept)

    def move(self) -> Round:
        """Lines 11 and 18: half of the draws move Z up 1/J Σ_j L(θ_j, Z) (equation (15)), the others measure."""
        Z, moving, measuring = self.Z, self.picked[::2], self.picked[1::2]
        self.context.progress.phase("move Z")

        P = moving.shape[1]
        moving = self._enough_draws(moving)

        def averaged_bound(x: np.ndarray) -> tuple[float, np.ndarray]:
            evaluations = self.rows.bound.evaluate_each(moving, x[P:].reshape(Z.shape))
            gradient = np.mean([_joint_gradient(e) for e in evaluations], axis=0)
            return float(np.mean([e.log_likelihood for e in evaluations])), gradient

        # θ is at the draws: in front of Z stand zeros, which are held, for the curvature of θ and Z that is known.
        x = np.concatenate([np.zeros(P), Z.ravel()])
        steps = max(1, self.rows.move_gradients // len(moving))
        optimum = maximise_lbfgs(
            averaged_bound, x, max_steps=steps, enough=MOVE_ENOUGH, curvature=self.curvature.copied(), held=P
        )
        moved = optimum.x[P:].reshape(Z.shape)
        before, after = self.rows.bounds(measuring, Z), self.rows.bounds(measuring, moved)
        gain, error = _mean_and_error(after - before)
        if not np.isfinite(gain) or gain <= 0.0:  # the move fitted the draws that made it, not the posterior
            moved, after, gain, error = Z, before, 0.0, error if np.isfinite(error) else 0.0
        return Round(moved, gain, error, *_mean_and_error(after), self.context.target_accept)

    def _enough_draws(self, phis: np.ndarray) -> np.ndarray:
        """The first of these draws: with them the best Z for them is nearly the best for all draws.

        With the curvature H⁻¹ of the bound in Z and gradients g_j, the best Z for J draws is worse for all others by
        about tr(H Cov g) / 2J nats. Where the posterior of θ is narrow, two draws are enough.
        """
        curvature, P = self.curvature, phis.shape[1]
        if not curvature or len(phis) <= FEWEST_DRAWS:
            return phis
        gradients = np.array([_joint_gradient(e) for e in self.rows.bound.evaluate_each(phis, self.Z)])
        deviations = gradients - gradients.mean(axis=0)
        losses = [0.5 * float(d @ curvature.direction(d, P)) for d in deviations]
        wanted = sum(losses) / (len(phis) - 1) / MOVE_LOSS
        return phis if not np.isfinite(wanted) else phis[: max(FEWEST_DRAWS, math.ceil(wanted))]

    def _finish(self, result: Round) -> None:
        self.finished.append(result)
        if len(result.Z) == len(self.Z):
            self.Z_path.append(result.Z)
        else:  # the path begins again with more points
            self.Z_path, self.n_doublings = [result.Z], self.n_doublings + 1
        self.context.target_accept = result.target_accept
        self.context.record_bound("round", len(self.finished), result.bound, result.bound_error)


def _joint_gradient(e: Evaluation) -> np.ndarray:
    """∂L/∂(φ, Z)."""
    return np.concatenate([e.d_likelihood, e.dZ.ravel()])


def _evenly_spaced(chains: Chains, limit: int) -> np.ndarray:
    phis = chains.x.reshape(-1, chains.x.shape[2])
    return phis[np.linspace(0, len(phis) - 1, min(limit, len(phis))).astype(int)]


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))
