"""Tables of seconds: gradients of the bound, their growth with the number of rows, and ML-II."""

import math
from statistics import median
from typing import Any

from benchmarks.peers import rows as R
from benchmarks.peers.contestants import CONTESTANTS, OURS
from benchmarks.peers.launch import MEMORY_CAP_MB
from benchmarks.peers.rows import Row, Table, identity


def median_ms(row: Row) -> float:
    return 1e3 * median(row["result"]["calls"])


def middle_calls(rows: list[Row]) -> str:
    """The range of the middle 80 % of all calls, in milliseconds."""
    calls = sorted(1e3 * t for r in R.done(rows) for t in r["result"]["calls"])
    low, high = (calls[round(share * (len(calls) - 1))] for share in (0.1, 0.9))
    return f"{R.number(low)} to {R.number(high)}"


def min_ms(row: Row) -> float:
    return 1e3 * min(row["result"]["calls"])


def times_ours(theirs: list[Row], ours: list[Row]) -> str:
    """Ratio of the medians over processes, with the range over processes of the same turn; "" without ours."""
    middle, base = R.middle(theirs, median_ms), R.middle(ours, median_ms)
    if not middle or not base:
        return ""
    by_turn = {r["job"]["repeat"]: median_ms(r) for r in R.done(ours)}
    turns = [median_ms(r) / by_turn[k] for r in R.done(theirs) if (k := r["job"]["repeat"]) in by_turn]
    within = f" ({min(turns):.1f} to {max(turns):.1f})" if len(turns) > 1 else ""
    return f"{middle[0] / base[0]:.1f} x{within}"


def gradient_table(rows: list[Row]) -> Table:
    """Milliseconds and their ratio to ours, on one core and two; then differences of the values."""
    rows = R.of(rows, "gradient")
    parts = []
    for cores in sorted({r["job"]["cores"] for r in rows}):
        some = R.where(rows, cores=cores)
        # Sizes of the table of growth alone have no runs on one core.
        problems = [p for p in R.datasets(some) if R.where(rows, cores=1, problem=p) or cores == 1]
        if problems:
            cells = [_gradient_cells(some, problems, c) for c in R.ordered(map(R.name, some))]
            heading = f"{cores} core{'s' if cores > 1 else ''}: median ms (middle 80 % of calls): times ours (by turn)"
            parts.append((heading, ["", *map(R.title, problems)], cells))
    problems = [p for p in R.datasets(rows) if R.where(rows, cores=1, problem=p)]
    cells = [_agreement_cells(rows, problems, c) for c in R.ordered(map(R.name, rows)) if c != OURS]
    parts.append(("Bound minus ours, in nats", ["", *map(R.title, problems)], cells))
    records = [_gradient_record(r) for r in rows]
    about = "\n".join(
        [
            "Milliseconds of one value and gradient of the collapsed bound, at the same θ and Z, in float64.",
            "",
            "- Lengthscales are 2, scale is 1, noise is 0.3; Z is a random subset of the training rows.",
            "- The jitter is 1e-6; GPyTorch has none. Ours and PyMC's include the log prior.",
            "- The data sets have M = 100 (the paper's split 0 and scaling), the synthetic rows M = 200 and D = 8.",
            "- Each call is warm, and is the one that the package's own optimiser or sampler makes. For NumPyro it is "
            "the compiled gradient of the function in its model.",
            "- A cell has the median over processes of the median of a process's calls. Where a call takes seconds "
            "there are few, at least three for N = 100 000.",
            "- A ratio's brackets have the range over processes of the same turn.",
            "- Processes on a data set, where synthetic rows have one each:",
            *_processes(rows),
            "- Variants of a package are on some problems only.",
            "- With two cores a package may use two threads. Ours uses one at these sizes, because its chains have the "
            "other core. PyMC's products by NumPy lose by two threads.",
        ]
    )
    return Table("gradient", "1. Value and gradient of the bound", about, parts, records, _failures(rows, problems))


