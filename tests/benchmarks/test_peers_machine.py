"""What the page says of the machine: versions, commits, and whether a job was alone."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
sys.path.insert(0, str(PEERS))

import machine  # noqa: E402
import neighbours  # noqa: E402


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_commit_with_changes_is_called_dirty(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("1")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "src")
    git(tmp_path, "commit", "--quiet", "-m", "a")
    clean = machine.revision(tmp_path)
    (tmp_path / "notes").write_text("what is not measured does not count")
    assert machine.revision(tmp_path) == clean
    (tmp_path / "src" / "b.py").write_text("2")
    assert machine.revision(tmp_path) == f"{clean}-dirty"
    assert machine.revision(tmp_path / "nowhere") == "unknown"


def test_neighbours_are_what_keeps_cores_busy_without_our_children(tmp_path, monkeypatch):
    stat, ticks = tmp_path / "stat", neighbours.os.sysconf("SC_CLK_TCK")

    def at(seconds, first, second):
        idle = "5 6 0 0 0"
        lines = (f"cpu{k} {int(s * ticks)} 0 0 {idle}" for k, s in enumerate((first, second)))
        stat.write_text("\n".join(["cpu 1 2 3 4 5 6 7 8", *lines]))
        monkeypatch.setattr(neighbours.time, "time", lambda: seconds)

    children = iter([1.0, 9.0, 1.0, 9.0, 0.0])
    monkeypatch.setattr(neighbours.Neighbours, "_own", lambda self: next(children))
    at(0.0, 10.0, 10.0)
    both = neighbours.Neighbours([0, 1], stat)
    at(10.0, 20.0, 13.0)
    assert both.count() == pytest.approx((10.0 + 3.0 - 8.0) / 10.0)
    at(0.0, 10.0, 10.0)
    one = neighbours.Neighbours([0], stat)
    at(10.0, 18.0, 20.0)  # what others do on a core that is not ours is no matter
    assert one.count() == pytest.approx(0.0)
    assert neighbours.Neighbours([0], tmp_path / "none").busy is None


def test_rows_with_neighbours_are_counted():
    rows = [
        {"status": "done", "others": o, "job": {"measure": "ml2", "key": f"ml2/{o}"}} for o in (0.0, 0.1, 1.7, None)
    ]
    told = "**1 row was made on a busy machine** (of 3; others kept up to 1.7 cores busy): ml2/1.7"
    assert machine.busy(rows) == told
    assert machine.busy(rows[:2]) == "none of 2 rows was made on a busy machine"
    assert machine.busy([]) == "-"


def test_a_processor_has_a_name_of_its_generation():
    text = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n\nprocessor\t: 1\nmodel\t\t: 2\n"
    assert machine.processor_named(text) == "AMD EPYC (family 25, model 1)"
    assert machine.processor_named("") == platform.machine()


def test_each_measure_tells_where_when_and_with_what_it_was_made():
    made = (("A", "accuracy", "01", "c1"), ("B", "ml2", "03", "c1"), ("B", "accuracy", "02", "c2"))
    rows = [
        {"processor": p, "when": f"2026-01-{day} 00:00", "commit": c, "job": {"measure": m}} for p, m, day, c in made
    ]
    assert machine.sources(rows) == {
        "accuracy": "A / B; 2026-01-01 00:00 to 2026-01-02 00:00 (UTC); c1, c2",
        "ml2": "B; 2026-01-03 00:00 to 2026-01-03 00:00 (UTC); c1",
    }
    assert machine.sources([{"job": {"measure": "ml2"}}]) == {"ml2": "unknown; unknown; -"}


def test_versions_are_those_of_each_environment():
    def row(contestant, **versions):
        return {"job": {"contestant": contestant}, "result": {"versions": versions}}

    rows = [row("gpjax", jax="1", numpy="2"), row("integrand", jax="3"), row("integrand-fixed-z", jax="4")]
    assert machine.versions(rows) == {"gpjax": "jax 1, numpy 2", "integrand": "jax 3 / 4"}
