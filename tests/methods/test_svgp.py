import logging
import warnings
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import integrand
from integrand import RBF, ConvergenceWarning, InputError, Jitter, NotConvergedError, NumericalError
from integrand.data.dataset import Dataset
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows
from integrand.infer.minibatch_adam import Ascent, Batches
from integrand.likelihoods import Gaussian, Poisson
from integrand.methods import svgp as module
from integrand.methods.problem import Settings
from integrand.methods.svgp import decaying
from integrand.progress import Silent
from integrand.storage.model_file import load_model, save_model
from integrand.targets import CollapsedTarget

N, M = 40, 8


@pytest.fixture(scope="module")
def data():
    """Of the shape of most tests of fits, so that programs are shared."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(N)


@pytest.fixture(scope="module")
def line():
    """Rows of which eight inducing points miss nothing."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-3.0, 3.0, (N, 1)), axis=0)
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(N)
    return X, (y - y.mean()) / y.std()


def fit(data, **options):
    return integrand.fit(*data, **({"method": "svgp", "n_inducing": M} | options))


@pytest.fixture(scope="module")
def fitted(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return fit(data, steps=1000)


@pytest.fixture(scope="module")
def fitted_line(line):
    return fit(line)


class Interrupting(Silent):
    """Presses Ctrl-C after so many reports."""

    def __init__(self, after):
        self.left = after

    def update(self, done, total, text=""):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


# --- it finds what there is to find


@pytest.mark.slow
@pytest.mark.parametrize("poor", [False, True], ids=["default start", "start at N(0, I)"])
def test_with_every_row_inducing_it_is_the_exact_gp(line, monkeypatch, poor):
    if poor:
        whole = module.starting_unknowns
        monkeypatch.setattr(module, "starting_unknowns", lambda problem, plain: whole(problem, plain=True))
    X, _ = line
    numbers = {"kernel": RBF(0.8, 1.0), "noise": 0.3}
    line = (ArrayRows(*line, scaler=Standardiser.identity(1)),)
    exact = fit(line, method="gpr-ml2", **numbers)
    sparse = fit(line, Z=X, jitter=Jitter(0.0, 1e-12), **numbers)
    assert sparse.model.n_theta == 0
    assert sparse.conditional.factors.shape == (1, N, N)
    new = np.vstack([X, np.linspace(-4.0, 4.0, 50)[:, None]])
    f, g = (p.predict(new, include_noise=False) for p in (exact, sparse))
    np.testing.assert_allclose(g.mean, f.mean, atol=1e-4)
    np.testing.assert_allclose(g.variance, f.variance, atol=1e-4)
    assert sparse.history[-1].bound == pytest.approx(exact.history[-1].bound, abs=1e-4)
    if poor:
        assert sparse.history[0].bound < exact.history[-1].bound - 10.0


@pytest.mark.slow
def test_it_climbs_to_the_collapsed_optimum(line, fitted_line):
    ml2 = fit(line, method="ml2")
    assert fitted_line.verdict.ok, str(fitted_line.verdict)
    assert str(fitted_line.verdict) == "Optimised: the optimiser took 5000 steps."
    assert fitted_line.history[-1].bound == pytest.approx(ml2.history[-1].bound, abs=0.1)
    f, g = (p.predict(line[0], include_noise=True) for p in (ml2, fitted_line))
    np.testing.assert_allclose(g.mean, f.mean, atol=0.03)
    np.testing.assert_allclose(g.sd, f.sd, rtol=0.05)


@pytest.mark.slow
def test_batches_lead_to_nearly_the_same(line, fitted_line):
    batches = fit(line, batch_size=10)
    assert fitted_line.history[-1].bound - 2.0 < batches.history[-1].bound < fitted_line.history[-1].bound + 0.1
    assert "5000 steps of Adam on batches of 10 rows." in batches.notes
    assert "5000 steps of Adam on all rows." in fitted_line.notes
    errors = [point.error for point in batches.history]
    assert all(error > 0 for error in errors[:-1])
    assert errors[-1] == 0.0  # on all rows


@pytest.mark.slow
def test_it_ends_with_the_best_q_for_its_theta_and_inducing_inputs(line):
    """Long steps to the end: Adam's q(u) is behind θ and Z, and the bound with the best is the collapsed one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        posterior = fit(line, batch_size=10, steps=50, learning_rate=0.1)
    short = next(note for note in posterior.notes if note.startswith("Adam's q(u) was "))
    assert 0.01 <= float(short.split()[3]) < 20.0
    rows = Dataset.of(posterior.scaler.transform_X(line[0]), posterior.scaler.transform_y(line[1]))
    target = CollapsedTarget(posterior.model, rows, posterior.jitter)
    collapsed = target.evaluate(posterior.optimum, posterior.conditional.inputs).log_likelihood
    assert posterior.history[-1].bound == pytest.approx(collapsed, abs=1e-6)
    short = next(finding for finding in posterior.verdict.findings if finding.code == "short")
    assert "gain" in short.sentence
    assert not short.serious


@pytest.mark.slow
def test_counts_recover_their_rate():
    rng = np.random.default_rng(3)
    X, new = rng.uniform(-2.0, 2.0, (300, 1)), np.linspace(-1.8, 1.8, 30)[:, None]

    def rate(X):
        return np.exp(1.0 + np.sin(2 * X[:, 0]))

    y = rng.poisson(rate(X)).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 300 steps may be too few to be sure
        posterior = fit((X, y), likelihood="poisson", batch_size=100, steps=1500)
    p = posterior.predict(new, include_noise=True)
    np.testing.assert_allclose(p.mean, rate(new), rtol=0.3)
    assert np.all(p.variance > p.mean)  # the rate itself is not known for certain
    assert "Z started from k-means." in posterior.notes


# --- what it returns


def test_the_pieces_fit_together(fitted, data):
    assert fitted.method == "svgp"
    assert fitted.chains.x.shape == (1, 1, 4)
    assert fitted.chains.log_density[0, 0] == fitted.history[-1].bound
    np.testing.assert_array_equal(fitted.Z_path[-1], fitted.conditional.inputs)
    assert fitted.counts == {"gradients": 1000, "failures": 0}
    assert fitted.notes[-1] == f"The bound on all rows is {fitted.history[-1].bound:.2f} nats."
    S = fitted.conditional.factors[0]
    np.testing.assert_array_equal(np.triu(S, 1), 0.0)
    assert np.all(np.diagonal(S) > 0)


@pytest.mark.slow
def test_saved_and_loaded_it_predicts_the_same(fitted_line, line, tmp_path):
    save_model(fitted_line, tmp_path / "model")
    again = load_model(tmp_path / "model").posterior
    p, q = (one.predict(line[0], include_noise=True) for one in (fitted_line, again))
    np.testing.assert_array_equal(p.mean, q.mean)
    np.testing.assert_array_equal(p.variance, q.variance)
    assert again.history == fitted_line.history


def compiled(caplog):
    return [record.getMessage() for record in caplog.records if "ompil" in record.getMessage()]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_and_compiles_nothing(line, caplog):
    first = fit(line, batch_size=10, seed=3)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        second = fit(line, batch_size=10, seed=3)
    assert not compiled(caplog)
    for name, array in vars(first.conditional).items():
        np.testing.assert_array_equal(array, getattr(second.conditional, name))
    other = fit(line, batch_size=10, seed=4)
    assert np.abs(other.optimum - first.optimum).max() > 1e-6


@pytest.mark.slow
def test_the_papers_schedule(line, monkeypatch, caplog):
    monkeypatch.setattr(module, "PAPER_EPOCHS", 30)
    monkeypatch.setattr(module, "PAPER_BATCH", 10)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        posterior = fit(line, schedule="paper", batch_size=7)
    assert compiled(caplog)  # another program, and the listener hears of it
    assert "120 steps of Adam on batches of 10 rows." in posterior.notes
    assert posterior.history[-1].bound > posterior.history[0].bound + 10.0
    assert any(note.startswith("q(u) is ") and "short of the best" in note for note in posterior.notes)


# --- when it does not go well


def test_failed_steps_are_taken_back_and_counted(data):
    with pytest.warns(ConvergenceWarning, match="failed numerically"):
        posterior = fit(data, learning_rate=300.0, steps=200)
    assert posterior.counts["failures"] > 0
    assert "rejections" in posterior.verdict.codes
    assert f"{posterior.counts['failures']} of them failed numerically and were taken back." in posterior.notes
    assert np.all(np.isfinite(posterior.predict(data[0], include_noise=True).mean))


def test_nothing_works_from_a_start_that_fails(data, monkeypatch):
    whole = module.starting_unknowns

    def broken(problem, plain):
        start, name = whole(problem, plain)
        return start._replace(Z=start.Z * np.nan), name

    monkeypatch.setattr(module, "starting_unknowns", broken)
    with pytest.raises(NumericalError, match=r"not finite where Adam starts.*larger jitter"):
        fit(data, steps=10)


def test_interrupted(data, fitted):
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        posterior = fit(data, progress=Interrupting(after=3))
    assert "interrupted" in posterior.verdict.codes
    done = posterior.counts["gradients"]
    assert 1 < done < 5000
    assert "Adam ended before its 5000 steps: interrupted." in posterior.notes
    assert posterior.history[-1].bound < fitted.history[-1].bound
    assert np.all(np.isfinite(posterior.predict(data[0], include_noise=True).mean))


def test_minutes(data):
    with pytest.raises(NotConvergedError, match="minutes used up"):
        fit(data, max_minutes=1e-6, strict=True)
    with pytest.warns(ConvergenceWarning, match="minutes used up"):
        posterior = fit(data, max_minutes=1e-6)
    assert "budget" in posterior.verdict.codes
    assert posterior.counts["gradients"] == 1
    assert "Adam ended before its 5000 steps: minutes used up." in posterior.notes


def test_a_run_that_was_cut_off_goes_on_as_if_it_had_not_been(data, tmp_path):
    options = {"steps": 1000}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        whole = fit(data, **options)
        cut = fit(data, progress=Interrupting(after=3), run_dir=tmp_path / "run", **options)
        resumed = integrand.resume(tmp_path / "run")
        again = integrand.resume(tmp_path / "run")  # there is nothing left to do
    assert 1 < cut.counts["gradients"] < 1000 == resumed.counts["gradients"] == again.counts["gradients"]
    for one in (resumed, again):
        for name, array in vars(whole.conditional).items():
            np.testing.assert_array_equal(array, getattr(one.conditional, name))
        assert [p.bound for p in one.history] == [p.bound for p in whole.history]


def test_settings_are_checked():
    for name, wrong in (("batch_size", 0), ("learning_rate", 0.0), ("learning_rate", np.inf)):
        with pytest.raises(InputError, match=name):
            Settings(**{name: wrong})


# --- parts


def test_every_row_is_used_equally_often():
    batches = Batches(np.random.default_rng(0), 10, 4)
    rows = np.concatenate([batches.take(count) for count in (1, 3, 6)])
    assert rows.shape == (10, 4)
    np.testing.assert_array_equal(np.bincount(rows.ravel()), 4)
    whole = Batches(np.random.default_rng(0), 10, 40)
    assert whole.all_rows
    np.testing.assert_array_equal(whole.take(2), [np.arange(10)] * 2)
    one = Batches(np.random.default_rng(0), 10, 4).take(10)
    np.testing.assert_array_equal(one, rows)  # however many are taken at a time


def rates_of(likelihood, steps):
    problem = SimpleNamespace(settings=Settings(steps=steps), model=SimpleNamespace(likelihood=likelihood))
    return decaying(problem)


def test_the_rate_decays(as_users_see_it):
    rates = rates_of(Poisson(), 100)
    assert rates.shape == (100, 2)
    assert len(rates_of(Poisson(), None)) == 5_000
    assert np.all(rates[:50, 0] == 0.01)
    assert 0 < rates[-1, 0] < 0.001
    np.testing.assert_array_equal(rates[:10, 1], 0.0)
    np.testing.assert_array_equal(rates[10:, 1], rates[10:, 0])
    gaussian = rates_of(Gaussian(), 100)
    np.testing.assert_array_equal(gaussian[:, 1], rates[:, 0])


def test_a_bound_that_still_climbs_is_told_from_noise(as_users_see_it):
    rng = np.random.default_rng(0)
    noise, rates = rng.standard_normal(1000), rates_of(Gaussian(), 1000)

    def climbing(values, rates=rates):
        return Ascent(None, values, 0, rates, "").unfinished

    assert climbing(noise) == ""
    assert "over the last tenth" in climbing(noise + np.arange(1000) / 50)
    # The rate falls to nothing, and with it the climb: it had not come to its end.
    slowed = 0.03 * np.cumsum(rates[:, 0] / 0.01)
    assert "at full rate" in climbing(noise + np.minimum(slowed, slowed[700]))
    constant = np.ones((1000, 2))
    assert climbing(np.minimum(slowed, slowed[700]), constant) == ""
    assert "Too few" in climbing(np.full(1000, np.nan))
    assert "Too few" in climbing(noise[:50])
    assert "Too few" in climbing(noise[:0])
