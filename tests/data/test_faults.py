"""Processes that die, hang or begin with the wrong files: the others end in time and say what to do."""

import json
import os
import signal
import socket
import time

import numpy as np
import pandas as pd
import pytest
from started_processes import codes, errors, free_port, started, table, write_parts
from typer.testing import CliRunner

from integrand.cli.app import app
from integrand.storage.model_file import load_model
from integrand.storage.run_directory import RunDirectory

FIT = ["--inducing", "8", "--chains", "2", "--target-ess", "1e6", "--max-draws", "100000", "--quiet"]


def commands(data, folder, size=2, *, port=None, timeout=20, options=FIT, data_of=None):
    """`integrand fit` in `size` processes."""
    common = ["--target", "y", *options, "--run-dir", folder / "run", *joining(size, timeout, port)]
    paths = [(data_of or {}).get(rank, data) for rank in range(size)]
    return [cli("fit", path, "--out", folder / f"model{rank}", *common, rank) for rank, path in enumerate(paths)]


def cli(*arguments):
    return ["-m", "integrand.cli", *arguments]


def joining(size, timeout, port=None):
    """Options that join processes; the rank comes last."""
    address = f"127.0.0.1:{port or free_port()}"
    return ["--distributed", "--coordinator", address, "--processes", size, "--timeout", timeout, "--rank"]


def worker(process) -> int:
    """The process that computes: the child of the one that watches over it."""
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        return int(file.read().split()[0])


def wait_for_draws(folder, processes, seconds=150.0):
    """Until draws are on disk, so in the middle of the final chains."""
    deadline = time.monotonic() + seconds
    while not (folder / "run" / "draws_000.npz").exists():
        assert time.monotonic() < deadline
        assert all(p.poll() is None for p in processes), errors(folder, 0) + errors(folder, 1)
        time.sleep(0.1)


def last_line(folder, rank):
    return errors(folder, rank).strip().splitlines()[-1]


def assert_one_line(folder, rank, *words):
    """One line of ours and nothing else."""
    lines = errors(folder, rank).strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("integrand: ")
    for word in words:
        assert word in lines[0], lines


@pytest.fixture
def parts(tmp_path):
    return write_parts(tmp_path / "parts", table(400))


linux = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="finds child processes in /proc")


# --- one of two is lost in the middle of a fit


