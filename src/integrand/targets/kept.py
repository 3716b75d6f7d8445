"""Compiled programs, kept in memory and on disk: a fit in a new process finds what an earlier one has compiled.

A file is named by a hash of the program as XLA gets it, the compiler's options, the versions of JAX and the processor,
so that what does not fit is not found. Files lie in `INTEGRAND_CACHE` (`off`: none are written or read), or else in the
user's directory for caches. Whatever is wrong with one costs the time of compiling, never a fit.
"""

import contextlib
import hashlib
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from integrand.room import on_make_room
from integrand.targets.program import compiled, options_for

_VARIABLE, _OFF = "INTEGRAND_CACHE", "off"
_SUFFIX, _PART = ".program", ".part"
_DAY = 86400.0  # in seconds
# A program is some hundreds of kB; when there are more files than this, those that were used longest ago go.
_MOST_FILES = 1000

_lock = threading.Lock()
_gates: dict[Any, threading.Lock] = {}
_programs: dict[Any, Callable] = {}
on_make_room(_programs.clear)


def directory() -> Path | None:
    """Where programs are kept; None for nowhere."""
    named = os.environ.get(_VARIABLE, "")
    if named:
        return None if named == _OFF else Path(named)
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "integrand"
    except RuntimeError:  # nobody's home
        return None


def ready(function: Callable, threads: int, arguments: tuple[Any, ...], static: dict[str, Any]) -> Callable:
    """The program of `function` for such arguments, to be called with them alone; made once by whoever comes first."""
    leaves, tree = jax.tree.flatten(arguments)
    shapes = tuple((np.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves)
    key = (function, threads, tuple(static.items()), tree, shapes)
    with _lock:
        gate = _gates.setdefault(key, threading.Lock())
    with gate:
        program = _programs.get(key)
        if program is None:
            lowered = compiled(function, tuple(static), threads).lower(*arguments, **static)
            program = _programs[key] = _read_or_compile(lowered, threads)
        return program


def _read_or_compile(lowered: Any, threads: int) -> Callable:
    """From disk if it is there, else compiled and written."""
    place = directory()
    if place is None or jax.default_backend() != "cpu" or len(jax.devices()) > 1:
        return lowered.compile()
    path = place / (_name(lowered.as_text(), threads) + _SUFFIX)
    with contextlib.suppress(Exception):  # not there, not readable, cut short: all the same
        program = deserialize_and_load(_own_bytes(path), lowered.in_tree, lowered.out_tree)
        os.utime(path)
        return program
    program = lowered.compile()
    with contextlib.suppress(Exception):  # no room, no right to write, or nothing that can be written
        _write(path, serialize(program)[0])
    return program


def _name(text: str, threads: int) -> str:
    told = f"{sorted(options_for(threads).items())} {os.environ.get('XLA_FLAGS', '')}"
    parts = (text, told, version("jax"), version("jaxlib"), _processor())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@cache
def _processor() -> str:
    """What the machine's instructions are: a program uses all that there are."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        return "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features")))
    return platform.platform() + platform.processor()


def _own_bytes(path: Path) -> bytes:
    """What this user has written: whoever writes a program is obeyed."""
    with path.open("rb") as file:
        if hasattr(os, "getuid") and os.fstat(file.fileno()).st_uid != os.getuid():
            raise PermissionError(f"{path} is another user's")
        return file.read()


def _write(path: Path, data: bytes) -> None:
    """All or nothing, for this user alone; with what is old removed."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, suffix=_PART)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
    files = sorted(path.parent.glob(f"*{_SUFFIX}"), key=lambda f: f.stat().st_mtime)
    left = [f for f in path.parent.glob(f"*{_PART}") if f.stat().st_mtime < time.time() - _DAY]  # by a kill
    for old in files[: max(0, len(files) - _MOST_FILES)] + left:
        old.unlink(missing_ok=True)
