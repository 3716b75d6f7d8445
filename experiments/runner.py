"""Run the tasks of a suite: skip those that are done, share the rest between processes, write each result at once."""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from experiments.datasets import load
from experiments.store import Store, Task
from experiments.suites import SUITES, Arm, Suite, protocol_arm
from integrand.errors import InputError, IntegrandError
from results.read import read

PUBLISHED = "paper"  # the table in results/ that the pages of docs/evidence/paper are made from

_POLL_SECONDS = 0.2
_CORES = "INTEGRAND_CORES"  # environment variable: the cores that a worker is pinned to


def tasks_of(
    suite: Suite, protocol: str, datasets: Sequence[str], arms: Sequence[str], splits: Sequence[int]
) -> list[Task]:
    """Tasks with all splits of a data set and method in a row, so that compiled programs are used again."""
    tasks = []
    for dataset in datasets:
        for arm in suite.arms:
            if arm.name in arms:
                under_protocol = protocol_arm(arm, protocol)
                tasks += [Task(suite.kind, protocol, dataset, under_protocol, k, suite.fresh) for k in splits]
    return tasks


def arm_names(suite: Suite, protocol: str) -> tuple[str, ...]:
    """The arms that a protocol has."""
    if protocol == "default":
        return tuple(arm.name for arm in suite.arms)
    if not suite.paper_arms:
        raise InputError(f"the suite {suite.name} has no schedule of the paper to follow: leave --protocol out")
    return suite.paper_arms


def named_arm(suite: Suite, wanted: str) -> str:
    """An arm by the name of its method or, where several have the same method, by its key."""
    for arm in suite.arms:
        if wanted == arm.key or (wanted == arm.method and _only(suite, arm)):
            return arm.name
    raise InputError(
        f"there is no method {wanted!r} in {suite.name}: choose from "
        + ", ".join(f"{a.method if _only(suite, a) else a.key}" for a in suite.arms)
    )


def _only(suite: Suite, arm: Arm) -> bool:
    return sum(a.method == arm.method for a in suite.arms) == 1


def work_through(tasks: Sequence[Task], store: Store, data_dir: str | None) -> None:
    """Do every task that is neither done nor claimed. One that fails leaves its traceback in the store."""
    from experiments.work import run_task

    for i, task in enumerate(tasks):
        if store.done(task):
            continue
        with store.claim(task) as mine:
            if not mine:
                continue
            start = time.perf_counter()
            try:
                result = run_task(task, data_dir)
            except Exception:
                path = (store.root / task.path).with_suffix(".failed")
                path.write_text(traceback.format_exc())
                say(f"[{i + 1}/{len(tasks)}] {task}: failed, see {path}")
                continue
            (store.root / task.path).with_suffix(".failed").unlink(missing_ok=True)
            store.keep(task, result | {"elapsed": time.perf_counter() - start})
            scores = result.get("scores") or {}
            numbers = ", ".join(
                f"{name} {scores[name]:.4g}" for name in ("rmse", "nlpd") if scores.get(name) is not None
            )
            say(f"[{i + 1}/{len(tasks)}] {task}: {numbers or 'done'} ({time.perf_counter() - start:.0f} s)")


@dataclass(frozen=True)
class Plan:
    """The tasks of a suite that a command asks for, and the places of results and data."""

    suite: str
    protocol: str
    datasets: tuple[str, ...]
    arms: tuple[str, ...]
    splits: tuple[int, ...]
    out: str
    data_dir: str | None = None
    minutes: float | None = None  # limit of a fit, in place of the suite's
    published: bool = False  # results of the published table count as done

    @property
    def tasks(self) -> list[Task]:
        """All of its tasks, done or not."""
        tasks = tasks_of(SUITES[self.suite], self.protocol, self.datasets, self.arms, self.splits)
        if self.minutes is None:
            return tasks
        limit = {"max_minutes": self.minutes}
        return [replace(task, arm=replace(task.arm, settings={**task.arm.settings, **limit})) for task in tasks]

    @cached_property
    def store(self) -> Store:
        """Where its results go."""
        return Store(Path(self.out), read(PUBLISHED) if self.published else {})

    def command(self) -> list[str]:
        """The command of a process that works through it."""
        return [sys.executable, "-m", "experiments.runner", json.dumps(asdict(self))]


def run_plan(plan: Plan, jobs: int) -> int:
    """Run with `jobs` processes, each on its share of the cores; the number of tasks without a result."""
    suite, tasks, store = SUITES[plan.suite], plan.tasks, plan.store
    if suite.kind == "regression":
        for dataset in plan.datasets:
            load(dataset, plan.data_dir)  # a missing data set is reported before anything runs
    left = [task for task in tasks if not store.done(task)]
    say(f"{plan.suite}: {len(tasks)} tasks, {len(tasks) - len(left)} done before")
    if suite.fresh:
        for task in left:
            one = replace(plan, datasets=(task.dataset,), arms=(task.arm.name,), splits=(task.split,))
            subprocess.run(one.command(), check=False)
    elif jobs == 1 or len(left) < 2:
        work_through(left, store, plan.data_dir)
    else:
        _in_parallel(plan.command(), jobs)
    return sum(not store.done(task) for task in tasks)


def _in_parallel(command: Sequence[str], jobs: int) -> None:
    """Start processes that claim tasks from the same list, each pinned to its own cores where the system allows it.

    They end with this process, also if it is terminated.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    workers, terminated = [], []
    before = signal.signal(signal.SIGTERM, lambda *_: terminated.append(True))
    try:
        for i in range(jobs):
            environment = dict(os.environ)
            if len(cores) >= jobs:
                environment[_CORES] = ",".join(map(str, cores[i::jobs]))
            workers.append(subprocess.Popen(command, env=environment))
        while any(worker.poll() is None for worker in workers):
            if terminated:
                sys.exit(128 + signal.SIGTERM)
            time.sleep(_POLL_SECONDS)
    except BaseException:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def say(text: str) -> None:
    """Print a line of progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def _worker(description: str) -> int:
    """Run a plan in a process that `run_plan` started."""
    cores = os.environ.get(_CORES)
    if cores:
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    plan = Plan(**json.loads(description))
    try:
        work_through(plan.tasks, plan.store, plan.data_dir)
    except IntegrandError as error:
        say(f"experiments: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(_worker(sys.argv[1]))