def _processes(rows: list[Row]) -> list[str]:
    """The number of processes of each package on a data set, as items of a list."""
    small = [r for r in rows if not R.problem(r).startswith("synthetic")]
    counts = {c: 1 + max(r["job"]["repeat"] for r in R.where(small, contestant=c)) for c in map(R.name, small)}
    return [f"  - {R.bound_label(c)}: {counts[c]}" for c in R.ordered(counts)]


def _failures(rows: list[Row], problems: list[str]) -> list[str]:
    """The jobs of these tables that are not done."""
    return R.failures([r for r in rows if R.problem(r) in problems], R.bound_label)


def _gradient_cells(some: list[Row], problems: list[str], contestant: str) -> list[str]:
    cells = [R.bound_label(contestant)]
    for p in problems:
        mine = R.where(some, contestant=contestant, problem=p)
        middle = R.middle(mine, median_ms)
        if middle is None:
            cells.append(R.why(mine))
        else:
            times = times_ours(mine, R.where(some, contestant=OURS, problem=p)) if contestant != OURS else ""
            cells.append(": ".join(filter(None, (f"{R.number(middle[0])} ({middle_calls(mine)})", times))))
    return cells


def _agreement_cells(rows: list[Row], problems: list[str], contestant: str) -> list[str]:
    cells = [R.bound_label(contestant)]
    for p in problems:
        mine, ours = (R.done(R.where(rows, contestant=c, problem=p)) for c in (contestant, OURS))
        cells.append(R.number(mine[0]["result"]["value"] - ours[0]["result"]["value"], 2) if mine and ours else "-")
    return cells


def _gradient_record(row: Row) -> Row:
    record = identity(row)
    if row["status"] == "done":
        result = row["result"]
        record |= {"median_ms": median_ms(row), "least_ms": min_ms(row), "first_call_s": result["first"]}
        record |= {"calls": len(result["calls"]), "bound": result["value"], "gradient_in": result["gradient_in"]}
        record["notes"] = "; ".join(result.get("notes") or [])
    return record


def growth_table(rows: list[Row]) -> Table:
    """Gradients on synthetic rows with two cores: rows of the first table, and larger sizes."""
    rows = [r for r in R.where(R.of(rows, "gradient"), cores=2) if R.problem(r).startswith("synthetic")]
    problems, parts = R.datasets(rows), []
    for heading, value in (
        ("Median ms for value and gradient", median_ms),
        ("Peak memory of the process, MB", lambda r: r["peak_mb"]),
    ):
        cells: list[list[Any]] = []
        for c in R.ordered(map(R.name, rows)):
            line = [R.bound_label(c)]
            for p in problems:
                mine = R.where(rows, contestant=c, problem=p)
                middle = R.middle(mine, value)
                line.append(R.spread(middle) if middle else R.why(mine))
            cells.append(line)
        parts.append((heading, ["", *map(R.title, problems)], cells))
    about = (
        "M = 200, D = 8, two cores. All packages have two threads, also where one is better (PyMC in table 1). Memory "
        "is that of the whole process, with packages, compiler and data. A process ends if it takes more than "
        f"{MEMORY_CAP_MB / 1e3:.0f} GB or more than its minutes."
    )
    if len({r.get("processor") for r in rows}) > 1:
        about += " **Not all columns are of one processor** (the CSV has it): compare within a column."
    return Table(
        "growth",
        "6. Growth with the number of rows",
        about,
        parts,
        [_gradient_record(r) for r in rows],
        _failures(rows, problems),
    )


# Reasons to stop in a word or two, by a part of the optimiser's message; the first match counts.
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
    """The bound reached: the referee's if there is one, because the packages' own differ by their jitter."""
    referee = row["judged"].get("referee_bound")
    return row["result"]["bound"] if referee is None else referee


def ml2_target(rows: list[Row]) -> float | None:
    """1 nat below the median of the bounds reached by packages with the same model: about half reach it.

    A package has one vote, that of its best recipe.
    """
    votes: dict[str, float] = {}
    same = [r for r in R.done(rows) if CONTESTANTS[R.name(r)].same_model and math.isfinite(final_bound(r))]
    for c in {R.name(r) for r in same}:
        package = CONTESTANTS[c].environment
        votes[package] = max(votes.get(package, -math.inf), median(map(final_bound, R.where(same, contestant=c))))
    return median(votes.values()) - 1.0 if votes else None


