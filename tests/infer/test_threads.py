import pytest

from integrand.infer import threads


@pytest.mark.parametrize(
    ("cores", "short", "calls"), [(1, True, 1), (1, False, 1), (2, True, 4), (2, False, 2), (8, True, 16)]
)
def test_two_short_calls_for_each_core_but_one_on_a_single_core(cores, short, calls, monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: cores)
    assert threads.calls_at_once(short) == calls
