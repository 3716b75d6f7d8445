import threading

import pytest

from integrand.methods import ahead as module
from integrand.methods.ahead import ahead


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(module, "available_cores", lambda: 2)


def test_tasks_are_done_in_order_in_a_thread_of_their_own(two_cores):
    done = []
    thread = ahead(lambda: done.append((1, threading.current_thread())), lambda: done.append((2, None)))
    thread.join()
    assert [n for n, _ in done] == [1, 2]
    assert done[0][1] is thread
    assert thread is not threading.current_thread()


def test_a_task_that_fails_stops_no_other(two_cores):
    done = []
    ahead(lambda: 1 / 0, lambda: done.append(1)).join()
    assert done == [1]


def test_nothing_is_done_ahead_on_one_core(monkeypatch):
    monkeypatch.setattr(module, "available_cores", lambda: 1)
    done = []
    assert ahead(lambda: done.append(1)) is None
    assert done == []
