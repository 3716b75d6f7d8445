"""A job in a child process: its result, or the status of a row for whatever happened to it. No peer is needed."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.peers import __main__ as driver
from benchmarks.peers import launch, plan
from benchmarks.peers.judge import judge
from benchmarks.peers.rows import write_row

sys.path.insert(0, str(driver.WORKERS))

import peer_integrand
from protocol import Job as WorkerJob

CORES = os.sched_getaffinity(0)  # before any test can have changed them
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
    script.write_text(text.replace("WORKERS", repr(str(driver.WORKERS))))
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
    assert os.sched_getaffinity(0) == CORES


def test_too_long_becomes_a_row(tmp_path, record):
    row, arrays = ran(tmp_path, record | {"limit": 0.3}, "import time; time.sleep(60)")
    assert (row["status"], row["reason"]) == ("gave up", "gave up after 0 s")
    assert row["wall"] < 20.0
    assert not arrays.exists()


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
        ("", "failed", "ended with code 0 and no output"),
    ],
)
def test_failures_become_rows_with_their_reason(tmp_path, record, text, status, reason):
    row, _ = ran(tmp_path, record, text)
    assert (row["status"], row["reason"]) == (status, reason)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_child_that_was_ended_from_outside_says_nothing_about_its_package(tmp_path, record, name):
    row, _ = ran(tmp_path, record, f"import os, signal; os.kill(os.getpid(), signal.{name})")
    assert row["status"] == "interrupted"


def test_what_is_interrupted_leaves_an_earlier_result_alone(tmp_path, monkeypatch):
    job = plan.jobs(plan.SMOKE, ["gradient"])[0]
    write_row(tmp_path, job, {"status": "done", "job": job.record()})
    path = tmp_path / f"{job.key}.json"
    before = path.read_text()
    row = {"status": "interrupted", "reason": "ended from outside (SIGTERM)", "result": {}}
    monkeypatch.setattr(driver, "run_job", lambda *_: (row, tmp_path, tmp_path))
    assert driver.run_one(job, None, tmp_path, tmp_path)["status"] == "interrupted"
    assert path.read_text() == before


def test_a_bound_that_is_not_finite_is_a_failure(tmp_path, monkeypatch):
    problem = tmp_path / "problem.npz"
    np.savez(problem, X=np.ones((3, 2)))
    arguments = SimpleNamespace(work=str(tmp_path), data_dir=None, venvs="")
    result = {"status": "done", "reason": "", "result": {"bound": float("nan"), "trajectory": []}}
    monkeypatch.setattr(driver, "run_job", lambda *_: (dict(result), problem, tmp_path / "none.npz"))
    job = next(j for j in plan.jobs(plan.SMOKE, ["ml2"]))
    row = driver.run_one(job, arguments, tmp_path, tmp_path)
    assert (row["status"], row["reason"]) == ("failed", "its results could not be judged: the bound is nan")
    result["result"]["bound"] = 1.0
    assert driver.run_one(job, arguments, tmp_path, tmp_path)["status"] == "done"


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_commit_with_changes_is_called_dirty(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("1")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "src")
    git(tmp_path, "commit", "--quiet", "-m", "a")
    clean = launch.revision(tmp_path)
    (tmp_path / "notes").write_text("what is not measured does not count")
    assert launch.revision(tmp_path) == clean
    (tmp_path / "src" / "b.py").write_text("2")
    assert launch.revision(tmp_path) == f"{clean}-dirty"
    assert launch.revision(tmp_path / "nowhere") == "unknown"


def test_neighbours_are_what_keeps_cores_busy_without_our_children(tmp_path, monkeypatch):
    stat, ticks = tmp_path / "stat", launch.os.sysconf("SC_CLK_TCK")

    def at(seconds, first, second):
        idle = "5 6 0 0 0"
        lines = (f"cpu{k} {int(s * ticks)} 0 0 {idle}" for k, s in enumerate((first, second)))
        stat.write_text("\n".join(["cpu 1 2 3 4 5 6 7 8", *lines]))
        monkeypatch.setattr(launch.time, "time", lambda: seconds)

    children = iter([1.0, 9.0, 1.0, 9.0, 0.0])
    monkeypatch.setattr(launch.Neighbours, "_own", lambda self: next(children))
    at(0.0, 10.0, 10.0)
    both = launch.Neighbours([0, 1], stat)
    at(10.0, 20.0, 13.0)
    assert both.count() == pytest.approx((10.0 + 3.0 - 8.0) / 10.0)
    at(0.0, 10.0, 10.0)
    one = launch.Neighbours([0], stat)
    at(10.0, 18.0, 20.0)  # what others do on a core that is not ours is no matter
    assert one.count() == pytest.approx(0.0)
    assert launch.Neighbours([0], tmp_path / "none").busy is None


# ---- our own worker; those of other packages need their environments (`--profile smoke`)

N, M, D = 60, 8, 2


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N + 10, D))
    y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.standard_normal(N + 10)
    rows = {"X": X[:N], "y": y[:N], "X_test": X[N:], "y_test": y[N:], "Z": X[:M], "y_mean": 0.0, "y_sd": 1.0}
    point = {"lengthscale": np.full(D, 2.0), "scale": 1.0, "noise": 0.3}
    path = tmp_path_factory.mktemp("problem") / "problem.npz"
    np.savez(path, **rows, **point)
    return path


@pytest.fixture
def job(problem, tmp_path):
    def made(task, contestant, **options):
        record = plan.Job("any", task, "any", contestant, 0, 1, 1, 300.0, plan.COMMON_JITTER).record()
        path = tmp_path / "job.json"
        path.write_text(json.dumps(record | {"problem": str(problem), "options": options}))
        return WorkerJob(path, time.time())

    return made


def test_the_gradient_is_of_the_bound_at_the_given_point(job, problem):
    row, _ = peer_integrand.gradient(job("gradient", "integrand", seconds=0.0, least=3))
    with np.load(problem) as arrays:
        X, y, Z = arrays["X"], arrays["y"], arrays["Z"]

    def kernel(a, b):
        return np.exp(-0.5 * np.sum((a[:, None] - b[None]) ** 2, axis=-1) / 4.0)

    K = kernel(Z, X)
    Q = K.T @ np.linalg.solve(kernel(Z, Z) + plan.COMMON_JITTER * np.eye(M), K)
    S = Q + 0.09 * np.eye(N)
    fit = -0.5 * (N * np.log(2.0 * np.pi) + np.linalg.slogdet(S)[1] + y @ np.linalg.solve(S, y))
    assert row["value"] == pytest.approx(fit - 0.5 * (N - np.trace(Q)) / 0.09, rel=1e-9)
    assert len(row["calls"]) == 3


@pytest.mark.slow
def test_an_optimum_is_where_the_referee_finds_the_same_bound(job, problem, tmp_path, monkeypatch):
    from integrand.targets import CollapsedTarget

    monkeypatch.setattr(CollapsedTarget, "evaluate", CollapsedTarget.evaluate)  # the worker watches it: put it back
    row, arrays = peer_integrand.ml2(job("ml2", "integrand", steps=30))
    np.savez(tmp_path / "found.npz", **arrays)
    numbers = judge("ml2", problem, tmp_path / "found.npz", row)
    assert numbers["referee_bound"] == pytest.approx(row["bound"], abs=1e-6)
    bounds = [bound for _, bound in row["trajectory"]]
    assert bounds == sorted(bounds)


@pytest.mark.slow
def test_draws_come_with_what_the_tables_ask_of_them(job, problem, tmp_path):
    options = {"method": "sgpr-hmc-fixed-z", "priors": "paper", "chains": 2, "cap": 60.0, "predictive_draws": 20}
    row, arrays = peer_integrand.sample(job("sample", "integrand-fixed-z", **options))
    assert arrays["draws"].shape[0] == 2
    assert arrays["draws"].shape[2] == D + 2
    assert arrays["means"].shape == arrays["variances"].shape == (20, 10)
    assert row["reached"]
    assert 0.0 < row["sampling_seconds"] < row["seconds"]
    np.savez(tmp_path / "found.npz", **arrays)
    assert judge("sample", problem, tmp_path / "found.npz", row)["rmse"] < 0.5
