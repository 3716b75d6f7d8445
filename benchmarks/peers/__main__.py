"""Run the benchmark against other packages: one child process and one row per job, then the page of all rows.

    python -m benchmarks.peers [--profile quick] [--measures gradient,ml2] [--only yacht] [--venvs DIR]
    python -m benchmarks.peers --list            # jobs, and which of them have a row
    python -m benchmarks.peers --install         # make the environments
    python -m benchmarks.peers --collect         # write the page from the rows, run nothing

A run can be stopped at any time; the next one goes on. It runs each job that has no row from this clone. With --keep
the rows of results/peers.parquet count too. A row with other settings does not count. Nor does a row from another
processor, unless all rows that it is compared with come from there.
"""

import argparse
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers import plan
from benchmarks.peers.contestants import CONTESTANTS, ENVIRONMENTS, OURS
from benchmarks.peers.judge import judge
from benchmarks.peers.launch import ENDING, environment, machine, revision, run_child
from benchmarks.peers.plan import MEASURES, PROFILES, UNTIMED, Job, warm_jobs
from benchmarks.peers.problems import problem_file
from benchmarks.peers.rows import UNKNOWN, Row, counting, pending, write_row
from results.read import HERE as TABLES
from results.read import about, read, read_files, write

HERE = Path(__file__).resolve().parent
WORKERS = HERE / "workers"
QUIET_LOAD = 1.5  # processes that want a core; above this a run begins with a warning


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", choices=PROFILES, default="full")
    parser.add_argument("--measures", default=",".join(MEASURES), help="some of them, in the order to run")
    parser.add_argument("--only", default="", help="jobs whose key contains one of these, such as yacht,gpflow")
    parser.add_argument("--repeats", type=int, default=100, help="at most this many; leave it out later to go on")
    parser.add_argument("--keep", action="store_true", help="do not run again what results/peers.parquet has")
    parser.add_argument("--retry", action="store_true", help="run again what failed, or was not alone on its cores")
    parser.add_argument(
        "--again",
        action="store_true",
        help="run again all chosen jobs, after a change of the library: whole groups, with --only",
    )
    parser.add_argument("--venvs", default=os.environ.get("PEERS_VENVS", str(HERE / ".venvs")))
    parser.add_argument("--work", default=os.environ.get("PEERS_WORK", str(HERE / ".work")), help="for scratch files")
    beside = HERE.parents[2] / "shared" / "data"
    data_dir = os.environ.get("INTEGRAND_DATA") or (str(beside) if beside.is_dir() else None)
    parser.add_argument("--data-dir", default=data_dir, help="with the data sets (INTEGRAND_DATA)")
    parser.add_argument("--out", default="", help="for the table of rows and the page, in place of the published ones")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--collect", action="store_true")
    return parser.parse_args(arguments)


class Places(NamedTuple):
    """Where rows and pages are."""

    scratch: Path  # arrays of jobs
    rows: Path  # one JSON file per job of this clone
    table: Path  # rows of this clone and those that were there before
    page: Path  # folder of peers.md


def places(arguments: argparse.Namespace) -> Places:
    work = Path(arguments.work) / arguments.profile
    if arguments.out or arguments.profile != "full":
        out = Path(arguments.out or work)
        return Places(work / "scratch", work / "rows", out / "peers.parquet", out)
    return Places(work / "scratch", work / "rows", TABLES / "peers.parquet", HERE.parents[1] / "docs" / "evidence")


def wanted(arguments: argparse.Namespace) -> list[Job]:
    parts = [p for p in arguments.only.split(",") if p]
    every = plan.jobs(PROFILES[arguments.profile], arguments.measures.split(","))
    return [job for job in every if job.repeat < arguments.repeats and (not parts or any(p in job.key for p in parts))]


# ---- one job


def interpreter(job: Job, venvs: Path) -> list[str]:
    contestant = CONTESTANTS[job.contestant]
    own = contestant.environment == OURS
    python = sys.executable if own else str(venvs / contestant.environment / "bin" / "python")
    return [python, str(WORKERS / contestant.worker)]


