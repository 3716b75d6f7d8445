"""Tables of gradients: at the sizes of the data sets, and how they grow with the number of rows."""

from statistics import median
from typing import Any

import rows as R
from contestants import OURS
from launch import MEMORY_CAP_MB
from neighbours import is_busy
from rows import Row, Table


def median_ms(row: Row) -> float:
    return 1e3 * median(row["result"]["calls"])


def most_calls(rows: list[Row]) -> str:
    """Between which milliseconds the middle 80 % of all calls are."""
    calls = sorted(1e3 * t for r in R.done(rows) for t in r["result"]["calls"])
    low, high = (calls[round(share * (len(calls) - 1))] for share in (0.1, 0.9))
    return f"{R.number(low)} to {R.number(high)}"


def least_ms(row: Row) -> float:
    return 1e3 * min(row["result"]["calls"])


def times_ours(theirs: list[Row], ours: list[Row]) -> str:
    """Ratio of the medians over processes, and between what those of the same turn are; "" without ours."""
    found, base = R.middle(theirs, median_ms), R.middle(ours, median_ms)
    if not found or not base:
        return ""
    by_turn = {r["job"]["repeat"]: median_ms(r) for r in R.done(ours)}
    turns = [median_ms(r) / by_turn[k] for r in R.done(theirs) if (k := r["job"]["repeat"]) in by_turn]
    within = f" ({min(turns):.1f} to {max(turns):.1f})" if len(turns) > 1 else ""
    return f"{found[0] / base[0]:.1f} x{within}"


def gradient_table(rows: list[Row]) -> Table:
    """Milliseconds, and how many times ours that is, for one thread and two; then whether the values agree."""
    rows = R.of(rows, "gradient")
    parts = []
    for cores in sorted({r["job"]["cores"] for r in rows}):
        some = R.where(rows, cores=cores)
        # Sizes that only the table of growth asks for have no runs on one core.
        problems = [p for p in R.datasets(some) if R.where(rows, cores=1, problem=p) or cores == 1]
        if problems:
            cells = [_gradient_cells(some, problems, c) for c in R.ordered(map(R.name, some))]
            heading = f"{cores} core{'s' if cores > 1 else ''}: median ms (middle 80 % of calls): times ours (by turn)"
            parts.append((heading, ["", *map(R.title, problems)], cells))
    problems = [p for p in R.datasets(rows) if R.where(rows, cores=1, problem=p)]
    cells = [_agreement_cells(rows, problems, c) for c in R.ordered(map(R.name, rows)) if c != OURS]
    parts.append(("Bound minus ours, in nats", ["", *map(R.title, problems)], cells))
    records = [_gradient_record(r) for r in rows]
    about = (
        "Value and gradient of the collapsed bound in θ and Z at the same θ and Z (lengthscales 2, scale 1, noise 0.3; "
        "a random subset of the training rows), float64, the same jitter of 1e-6 (GPyTorch has none); M = 100 on the "
        "data sets (paper's "
        "split 0 and scaling), M = 200 and D = 8 on synthetic rows. Each call is warm and what the package's own "
        "optimiser or sampler calls (for NumPyro, the compiled gradient of the function that its model has); the "
        "median over processes of the median of a process's calls (few calls where each takes seconds, three at least "
        "for N = 100 000); in brackets behind a ratio, between what those of processes of the same turn are. "
        f"Processes on a data set: {_processes(rows)}; on synthetic rows one each. Ours and PyMC's "
        "have the log prior too. Variants of a "
        "package, where there are any, are on some problems only. "
        "With two cores a package may use two threads: ours keeps to one where work is so small (its chains have the "
        "other "
        "core), and PyMC's products by NumPy lose by it."
    )
    return Table("gradient", "1. Value and gradient of the bound", about, parts, records, _failures(rows, problems))


def _processes(rows: list[Row]) -> str:
    """How many processes each had on a data set."""
    small = [r for r in rows if not R.problem(r).startswith("synthetic")]
    most = {c: 1 + max(r["job"]["repeat"] for r in R.where(small, contestant=c)) for c in map(R.name, small)}
    return "; ".join(f"{R.bound_label(c)}: {most[c]}" for c in R.ordered(most))


def _failures(rows: list[Row], problems: list[str]) -> list[str]:
    """Who did not finish what these tables show."""
    return R.failures([r for r in rows if R.problem(r) in problems], R.bound_label)


def _gradient_cells(some: list[Row], problems: list[str], contestant: str) -> list[str]:
    cells = [R.bound_label(contestant)]
    for p in problems:
        mine = R.where(some, contestant=contestant, problem=p)
        found = R.middle(mine, median_ms)
        if found is None:
            cells.append(R.why(mine))
        else:
            times = times_ours(mine, R.where(some, contestant=OURS, problem=p)) if contestant != OURS else ""
            cells.append(": ".join(filter(None, (f"{R.number(found[0])} ({most_calls(mine)})", times))))
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
        record |= {"median_ms": median_ms(row), "least_ms": least_ms(row), "first_call_s": result["first"]}
        record |= {"calls": len(result["calls"]), "bound": result["value"], "gradient_in": result["gradient_in"]}
        record["notes"] = "; ".join(result.get("notes") or [])
    return record


def identity(row: Row) -> Row:
    """What every record begins with."""
    job = row["job"]
    keys = ("problem", "contestant", "cores", "repeat")
    found = {key: job[key] for key in keys} | {"status": row["status"], "reason": row["reason"]}
    return (
        found
        | {"wall_s": row.get("wall"), "peak_mb": row.get("peak_mb"), "busy": is_busy(row)}
        | {key: row.get(key, "") for key in ("when", "commit", "processor")}
    )


def growth_table(rows: list[Row]) -> Table:
    """Synthetic gradients on two cores: the same files as the first table's, and sizes beyond."""
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
                found = R.middle(mine, value)
                line.append(R.spread(found) if found else R.why(mine))
            cells.append(line)
        parts.append((heading, ["", *map(R.title, problems)], cells))
    about = (
        f"M = 200, D = 8, two cores. A process that takes more than {MEMORY_CAP_MB / 1e3:.0f} GB is ended, as is one "
        "that needs more than its minutes. All have two threads, also where one is better (PyMC in table 1). "
        "Memory is that of the whole process: "
        "packages, compiler and data included."
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
