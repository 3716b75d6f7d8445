import shutil
import signal
import warnings
from contextlib import contextmanager

import arviz
import jax
import numpy as np
import pytest

import integrand
from integrand import (
    RBF,
    ConvergenceWarning,
    Gamma,
    HalfNormal,
    InputError,
    Jitter,
    NotConvergedError,
    RunDirectoryError,
    targets,
)
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows
from integrand.infer.base import Chains
from integrand.methods import paper_schedule, sampling, sgpr_hmc
from integrand.methods.problem import FitContext
from integrand.methods.sgpr_hmc import Rounds
from integrand.progress import Clock, Silent
from integrand.storage.run_directory import RunDirectory
from integrand.storage.run_store import RunStore

N, M = 40, 8  # as in most tests of fits: programs are compiled for a shape
# Chains that are too short to be trusted, for tests of everything but the draws.
SHORT = {"chains": 2, "warmup": 15, "round_draws": 10, "max_rounds": 2, "target_ess": 1e6, "max_draws": 40}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 2))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.standard_normal(N)


def fit(data, **settings):
    return integrand.fit(*data, **({"n_inducing": M} | settings))


@contextmanager
def distrusted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def short(data, **settings):
    with distrusted():
        return fit(data, **(SHORT | settings))


def resumed(path, **changes):
    with distrusted():
        return integrand.resume(path, **changes)


def assert_same_draws(a, b):
    for name, left, right in zip(Chains._fields, a, b, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=name)


class Listener(Silent):
    """Calls `act` when a phase whose name holds `phase` has come to its `when`-th update (0: when it begins)."""

    def __init__(self, phase, act, when=0):
        self.wanted, self.act, self.when = phase, act, when
        self.name, self.updates, self.phases = "", 0, []

    def phase(self, name):
        self.name, self.updates = name, 0
        self.phases.append(name)
        self._check()

    def update(self, done, total, text=""):
        self.updates += 1
        assert done >= 0
        assert total > 0
        self._check()

    def _check(self):
        if self.wanted in self.name and self.updates == self.when:
            self.act()


def interrupt():
    raise KeyboardInterrupt


# --- a whole run


@pytest.fixture(scope="module")
def posterior(data):
    return fit(data)


def test_it_converges_and_says_so(posterior):
    assert posterior.method == "sgpr-hmc"
    verdict = posterior.verdict
    assert verdict.ok, str(verdict)
    assert str(verdict).startswith("Converged")
    assert verdict.convergence.reached(400.0)
    x = posterior.chains.x
    assert x.shape[0] == 4
    assert x.shape[2] == posterior.model.n_theta == 4
    assert verdict.names == posterior.model.names
    assert float(arviz.ess(x[:, :, 0], method="bulk")) >= 400.0
    assert verdict.evaluations == posterior.counts["gradients"] + posterior.counts["values"]
    # At least three values for each draw, one more for each that predicts.
    assert posterior.counts["values"] > 3 * x.shape[0] * x.shape[1] + len(posterior.conditional.phis)


def test_what_it_tells_of_the_run(posterior):
    rounds = posterior.counts["rounds"]
    assert rounds >= 1
    assert posterior.Z_path.shape == (rounds + 1, M, 2)
    np.testing.assert_allclose(posterior.Z, posterior.scaler.inverse_X(posterior.Z_path[-1]), rtol=1e-12)
    assert [point.phase for point in posterior.history] == ["warm start"] + ["round"] * rounds
    assert [point.step for point in posterior.history] == list(range(rounds + 1))
    assert np.all(np.diff([point.seconds for point in posterior.history]) > 0)
    assert all(np.isfinite(point.bound) and point.error >= 0 for point in posterior.history)
    assert set(posterior.seconds) >= {"warm start", "metric", "rounds", "final", "conditional"}
    assert all(s >= 0 for s in posterior.seconds.values())
    assert posterior.counts["gradients"] > posterior.chains.n_steps.sum()
    assert posterior.counts["failures"] >= 0
    assert any(note.startswith("Z started from") for note in posterior.notes)


