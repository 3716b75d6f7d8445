"""Jobs of the peer benchmarks that nobody times: several at once, each on a core of its own."""

import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
sys.path[:0] = [str(PEERS)]

import launch  # noqa: E402
import plan  # noqa: E402
from side_by_side import side_by_side, stretches  # noqa: E402

CORES = sorted(os.sched_getaffinity(0))
JOB = plan.Job("accuracy", "ml2", "yacht-0", "gpflow", 0, 1, 1, 60.0, None)


def test_only_accuracy_runs_side_by_side_and_the_order_is_kept():
    found = plan.jobs(plan.FULL)
    parts = list(stretches(found))
    assert [job for _, jobs in parts for job in jobs] == found
    for timed, jobs in parts:
        assert all((job.measure != "accuracy") == timed for job in jobs)
        assert timed or {(job.cores, job.threads) for job in jobs} == {(1, 1)}


def test_each_job_has_a_core_of_its_own():
    seen, gate = {}, threading.Barrier(len(CORES), timeout=30.0)

    def carry_out(job):
        seen[job.repeat] = os.sched_getaffinity(0)
        gate.wait()  # nobody ends before all have begun

    side_by_side([replace(JOB, repeat=k) for k in range(len(CORES))], carry_out)
    assert sorted(core for cores in seen.values() for core in cores) == CORES
    assert sorted(os.sched_getaffinity(0)) == CORES


def test_no_child_goes_on_after_another_job_broke(tmp_path):
    if len(CORES) < 2:
        pytest.skip("two jobs at once need two cores")
    pid, began = tmp_path / "pid", []
    text = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"

    def carry_out(job):
        began.append(job.repeat)
        if job.repeat == 0:
            command = [sys.executable, "-c", text]
            launch.run_child(command, job.record(), tmp_path / "scratch", launch.environment(1, tmp_path))
            raise AssertionError("a child that was ended is no result")
        while not (pid.exists() and pid.read_text()):
            time.sleep(0.05)
        raise OSError("no room left")

    with pytest.raises(OSError, match="no room left"):
        side_by_side([replace(JOB, repeat=k, limit=600.0) for k in range(2 * len(CORES) + 2)], carry_out)
    assert len(began) <= len(CORES) + 1  # what waited was not begun
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert not launch.ENDING.is_set()