def seconds_to(row: Row, target: float) -> float | None:
    """Seconds until the trajectory first reached the target by the referee; None if it never did.

    The package's own bound is shifted by its difference from the referee at the end.
    """
    differs = final_bound(row) - row["result"]["bound"]
    return next((t for t, bound in row["result"]["trajectory"] if bound + differs >= target), None)


def seconds_to_target(rows: list[Row], target: float | None) -> tuple[float, float, float] | None:
    """Median, minimum and maximum; None unless every repeat reached the target."""
    if target is None:
        return None
    by_repeat = [seconds_to(r, target) if r["status"] == "done" else None for r in rows]
    times = [t for t in by_repeat if t is not None]
    return (median(times), min(times), max(times)) if times and len(times) == len(by_repeat) else None


def target_cell(rows: list[Row], target: float | None) -> str:
    """The cell of the seconds to the target: `never` if a repeat did not reach it, a dash for another model."""
    if not rows or not CONTESTANTS[R.name(rows[0])].same_model:
        return "-"
    if len(R.done(rows)) < len(rows):
        return R.why(rows)
    times = seconds_to_target(rows, target)
    return R.spread(times) if times else "never"


def steps_label(row: Row) -> str:
    """The label with the number of steps of the optimiser."""
    name, steps = R.name(row), row["job"]["options"].get("steps")
    if steps is None:
        return R.label(name)
    return f"{R.label(name)}, {'' if name.startswith('gpytorch') else 'at most '}{steps} steps"


def stopped_by(rows: list[Row]) -> str:
    """Why the optimiser stopped, and after how many steps if known; all reasons if repeats differ."""
    ends = []
    for row in R.done(rows):
        message, steps = row["result"].get("stopped") or "-", row["result"].get("steps")
        short = next((word for part, word in _STOPS if part in message.lower()), message[:40])
        ends.append((short, steps))
    reasons = " / ".join(dict.fromkeys(short for short, _ in ends))
    counts = [steps for _, steps in ends if steps is not None]
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
            records += [_ml2_record(r, target) for r in mine]
            cells.append(_ml2_cells(mine, target) if R.done(mine) else [steps_label(mine[0]), R.why(mine), *["-"] * 5])
        heading = f"{R.title(p)}: target {target:.2f}" if target is not None else R.title(p)
        parts.append((heading, columns, cells))
    about = "\n".join(
        [
            "θ and Z are optimised together, from the same start (medians of the priors, the same Z, M = 100).",
            "",
            "- Each run is a fresh process on two cores. Seconds count from its start, with imports and compiling.",
            "- The target of a data set is 1 nat below the median of the bounds that packages with the same model "
            "reach, each by its best recipe. `never`: not every repeat reached it.",
            "- The referee is this library's bound with a jitter of 1e-6 at the θ and Z reached. Targets are made of "
            "its values. GPyTorch's own bound has no jitter, which is worth some tenths of a nat.",
            "- The path of a package is shifted by its difference from the referee at the end.",
            "- Optimisers stop at a small gain, a small gradient, or when their steps are used up (the numbers in the "
            "labels; `fit_scipy`'s is its default).",
            "- MB is the peak memory of the process. scikit-learn's is an exact likelihood, not a bound.",
        ]
    )
    return Table("ml2", "2. ML-II", about, parts, records, R.failures(rows))


def _ml2_cells(mine: list[Row], target: float | None) -> list[str]:
    """A line of the table, from runs of which at least one is done."""
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


def _ml2_record(row: Row, target: float | None) -> Row:
    record = identity(row)
    if row["status"] == "done":
        result = row["result"]
        record |= {"seconds": result["seconds"], "bound": result["bound"], "target": target}
        record["seconds_to_target"] = seconds_to(row, target) if target is not None else None
        record["referee_bound"] = row["judged"].get("referee_bound")
        record |= {key: result.get(key) for key in ("stopped", "steps")}
        record["notes"] = "; ".join(result.get("notes") or [])
    return record
