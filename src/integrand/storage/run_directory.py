"""Run directories: where a fit keeps its state, so that a kill at any moment loses nothing already written.

A run directory holds ``run.json`` (what run this is), ``run.lock`` (held by the one process that writes) and one
``<name>.npz`` per saved state, which ``numpy.load`` reads too. A file is replaced as a whole or not at all.
"""

import contextlib
import fcntl
import hashlib
import io
import json
import os
import re
import weakref
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self, final

import numpy as np

from integrand.errors import InputError, RunDirectoryError
from integrand.files import atomic_write
from integrand.version import __version__

FORMAT = 1
RUN, LOCK = "run.json", "run.lock"
META, CHECKSUM = "meta.json", "sha256"  # members of an .npz beside those of its arrays, which end in .npy
KINDS = "biufcSU"  # booleans, numbers and fixed-width text: what a file holds without pickle
_NAME = re.compile(r"[a-z0-9_-]+")
_LEFTOVER = re.compile(r"[a-z0-9_-]+\.(npz|json)\.tmp.*")


@final
class RunDirectory(contextlib.AbstractContextManager):
    """The files of one run, open for one writer. Made by `create` or `open`; closed by `close` or a ``with`` block."""

    def __init__(self, path: Path, lock: BinaryIO, header: str):
        self._path, self._lock, self._header = path, lock, header
        _OPEN.add(self)

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: Mapping[str, Any]) -> Self:
        """Start a run in a directory that does not exist yet or is empty; `header` is what JSON can hold."""
        path, text = Path(path).absolute(), _json(header, "the header of a run")
        with _explained("create the run directory", path):
            path.mkdir(parents=True, exist_ok=True)
            # A creation that was killed leaves its lock file and perhaps a temporary one: as good as empty.
            held = sorted(name for name in os.listdir(path) if name != LOCK and not _LEFTOVER.fullmatch(name))
        if held and RUN not in held:
            raise RunDirectoryError(f"{path} is not empty but holds no run ({held[0]!r}): choose another directory")
        with _explained("write", path / RUN), contextlib.ExitStack() as undo:
            lock = undo.enter_context(_lock(path))
            if (path / RUN).exists():
                raise RunDirectoryError(f"{path} already holds a run: resume it, or choose another directory")
            library = __version__
            record = {"format": FORMAT, "library": library, "header": json.loads(text)}
            content = json.dumps({**record, CHECKSUM: _checksum(record)}, indent=1).encode()
            atomic_write(path / RUN, lambda stream: stream.write(content))
            undo.pop_all()  # from here on the lock is the run's
        return cls(path, lock, text)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open an existing run, to resume it."""
        path = Path(path).absolute()
        with _explained("read", path / RUN), contextlib.ExitStack() as undo:
            if not (path / RUN).exists():
                raise RunDirectoryError(f"{path} holds no run ({RUN} is missing): check the path, or start a new run")
            lock = undo.enter_context(_lock(path))
            header = _read_header(path)
            undo.pop_all()
        return cls(path, lock, header)

    @property
    def path(self) -> Path:
        """The directory, as an absolute path."""
        return self._path

    @property
    def header(self) -> dict[str, Any]:
        """A copy of what `create` was given, as JSON returns it (tuples are lists, keys are strings)."""
        return json.loads(self._header)

    def save(self, name: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None) -> None:
        """Write ``<name>.npz``, replacing the previous one as a whole; if that fails, the previous one is intact."""
        path, text = self._file(name), _json({} if meta is None else meta, f"the meta of {name!r}")
        if self._lock.closed:
            raise RunDirectoryError(f"{self._path} is closed in this process: open the run again to write to it")
        with _explained("write", path):
            atomic_write(path, lambda stream: _write_npz(stream, arrays, text.encode()))

    def remove(self, name: str) -> None:
        """Take back what was saved as `name`, if anything was."""
        if self._lock.closed:
            raise RunDirectoryError(f"{self._path} is closed in this process: open the run again to write to it")
        with _explained("write", path := self._file(name)):
            path.unlink(missing_ok=True)

    def load(self, name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and meta of `name` as they were saved: every byte of them is checked."""
        path = self._file(name)
        if not path.exists():
            raise RunDirectoryError(f"{self._path} has no saved {name!r}; it has {', '.join(self.names()) or 'none'}")
        with _explained("read", path):
            content = path.read_bytes()
        try:
            return _read_npz(content)
        except MemoryError:  # no size that the file claims is allocated: the machine's failure, not the file's
            raise
        except Exception as error:  # zipfile fails in many ways on bytes that nobody wrote
            advice = "delete that file and resume the run; that step is then done again"
            raise RunDirectoryError(f"{path} is damaged ({type(error).__name__}: {error}): {advice}") from error

    def has(self, name: str) -> bool:
        """Whether `name` was saved."""
        return self._file(name).is_file()

    def names(self) -> list[str]:
        """All that was saved, sorted."""
        return sorted(file.stem for file in self._path.glob("*.npz") if _NAME.fullmatch(file.stem))

    def close(self) -> None:
        """Let another writer in."""
        self._lock.close()  # no explicit unlock: after a fork, that would free the parent's lock too

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _file(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} cannot name a saved state: use lower-case letters, digits, '_' and '-'")
        return self._path / f"{name}.npz"


