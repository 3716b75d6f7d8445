"""Files that appear as a whole, or not at all."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO


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
