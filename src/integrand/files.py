"""Files that appear as a whole, or not at all.

Results as JSON can hold them.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from integrand.errors import InputError


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place when the block ends.

    A failure (``OSError``, interrupt) leaves the previous file and nothing else; a kill may leave a ``<file>.tmp*``.
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.tmp{os.urandom(4).hex()}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Replace the file `path` by what `write` puts into the stream it is given, and see to it that it is on disk."""
    with replacing(path) as temporary, open(temporary, "xb") as stream:
        write(stream)
        stream.flush()
        os.fsync(stream.fileno())
    directory = os.open(Path(path).parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def plain(value: Any) -> Any:
    """Dictionaries, lists, text and numbers only. JSON has no NaN or infinity: they become null."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_output(path: Path) -> None:
    """Refuse a place that cannot be written before hours are spent on what goes there."""
    parent = path.resolve().parent
    if path.is_dir():
        raise InputError(f"--out {path} is a directory: name a file")
    if not parent.is_dir():
        raise InputError(f"--out {path}: there is no directory {parent}")
    if not os.access(parent, os.W_OK):
        raise InputError(f"--out {path}: the directory {parent} cannot be written")
