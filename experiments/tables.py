"""The tables of each suite, made from its results."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.paper_numbers import Printed, nuts_summary, printed
from experiments.store import undrawn
from experiments.suite_results import Mean, Results, in_standard_errors
from experiments.suites import Arm

METRICS = {
    "rmse": "RMSE, in the units of y",
    "joint_nlpd": "NLPD as in the paper: mean over draws of the joint density of the test set, per point",
    "nlpd": "NLPD of the mixture, per point (the one that predictions should be judged by)",
    "expected_nlpd": "NLPD per point, mean over draws of each draw's own",
}


_LAST_DIGIT = 0.0005  # half of one, in the appendix's tables
# With fewer draws most of the seconds are warm-up, so seconds per draw would say nothing about 500 draws.
_MIN_DRAWS = 250


@dataclass(frozen=True)
class Table:
    """A table of a page; `name` stands in the CSV file."""

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The table in Markdown, with numbers aligned right."""
        line = ["---" if i == 0 else "--:" for i in range(len(self.header))]
        body = [self.header, line, *self.rows]
        return f"## {self.title}\n\n" + "\n".join("| " + " | ".join(row) + " |" for row in body) + "\n"


def score_tables(results: Results, metrics: Sequence[str] = tuple(METRICS), reference: str = "") -> list[Table]:
    """For each metric: our mean with its standard error, the paper's, and the difference in standard errors.

    Where an arm has fewer splits than the reference, the row also has the reference's mean over the same splits.
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
    """The reference's mean over the splits of an arm; None if the arm has as many splits as the reference."""
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
                mean = None if arm.name == reference else results.paired(dataset, arm.name, reference, metric)
                if mean is not None:
                    z = mean.value / mean.error if mean.error > 0 else float("nan")
                    numbers = [f"{mean.value:+.4f} ± {mean.error:.4f}", f"{z:+.1f}", str(mean.n)]
                    rows.append([dataset, arm.name, *numbers])
        title = f"{METRICS[metric]}: paired differences to {reference} (negative is better)"
        tables += [Table(f"{metric}-paired", title, header, rows)] if rows else []
    return tables


def spread_table(results: Results, arms: Sequence[str]) -> list[Table]:
    """Standard deviation between the splits of all arms: the paper says that HMC varies less than SGPR."""
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
    """Converged fits, smallest ESS, divergences, seconds and gradients of each arm."""
    rows = []
    for dataset in results.datasets:
        for arm in results.arms:
            fits = list(results.of(dataset, arm.name).values())
            verdicts = [r["verdict"] for r in fits if r.get("verdict")]
            if not fits:
                continue
            seconds = np.median([sum(r["seconds"].values()) for r in fits])
            gradients = np.median([r["counts"].get("gradients", 0) for r in fits])
            cells = ["-"] * 5
            if verdicts:
                cells[0] = f"{sum(v['ok'] for v in verdicts)} of {len(verdicts)}"
                if results.protocol == "default":  # the paper's schedule fixes the number of draws
                    none = sum(undrawn(r) for r in fits)
                    cells[1] = str(sum("budget" in v["codes"] for v in verdicts))
                    cells[1] += f" ({none} before any draw: not in the scores)" if none else ""
            drawn = [r["verdict"] for r in fits if r.get("verdict") and r["draws"] > 1]  # an optimum has no chains
            if drawn:
                sizes = [v[name] for v in drawn for name in ("ess_bulk", "ess_tail")]
                cells[2] = "-" if None in sizes else f"{min(sizes):.0f}"
                worst = [v["r_hat"] for v in drawn]  # None for one chain, or for chains that never moved
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
        splits = results.of(dataset, results.arms[0].name)
        if 4 not in splits:
            continue
        result = splits[4]
        pairs, rows = zip(result["hyperparameters"].items(), nuts_summary(dataset).items(), strict=True), []
        for (name, ours), (label, paper) in pairs:
            # The paper's mean has a Monte Carlo error too; both were printed with three decimals.
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


