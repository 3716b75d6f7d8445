"""Tables of samplers: hyperposteriors at fixed Z, whole fits beside ML-II, and accuracy on test rows."""

import math
from collections.abc import Callable
from statistics import mean, median, stdev

from benchmarks.peers import rows as R
from benchmarks.peers.contestants import CONTESTANTS, OURS
from benchmarks.peers.judge import MIXED, REFERENCE, SCORES, agreement, mixed
from benchmarks.peers.plan import ML2
from benchmarks.peers.rows import Row, Table, identity
from benchmarks.peers.tables_time import ml2_target, seconds_to_target, target_cell

OURS_FIXED, OURS_COLD = "integrand-fixed-z", "integrand-fixed-z-cold"
TARGET_ESS = 400.0


def ess_per_second(row: Row) -> float:
    return R.ess(row) / row["result"]["seconds"]


def seconds_to_ess(row: Row, target: float = TARGET_ESS) -> float:
    """Seconds until this run would have had the target: set-up as measured, warm-up and draws in proportion."""
    result, numbers = row["result"], row["judged"]
    setup, warmup = result["seconds"] - result["sampling_seconds"], result["tune"]
    needed = numbers["draws"] * target / max(R.ess(row), 1e-9)
    return setup + result["sampling_seconds"] * (warmup + needed) / (warmup + numbers["draws"])


def hyperposterior_table(rows: list[Row]) -> Table:
    rows = R.of(rows, "hyperposterior")
    columns = ["", "seconds", "draws", "min ESS", "R-hat", "ESS / s", "ours is x", "largest \\|z\\|", "rms z"]
    columns += ["p of χ²", "MB"]
    parts = []
    for p in R.datasets(rows):
        some = R.where(rows, problem=p)
        ours = R.middle(mixed(R.where(some, contestant=OURS_FIXED)), ess_per_second)
        reference = R.done(R.where(some, contestant=REFERENCE))
        cells = []
        for c in R.ordered(map(R.name, some)):
            mine = R.where(some, contestant=c)
            none = [R.label(c), R.why(mine), *["-"] * (len(columns) - 2)]
            cells.append(_hyper_cells(c, mine, ours, reference) if R.done(mine) else none)
        parts.append((R.title(p), columns, cells))
    about = "\n".join(
        [
            "Posterior of θ at fixed Z: the same Z (M = 100), the same jitter of 1e-6, and the priors of the paper.",
            "",
            "- Priors: Gamma(2, 1) on lengthscales, half-Cauchy(1) on the standard deviations of signal and noise.",
            "- Four chains on two cores; each process has one BLAS thread; nothing is predicted. Seconds count from "
            "the start of the process.",
            "- Ours ends at an ESS of 400. The others have a number of draws (warm-up + draws per chain) and a budget "
            "of minutes, both chosen by us:",
            *_budgets(rows),
            "- ESS is the minimum of bulk and tail over log hyperparameters (rank-normalised, Vehtari et al. 2021). "
            f"R-hat is the largest of all runs. A run with an R-hat above {MIXED} is not compared: its ESS means "
            "nothing.",
            "- z compares posterior means of log θ over all repeats with those of PyMC's own NUTS, in units of both "
            "Monte Carlo errors. χ² is the sum of z². Its p would be uniform for equal posteriors and independent "
            "hyperparameters.",
            "- Pyro's NUTS on the exact GP has another posterior. Slow packages are not on every set.",
            "- PyTensor, Numba and this library keep compiled code on disk, written by a run that is not timed. A fit "
            "of data of another shape finds none (the row `nothing on disk`). The others keep none by default.",
            "- MB is the peak memory of all processes of a job together; pages that forked chains share count for "
            "each.",
        ]
    )
    records = [_hyper_record(r, rows) for r in rows]
    return Table("hyperposterior", "3. Hyperposterior at fixed Z", about, parts, records, R.failures(rows))


