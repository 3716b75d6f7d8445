"""Files appear as a whole, or not at all."""

import contextlib
import os

import pytest

from integrand.files import atomic_write, replacing


def test_an_interrupt_while_writing_leaves_the_previous_file(tmp_path):
    path = tmp_path / "file"
    atomic_write(path, lambda stream: stream.write(b"first"))

    def interrupted(stream):
        stream.write(b"sec")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write(path, interrupted)
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


def test_a_path_beside_takes_the_place_when_the_block_ends(tmp_path):
    path = tmp_path / "file"
    path.write_text("first")
    with replacing(path) as temporary:
        temporary.write_text("second")
        assert path.read_text() == "first"
    assert path.read_text() == "second"
    with contextlib.suppress(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text("third")
        _ = 1 / 0
    assert path.read_text() == "second"
    assert os.listdir(tmp_path) == ["file"]
