import contextlib
import errno
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from integrand.errors import InputError, RunDirectoryError
from integrand.files import atomic_write, replacing
from integrand.storage import run_directory as storage
from integrand.storage.run_directory import RunDirectory

HEADER = {"method": "sgpr-hmc", "seed": 3, "inducing": 100, "scales": [0.1, 1e-300, float("inf")], "name": "café"}
ARRAYS = {
    "bool": np.array([[True, False], [False, True]]),
    "int8": np.arange(-3, 4, dtype=np.int8),
    "uint64": np.array([2**64 - 1], dtype=np.uint64),
    "float32": np.linspace(0, 1, 7, dtype=np.float32),
    "float64": np.array([0.1, -0.0, np.nan, np.inf, 5e-324]),
    "complex": np.array([1 + 2j]),
    "big-endian": np.arange(4, dtype=">f8"),
    "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "strided": np.arange(20.0)[::3],
    "empty": np.empty((0, 3)),
    "empty int": np.empty(0, dtype=np.int32),
    "0-d": np.array(3.5),
    "0-d bool": np.array(True),
    "text": np.array(["lengthscale[0]", "σ²"]),
    "file": np.arange(2),
    "meta.json": np.arange(3),
    "sha256": np.arange(4),
    "σ/ℓ": np.arange(5),
}
META = {"round": 4, "bound": -652.538645265923, "nested": {"ok": True, "list": [1, None, "x"]}}


def assert_same(actual, expected):
    assert list(actual) == list(expected)
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype, name
        assert actual[name].shape == array.shape, name
        assert actual[name].tobytes() == array.tobytes(), name


def leftovers(path):
    return [file.name for file in Path(path).iterdir() if ".tmp" in file.name]


@pytest.fixture
def run(tmp_path):
    with RunDirectory.create(tmp_path / "run", HEADER) as run:
        yield run


def python(code, *arguments, **keywords):
    environment = {**os.environ, "PYTHONPATH": str(Path(storage.__file__).parents[2])}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, **keywords)


# --- what is saved comes back


def test_round_trip_is_bit_equal(run):
    run.save("state", ARRAYS, META)
    arrays, meta = run.load("state")
    assert_same(arrays, ARRAYS)
    assert meta == META
    arrays["int8"][:] = 0  # what comes back is the caller's own


def test_no_arrays_and_no_meta(run):
    run.save("nothing", {})
    assert run.load("nothing") == ({}, {})


def test_saving_replaces_and_the_bytes_depend_on_content_only(run):
    run.save("state", {"a": np.zeros(3)})
    run.save("state", ARRAYS, META)
    first = (run.path / "state.npz").read_bytes()
    assert_same(run.load("state")[0], ARRAYS)
    run.save("state", ARRAYS, META)
    assert (run.path / "state.npz").read_bytes() == first


def test_what_is_removed_is_gone(run):
    run.save("draws_000", {"x": np.arange(3)})
    for _ in range(2):  # gone is gone
        run.remove("draws_000")
        assert not run.has("draws_000")
    run.close()
    with pytest.raises(RunDirectoryError, match="open the run again"):
        run.remove("draws_000")


def test_numpy_reads_the_file(run):
    run.save("state", ARRAYS)
    with np.load(run.path / "state.npz", allow_pickle=False) as file:
        for name in ("bool", "fortran", "0-d", "σ/ℓ"):
            assert np.array_equal(file[name], ARRAYS[name])


def test_jax_arrays_and_mutation_while_saving(run, monkeypatch):
    import jax.numpy as jnp

    run.save("state", {"a": jnp.arange(3)})
    assert run.load("state")[0]["a"].tolist() == [0, 1, 2]
    changing = np.zeros(5)
    real = storage._checksum

    def meanwhile(record):
        changing[:] += 1
        return real(record)

    monkeypatch.setattr(storage, "_checksum", meanwhile)
    run.save("state", {"a": changing})
    monkeypatch.undo()
    assert run.load("state")[0]["a"].tolist() == [0] * 5


def test_names_has_header_and_path(run):
    assert run.names() == []
    assert not run.has("round-1")
    for name in ("round-1", "draws_0", "a"):
        run.save(name, {"x": np.ones(1)})
    (run.path / "draws_1.npz.tmpdeadbeef").write_bytes(b"half")
    assert run.names() == ["a", "draws_0", "round-1"]
    assert run.has("round-1")
    assert not run.has("draws_1")
    assert run.path.is_absolute()
    run.header["seed"] = 4
    assert run.header == HEADER


