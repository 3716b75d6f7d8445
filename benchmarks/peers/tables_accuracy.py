"""The table of accuracy on test rows: rmse, nlpd of the mixture, coverage."""

import math
from statistics import mean, stdev

import rows as R
from agreement import MIXED
from judge import SCORES
from rows import Row, Table
from tables import identity

# Under the priors that the peers have: the row that others are paired with.
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
    about = (
        "Test rows of the paper's splits, in the units of y; mean over splits with its standard error. nlpd is that of "
        "the predictive mixture over draws, 400 of them or all there are (for one θ, of its Gaussian). Labels name the "
        "priors of θ where it is drawn. **The default priors of this library, `pooled`, were chosen on ten splits of "
        "these data sets (`docs/results`), so that the row with them is not an unbiased estimate; the "
        "row with `paper`, the priors of the peers, is the like-for-like one**, and `nlpd less ours` pairs the same "
        "splits with it. With fixed Z ours has PyMC's Z too. Coverage is of central intervals. "
        f"Each package has its own jitter here. {_few_splits(rows)}Samplers have a number of steps (tuning + draws of "
        f"a chain{_steps(rows)}) and a budget of minutes: `mixed` says of how many splits the chains ended with an "
        f"R-hat of at most {MIXED:g}; "
        "of others the predictions are what there was. These ran side by side, each on one core: their seconds, in the "
        "CSV, are not to be compared."
    )
    failures = R.failures(rows, R.predictor_label)
    return Table("accuracy", "5. Accuracy", about, parts, [_record(r) for r in rows], failures)


def _few_splits(rows: list[Row]) -> str:
    """Who has fewer splits than others, and how to compare them nevertheless."""
    counts = {c: len(R.where(rows, contestant=c)) for c in R.ordered(map(R.name, rows))}
    few = [R.label(c) for c, n in counts.items() if n < max(counts.values())]
    how = "compare by `nlpd less ours`, as the figure does (without those who mixed on no split). "
    return f"Fewer splits for those that take long ({'; '.join(few)}): {how}" if few else ""


def _steps(rows: list[Row]) -> str:
    """What peers that draw have, of those that are told a number."""
    found = {R.label(R.name(r)): r["job"]["options"] for r in rows if "tune" in r["job"]["options"]}
    return "".join(f"; {label} {options['tune']} + {options['draws']}" for label, options in found.items())


def of_dataset(rows: list[Row], dataset: str) -> list[Row]:
    """All its splits."""
    return [r for r in rows if R.problem(r).rpartition("-")[0] == dataset]


def like_for_like(rows: list[Row]) -> dict[str, float]:
    """nlpd of the row that others are paired with, by split."""
    return {R.problem(r): r["judged"]["nlpd"] for r in R.done(R.where(rows, contestant=LIKE_FOR_LIKE))}


def less_ours(rows: list[Row], ours: dict[str, float]) -> list[float]:
    """Differences of nlpd on the splits that both have."""
    return [r["judged"]["nlpd"] - ours[R.problem(r)] for r in rows if R.problem(r) in ours]


def _mixed(rows: list[Row]) -> str:
    """Of how many splits the chains agree; empty where there are none."""
    drawn = [r for r in rows if r["judged"].get("r_hat") is not None]
    return f"{sum(r['judged']['r_hat'] <= MIXED for r in drawn)} of {len(drawn)}" if drawn else ""


def _with_error(values: list[float]) -> str:
    if not values:
        return "-"
    error = f" ± {stdev(values) / math.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{error}"


def _record(row: Row) -> Row:
    record = identity(row)
    if row["status"] == "done":
        numbers = row["judged"]
        record |= {s: numbers[s] for s in SCORES} | {"seconds": row["result"]["seconds"]}
        record |= {key: numbers.get(key) for key in ("ess_bulk", "ess_tail", "r_hat")}
    return record
