"""Compiled programs: on disk, in memory, freed before maps run out; and how many calls run at the same time."""

import os
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest
import threadpoolctl
from jax.experimental.compilation_cache import compilation_cache

from integrand import compilation
from integrand.data.dataset import Dataset
from integrand.kernels import RBF
from integrand.model import Model
from integrand.targets import CollapsedTarget

SCRIPT = """
import numpy as np, jax
from integrand.data.dataset import Dataset
from integrand.kernels import RBF
from integrand.model import Model
from integrand.targets import CollapsedTarget
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **_: compiled.append(name) if "backend_compile" in name else None)
X = np.linspace(0.0, 1.0, 40)[:, None]
target = CollapsedTarget(Model(RBF(), 1), Dataset.of(X, np.sin(7.0 * X[:, 0])))
found = target.evaluate(target.model.start(), X[:5])
print(len(compiled), repr(found.log_likelihood), found.dZ.tobytes().hex())
"""


# --- on disk: whatever is wrong with a file costs no more than compiling


def fresh_process(place, jax_cache=None):
    variables = os.environ | {"INTEGRAND_CACHE": str(place), "JAX_COMPILATION_CACHE_DIR": str(jax_cache or "")}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=variables, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    compiled, *numbers = done.stdout.split()
    return int(compiled), numbers


@pytest.fixture
def target(monkeypatch):
    """In a process where JAX's own cache is off."""
    monkeypatch.setattr(compilation, "_programs", {})
    place = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield small_target()
    jax.config.update("jax_compilation_cache_dir", place)
    compilation_cache.reset_cache()


def small_target():
    X = np.linspace(0.0, 1.0, 30)[:, None]
    return CollapsedTarget(Model(RBF(), 1), Dataset.of(X, np.sin(7.0 * X[:, 0])))


def test_a_new_process_compiles_nothing_and_finds_the_same(tmp_path):
    place = tmp_path / "programs"
    first, numbers = fresh_process(place)
    (file,) = place.iterdir()
    assert place.stat().st_mode & 0o077 == 0
    assert file.suffix == ".program"
    again, same = fresh_process(place)
    assert again < first
    assert same == numbers


@pytest.mark.slow
def test_beside_the_cache_of_jax_nothing_is_written(tmp_path):
    """What that one gives cannot be serialised again: read once more, it would fail when it is called."""
    _, numbers = fresh_process(tmp_path / "programs", tmp_path / "jax")
    assert list((tmp_path / "jax").iterdir())
    _, same = fresh_process(tmp_path / "programs", tmp_path / "jax")
    assert same == numbers
    assert not (tmp_path / "programs").exists()


def test_a_file_that_is_cut_short_is_made_again(target, tmp_path, monkeypatch):
    monkeypatch.setenv("INTEGRAND_CACHE", str(tmp_path))
    found = target.evaluate(target.model.start(), np.zeros((1, 1)))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:1000])
    compilation._programs.clear()
    again = CollapsedTarget(target.model, target.data).evaluate(target.model.start(), np.zeros((1, 1)))
    assert again.log_likelihood == found.log_likelihood
    assert list(tmp_path.iterdir()) == [file]
    assert file.stat().st_size > 1000