def test_a_run_comes_back_on_open(run):
    run.save("state", ARRAYS, META)
    run.close()
    with RunDirectory.open(run.path) as again:
        assert again.header == HEADER
        assert again.names() == ["state"]
        assert_same(again.load("state")[0], ARRAYS)
    record = json.loads((run.path / "run.json").read_text())
    assert (record["format"], record["header"]) == (1, HEADER)
    assert isinstance(record["library"], str)


def test_a_change_of_working_directory_does_not_move_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RunDirectory.create("deep/er/run", {}) as run:
        monkeypatch.chdir("/")
        run.save("state", ARRAYS)
    assert (tmp_path / "deep/er/run/state.npz").is_file()


@pytest.mark.parametrize("name", ["", "A", "a.b", "../a", "a/b", "a\n", "é"])
def test_names_are_restricted(run, name):
    for call in (lambda: run.save(name, {}), lambda: run.load(name), lambda: run.has(name)):
        with pytest.raises(InputError, match="cannot name a saved state"):
            call()


@pytest.mark.parametrize("array", [np.array([{}]), np.array([(1, 2.0)], dtype="i4,f8"), np.array(["2020"], "M8[D]")])
def test_arrays_that_need_pickle_are_refused(run, array):
    run.save("state", {"a": np.ones(2)})
    with pytest.raises(InputError, match=r"array 'a' .* cannot be saved"):
        run.save("state", {"a": array})
    assert run.load("state")[0]["a"].tolist() == [1, 1]
    assert leftovers(run.path) == []


def test_other_inputs_that_cannot_be_saved(run, tmp_path):
    from ml_dtypes import bfloat16

    for arrays in ({"a": np.ones(2, dtype=bfloat16)}, {"": np.ones(2)}, {"a\0b": np.ones(2)}):
        with pytest.raises(InputError, match="cannot be saved"):
            run.save("state", arrays)
    with pytest.raises(InputError, match=r"meta of 'state' must be what JSON can hold"):
        run.save("state", {}, {"a": np.float32(1)})
    with pytest.raises(InputError, match="header of a run"):
        RunDirectory.create(tmp_path / "other", {"a": object()})
    assert not (tmp_path / "other").exists()
    assert run.names() == []


# --- what is not a run, or damaged


def test_create_refuses_what_is_there(run, tmp_path):
    run.close()
    with pytest.raises(RunDirectoryError, match="already holds a run: resume it, or choose another"):
        RunDirectory.create(run.path, {})
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("x")
    with pytest.raises(RunDirectoryError, match=r"holds no run \('thesis.tex'\): choose another directory"):
        RunDirectory.create(foreign, {})
    assert os.listdir(foreign) == ["thesis.tex"]
    for path in (foreign / "thesis.tex", foreign / "thesis.tex" / "run"):
        with pytest.raises(RunDirectoryError, match="choose another directory"):
            RunDirectory.create(path, {})
    with RunDirectory.open(run.path) as again:
        assert again.header == HEADER


def test_create_takes_an_empty_directory_and_one_whose_creation_was_killed(tmp_path):
    (tmp_path / "run.lock").write_text("1\n")
    (tmp_path / "run.json.tmp01234567").write_text("{")
    with pytest.raises(RunDirectoryError, match="holds no run"):
        RunDirectory.open(tmp_path)
    with RunDirectory.create(tmp_path, HEADER):
        assert sorted(os.listdir(tmp_path)) == ["run.json", "run.lock"]
    (tmp_path / "empty").mkdir()
    RunDirectory.create(tmp_path / "empty", {}).close()