def test_the_draws_predict(posterior, data):
    X, y = data
    p = posterior.predict(X, include_noise=True)
    assert p.n_draws == 400
    assert np.sqrt(np.mean((p.mean - y) ** 2)) < 0.35
    lower, upper = p.interval(0.95)
    assert 0.85 <= np.mean((lower < y) & (y < upper)) <= 1.0


def test_the_draws_lie_around_the_optimum(posterior):
    """The ML-II point is no outlier among the draws, and each draw's density is what it says."""
    x = posterior.chains.x.reshape(-1, 4)
    assert np.all(np.abs(posterior.optimum - x.mean(axis=0)) < 5.0 * x.std(axis=0))


def test_a_second_fit_compiles_nothing(posterior, data):
    """Neither the targets nor anything else: JAX itself tells when it compiles."""
    short(data, seed=9).predict(data[0], include_noise=True).interval(0.9)
    compilations = []

    def listen(event, seconds, **_):
        if "backend_compile" in event:
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        before = dict(targets.trace_counts)
        X, y = data
        short((X[::-1] + 1.0, y**2), seed=10).predict(X, include_noise=True).interval(0.9)
        assert targets.trace_counts == before
        assert compilations == []
        jax.jit(lambda x: x * 1.2345)(1.0)
        assert len(compilations) >= 1  # the listener does hear
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.slow
def test_same_seed_same_draws(data):
    first, again, other = short(data, seed=5), short(data, seed=5), short(data, seed=6)
    assert_same_draws(first.chains, again.chains)
    np.testing.assert_array_equal(first.Z_path, again.Z_path)
    np.testing.assert_array_equal(first.conditional.weights, again.conditional.weights)
    assert not np.any(first.chains.x[:, :, 0] == other.chains.x[:, :, 0])


@pytest.mark.slow
def test_fixed_inducing_inputs_stay(data):
    Z = data[0][3:11]
    posterior = short(data, method="sgpr-hmc-fixed-z", Z=Z)
    assert posterior.method == "sgpr-hmc-fixed-z"
    np.testing.assert_allclose(posterior.Z, Z, rtol=1e-12)
    assert posterior.Z_path.shape == (1, M, 2)
    assert posterior.counts["rounds"] == 0
    moved = short(data, Z=Z)
    assert np.abs(moved.Z - Z).max() > 1e-3


@pytest.mark.slow
def test_chains_start_where_data_without_noise_can_be_factored():
    """The posterior of the noise reaches down to where nothing can be factored; starts out there are pulled in."""
    X = np.linspace(-2.0, 2.0, 20)[:, None]
    posterior = short(
        (ArrayRows(X, 0.15 * np.sin(1.5 * X[:, 0] + 1.0), scaler=Standardiser.identity(1)),),
        kernel=RBF(lengthscale=Gamma(4.0, 4.0), scale=HalfNormal(1.0)),
        noise=HalfNormal(0.5),
        method="sgpr-hmc-fixed-z",
        Z=X,
        jitter=Jitter(1e-10),
        seed=1,
        max_draws=10,
    )
    assert posterior.chains.n_draws == 10
    assert np.ptp(posterior.chains.log_density[:, 0]) < 200.0


def test_jax_is_as_it_was(posterior):
    assert not jax.config.jax_enable_x64


# --- budgets and strictness


@pytest.mark.slow
def test_a_budget_of_draws_ends_it_with_a_warning(data):
    with pytest.warns(ConvergenceWarning, match="budget"):
        posterior = fit(data, **SHORT)
    assert posterior.chains.n_draws == SHORT["max_draws"]
    assert "budget" in posterior.verdict.codes
    assert "ess-bulk" in posterior.verdict.codes
    assert not posterior.verdict.ok