def _hyper_cells(
    contestant: str, mine: list[Row], ours: tuple[float, float, float] | None, reference: list[Row]
) -> list[str]:
    """A line of the table, from runs of which at least one is done."""
    good = R.done(mine)
    return [
        R.label(contestant),
        R.spread(R.middle(good, lambda r: r["result"]["seconds"])),
        _draws(good),
        R.spread(R.middle(good, R.ess)),
        f"{max(r['judged']['r_hat'] for r in good):.3f}",
        R.spread(R.middle(good, ess_per_second)),
        _times_ours(ours, good),
        *_agreement_cells(contestant, good, reference),
        R.number(median(r["peak_mb"] for r in good)),
    ]


def _budgets(rows: list[Row]) -> list[str]:
    """Warm-up steps, draws and minutes of each package, as items of a list."""
    budgets = {}
    for c in R.ordered(map(R.name, rows)):
        options = R.where(rows, contestant=c)[0]["job"]["options"]
        if "tune" in options:
            budgets[R.label(c)] = f"{options['tune']} + {options['draws']}, {options['cap'] / 60.0:.3g} min"
    return [f"  - {label}: {budget}" for label, budget in budgets.items()]


def _times_ours(ours: tuple[float, float, float] | None, mine: list[Row]) -> str:
    rate = R.middle(mixed(mine), ess_per_second)
    if rate is None:
        return "not converged"
    return f"{ours[0] / rate[0]:.1f}" if ours and rate[0] > 0 else "-"


def _draws(good: list[Row]) -> str:
    one = good[0]["judged"]
    capped = any(r["result"].get("capped") for r in good)
    return f"{one['chains']} x {one['draws']}" + (", capped" if capped else "")


def _agreement_cells(contestant: str, good: list[Row], reference: list[Row]) -> list[str]:
    if contestant == REFERENCE:
        return ["reference", "", ""]
    if not CONTESTANTS[contestant].same_model:
        return ["another model", "", ""]
    if not reference:
        return ["-", "-", "-"]
    result = agreement(good, reference)
    if result is None:
        return ["not converged", "", ""]
    return [f"{result.largest:.2f} of {len(result.z)}", f"{result.rms:.2f}", f"{result.p:.2g}"]


def _hyper_record(row: Row, rows: list[Row]) -> Row:
    record = identity(row)
    if row["status"] == "done":
        numbers, result = row["judged"], row["result"]
        record |= {key: numbers[key] for key in ("chains", "draws", "ess_bulk", "ess_tail", "r_hat")}
        record |= {"seconds": result["seconds"], "sampling_seconds": result["sampling_seconds"], "tune": result["tune"]}
        record |= {"ess_per_second": ess_per_second(row), "divergences": result.get("divergences")}
        for key in ("log_mean", "log_sd", "mcse"):
            record[key] = " ".join(f"{v:.5g}" for v in numbers[key])
        reference = R.done(R.where(rows, problem=R.problem(row), contestant=REFERENCE))
        compared = agreement([row], reference) if CONTESTANTS[R.name(row)].same_model else None
        if compared is not None and R.name(row) != REFERENCE:
            record |= {"z": " ".join(f"{v:.2f}" for v in compared.z), "chi2": compared.chi2, "p": compared.p}
    return record


PRODUCT_ML2 = (*(c for c in ML2 if c != OURS), OURS)  # ours last
PRODUCT_NUTS = ("pymc", "pymc-nutpie")


def seconds(row: Row) -> float:
    return row["result"]["seconds"]


