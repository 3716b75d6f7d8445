"""Processes on this machine that fit together, for tests: a free port, and nothing left behind."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd


def free_port() -> int:
    """A port that nobody listens at; the system gives another one to everybody who asks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def started(commands: Sequence[Sequence[str]], folder: Path) -> Iterator[list[subprocess.Popen]]:
    """Processes, each with its children in a group of its own; all that is left of them is killed in the end.

    What they print goes to files, so that none waits for a reader.
    """
    # JAX sets this in the process that imports it, so a process of a user does not have it.
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    processes = []
    try:
        for rank, command in enumerate(commands):
            with open(folder / f"out{rank}", "w") as out, open(folder / f"err{rank}", "w") as err:
                full = [sys.executable, *map(str, command)]
                processes.append(
                    subprocess.Popen(full, stdout=out, stderr=err, env=environment, start_new_session=True)
                )
        yield processes
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def codes(processes: Sequence[subprocess.Popen], seconds: float) -> list[int | None]:
    """Exit codes of all, None for one that is still running after so many seconds."""
    deadline = time.monotonic() + seconds
    found: list[int | None] = []
    for process in processes:
        try:
            found.append(process.wait(max(deadline - time.monotonic(), 0.1)))
        except subprocess.TimeoutExpired:
            found.append(None)
    return found


def errors(folder: Path, rank: int) -> str:
    """What a process wrote to standard error."""
    return (folder / f"err{rank}").read_text()


def table(n: int, seed: int = 5) -> pd.DataFrame:
    """Two inputs and a target."""
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, n))
    return pd.DataFrame({"a": a, "b": 3.0 * b + 10.0, "y": np.sin(2 * a) + 0.3 * b + 0.3 * rng.standard_normal(n)})


def write_parts(folder: Path, frame: pd.DataFrame, parts: int = 2) -> Path:
    """The rows in several Parquet files of different lengths."""
    folder.mkdir(exist_ok=True)
    ends = [len(frame) * k * (k + 1) // (parts * (parts + 1)) for k in range(parts + 1)]
    for k in range(parts):
        frame[ends[k] : ends[k + 1]].to_parquet(folder / f"part-{k + 1}-of-{parts}.parquet", row_group_size=60)
    return folder
