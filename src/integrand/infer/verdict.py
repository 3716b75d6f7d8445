"""Did it converge, and does the model suit the data? A verdict in words, with stable codes and what to try.

The two are separate statements. Findings on the draws may be serious: then the result is not what was asked for.
Findings on the model are remarks: the draws are from its posterior, but another model may suit the data better.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from integrand.errors import NotConvergedError, counted
from integrand.infer.base import Chains, Finding
from integrand.infer.convergence import R_HAT_LIMIT, Convergence, convergence, e_bfmi

E_BFMI_LIMIT = 0.3
# Shares of trajectories that may diverge, or of evaluations that may fail, before the verdict is bad. A few may diverge
# anyway: where few draws have trajectories, two of a hundred are no larger share of the draws.
DIVERGENCE_LIMIT, DIVERGENCES_ALLOWED = 0.005, 4
REJECTION_LIMIT = 0.05
# A gain of the bound below this many nats cannot be seen in a prediction.
TOLERANCE_NATS = 0.25
# A slack, and its spread over draws, below this many nats changes neither predictions nor θ.
NEGLIGIBLE = 0.5
# Codes of findings on the model, beside those of values that are far from the data; all others are on the draws.
MODEL_CODES = frozenset(
    {
        "autocorrelated",
        "collinear-columns",
        "duplicate-columns",
        "few-inducing",
        "few-rows",
        "heavy-tails",
        "heteroscedastic",
        "inducing-moving",
        "inducing-stuck",
        "intervals-narrow",
        "intervals-wide",
        "missed-structure",
        "noise-above-y",
        "outliers",
        "overdispersed",
        "rows-uncovered",
        "skewed",
        "prior-against-data",
        "sparse-posterior",
    }
)


def _is_on_model(code: str) -> bool:
    return code in MODEL_CODES or code.endswith("-outside-data")


class Sparseness(NamedTuple):
    """What the inducing points cost, in nats over draws of θ; what could not be computed is NaN."""

    draws: int
    further: int  # points Z' chosen from the data
    gain: float  # mean of L(θ, Z ∪ Z') - L(θ, Z)
    gain_sd: float  # its sd over draws, NaN for one draw
    fresh_gain: (
        float  # the best L(θ, Z) of M points chosen afresh, at the middle draw or the prior's medians, less ours
    )
    slack: float  # mean of log p(y | θ) - L(θ, Z), where there are few enough rows
    slack_sd: float

    @property
    def spread(self) -> float:
        """The sd of the slack, or of the gain that tracks it."""
        return self.gain_sd if math.isnan(self.slack_sd) else self.slack_sd

    @property
    def missing(self) -> float:
        """The mean of the slack, or the gain."""
        return self.gain if math.isnan(self.slack) else self.slack

    def __str__(self) -> str:
        said = []
        if not math.isnan(self.gain):
            nothing = " and change nothing" if self.missing < NEGLIGIBLE and not self.spread > NEGLIGIBLE else ""
            said.append(f"twice the inducing points would gain {_nats(self.gain, self.gain_sd)}{nothing}")
        if not math.isnan(self.slack):
            said.append(f"log p(y | θ) of the exact GP is {_nats(self.slack, self.slack_sd)} higher than the bound")
        return "; ".join(said)


def _nats(mean: float, sd: float) -> str:
    """A mean over draws and its spread, with the digits that say something."""
    digits = 0 if abs(mean) >= 10.0 else 1 if abs(mean) >= 1.0 else 2
    spread = "" if math.isnan(sd) else f" ± {sd:.{digits}f}"
    return f"{mean if abs(mean) >= 0.005 else 0.0:.{digits}f}{spread} nats"


@dataclass(frozen=True)
class Verdict:
    """Whether the draws (or the one point of an optimiser) can be trusted, and what is said of the model."""

    findings: tuple[Finding, ...]
    convergence: Convergence
    names: tuple[str, ...]
    divergences: int
    e_bfmi: Float[np.ndarray, " C"]
    rejections: int
    evaluations: int
    sparseness: Sparseness | None = None  # for methods with inducing points

    def __repr__(self) -> str:
        return f"<Verdict: {self!s}>"

    @property
    def ok(self) -> bool:
        """No serious finding. Remarks on the model are not serious: see `on_model`."""
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

    @property
    def on_draws(self) -> tuple[Finding, ...]:
        """Findings on the draws, or on what an optimiser did."""
        return tuple(f for f in self.findings if not _is_on_model(f.code))

    @property
    def on_model(self) -> tuple[Finding, ...]:
        """Findings on the model: what the data say of it."""
        return tuple(f for f in self.findings if _is_on_model(f.code))

    @property
    def headline(self) -> str:
        """What is said of the draws, in a line."""
        said = bool(self.on_draws)
        if not self.sampled:
            head = "Optimised" if not said else "Optimised, with remarks" if self.ok else "Not to be trusted yet"
            return f"{head}: the optimiser took {counted(self.evaluations, 'step')}."
        c = self.convergence
        head = "Converged" if not said else "Converged, with remarks" if self.ok else "Not to be trusted yet"
        return (
            f"{head}: R-hat at most {np.max(c.r_hat):.3f}, ESS at least {np.min(c.ess_bulk):.0f} (bulk) and "
            f"{np.min(c.ess_tail):.0f} (tail), {counted(self.divergences, 'divergence')}."
        )

    @property
    def model_headline(self) -> str:
        """What is said of the model, in a line; "" if nothing was looked at."""
        if self.sparseness is None and not self.on_model:
            return ""
        n, said = len(self.on_model), "" if self.sparseness is None else str(self.sparseness)
        head = "Model" if not n else f"Model, with {n} remark{'s' if n > 1 else ''}"
        if "updated" in self.codes and (said or any(f.code != "rows-uncovered" for f in self.on_model)):
            head += ", examined before the new rows"
        return f"{head}: {said}." if said else f"{head}:"

    def text(self, words: Callable[[str], str] = str) -> str:
        """All of it; `words` puts remedies into the words of an interface (they are in those of Python)."""

        def line(finding: Finding) -> str:
            return f"- {finding.sentence} {words(finding.remedy)}".rstrip()

        parts = [self.headline, *map(line, self.on_draws), self.model_headline, *map(line, self.on_model)]
        return "\n".join(part for part in parts if part)

    def __str__(self) -> str:
        return self.text()


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
            "no-draws",
            True,
            f"Each chain has only {counted(chains.n_draws, 'draw')}.",
            "Allow more draws or minutes: `max_draws`, `max_minutes`.",
        )
        return Verdict((few, *_endings(ended)), none, tuple(names), 0, np.zeros(len(chains.x)), rejections, evaluations)
    numbers = convergence(chains.x)
    if len(chains.x) == 1:
        sentence = "There is one chain: R-hat compares its two halves, and a mode that it never met is not seen."
        findings.append(Finding("one-chain", False, sentence, "Use `chains=4`."))
    findings += _disagreements(chains, numbers, names)
    findings += _convergence_findings(numbers, names, target_ess)
    divergences = int(np.sum(chains.diverging))
    if divergences:
        share = divergences / chains.n_trajectories
        findings.append(
            Finding(
                "divergences",
                divergences > DIVERGENCES_ALLOWED and share > DIVERGENCE_LIMIT,
                f"{divergences} of {counted(chains.n_trajectories, 'trajectory').replace('ys', 'ies')} diverged.",
                "Raise `target_accept=0.95`, or use priors with lighter tails.",
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
                "Use priors with lighter tails, or more draws (`target_ess`).",
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
                "Use a smaller `n_inducing`, a larger `jitter`, or a prior that keeps the noise away from zero.",
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
        return [
            Finding("budget", False, sentence, "Allow more: `max_draws` or `max_minutes` (also when resuming a run).")
        ]
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
            findings.append(Finding(code, True, f"{label} for {listed}{more}.", "Draw more: `max_draws`."))
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