def runtime_table(results: Results) -> list[Table]:
    """Seconds of whole fits and of 500 draws, and their ratios to those of SGPR and SGPR + HMC."""
    rows = []
    for dataset in results.datasets:
        first = {arm.name: _first(results, dataset, arm.name) for arm in results.arms}
        whole = {name: None if r is None else sum(r["seconds"].values()) for name, r in first.items()}
        draws = {name: None if r is None else _seconds_of_500(r) for name, r in first.items()}
        paper = {arm.name: printed("runtime", dataset, arm.paper, "seconds") for arm in results.arms}
        theirs = {name: None if p is None else p.value for name, p in paper.items()}
        for arm in results.arms:
            result, name = first[arm.name], arm.name
            if result is None:
                continue
            capped = "+" if "budget" in (result.get("verdict") or {"codes": ()})["codes"] else ""
            cells = [
                _number(whole[name], 1) + capped,
                _ratio(whole[name], whole.get("SGPR")),
                _ratio(whole[name], whole.get("SGPR + HMC")),
                _number(draws[name], 1),
                _ratio(draws[name], draws.get("SGPR + HMC")),
                _number(theirs[name], 1),
                _ratio(theirs[name], theirs.get("SGPR")),
                _ratio(theirs[name], theirs.get("SGPR + HMC")),
            ]
            rows.append([dataset, name, *cells])
    header = ["data", "method", "whole fit, s", "over SGPR", "over SGPR + HMC", "500 draws, s", "over SGPR + HMC"]
    header += ["paper, s", "over SGPR", "over SGPR + HMC"]
    title = (
        "Seconds of one fit in a fresh process, alone on its cores, import aside and compiling included (+: ended by "
        f"its cap; 500 draws are of four chains together, with their tuning, where a fit has {_MIN_DRAWS} or more; "
        "the paper's seconds are of training)"
    )
    return [Table("runtime", title, header, rows)] if rows else []


def time_ratios(results: Results) -> list[Table]:
    """Seconds of both methods at the same M and split; the paper gives 1248 and 2109 s at M = 500."""
    rows = []
    for m in sorted({arm.n_inducing for arm in results.arms}):
        ours, joint = (results.of("elevators", f"{name}, M = {m}") for name in ("SGPR + HMC", "JointHMC"))
        common = sorted(k for k in ours.keys() & joint.keys() if _comparable(ours[k], joint[k]))
        if common:
            a, b = (sum(fits[common[0]]["seconds"].values()) for fits in (ours, joint))
            a_draw, b_draw = a / ours[common[0]]["draws"], b / joint[common[0]]["draws"]
            cells = [f"{a:.0f}", f"{b:.0f}", f"{b / a:.2f}", f"{b_draw / a_draw:.2f}"]
            rows.append([str(m), str(common[0]), *cells])
    header = ["M", "split", "SGPR + HMC, s", "JointHMC, s", "ratio", "ratio for as many draws"]
    title = "Seconds of whole fits (the paper at M = 500: 1248 and 2109 s, ratio 1.69)"
    return [Table("seconds", title, header, rows)] if rows else []


def _comparable(a: dict, b: dict) -> bool:
    """Whether two fits had the same number of cores and both have draws."""
    return not (undrawn(a) or undrawn(b)) and a["made"].get("cores") == b["made"].get("cores")


def _first(results: Results, dataset: str, arm: str) -> dict | None:
    splits = results.of(dataset, arm)
    return splits[min(splits)] if splits else None


def _seconds_of_500(result: dict) -> float | None:
    """Seconds of 500 draws, in proportion, with warm-up and pilot runs; None if the fit has too few draws."""
    drawn = result["seconds"].get("final", 0.0) + result["seconds"].get("scouting", 0.0)
    return 500.0 * drawn / result["draws"] if result["draws"] >= _MIN_DRAWS else None


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _ratio(value: float | None, base: float | None) -> str:
    return "-" if value is None or base is None else f"{value / base:.2f}"


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
    "tight-bound": lambda r: paired_tables(r, "SGPR + HMC, titsias", ("nlpd", "rmse")) + verdict_table(r),
    "priors": lambda r: (
        score_tables(r, ("rmse", "joint_nlpd", "nlpd"), "SGPR") + paired_tables(r, "SGPR") + verdict_table(r)
    ),
    "ridge": lambda r: [],
}
