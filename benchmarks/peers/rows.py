"""Rows: one result of a job each. Read and write them, say which jobs still need one, and summarise them.

Jobs that are compared by their seconds form a group. All rows of a group must come from one processor.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.plan import Job, group

UNKNOWN = "unknown"
# Other processes that keep more than this many of a job's cores busy disturb its times.
BUSY_CORES = 0.25
Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table of the page: all `records` go to NAME.csv, the `parts` to the page."""

    name: str
    title: str
    about: str
    parts: list[tuple[str, list[str], list[list[str]]]]  # heading, columns, cells
    records: list[Row] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def of(rows: Iterable[Row], measure: str) -> list[Row]:
    return [r for r in rows if r["job"]["measure"] == measure]


def problem(row: Row) -> str:
    return row["job"]["problem"]


def name(row: Row) -> str:
    return row["job"]["contestant"]


def ordered(values: Iterable[str]) -> list[str]:
    """Contestants in the order of their table."""
    present = set(values)
    return [c for c in CONTESTANTS if c in present]


def datasets(rows: Iterable[Row]) -> list[str]:
    """Problems: data sets by name, then synthetic ones by size."""

    def order(text: str) -> tuple[bool, str, int]:
        dataset, _, number = text.rpartition("-")
        return dataset == "synthetic", dataset, int(number)

    return sorted({problem(r) for r in rows}, key=order)


def title(text: str) -> str:
    """`yacht` for yacht-0, `N = 10 000` for synthetic-10000."""
    dataset, _, number = text.rpartition("-")
    return f"N = {int(number):,}".replace(",", " ") if dataset == "synthetic" else dataset


def label(contestant: str) -> str:
    return CONTESTANTS[contestant].label


def predictor_label(contestant: str) -> str:
    """The label, the priors of θ, and whether the predictions come from another model than the fit."""
    one = CONTESTANTS[contestant]
    priors = f"priors `{one.priors}`" if one.priors else ""
    also = ", ".join(filter(None, (priors, one.as_predictor or ("" if one.same_model else "another model"))))
    return f"{one.label} ({also})" if also else one.label


def bound_label(contestant: str) -> str:
    return CONTESTANTS[contestant].bound_label


def done(rows: Iterable[Row]) -> list[Row]:
    return [r for r in rows if r["status"] == "done"]


def where(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Rows whose job has these values."""
    return [r for r in rows if all(r["job"][key] == value for key, value in wanted.items())]


def middle(rows: Iterable[Row], value: Callable[[Row], float]) -> tuple[float, float, float] | None:
    """Median, minimum and maximum over the repeats that are done; None without any."""
    values = [value(r) for r in done(rows)]
    return (median(values), min(values), max(values)) if values else None


def ess(row: Row) -> float:
    """The effective sample size of a run: the minimum of bulk and tail over the logs of hyperparameters."""
    return min(row["judged"]["ess_bulk"], row["judged"]["ess_tail"])


def short_of(rows: Iterable[Row]) -> str:
    """The number of our whole fits that missed the targets of R-hat and ESS, in words; "" if none did."""
    rows = list(rows)
    missed = [r for r in rows if r["status"] != "done" or not r["result"]["reached"]]
    return f"not reached ({len(missed)} of {len(rows)})" if missed else ""


def number(value: float | None, digits: int = 3) -> str:
    """A number with this many significant digits, without an exponent from 1e-4 on."""
    if value is None or value != value:
        return "-"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:.{digits}g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.0e}"


def spread(values: tuple[float, float, float] | None, digits: int = 3) -> str:
    """The median, with minimum and maximum if they differ."""
    if values is None:
        return "-"
    middle_value, lowest, highest = values
    if lowest == highest:
        return number(middle_value, digits)
    return f"{number(middle_value, digits)} ({number(lowest, digits)} to {number(highest, digits)})"


def why(rows: Iterable[Row]) -> str:
    """The outcome that a cell shows in place of a number; a dash where nothing was run."""
    budgets = ("gave up", "out of memory")  # their reason names the budget
    reasons = [r["reason"] if r["status"] in budgets else r["status"] for r in rows if r["status"] != "done"]
    return reasons[0] if reasons else "-"


def failures(rows: Iterable[Row], named: Callable[[str], str] = label) -> list[str]:
    """A sentence for each row that is not done."""
    return sorted(
        {
            f"{named(name(r))} on {title(problem(r))}: {r['status']}" + (f" ({r['reason']})" if r["reason"] else "")
            for r in rows
            if r["status"] != "done"
        }
    )


def is_busy(row: dict[str, Any]) -> bool:
    """Whether other processes disturbed this job."""
    return (row.get("others") or 0.0) > BUSY_CORES


def identity(row: Row) -> Row:
    """The first columns of every record."""
    job = row["job"]
    keys = ("problem", "contestant", "cores", "repeat")
    head = {key: job[key] for key in keys} | {"status": row["status"], "reason": row["reason"]}
    return (
        head
        | {"wall_s": row.get("wall"), "peak_mb": row.get("peak_mb"), "busy": is_busy(row)}
        | {key: row.get(key, "") for key in ("when", "commit", "processor")}
    )


def write_row(folder: Path, job: Job, row: Row) -> None:
    """Write a row to its file, as a whole or not at all."""
    path = folder / f"{job.key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(row))
    part.replace(path)


def of_plan(row: Row, job: Job | None) -> bool:
    """Whether a row has the settings of the plan, and its job is in the plan."""
    return job is not None and row["job"] == json.loads(json.dumps(job.record()))


def processor(row: Row) -> str:
    return row.get("processor", UNKNOWN)


def pending(
    todo: Sequence[Job],
    planned: Iterable[Job],
    rows: Mapping[str, Row],
    this_processor: str,
    retry: bool = False,
    again: bool = False,
) -> list[Job]:
    """Those of `todo` that have no usable row.

    A row is usable if it has the settings of its job, and was made on this processor or on another one that made
    all `planned` rows of its group. With `retry`, jobs run again that failed on this processor or were not alone; those
    that ran out of time or memory would do so again. With `again`, all run again.
    """
    planned = list(planned)
    usable: dict[str, Row | None] = {}
    for job in (*planned, *todo):
        row = rows.get(job.key)
        usable[job.key] = row if row is not None and of_plan(row, job) else None
    processors: dict[str, set[str | None]] = {}
    for job in planned:
        row = usable[job.key]
        processors.setdefault(job.group, set()).add(processor(row) if row else None)

    def waits(job: Job) -> bool:
        row = usable[job.key]
        if again or row is None:
            return True
        if processor(row) == this_processor:
            return retry and (row["status"] == "failed" or is_busy(row))
        return processors.get(job.group) != {processor(row)}

    return [job for job in todo if waits(job)]


def counting(rows: Iterable[Row], planned: Iterable[Job]) -> list[Row]:
    """Rows for the page: with the settings of the plan, and in each group from the processor of the newest row."""
    jobs = {job.key: job for job in planned}
    good = [row for row in rows if of_plan(row, jobs.get(row["job"]["key"]))]
    newest: dict[str, Row] = {}
    for row in good:
        name = _group(row)
        if name not in newest or row["when"] >= newest[name]["when"]:
            newest[name] = row
    return [row for row in good if processor(row) == processor(newest[_group(row)])]


def _group(row: Row) -> str:
    return group(row["job"]["measure"], row["job"]["problem"], row["job"]["key"])
