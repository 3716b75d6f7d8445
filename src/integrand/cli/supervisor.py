"""`--distributed`: a process that joins others, and its parent, which supervises it and reports how it ended.

JAX ends a process on the spot when its coordinator is lost, from a thread of its own, with a stack trace. So the
command runs in a child, and its parent turns such an end into a sentence and an exit code.
"""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from integrand.data.processes import Processes, SingleProcess, join
from integrand.files import check_output

_CHILD = "INTEGRAND_SUPERVISED"


LOST = 4  # exit code of a process that others have left alone


@dataclass(frozen=True)
class Joining:
    """How to join, from flags; None is for the environment or the cluster manager to say."""

    coordinator: str | None
    processes: int | None
    rank: int | None
    timeout: float

    def join(self) -> Processes:
        """Join the others."""
        return join(self.coordinator, self.processes, self.rank, timeout=self.timeout)


def joined(out: Path | None, joining: Joining | None) -> Processes:
    """Join the others, if there are to be any; the process that will write checks the place of the result."""
    if joining is None:
        if out is not None:
            check_output(out)
        return SingleProcess()
    _supervised()
    processes = joining.join()
    processes.on_leader(lambda: None if out is None else check_output(out))
    if not processes.is_leader:
        signal.signal(signal.SIGINT, _leave_it_to_rank_0)
    return processes


def _leave_it_to_rank_0(number: int, frame: Any) -> None:
    """The first Ctrl-C: where it was pressed for all, rank 0 ends the fit with what it has, and needs the others."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("integrand: rank 0 ends the fit; press Ctrl-C once more to end this process alone", file=sys.stderr)


def _supervised() -> None:
    """In a process that was started by hand, start the one that does the work, and end as it ends."""
    lifeline = os.environ.get(_CHILD)
    if lifeline:
        threading.Thread(target=_end_with, args=(int(lifeline),), daemon=True).start()
        _keep_stdout_clean()
        return
    # What C++ logs below errors is not for users; JAX, once imported, has set the level to 1.
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")
    theirs, mine = os.pipe()
    environment = os.environ | {_CHILD: str(theirs), "TF_CPP_MIN_LOG_LEVEL": "2" if level == "1" else level}
    # A group of its own: Ctrl-C in a terminal then comes once, from here.
    command = [sys.executable, "-m", "integrand.cli", *sys.argv[1:]]
    child = subprocess.Popen(command, env=environment, pass_fds=(theirs,), process_group=0)
    os.close(theirs)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: child.send_signal(number))
    code = child.wait()
    os.close(mine)
    if code in (-signal.SIGABRT, -signal.SIGSEGV):
        print(
            "integrand: rank 0 was lost, or could not be joined at its address, so this process stops. What was drawn "
            "is in the run directory of rank 0, if there is one: go on with `integrand resume`, with any number of "
            "processes",
            file=sys.stderr,
        )
        raise typer.Exit(LOST)
    raise typer.Exit(code if code >= 0 else 128 - code)


def _end_with(lifeline: int) -> None:
    """End when the supervising process does, in whatever way: its end of the pipe is then closed."""
    os.read(lifeline, 1)
    os._exit(128 + signal.SIGKILL)


def leave(code: int) -> None:
    """End this process now: after a loss, threads wait for collectives that never come."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _keep_stdout_clean() -> None:
    """What libraries print from C++ (Gloo greets its peers) goes nowhere: standard output is for the result."""
    own = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    sys.stdout = os.fdopen(own, "w", buffering=1)
