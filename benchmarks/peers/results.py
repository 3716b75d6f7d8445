"""Result files: where a job's is, which jobs still wait for one, and which rows the page is made of.

What is compared has been made on one processor: jobs are in groups, and a group whose rows are of several is not done.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from machine import UNKNOWN, machine
from neighbours import is_busy
from plan import Job, group
from rows import Row


def result_path(results: Path, job: Job) -> Path:
    return results / f"{job.key}.json"


def write_row(results: Path, job: Job, row: Row) -> None:
    """The file appears at once or not at all."""
    path = result_path(results, job)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(row))
    part.replace(path)


def of_plan(row: Row, job: Job | None) -> bool:
    """Whether a row was made with the settings of today's plan, if this job is part of it."""
    return job is not None and row["job"] == json.loads(json.dumps(job.record()))


def processor(row: Row) -> str:
    return row.get("processor", UNKNOWN)


def pending(
    todo: Sequence[Job],
    planned: Iterable[Job],
    results: Path,
    retry: bool = False,
    again: bool = False,
    since: str = "",
) -> list[Job]:
    """Those of `todo` that have no row with these settings, or one that is of no use beside the others of its group.

    Rows of another processor are of use where all that is `planned` of their group was made there. With `retry` what
    failed here, or was not alone, waits too (time and memory would run out once more), with `again` everything, and
    with `since` what was made before then.
    """
    planned = list(planned)
    rows = {job.key: _row(results, job) for job in {j.key: j for j in (*planned, *todo)}.values()}
    made_on: dict[str, set[str | None]] = {}
    for job in planned:
        row = rows[job.key]
        made_on.setdefault(job.group, set()).add(processor(row) if row else None)
    here = machine().get("processor", UNKNOWN)

    def waits(job: Job) -> bool:
        row = rows[job.key]
        if again or row is None or row["when"] < since:
            return True
        if processor(row) == here:
            return retry and (row["status"] == "failed" or is_busy(row))
        return made_on.get(job.group) != {processor(row)}

    return [job for job in todo if waits(job)]


def _row(results: Path, job: Job) -> Row | None:
    path = result_path(results, job)
    if not path.exists():
        return None
    row = json.loads(path.read_text())
    return row if of_plan(row, job) else None


def counting(rows: Iterable[Row], planned: Iterable[Job]) -> list[Row]:
    """Rows that the page is made of: with today's settings, and of each group from the processor of its newest row."""
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
