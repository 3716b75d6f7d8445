import threading

import pytest

from integrand.methods import ahead as module
from integrand.methods.ahead import ahead


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(module, "available_cores", lambda: 2)


def test_tasks_are_done_beside_the_scope_and_each_other_and_are_over_with_it(two_cores):
    done, meanwhile, other = [], threading.Event(), threading.Event()

    def first():
        assert meanwhile.wait(10.0)
        assert other.wait(10.0)
        done.append(threading.current_thread())

    with ahead(first, other.set):
        assert done == []
        meanwhile.set()
    assert len(done) == 1
    assert done[0] is not threading.current_thread()
    assert not done[0].is_alive()


def test_a_task_that_fails_stops_no_other(two_cores):
    done = []
    with ahead(lambda: 1 / 0, lambda: done.append(1)):
        pass
    assert done == [1]


def test_an_error_of_the_scope_is_the_callers(two_cores):
    done = []
    with pytest.raises(KeyError), ahead(lambda: done.append(1)):
        raise KeyError
    assert done == [1]


def test_nothing_is_done_ahead_on_one_core(monkeypatch):
    monkeypatch.setattr(module, "available_cores", lambda: 1)
    done = []
    with ahead(lambda: done.append(1)):
        pass
    assert done == []