def test_nothing_is_written_where_nothing_shall_be(target, tmp_path, monkeypatch):
    monkeypatch.setenv("INTEGRAND_CACHE", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert np.isfinite(target.evaluate(target.model.start(), np.zeros((1, 1))).log_likelihood)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_to_is_done_without(target, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("INTEGRAND_CACHE", str(tmp_path / "file"))
    assert np.isfinite(target.evaluate(target.model.start(), np.zeros((1, 1))).log_likelihood)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_where_programs_are_kept(tmp_path, monkeypatch):
    monkeypatch.delenv("INTEGRAND_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compilation.cache_directory() == tmp_path / "integrand"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert compilation.cache_directory() == tmp_path / ".cache" / "integrand"
    monkeypatch.setenv("INTEGRAND_CACHE", str(tmp_path / "here"))
    assert compilation.cache_directory() == tmp_path / "here"
    monkeypatch.setenv("INTEGRAND_CACHE", "off")
    assert compilation.cache_directory() is None


def test_those_used_longest_ago_go(target, tmp_path, monkeypatch):
    monkeypatch.setenv("INTEGRAND_CACHE", str(tmp_path))
    monkeypatch.setattr(compilation, "_MAX_FILES", 2)
    for age, name in enumerate(("new", "middle", "old")):
        (tmp_path / f"{name}.program").write_bytes(b"")
        os.utime(tmp_path / f"{name}.program", (1e9 - age, 1e9 - age))
    target.evaluate(target.model.start(), np.zeros((1, 1)))
    left = {p.name for p in tmp_path.iterdir()}
    assert len(left) == 2
    assert "new.program" in left


def test_what_a_kill_left_goes_after_a_day(target, tmp_path, monkeypatch):
    monkeypatch.setenv("INTEGRAND_CACHE", str(tmp_path))
    for name in ("old.part", "new.part"):
        (tmp_path / name).write_bytes(b"")
    os.utime(tmp_path / "old.part", (1e9, 1e9))
    target.evaluate(target.model.start(), np.zeros((1, 1)))
    assert [p.name for p in tmp_path.glob("*.part")] == ["new.part"]


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a file away")
def test_a_program_of_another_user_is_not_run(target, tmp_path, monkeypatch):
    monkeypatch.setenv("INTEGRAND_CACHE", str(tmp_path))
    Z = np.zeros((1, 1))
    target.evaluate(target.model.start(), Z)
    (file,) = tmp_path.iterdir()
    assert compilation._read_own(file)
    os.chown(file, 12345, -1)
    with pytest.raises(PermissionError):
        compilation._read_own(file)


# --- in memory


def test_targets_of_the_same_shapes_share_a_program(target, monkeypatch):
    monkeypatch.setenv("INTEGRAND_CACHE", "off")
    Z = np.zeros((1, 1))
    target.evaluate(target.model.start(), Z)
    other = CollapsedTarget(target.model, Dataset.of(np.ones((30, 1)), np.arange(30.0)))
    other.evaluate(target.model.start(), Z)
    longer = CollapsedTarget(target.model, Dataset.of(np.ones((31, 1)), np.arange(31.0)))
    assert len(compilation._programs) == 1
    longer.evaluate(target.model.start(), Z)
    assert len(compilation._programs) == 2


# --- freed before the system's limit on memory maps is reached


@pytest.fixture
def system(monkeypatch, tmp_path):
    """A system that allows 100 maps, of which this many are in use."""

    def made(in_use, limit="100\n"):
        (tmp_path / "maps").write_text("x\n" * in_use)
        (tmp_path / "limit").write_text(limit)
        monkeypatch.setattr(compilation, "_MAPS", tmp_path / "maps")
        monkeypatch.setattr(compilation, "_MAPS_LIMIT", tmp_path / "limit")

    return made


@pytest.mark.slow
@pytest.mark.parametrize(("in_use", "cleared"), [(10, False), (50, False), (51, True), (99, True)])
def test_half_of_the_maps(system, in_use, cleared):
    system(in_use)
    assert compilation.clear_unused_programs() is cleared


def test_a_system_that_does_not_tell(system, monkeypatch, tmp_path):
    system(99, limit="no number")
    assert compilation.max_maps() == 0
    monkeypatch.setattr(compilation, "_MAPS", tmp_path / "nowhere")
    assert compilation.maps_in_use() == 0
    assert not compilation.clear_unused_programs()


@pytest.mark.slow
@pytest.mark.skipif(not compilation.max_maps(), reason="the system does not tell of memory maps")
def test_programs_are_given_back_and_compiled_again():
    code = """
    import jax, jax.numpy as jnp
    from integrand import compilation

    f = jax.jit(lambda x: jnp.sin(x).sum())
    for n in range(1, 30):
        f(jnp.ones(n))
    full = compilation.maps_in_use()
    assert compilation.clear_unused_programs(share=0.0)
    assert compilation.maps_in_use() < full - 25, (full, compilation.maps_in_use())
    assert abs(float(f(jnp.zeros(3) + 1.0)) - 2.5244) < 1e-3
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=300)


# --- threads


@pytest.mark.parametrize(
    ("cores", "short", "calls"), [(1, True, 1), (1, False, 1), (2, True, 4), (2, False, 2), (8, True, 16)]
)
def test_two_short_calls_for_each_core_but_one_on_a_single_core(cores, short, calls, monkeypatch):
    monkeypatch.setattr(compilation, "available_cores", lambda: cores)
    assert compilation.parallel_calls(short) == calls


def test_one_thread_of_blas_until_the_last_scope_has_ended():
    def threads():
        return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}

    before = threads()
    with compilation.one_blas_thread(False):
        assert threads() == before
    first, second = compilation.one_blas_thread(), compilation.one_blas_thread()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert threads() == {1}
    second.__exit__(None, None, None)
    assert threads() == before
