"""Was a job alone on its cores?"""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Other processes that keep more than this many of a job's cores busy are in its way.
BUSY_CORES = 0.25


class Neighbours:
    """Who else was at work on some cores since this began: all that kept them busy, less this process's children.

    The system's load cannot tell: a benchmark's own jobs are most of it.
    """

    def __init__(self, cores: Iterable[int], stat: Path = Path("/proc/stat")):
        self.cores, self.stat = set(cores), stat
        self.began, self.busy, self.own = time.time(), self._busy(), self._own()

    def count(self) -> float | None:
        """Cores that others used, on average; None where the system does not say."""
        busy, seconds = self._busy(), time.time() - self.began
        if self.busy is None or busy is None or seconds <= 0.0:
            return None
        return max(0.0, (busy - self.busy - (self._own() - self.own)) / seconds)

    def _busy(self) -> float | None:
        """Seconds of all kinds but idle and waiting, of the cores."""
        try:
            lines = [line.split() for line in self.stat.read_text().splitlines()]
        except OSError:
            return None
        wanted = {f"cpu{k}" for k in self.cores}
        ticks = [[int(n) for n in words[1:9]] for words in lines if words and words[0] in wanted]
        return sum(sum(t) - t[3] - t[4] for t in ticks) / os.sysconf("SC_CLK_TCK") if ticks else None

    def _own(self) -> float:
        """Seconds of children that have ended, and of theirs."""
        times = os.times()
        return times.children_user + times.children_system


def is_busy(row: dict[str, Any]) -> bool:
    """Whether other processes were in the way of this job."""
    return (row.get("others") or 0.0) > BUSY_CORES
