"""Optimise or integrate? Cross-validated answers with paired differences and their standard errors."""

import itertools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from integrand.cli.commands import check_logarithms, chosen_rows
from integrand.data.sources import ArrayRows
from integrand.data.tables import NO_LEVELS, Selection
from integrand.errors import InputError
from integrand.kernels import parse_kernel
from integrand.likelihoods import Gaussian
from integrand.methods.fit import Settings, as_likelihood, fit
from integrand.methods.table import METHODS, default_method
from integrand.posterior.leave_one_out import Comparison
from integrand.posterior.posterior import Posterior
from integrand.priors import DEFAULT


class Split(NamedTuple):
    """Row numbers for training and for testing."""

    train: np.ndarray
    test: np.ndarray


def random_split(n_rows: int, test_fraction: float, seed: int) -> Split:
    """Random rows for testing, at least one on either side; the same seed gives the same split."""
    n_test = min(max(round(test_fraction * n_rows), 1), n_rows - 1)
    rows = np.random.default_rng(seed).permutation(n_rows)
    return Split(rows[n_test:], rows[:n_test])


def k_folds(n_rows: int, folds: int, seed: int) -> tuple[Split, ...]:
    """Shuffle and cut into folds whose sizes differ by at most one; each row is tested exactly once."""
    if folds < 2:
        raise InputError(f"folds must be at least 2, not {folds}: use --folds 5")
    if folds > n_rows:
        raise InputError(f"{folds} folds need at least as many rows, but there are {n_rows}: use fewer folds")
    if seed < 0:
        raise InputError(f"the seed must be at least 0, not {seed}")
    parts = np.array_split(np.random.default_rng(seed).permutation(n_rows), folds)
    return tuple(Split(np.concatenate(parts[:i] + parts[i + 1 :]), part) for i, part in enumerate(parts))


class ToCompare(NamedTuple):
    """A table, how its columns are used, and what all fits share."""

    data: Path
    target: str
    columns: Selection
    noise_column: str | None
    likelihood: str
    settings: dict[str, Any]
    model: dict[str, Any]  # bound and target_transform

    def rows(self, categories: Mapping[int | str, Any] = NO_LEVELS) -> ArrayRows:
        """All rows of the table."""
        rows, _ = chosen_rows(self.data, self.target, self.columns, self.noise_column, categories)
        check_logarithms(self.data, self.target, rows, self.model["target_transform"])
        return rows

    def check(self, method: str, rows: ArrayRows) -> None:
        """Refuse before the first fit what a method cannot do."""
        METHODS[method].check(Settings.of(self.settings), as_likelihood(self.likelihood), rows)

    def fit(self, rows: ArrayRows, **how: Any) -> Posterior:
        """One of the fits."""
        return fit(rows, likelihood=self.likelihood, **self.settings, **self.model, **how)


def part_of(rows: ArrayRows, index: np.ndarray) -> ArrayRows:
    """Some of the rows."""
    v = None if rows.noise_variance is None else rows.noise_variance[index]
    return ArrayRows(rows.X[index], rows.y[index], rows.columns, noise_variance=v)


def compare_table(table: ToCompare, methods: str | None, folds: int) -> tuple[dict[str, Any], str]:
    """Facts and a text: for each method the mean of -log density and of squared errors, against the first one."""
    gaussian = isinstance(as_likelihood(table.likelihood), Gaussian)
    methods = methods or ("ml2,map,sgpr-hmc" if gaussian else "svgp,joint-hmc")
    names = [m.strip() for m in methods.split(",") if m.strip()]
    for name in names:
        if name not in METHODS:
            raise InputError(f"there is no method {name!r}: choose from {', '.join(METHODS)}")
    if len(set(names)) < 2:
        raise InputError("give at least two different methods to compare")
    rows = table.rows()
    for name in names:
        table.check(name, rows)
    y, n = rows.y, rows.n_rows
    scores: dict[str, dict[str, np.ndarray]] = {m: {"nlpd": np.empty(n), "se": np.empty(n)} for m in names}
    evidence: dict[str, list[float]] = {m: [] for m in names}
    seconds, verdicts = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    for k, split in enumerate(k_folds(n, folds, table.settings["seed"])):
        train, test = part_of(rows, split.train), part_of(rows, split.test)
        for m in names:
            posterior = table.fit(train, method=m)
            predictive = posterior.predict(test.X, include_noise=True, noise_variance=test.noise_variance)
            scores[m]["nlpd"][split.test] = -predictive.log_density(test.y)
            scores[m]["se"][split.test] = (predictive.mean - test.y) ** 2
            seconds[m] += sum(posterior.seconds.values())
            evidence[m] += [] if posterior.evidence is None else [posterior.evidence[0]]
            verdicts[m] += posterior.verdict is not None and not posterior.verdict.ok
            print(f"fold {k + 1} of {folds}: {m} done", file=sys.stderr, flush=True)
    table_rows: dict[str, dict[str, Any]] = {m: paired_summary(scores[m], scores[names[0]]) for m in names}
    for m in names:
        known = len(evidence[m]) == folds
        table_rows[m]["log_evidence"] = float(np.mean(evidence[m])) if known else None  # of the training rows of a fold
        table_rows[m] |= {"seconds": seconds[m], "not_converged": int(verdicts[m])}
    answered = answer_of(names, scores)
    facts = {"folds": folds, "rows": len(y), "reference": names[0], "methods": table_rows, "answer": answered}
    return facts, _text(names, table_rows, answered)