def test_open_refuses_what_is_not_a_run(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(RunDirectoryError, match="holds no run"):
            RunDirectory.open(path)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged"),
        (b"not json", "damaged"),
        (b"\xff\xfe", "damaged"),
        (b"[]", "damaged"),
        (b"null", "damaged"),
        (b"[" * 100_000, "damaged"),
        (b'{"format": 1}', "damaged"),
        (b'{"format": "1", "library": "0", "header": {}}', "damaged"),
        (b'{"format": 0, "library": "0", "header": {}}', "damaged"),
        (b'{"format": 2, "library": "9.0", "header": {}}', "format 2, newer than this integrand: upgrade"),
    ],
)
def test_a_damaged_or_newer_run_is_refused_and_unlocked(run, content, message):
    run.close()
    good = (run.path / "run.json").read_bytes()
    (run.path / "run.json").write_bytes(content)
    with pytest.raises(RunDirectoryError, match=message):
        RunDirectory.open(run.path)
    (run.path / "run.json").write_bytes(good)
    RunDirectory.open(run.path).close()


def flips(content, count, seed):
    rng = np.random.default_rng(seed)
    for position in rng.integers(len(content), size=count):
        damaged = bytearray(content)
        damaged[position] ^= 1 << rng.integers(8)
        yield bytes(damaged)


def test_flipped_bits_of_the_header_never_pass_for_another(run):
    run.close()
    refused = 0
    for damaged in flips((run.path / "run.json").read_bytes(), 200, seed=1):
        (run.path / "run.json").write_bytes(damaged)
        try:
            with RunDirectory.open(run.path) as again:
                assert again.header == HEADER  # white space
        except RunDirectoryError:
            refused += 1
    assert refused > 150


def test_flipped_bits_never_pass_for_data(run):
    run.save("state", ARRAYS, META)
    path = run.path / "state.npz"
    messages = []
    for damaged in flips(path.read_bytes(), 200, seed=2):
        path.write_bytes(damaged)
        try:
            arrays, meta = run.load("state")
        except RunDirectoryError as error:
            messages.append(str(error))
        else:  # a date or a permission in the zip directory
            assert_same(arrays, ARRAYS)
            assert meta == META
    assert len(messages) > 100
    assert all("state.npz is damaged" in message for message in messages)
    assert all("delete that file and resume" in message for message in messages)


def test_flipped_values_behind_a_right_crc_are_found_by_the_checksum(run):
    run.save("state", {"a": np.zeros(100)}, {"round": 1})
    path = run.path / "state.npz"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    swaps = [
        {"a.npy": members["a.npy"][:-1] + b"\1"},
        {"a.npy": members["a.npy"].replace(b"<f8", b"<i8")},
        {"meta.json": b'{"round": 2}'},
        {"b.npy": members["a.npy"]},
        {"sha256": b"0" * 64},
        {"sha256": b"\xff"},
    ]
    for swap in swaps:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in {**members, **swap}.items():
                archive.writestr(name, content)
        with pytest.raises(RunDirectoryError, match="damaged"):
            run.load("state")
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert run.load("state")[1] == {"round": 1}


