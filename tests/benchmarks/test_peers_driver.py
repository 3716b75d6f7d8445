"""The driver of the peer benchmarks: jobs, children, and rows for whatever happens to them. No peer is needed."""

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
sys.path[:0] = [str(PEERS), str(PEERS / "workers")]

import launch  # noqa: E402
import plan  # noqa: E402
import run  # noqa: E402
from protocol import Job as WorkerJob  # noqa: E402
from protocol import Trajectory, picked, thinned, timed_calls  # noqa: E402
from results import pending, result_path, write_row  # noqa: E402

CORES = os.sched_getaffinity(0)  # before any test can have lost some
ECHO = """
import os, sys
sys.path.insert(0, WORKERS)
import numpy as np
from protocol import serve
def gradient(job):
    row = {"value": float(job.X.sum()), "threads": os.environ["OMP_NUM_THREADS"], "late": job.seconds() >= 0.0}
    return row, {"draws": job.X}
serve({"gradient": gradient}, ["numpy"])
"""


def child(tmp_path, text):
    script = tmp_path / "child.py"
    script.write_text(text.replace("WORKERS", repr(str(PEERS / "workers"))))
    return [sys.executable, str(script)]


@pytest.fixture
def record(tmp_path):
    problem = tmp_path / "problem.npz"
    np.savez(problem, X=np.ones((3, 2)))
    job = plan.Job("gradient", "gradient", "yacht-0", "gpflow", 0, 1, 1, 300.0, 1e-6)
    return job.record() | {"problem": str(problem)}


def ran(tmp_path, record, text, **options):
    variables = launch.environment(record["threads"], tmp_path)
    return launch.run_child(child(tmp_path, text), record, tmp_path / "scratch", variables, **options)


def test_a_job_reaches_the_worker_and_its_result_comes_back(tmp_path, record):
    row, arrays = ran(tmp_path, record, ECHO)
    assert (row["status"], row["reason"]) == ("done", "")
    assert row["result"]["value"] == 6.0
    assert row["result"]["threads"] == "1"
    assert row["result"]["late"]
    assert row["result"]["affinity"] == sorted(os.sched_getaffinity(0))[:1]
    assert row["peak_mb"] > 5.0
    assert row["others"] is None or row["others"] >= 0.0
    assert row["result"]["versions"]["Python"] == sys.version.split()[0]
    assert np.load(arrays)["draws"].shape == (3, 2)


def test_pinning_a_child_leaves_the_driver_where_it_was(tmp_path, record):
    ran(tmp_path, record, "")
    assert os.sched_getaffinity(0) == CORES


def test_too_long_becomes_a_row(tmp_path, record):
    row, arrays = ran(tmp_path, record | {"limit": 0.3}, "import time; time.sleep(60)")
    assert (row["status"], row["reason"]) == ("gave up", "gave up after 0 s")
    assert row["wall"] < 20.0
    assert not arrays.exists()


def test_no_child_goes_on_without_its_driver(tmp_path, record, monkeypatch):
    number = tmp_path / "number"
    text = f"import os, time; open({str(number)!r}, 'w').write(str(os.getpid())); time.sleep(60)"

    def interrupted(pid):
        if number.exists() and number.read_text():
            raise KeyboardInterrupt
        return 0.0

    monkeypatch.setattr(launch, "_tree_mb", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ran(tmp_path, record, text)
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)


def test_too_much_memory_becomes_a_row(tmp_path, record):
    text = "import time; x = bytearray(80_000_000); time.sleep(60)"
    row, _ = ran(tmp_path, record, text, memory_cap_mb=60.0)
    assert row["status"] == "out of memory"


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        ("raise ValueError('no such thing')", "failed", "ValueError: no such thing"),
        ("raise MemoryError('at /somewhere/private')", "out of memory", "MemoryError: at"),
        ("raise TimeoutError('tuning did not end')", "gave up", "TimeoutError: tuning did not end"),
        ("", "failed", "ended with code 0 and no word"),
    ],
)
def test_failures_become_rows_with_their_reason(tmp_path, record, text, status, reason):
    row, _ = ran(tmp_path, record, text)
    assert (row["status"], row["reason"]) == (status, reason)