def product_table(rows: list[Row]) -> Table:
    ours, ml2, hyper = (R.of(rows, m) for m in ("product", "ml2", "hyperposterior"))
    problems = R.datasets(ours)
    own = ["**integrand `sgpr-hmc`, θ integrated**", *(_own_cell(R.where(ours, problem=p)) for p in problems)]
    lines = [own]
    for c in PRODUCT_ML2:
        lines += _line(R.where(ml2, contestant=c), ours, problems, f"{R.label(c)}, ML-II", _to_the_end)
    for c in PRODUCT_ML2:
        if CONTESTANTS[c].same_model:
            what = f"{R.label(c)}, ML-II, to the target of table 2"
            lines += _line(R.where(ml2, contestant=c), ours, problems, what, _to_the_target(ml2))
    for c in PRODUCT_NUTS:
        lines += _line(R.where(hyper, contestant=c), ours, problems, f"{R.label(c)}, Z fixed, to ESS 400", _to_the_ess)
    about = "\n".join(
        [
            "Seconds of a fresh process on two cores.",
            "",
            "- Ours is the default fit: its default priors, θ integrated, Z moved, until R-hat ≤ 1.01 and bulk and "
            "tail ESS ≥ 400 for every hyperparameter. If a run of ours missed that, the cell says so in place of a "
            "ratio.",
            "- ML-II: until the optimiser ends, and until the target of table 2 (`never`: not every repeat reached "
            "it).",
            "- PyMC at fixed Z: until an ESS of 400, with the draws of table 3 in proportion. A run with R-hat above "
            "1.05 is not compared.",
            "- After the colon: ours over theirs.",
        ]
    )
    parts = [("", ["", *map(R.title, problems)], lines)]
    records = [_product_record(r) for r in ours]
    return Table("product", "4. The whole product", about, parts, records, R.failures(ours))


Outcome = tuple[tuple[float, float, float] | None, str]  # median, minimum and maximum, or None; the text for None


def _to_the_end(mine: list[Row]) -> Outcome:
    return R.middle(mine, seconds), R.why(mine)


def _to_the_ess(mine: list[Row]) -> Outcome:
    converged = mixed(mine)
    return R.middle(converged, seconds_to_ess), "not converged" if R.done(mine) else R.why(mine)


def _to_the_target(ml2: list[Row]) -> Callable[[list[Row]], Outcome]:
    def at_target(mine: list[Row]) -> Outcome:
        if not R.done(mine):
            return None, R.why(mine)
        target = ml2_target(R.where(ml2, problem=R.problem(mine[0])))
        return seconds_to_target(mine, target), target_cell(mine, target)

    return at_target


def _line(
    theirs: list[Row], ours: list[Row], problems: list[str], what: str, value: Callable[[list[Row]], Outcome]
) -> list[list[str]]:
    """One line of the table; no line for a package that did not take part."""
    if not theirs:
        return []
    cells = [what]
    for p in problems:
        own = R.where(ours, problem=p)
        middle, instead = value(R.where(theirs, problem=p))
        if middle is None:
            cells.append(instead)
            continue
        base, short = R.middle(own, seconds), R.short_of(own)
        share = f": **{base[0] / middle[0]:.2f}**" if base and not short else f"; ours {short}" if short else ""
        cells.append(R.spread(middle) + share)
    return [cells]


def _own_cell(rows: list[Row]) -> str:
    middle, short = R.middle(rows, seconds), R.short_of(rows)
    if middle is None:
        return R.why(rows)
    return f"{R.spread(middle)}, {short}" if short else R.spread(middle)


def _product_record(row: Row) -> Row:
    record = identity(row)
    if row["status"] == "done":
        numbers, result = row["judged"], row["result"]
        record |= {"seconds": result["seconds"], "reached": result["reached"], "gradients": result["gradients"]}
        record |= {key: numbers[key] for key in ("draws", "ess_bulk", "ess_tail", "r_hat", "rmse", "nlpd")}
        record |= {f"s_{key.replace(' ', '_')}": value for key, value in result["spent"].items()}
    return record


# Ours under the priors of the peers: the row that others are paired with.
LIKE_FOR_LIKE = "integrand-sgpr-hmc-paper"