def test_a_truncated_file_is_refused(run):
    run.save("state", ARRAYS, META)
    path = run.path / "state.npz"
    content = path.read_bytes()
    for length in [*range(0, len(content), 61), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(RunDirectoryError, match="damaged"):
            run.load("state")


def test_a_missing_state_is_named(run):
    run.save("warm", {})
    with pytest.raises(RunDirectoryError, match=r"has no saved 'draws'; it has warm"):
        run.load("draws")


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def signed(path, members, compression=zipfile.ZIP_STORED):
    """A file whose checksum is right, made by somebody who means harm."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr("sha256", storage._checksum(members))


def npy(descr, shape, payload):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue() + payload


def test_no_pickle_is_executed(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bomb = pickle.dumps(np.array([Bomb()]))
    for content in (bomb, npy("|O", (1,), bomb)):
        (run.path / "state.npz").write_bytes(content)
        with pytest.raises(RunDirectoryError, match="damaged"):
            run.load("state")
    signed(run.path / "state.npz", {"a.npy": npy("|O", (1,), bomb), "meta.json": b"{}"})
    with pytest.raises(RunDirectoryError, match="dtype object"):
        run.load("state")
    assert not (tmp_path / "exploded").exists()


def test_no_size_in_a_file_is_believed(run):
    path = run.path / "state.npz"
    signed(path, {"a.npy": npy("<f8", (10**12,), bytes(80)), "meta.json": b"{}"})
    with pytest.raises(RunDirectoryError, match="damaged"):
        run.load("state")
    signed(path, {"a.npy": npy("<f8", (10**6,), bytes(8 * 10**6)), "meta.json": b"{}"}, zipfile.ZIP_DEFLATED)
    with pytest.raises(RunDirectoryError, match="larger than the whole"):
        run.load("state")
    signed(path, {"a.npy": npy("<f8", (10,), bytes(80)), "meta.json": b"{}"})
    assert run.load("state")[0]["a"].tolist() == [0] * 10


# --- one writer


HOLD = """
import sys, time
from integrand.storage.run_directory import RunDirectory
with getattr(RunDirectory, sys.argv[1])(*([sys.argv[2], {}] if sys.argv[1] == "create" else [sys.argv[2]])) as run:
    print("locked", flush=True)
    time.sleep(600)
"""


def test_a_second_writer_in_this_process_is_refused(run):
    for again in (lambda: RunDirectory.open(run.path), lambda: RunDirectory.create(run.path, {})):
        with pytest.raises(RunDirectoryError, match=rf"being written by this process \(pid {os.getpid()}\)"):
            again()
    run.save("state", ARRAYS)
    run.close()
    run.close()
    with RunDirectory.open(run.path), pytest.raises(RunDirectoryError, match="closed in this process"):
        run.save("state", ARRAYS)


@pytest.mark.parametrize("how", ["create", "open"])
def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path, how):
    path = tmp_path / "run"
    if how == "open":
        RunDirectory.create(path, {}).close()
    with python(HOLD, how, path) as holder:
        try:
            assert holder.stdout.readline() == "locked\n"
            for again in (lambda: RunDirectory.open(path), lambda: RunDirectory.create(path, {})):
                with pytest.raises(RunDirectoryError, match=rf"being written by another process \(pid {holder.pid}\)"):
                    again()
        finally:
            holder.kill()
    with RunDirectory.open(path) as run:
        run.save("state", ARRAYS)


def test_the_lock_dies_with_its_process_even_if_children_live_on(tmp_path):
    code = """
import os, signal, subprocess, sys, time
from integrand.errors import RunDirectoryError
from integrand.storage.run_directory import RunDirectory
run = RunDirectory.create(sys.argv[1], {})
spawned = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
ready, tell = os.pipe()
forked = os.fork()
if forked == 0:
    try:
        run.save("child", {})
    except RunDirectoryError:
        os.write(tell, b"x")
    os.close(1)
    time.sleep(600)
assert os.read(ready, 1) == b"x"
run.save("parent", {})
print(spawned.pid, forked, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with python(code, tmp_path / "run") as parent:
        children = [int(pid) for pid in parent.stdout.readline().split()]
    try:
        assert len(children) == 2
        with RunDirectory.open(tmp_path / "run") as run:
            assert run.names() == ["parent"]
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def test_kill_at_any_moment_loses_nothing_written(tmp_path):
    code = """
import sys
import numpy as np
from integrand.storage.run_directory import RunDirectory
with RunDirectory.open(sys.argv[1]) as run:
    counter = run.load("state")[1]["counter"] if run.has("state") else 0
    print("started", flush=True)
    while True:
        counter += 1
        run.save("state", {"a": np.full(20_000, counter), "b": np.full((3, 5), counter / 7)}, {"counter": counter})
        print(counter, flush=True)
"""
    path, rng, last = tmp_path / "run", np.random.default_rng(0), 0
    RunDirectory.create(path, HEADER).close()
    for kills in range(1, 9):  # a busy machine may write nothing before the first of them
        with python(code, path) as writer:
            assert writer.stdout.readline() == "started\n"
            time.sleep(rng.uniform(0.0, 0.15))
            writer.kill()
            announced = [last, *map(int, writer.stdout.read().split("\n")[:-1])]
        with RunDirectory.open(path) as run:
            assert leftovers(path) == []
            assert run.header == HEADER
            if not run.has("state"):
                assert announced == [0]
                continue
            arrays, meta = run.load("state")
            assert meta["counter"] >= announced[-1]
            assert (arrays["a"] == meta["counter"]).all()
            assert (arrays["b"] == meta["counter"] / 7).all()
            last = meta["counter"]
        if kills >= 3 and last > 3:
            break
    assert last > 3


def test_leftovers_are_cleaned_on_open_and_nothing_else(run):
    run.save("state", ARRAYS)
    run.close()
    for name in ("state.npz.tmp0", "other.npz.tmpffff", "run.json.tmp12", "notes.tmp.md", "my.tmp"):
        (run.path / name).write_bytes(b"x")
    with RunDirectory.open(run.path) as again:
        assert leftovers(run.path) in (["notes.tmp.md", "my.tmp"], ["my.tmp", "notes.tmp.md"])
        assert_same(again.load("state")[0], ARRAYS)


# --- a disk that does not take it


class FullDisk(io.BytesIO):
    def __init__(self, stream, room):
        super().__init__()
        self.stream, self.room = stream, room

    def write(self, data):
        if self.tell() + len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.stream.write(data)
        return super().write(data)


@pytest.mark.parametrize("room", [0, 10, 500, 4000, 5000])
def test_a_full_disk_leaves_the_previous_state(run, monkeypatch, room):
    run.save("state", ARRAYS, META)
    write = storage._write_npz
    monkeypatch.setattr(storage, "_write_npz", lambda stream, *rest: write(FullDisk(stream, room), *rest))
    with pytest.raises(RunDirectoryError, match=r"cannot write .*state.npz: No space left on device; make room"):
        run.save("state", {"a": np.ones(1000)}, {"round": 5})
    monkeypatch.undo()
    assert leftovers(run.path) == []
    assert_same(run.load("state")[0], ARRAYS)
    run.save("state", {"a": np.ones(1000)})


@pytest.mark.parametrize("function", ["replace", "fsync", "open"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO, errno.EDQUOT])
def test_any_failing_step_is_a_sentence(run, tmp_path, monkeypatch, function, number):
    def fail(*arguments, **keywords):
        raise OSError(number, os.strerror(number))

    run.save("state", {"a": np.zeros(3)})
    monkeypatch.setattr(storage.os, function, fail)
    with pytest.raises(RunDirectoryError, match=os.strerror(number)):
        run.save("state", {"a": np.ones(3)})
    with pytest.raises(RunDirectoryError, match=os.strerror(number)):
        RunDirectory.create(tmp_path / "second", {})
    monkeypatch.undo()
    assert leftovers(run.path) == []
    # os.open is the last step, the syncing of the directory: by then the new state is whole and in place.
    assert run.load("state")[0]["a"].tolist() == ([1.0] * 3 if function == "open" else [0.0] * 3)
    if function != "open":
        assert leftovers(tmp_path / "second") == []
        RunDirectory.create(tmp_path / "second", {}).close()


@pytest.mark.slow
def test_a_disk_that_is_full_for_real(run, tmp_path):
    resource = pytest.importorskip("resource")
    if not hasattr(resource, "RLIMIT_FSIZE"):
        pytest.skip("no limit on file sizes on this system")
    run.save("state", {"a": np.zeros(3)})
    run.close()
    code = """
import resource, signal, sys
import numpy as np
from integrand.errors import RunDirectoryError
from integrand.storage.run_directory import RunDirectory
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
with RunDirectory.open(sys.argv[1]) as run:
    try:
        run.save("state", {"a": np.ones(50_000)})
    except RunDirectoryError as error:
        print(error)
    print(run.load("state")[0]["a"].tolist())
"""
    with python(code, run.path, stderr=subprocess.STDOUT) as process:
        output = process.stdout.read().splitlines()
    assert len(output) == 2, output
    assert "File too large" in output[0]
    assert output[1] == "[0.0, 0.0, 0.0]"
    assert leftovers(run.path) == []


def test_a_read_only_directory(run):
    if os.geteuid() == 0:
        pytest.skip("root may write to a read-only directory; the failing steps above stand in for it")
    run.save("state", {"a": np.zeros(3)})
    run.path.chmod(0o555)
    try:
        with pytest.raises(RunDirectoryError, match="Permission denied"):
            run.save("state", {"a": np.ones(3)})
        with pytest.raises(RunDirectoryError, match="Permission denied"):
            RunDirectory.create(run.path / "inner", {})
        assert run.load("state")[0]["a"].tolist() == [0, 0, 0]
    finally:
        run.path.chmod(0o755)


def test_a_directory_removed_under_an_open_run(run):
    for file in run.path.iterdir():
        file.unlink()
    run.path.rmdir()
    with pytest.raises(RunDirectoryError, match="No such file"):
        run.save("state", {})


# ---- files appear as a whole, or not at all


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