def test_a_child_that_was_ended_from_outside_says_nothing_about_its_package(tmp_path, record):
    row, _ = ran(tmp_path, record, "import os, signal; print('Error: half-way'); os.kill(os.getpid(), signal.SIGTERM)")
    assert (row["status"], row["reason"]) == ("interrupted", "ended from outside (SIGTERM)")


def test_a_child_that_was_killed_with_little_memory_did_not_run_out_of_it(tmp_path, record):
    row, _ = ran(tmp_path, record, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert row["status"] == "interrupted"
    assert launch._kind("no word", -9, 11_000.0) == "out of memory"


def test_what_is_interrupted_leaves_an_earlier_result_alone(tmp_path, monkeypatch):
    job = plan.jobs(plan.SMOKE, ["gradient"])[0]
    write_row(tmp_path, job, {"status": "done", "job": job.record()})
    before = result_path(tmp_path, job).read_text()
    row = {"status": "interrupted", "reason": "ended from outside (SIGTERM)", "result": {}}
    monkeypatch.setattr(run, "run_job", lambda *_: (row, tmp_path, tmp_path))
    assert run.run_one(job, None, tmp_path, tmp_path)["status"] == "interrupted"
    assert result_path(tmp_path, job).read_text() == before


def test_what_a_child_leaves_behind_is_ended_with_it(tmp_path, record):
    number = tmp_path / "number"
    text = "import subprocess; left = subprocess.Popen(['sleep', '60'])\n"
    ran(tmp_path, record, text + f"open({str(number)!r}, 'w').write(str(left.pid))")
    state = Path("/proc", number.read_text(), "stat")
    try:
        for _ in range(100):
            if state.read_text().split()[2] == "Z":
                return
            time.sleep(0.05)
    except (FileNotFoundError, ProcessLookupError):
        return
    pytest.fail("it still runs")


def test_a_missing_environment_is_a_row_and_not_a_crash(tmp_path, monkeypatch):
    problem = tmp_path / "problem.npz"
    np.savez(problem, X=np.ones((3, 2)))
    monkeypatch.setattr(run, "problem_file", lambda *_: problem)
    job = next(j for j in plan.jobs(plan.SMOKE, ["ml2"]) if j.contestant == "gpflow")
    arguments = SimpleNamespace(work=str(tmp_path), data_dir=None, venvs=str(tmp_path / "none"))
    run.run_one(job, arguments, tmp_path, tmp_path)
    row = json.loads(result_path(tmp_path, job).read_text())
    assert (row["status"], row["reason"]) == ("failed", "its environment is missing")
    assert row["job"]["key"] == job.key
    assert pending([job], [job], tmp_path) == []


def test_a_bound_that_is_not_finite_is_a_failure(tmp_path, monkeypatch):
    problem = tmp_path / "problem.npz"
    np.savez(problem, X=np.ones((3, 2)))
    arguments = SimpleNamespace(work=str(tmp_path), data_dir=None, venvs="")
    found = {"status": "done", "reason": "", "result": {"bound": float("nan"), "trajectory": []}}
    monkeypatch.setattr(run, "run_job", lambda *_: (dict(found), problem, tmp_path / "none.npz"))
    job = next(j for j in plan.jobs(plan.SMOKE, ["ml2"]))
    row = run.run_one(job, arguments, tmp_path, tmp_path)
    assert (row["status"], row["reason"]) == ("failed", "its results could not be judged: the bound is nan")
    found["result"]["bound"] = 1.0
    assert run.run_one(job, arguments, tmp_path, tmp_path)["status"] == "done"


def test_each_environment_that_waits_is_warmed_once_and_leaves_no_result(tmp_path, monkeypatch):
    names = ("gpflow", "gpflow-hmc", "sklearn", "pymc", "pymc-nutpie", "integrand-fixed-z")
    waiting = [j for j in plan.jobs(plan.SMOKE) if j.contestant in names]
    warmed = []

    def job_run(job, arguments, scratch):
        warmed.append((job.contestant, job.task, job.problem))
        return {"status": "failed", "reason": "no matter"}, None, None

    monkeypatch.setattr(run, "run_job", job_run)
    run.warm_up(waiting, SimpleNamespace(), tmp_path)
    assert sorted(warmed) == [
        ("gpflow", "gradient", "synthetic-300"),
        ("integrand", "gradient", "synthetic-300"),
        ("integrand-fixed-z", "sample", "yacht-0"),  # and so are ours
        ("pymc", "gradient", "synthetic-300"),
        ("pymc-nutpie", "sample", "yacht-0"),  # Numba's files are of one problem
        ("sklearn", "ml2", "synthetic-300"),
    ]
    assert not list(tmp_path.iterdir())


def test_ours_finds_programs_on_disk_only_where_others_do(tmp_path):
    assert launch.environment(1, tmp_path)["INTEGRAND_CACHE"] == "off"
    assert launch.environment(1, tmp_path, keeps=True)["INTEGRAND_CACHE"] == str(tmp_path / "integrand")
    keeping = [j for j in plan.jobs(plan.FULL) if j.keeps]
    assert {(j.measure, j.contestant) for j in keeping} == {("hyperposterior", "integrand-fixed-z")}
    warmed = {(j.contestant, j.problem) for j in plan.warm_jobs(plan.jobs(plan.FULL)) if j.keeps}
    assert warmed == {(j.contestant, j.problem) for j in keeping}


def test_a_warm_up_has_the_model_of_what_it_warms():
    waiting = [j for j in plan.jobs(plan.FULL, ["hyperposterior"]) if j.contestant == "integrand-fixed-z"]
    warm = next(j for j in plan.warm_jobs(waiting) if j.contestant == "integrand-fixed-z")
    same = ("method", "priors", "predict", "programs")
    assert [warm.options[key] for key in same] == [waiting[0].options[key] for key in same]
    assert (warm.jitter, warm.threads) == (waiting[0].jitter, waiting[0].threads)


def test_worker_helpers(tmp_path, record):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(record | {"options": {"cap": 10.0, "predictive_draws": 7}}))
    job = WorkerJob(path, spawned=100.0)
    assert job.predictive() == 7
    job.options["predict"] = False
    assert job.predictive() == 0
    assert job.over()
    assert [job.deadline(102.0, k, 2) for k in range(2)] == [106.0, 110.0]
    assert thinned(np.arange(24.0).reshape(2, 4, 3), 4)[:, 0].tolist() == [0.0, 6.0, 12.0, 21.0]
    assert picked(3, 400).tolist() == [0, 1, 2]
    trajectory = Trajectory(job)
    assert [trajectory.improve(bound) for bound in (1.0, 0.5, 2.0)] == [True, False, True]
    assert [bound for _, bound in trajectory.points] == [1.0, trajectory.best] == [1.0, 2.0]
    times = timed_calls(lambda: None, {"seconds": 0.0, "least": 3})
    assert len(times["calls"]) == 3


def test_choosing_jobs_by_measure_key_and_repeat():
    def chosen(*arguments):
        return run.wanted(run.parsed([*arguments]))

    everything, once = chosen(), chosen("--repeats", "1")
    assert once == [job for job in everything if job.repeat == 0]
    assert {job.repeat for job in everything} > {0}
    some = chosen("--measures", "ml2", "--only", "yacht,gpjax")
    assert {job.measure for job in some} == {"ml2", "product"}
    assert all("yacht" in job.key or "gpjax" in job.key for job in some)


def test_a_clone_remembers_when_it_began(tmp_path):
    before = run.begun(tmp_path)
    assert not (tmp_path / "begun").exists()  # asking is not beginning
    assert before <= run.begun(tmp_path)
    (tmp_path / "begun").write_text("2026-01-02 03:04")
    assert run.begun(tmp_path) == "2026-01-02 03:04"
