"""The tables of each suite, from its results."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from integrand.experiments.paper_numbers import Printed, nuts_summary, printed
from integrand.experiments.results import Mean, Results, in_standard_errors
from integrand.experiments.store import undrawn
from integrand.experiments.suites import Arm
from integrand.experiments.table import Table
from integrand.experiments.timings import runtime_table, time_ratios

METRICS = {
    "rmse": "RMSE, in the units of y",
    "joint_nlpd": "NLPD as in the paper: mean over draws of the joint density of the test set, per point",
    "nlpd": "NLPD of the mixture, per point (the one that predictions should be judged by)",
    "expected_nlpd": "NLPD per point, mean over draws of each draw's own",
}


_LAST_DIGIT = 0.0005  # half of one, in the appendix's tables


def score_tables(results: Results, metrics: Sequence[str] = tuple(METRICS), reference: str = "") -> list[Table]:
    """For each metric: ours with its standard error, the paper's, and the difference in standard errors.

    Where an arm has fewer splits than the reference, the reference's mean over the same splits stands beside it.
    """
    tables = []
    for metric in metrics:
        rows = []
        for dataset in results.datasets:
            for arm in results.arms:
                ours = results.mean(dataset, arm.name, metric)
                if ours is None:
                    continue
                theirs = printed(results.paper_table, _paper_row(dataset, arm), arm.paper, metric)
                z = in_standard_errors(ours, theirs)
                if theirs is not None and results.suite.kind == "synthetic":  # the paper's is one draw of the data
                    z = in_standard_errors(ours, Printed(theirs.value, ours.error * math.sqrt(ours.n)))
                beside = _beside(results, dataset, arm.name, reference, metric)
                rows.append(
                    [
                        dataset,
                        arm.name,
                        str(ours),
                        str(ours.n) + (f" ({reference} on these: {beside})" if beside else ""),
                        "-"
                        if theirs is None
                        else f"{theirs.value:g}" + (f" ({theirs.error:g})" if theirs.error else ""),
                        "-" if z is None else f"{z:+.1f}",
                    ]
                )
        if rows:
            difference = "difference in sd between draws of the data" if results.suite.kind == "synthetic" else ""
            header = ["data", "method", "ours (se)", "splits", "paper (se)"]
            header.append(difference or "difference in se, all splits")
            tables.append(Table(metric, METRICS[metric], header, rows))
    return tables


def _beside(results: Results, dataset: str, arm: str, reference: str, metric: str) -> Mean | None:
    """The reference's mean over the splits that an arm has, if those are not all of the reference's."""
    splits = results.values(dataset, arm, metric).keys()
    if arm == reference or len(splits) >= len(results.values(dataset, reference, metric)):
        return None
    return results.mean(dataset, reference, metric, splits)


def _paper_row(dataset: str, arm: Arm) -> str:
    return str(arm.n_inducing) if dataset == "elevators" else dataset


def paired_tables(results: Results, reference: str, metrics: Sequence[str] = ("nlpd",)) -> list[Table]:
    """Differences to a reference on the same splits."""
    tables, header = [], ["data", "method", f"difference to {reference}", "in paired se", "splits"]
    for metric in metrics:
        rows = []
        for dataset in results.datasets:
            for arm in results.arms:
                found = None if arm.name == reference else results.paired(dataset, arm.name, reference, metric)
                if found is not None:
                    z = found.value / found.error if found.error > 0 else float("nan")
                    numbers = [f"{found.value:+.4f} ± {found.error:.4f}", f"{z:+.1f}", str(found.n)]
                    rows.append([dataset, arm.name, *numbers])
        title = f"{METRICS[metric]}: paired differences to {reference} (negative is better)"
        tables += [Table(f"{metric}-paired", title, header, rows)] if rows else []
    return tables


def spread_table(results: Results, arms: Sequence[str]) -> list[Table]:
    """Standard deviation between the splits that all arms have: the paper says that HMC varies less than SGPR."""
    rows = []
    for dataset in results.datasets:
        for metric in ("rmse", "joint_nlpd", "nlpd"):
            values = [results.values(dataset, arm, metric) for arm in arms]
            common = set.intersection(*(set(v) for v in values))
            if len(common) > 1:
                cells = [f"{np.std([v[k] for k in common], ddof=1):.3f}" for v in values]
                rows.append([dataset, metric, *cells, str(len(common))])
    header = ["data", "metric", *arms, "splits"]
    return [Table("spread", "Standard deviation between splits", header, rows)] if rows else []


def verdict_table(results: Results) -> list[Table]:
    """How the fits went: converged, smallest ESS, divergences, seconds and gradients."""
    rows = []
    for dataset in results.datasets:
        for arm in results.arms:
            found = list(results.of(dataset, arm.name).values())
            judged = [r["verdict"] for r in found if r.get("verdict")]
            if not found:
                continue
            seconds = np.median([sum(r["seconds"].values()) for r in found])
            gradients = np.median([r["counts"].get("gradients", 0) for r in found])
            cells = ["-"] * 5
            if judged:
                cells[0] = f"{sum(v['ok'] for v in judged)} of {len(judged)}"
                if results.protocol == "default":  # the paper's schedule has an end of its own
                    none = sum(undrawn(r) for r in found)
                    cells[1] = str(sum("budget" in v["codes"] for v in judged))
                    cells[1] += f" ({none} before any draw: not in the scores)" if none else ""
            drawn = [r["verdict"] for r in found if r.get("verdict") and r["draws"] > 1]  # a climb has no chains
            if drawn:
                sizes = [v[name] for v in drawn for name in ("ess_bulk", "ess_tail")]
                cells[2] = "-" if None in sizes else f"{min(sizes):.0f}"
                worst = [v["r_hat"] for v in drawn]  # none for one chain, or chains that never moved
                one_chain = results.protocol == "paper"
                cells[3] = ("-" if one_chain else "inf") if None in worst else f"{max(worst):.3f}"
                cells[4] = str(sum(v["divergences"] for v in drawn))
            rows.append([dataset, arm.name, *cells, f"{gradients:.0f}", f"{seconds:.0f}"])
    header = ["data", "method", "converged", "ended by a cap", "least ESS", "worst R-hat", "divergences"]
    header += ["gradients", "seconds"]
    title = "How the fits went (median gradients and seconds; several fits shared the machine)"
    return [Table("verdicts", title, header, rows)] if rows else []


def summary_tables(results: Results) -> list[Table]:
    """The appendix's tables: mean and sd of each hyperparameter, ours beside the paper's."""
    tables = []
    for dataset in results.datasets:
        found = results.of(dataset, results.arms[0].name)
        if 4 not in found:
            continue
        result = found[4]
        pairs, rows = zip(result["hyperparameters"].items(), nuts_summary(dataset).items(), strict=True), []
        for (name, ours), (label, paper) in pairs:
            # The paper's chain has an error of its own, and three decimals: of the mean, and of that error.
            printed_error = math.hypot(max(paper["mcse_mean"], _LAST_DIGIT), _LAST_DIGIT / math.sqrt(3.0))
            error = math.hypot(ours["mcse_mean"], printed_error)
            rows.append(
                [
                    f"{name} (`{label}`)",
                    f"{ours['mean']:.3f}",
                    f"{ours['sd']:.3f}",
                    f"{ours['hdi_3']:.3f} to {ours['hdi_97']:.3f}",
                    f"{ours['ess_bulk']:.0f}, {ours['ess_tail']:.0f}",
                    f"{paper['mean']:.3f}",
                    f"{paper['sd']:.3f}",
                    f"{paper['ess_bulk']:.0f}, {paper['ess_tail']:.0f}",
                    f"{(ours['mean'] - paper['mean']) / error:+.1f}",
                ]
            )
        header = ["hyperparameter", "mean", "sd", "94 % interval", "ESS bulk, tail", "paper: mean", "sd", "ESS", "z"]
        if rows:
            tables.append(Table(dataset, f"{dataset}, split 4, standardised units", header, rows))
    return tables


_PAIRED = ("nlpd", "joint_nlpd", "rmse")
TABLES: dict[str, Callable[[Results], list[Table]]] = {
    "synthetic-1d": lambda r: score_tables(r) + paired_tables(r, "SGPR", _PAIRED) + verdict_table(r),
    "uci": lambda r: (
        score_tables(r, reference="SGPR + HMC")
        + paired_tables(r, "SGPR", _PAIRED)
        + spread_table(r, ["SGPR", "SGPR + HMC"])
        + verdict_table(r)
    ),
    "ablation": lambda r: score_tables(r) + paired_tables(r, "SGPR + HMC, fixed Z") + verdict_table(r),
    "elevators": lambda r: score_tables(r) + time_ratios(r) + verdict_table(r),
    "runtime": runtime_table,
    "nuts-summary": summary_tables,
    "more-inducing": lambda r: (
        score_tables(r, ("rmse", "joint_nlpd", "nlpd"), "SGPR + HMC")
        + paired_tables(r, "SGPR + HMC", _PAIRED)
        + verdict_table(r)
    ),
    "priors": lambda r: (
        score_tables(r, ("rmse", "joint_nlpd", "nlpd"), "SGPR") + paired_tables(r, "SGPR") + verdict_table(r)
    ),
    "ridge": lambda r: [],
}
