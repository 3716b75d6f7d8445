"""Run the peer benchmarks, each job one child process and one result file; what this clone has made is not made again.

What came with the repository is, unless --keep says to run only what is missing. What was made with other settings is
missing, and so is what another processor made, unless all it is compared with was made there too: a ratio has both of
its sides on one machine.

python benchmarks/peers/run.py [--profile quick] [--measures gradient,ml2] [--only yacht] [--venvs DIR]
python benchmarks/peers/run.py --list            # what would be run, and what is there
python benchmarks/peers/run.py --install         # make the environments
python benchmarks/peers/run.py --collect         # write the tables from what is there, run nothing
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from contestants import CONTESTANTS, OURS  # noqa: E402
from install import install  # noqa: E402
from judge import judged  # noqa: E402
from launch import environment, run_child  # noqa: E402
from machine import UNKNOWN, machine, revision  # noqa: E402
from plan import MEASURES, PROFILES, Job, jobs, warm_jobs  # noqa: E402
from problems import problem_file  # noqa: E402
from results import counting, pending, write_row  # noqa: E402
from rows import read  # noqa: E402
from side_by_side import side_by_side, stretches  # noqa: E402

QUIET_LOAD = 1.5  # processes that want a core, before the benchmark's own: more and a run begins with a warning


def parsed(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", choices=PROFILES, default="full")
    parser.add_argument("--measures", default=",".join(MEASURES), help="some of them, in the order to run")
    parser.add_argument("--only", default="", help="jobs whose key contains one of these, such as yacht,gpflow")
    parser.add_argument("--repeats", type=int, default=100, help="no more than so many; go on later without it")
    parser.add_argument("--keep", action="store_true", help="do not run again what came with the repository")
    parser.add_argument("--retry", action="store_true", help="run again what failed, or was not alone on its cores")
    parser.add_argument(
        "--again",
        action="store_true",
        help="run again all that is chosen, after a change of the library: whole groups, with --only",
    )
    parser.add_argument("--venvs", default=os.environ.get("PEERS_VENVS", str(HERE / ".venvs")))
    parser.add_argument("--work", default=os.environ.get("PEERS_WORK", str(HERE / ".work")), help="for scratch files")
    beside = HERE.parents[2] / "shared" / "data"
    data_dir = os.environ.get("INTEGRAND_DATA") or (str(beside) if beside.is_dir() else None)
    parser.add_argument("--data-dir", default=data_dir, help="with the data sets (INTEGRAND_DATA)")
    parser.add_argument(
        "--out",
        default="",
        help="for the page, and raw/ with the results (docs/benchmarks, or below it)",
    )
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--collect", action="store_true")
    return parser.parse_args(arguments)


def wanted(arguments) -> list[Job]:
    parts = [p for p in arguments.only.split(",") if p]
    found = jobs(PROFILES[arguments.profile], arguments.measures.split(","))
    return [job for job in found if job.repeat < arguments.repeats and (not parts or any(p in job.key for p in parts))]


def interpreter(job: Job, venvs: Path) -> list[str]:
    contestant = CONTESTANTS[job.contestant]
    own = contestant.environment == OURS
    python = sys.executable if own else str(venvs / contestant.environment / "bin" / "python")
    return [python, str(HERE / "workers" / contestant.worker)]


def run_job(job: Job, arguments, scratch: Path) -> tuple[dict, Path, Path]:
    """Run a job in its environment: its row, and where the arrays of the problem and of its result are."""
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


def run_one(job: Job, arguments, work: Path, results: Path) -> dict:
    """Run a job and keep its row. Arrays stay with the scratch files."""
    row, problem, arrays = run_job(job, arguments, work / "scratch" / job.key)
    if row["status"] == "done":
        try:
            row["judged"] = judged(job.task, problem, arrays, row["result"])
        except Exception as error:  # of a broken run: the row says so
            row |= {"status": "failed", "reason": f"its results could not be judged: {error}"}
    row |= {"job": job.record(), "when": _now()}
    row |= {"commit": revision(HERE.parents[1]), "processor": machine().get("processor", UNKNOWN)}
    if row["status"] == "interrupted":  # no result, and perhaps there was a good one
        return row
    write_row(results, job, row)
    return row


def run_all(waiting: list[Job], arguments, work: Path, results: Path) -> None:
    """One job after the other where seconds are measured, else one on each core."""
    places = {job.key: k + 1 for k, job in enumerate(waiting)}

    def carry_out(job: Job) -> None:
        began = time.time()
        row = run_one(job, arguments, work, results)
        outcome = f"{row['status']} {row['reason']}".strip()
        print(f"{places[job.key]}/{len(waiting)} {job.key}: {outcome}, {time.time() - began:.1f} s", flush=True)

    for timed, stretch in stretches(waiting):
        if timed:
            for job in stretch:
                carry_out(job)
        else:
            for job in stretch:  # made before, not by two at once
                problem_file(job.problem, Path(arguments.work) / "problems", arguments.data_dir)
            side_by_side(stretch, carry_out)


def warm_up(waiting: list[Job], arguments, work: Path) -> None:
    """A small job in each environment that is about to be used, thrown away: the first to run has no handicap."""
    for job in warm_jobs(waiting):
        row, _, _ = run_job(job, arguments, work / "scratch" / job.key)
        print(f"warm-up of {job.contestant} on {job.problem}: {row['status']} {row['reason']}".strip(), flush=True)


def _refuse_without_data(waiting: list[Job], data_dir: str | None) -> None:
    """Say at once that a data set is missing, not hours later."""
    from integrand.data.sources import load
    from integrand.errors import DataSourceError

    try:
        for dataset in sorted({job.problem.rpartition("-")[0] for job in waiting} - {"synthetic"}):
            load(dataset, data_dir)
    except DataSourceError as error:
        sys.exit(str(error))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M")


def begun(work: Path) -> str:
    """When this clone began to make results; now, if it has not."""
    stamp = work / "begun"
    return stamp.read_text() if stamp.exists() else _now()


def main() -> None:
    arguments = parsed()
    work = Path(arguments.work) / arguments.profile
    if arguments.install:
        _refuse_without_data(wanted(arguments), arguments.data_dir)  # before the minutes that it takes
        failed = install(Path(arguments.venvs))
        sys.exit(f"without an environment: {', '.join(failed)}" if failed else 0)
    docs = HERE.parents[1] / "docs" / "benchmarks"
    out = Path(arguments.out or (docs if arguments.profile == "full" else docs / arguments.profile))
    results = out / "raw"  # beside the page that is made of them
    todo = wanted(arguments)
    planned = jobs(PROFILES[arguments.profile])
    since = "" if arguments.keep else begun(work)
    waiting = pending(todo, planned, results, arguments.retry, arguments.again, since)
    if arguments.list:
        for job in todo:
            print(f"{'waits' if job in waiting else 'there':5} {job.key}")
        print(f"{len(waiting)} of {len(todo)} jobs wait")
        return
    if not arguments.collect and waiting:
        _refuse_without_data(waiting, arguments.data_dir)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        if (load := os.getloadavg()[0]) > QUIET_LOAD:
            print(f"the machine is busy (load {load:.1f}): times will not mean much", file=sys.stderr, flush=True)
        work.mkdir(parents=True, exist_ok=True)
        results.mkdir(parents=True, exist_ok=True)
        if since:
            (work / "begun").write_text(since)
        (out / "machine.json").write_text(json.dumps(machine()))
        warm_up(waiting, arguments, work)
        run_all(waiting, arguments, work, results)
    from collect import collect

    collect(counting(read(results), planned), out, arguments.profile, len(planned))


if __name__ == "__main__":
    main()