def accuracy_table(rows: list[Row]) -> Table:
    rows = R.of(rows, "accuracy")
    columns = ["", "splits", "mixed", "rmse", "nlpd", "nlpd less ours", "50 %", "80 %", "95 %"]
    parts = []
    for dataset in sorted({R.problem(r).rpartition("-")[0] for r in rows}):
        some = of_dataset(rows, dataset)
        ours = like_for_like(some)
        cells = []
        for c in R.ordered(map(R.name, some)):
            good = R.done(R.where(some, contestant=c))
            if not good:
                cells.append([R.predictor_label(c), R.why(R.where(some, contestant=c)), *["-"] * 7])
                continue
            values = {s: [r["judged"][s] for r in good] for s in SCORES}
            cells.append(
                [R.predictor_label(c), str(len(good)), _mixed(good), _with_error(values["rmse"])]
                + [_with_error(values["nlpd"]), "" if c == LIKE_FOR_LIKE else _with_error(less_ours(good, ours))]
                + [f"{mean(values[s]):.2f}" for s in SCORES[2:]]
            )
        parts.append((dataset, columns, cells))
    about = "\n".join(
        [
            "Test rows of the paper's splits, in the units of y: means over splits with their standard errors.",
            "",
            "- nlpd is that of the predictive mixture over 400 draws, or all if there are fewer; for one θ, that of "
            "its Gaussian. Coverage is of central intervals.",
            "- Labels name the priors of θ where it is drawn. **The default priors of this library, `pooled`, were "
            "chosen on ten splits of these data sets ([the paper's experiments](paper.md)): the row with them is not "
            "an unbiased estimate.**",
            "- **The row with `paper`, the priors of the peers, is the like-for-like one.** `nlpd less ours` is paired "
            "with it, split by split. With fixed Z, ours has PyMC's Z.",
            f"- Each package has its own jitter. {_few_splits(rows)}".rstrip(),
            "- Samplers have a number of steps (warm-up + draws per chain) and a budget of minutes:",
            *_steps(rows),
            f"- `mixed` counts the splits whose chains ended with an R-hat of at most {MIXED:g}; the predictions of "
            "the others are from the draws so far.",
            "- These jobs ran in parallel, each on one core: their seconds, in the CSV, are not to be compared.",
        ]
    )
    failures = R.failures(rows, R.predictor_label)
    return Table("accuracy", "5. Accuracy", about, parts, [_accuracy_record(r) for r in rows], failures)


def _few_splits(rows: list[Row]) -> str:
    """The packages with fewer splits than others, and how to compare them."""
    counts = {c: len(R.where(rows, contestant=c)) for c in R.ordered(map(R.name, rows))}
    few = [R.label(c) for c, n in counts.items() if n < max(counts.values())]
    how = "compare by `nlpd less ours`, as the figure does (without those that mixed on no split)."
    return f"Slow packages have fewer splits ({'; '.join(few)}): {how}" if few else ""


def _steps(rows: list[Row]) -> list[str]:
    """Warm-up steps and draws of the packages that have a fixed number, as items of a list."""
    steps = {R.label(R.name(r)): r["job"]["options"] for r in rows if "tune" in r["job"]["options"]}
    return [f"  - {label}: {options['tune']} + {options['draws']}" for label, options in steps.items()]


def of_dataset(rows: list[Row], dataset: str) -> list[Row]:
    """The rows of a data set, all splits."""
    return [r for r in rows if R.problem(r).rpartition("-")[0] == dataset]


def like_for_like(rows: list[Row]) -> dict[str, float]:
    """NLPD by split of the row that others are paired with."""
    return {R.problem(r): r["judged"]["nlpd"] for r in R.done(R.where(rows, contestant=LIKE_FOR_LIKE))}


def less_ours(rows: list[Row], ours: dict[str, float]) -> list[float]:
    """Differences of NLPD on the splits of both."""
    return [r["judged"]["nlpd"] - ours[R.problem(r)] for r in rows if R.problem(r) in ours]


def _mixed(rows: list[Row]) -> str:
    """The number of splits whose chains agree; empty without chains."""
    drawn = [r for r in rows if r["judged"].get("r_hat") is not None]
    return f"{sum(r['judged']['r_hat'] <= MIXED for r in drawn)} of {len(drawn)}" if drawn else ""


def _with_error(values: list[float]) -> str:
    if not values:
        return "-"
    error = f" ± {stdev(values) / math.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{error}"


def _accuracy_record(row: Row) -> Row:
    record = identity(row)
    if row["status"] == "done":
        numbers = row["judged"]
        record |= {s: numbers[s] for s in SCORES} | {"seconds": row["result"]["seconds"]}
        record |= {key: numbers.get(key) for key in ("ess_bulk", "ess_tail", "r_hat")}
    return record