@pytest.mark.slow
def test_strict_raises(data):
    with pytest.raises(NotConvergedError, match="bulk ESS is below"):
        fit(data, strict=True, **SHORT)


def test_a_budget_of_time_ends_it(data):
    posterior = short(data, max_minutes=1e-4, max_draws=5_000)
    assert posterior.chains.n_draws < 500
    assert "budget" in posterior.verdict.codes
    assert not posterior.verdict.ok
    assert np.all(np.isfinite(posterior.predict(data[0], include_noise=True).mean))


@pytest.mark.slow
def test_rounds_leave_time_for_final_chains(data, monkeypatch):
    drawn, draw = [], Rounds.draw

    def counted(self):
        drawn.append(len(self.finished))
        return draw(self)

    monkeypatch.setattr(Rounds, "draw", counted)
    monkeypatch.setattr(Clock, "elapsed", property(lambda clock: 10.0 * len(drawn)))  # ten seconds a round
    monkeypatch.setattr(Rounds, "converged", False)
    posterior = short(data, max_rounds=6, max_minutes=1.0)
    assert drawn == [0, 1, 2]  # one more would end past half a minute
    assert posterior.chains.n_draws == SHORT["max_draws"]
    assert any("Z had 3 rounds" in note for note in posterior.notes)


def test_no_round_begins_when_half_of_the_minutes_are_gone(data, monkeypatch):
    monkeypatch.setattr(Clock, "elapsed", property(lambda clock: 31.0))
    posterior = short(data, max_minutes=1.0)
    assert len(posterior.Z_path) == 1
    assert any("Z had 0 rounds" in note for note in posterior.notes)
    assert posterior.chains.n_draws == SHORT["max_draws"]


@pytest.mark.parametrize("left", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_a_round_cut_off_does_not_replace_the_draws_before_it(data, monkeypatch, left):
    draw_pilot = sgpr_hmc.draw_pilot

    def cut_off(context, target, sampler, coordinates, k):
        chains = draw_pilot(context, target, sampler, coordinates, k)
        if k == 0:
            return chains
        monkeypatch.setattr(FitContext, "over_time", True)
        return chains.first(left)

    monkeypatch.setattr(sgpr_hmc, "draw_pilot", cut_off)
    monkeypatch.setattr(Rounds, "converged", False)
    posterior = short(data)
    assert posterior.chains.n_draws == SHORT["round_draws"]
    assert len(posterior.Z_path) == 1  # the Z that they were drawn at


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "sgpr"}, "no method 'sgpr': choose from ml2"),
        ({"n_induced": 3}, "no setting 'n_induced': choose from batch_size, chains"),
        ({"chains": 0}, "chains must be a whole number of at least 1"),
        ({"target_accept": 1.0}, "target_accept"),
        ({"max_minutes": -1.0}, "max_minutes"),
        ({"optimiser": "sgd"}, "lbfgs, adam"),
        ({"schedule": "fast"}, "default, paper"),
    ],
)
def test_mistakes_are_input_errors(settings, message, data):
    with pytest.raises(InputError, match=message):
        fit(data, **settings)


# --- the paper's schedule


def test_the_papers_schedule(data, monkeypatch):
    for name, value in {
        "STEPS": 40,
        "WARM_STEPS": 10,
        "LAST_WINDOW": 30,
        "EVERY": 10,
        "LONG": (20, 12),
        "SHORT": (5, 4),
    }.items():
        monkeypatch.setattr(paper_schedule, name, value)
    with pytest.warns(ConvergenceWarning, match="budget"):
        posterior = fit(data, schedule="paper")
    assert posterior.chains.x.shape == (1, 12, 4)
    # Windows at steps 20 and 30; Z after the warm start, at each window and at the end.
    assert [point.step for point in posterior.history] == [0, 20, 30]
    assert posterior.Z_path.shape == (4, M, 2)
    # Adam at rate 0.01 moves each entry by about that much a step.
    assert 1e-3 < np.abs(posterior.Z_path[-1] - posterior.Z_path[0]).max() <= 0.31
    assert posterior.predict(data[0], include_noise=True).n_draws == 12
    again = short(data, schedule="paper")
    assert_same_draws(posterior.chains, again.chains)


