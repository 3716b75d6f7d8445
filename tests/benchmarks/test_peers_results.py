"""Which results of the peer benchmarks are there, and which count on the page."""

import json
import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
sys.path.insert(0, str(PEERS))

import plan  # noqa: E402
from machine import UNKNOWN, machine  # noqa: E402
from results import counting, pending, write_row  # noqa: E402

HERE = machine().get("processor", UNKNOWN)


def made(job, **other):
    """A row as the driver writes it, but for this."""
    row = {"status": "done", "processor": HERE, "when": "2026-01-02 03:04", "job": job.record()}
    return json.loads(json.dumps(row | other))


def test_what_is_there_is_not_run_again(tmp_path):
    todo = plan.jobs(plan.SMOKE, ["gradient"])
    first, second, *_ = todo
    for job, status in ((first, "done"), (second, "failed")):
        write_row(tmp_path, job, made(job, status=status))
    assert pending(todo, todo, tmp_path) == todo[2:]
    assert pending(todo, todo, tmp_path, retry=True) == todo[1:]
    assert pending(todo, todo, tmp_path, again=True) == todo
    write_row(tmp_path, first, made(first, others=1.0))
    assert pending(todo, todo, tmp_path) == todo[2:]
    assert pending(todo, todo, tmp_path, retry=True) == todo


def test_what_came_with_the_repository_is_made_again(tmp_path):
    todo = plan.jobs(plan.SMOKE, ["gradient"])
    first, second, *_ = todo
    write_row(tmp_path, first, made(first, when="2026-01-02 03:04"))
    write_row(tmp_path, second, made(second, when="2026-01-02 03:05"))
    assert pending(todo, todo, tmp_path, since="2026-01-02 03:05") == [first, *todo[2:]]


def test_a_row_of_other_settings_is_run_again_and_does_not_count(tmp_path):
    job = plan.jobs(plan.SMOKE, ["gradient"])[0]
    row = made(job)
    row["job"]["options"] = job.options | {"seconds": 99.0}
    write_row(tmp_path, job, row)
    assert pending([job], [job], tmp_path) == [job]
    assert counting([row], [job]) == []
    assert counting([made(job)], []) == []


@pytest.mark.parametrize("missing", [0, 1])
def test_rows_of_another_processor_are_run_again_unless_their_group_is_complete_there(tmp_path, missing):
    planned = plan.jobs(plan.SMOKE, ["ml2"])
    yacht = [job for job in planned if job.group == "yacht-0"]
    assert {job.measure for job in yacht} == {"ml2", "product"}
    for job in yacht[missing:]:
        write_row(tmp_path, job, made(job, processor="another"))
    assert pending(planned, planned, tmp_path) == (yacht if missing else [])
    write_row(tmp_path, yacht[1], made(yacht[1], processor="another", status="failed"))
    assert pending(planned, planned, tmp_path, retry=True) == (yacht if missing else [])  # a complete group stays
    assert pending(yacht[1:2], planned, tmp_path) == (yacht[1:2] if missing else [])


def test_a_group_that_was_begun_elsewhere_has_the_rows_of_here_alone(tmp_path):
    first, second, *_ = plan.jobs(plan.SMOKE, ["ml2"])
    accuracy = plan.jobs(plan.SMOKE, ["accuracy"])[0]
    rows = [made(first, processor="another"), made(second, when="2026-01-03 03:04")]
    rows.append(made(accuracy, processor="another"))  # nobody reads its seconds
    assert counting(rows, [first, second, accuracy]) == rows[1:]
    for job, row in zip((first, second, accuracy), rows, strict=True):
        write_row(tmp_path, job, row)
    todo = [first, second, accuracy]
    assert pending(todo, todo, tmp_path) == [first]
