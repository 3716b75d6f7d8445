"""Run one job in a child process on its cores, watch its time and memory, and turn every outcome into a row."""

import contextlib
import json
import os
import platform
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.rows import UNKNOWN, Row

MEMORY_CAP_MB = 12_000.0
_MUCH_MB = 0.5 * MEMORY_CAP_MB
_POLL_SECONDS = 0.25
# Set by the driver when it ends before its children. Children that other threads watch end too.
ENDING = threading.Event()


def environment(threads: int, caches: Path, keeps: bool = False) -> dict[str, str]:
    """Environment variables that limit every numerical library to `threads` threads and put caches into `caches`.

    With `keeps`, this library finds the programs that an earlier job compiled, as PyTensor and Numba do.
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
    """Pin this thread, and the children that it starts, to the first `count` of its cores."""
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
    """Run `command JOB RESULT SPAWNED`; its row, and the file of its arrays if it wrote any.

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
        except BaseException:  # the driver ends: so does the child
            _end(child)
            child.wait()
            raise
        wall, others = time.time() - spawned, neighbours.count()
        _end(child)  # its own children, such as chains, must not run into the next job
        output.seek(0)
        printed = output.read().decode(errors="replace")
    row: Row = {"status": "done", "reason": "", "wall": wall, "peak_mb": peak, "result": {}, "others": others}
    if ended:
        late, much = f"gave up after {record['limit']:.0f} s", f"more than {memory_cap_mb / 1000:.0f} GB"
        status, reason = ("gave up", late) if ended == "time" else ("out of memory", much)
        row |= {"status": status, "reason": reason}
    elif code != 0 or not result_path.exists():
        row |= _failure(printed, code, peak)
    else:
        row["result"] = json.loads(result_path.read_text())
        row["peak_mb"] = max(peak, row["result"].pop("peak_mb", 0.0))
    return row, result_path.with_suffix(".npz")


# A signal from outside says nothing about the package.
_ENDED_FROM_OUTSIDE = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)


def _failure(printed: str, code: int, peak_mb: float) -> Row:
    """Status and reason of a child that ended without a result."""
    if code in _ENDED_FROM_OUTSIDE:
        return {"status": "interrupted", "reason": f"ended from outside ({signal.Signals(-code).name})"}
    reason = _last_line(printed, code)
    return {"status": _kind(reason, code, peak_mb), "reason": reason}


def _kind(reason: str, code: int, peak_mb: float) -> str:
    if code == -signal.SIGKILL:  # by the system if it used much memory, else from outside
        return "out of memory" if peak_mb > _MUCH_MB else "interrupted"
    if any(w in reason for w in ("MemoryError", "RESOURCE_EXHAUSTED", "ResourceExhausted")):
        return "out of memory"
    return "gave up" if reason.startswith("TimeoutError") else "failed"


def _watched(child: subprocess.Popen, deadline: float, memory_cap_mb: float) -> tuple[int, float, str]:
    """Exit code, peak memory of the child and its children in MB, and the limit that ended it ("" if none did)."""
    peak, ended = 0.0, ""
    while True:
        if child.poll() is not None:  # the worker reports its own peak: the kernel's count begins with the driver's
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
    """Current memory of a process and its descendants in MB; shared pages count for each.

    It reads few files, because it runs on the measured cores.
    """
    pages, waiting = 0, [root]
    while waiting:
        folder = Path("/proc", str(waiting.pop()))
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages += int((folder / "statm").read_text().split()[1])
            for task in (folder / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def _last_line(printed: str, code: int) -> str:
    """The last printed line that looks like an error, without paths of this machine."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "error" in line or "Exception" in line]
    last = (errors or lines or [f"ended with code {code} and no output"])[-1]
    return " ".join(word for word in last.split() if not word.strip("\"'(),:").startswith("/"))[:300]


class Neighbours:
    """Measures the use of some cores by other processes, as total use less that of this process's children.

    The system's load does not show it: it consists mostly of the benchmark's own jobs.
    """

    def __init__(self, cores: Iterable[int], stat: Path = Path("/proc/stat")):
        self.cores, self.stat = set(cores), stat
        self.start, self.busy, self.own = time.time(), self._busy(), self._own()

    def count(self) -> float | None:
        """The mean number of cores that others used; None where the system does not report it."""
        busy, seconds = self._busy(), time.time() - self.start
        if self.busy is None or busy is None or seconds <= 0.0:
            return None
        return max(0.0, (busy - self.busy - (self._own() - self.own)) / seconds)

    def _busy(self) -> float | None:
        """Busy seconds of the cores: all kinds but idle and waiting."""
        try:
            lines = [line.split() for line in self.stat.read_text().splitlines()]
        except OSError:
            return None
        wanted = {f"cpu{k}" for k in self.cores}
        ticks = [[int(n) for n in words[1:9]] for words in lines if words and words[0] in wanted]
        return sum(sum(t) - t[3] - t[4] for t in ticks) / os.sysconf("SC_CLK_TCK") if ticks else None

    def _own(self) -> float:
        """Processor seconds of ended children and their descendants."""
        times = os.times()
        return times.children_user + times.children_system


def machine() -> dict[str, str]:
    """Processor, cores, memory, system and Python; no host name."""
    facts = {"cores allowed": str(len(os.sched_getaffinity(0)))}
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        facts = {"processor": processor_named(cpuinfo.read_text())} | facts
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return facts | {"memory": f"{memory:.0f} GB", "system": platform.system(), "Python": platform.python_version()}


def processor_named(cpuinfo: str) -> str:
    """Name, family and model of the first processor; several generations of virtual machines share a name."""
    known: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        known.setdefault(key.strip(), value.strip())
    numbers = ", ".join(
        f"{word} {known[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in known
    )
    return known.get("model name", platform.machine()) + (f" ({numbers})" if numbers else "")


def revision(root: Path) -> str:
    """The measured commit; with `-dirty` if the library or the benchmarks have uncommitted changes."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "src", "benchmarks")
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
