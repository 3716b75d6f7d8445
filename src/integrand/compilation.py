"""Compiled programs and their threads: XLA options, a cache in memory and on disk, and freeing what is not needed.

**Threads.** Small matrices and thread pools do not mix, so chains run in parallel instead, each on one thread. XLA's
own pool is switched off per compiled function. OpenBLAS, which JAX calls for factorisations, is held to one thread in a
scope. Nothing is changed for the user's process afterwards.

**Cache.** A fit in a new process loads what an earlier one has compiled. A file is named by a hash of the program as
XLA gets it, the compiler's options, the versions of JAX and the processor, so a program that does not fit is never
loaded. Files lie in `INTEGRAND_CACHE` (`off`: none are written or read), or else in the user's directory for caches.
A file that is damaged or missing costs the time of compiling, never a fit. Where JAX's own cache is switched on
(`JAX_COMPILATION_CACHE_DIR`), it keeps these programs too, and no files are written here: a program that came from that
cache cannot be written again.

**Freeing.** Linux allows a process a number of memory maps (65 530 by default), and every program that XLA compiles for
the CPU takes a few. A process that fits data of many shapes, such as a long search over models, would otherwise be
ended by the system after a few hundred fits, inside the compiler.
"""

import contextlib
import functools
import gc
import hashlib
import math
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize
from threadpoolctl import threadpool_limits

# Above this many multiplications for one value and gradient, threads go inside its products; else chains share them.
LARGE = 2e10
# The environment variable that names the cache directory, and its value for none.
_VARIABLE, _OFF = "INTEGRAND_CACHE", "off"
_SUFFIX, _UNFINISHED = ".program", ".part"
_DAY_SECONDS = 86400.0
# A program is some hundreds of kB. When there are more files than this, those used longest ago are removed.
_MAX_FILES = 1000
_MAPS, _MAPS_LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")

# ---- threads

_blas_lock = threading.Lock()
_blas_depth = 0
_blas_limits: threadpool_limits | None = None


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parallel_calls(short: bool) -> int:
    """How many calls of a program on one thread to run at the same time.

    A core idles while a short call passes from thread to thread. A second call for each core fills that gap.
    """
    cores = available_cores()
    return 2 * cores if short and cores > 1 else cores


def compiler_options(threads: int) -> dict[str, bool | int]:
    """XLA options for a function that shall run on one thread, or on as many as there are.

    Wide vectors are for the exponentials, where the processor has them. They change nothing elsewhere.
    """
    return {"xla_cpu_multi_thread_eigen": threads != 1, "xla_cpu_prefer_vector_width": 512}


def _options_for(threads: int) -> dict[str, bool | int]:
    """The same for the programs of targets.

    A program on one thread is small: LLVM's first level of optimisation compiles it sooner, and it runs as fast.
    """
    return compiler_options(threads) | ({"xla_backend_optimization_level": 1} if threads == 1 else {})


@contextlib.contextmanager
def one_blas_thread(wanted: bool = True):
    """Hold BLAS to one thread until the last of all such scopes, in whatever threads, has ended.

    The limit belongs to the process: if each scope restored the limit it met, overlapping ones would leave it changed.
    """
    global _blas_depth, _blas_limits
    if not wanted:
        yield
        return
    with _blas_lock:
        _blas_depth += 1
        if _blas_depth == 1:
            _blas_limits = threadpool_limits(limits=1, user_api="blas")
    try:
        yield
    finally:
        with _blas_lock:
            _blas_depth -= 1
            if _blas_depth == 0 and _blas_limits is not None:
                _blas_limits.restore_original_limits()
                _blas_limits = None


# ---- programs in memory

# How often each program has been traced, and when first calls began and ended: a second fit must not add to them.
trace_counts: dict[str, int] = {"collapsed": 0, "factored": 0, "factored each": 0, "exact": 0, "exact value": 0}
_first_calls: list[tuple[float, float]] = []

_programs_lock = threading.Lock()
_compiling: dict[Any, threading.Lock] = {}
_programs: dict[Any, Callable] = {}


@functools.cache
def jitted(function: Callable, static: tuple[str, ...], threads: int) -> Any:
    """`function`, jitted once for this number of threads (1, or 0 for all)."""
    return jax.jit(function, static_argnames=static, compiler_options=_options_for(threads))