def run_job(job: Job, arguments: argparse.Namespace, scratch: Path) -> tuple[Row, Path, Path]:
    """Run a job in its environment: its row, and the files with the arrays of the problem and of the result."""
    problem = problem_file(job.problem, Path(arguments.work) / "problems", arguments.data_dir)
    variables = environment(job.threads, Path(arguments.work).resolve() / "caches", job.keeps)
    if CONTESTANTS[job.contestant].environment != OURS:
        variables["PYTHONPATH"] = ""  # a peer must not see the packages of this environment
    record = job.record() | {"problem": str(problem.resolve())}
    command = interpreter(job, Path(arguments.venvs))
    if not shutil.which(command[0]):
        row = {"status": "failed", "reason": "its environment is missing", "result": {}}
        return row, problem, scratch / "none.npz"
    row, arrays = run_child(command, record, scratch, variables)
    return row, problem, arrays


def run_one(job: Job, arguments: argparse.Namespace, scratch: Path, rows: Path) -> Row:
    """Run a job and write its row. Its arrays stay among the scratch files."""
    row, problem, arrays = run_job(job, arguments, scratch / job.key)
    if row["status"] == "done":
        try:
            row["judged"] = judge(job.task, problem, arrays, row["result"])
        except Exception as error:  # the result is broken, and the row says why
            row |= {"status": "failed", "reason": f"its results could not be judged: {error}"}
    row |= {"job": job.record(), "when": _now()}
    row |= {"commit": revision(HERE.parents[1]), "processor": machine().get("processor", UNKNOWN)}
    if row["status"] == "interrupted":  # no result: an earlier row stays
        return row
    write_row(rows, job, row)
    return row


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M")


# ---- all jobs


def run_all(waiting: list[Job], arguments: argparse.Namespace, scratch: Path, rows: Path) -> None:
    """Run timed jobs one after the other, and the others in parallel, one on each core."""
    numbers = {job.key: k + 1 for k, job in enumerate(waiting)}

    def run_and_print(job: Job) -> None:
        start = time.time()
        row = run_one(job, arguments, scratch, rows)
        outcome = f"{row['status']} {row['reason']}".strip()
        print(f"{numbers[job.key]}/{len(waiting)} {job.key}: {outcome}, {time.time() - start:.1f} s", flush=True)

    for timed, stretch in stretches(waiting):
        if timed:
            for job in stretch:
                run_and_print(job)
        else:
            for job in stretch:  # first, so that two jobs do not write the same problem at once
                problem_file(job.problem, Path(arguments.work) / "problems", arguments.data_dir)
            in_parallel(stretch, run_and_print)


def stretches(waiting: Iterable[Job]) -> Iterator[tuple[bool, list[Job]]]:
    """The jobs in their order, as runs of (timed, jobs)."""
    for untimed, part in groupby(waiting, key=lambda job: job.measure in UNTIMED):
        yield not untimed, list(part)


def in_parallel(waiting: Iterable[Job], run: Callable[[Job], None]) -> None:
    """Run each job on a core of its own. If one raises, or at Ctrl-C, all children end."""
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    allowed = sorted(os.sched_getaffinity(0))
    for core in allowed:
        free.put(core)

    def on_one_core(job: Job) -> None:
        if ENDING.is_set():
            return
        core = free.get()
        os.sched_setaffinity(0, {core})  # of this thread, and of the child that it starts
        try:
            run(job)
        except BaseException:
            ENDING.set()
            raise
        finally:
            free.put(core)

    with ThreadPoolExecutor(len(allowed)) as pool:
        futures = [pool.submit(on_one_core, job) for job in waiting]
        try:
            for future in as_completed(futures):
                future.result()
        finally:
            if not all(future.done() for future in futures):  # Ctrl-C, or a job that raised
                ENDING.set()
            pool.shutdown(wait=True, cancel_futures=True)
            ENDING.clear()


def warm_up(waiting: list[Job], arguments: argparse.Namespace, scratch: Path) -> None:
    """Run a small job in each environment and drop its result, so that the first timed job has no handicap."""
    for job in warm_jobs(waiting):
        row, _, _ = run_job(job, arguments, scratch / job.key)
        print(f"warm-up of {job.contestant} on {job.problem}: {row['status']} {row['reason']}".strip(), flush=True)


