"""Optimise or integrate? Cross-validated answers with paired differences and their standard errors."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from integrand.cli.table import read_table
from integrand.data.splits import k_folds
from integrand.errors import InputError
from integrand.methods.fitting import fit
from integrand.methods.table import METHODS


def compare_table(
    data: Path, target: str, methods: str, folds: int, seed: int, **settings: Any
) -> tuple[dict[str, Any], str]:
    """Facts and a text: for each method the mean of -log density and of squared errors, against the first one."""
    names = [m.strip() for m in methods.split(",") if m.strip()]
    for name in names:
        if name not in METHODS:
            raise InputError(f"there is no method {name!r}: choose from {', '.join(METHODS)}")
    if len(set(names)) < 2:
        raise InputError("give at least two different methods to compare")
    X, y, columns = read_table(data).split(target)
    scores: dict[str, dict[str, np.ndarray]] = {m: {"nlpd": np.empty(len(y)), "se": np.empty(len(y))} for m in names}
    seconds, verdicts = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    for k, split in enumerate(k_folds(len(y), folds, seed)):
        for m in names:
            posterior = fit(X[split.train], y[split.train], method=m, columns=columns, seed=seed, **settings)
            predictive = posterior.predict(X[split.test], include_noise=True)
            scores[m]["nlpd"][split.test] = -predictive.log_density(y[split.test])
            scores[m]["se"][split.test] = (predictive.mean - y[split.test]) ** 2
            seconds[m] += sum(posterior.seconds.values())
            verdicts[m] += posterior.verdict is not None and not posterior.verdict.ok
            print(f"fold {k + 1} of {folds}: {m} done", file=sys.stderr, flush=True)
    rows: dict[str, dict[str, Any]] = {m: paired_summary(scores[m], scores[names[0]]) for m in names}
    for m in names:
        rows[m] |= {"seconds": seconds[m], "not_converged": int(verdicts[m])}
    facts = {"folds": folds, "rows": len(y), "reference": names[0], "methods": rows, "answer": _answer(names, rows)}
    return facts, _text(names, rows, facts["answer"])


def paired_summary(score: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> dict[str, float]:
    """Means, and the paired difference to the reference with its standard error over rows."""
    difference = score["nlpd"] - reference["nlpd"]
    error = float(difference.std(ddof=1) / np.sqrt(len(difference))) if len(difference) > 1 else 0.0
    return {
        "rmse": float(np.sqrt(score["se"].mean())),
        "nlpd": float(score["nlpd"].mean()),
        "difference": float(difference.mean()),
        "difference_se": error,
    }


def _answer(names: list[str], rows: dict[str, dict[str, Any]]) -> str:
    """The answer for the best of the methods that integrate (of all others, if none does)."""
    tried = [m for m in names[1:] if METHODS[m].draws] or names[1:]
    best = min(tried, key=lambda m: rows[m]["difference"])
    return answer(names[0], best, rows[best]["difference"], rows[best]["difference_se"])


def answer(reference: str, method: str, difference: float, error: float) -> str:
    """One sentence; a difference of mean -log density counts when it is larger than two standard errors."""
    amount = f"{abs(difference):.3f} nats a row out of sample (standard error {error:.3f})"
    if difference < -2.0 * error:
        return f"Integrate: {method} predicts better than {reference} by {amount}."
    if difference > 2.0 * error:
        return f"Optimise: {method} predicts worse than {reference} by {amount}."
    ahead = method if difference < 0.0 else reference
    return f"No clear difference: {ahead} is ahead by {amount}, less than two standard errors."


def _text(names: list[str], rows: dict[str, dict[str, Any]], sentence: str) -> str:
    head = f"{'method':<18} {'rmse':>10} {'nlpd':>9} {f'nlpd - that of {names[0]}':>22} {'seconds':>9}"
    lines = [
        f"{m:<18} {rows[m]['rmse']:10.4g} {rows[m]['nlpd']:9.4f} "
        + (f"{'-':>22}" if m == names[0] else f"{rows[m]['difference']:+13.4f} ± {rows[m]['difference_se']:.4f}")
        + f" {rows[m]['seconds']:9.1f}"
        for m in names
    ]
    note = "Less is better; ± is one standard error over rows; the first method's seconds include compiling."
    return "\n".join([head, *lines, note, "", sentence])
