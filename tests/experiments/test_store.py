"""Results are written whole, and a task is done by one process at a time."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from experiments import store as module
from experiments.store import Store, Task
from experiments.suites import SUITES
from integrand import InputError

ARM = SUITES["uci"].arms[1]
TASK = Task("regression", "default", "yacht", ARM, 3)


def test_a_result_is_kept_and_read_back(tmp_path):
    store = Store(tmp_path)
    assert store.result(TASK) is None
    store.keep(TASK, {"scores": {"rmse": 0.25}})
    assert store.done(TASK)
    assert store.result(TASK) == {"scores": {"rmse": 0.25}}
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["split-3.json"]


def test_a_result_that_json_cannot_hold_leaves_nothing(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        store.keep(TASK, {"rmse": float("nan")})
    assert not store.done(TASK)


def test_a_damaged_result_names_its_file(tmp_path):
    store = Store(tmp_path)
    store.keep(TASK, {})
    (tmp_path / TASK.path).write_text("{")
    with pytest.raises(InputError, match=r"split-3\.json"):
        store.result(TASK)


def test_a_claim_excludes_others_and_is_given_back(tmp_path):
    store = Store(tmp_path)
    with store.claim(TASK) as mine:
        assert mine
        with Store(tmp_path).claim(TASK) as second:
            assert not second
        with Store(tmp_path).claim(Task("regression", "default", "yacht", ARM, 4)) as other:
            assert other
    with store.claim(TASK) as again:
        assert again
    assert not list(tmp_path.rglob("*.claim"))


def test_a_claim_on_what_was_just_finished_says_no(tmp_path):
    store = Store(tmp_path)
    store.keep(TASK, {})
    with store.claim(TASK) as mine:
        assert not mine


def claim_of(store, host, pid):
    path = (store.root / TASK.path).with_suffix(".claim")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"host": host, "pid": pid}))
    return path


def test_the_claim_of_a_dead_process_is_taken_over(tmp_path):
    store = Store(tmp_path)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    claim_of(store, module.socket.gethostname(), dead.pid)
    with store.claim(TASK) as mine:
        assert mine


def test_the_claim_of_another_machine_holds_until_it_is_stale(tmp_path):
    store = Store(tmp_path)
    path = claim_of(store, "elsewhere", 1)
    with store.claim(TASK) as mine:
        assert not mine
    old = time.time() - 2 * module._STALE_SECONDS
    os.utime(path, (old, old))
    with store.claim(TASK) as mine:
        assert mine


def test_a_live_claim_is_kept_fresh(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_TOUCH_SECONDS", 0.02)
    store = Store(tmp_path)
    with store.claim(TASK):
        path = next(tmp_path.rglob("*.claim"))
        os.utime(path, (1.0, 1.0))
        deadline = time.time() + 5.0
        while path.stat().st_mtime < 2.0 and time.time() < deadline:
            time.sleep(0.01)
        assert path.stat().st_mtime > 2.0


def test_a_fit_without_a_draw_is_done_until_it_may_have_more_minutes(tmp_path):
    store, capped = Store(tmp_path), replace(ARM, settings={"max_minutes": 2.0})
    task = replace(TASK, arm=capped)
    store.keep(task, {"verdict": {"codes": ["no-draws"]}, "made": {"settings": {"max_minutes": 2.0}}})
    assert store.done(task)
    more = replace(task, arm=replace(capped, settings={"max_minutes": 3.0}))
    assert more.path == task.path
    assert not store.done(more)
    store.keep(more, {"verdict": {"codes": ["budget"]}, "made": {"settings": {"max_minutes": 3.0}}})
    assert store.done(more)
    assert store.done(task)