def _refuse_without_data(waiting: list[Job], data_dir: str | None) -> None:
    """Report a missing data set now and not after hours."""
    from experiments.datasets import load
    from integrand.errors import DataSourceError

    try:
        for dataset in sorted({job.problem.rpartition("-")[0] for job in waiting} - {"synthetic"}):
            load(dataset, data_dir)
    except DataSourceError as error:
        sys.exit(str(error))


# ---- environments


def pins(name: str) -> list[str]:
    """The pinned packages of an environment, from the script metadata (PEP 723) at the top of its worker."""
    text = (WORKERS / f"peer_{name}.py").read_text().partition("# /// script\n")[2].partition("# ///\n")[0]
    metadata = tomllib.loads("".join(line.removeprefix("#").lstrip(" ") for line in text.splitlines(keepends=True)))
    return metadata["dependencies"]


def install(venvs: Path) -> list[str]:
    """Make the environments that are missing, unfinished or have other pins; the names of those that failed."""
    failed = []
    for name in ENVIRONMENTS:
        packages, python = pins(name), venvs / name / "bin" / "python"
        stamp, pinned = venvs / name / ".installed", "\n".join(packages)
        # The stamp is written last: an environment without it was interrupted.
        if python.exists() and stamp.exists() and stamp.read_text() == pinned:
            continue
        print(f"making the environment of {name}", flush=True)
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(venvs / name)], check=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *packages], check=True)
            stamp.write_text(pinned)
        except (subprocess.CalledProcessError, OSError) as error:
            code = getattr(error, "returncode", type(error).__name__)
            print(f"the environment of {name} could not be made ({code}): see the output above", file=sys.stderr)
            failed.append(name)
    return failed


# ---- the command


def collect(paths: Places, profile: str) -> None:
    """Add the rows of this clone to the table, and make the page from it."""
    from benchmarks.peers.page import write_page

    published = read(paths.table) if paths.table.exists() else {}
    fresh, facts = read_files(paths.rows), paths.rows.with_name("machine.json")
    note = json.loads(facts.read_text()) if facts.exists() else about(paths.table) if published else machine()
    if fresh:
        write(paths.table, {**published, **fresh}, note)
    planned = plan.jobs(PROFILES[profile])
    everything = {**published, **fresh}
    rows = counting([everything[key] for key in sorted(everything)], planned)
    write_page(rows, paths.page, profile, len(planned), note)


def main(given: Sequence[str] | None = None) -> None:
    arguments = parsed(given)
    todo, paths = wanted(arguments), places(arguments)
    if arguments.install:
        _refuse_without_data(todo, arguments.data_dir)  # before the minutes that it takes
        failed = install(Path(arguments.venvs))
        sys.exit(f"without an environment: {', '.join(failed)}" if failed else 0)
    rows = {**(read(paths.table) if arguments.keep and paths.table.exists() else {}), **read_files(paths.rows)}
    processor = machine().get("processor", UNKNOWN)
    waiting = pending(todo, plan.jobs(PROFILES[arguments.profile]), rows, processor, arguments.retry, arguments.again)
    if arguments.list:
        for job in todo:
            print(f"{'waits' if job in waiting else 'done':5} {job.key}")
        print(f"{len(waiting)} of {len(todo)} jobs wait")
        return
    if not arguments.collect and waiting:
        _refuse_without_data(waiting, arguments.data_dir)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        if (load := os.getloadavg()[0]) > QUIET_LOAD:
            print(f"the machine is busy (load {load:.1f}): times will not mean much", file=sys.stderr, flush=True)
        paths.rows.mkdir(parents=True, exist_ok=True)
        paths.rows.with_name("machine.json").write_text(json.dumps(machine()))
        warm_up(waiting, arguments, paths.scratch)
        run_all(waiting, arguments, paths.scratch, paths.rows)
    collect(paths, arguments.profile)


if __name__ == "__main__":
    main()
