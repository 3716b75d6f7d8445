"""Run one job in a child process on its cores, watch its time and memory, and turn whatever happens into a row."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neighbours import Neighbours
from rows import Row

MEMORY_CAP_MB = 12_000.0
_MUCH_MB = 0.5 * MEMORY_CAP_MB
_POLL_SECONDS = 0.25
# Set by the driver when it comes to its end before its children: those that other threads watch end too.
ENDING = threading.Event()


def environment(threads: int, caches: Path, keeps: bool = False) -> dict[str, str]:
    """Variables that hold every numerical library to so many threads, and keep its caches and noise to itself.

    If it `keeps` them, this library finds the programs that it compiled for a job before, as PyTensor and Numba do.
    """
    n = str(threads)
    pools = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB", "BLIS")
    values = {f"{name}_NUM_THREADS": n for name in pools}
    values |= {"TF_NUM_INTRAOP_THREADS": n, "TF_NUM_INTEROP_THREADS": n, "TF_CPP_MIN_LOG_LEVEL": "3"}
    values |= {"TF_ENABLE_ONEDNN_OPTS": "1", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg"}
    values |= {"PYTENSOR_FLAGS": f"base_compiledir={caches / 'pytensor'}", "NUMBA_CACHE_DIR": str(caches / "numba")}
    values["INTEGRAND_CACHE"] = str(caches / "integrand") if keeps else "off"
    if threads == 1:
        values["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    return values


@contextlib.contextmanager
def pinned_to(count: int):
    """Hold this thread, and with it the children that it starts, to the first so many of its cores."""
    allowed = os.sched_getaffinity(0)
    chosen = sorted(allowed)[:count]
    os.sched_setaffinity(0, chosen)
    try:
        yield chosen
    finally:
        os.sched_setaffinity(0, allowed)


def run_child(
    command: Sequence[str],
    record: Mapping[str, Any],
    folder: Path,
    variables: Mapping[str, str],
    memory_cap_mb: float = MEMORY_CAP_MB,
) -> tuple[Row, Path]:
    """Run `command JOB RESULT SPAWNED` and return its row, and where its arrays are if it wrote any.

    The row's status is `done`, `failed`, `gave up` (time) or `out of memory`; the reason is a sentence.
    """
    folder.mkdir(parents=True, exist_ok=True)
    job_path, result_path = folder / "job.json", folder / "result.json"
    for old in (result_path, result_path.with_suffix(".npz")):
        old.unlink(missing_ok=True)
    job_path.write_text(json.dumps(record))
    with tempfile.TemporaryFile() as output:
        with pinned_to(record["cores"]) as cores:
            neighbours = Neighbours(cores)
            spawned = time.time()
            child = subprocess.Popen(
                [*command, str(job_path), str(result_path), repr(spawned)],
                stdout=output,
                stderr=output,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        try:
            code, peak, ended = _watched(child, spawned + record["limit"], memory_cap_mb)
        except BaseException:  # the driver is told to end: no child goes on without it
            _end(child)
            child.wait()
            raise
        wall, others = time.time() - spawned, neighbours.count()
        _end(child)  # what it left behind, such as chains of its own, must not run into the next job
        output.seek(0)
        said = output.read().decode(errors="replace")
    row: Row = {"status": "done", "reason": "", "wall": wall, "peak_mb": peak, "result": {}, "others": others}
    if ended:
        late, much = f"gave up after {record['limit']:.0f} s", f"more than {memory_cap_mb / 1000:.0f} GB"
        status, reason = ("gave up", late) if ended == "time" else ("out of memory", much)
        row |= {"status": status, "reason": reason}
    elif code != 0 or not result_path.exists():
        row |= _failure(said, code, peak)
    else:
        row["result"] = json.loads(result_path.read_text())
        row["peak_mb"] = max(peak, row["result"].pop("peak_mb", 0.0))
    return row, result_path.with_suffix(".npz")


# A child that somebody else ended says nothing about its package.
_TOLD_TO_END = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)


def _failure(said: str, code: int, peak_mb: float) -> Row:
    """Status and reason of a child that ended by itself, or by somebody else, without a result."""
    if code in _TOLD_TO_END:
        return {"status": "interrupted", "reason": f"ended from outside ({signal.Signals(-code).name})"}
    reason = _last_words(said, code)
    return {"status": _kind(reason, code, peak_mb), "reason": reason}


def _kind(reason: str, code: int, peak_mb: float) -> str:
    if code == -signal.SIGKILL:  # the system's, if it had taken much; else somebody's, who says nothing of the package
        return "out of memory" if peak_mb > _MUCH_MB else "interrupted"
    if any(w in reason for w in ("MemoryError", "RESOURCE_EXHAUSTED", "ResourceExhausted")):
        return "out of memory"
    return "gave up" if reason.startswith("TimeoutError") else "failed"


def _watched(child: subprocess.Popen, deadline: float, memory_cap_mb: float) -> tuple[int, float, str]:
    """Exit code, peak memory of the child and its children in MB, and why it was ended ("" if it was not)."""
    peak, ended = 0.0, ""
    while True:
        if child.poll() is not None:  # its own peak is for it to say: what the kernel counts begins with the driver's
            return child.returncode, peak, ended
        if ENDING.is_set():
            raise KeyboardInterrupt
        peak = max(peak, _tree_mb(child.pid))
        if not ended and (time.time() > deadline or peak > memory_cap_mb):
            ended = "memory" if peak > memory_cap_mb else "time"
            _end(child)
        time.sleep(_POLL_SECONDS)


def _end(child: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _tree_mb(root: int) -> float:
    """Memory of a process and all below it, now, in MB; pages that they share count for each.

    Few files are read: this runs on the cores that are measured.
    """
    pages, waiting = 0, [root]
    while waiting:
        folder = Path("/proc", str(waiting.pop()))
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages += int((folder / "statm").read_text().split()[1])
            for task in (folder / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def _last_words(said: str, code: int) -> str:
    """The last line of what a child printed that looks like an error, without paths of this machine."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "error" in line or "Exception" in line]
    found = (errors or lines or [f"ended with code {code} and no word"])[-1]
    return " ".join(word for word in found.split() if not word.strip("\"'(),:").startswith("/"))[:300]
