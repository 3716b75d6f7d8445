"""Jobs whose seconds nobody reads, several at a time: each on a core of its own."""

import os
import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import groupby

from launch import ENDING
from plan import UNTIMED, Job


def stretches(waiting: Iterable[Job]) -> Iterator[tuple[bool, list[Job]]]:
    """The same jobs in the same order, in stretches that are timed, one at a time, or not."""
    for untimed, jobs in groupby(waiting, key=lambda job: job.measure in UNTIMED):
        yield not untimed, list(jobs)


def side_by_side(waiting: Iterable[Job], carry_out: Callable[[Job], None]) -> None:
    """`carry_out` each job, as many at once as there are cores; when one breaks, or at Ctrl-C, no child goes on."""
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
            carry_out(job)
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
            if not all(future.done() for future in futures):  # Ctrl-C, or a job that broke
                ENDING.set()
            pool.shutdown(wait=True, cancel_futures=True)
            ENDING.clear()
