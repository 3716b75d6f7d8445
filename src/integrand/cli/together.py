"""`--distributed`: a process that joins others, and one that watches over it and has the last word.

JAX ends a process on the spot when its coordinator is lost, from a thread of its own, with a stack trace. So the
command runs in a child, and its parent turns such an end into a sentence and an exit code.
"""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import typer

from integrand.distributed.ranks import Ranks, join

_CHILD = "INTEGRAND_SUPERVISED"
LOST = 4  # exit code of a process that others have left alone


@dataclass(frozen=True)
class Joining:
    """How to join, from flags; None is for the environment or the cluster manager to say."""

    coordinator: str | None
    processes: int | None
    rank: int | None
    timeout: float

    def ranks(self) -> Ranks:
        """Join the others."""
        return join(self.coordinator, self.processes, self.rank, timeout=self.timeout)


def supervised() -> None:
    """In a process that was started by hand, start the one that does the work, and end as it ends."""
    if os.environ.get(_CHILD):
        _keep_stdout_clean()
        return
    # What C++ logs below errors is not for users; JAX, once imported, has set the level to 1.
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")
    environment = os.environ | {_CHILD: "1", "TF_CPP_MIN_LOG_LEVEL": "2" if level == "1" else level}
    child = subprocess.Popen([sys.executable, "-m", "integrand.cli", *sys.argv[1:]], env=environment)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: child.send_signal(number))
    code = child.wait()
    if code in (-signal.SIGABRT, -signal.SIGSEGV):
        print(
            "integrand: rank 0 was lost, or could not be joined at its address, so this process stops. What was drawn "
            "is in the run directory of rank 0, if there is one: go on with `integrand resume`, with any number of "
            "processes",
            file=sys.stderr,
        )
        raise typer.Exit(LOST)
    raise typer.Exit(code if code >= 0 else 128 - code)


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
