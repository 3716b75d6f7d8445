"""Did it converge? Numbers, and a verdict in words with stable codes and what to try."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from integrand.errors import NotConvergedError, counted
from integrand.infer.base import Chains, Finding
from integrand.infer.convergence import R_HAT_LIMIT, Convergence, convergence, e_bfmi

E_BFMI_LIMIT = 0.3
# Shares of trajectories that may diverge (one may anyway), or of evaluations that may fail, before the verdict is bad.
DIVERGENCE_LIMIT = 0.005
REJECTION_LIMIT = 0.05
# A gain of the bound below this many nats cannot be seen in a prediction.
TOLERANCE_NATS = 0.25


@dataclass(frozen=True)
class Verdict:
    """Whether the draws (or the one point of an optimiser) can be trusted, and why not."""

    findings: tuple[Finding, ...]
    convergence: Convergence
    names: tuple[str, ...]
    divergences: int
    e_bfmi: Float[np.ndarray, " C"]
    rejections: int
    evaluations: int

    @property
    def ok(self) -> bool:
        """No serious finding."""
        return not any(f.serious for f in self.findings)

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of all findings."""
        return tuple(f.code for f in self.findings)

    def raise_if_bad(self) -> None:
        """Strict mode: raise NotConvergedError with the serious findings."""
        if not self.ok:
            raise NotConvergedError(str(self))

    @property
    def sampled(self) -> bool:
        """Whether there are draws to judge, and not one optimised point."""
        return not bool(np.all(np.isnan(self.convergence.r_hat)))

    def __str__(self) -> str:
        lines = [f"- {f.sentence} {f.remedy}".rstrip() for f in self.findings]
        if not self.sampled:
            head = "Optimised" if not lines else "Optimised, with remarks" if self.ok else "Not to be trusted yet"
            return "\n".join([f"{head}: the optimiser took {counted(self.evaluations, 'step')}.", *lines])
        c = self.convergence
        summary = (
            f"R-hat at most {np.max(c.r_hat):.3f}, ESS at least {np.min(c.ess_bulk):.0f} (bulk) and "
            f"{np.min(c.ess_tail):.0f} (tail), {counted(self.divergences, 'divergence')}"
        )
        if not self.findings:
            return f"Converged: {summary}."
        head = "Converged, with remarks" if self.ok else "Not to be trusted yet"
        return "\n".join([f"{head}: {summary}.", *lines])


def optimised(findings: Sequence[Finding], names: Sequence[str], failures: int, steps: int) -> Verdict:
    """The verdict on one optimised point: it has findings, but no draws that could converge."""
    unknown = np.full(len(names), np.nan)
    numbers = Convergence(unknown, unknown, unknown)
    return Verdict(tuple(findings), numbers, tuple(names), 0, np.full(1, np.nan), failures, steps)


def verdict(
    chains: Chains,
    names: Sequence[str],
    *,
    target_ess: float,
    rejections: int = 0,
    evaluations: int = 0,
    max_depth: int = 8,
    ended: str = "",
) -> Verdict:
    """Judge the final draws. `ended` says why sampling stopped early: "", "budget" or "interrupted"."""
    findings: list[Finding] = []
    if chains.n_draws < 4:
        none = Convergence(np.full(len(names), np.inf), np.zeros(len(names)), np.zeros(len(names)))
        few = Finding(
            "no-draws", True, f"Each chain has only {counted(chains.n_draws, 'draw')}.", "Allow more time or draws."
        )
        return Verdict((few, *_endings(ended)), none, tuple(names), 0, np.zeros(len(chains.x)), rejections, evaluations)
    numbers = convergence(chains.x)
    if len(chains.x) == 1:
        sentence = "There is one chain: R-hat compares its two halves, and a mode that it never met is not seen."
        findings.append(Finding("one-chain", False, sentence, "Use chains=4."))
    findings += _disagreements(chains, numbers, names)
    findings += _convergence_findings(numbers, names, target_ess)
    divergences = int(np.sum(chains.diverging))
    if divergences:
        share = divergences / chains.n_trajectories
        findings.append(
            Finding(
                "divergences",
                divergences > 1 and share > DIVERGENCE_LIMIT,
                f"{divergences} of {counted(chains.n_trajectories, 'trajectory').replace('ys', 'ies')} diverged.",
                "Raise target_accept (0.9 or 0.95), or use priors with lighter tails.",
            )
        )
    energies = e_bfmi(chains.energy)
    if np.any(energies < E_BFMI_LIMIT):
        findings.append(
            Finding(
                "e-bfmi",
                True,
                f"The energy mixes badly (E-BFMI {np.min(energies):.2f} in chain {int(np.argmin(energies))}): "
                "the posterior has tails or a funnel that the sampler hardly enters.",
                "Use priors with lighter tails, or more draws.",
            )
        )
    deep = float(np.mean(chains.depth >= max_depth))
    if deep > 0.05:
        sentence = f"{deep:.0%} of the trajectories reached the depth limit of {max_depth}."
        findings.append(Finding("depth", False, sentence, "Each draw is expensive here; a tighter prior may help."))
    if evaluations and rejections > REJECTION_LIMIT * evaluations:
        findings.append(
            Finding(
                "rejections",
                True,
                f"{rejections} of {evaluations} evaluations failed numerically and were rejected.",
                "Use fewer inducing points, a larger jitter, or a prior that keeps the noise away from zero.",
            )
        )
    findings += _endings(ended)
    return Verdict(tuple(findings), numbers, tuple(names), divergences, energies, rejections, evaluations)