def test_the_papers_schedule_has_no_run_directory(data, tmp_path):
    with pytest.raises(InputError, match="keeps no state on disk"):
        fit(data, schedule="paper", run_dir=tmp_path / "run")


# --- interruption


@pytest.mark.parametrize(
    ("phase", "when", "act"),
    [
        pytest.param("round 1", 0, interrupt, marks=pytest.mark.slow),
        ("move Z", 0, interrupt),
        pytest.param("final", 2, interrupt, marks=pytest.mark.slow),
        ("final", 2, lambda: signal.raise_signal(signal.SIGINT)),
    ],
    ids=["round", "move Z", "final", "signal"],
)
def test_ctrl_c_returns_what_there_is(phase, when, act, data):
    listener = Listener(phase, act, when)
    posterior = short(data, progress=listener, max_draws=100_000)
    assert phase in listener.phases[-1]
    assert posterior.verdict.codes[-1] == "interrupted"
    assert not posterior.verdict.ok
    assert "interrupted" in str(posterior.verdict)
    assert posterior.chains.n_draws < 100_000
    assert np.all(np.isfinite(posterior.predict(data[0], include_noise=True).mean))


@pytest.mark.slow
def test_ctrl_c_with_a_run_directory_can_be_resumed(data, tmp_path):
    run_dir = tmp_path / "run"
    first = short(data, run_dir=run_dir, progress=Listener("final", interrupt, 3), max_draws=100_000)
    n = first.chains.n_draws
    # Where the interrupt came before any final draw, those of the last round stand in.
    final = "draws_000" in state(run_dir)
    assert final or n <= SHORT["round_draws"]
    second = resumed(run_dir, max_draws=n + 30)
    assert second.chains.n_draws == n + 30
    if final:
        assert_same_draws(second.chains.first(n), first.chains)


# --- run directories


class Killed(SystemExit):
    """Stands for a kill: no code of the library catches it."""


def killed_after(monkeypatch, method):
    """From now on the process dies right after the checkpoint's `method` has run."""
    original = getattr(RunStore, method)

    def save(self, *arguments):
        original(self, *arguments)
        raise Killed

    monkeypatch.setattr(RunStore, method, save)


def state(run_dir):
    with RunDirectory.open(run_dir) as run:
        return {name: run.load(name)[0] for name in run.names()}


STAGES = {
    "warm start": ("save_warm_start", {"data", "warm_start"}, 40),
    "first round": ("save_round", {"data", "warm_start", "round_001"}, 40),
    "final draws": ("save_draws", {"data", "warm_start", "round_001", "draws_000"}, 6_000),
}


