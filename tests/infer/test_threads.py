import pytest

from integrand.infer import threads


@pytest.mark.parametrize(("cores", "chains"), [(1, 1), (2, 4), (8, 16)])
def test_two_chains_for_each_core_but_one_on_a_single_core(cores, chains, monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: cores)
    assert threads.chains_at_once() == chains
