"""The tables of each suite, from its results."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from integrand.experiments.paper_numbers import Printed, nuts_summary, printed
from integrand.experiments.results import Results, in_standard_errors
from integrand.experiments.suites import Arm

METRICS = {
    "rmse": "RMSE, in the units of y",
    "joint_nlpd": "NLPD as in the paper: mean over draws of the joint density of the test set, per point",
    "nlpd": "NLPD of the mixture, per point (the one that predictions should be judged by)",
    "expected_nlpd": "NLPD per point, mean over draws of each draw's own",
}


@dataclass(frozen=True)
class Table:
    """A table with a name for its files."""

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """As Markdown, numbers to the right."""
        line = ["---" if i == 0 else "--:" for i in range(len(self.header))]
        body = [self.header, line, *self.rows]
        return f"### {self.title}\n\n" + "\n".join("| " + " | ".join(row) + " |" for row in body) + "\n"


def score_tables(results: Results, metrics: Sequence[str] = tuple(METRICS)) -> list[Table]:
    """For each metric: ours with its standard error, the paper's, and the difference in standard errors."""
    tables = []
    for metric in metrics:
        rows = []
        for dataset in results.datasets:
            for arm in results.arms:
                ours = results.mean(dataset, arm.name, metric)
                if ours is None:
                    continue
                theirs = printed(_paper_table(results), _paper_row(dataset, arm), arm.paper, metric)
                z = in_standard_errors(ours, theirs)
                if theirs is not None and results.suite.kind == "synthetic":  # the paper's is one draw of the data
                    z = in_standard_errors(ours, Printed(theirs.value, ours.error * math.sqrt(ours.n)))
                rows.append(
                    [
                        dataset,
                        arm.name,
                        str(ours),
                        str(ours.n),
                        "-"
                        if theirs is None
                        else f"{theirs.value:g}" + (f" ({theirs.error:g})" if theirs.error else ""),
                        "-" if z is None else f"{z:+.1f}",
                    ]
                )
        if rows:
            header = ["data", "method", "ours (se)", "splits", "paper (se)", "difference in se, all splits"]
            tables.append(Table(metric, METRICS[metric], header, rows))
    return tables


def _paper_table(results: Results) -> str:
    return results.suite.name if results.suite.name in ("ablation", "elevators", "synthetic-1d") else "uci"


def _paper_row(dataset: str, arm: Arm) -> str:
    return str(arm.n_inducing) if dataset == "elevators" else dataset


def paired_table(results: Results, reference: str, metric: str = "nlpd") -> list[Table]:
    """Differences to a reference on the same splits."""
    rows = []
    for dataset in results.datasets:
        for arm in results.arms:
            found = None if arm.name == reference else results.paired(dataset, arm.name, reference, metric)
            if found is not None:
                z = found.value / found.error if found.error > 0 else float("nan")
                rows.append([dataset, arm.name, f"{found.value:+.4f} ± {found.error:.4f}", f"{z:+.1f}", str(found.n)])
    header = ["data", "method", f"difference to {reference}", "in paired se", "splits"]
    title = f"{METRICS[metric]}: paired differences to {reference} (negative is better)"
    return [Table(f"{metric}-paired", title, header, rows)] if rows else []


def spread_table(results: Results, arms: Sequence[str]) -> list[Table]:
    """Standard deviation between splits of each arm: the paper says that HMC varies less than SGPR."""
    rows = []
    for dataset in results.datasets:
        for metric in ("rmse", "nlpd"):
            cells = []
            for arm in arms:
                values = list(results.values(dataset, arm, metric).values())
                cells.append(f"{np.std(values, ddof=1):.3f}" if len(values) > 1 else "-")
            if any(cell != "-" for cell in cells):
                rows.append([dataset, metric, *cells])
    return [Table("spread", "Standard deviation between splits", ["data", "metric", *arms], rows)] if rows else []


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
                    cells[1] = str(sum("budget" in v["codes"] for v in judged))
            drawn = [r["verdict"] for r in found if r.get("verdict") and r["draws"] > 1]  # a climb has no chains
            if drawn:
                sizes = [v[name] for v in drawn for name in ("ess_bulk", "ess_tail")]
                cells[2] = "-" if None in sizes else f"{min(sizes):.0f}"
                worst = [v["r_hat"] for v in drawn]  # none for one chain, or chains that never moved
                cells[3] = "-" if None in worst else f"{max(worst):.3f}"
                cells[4] = str(sum(v["divergences"] for v in drawn))
            rows.append([dataset, arm.name, *cells, f"{gradients:.0f}", f"{seconds:.0f}"])
    header = ["data", "method", "converged", "ended by a cap", "least ESS", "worst R-hat", "divergences"]
    header += ["gradients", "seconds"]
    title = "How the fits went (median gradients and seconds; several fits shared the machine)"
    return [Table("verdicts", title, header, rows)] if rows else []


