"""Who draws: jumps where they pay, NUTS where few are accepted or where they get little out of their draws."""

import warnings

import numpy as np
import pytest

import integrand
from integrand import ConvergenceWarning
from integrand.infer import jumps
from integrand.infer.chains import Chains, Watch
from integrand.methods import jumping, watch
from integrand.methods.density import Density
from integrand.methods.sampling import Sampling
from integrand.posterior.storage import RunDirectory

SETTINGS = {"n_inducing": 8, "chains": 4, "predictive_draws": 20, "seed": 1}
# Where it is asked who draws, not how well: that NUTS converges is asked elsewhere.
FEW = {"max_draws": 100}
METHODS = ["sgpr-hmc", pytest.param("sgpr-hmc-fixed-z", marks=pytest.mark.slow), "gpr-hmc"]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(60)


def fitted(data, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return integrand.fit(*data, **(SETTINGS | settings))


def jumped(posterior) -> bool:
    """Draws of chains that jump have no energy."""
    return bool(np.isnan(posterior.chains.energy).all())


@pytest.mark.parametrize("method", [pytest.param("sgpr-hmc-fixed-z", marks=pytest.mark.slow), "gpr-hmc"])
def test_jumps_and_nuts_draw_from_the_same_posterior(method, data):
    one, other = (fitted(data, method=method, sampler=sampler) for sampler in ("default", "nuts"))
    assert jumped(one)
    assert not jumped(other)
    for p in (one, other):
        assert p.verdict is not None
        assert p.verdict.ok, str(p.verdict)
    a, b = (p.chains.x.reshape(-1, p.chains.x.shape[2]) for p in (one, other))
    errors = np.sqrt(sum(x.var(axis=0) / p.verdict.convergence.ess_bulk for x, p in ((a, one), (b, other))))
    assert np.max(np.abs(a.mean(axis=0) - b.mean(axis=0)) / errors) < 4.5
    np.testing.assert_allclose(a.std(axis=0), b.std(axis=0), rtol=0.35)


@pytest.mark.slow
def test_values_are_counted_and_gradients_are_few(data):
    one, other = (fitted(data, sampler=sampler) for sampler in ("default", "nuts"))
    assert jumped(one)
    assert one.counts["values"] > 3 * one.chains.x.shape[0] * one.chains.n_draws
    assert one.counts["gradients"] < other.counts["gradients"]


@pytest.mark.parametrize("method", METHODS)
def test_nuts_draws_where_few_jumps_are_accepted(method, data, monkeypatch):
    monkeypatch.setattr(jumping, "_LEAST", 1.1)
    posterior = fitted(data, method=method, **FEW)
    assert np.isfinite(posterior.chains.energy).all()
    assert any("NUTS made the final draws" in note for note in posterior.notes)


def test_nuts_draws_where_chains_are_stuck_time_and_again(data, monkeypatch, tmp_path):
    monkeypatch.setattr(jumping, "_LEAST_ESS", 2.0)
    monkeypatch.setattr(jumping, "_TRIAL", 50)
    posterior = fitted(data, run_dir=tmp_path / "run", **FEW)
    assert np.isfinite(posterior.chains.energy).all()  # nothing of what was thrown away
    assert any("50 jumping draws a chain had" in note for note in posterior.notes)
    assert posterior.verdict is not None
    assert np.isfinite(posterior.verdict.e_bfmi).all()
    again = fitted(data, **FEW)  # the same seed, without a directory
    np.testing.assert_array_equal(again.chains.x, posterior.chains.x)


def stuck_once(monkeypatch):
    """The first look at chains that jump finds them stuck; the list gets what was looked at."""
    looks, truly = [], jumping._Trial.fails

    def fails(self, chains, least):
        looks.append(chains)
        return truly(self, chains, 2.0 if len(looks) == 1 else least)

    monkeypatch.setattr(jumping._Trial, "fails", fails)
    monkeypatch.setattr(jumping, "_REFIT", 40)
    return looks


@pytest.mark.parametrize("method", ["sgpr-hmc", "gpr-hmc"])
def test_chains_that_are_stuck_begin_anew(method, data, monkeypatch, tmp_path):
    looks, on_disk, run = stuck_once(monkeypatch), [], Sampling.run
    monkeypatch.setattr(watch, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(watch, "SAVE_SHARE", np.inf)

    def led(self, *arguments, **options):
        on_disk.append((tmp_path / "run" / "draws_000.npz").exists())
        found = run(self, *arguments, **options)
        on_disk.append((tmp_path / "run" / "draws_000.npz").exists())
        assert self.target_accept >= 0.9
        return found

    monkeypatch.setattr(Sampling, "run", led)
    posterior = fitted(data, method=method, run_dir=tmp_path / "run")
    assert len(looks) >= 2
    assert jumped(posterior)
    np.testing.assert_array_equal(posterior.chains.x[:, :40], looks[1].x)  # what was drawn before is thrown away
    assert not np.isin(looks[0].x, posterior.chains.x).any()
    assert on_disk == [True, False]
    assert not any("NUTS" in note for note in posterior.notes)
    assert posterior.verdict is not None
    assert posterior.verdict.ok, str(posterior.verdict)
    with RunDirectory.open(tmp_path / "run") as kept:
        np.testing.assert_array_equal(kept.load("draws_000")[0]["x"], posterior.chains.x)


def test_ctrl_c_while_chains_begin_anew_returns_what_they_drew_and_a_resumed_run_does_without(
    data, monkeypatch, tmp_path
):
    with monkeypatch.context() as patched:
        looks = stuck_once(patched)

        def interrupted(*_, **__):
            raise KeyboardInterrupt

        patched.setattr(Sampling, "run", interrupted)
        posterior = fitted(data, method="gpr-hmc", run_dir=tmp_path / "run")
    np.testing.assert_array_equal(posterior.chains.x, looks[0].x)
    assert posterior.chains.n_draws == 40
    assert "interrupted" in posterior.verdict.codes
    monkeypatch.setattr(jumping, "_REFIT", 40)
    monkeypatch.setattr(jumping, "_LEAST_ESS_AT_REFIT", 2.0)
    jumping_again = jumping._Trial.fails  # of the resumed run, by the true rule
    monkeypatch.setattr(jumping._Trial, "fails", lambda self, chains, least: jumping_again(self, chains, 0.02))
    resumed = integrand.resume(tmp_path / "run")
    assert not np.isin(looks[0].x, resumed.chains.x).any()
    assert resumed.verdict.ok, str(resumed.verdict)


@pytest.mark.parametrize(("n", "drawn"), [(0, 40), (3, 40), (4, 4)])
def test_where_time_was_up_while_nuts_led_there_are_the_draws_that_were_stuck(n, drawn, data, monkeypatch):
    stuck_once(monkeypatch)
    run = Sampling.run
    monkeypatch.setattr(Sampling, "run", lambda *a, **k: (found := run(*a, **k))._replace(chains=found.chains.first(n)))
    assert fitted(data, method="gpr-hmc").chains.n_draws == drawn


def test_a_chain_without_a_gradient_is_led_from_where_another_is():
    ends = np.array([[0.0], [1.0], [2.0]])
    density = Density(lambda x: (0.0, np.where(x == 1.0, x, np.nan)))
    np.testing.assert_array_equal(jumping._sound(density, ends), [[1.0], [1.0], [1.0]])


def test_a_trial_does_not_depend_on_how_many_draws_there_are_when_it_looks(monkeypatch):
    monkeypatch.setattr(jumping, "_TRIAL", 20)
    monkeypatch.setattr(jumping, "_LEAST_ESS", 2.0)
    rng, seen = np.random.default_rng(0), []
    chains = Chains(rng.standard_normal((2, 30, 1)), *(np.zeros((2, 30)) for _ in range(7)))
    trial = jumping._Trial(lambda w: seen.append(w.chains.n_draws), 1)
    assert trial(Watch(chains, 30, 1.0)) == 20
    assert trial.failed
    assert seen == [20]


def test_the_first_draws_are_kept_where_the_others_have_a_better_proposal(data, monkeypatch):
    seen = []

    def told(tuned, run, bent):
        seen.append((run.chains, jumps.refitted(tuned, run, bent)))
        return seen[-1][1]

    monkeypatch.setattr(jumping, "refitted", told)
    monkeypatch.setattr(jumping, "_REFIT", 40)
    posterior = fitted(data, target_ess=1e6, max_draws=120)
    ((first, tuned),) = seen
    assert posterior.chains.n_draws == 120
    np.testing.assert_array_equal(posterior.chains.x[:, :40], first.x)
    np.testing.assert_array_equal(tuned.ends, first.x[:, -1])
    assert tuned.seen.shape[1] > 40  # those of tuning too
    again = fitted(data, target_ess=1e6, max_draws=120)
    np.testing.assert_array_equal(again.chains.x, posterior.chains.x)


def test_ctrl_c_between_two_proposals_keeps_the_draws(data, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(jumping, "refitted", interrupted)
    monkeypatch.setattr(jumping, "_REFIT", 40)
    assert fitted(data, target_ess=1e6, max_draws=120).chains.n_draws == 40


def test_progress_goes_on_from_tuning_to_draws(data):
    class Told(integrand.progress.Silent):
        def __init__(self):
            self.at, self.seen = "", []

        def phase(self, name):
            self.at = name

        def update(self, done, total, text=""):
            if self.at == "final draws":
                self.seen.append((done, text))

    told = Told()
    fitted(data, progress=told)
    done = [d for d, _ in told.seen]
    assert done == sorted(done)
    first = next(i for i, (_, text) in enumerate(told.seen) if not text.startswith("tuning"))
    assert not any(text.startswith("tuning") for _, text in told.seen[first:])


def test_a_watcher_of_later_draws_sees_the_earlier_ones_too():
    def chains(n):
        return Chains(np.zeros((2, n, 1)), *(np.zeros((2, n)) for _ in range(7)))

    seen = []

    def watched(w):
        seen.append((w.chains.n_draws, w.done))
        return 12 if w.chains.n_draws >= 12 else None

    told = jumping._after(watched, 60, chains(10), 30)
    assert told(Watch(chains(0), 20, 1.0)) is None
    assert told(Watch(chains(5), 35, 2.0)) == 2
    assert seen == [(10, 70), (15, 75)]
