"""The results of a suite while it runs: one JSON file per task, and claims that share the work.

A claim is a file that says which process does a task, so that several processes or machines can run the same suite.
"""

import contextlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.suites import Arm
from integrand.errors import InputError
from integrand.files import atomic_write

# A running process touches its claims every minute. After ten minutes without a touch the process is taken for dead,
# also on another machine, where its number cannot be looked up.
_STALE_SECONDS, _TOUCH_SECONDS = 600.0, 60.0


@dataclass(frozen=True)
class Task:
    """One fit of one split."""

    kind: str
    protocol: str
    dataset: str
    arm: Arm
    split: int
    fresh: bool = False

    @property
    def key(self) -> str:
        """Name of its result. Timed fits have a folder of their own: others may have shared the machine."""
        protocol = f"{self.protocol}-timed" if self.fresh else self.protocol
        return f"{protocol}/{self.dataset}/{self.arm.key}/split-{self.split}"

    @property
    def path(self) -> Path:
        """File of its result, relative to the store."""
        return Path(f"{self.key}.json")

    def __str__(self) -> str:
        return f"{self.dataset}, {self.arm.name}, split {self.split}"


@dataclass(frozen=True)
class Store:
    """A directory of results, and perhaps results of a table (`packed`). A file comes before a row of the table."""

    root: Path
    packed: Mapping[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    def result(self, task: Task) -> dict[str, Any] | None:
        """The result of a finished task, or None."""
        path = self.root / task.path
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return self.packed.get(task.key)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read as a result: {error}. Delete it to have it made again") from error

    def done(self, task: Task) -> bool:
        """Whether the task has a result. A fit without draws has to run again if the task now has more minutes."""
        try:
            result = self.result(task)
        except InputError:  # raised when somebody needs the result
            return True
        if result is None:
            return False
        limit = result.get("made", {}).get("settings", {}).get("max_minutes", math.inf)
        return not (undrawn(result) and task.arm.settings.get("max_minutes", math.inf) > limit)

    def keep(self, task: Task, result: dict[str, Any]) -> None:
        """Write a result, as a whole or not at all."""
        path = self.root / task.path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result, indent=1, allow_nan=False) + "\n"
        atomic_write(path, lambda stream: stream.write(text.encode()))

    @contextlib.contextmanager
    def claim(self, task: Task) -> Iterator[bool]:
        """Claim a task and release it at the end; False if another process has it or it is done."""
        path = (self.root / task.path).with_suffix(".claim")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _take(path):
            yield False
            return
        ended = threading.Event()
        keeper = threading.Thread(target=_touch, args=(path, ended), daemon=True)
        keeper.start()
        try:
            yield not self.done(task)  # another process may have finished it before the claim
        finally:
            ended.set()
            keeper.join()
            with contextlib.suppress(FileNotFoundError):
                if path.read_text() == _owner():  # another process may have taken the claim for stale
                    path.unlink()


def undrawn(result: dict[str, Any]) -> bool:
    """Whether the time limit ended a fit before its first draw: its result is then the starting point."""
    return "no-draws" in (result.get("verdict") or {"codes": ()})["codes"]


def _owner() -> str:
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid()})


def _take(path: Path) -> bool:
    for _ in range(2):
        try:
            with open(path, "x") as file:
                file.write(_owner())
            return True
        except FileExistsError:
            if not _abandoned(path):
                return False
            path.unlink(missing_ok=True)
    return False


def _abandoned(path: Path) -> bool:
    try:
        age, text = time.time() - path.stat().st_mtime, path.read_text()
    except FileNotFoundError:
        return True
    if age > _STALE_SECONDS:
        return True
    try:
        owner = json.loads(text)
        if owner["host"] != socket.gethostname():
            return False
        os.kill(owner["pid"], 0)
    except (ValueError, KeyError):
        return age > 5.0  # its process was killed while it wrote the claim
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _touch(path: Path, ended: threading.Event) -> None:
    while not ended.wait(_TOUCH_SECONDS):
        with contextlib.suppress(OSError):
            os.utime(path)
