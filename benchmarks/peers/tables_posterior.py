"""Tables of what is sampled and predicted: hyperposteriors and their agreement, the whole product, accuracy."""

import math
from statistics import mean, median, stdev

import rows as R
from contestants import CONTESTANTS
from rows import Row, Table
from tables import _identity, ml2_target, seconds_to

REFERENCE = "pymc"
TARGET_ESS = 400.0
MIXED = 1.05  # an R-hat above this leaves Monte Carlo errors without meaning


def ess_per_second(row: Row) -> float:
    return row["judged"]["ess_bulk"] / row["result"]["seconds"]


def seconds_to_ess(row: Row, target: float = TARGET_ESS) -> float:
    """Seconds at which this run would have had the target: what is not sampling as it was, draws in proportion."""
    result, numbers = row["result"], row["judged"]
    setup, tune = result["seconds"] - result["sampling_seconds"], result["tune"]
    needed = numbers["draws"] * target / max(numbers["ess_bulk"], 1e-9)
    return setup + result["sampling_seconds"] * (tune + needed) / (tune + numbers["draws"])


def z_scores(row: Row, reference: Row) -> list[float]:
    """Differences of the posterior means of log θ, over their Monte Carlo errors."""
    a, b = row["judged"], reference["judged"]
    return [
        (m - n) / math.sqrt(s**2 + t**2)
        for m, n, s, t in zip(a["log_mean"], b["log_mean"], a["mcse"], b["mcse"], strict=True)
    ]


def hyperposterior_table(rows: list[Row]) -> Table:
    rows = R.of(rows, "hyperposterior")
    parts = []
    for p in R.datasets(rows):
        some = R.where(rows, problem=p)
        ours = R.middle(R.where(some, contestant="integrand-fixed-z"), ess_per_second)
        cells = []
        for c in R.ordered(map(R.name, some)):
            mine = R.where(some, contestant=c)
            good = R.done(mine)
            if not good:
                cells.append([R.label(c), R.why(mine), *["-"] * 7])
                continue
            rate, one = R.middle(mine, ess_per_second), good[0]
            cells.append(
                [
                    R.label(c),
                    R.spread(R.middle(mine, lambda r: r["result"]["seconds"])),
                    f"{one['judged']['chains']} x {one['judged']['draws']}"
                    + (", capped" if one["result"].get("capped") else ""),
                    R.number(R.middle(mine, lambda r: r["judged"]["ess_bulk"])[0]),
                    f"{median(r['judged']['r_hat'] for r in good):.3f}",
                    R.spread(rate),
                    f"{ours[0] / rate[0]:.1f}" if ours and rate[0] > 0 else "-",
                    *_agreement(c, good, R.done(R.where(some, contestant=REFERENCE))),
                ]
            )
        columns = ["", "seconds", "draws", "min bulk ESS", "R-hat", "ESS / s", "ours is x", "largest \\|z\\|", "rms z"]
        parts.append((R.title(p), columns, cells))
    about = (
        "Posterior of θ at fixed Z (the same Z, M = 100) under the priors of the paper: Gamma(2, 1) on lengthscales, "
        "half-Cauchy(1) on the standard deviations of signal and noise; the same jitter of 1e-6. Four chains on two "
        "cores; each process has one BLAS thread. Seconds count from the start of the process. ESS is the least bulk "
        "ESS over log hyperparameters (rank-normalised, Vehtari et al. 2021). z compares posterior means of log θ with "
        "PyMC's (its own NUTS), in units of both Monte Carlo errors: values like draws from a standard normal mean "
        "agreement (of D + 2 of them the largest is below 3 in more than 95 of 100 cases). PyTensor's cache of "
        "compiled C code is warm after the first run."
    )
    records = [_hyper_record(r, rows) for r in rows]
    return Table("hyperposterior", "3. Hyperposterior at fixed Z", about, parts, records, R.failures(rows))


def _agreement(contestant: str, good: list[Row], reference: list[Row]) -> list[str]:
    if contestant == REFERENCE:
        return ["reference", ""]
    if not CONTESTANTS[contestant].same_model:
        return ["another model", ""]
    if not reference:
        return ["-", "-"]
    if max(good[0]["judged"]["r_hat"], reference[0]["judged"]["r_hat"]) > MIXED:
        return ["not converged", ""]
    z = z_scores(good[0], reference[0])
    return [f"{max(map(abs, z)):.2f} of {len(z)}", f"{math.sqrt(mean(v * v for v in z)):.2f}"]


def _hyper_record(row: Row, rows: list[Row]) -> Row:
    record = _identity(row)
    if row["status"] == "done":
        numbers, result = row["judged"], row["result"]
        record |= {key: numbers[key] for key in ("chains", "draws", "ess_bulk", "ess_tail", "r_hat")}
        record |= {"seconds": result["seconds"], "sampling_seconds": result["sampling_seconds"], "tune": result["tune"]}
        record |= {"ess_per_second": ess_per_second(row), "divergences": result.get("divergences")}
        reference = R.done(R.where(rows, problem=R.problem(row), contestant=REFERENCE))
        for key in ("log_mean", "log_sd", "mcse"):
            record[key] = " ".join(f"{v:.5g}" for v in numbers[key])
        if reference and CONTESTANTS[R.name(row)].same_model:
            record["z"] = " ".join(f"{v:.2f}" for v in z_scores(row, reference[0]))
    return record


PRODUCT_ML2 = ("gpflow", "gpytorch", "gpytorch-slow", "gpjax", "sklearn", "integrand")
PRODUCT_NUTS = ("pymc", "pymc-nutpie")


