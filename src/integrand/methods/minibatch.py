"""SG-HMC over hyperparameters and inducing values: what `joint-hmc` (with `sampler="sghmc"`) and `bsgp` share.

x = (w, ε) with w = φ or (φ, Z), and v = m(w) + LB(w)⁻ᵀ ε by the sites of some rows. A step sees those and a batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from integrand.infer.chains import Chains, SampledRun
from integrand.infer.diagnostics import Finding
from integrand.infer.metric import Whitening
from integrand.infer.sghmc import TracedRows, sample_sghmc
from integrand.methods.checkpoint import WarmStart
from integrand.methods.density import Density
from integrand.methods.joint_start import kept_surrogate
from integrand.methods.problem import Problem
from integrand.methods.sampling import Sampling
from integrand.targets import JointTarget

# Rows whose sites tell where v belongs at another θ: so many, or four for each inducing point.
SITE_ROWS = 500
# Tuning steps at least: they also let the chains forget where they started.
LEAST_TUNE = 100
# Steps (tuning, and draws) of a trial of a step size, and how often it may be halved.
TRIAL, MOST_HALVINGS = 30, 6
# Draws whose density is looked at in the end, and the share of them that may be lost before the verdict is bad.
CHECKED, LOST_LIMIT = 40, 0.05


def minibatch_draws(
    sampling: Sampling, target: JointTarget, start: WarmStart, outer: Whitening, draw_Z: bool
) -> tuple[Chains, np.ndarray, np.ndarray, np.ndarray]:
    """Draws of x = (w, ε), and φ, Z and v of those that predict; `outer` is the whitening of w."""
    problem, n = sampling.problem, sampling.n_theta
    surrogate = kept_surrogate(problem, target, start, site_rows(problem))

    def unpacked(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        phi, Z, epsilon = target.split(x) if draw_Z else (x[:n], start.Z, x[n:])
        return phi, Z, *target.values(phi, epsilon, Z, *surrogate)

    def at(x: np.ndarray) -> tuple[float, np.ndarray]:
        """The log density from all rows. SG-HMC takes gradients of its own; nothing asks for one here."""
        phi, Z, v, log_jacobian = unpacked(x)
        value = target.evaluate(np.concatenate([phi, v]), Z)[0] + log_jacobian
        return value - (0.5 * float(np.sum(Z**2)) if draw_Z else 0.0), np.zeros_like(x)

    def sample(starts: np.ndarray, now: Whitening, **common: Any) -> SampledRun:
        rows = target.rows(None if draw_Z else start.Z, surrogate)
        # A quarter of the default where Z moves too: the density is further from the Gaussian of the whitening.
        first = min(0.05, 0.075 * (batch_size(problem) / rows.n_rows) ** 0.5) if draw_Z else None
        return sample_at_a_safe_step(
            rows, starts, now, batch_size(problem), lost, sampling.findings, step_size=first, **common
        )

    whitening = _whitening(target, start, outer, unpacked, draw_Z)
    # A Gaussian would be half a nat a dimension below its peak: what is far more is lost.
    least = at(whitening.centre)[0] - 2.0 * len(whitening.centre) - 20.0

    def lost(x: np.ndarray) -> bool:
        return not at(x)[0] >= least

    sampling.least_tune = LEAST_TUNE
    density = Density(at, own=sample)
    chains = sampling.or_one(sampling.final_draws(density, whitening), density, whitening.centre)
    sampling.findings += _lost_draws([lost(x) for x in sampling.thinned(chains, CHECKED)])
    sampling.enter("conditional")
    drawn = [unpacked(x) for x in sampling.thinned(chains)]
    phi, Z, v = (np.array([d[i] for d in drawn]) for i in range(3))
    return chains, phi, Z, v


def _whitening(target: JointTarget, start: WarmStart, outer: Whitening, unpacked: Callable, draw_Z: bool) -> Whitening:
    """That of w, and ε as it is; its centre is where v has its mode at that of w, with the sites of all rows."""
    M, K = len(start.Z), len(outer.centre)
    phi, Z, v, _ = unpacked(np.concatenate([outer.centre, np.zeros(M)]))
    mode, LB = target.moments(phi, Z, target.sites(phi, Z))
    factor = np.eye(K + M)
    factor[:K, :K] = outer.factor
    return Whitening(np.concatenate([outer.centre, LB.T @ (mode - v)]), factor)


def sample_at_a_safe_step(
    rows: TracedRows,
    starts: np.ndarray,
    whitening: Whitening,
    batch_size: int,
    lost: Callable[[np.ndarray], bool],
    findings: list[Finding],
    *,
    step_size: float | None = None,
    seed: Sequence[int],
    **common: Any,
) -> SampledRun:
    """SG-HMC with a step size at which a short trial stays where the density is.

    Nothing rejects a step that went too far: where the density is not the Gaussian that the whitening takes it for,
    the default step size may lead a chain away for good. Where no step size that was tried is short enough, the
    shortest is used, and `findings` say so.
    """
    trial_only = common | {"tune": TRIAL, "draws": TRIAL, "watch": None}
    evaluations = 0
    for _ in range(MOST_HALVINGS):
        trial = sample_sghmc(
            rows, starts, whitening, batch_size=batch_size, step_size=step_size, seed=[*seed, 1], **trial_only
        )
        evaluations += trial.evaluations
        if trial.interrupted:
            return trial._replace(chains=trial.chains.first(0), evaluations=evaluations)
        looked = trial.chains.x[:, TRIAL // 3 - 1 :: TRIAL // 3].reshape(-1, starts.shape[1])
        diverged = trial.tuning_divergences + int(trial.chains.diverging.sum())
        if diverged <= 0.01 * TRIAL * len(starts) and not any(lost(x) for x in looked):
            break
        step_size = 0.5 * float(trial.chains.step_size[0, 0])
    else:
        step_size = 2.0 * float(step_size or 0.0)  # the last that was tried
        sentence = f"Even with the step size {step_size:.2g} trials of SG-HMC diverged or left the posterior."
        findings.append(Finding("step-size", True, sentence, "Use larger batches, or `joint-hmc` with NUTS."))
    result = sample_sghmc(rows, starts, whitening, batch_size=batch_size, step_size=step_size, seed=seed, **common)
    return result._replace(evaluations=result.evaluations + evaluations)


def _lost_draws(lost: Sequence[bool]) -> list[Finding]:
    if not any(lost):
        return []
    sentence = f"{sum(lost)} of {len(lost)} draws that were looked at lie far outside the posterior: chains go astray."
    return [
        Finding(
            "lost-draws", sum(lost) > LOST_LIMIT * len(lost), sentence, "Use larger batches, or `joint-hmc` with NUTS."
        )
    ]


def batch_size(problem: Problem) -> int:
    """Rows for each step: those of the settings, made even, or all there are."""
    size = problem.settings.batch_size
    return problem.data.n_rows if size >= problem.data.n_rows else size + size % 2


def site_rows(problem: Problem) -> np.ndarray:
    """Which rows have sites; none says all."""
    N, wanted = problem.data.n_rows, max(SITE_ROWS, 4 * problem.n_inducing)
    return np.zeros(0, int) if wanted >= N else np.sort(problem.rng(8).choice(N, wanted, replace=False))