def timed(program: Callable, *args: Any, **static: Any) -> Any:
    """Call a program, and record the seconds if this call had to trace it first."""
    before, began = sum(trace_counts.values()), time.monotonic()
    out = program(*args, **static)
    if sum(trace_counts.values()) > before:
        _first_calls.append((began, time.monotonic()))
    return out


def compile_seconds() -> float:
    """Seconds in which calls of this process traced a program, almost all of it compiling; overlaps count once."""
    total, until = 0.0, -math.inf
    for began, ended in sorted(_first_calls):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


def program_for(function: Callable, threads: int, arguments: tuple[Any, ...], static: dict[str, Any]) -> Callable:
    """The compiled program of `function` for arguments of these shapes; threads that ask at the same time share one."""
    leaves, tree = jax.tree.flatten(arguments)
    shapes = tuple((np.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves)
    key = (function, threads, tuple(static.items()), tree, shapes)
    with _programs_lock:
        compiling = _compiling.setdefault(key, threading.Lock())
    with compiling:
        program = _programs.get(key)
        if program is None:
            lowered = jitted(function, tuple(static), threads).lower(*arguments, **static)
            program = _programs[key] = _read_or_compile(lowered, threads)
        return program


# ---- programs on disk


def cache_directory() -> Path | None:
    """Where programs are cached; None for nowhere."""
    named = os.environ.get(_VARIABLE, "")
    if named:
        return None if named == _OFF else Path(named)
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "integrand"
    except RuntimeError:  # this user has no home directory
        return None


def _read_or_compile(lowered: Any, threads: int) -> Callable:
    """The program from disk, or else compiled and written."""
    of_jax = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    folder = None if of_jax else cache_directory()
    if folder is None or jax.default_backend() != "cpu" or len(jax.devices()) > 1:
        return lowered.compile()
    path = folder / (_file_name(lowered.as_text(), threads) + _SUFFIX)
    with contextlib.suppress(Exception):  # missing, unreadable or damaged
        program = deserialize_and_load(_read_own(path), lowered.in_tree, lowered.out_tree)
        os.utime(path)
        return program
    program = lowered.compile()
    with contextlib.suppress(Exception):  # a full or read-only disk, or a program that cannot be serialised
        _write(path, serialize(program)[0])
    return program


def _file_name(text: str, threads: int) -> str:
    options = f"{sorted(_options_for(threads).items())} {os.environ.get('XLA_FLAGS', '')}"
    parts = (text, options, version("jax"), version("jaxlib"), _processor())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@functools.cache
def _processor() -> str:
    """The processor's instructions: a program uses all of them."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        return "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features")))
    return platform.platform() + platform.processor()


def _read_own(path: Path) -> bytes:
    """Read a cached executable. It runs with the user's rights, so files of other users are refused."""
    with path.open("rb") as file:
        if hasattr(os, "getuid") and os.fstat(file.fileno()).st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to another user")
        return file.read()


def _write(path: Path, data: bytes) -> None:
    """Write the whole file or nothing, readable by this user alone; remove old files."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=path.parent, suffix=_UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise
    files = sorted(path.parent.glob(f"*{_SUFFIX}"), key=lambda f: f.stat().st_mtime)
    yesterday = time.time() - _DAY_SECONDS
    abandoned = [f for f in path.parent.glob(f"*{_UNFINISHED}") if f.stat().st_mtime < yesterday]  # by a killed process
    for old in files[: max(0, len(files) - _MAX_FILES)] + abandoned:
        old.unlink(missing_ok=True)


# ---- freeing programs


def maps_in_use() -> int:
    """Memory maps of this process; 0 where the system does not say."""
    try:
        with open(_MAPS, "rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


def max_maps() -> int:
    """How many the system allows; 0 where it does not say."""
    try:
        return int(_MAPS_LIMIT.read_text())
    except (OSError, ValueError):
        return 0


def clear_unused_programs(share: float = 0.5) -> bool:
    """Free compiled programs if they take more than this share of the maps allowed; whether that was done.

    All programs of the process go, those of other code that uses JAX among them: JAX frees them only together.
    A program that is needed again is compiled again. Results do not change.
    """
    if maps_in_use() <= share * max_maps():
        return False
    jax.clear_caches()
    _programs.clear()
    gc.collect()
    return True
