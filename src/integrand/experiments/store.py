"""Where results are kept: one file a task, and claims so that several processes or machines share the work."""

import contextlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integrand.errors import InputError
from integrand.experiments.suites import Arm
from integrand.files import atomic_write

# A claim whose file nobody has touched for so long is of a process that died, perhaps on another machine.
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
    def path(self) -> Path:
        """Its result, relative to the store. Timed fits stand apart: others may have shared the machine."""
        protocol = f"{self.protocol}-timed" if self.fresh else self.protocol
        return Path(protocol) / self.dataset / self.arm.key / f"split-{self.split}.json"

    def __str__(self) -> str:
        return f"{self.dataset}, {self.arm.name}, split {self.split}"


@dataclass(frozen=True)
class Store:
    """A directory of results."""

    root: Path

    def result(self, task: Task) -> dict[str, Any] | None:
        """What a finished task left, or None."""
        path = self.root / task.path
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read as a result: {error}. Delete it to have it made again") from error

    def done(self, task: Task) -> bool:
        """Whether its result is there, and not that of a fit without a draw that would have more minutes now."""
        if not (self.root / task.path).exists():
            return False
        try:
            result = self.result(task) or {}
        except InputError:  # whoever needs it will say so
            return True
        had = result.get("made", {}).get("settings", {}).get("max_minutes", math.inf)
        return not (undrawn(result) and task.arm.settings.get("max_minutes", math.inf) > had)

    def keep(self, task: Task, result: dict[str, Any]) -> None:
        """Write a result, as a whole or not at all."""
        path = self.root / task.path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result, indent=1, allow_nan=False) + "\n"
        atomic_write(path, lambda stream: stream.write(text.encode()))

    @contextlib.contextmanager
    def claim(self, task: Task) -> Iterator[bool]:
        """Whether this process may do the task: nobody else is at it. Given back in the end."""
        path = (self.root / task.path).with_suffix(".claim")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _take(path):
            yield False
            return
        ended = threading.Event()
        keeper = threading.Thread(target=_touch, args=(path, ended), daemon=True)
        keeper.start()
        try:
            yield not self.done(task)  # another may have finished between the look and the claim
        finally:
            ended.set()
            keeper.join()
            with contextlib.suppress(FileNotFoundError):
                if path.read_text() == _mine():  # not of one who took it for abandoned
                    path.unlink()


def undrawn(result: dict[str, Any]) -> bool:
    """Whether a sampler's time was up before its first draw, so that it gave the one point it began from."""
    return "no-draws" in (result.get("verdict") or {"codes": ()})["codes"]


def _mine() -> str:
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid()})


def _take(path: Path) -> bool:
    for _ in range(2):
        try:
            with open(path, "x") as file:
                file.write(_mine())
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
        return age > 5.0  # killed while it wrote the claim
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _touch(path: Path, ended: threading.Event) -> None:
    while not ended.wait(_TOUCH_SECONDS):
        with contextlib.suppress(OSError):
            os.utime(path)