def product_table(rows: list[Row]) -> Table:
    ours, ml2, hyper = (R.of(rows, m) for m in ("product", "ml2", "hyperposterior"))
    problems = R.datasets(ours)

    def seconds(r: Row) -> float:
        return r["result"]["seconds"]

    lines = [
        ["**integrand `sgpr-hmc`, θ integrated**", *(_own_cell(R.where(ours, problem=p), seconds) for p in problems)]
    ]
    for source, names, value, what in (
        (ml2, PRODUCT_ML2, seconds, "ML-II"),
        (_with_targets(ml2), PRODUCT_ML2, lambda r: r["to_target"], "ML-II, to the target of table 2"),
        (hyper, PRODUCT_NUTS, seconds_to_ess, "Z fixed, to ESS 400"),
    ):
        for c in names:
            mine = R.where(source, contestant=c)
            if not mine:
                continue
            cells = [f"{R.label(c)}, {what}"]
            for p in problems:
                found = R.middle(R.where(mine, problem=p), value)
                base = R.middle(R.where(ours, problem=p), seconds)
                share = f" ({base[0] / found[0]:.2f})" if found and base else ""
                cells.append(R.number(found[0]) + share if found else R.why(R.where(mine, problem=p)))
            lines.append(cells)
    about = (
        "Seconds of a fresh process on two cores. Ours is the default fit, θ integrated and Z moved, until R-hat ≤ "
        "1.01 and bulk and tail ESS ≥ 400 for every hyperparameter (not reached is said so). Against it: what others "
        "take for the optimum alone (table 2, until the optimiser ends and until the target there), and PyMC at fixed "
        "Z until a bulk ESS of 400 "
        "(table 3, draws in proportion; R-hat and tails are not asked for). In brackets: ours over theirs."
    )
    records = [_product_record(r) for r in ours]
    return Table(
        "product",
        "4. The whole product",
        about,
        [("", ["", *map(R.title, problems)], lines)],
        records,
        R.failures(ours),
    )


def _with_targets(ml2: list[Row]) -> list[Row]:
    """Rows that reached the target of their data set, and when."""
    found = []
    for row in R.done(ml2):
        target = ml2_target(R.where(ml2, problem=R.problem(row)))
        if target is not None and CONTESTANTS[R.name(row)].same_model:
            at = seconds_to(row, target)
            if at is not None:
                found.append(row | {"to_target": at})
    return found


def _own_cell(rows: list[Row], seconds) -> str:
    found = R.spread(R.middle(rows, seconds))
    return found if all(r["result"]["reached"] for r in R.done(rows)) else f"{found}, not reached"


def _product_record(row: Row) -> Row:
    record = _identity(row)
    if row["status"] == "done":
        numbers, result = row["judged"], row["result"]
        record |= {"seconds": result["seconds"], "reached": result["reached"], "gradients": result["gradients"]}
        record |= {key: numbers[key] for key in ("draws", "ess_bulk", "ess_tail", "r_hat", "rmse", "nlpd")}
        record |= {f"s_{key.replace(' ', '_')}": value for key, value in result["spent"].items()}
    return record


SCORES = ("rmse", "nlpd", "coverage_50", "coverage_80", "coverage_95")
OURS_INTEGRATED = "integrand-sgpr-hmc"


def accuracy_table(rows: list[Row]) -> Table:
    rows = R.of(rows, "accuracy")
    parts = []
    for dataset in sorted({R.problem(r).rpartition("-")[0] for r in rows}):
        some = [r for r in rows if R.problem(r).rpartition("-")[0] == dataset]
        ours = {R.problem(r): r["judged"]["nlpd"] for r in R.done(R.where(some, contestant=OURS_INTEGRATED))}
        cells = []
        for c in R.ordered(map(R.name, some)):
            good = R.done(R.where(some, contestant=c))
            if not good:
                cells.append([R.label(c), R.why(R.where(some, contestant=c)), *["-"] * 7])
                continue
            values = {s: [r["judged"][s] for r in good] for s in SCORES}
            paired = [r["judged"]["nlpd"] - ours[R.problem(r)] for r in good if R.problem(r) in ours]
            cells.append(
                [R.predictor_label(c), str(len(good)), _with_error(values["rmse"]), _with_error(values["nlpd"])]
                + ["" if c == OURS_INTEGRATED else _with_error(paired)]
                + [f"{mean(values[s]):.2f}" for s in SCORES[2:]]
                + [R.number(median(r["result"]["seconds"] for r in good))]
            )
        columns = ["", "splits", "rmse", "nlpd", "nlpd less ours", "50 %", "80 %", "95 %", "seconds"]
        parts.append((dataset, columns, cells))
    about = (
        "Test rows of the paper's splits, in the units of y; mean over splits with its standard error. nlpd is that of "
        "the predictive mixture over draws (for one θ, of its Gaussian). `nlpd less ours` pairs the same splits with "
        "`sgpr-hmc`. Coverage is of central intervals. Each package has its own jitter here. PyMC's posterior is "
        "drawn by nutpie, 200 draws after 200 of tuning. Slow samplers had fewer splits and a budget of minutes."
    )
    return Table("accuracy", "5. Accuracy", about, parts, [_accuracy_record(r) for r in rows], R.failures(rows))


def _with_error(values: list[float]) -> str:
    if not values:
        return "-"
    error = f" ± {stdev(values) / math.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{error}"


def _accuracy_record(row: Row) -> Row:
    record = _identity(row)
    if row["status"] == "done":
        numbers = row["judged"]
        record |= {s: numbers[s] for s in SCORES} | {"seconds": row["result"]["seconds"]}
        record |= {key: numbers.get(key) for key in ("ess_bulk", "r_hat")}
    return record
