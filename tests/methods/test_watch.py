"""Watching final chains: what goes to disk, and how often."""

from types import SimpleNamespace

import numpy as np
import pytest

from integrand.infer.chains import Chains, Watch
from integrand.methods import watch
from integrand.methods.watch import FinalWatch
from integrand.progress import Silent


def _nothing():
    pass


@pytest.mark.parametrize(("seconds", "saved"), [(0.0, [6, 12, 18, 24, 30, 36, 42, 48, 54, 60, 66]), (1.0, [6, 60])])
def test_saving_takes_little_of_the_time(monkeypatch, seconds, saved):
    """Every five seconds; where a save takes one, it has to wait for fifty."""
    now, found = [0.0], []

    def save(chains):
        now[0] += seconds
        found.append(at)

    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: now[0]))
    zero = np.zeros((2, 10))
    chains = Chains(zero[:, :, None], zero, zero, zero, zero.astype(int), zero.astype(int), zero.astype(bool), zero)
    final = FinalWatch(None, 1, np.inf, 0, save, _nothing, lambda: False, Silent())
    for at in range(0, 70, 6):
        assert final(Watch(chains, 10, float(at))) is None
    assert found == saved


def test_chains_that_go_on_with_a_clock_of_their_own_are_saved_as_often():
    zero, found = np.zeros((2, 10)), []
    chains = Chains(zero[:, :, None], zero, zero, zero, zero.astype(int), zero.astype(int), zero.astype(bool), zero)
    final = FinalWatch(None, 1, np.inf, 0, lambda _: found.append(at), _nothing, lambda: False, Silent())
    for at in (0, 6, 58, 60, 2, 4, 6, 10):
        final(Watch(chains, 10, float(at)))
    assert found == [6, 58, 4, 10]


def test_chains_that_begin_anew_take_their_draws_from_disk_and_are_checked_anew():
    rng, told = np.random.default_rng(0), []

    def chains(n):
        zero = np.zeros((4, n))
        x = rng.standard_normal((4, n, 1))
        return Chains(x, zero, zero, zero, zero.astype(int), zero.astype(int), zero.astype(bool), zero)

    saves, drops = lambda c: told.append(c.n_draws), lambda: told.append("dropped")
    final = FinalWatch(None, 1, 1e6, 0, saves, drops, lambda: False, Silent())
    for n, seconds in ((0, 1.0), (120, 6.0), (0, 1.0), (0, 2.0), (90, 9.0)):
        assert final(Watch(chains(n), n, seconds)) is None
    assert told == [120, "dropped", 90]
    assert final.next_check == watch.FIRST_CHECK