def compare_models(table: ToCompare, kernels: str, priors: str, method: str | None) -> tuple[dict[str, Any], str]:
    """Facts and a text: models with each kernel and preset of priors, ranked by leave-one-out."""
    method = method or default_method(as_likelihood(table.likelihood))
    if method not in METHODS:
        raise InputError(f"--methods {method}: kernels and priors are compared by one method, such as sgpr-hmc")
    if not METHODS[method].draws:
        other = default_method(as_likelihood(table.likelihood))
        raise InputError(f"{method} draws no hyperparameters: leave-one-out would flatter it, use --methods {other}")
    if method == "vi-uncollapsed":
        raise InputError(f"{method} has no leave-one-out without refitting: use --methods joint-hmc")
    trees, presets = _parts(kernels) or ["rbf"], _parts(priors) or [DEFAULT]
    names = [", ".join([k] * (len(trees) > 1) + [p] * (len(presets) > 1)) for k in trees for p in presets]
    if len(set(names)) < 2:
        raise InputError("give at least two different models, such as --kernels 'rbf, matern32'")
    parsed = [parse_kernel(tree) for tree in trees]  # a mistake is reported before anything runs
    rows = table.rows({key: levels for tree in parsed for key, levels in tree.category_levels().items()})
    for text, tree in zip(trees, parsed, strict=True):
        known = [rows.columns[key] if isinstance(key, int) else key for key in tree.category_levels()]
        if missing := [name for name in rows.levels if name not in known]:
            raise InputError(
                f"--kernels: {text!r} does not name the column {missing[0]!r}, which holds categories: name it in "
                f"every kernel, as in categorical({missing[0]!r})*rbf, or leave it out with --drop {missing[0]}"
            )
    table.check(method, rows)
    results, seconds, not_converged = {}, {}, {}
    for name, (kernel, preset) in zip(names, itertools.product(parsed, presets), strict=True):
        posterior = table.fit(rows, kernel=kernel, method=method, priors=preset)
        results[name] = posterior.loo(rows.X, rows.y, rows.noise_variance)
        seconds[name] = sum(posterior.seconds.values())
        not_converged[name] = posterior.verdict is not None and not posterior.verdict.ok
        print(f"{name} done", file=sys.stderr, flush=True)
    comparison = Comparison.of(results)
    facts = comparison.facts() | {"rows": rows.n_rows, "method": method}
    for name, row in facts["models"].items():
        row |= {"seconds": seconds[name], "not_converged": not_converged[name]}
    doubtful = [name for name in names if not_converged[name]]
    warning = f"\nNot converged: {', '.join(doubtful)}." if doubtful else ""
    return facts, f"{comparison}{warning}"


def _parts(text: str) -> list[str]:
    """The parts of a list with commas, but for commas in parentheses."""
    depth, parts = 0, [""]
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


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


def answer_of(names: list[str], scores: dict[str, dict[str, np.ndarray]]) -> str:
    """A sentence on the best of all methods, and the best of the other kind (of the others, if there is one kind)."""
    order = sorted(names, key=lambda m: float(scores[m]["nlpd"].mean()))
    best = order[0]
    second = next((m for m in order[1:] if METHODS[m].draws != METHODS[best].draws), order[1])
    summary = paired_summary(scores[best], scores[second])
    return answer(second, best, summary["difference"], summary["difference_se"])


def answer(reference: str, method: str, difference: float, error: float) -> str:
    """One sentence; a difference of mean -log density counts when it is larger than two standard errors."""
    amount = f"{abs(difference):.3f} nats a row out of sample (standard error {error:.3f})"
    best, other = (method, reference) if difference < 0.0 else (reference, method)
    if abs(difference) <= 2.0 * error:
        return f"No clear difference: {best} is better than {other} by {amount}, less than two standard errors."
    integrates = [METHODS[m].draws for m in (best, other)]
    word = "Best" if integrates[0] == integrates[1] else "Integrate" if integrates[0] else "Optimise"
    return f"{word}: {best} predicts better than {other} by {amount}."


def _text(names: list[str], rows: dict[str, dict[str, Any]], sentence: str) -> str:
    head = f"{'method':<18} {'rmse':>10} {'nlpd':>9} {f'nlpd - that of {names[0]}':>22} {'seconds':>9}"
    lines = [
        f"{m:<18} {rows[m]['rmse']:10.4g} {rows[m]['nlpd']:9.4f} "
        + (f"{'-':>22}" if m == names[0] else f"{rows[m]['difference']:+13.4f} ± {rows[m]['difference_se']:.4f}")
        + f" {rows[m]['seconds']:9.1f}"
        for m in names
    ]
    known = [f"{m} {rows[m]['log_evidence']:.2f}" for m in names if rows[m]["log_evidence"] is not None]
    if known:  # of a sparse method a lower bound
        lines.append(f"mean log evidence of the training rows (a lower bound for sparse methods): {', '.join(known)}")
    note = "Less is better; ± is one standard error over rows; the first method's seconds include compiling."
    return "\n".join([head, *lines, note, "", sentence])