@pytest.mark.slow
@linux
def test_a_process_that_is_killed_ends_the_other_and_one_goes_on(parts, tmp_path):
    with started(commands(parts, tmp_path), tmp_path) as processes:
        wait_for_draws(tmp_path, processes)
        os.kill(processes[1].pid, signal.SIGKILL)  # the one that a user knows of; what it started ends with it
        began = time.monotonic()
        assert codes(processes[:1], 20.0 + 15.0) == [4]
        assert time.monotonic() - began < 20.0 + 10.0
    assert_one_line(tmp_path, 0, "rank 0 stops", "run directory", "`integrand resume`")
    assert not (tmp_path / "model0").exists()
    with RunDirectory.open(tmp_path / "run") as run:
        before = run.load("draws_000")[0]["x"]
    assert before.shape[1] > 0
    draws = str(before.shape[1] + 5)
    result = CliRunner().invoke(app, ["resume", str(tmp_path / "run"), "--max-draws", draws, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["model"] == str(tmp_path / "model0")
    assert (tmp_path / "model0").exists()
    with RunDirectory.open(tmp_path / "run") as run:
        blocks = [run.load(name)[0]["x"] for name in run.names() if name.startswith("draws_")]
    after = np.concatenate(blocks, axis=1)
    np.testing.assert_array_equal(after[:, : before.shape[1]], before)
    assert after.shape[1] == before.shape[1] + 5


@linux
@pytest.mark.slow
def test_a_process_that_hangs_is_given_up(parts, tmp_path):
    with started(commands(parts, tmp_path, timeout=8), tmp_path) as processes:
        wait_for_draws(tmp_path, processes)
        stopped = worker(processes[1])
        os.kill(stopped, signal.SIGSTOP)
        began = time.monotonic()
        assert codes(processes[:1], 60.0) == [4]
        assert 4.0 < time.monotonic() - began < 8.0 + 10.0
        os.kill(stopped, signal.SIGKILL)
    assert_one_line(tmp_path, 0, "silent", "`integrand resume`")


@linux
@pytest.mark.slow
def test_without_rank_0_the_other_ends(parts, tmp_path):
    with started(commands(parts, tmp_path, timeout=15), tmp_path) as processes:
        wait_for_draws(tmp_path, processes)
        os.kill(worker(processes[0]), signal.SIGKILL)
        began = time.monotonic()
        assert codes(processes[1:], 60.0) == [4]
        assert time.monotonic() - began < 15.0 + 15.0
    line = last_line(tmp_path, 1)
    assert line.startswith("integrand: ")
    assert "`integrand resume`" in line
    assert not (tmp_path / "model1").exists()


@linux
@pytest.mark.slow
def test_a_rank_0_that_hangs_is_given_up(parts, tmp_path):
    with started(commands(parts, tmp_path, timeout=8), tmp_path) as processes:
        wait_for_draws(tmp_path, processes)
        os.kill(worker(processes[0]), signal.SIGSTOP)
        began = time.monotonic()
        assert codes(processes[1:], 90.0) == [4]
        assert time.monotonic() - began < 10.0 + 20.0
    assert "`integrand resume`" in last_line(tmp_path, 1)


@linux
@pytest.mark.slow
def test_three_go_on_where_two_were_ended(parts, tmp_path):
    with started(commands(parts, tmp_path), tmp_path) as processes:
        wait_for_draws(tmp_path, processes)
        os.kill(worker(processes[1]), signal.SIGKILL)
        assert codes(processes[:1], 40.0) == [4]
    with RunDirectory.open(tmp_path / "run") as run:
        before = run.load("draws_000")[0]["x"]
    joined, draws = joining(3, 60), before.shape[1] + 30
    resume = [cli("resume", tmp_path / "run", "--max-draws", draws, "--quiet", *joined, rank) for rank in range(3)]
    with started(resume, tmp_path) as processes:
        assert codes(processes, 200.0) == [0, 0, 0], [errors(tmp_path, rank) for rank in range(3)]
    with RunDirectory.open(tmp_path / "run") as run:
        blocks = [run.load(name)[0]["x"] for name in run.names() if name.startswith("draws_")]
    after = np.concatenate(blocks, axis=1)
    np.testing.assert_array_equal(after[:, : before.shape[1]], before)
    assert after.shape[1] == before.shape[1] + 30
    assert (tmp_path / "model0").exists()


@linux
@pytest.mark.slow
def test_ctrl_c_ends_all(parts, tmp_path):
    """Rank 0 with the draws it has, and the others with it."""
    with started(commands(parts, tmp_path), tmp_path) as processes:
        wait_for_draws(tmp_path, processes)
        for process in processes:
            os.kill(process.pid, signal.SIGINT)
        found = codes(processes, 60.0)
    assert found == [130, 0], [errors(tmp_path, rank) for rank in range(2)]
    assert "interrupted" in str(load_model(tmp_path / "model0").posterior.verdict)
    assert "rank 0 ends the fit" in last_line(tmp_path, 1)


# --- the wrong files, on every rank


def wrong_files(case, folder):
    """A directory of parts with something wrong, and words of the message."""
    parts = write_parts(folder / "parts", table(400), 3)
    one = parts / "part-2-of-3.parquet"
    if case == "missing part":
        one.unlink()
        return parts, ["2 of 3 parts"]
    if case == "corrupt part":
        one.write_bytes(one.read_bytes()[:-200])
        return parts, ["part-2-of-3.parquet", "cannot be read as Parquet"]
    if case == "other columns":
        pd.read_parquet(one).rename(columns={"b": "c"}).to_parquet(one)
        return parts, ["different columns (b, c)"]
    frame = pd.read_parquet(parts / "part-3-of-3.parquet")
    frame.loc[frame.index[-1], "b"] = np.nan  # in the share of the last rank
    frame.to_parquet(parts / "part-3-of-3.parquet")
    return parts, ["part-3-of-3.parquet, row", "column 'b' is missing"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["a missing value", "missing part", "corrupt part", "other columns"])
def test_files_that_are_wrong_are_named_on_every_rank(case, tmp_path):
    parts, words = wrong_files(case, tmp_path)
    with started(commands(parts, tmp_path), tmp_path) as processes:
        found = codes(processes, 90.0)
    assert found == [2, 2], [errors(tmp_path, rank) for rank in range(2)]
    for rank in range(2):
        assert_one_line(tmp_path, rank, *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_directory_that_only_one_of_them_has(tmp_path):
    parts = write_parts(tmp_path / "parts", table(400))
    with started(commands(parts, tmp_path, data_of={1: tmp_path / "none.parquet"}), tmp_path) as processes:
        assert codes(processes, 90.0) == [2, 2]
    assert_one_line(tmp_path, 0, "rank 1", "there is no file")
    assert_one_line(tmp_path, 1, "there is no file")


@pytest.mark.slow
def test_a_method_that_needs_all_rows_is_refused_by_all(tmp_path):
    parts = write_parts(tmp_path / "parts", table(400))
    with started(commands(parts, tmp_path, options=["--method", "svgp", "--quiet"]), tmp_path) as processes:
        assert codes(processes, 90.0) == [2, 2]
    for rank in range(2):
        assert_one_line(tmp_path, rank, "svgp needs all rows")


@pytest.mark.slow
def test_a_port_in_use(tmp_path):
    """Rank 0 says so; the other finds somebody there who knows nothing of a fit, or nobody."""
    parts = write_parts(tmp_path / "parts", table(400))
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        with started(commands(parts, tmp_path, port=taken.getsockname()[1]), tmp_path) as processes:
            assert codes(processes[:1], 60.0) == [2]
            assert_one_line(tmp_path, 0, "port", "choose another one")
            assert codes(processes[1:], 180.0) == [4]
    assert last_line(tmp_path, 1).startswith("integrand: ")


@pytest.mark.slow
def test_mistakes_that_need_no_other_process(tmp_path, monkeypatch):
    """Before anything is joined, and without a stack trace."""
    monkeypatch.setenv("INTEGRAND_SUPERVISED", "")
    parts = write_parts(tmp_path / "parts", table(100))
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        wrong = {
            "choose another one": ["--coordinator", f"127.0.0.1:{taken.getsockname()[1]}", "--rank", "0"],
            "host:port": ["--coordinator", "nowhere", "--rank", "0"],
        }
        fit = cli("fit", parts, "--target", "y", "--out", tmp_path / "m", "--distributed", "--processes", 2)
        lines = [[*fit, *options] for options in wrong.values()]
        with started(lines, tmp_path) as processes:
            assert codes(processes, 60.0) == [2, 2]
    for k, word in enumerate(wrong):
        assert_one_line(tmp_path, k, word)