# A forked child would share the lock and keep it after its parent's death: it starts with every run closed.
_OPEN: "weakref.WeakSet[RunDirectory]" = weakref.WeakSet()


os.register_at_fork(after_in_child=lambda: [run.close() for run in _OPEN])


@contextlib.contextmanager
def _explained(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = "make room or make it writable, or choose another directory"
        raise RunDirectoryError(f"cannot {action} {path}: {error.strerror or error}; {advice}") from error


def _lock(path: Path) -> BinaryIO:
    """The lock file, locked until it is closed or this process dies, our pid in it; then removes killed writes."""
    with _explained("lock", path / LOCK), contextlib.ExitStack() as undo:
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        lock = undo.enter_context(os.fdopen(descriptor, "r+b", buffering=0))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = lock.read(20).decode(errors="replace").strip() or "unknown"
            whom = "this process" if pid == str(os.getpid()) else "another process"
            raise RunDirectoryError(f"{path} is being written by {whom} (pid {pid}): wait for it or stop it") from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n".encode())
        for name in filter(_LEFTOVER.fullmatch, os.listdir(path)):
            os.unlink(path / name)
        undo.pop_all()
    return lock


def _read_header(path: Path) -> str:
    damaged = f"{path / RUN} is damaged or was edited: restore it from a copy, or start a new run in another directory"
    try:
        record = dict(json.loads((path / RUN).read_bytes()))
    except (ValueError, TypeError, RecursionError) as error:
        raise RunDirectoryError(damaged) from error
    version, checksum = record.get("format"), record.pop(CHECKSUM, None)
    if isinstance(version, int) and version > FORMAT:
        raise RunDirectoryError(f"{path} is of format {version}, newer than this integrand: upgrade it to resume")
    if version != FORMAT or checksum != _checksum(record):
        raise RunDirectoryError(damaged)
    return json.dumps(record["header"])


def _json(value: Mapping[str, Any], what: str) -> str:
    try:
        return json.dumps(dict(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{what} must be what JSON can hold: {error}; convert it to numbers, text, lists") from error


def _checksum(record: dict[str, Any]) -> str:
    """SHA-256 over names and values: JSON values as they are, bytes through their own SHA-256."""
    text = json.dumps(record, sort_keys=True, default=lambda part: hashlib.sha256(part).hexdigest())
    return hashlib.sha256(text.encode()).hexdigest()


def _npy(name: str, array: np.ndarray) -> bytes:
    array = np.asarray(array)
    if array.dtype.kind not in KINDS or array.dtype.isbuiltin == 2 or not (name and name.isprintable()):
        raise InputError(f"array {name!r} ({array.dtype}) cannot be saved: use numbers or text under a printable name")
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def _array(member: bytes) -> np.ndarray:
    """What `_npy` wrote. Unlike ``numpy.load``, allocates no more than the member holds, whatever its header says."""
    stream = io.BytesIO(member)
    np.lib.format.read_magic(stream)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.kind not in KINDS:
        raise ValueError(f"an array of dtype {dtype}")
    return np.ndarray(shape, dtype, member, stream.tell(), order="F" if fortran else "C").copy()


def _write_npz(stream: BinaryIO, arrays: Mapping[str, np.ndarray], meta: bytes) -> None:
    # Hashed and written from one copy, so that an array which changes meanwhile does no harm.
    members = {f"{name}.npy": _npy(name, array) for name, array in arrays.items()} | {META: meta}
    with zipfile.ZipFile(stream, "w") as archive:  # stored, not compressed: draws are noise
        for name, member in members.items():
            archive.writestr(zipfile.ZipInfo(name), member)
        archive.writestr(zipfile.ZipInfo(CHECKSUM), _checksum(members))


def _read_npz(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Check everything, then parse; any exception means that `content` is not what `_write_npz` wrote."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        infos = archive.infolist()
        if any(info.compress_type for info in infos) or sum(info.file_size for info in infos) > len(content):
            raise ValueError("its parts are larger than the whole")
        members = {info.filename: archive.read(info) for info in infos}
    if members.pop(CHECKSUM, b"").decode() != _checksum(members):
        raise ValueError("its checksum does not match")
    meta = json.loads(members.pop(META))
    return {name.removesuffix(".npy"): _array(member) for name, member in members.items()}, meta
