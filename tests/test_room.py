"""Compiled programs are forgotten before the system's limit on memory maps is reached."""

import subprocess
import sys
import textwrap

import pytest

from integrand import room


@pytest.fixture
def system(monkeypatch, tmp_path):
    """A system that allows 100 maps, of which this many are in use."""

    def made(in_use, limit="100\n"):
        (tmp_path / "maps").write_text("x\n" * in_use)
        (tmp_path / "limit").write_text(limit)
        monkeypatch.setattr(room, "_MAPS", tmp_path / "maps")
        monkeypatch.setattr(room, "_LIMIT", tmp_path / "limit")

    return made


@pytest.mark.parametrize(("in_use", "cleared"), [(10, False), (50, False), (51, True), (99, True)])
def test_half_of_the_maps(system, in_use, cleared):
    system(in_use)
    assert room.make_room() is cleared


def test_a_system_that_does_not_tell(system, monkeypatch, tmp_path):
    system(99, limit="no number")
    assert room.most_maps() == 0
    monkeypatch.setattr(room, "_MAPS", tmp_path / "nowhere")
    assert room.maps_in_use() == 0
    assert not room.make_room()


@pytest.mark.skipif(not room.most_maps(), reason="the system does not tell of memory maps")
def test_programs_are_given_back_and_compiled_again():
    code = """
    import jax, jax.numpy as jnp
    from integrand import room

    f = jax.jit(lambda x: jnp.sin(x).sum())
    for n in range(1, 50):
        f(jnp.ones(n))
    full = room.maps_in_use()
    assert room.make_room(share=0.0)
    assert room.maps_in_use() < full - 40, (full, room.maps_in_use())
    assert abs(float(f(jnp.zeros(3) + 1.0)) - 2.5244) < 1e-3
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=300)