@pytest.mark.parametrize(
    "stage", [pytest.param(s, marks=() if s == "final draws" else pytest.mark.slow) for s in STAGES]
)
def test_resume_after_a_kill(stage, data, tmp_path, monkeypatch):
    method, files, max_draws = STAGES[stage]
    run_dir = tmp_path / "run"
    monkeypatch.setattr(sampling, "SAVE_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        killed_after(patched, method)
        with pytest.raises(Killed):
            short(data, run_dir=run_dir, max_draws=max_draws)
    before = state(run_dir)
    assert files <= set(before)
    posterior = resumed(run_dir)
    assert posterior.chains.n_draws == max_draws
    assert posterior.history[0].phase == "warm start"
    after = state(run_dir)
    assert set(before) <= set(after)
    for name in before:  # nothing that was on disk has changed
        for key, array in before[name].items():
            np.testing.assert_array_equal(after[name][key], array)
    if "draws_000" in before:
        kept = Chains(**before["draws_000"])
        assert 0 < kept.n_draws < max_draws
        assert_same_draws(posterior.chains.first(kept.n_draws), kept)
        assert posterior.counts["blocks"] == 2
    else:
        # Everything was drawn again from the same seed: the same draws as if nothing had happened.
        undisturbed = short(data)
        np.testing.assert_array_equal(posterior.Z_path, undisturbed.Z_path)
        assert_same_draws(posterior.chains, undisturbed.chains)


@pytest.mark.slow
def test_a_run_directory_changes_no_draw_and_resuming_a_finished_run_draws_nothing(data, tmp_path):
    run_dir = tmp_path / "run"
    kept = short(data, run_dir=run_dir, target_ess=20.0, max_draws=400)
    assert kept.verdict.convergence.reached(20.0)
    assert_same_draws(kept.chains, short(data, target_ess=20.0, max_draws=400).chains)
    again = resumed(run_dir)
    assert_same_draws(again.chains, kept.chains)
    np.testing.assert_array_equal(again.conditional.weights, kept.conditional.weights)
    np.testing.assert_array_equal(again.Z_path, kept.Z_path)


@pytest.mark.slow
def test_resume_can_ask_for_more(data, tmp_path):
    run_dir = tmp_path / "run"
    first = short(data, run_dir=run_dir)
    more = resumed(run_dir, max_draws=60)
    assert more.chains.n_draws == 60
    assert_same_draws(more.chains.first(SHORT["max_draws"]), first.chains)
    assert not np.any(np.all(more.chains.x[:, 40:] == first.chains.x[:, :20], axis=2))
    with pytest.raises(InputError, match="no setting 'max_draw'"):
        integrand.resume(run_dir, max_draw=3)
    assert resumed(run_dir).chains.n_draws == 60  # the lock was given back


@pytest.mark.slow
def test_a_second_writer_is_refused(data, tmp_path):
    run_dir = tmp_path / "run"
    refused = []

    def intrude():
        for call in (lambda: integrand.resume(run_dir), lambda: fit(data, run_dir=run_dir)):
            with pytest.raises(RunDirectoryError) as caught:
                call()
            refused.append(str(caught.value))

    short(data, run_dir=run_dir, progress=Listener("move Z", intrude))
    assert "is being written by" in refused[0]
    assert len(refused) % 2 == 0
    with pytest.raises(RunDirectoryError, match="already holds a run"):
        fit(data, run_dir=run_dir)


@pytest.mark.slow
def test_a_fit_killed_before_its_data_were_kept_can_begin_again(data, tmp_path, monkeypatch):
    run_dir = tmp_path / "run"

    def killed(self, *arguments):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "save", killed)
        with pytest.raises(Killed):
            short(data, run_dir=run_dir)
    assert (run_dir / "run.json").exists()
    with pytest.raises(RunDirectoryError, match="'data'"):
        integrand.resume(run_dir)
    assert short(data, run_dir=run_dir).chains.n_draws == SHORT["max_draws"]


def test_what_is_no_run_directory(data, tmp_path):
    with pytest.raises(RunDirectoryError, match="holds no run"):
        integrand.resume(tmp_path)
    (tmp_path / "letter.txt").write_text("dear reader")
    with pytest.raises(RunDirectoryError, match="not empty"):
        fit(data, run_dir=tmp_path)


@pytest.mark.slow
def test_a_damaged_state_names_the_file(data, tmp_path):
    run_dir = tmp_path / "run"
    short(data, run_dir=run_dir)
    file = run_dir / "round_001.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(RunDirectoryError, match=r"round_001.npz is damaged"):
        integrand.resume(run_dir)
    for name in run_dir.glob("draws_*"):
        name.unlink()
    file.unlink()
    for name in run_dir.glob("round_*"):
        name.unlink()
    assert resumed(run_dir).chains.n_draws == SHORT["max_draws"]
    shutil.rmtree(run_dir)
