"""Short chains before the final ones tell bends and metric, are kept on disk, and are draws if nothing follows."""

import shutil
import warnings

import numpy as np
import pytest

import integrand
from integrand import ConvergenceWarning
from integrand.methods.checkpoint import Checkpoint
from integrand.methods.sampling import Sampling
from integrand.posterior.storage import RunDirectory
from integrand.progress import Silent

SHORT = {
    "n_inducing": 6,
    "chains": 2,
    "tune": 40,
    "round_draws": 30,
    "max_draws": 40,
    "target_ess": 1e6,
    "predictive_draws": 10,
    "seed": 1,
}
METHODS = ["sgpr-hmc-fixed-z", "gpr-hmc"]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(40)


def on_disk(path):
    """Whitening and chains of scouting, whitenings of rounds, and draws."""
    with RunDirectory.open(path) as run:
        saved = Checkpoint(run)
        return saved.scouted(), [whitening for _, whitening in saved.rounds()], saved.draws()


def quietly(function, *arguments, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return function(*arguments, **settings)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_ended_after_scouting_goes_on_from_there(method, data, tmp_path):
    first = quietly(integrand.fit, *data, method=method, run_dir=tmp_path / "run", **SHORT)
    scouted, _, _ = on_disk(tmp_path / "run")
    assert scouted is not None
    assert scouted[0].bend is not None
    assert scouted[1].x.shape == (2, 30, 4)
    for path in (tmp_path / "run").glob("draws_*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = quietly(integrand.resume, tmp_path / "run")
    np.testing.assert_array_equal(again.chains.x, first.chains.x)
    assert again.counts["gradients"] < first.counts["gradients"]  # nothing was scouted a second time


class Interrupts(Silent):
    """Ctrl-C in a phase, after so many draws."""

    def __init__(self, where: str = "scouting", after: int = 50):
        self.at, self.where, self.after = "", where, after

    def phase(self, name: str) -> None:
        self.at = name

    def update(self, done: int, total: int, text: str = "") -> None:
        if self.at == self.where and done >= self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_while_scouting_keeps_the_draws(method, data, tmp_path):
    # As many draws tune the jumps, of which nothing is kept.
    settings = SHORT | {"round_draws": 1_000, "max_draws": 5_000, "progress": Interrupts(after=1_010)}
    posterior = quietly(integrand.fit, *data, method=method, run_dir=tmp_path / "run", **settings)
    assert posterior.verdict is not None
    assert "interrupted" in posterior.verdict.codes
    assert 2 <= posterior.chains.n_draws < 1_000
    scouted, _, drawn = on_disk(tmp_path / "run")
    assert scouted is None
    assert drawn is not None
    np.testing.assert_array_equal(drawn.x, posterior.chains.x)
    more = quietly(integrand.resume, tmp_path / "run", max_draws=posterior.chains.n_draws + 5)
    np.testing.assert_array_equal(more.chains.x[:, : drawn.n_draws], drawn.x)


def test_other_samplers_do_not_scout(data, tmp_path):
    posterior = quietly(integrand.fit, *data, method="gpr-hmc", sampler="hmc", run_dir=tmp_path / "run", **SHORT)
    assert posterior.chains.n_draws == 40
    assert on_disk(tmp_path / "run")[0] is None


def test_rounds_leave_a_bent_whitening_on_disk(data, tmp_path):
    quietly(integrand.fit, *data, run_dir=tmp_path / "run", **SHORT)
    scouted, whitenings, _ = on_disk(tmp_path / "run")
    assert scouted is None
    assert all(whitening.bend is not None for whitening in whitenings)
    assert whitenings


@pytest.mark.parametrize("method", METHODS)
def test_scouting_draws_stand_in_where_the_final_chains_never_got_to_one(method, data, tmp_path):
    settings = SHORT | {"progress": Interrupts("final draws", 0)}
    posterior = quietly(integrand.fit, *data, method=method, run_dir=tmp_path / "run", **settings)
    scouted, _, drawn = on_disk(tmp_path / "run")
    assert scouted is not None
    assert drawn is None
    np.testing.assert_array_equal(posterior.chains.x, scouted[1].x)
    late = quietly(integrand.resume, tmp_path / "run", max_minutes=1e-9)  # no time for more
    np.testing.assert_array_equal(late.chains.x, scouted[1].x)
    other = quietly(integrand.resume, tmp_path / "run", chains=3, max_minutes=10.0)
    assert other.chains.x.shape == (3, 40, 4)


def test_one_draw_a_round_is_enough_to_go_on(data):
    posterior = quietly(integrand.fit, *data, method="gpr-hmc", **(SHORT | {"round_draws": 1}))
    assert posterior.chains.n_draws == 40


@pytest.mark.parametrize("change", [{"sampler": "hmc"}, {"sampler": "default", "grow": True, "sample_rows": 20}])
def test_a_bent_whitening_is_straightened_for_samplers_that_know_none(change, data, tmp_path, monkeypatch):
    """Rounds by NUTS, ended before the final draws, gone on with by another sampler."""
    settings = SHORT | {"sampler": "nuts", "progress": Interrupts("final draws", 0)}
    quietly(integrand.fit, *data, run_dir=tmp_path / "run", **settings)
    whitenings = on_disk(tmp_path / "run")[1]
    assert all(whitening.bend is not None for whitening in whitenings)
    seen, run = [], Sampling.run

    def spy(self, density, whitening, *arguments):
        seen.append(whitening)
        return run(self, density, whitening, *arguments)

    monkeypatch.setattr(Sampling, "run", spy)
    posterior = quietly(integrand.resume, tmp_path / "run", **change)
    assert posterior.chains.n_draws == 40
    assert seen
    assert all(whitening.bend is None for whitening in seen)
