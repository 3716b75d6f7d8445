"""Processes that disagree, as one of them sees it; the others are played."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from integrand import DistributedError, InputError
from integrand.data.disk import MappedRows
from integrand.distributed.issuer import Issuer
from integrand.distributed.layout import own_part
from integrand.distributed.ranks import Ranks
from integrand.distributed.together import TASKS, Together


class Service:
    """Stands for JAX's coordination service: values that ranks have set."""

    def __init__(self, said=()):
        self.values = {f"integrand/exchange/1/{rank}": json.dumps(value) for rank, value in enumerate(said)}

    def key_value_set(self, key, value):
        self.values[key] = value

    def blocking_key_value_get(self, key, milliseconds):
        if key not in self.values:
            raise RuntimeError(f"DEADLINE_EXCEEDED: {key} timed out")
        return self.values[key]

    def key_value_dir_get(self, prefix):
        return [(key, value) for key, value in self.values.items() if key.startswith(prefix)]


def ranks(rank, said=(), timeout=0.5):
    return Ranks(rank, 2, timeout, Service(said))


def following(number, heard):
    """A process that follows, whose last program gave `number`, and that hears a message."""
    one = Together(ranks(1), 2, 1, 1)
    one.number = number
    one._broadcast = lambda message: np.array([TASKS.index("end"), 0.0, 0.0, heard, 0.0, 0.0, 0.0, 0.0])
    return one


def test_the_same_number_is_fine():
    assert following(-12.5, -12.5 * (1.0 + 1e-12)).follow({}) == b""


def test_another_number_ends_the_fit_and_rank_0_hears_why():
    one = following(-12.5, -12.4)
    with pytest.raises(DistributedError, match=r"rank 1 got -12\.5 where rank 0 got -12\.4.*same versions"):
        one.follow({})
    assert "rank 1 got -12.5" in one.ranks.complaints()


def test_a_message_that_was_lost_is_noticed():
    one = following(0.0, 0.0)
    one.count = 3
    with pytest.raises(DistributedError, match="do not compute the same"):
        one.follow({})


def test_all_see_the_same_table():
    rows = MappedRows(np.zeros((10, 2)), np.zeros(10))
    assert own_part(rows, ranks(1, [rows.outline()]), divided=False).n_rows == 5
    with pytest.raises(InputError, match=r"rank 1 sees another table than rank 0 .*10.*same files"):
        own_part(rows, ranks(1, [[["rows", 9]]]), divided=False)
    assert own_part(rows, ranks(1), divided=True) is rows


def test_who_has_left_a_message_is_not_waited_for():
    mine = ranks(1, timeout=60.0)
    mine.client.key_value_set("integrand/error/0", "the directory is not empty")
    with pytest.raises(DistributedError, match="rank 0: the directory is not empty; rank 1 stops"):
        mine.exchange("here")


def test_silence_ends_after_the_timeout():
    with pytest.raises(DistributedError, match="rank 0 said nothing for 0 s"):
        ranks(1, timeout=0.2).exchange("here")


def test_an_error_of_one_is_raised_in_all():
    with pytest.raises(InputError, match="rank 0: no such directory"):
        ranks(1, ["no such directory"]).all_or_none(lambda: None)


def test_a_collective_that_hangs_is_given_up():
    import threading

    with pytest.raises(DistributedError, match="another process was silent"):
        Issuer(ranks(0, timeout=0.3)).wait(threading.Event().wait)


def test_a_collective_that_fails_is_a_loss():
    def fails():
        raise ValueError("Gloo: connection closed by peer")

    issuer = Issuer(ranks(0))
    for _ in range(2):  # and stays one
        with pytest.raises(DistributedError, match="another process has ended"):
            issuer.wait(fails)


def test_other_errors_are_what_they_are():
    with pytest.raises(ZeroDivisionError):
        Issuer(SimpleNamespace(timeout=1.0)).wait(lambda: 1 / 0)
