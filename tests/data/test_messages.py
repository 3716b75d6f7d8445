"""Processes that disagree, are silent or fail, as one of them sees it; the others are played."""

import queue
from types import SimpleNamespace

import numpy as np
import pytest

from integrand import RBF, Dataset, DistributedError, InputError, Model
from integrand.data.processes import Channel, CollectiveThread, Leader, SharedWork, SingleProcess, follow
from integrand.data.scaling import Standardiser
from integrand.data.sources import MappedRows
from integrand.methods.fit import shared_work
from integrand.methods.problem import Problem, Settings
from integrand.targets import CollapsedTarget
from played_processes import processes

END = 2.0


def following(number, sent):
    """The channel of a process that follows, whose last program gave `number`, and that receives a message."""
    channel = Channel(processes(1), SharedWork({}, n_theta=2, n_inducing=1, n_columns=1))
    channel.number = number
    channel.broadcast = lambda message: np.array([END, 0.0, 0.0, sent, 0.0, 0.0, 0.0, 0.0])
    return channel


def test_the_same_number_is_fine():
    assert follow(following(-12.5, -12.5 * (1.0 + 1e-12))) == b""


def test_another_number_ends_the_fit_and_rank_0_hears_why():
    channel = following(-12.5, -12.4)
    with pytest.raises(DistributedError, match=r"rank 1 got -12\.5 where rank 0 got -12\.4.*same versions"):
        follow(channel)
    assert "rank 1 got -12.5" in channel.processes.reported_errors()


def test_a_message_that_was_lost_is_noticed():
    channel = following(0.0, 0.0)
    channel.count = 3
    with pytest.raises(DistributedError, match="do not compute the same"):
        follow(channel)


def connected(programs):
    """Channels of a leader and of a process that follows: what the one broadcasts the other receives."""
    sent = queue.SimpleQueue()
    channels = [Channel(processes(rank), SharedWork(programs, 2, 3, 1)) for rank in (0, 1)]
    channels[0].broadcast = lambda content: sent.put(content) or content
    channels[1].broadcast = lambda content: sent.get(timeout=5.0)
    return channels


def test_programs_run_where_the_leader_runs_them_and_its_result_arrives():
    ran = []
    channels = connected({"first": lambda phi, Z: ran.append(("first", phi, Z)), "other": lambda phi, Z: 1 / 0})
    leader, phi, Z = Leader(channels[0]), np.array([0.5, -1.0]), np.array([[1.0], [2.0]])
    assert leader.run("first", phi, Z, lambda: "mine") == "mine"
    leader.end(b"result")
    assert follow(channels[1]) == b"result"
    [(name, got_phi, got_Z)] = ran
    assert name == "first"
    np.testing.assert_array_equal(got_phi, phi)
    np.testing.assert_array_equal(got_Z, Z)
    with pytest.raises(DistributedError, match="the fit has ended"):  # a chain that is still running
        leader.run("first", phi, Z, lambda: "late")


@pytest.mark.slow
def test_what_a_target_asks_of_all_processes_is_among_the_programs_of_a_fit(monkeypatch):
    asked = []
    monkeypatch.setattr(Dataset, "local", property(lambda data: False))
    monkeypatch.setattr(Dataset, "on_all_processes", lambda data, name, phi, Z, own: asked.append(name) or own())
    model, data = Model(RBF(), 1), Dataset.of(np.linspace(0.0, 1.0, 6)[:, None], np.arange(6.0))
    problem = Problem(model, data, Standardiser.identity(1), Settings())
    target, phi, Z = CollapsedTarget(model, data), model.start(), np.array([[0.2], [0.8]])
    target.evaluate(phi, Z)
    target.inducing_posterior(phi, Z)
    target.value(phi, Z)
    target.values(phi[None], Z)
    target.mean_bound(phi[None], Z)
    assert len(asked) == 5
    assert set(asked) == set(shared_work(problem, 2).programs)


def test_the_others_hear_why_the_leader_gives_up():
    channels = connected({})
    Leader(channels[0]).fail(InputError("no such kernel"))
    assert "rank 0: no such kernel" in channels[0].processes.reported_errors()
    with pytest.raises(DistributedError, match="rank 0 gave up; rank 1 stops"):
        follow(channels[1])


def test_all_see_the_same_table():
    rows = MappedRows(np.zeros((10, 2)), np.zeros(10))
    said = [["x0", "x1"], rows.outline()]
    assert rows.among(processes(1, [said])).n_own == 5
    with pytest.raises(InputError, match=r"rank 1 sees another table than rank 0 .*10.*same files"):
        rows.among(processes(1, [[said[0], [["rows", 9]]]]))
    with pytest.raises(InputError, match="rank 1 has the columns x0, x1, rank 0 a, b"):
        rows.among(processes(1, [[["a", "b"], rows.outline()]]))


def test_rows_of_their_own_are_not_divided():
    rows = MappedRows(np.zeros((10, 2)), np.zeros(10))
    others = processes(1, [[["x0", "x1"], []]])
    others.client.key_value_set("integrand/gather/2/0", "7")
    mine = rows.among(others, shared=False)
    assert (mine.n_own, mine.n_rows) == (10, 17)


def test_one_process_has_nobody_to_talk_to():
    alone = SingleProcess()
    assert alone.is_leader
    assert alone.all_gather("here") == ["here"]
    assert alone.on_leader(lambda: 3) == 3
    assert alone.lead(lambda: "done", SharedWork({}, 0, 0, 0)) == "done"
    alone.leave()


def test_who_has_left_a_message_is_not_waited_for():
    mine = processes(1, timeout=60.0)
    mine.client.key_value_set("integrand/error/0", "the directory is not empty")
    with pytest.raises(DistributedError, match="rank 0: the directory is not empty; rank 1 stops"):
        mine.all_gather("here")


def test_silence_ends_after_the_timeout():
    with pytest.raises(DistributedError, match="rank 0 said nothing for 0 s"):
        processes(1, timeout=0.2).all_gather("here")


def test_an_error_of_one_is_raised_in_all():
    with pytest.raises(InputError, match="rank 0: no such directory"):
        processes(1, ["no such directory"]).on_all(lambda: None)


def test_a_collective_that_hangs_is_given_up():
    import threading

    with pytest.raises(DistributedError, match="another process was silent"):
        CollectiveThread(processes(0, timeout=0.3)).wait(threading.Event().wait)


def test_a_collective_that_fails_is_a_loss():
    def fails():
        raise ValueError("Gloo: connection closed by peer")

    collectives = CollectiveThread(processes(0))
    for _ in range(2):  # and stays one
        with pytest.raises(DistributedError, match="another process has ended"):
            collectives.wait(fails)


def test_other_errors_are_what_they_are():
    with pytest.raises(ZeroDivisionError):
        CollectiveThread(SimpleNamespace(timeout=1.0)).wait(lambda: 1 / 0)


def test_the_old_word_for_leaving(monkeypatch):
    one = processes(1, ["done", "done"])
    with pytest.warns(DeprecationWarning, match=r"write processes\.leave\(\)"):
        one.part_ways()