def runtime_table(results: Results) -> list[Table]:
    """Seconds of whole fits and of 500 draws, and ratios to SGPR and to SGPR + HMC."""
    rows = []
    for dataset in results.datasets:
        whole = {arm.name: _one(results, dataset, arm.name) for arm in results.arms}
        theirs = {arm.name: printed("runtime", dataset, arm.paper, "seconds") for arm in results.arms}
        base, paper_base = whole.get("SGPR"), theirs.get("SGPR")
        for arm in results.arms:
            result, paper = whole[arm.name], theirs[arm.name]
            if result is None:
                continue
            total = sum(result["seconds"].values())
            draws = 500.0 * result["seconds"].get("final", 0.0) / result["draws"] if result["draws"] > 1 else None
            rows.append(
                [
                    dataset,
                    arm.name,
                    f"{total:.1f}" + ("+" if "budget" in (result.get("verdict") or {"codes": ()})["codes"] else ""),
                    "-" if base is None else f"{total / sum(base['seconds'].values()):.2f}",
                    "-" if draws is None else f"{draws:.1f}",
                    "-" if paper is None else f"{paper.value:.1f}",
                    "-" if paper is None or paper_base is None else f"{paper.value / paper_base.value:.2f}",
                ]
            )
    header = ["data", "method", "whole fit, s", "over SGPR", "500 draws, s", "paper, s", "paper's over SGPR"]
    title = "Seconds of one fit in a fresh process (+: ended by its cap; tuning is part of the time of draws)"
    return [Table("runtime", title, header, rows)] if rows else []


def _one(results: Results, dataset: str, arm: str) -> dict | None:
    found = results.of(dataset, arm)
    return found[min(found)] if found else None


def time_ratios(results: Results) -> list[Table]:
    """Seconds of both methods at the same M; the paper gives 1248 and 2109 s at M = 500."""
    rows = []
    for m in sorted({arm.n_inducing for arm in results.arms}):
        ours = _one(results, "elevators", f"SGPR + HMC, M = {m}")
        joint = _one(results, "elevators", f"JointHMC, M = {m}")
        if ours is not None and joint is not None:
            a, b = sum(ours["seconds"].values()), sum(joint["seconds"].values())
            a_draw, b_draw = a / ours["draws"], b / joint["draws"]
            rows.append([str(m), f"{a:.0f}", f"{b:.0f}", f"{b / a:.2f}", f"{b_draw / a_draw:.2f}"])
    header = ["M", "SGPR + HMC, s", "JointHMC, s", "ratio", "ratio for as many draws"]
    title = "Seconds of whole fits (the paper at M = 500: 1248 and 2109 s, ratio 1.69)"
    return [Table("seconds", title, header, rows)] if rows else []


def summary_tables(results: Results) -> list[Table]:
    """The appendix's tables: mean and sd of each hyperparameter, ours beside the paper's."""
    tables = []
    for dataset in results.datasets:
        result = _one(results, dataset, results.arms[0].name)
        if result is None:
            continue
        pairs, rows = zip(result["hyperparameters"].items(), nuts_summary(dataset).items(), strict=True), []
        for (name, ours), (label, paper) in pairs:
            # The paper's chain has an error of its own; ours is small beside it.
            error = float(np.hypot(ours["mcse_mean"], paper["mcse_mean"]))
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
                    f"{(ours['mean'] - paper['mean']) / error:+.1f}" if error > 0 else "-",
                ]
            )
        header = ["hyperparameter", "mean", "sd", "94 % interval", "ESS bulk, tail", "paper: mean", "sd", "ESS", "z"]
        if rows:
            tables.append(Table(dataset, f"{dataset}, split 4, standardised units", header, rows))
    return tables


TABLES: dict[str, Callable[[Results], list[Table]]] = {
    "synthetic-1d": lambda r: score_tables(r) + verdict_table(r),
    "uci": lambda r: (
        score_tables(r) + paired_table(r, "SGPR") + spread_table(r, ["SGPR", "SGPR + HMC"]) + verdict_table(r)
    ),
    "ablation": lambda r: score_tables(r) + paired_table(r, "SGPR + HMC, fixed Z") + verdict_table(r),
    "elevators": lambda r: score_tables(r) + time_ratios(r) + verdict_table(r),
    "runtime": runtime_table,
    "nuts-summary": summary_tables,
    "more-inducing": lambda r: (
        score_tables(r, ("rmse", "joint_nlpd", "nlpd")) + paired_table(r, "SGPR + HMC") + verdict_table(r)
    ),
    "priors": lambda r: score_tables(r, ("rmse", "nlpd")) + paired_table(r, "SGPR") + verdict_table(r),
    "ridge": lambda r: [],
}
