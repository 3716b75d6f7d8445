"""The table of ML-II: when each optimiser is at a common target, where it ends and why."""

import math
from statistics import median

import rows as R
from contestants import CONTESTANTS
from rows import Row, Table
from tables import identity

# What optimisers say at their end, in a word or two; the first that fits.
_STOPS = (
    ("factorisation", "failed factorisation"),
    ("all its steps", "steps"),
    ("iterations", "steps"),
    ("stopped after", "steps"),
    ("evaluations", "evaluations"),
    ("relative reduction", "small gain"),
    ("gradient", "small gradient"),
    ("terminated successfully", "small gradient"),
    ("precision loss", "precision"),
    ("abnormal", "line search"),
)


def final_bound(row: Row) -> float:
    """The bound reached, by the referee where he has looked: the peers' own differ by their jitter."""
    referee = row["judged"].get("referee_bound")
    return row["result"]["bound"] if referee is None else referee


def ml2_target(rows: list[Row]) -> float | None:
    """Within 1 nat of the median of the bounds reached by packages with the same model: about half get there.

    A package has one vote, its best recipe's, however many recipes it has here.
    """
    votes: dict[str, float] = {}
    same = [r for r in R.done(rows) if CONTESTANTS[R.name(r)].same_model and math.isfinite(final_bound(r))]
    for c in {R.name(r) for r in same}:
        package = CONTESTANTS[c].environment
        votes[package] = max(votes.get(package, -math.inf), median(map(final_bound, R.where(same, contestant=c))))
    return median(votes.values()) - 1.0 if votes else None


def seconds_to(row: Row, target: float) -> float | None:
    """When the trajectory first was at the target by the referee; None if it never was.

    A package's own bound differs from his by its jitter: along the way by as much as at the end.
    """
    differs = final_bound(row) - row["result"]["bound"]
    return next((t for t, bound in row["result"]["trajectory"] if bound + differs >= target), None)


def seconds_to_target(rows: list[Row], target: float | None) -> tuple[float, float, float] | None:
    """Median, least and most; None unless every repeat was there."""
    if target is None:
        return None
    found = [seconds_to(r, target) if r["status"] == "done" else None for r in rows]
    times = [t for t in found if t is not None]
    return (median(times), min(times), max(times)) if times and len(times) == len(found) else None


def target_cell(rows: list[Row], target: float | None) -> str:
    """The same in words: never, if a repeat never was; a dash for another model."""
    if not rows or not CONTESTANTS[R.name(rows[0])].same_model:
        return "-"
    if len(R.done(rows)) < len(rows):
        return R.why(rows)
    found = seconds_to_target(rows, target)
    return R.spread(found) if found else "never"


def steps_label(row: Row) -> str:
    """The label with the steps that the optimiser is given."""
    name, steps = R.name(row), row["job"]["options"].get("steps")
    if steps is None:
        return R.label(name)
    return f"{R.label(name)}, {'' if name.startswith('gpytorch') else 'at most '}{steps} steps"


def stopped_by(rows: list[Row]) -> str:
    """Why the optimiser ended, and after how many steps where it says; all reasons if repeats differ."""
    found = []
    for row in R.done(rows):
        message, steps = row["result"].get("stopped") or "-", row["result"].get("steps")
        short = next((word for part, word in _STOPS if part in message.lower()), message[:40])
        found.append((short, steps))
    reasons = " / ".join(dict.fromkeys(short for short, _ in found))
    counts = [steps for _, steps in found if steps is not None]
    return f"{reasons} ({median(counts):.0f})" if counts else reasons or "-"


def ml2_table(rows: list[Row]) -> Table:
    rows = R.of(rows, "ml2")
    columns = ["", "s to target", "s to the end", "bound reached", "by one referee", "stopped by (steps)", "MB"]
    parts, records = [], []
    for p in R.datasets(rows):
        some = R.where(rows, problem=p)
        target = ml2_target(some)
        cells = []
        for c in R.ordered(map(R.name, some)):
            mine = R.where(some, contestant=c)
            records += [_record(r, target) for r in mine]
            cells.append(_cells(mine, target) if R.done(mine) else [steps_label(mine[0]), R.why(mine), *["-"] * 5])
        heading = f"{R.title(p)}: target {target:.2f}" if target is not None else R.title(p)
        parts.append((heading, columns, cells))
    about = (
        "θ and Z are optimised together from the same start (medians of the priors, the same Z, M = 100) in a fresh "
        "process on two cores; seconds count from its start, with imports and compiling. The target of a data set is "
        "the median of the bounds that packages with the same model reach (each its best), less 1 nat; `never` where "
        "not every repeat got there. The referee is this library's bound with a jitter of 1e-6 at the θ and Z reached "
        "(GPyTorch's own has no jitter, which is worth some tenths of a nat), and targets are made of its "
        "values; what a package says along its way is corrected by as much as it differs from them at the end. "
        "Optimisers "
        "end where they are content, by a small gain, a small gradient, or when their steps are used "
        "up (the numbers in the labels; `fit_scipy`'s is its default). MB is the peak memory of the process. "
        "scikit-learn's is an exact likelihood, not a bound."
    )
    return Table("ml2", "2. ML-II", about, parts, records, R.failures(rows))


def _cells(mine: list[Row], target: float | None) -> list[str]:
    """A line of the table, of runs of which some ended well."""
    same = CONTESTANTS[R.name(mine[0])].same_model
    bound = R.middle(mine, lambda r: r["result"]["bound"])
    referee = R.middle(mine, lambda r: r["judged"].get("referee_bound", float("nan")))
    return [
        steps_label(mine[0]),
        target_cell(mine, target),
        R.spread(R.middle(mine, lambda r: r["result"]["seconds"])),
        f"{bound[0]:.2f}",
        f"{referee[0]:.2f}" if same else "exact",
        stopped_by(mine),
        R.number(R.middle(mine, lambda r: r["peak_mb"])[0]),
    ]


def _record(row: Row, target: float | None) -> Row:
    record = identity(row)
    if row["status"] == "done":
        result = row["result"]
        record |= {"seconds": result["seconds"], "bound": result["bound"], "target": target}
        record["seconds_to_target"] = seconds_to(row, target) if target is not None else None
        record["referee_bound"] = row["judged"].get("referee_bound")
        record |= {key: result.get(key) for key in ("stopped", "steps")}
        record["notes"] = "; ".join(result.get("notes") or [])
    return record