def _endings(ended: str) -> list[Finding]:
    """What to say of a run that ended before it had converged."""
    if ended == "interrupted":
        sentence = "Sampling was interrupted; these are the draws made so far."
        return [Finding("interrupted", True, sentence, "Resume the run, or fit again.")]
    if ended == "budget":
        sentence = "Sampling ended because its budget of draws or minutes was used up, not because it had converged."
        return [Finding("budget", False, sentence, "Allow more max_draws or max_minutes (also when resuming a run).")]
    return []


def _convergence_findings(numbers: Convergence, names: Sequence[str], target_ess: float) -> list[Finding]:
    findings = []
    for code, values, bad, label in (
        ("r-hat", numbers.r_hat, numbers.r_hat > R_HAT_LIMIT, f"R-hat is above {R_HAT_LIMIT}"),
        ("ess-bulk", numbers.ess_bulk, numbers.ess_bulk < target_ess, f"The bulk ESS is below {target_ess:.0f}"),
        ("ess-tail", numbers.ess_tail, numbers.ess_tail < target_ess, f"The tail ESS is below {target_ess:.0f}"),
    ):
        if np.any(bad):
            worst = np.argsort(-values if code == "r-hat" else values)[: min(3, int(bad.sum()))]
            form = _r_hat if code == "r-hat" else "{:.0f}".format
            listed = ", ".join(f"{names[i]} ({form(float(values[i]))})" for i in worst)
            more = f" and {int(bad.sum()) - len(worst)} more" if bad.sum() > len(worst) else ""
            findings.append(Finding(code, True, f"{label} for {listed}{more}.", "Draw more."))
    return findings


def _r_hat(value: float) -> str:
    """Three digits, or as many as tell it from its limit."""
    return next((f"{value:.{d}f}" for d in (3, 4, 5) if float(f"{value:.{d}f}") > R_HAT_LIMIT), f"{value:.6f}")


def _disagreements(chains: Chains, numbers: Convergence, names: Sequence[str]) -> list[Finding]:
    """Name the hyperparameter on which whole chains sit in different places, and chains that do not move."""
    findings = []
    moved = np.ptp(chains.x, axis=1)  # (C, P)
    for c in np.flatnonzero(np.all(moved == 0.0, axis=1)):
        findings.append(
            Finding("stuck-chain", True, f"Chain {c} never moved.", "Start again with another seed or priors.")
        )
    means, sds = chains.x.mean(axis=1), chains.x.std(axis=1)
    spread = np.ptp(means, axis=0) / np.maximum(np.median(sds, axis=0), 1e-300)
    worst = int(np.argmax(np.where(numbers.r_hat > 1.05, spread, -1.0)))
    if numbers.r_hat[worst] > 1.05 and spread[worst] > 1.0:
        order = np.argsort(means[:, worst])
        findings.append(
            Finding(
                "chains-disagree",
                True,
                f"Chains disagree on {names[worst]}: chain {order[0]} and chain {order[-1]} are "
                f"{spread[worst]:.1f} standard deviations apart, as with several modes.",
                "Draw more; if it stays, the data allow several explanations: use a more informative prior.",
            )
        )
    return findings
