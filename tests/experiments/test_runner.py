"""Running a suite: skipped when done, safe to interrupt, shared between processes; results are written whole."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from experiments import measure, runner, work
from experiments import store as module
from experiments.__main__ import main
from experiments.catalogue import SOURCES
from experiments.runner import arm_names, named_arm, tasks_of
from experiments.store import Store, Task
from experiments.suites import PROTOCOLS, SUITES, chosen, protocol_arm, split_numbers
from experiments.tables import TABLES
from integrand import METHODS, InputError
from integrand.methods.problem import Settings
from integrand.priors import DEFAULT, PRESETS
from results.read import read

SUITE = SUITES["synthetic-1d"]


def run(tmp_path, *arguments):
    """Exit code of the command."""
    return main([*arguments, "--out", str(tmp_path)])


@pytest.fixture
def counted(monkeypatch):
    """Tasks that take no time, and a list of them."""
    done = []

    def run_task(task, data_dir):
        done.append(str(task))
        if task.split == 7:
            raise RuntimeError("boom")
        return {"scores": {"rmse": 1.0, "nlpd": 2.0}}

    monkeypatch.setattr(work, "run_task", run_task)
    return done


def test_what_is_done_is_not_done_again(tmp_path, counted):
    assert run(tmp_path, "synthetic-1d", "--splits", "0-1") == 0
    assert len(counted) == 6
    assert run(tmp_path, "synthetic-1d", "--splits", "0-2") == 0
    assert len(counted) == 9
    assert run(tmp_path, "synthetic-1d", "--methods", "ml2", "--splits", "3") == 0
    assert counted[-1] == "synthetic, SGPR, split 3"


def test_a_failure_leaves_a_traceback_and_the_rest_goes_on(tmp_path, counted):
    result = run(tmp_path, "synthetic-1d", "--methods", "ml2", "--splits", "6-8")
    assert result == 1
    assert len(counted) == 3
    (failed,) = tmp_path.rglob("*.failed")
    assert "boom" in failed.read_text()
    assert not list(tmp_path.rglob("*.claim"))


def test_an_interrupt_gives_the_claim_back(tmp_path, monkeypatch):
    def run_task(task, data_dir):
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "run_task", run_task)
    assert run(tmp_path, "synthetic-1d", "--methods", "ml2", "--splits", "0") == 130
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_fit_that_ctrl_c_ended_is_no_result(tmp_path, monkeypatch):
    def fit(*arguments, **settings):
        return SimpleNamespace(verdict=SimpleNamespace(codes=("interrupted", "ess-bulk")))

    monkeypatch.setattr(measure, "fit", fit)
    assert run(tmp_path, "synthetic-1d", "--methods", "ml2", "--splits", "0") == 130
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "there is no suite"),
        (["uci", "--protocol", "other"], "there is no protocol"),
        (["uci", "--datasets", "mars"], "there is no data set"),
        (["uci", "--methods", "magic"], "there is no method"),
        (["uci", "--splits", "x"], "--splits"),
        (["uci", "--jobs", "0"], "--jobs"),
        (["priors", "--protocol", "paper"], "no schedule of the paper"),
        (["uci", "--protocol", "paper", "--methods", "fbgp"], "no schedule of the paper"),
        (["uci", "--data-dir", "nowhere"], "nowhere"),
        (["--collect"], "no result"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, arguments, words):
    result = run(tmp_path, *arguments)
    assert result == 2
    message = capsys.readouterr().err
    assert words in message
    assert len(message.strip().splitlines()) == 1


def test_the_list(capsys):
    assert main([]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SUITES)


@pytest.mark.slow
def test_two_processes_share_a_real_suite(tmp_path):
    """Two fits of the example, each in a process of its own, then the same in this one: nothing is left to do."""
    assert run(tmp_path, "synthetic-1d", "--methods", "ml2", "--splits", "0-1", "--jobs", "2") == 0
    store = Store(tmp_path)
    tasks = runner.tasks_of(SUITE, "default", ["synthetic"], ["SGPR"], [0, 1])
    first, second = (store.result(task) for task in tasks)
    assert first["scores"]["rmse"] < 0.7
    assert first["scores"] != second["scores"]
    # The noise of the data is 0.4; the order of names is not that of the alphabet.
    assert first["hyperparameters"]["noise"]["value"] == pytest.approx(0.4, abs=0.06)
    assert first["made"]["settings"] == {"restarts": 5}
    assert run(tmp_path, "--collect") == 0
    assert read(tmp_path / "results.parquet") == {task.key: store.result(task) for task in tasks}
    assert "| synthetic | SGPR |" in (tmp_path / "pages" / "synthetic-1d.md").read_text()


@pytest.mark.slow
def test_workers_end_with_a_driver_that_is_terminated():
    """Each worker says its number and sleeps; the driver is told to end."""
    worker = "import os, time; os.write(1, b'%d\\n' % os.getpid()); time.sleep(60)"
    driver = f"import sys; from experiments import runner; worker = [sys.executable, '-c', {worker!r}]; "
    driver += "runner._in_parallel(worker, 2)"
    with subprocess.Popen([sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True) as process:
        numbers = [int(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_minutes_given_are_those_of_every_fit_and_no_other_result(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(work, "run_task", lambda task, data_dir: given.append(task) or {"scores": {}})
    assert run(tmp_path, "synthetic-1d", "--methods", "sgpr-hmc", "--splits", "0", "--minutes", "2.5") == 0
    assert given[0].arm.settings["max_minutes"] == 2.5
    assert run(tmp_path, "synthetic-1d", "--methods", "sgpr-hmc", "--splits", "0") == 0
    assert len(given) == 1


@pytest.mark.parametrize("more", [["--minutes", "0"], ["--minutes", "3", "--protocol", "paper"]])
def test_minutes_that_cannot_be_used_are_refused(tmp_path, counted, more):
    result = run(tmp_path, "synthetic-1d", *more)
    assert result != 0
    assert not counted


def test_published_results_are_not_run_again(tmp_path, counted):
    assert run(tmp_path, "synthetic-1d", "--methods", "ml2", "--splits", "0", "--published") == 0
    assert not counted
    assert run(tmp_path, "synthetic-1d", "--methods", "ml2", "--splits", "0") == 0
    assert len(counted) == 1


# ---- suites: what they name exists, and what they share is run once


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_everything_a_suite_names_exists(suite):
    assert suite.name in TABLES
    assert len({arm.name for arm in suite.arms}) == len({arm.key for arm in suite.arms}) == len(suite.arms)
    for arm in suite.arms:
        assert arm.method in METHODS
        assert arm.priors in PRESETS
        Settings(**arm.settings)
        assert named_arm(suite, arm.key) == arm.name
    for name in suite.paper_arms:
        assert name in [arm.name for arm in suite.arms]
    if suite.kind == "regression":
        assert set(suite.datasets) <= set(SOURCES)


def paths(name, protocol="default"):
    suite = SUITES[name]
    return {t.path for t in tasks_of(suite, protocol, suite.datasets, arm_names(suite, protocol), suite.splits)}


def test_suites_share_what_they_have_in_common():
    assert paths("uci") & paths("ablation")
    assert len(paths("priors") & paths("uci")) == 6 * 10 * 2  # SGPR, and SGPR + HMC under the default preset
    assert not paths("uci") & paths("runtime")  # timed fits stand alone
    assert not paths("uci") & paths("uci", "paper")


def test_the_paper_s_protocol_has_its_priors_and_no_restarts():
    arm = protocol_arm(SUITES["uci"].arms[1], "paper")
    assert arm.priors == "paper"
    assert not arm.settings
    with pytest.raises(InputError, match="no schedule"):
        arm_names(SUITES["priors"], "paper")
    assert DEFAULT in PRESETS
    assert PROTOCOLS == ("default", "paper")


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-9", tuple(range(10))), ("4", (4,)), ("0,2,5-7", (0, 2, 5, 6, 7)), ("1,1", (1,))]
)
def test_split_numbers(text, numbers):
    assert split_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "3-1", "-2", "0-x"])
def test_split_numbers_refuses(text):
    with pytest.raises(InputError, match="--splits"):
        split_numbers(text)


def test_chosen_refuses_what_is_not_there():
    assert chosen("", ("a", "b"), "data set") == ("a", "b")
    assert chosen("b", ("a", "b"), "data set") == ("b",)
    with pytest.raises(InputError, match="choose from a, b"):
        chosen("c", ("a", "b"), "data set")


# --- the store of results

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
