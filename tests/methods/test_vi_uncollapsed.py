from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import integrand
from integrand import ConvergenceWarning, Dataset, InputError, NumericalError
from integrand.methods import svgp as module
from integrand.methods.collapsed_vi import draws_of_q
from integrand.methods.problem import Settings
from integrand.methods.svgp import entropy, lower
from integrand.precision import float64_scope
from integrand.progress import Silent
from integrand.storage.model_file import load_model, save_model
from integrand.targets import CollapsedTarget

N, M = 40, 8  # as in the tests of svgp, so that programs are shared


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    X = np.sort(rng.uniform(-3.0, 3.0, (N, 1)), axis=0)
    return X, np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(N)


def fit(data, **options):
    return integrand.fit(*data, **({"method": "vi-uncollapsed", "n_inducing": M} | options))


@pytest.fixture(scope="module")
def fitted(data):
    return fit(data)


@pytest.fixture(scope="module")
def plane():
    """Rows of the shape of most tests of fits, so that programs are shared."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((N, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(N)


def collapsed(posterior, data, phis):
    """log p(φ) + L(θ, Z) at each φ, with the Z that was found."""
    rows = Dataset.of(posterior.scaler.transform_X(data[0]), posterior.scaler.transform_y(data[1]))
    target = CollapsedTarget(posterior.model, rows, posterior.jitter)
    return np.array([target.evaluate(phi, posterior.conditional.inputs).log_density for phi in phis])


@pytest.mark.slow
def test_the_bound_is_below_the_collapsed_one(data, fitted):
    last = fitted.history[-1]
    # At the same q(φ) and Z, and so below the best that vi-collapsed finds.
    phis = fitted.chains.x.reshape(-1, 3)
    terms = collapsed(fitted, data, phis) - fitted.chains.log_density.ravel() + 1.5 * np.log(2 * np.pi)
    error = np.hypot(last.error, terms.std() / np.sqrt(len(terms)))
    assert last.bound < terms.mean() + 3 * error
    other = fit(data, method="vi-collapsed")
    best = float(next(note for note in other.notes if "H[q]" in note).split(" is ")[1].split()[0])
    assert best - 10.0 < last.bound < best + 3 * error
    assert 0 < last.error < 0.2


@pytest.mark.slow
def test_predictions_are_those_of_the_draws(data, fitted):
    drawn = fit(data, method="sgpr-hmc-fixed-z", target_ess=100, chains=2)
    new = np.linspace(-3.0, 3.0, 40)[:, None]
    p, q = (one.predict(new, include_noise=True) for one in (drawn, fitted))
    assert np.abs(q.mean - p.mean).max() < 0.3 * p.sd.min()
    np.testing.assert_allclose(q.sd, p.sd, rtol=0.15)


@pytest.mark.slow
def test_the_pieces_fit_together(fitted):
    assert fitted.method == "vi-uncollapsed"
    assert fitted.verdict.ok, str(fitted.verdict)
    assert fitted.chains.x.shape == (4, 100, 3)
    assert fitted.verdict.convergence.ess_bulk.min() > 250
    q = fitted.conditional
    phis, Z, m, S = q.phis, q.inputs, q.weights, q.factors
    assert (phis.shape, Z.shape, m.shape, S.shape) == ((400, 3), (M, 1), (400, M), (400, M, M))
    assert np.ptp(m, axis=0).max() == np.ptp(S, axis=0).max() == 0.0
    assert fitted.counts["gradients"] == 4 * 5000
    np.testing.assert_array_equal(fitted.Z_path[-1], Z)
    np.testing.assert_allclose(phis.mean(axis=0), fitted.optimum, atol=0.1)
    assert any("±" in note for note in fitted.notes)


@pytest.mark.slow
def test_saved_and_loaded_it_predicts_the_same(fitted, data, tmp_path):
    save_model(fitted, tmp_path / "model")
    again = load_model(tmp_path / "model").posterior
    p, q = (one.predict(data[0], include_noise=True) for one in (fitted, again))
    np.testing.assert_array_equal(p.mean, q.mean)
    np.testing.assert_array_equal(p.variance, q.variance)
    assert again.verdict.codes == fitted.verdict.codes


@pytest.mark.slow
def test_the_same_seed_gives_the_same(data, fitted):
    again = fit(data)
    np.testing.assert_array_equal(again.chains.x, fitted.chains.x)
    np.testing.assert_array_equal(again.conditional.factors, fitted.conditional.factors)
    other = fit(data, seed=1)
    assert np.abs(other.optimum - fitted.optimum).max() > 1e-6
    assert other.history[-1].bound == pytest.approx(fitted.history[-1].bound, abs=1.0)


@pytest.mark.slow
def test_a_few_steps_are_not_enough(plane):
    with pytest.warns(ConvergenceWarning, match="still rose"):
        posterior = fit(plane, steps=500, learning_rate=0.001)
    assert posterior.verdict.codes[0] == "not-converged"


@pytest.mark.slow
def test_failures_are_told(data):
    with pytest.warns(ConvergenceWarning, match="failed numerically"):
        posterior = fit(data, steps=200, learning_rate=1000.0)
    assert "rejections" in posterior.verdict.codes
    assert posterior.counts["failures"] > 100


def test_interrupted(plane):
    class Interrupting(Silent):
        left = 4

        def update(self, done, total, text=""):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

    with pytest.warns(ConvergenceWarning, match="interrupted"):
        posterior = fit(plane, progress=Interrupting())
    assert "interrupted" in posterior.verdict.codes
    assert np.all(np.isfinite(posterior.predict(plane[0], include_noise=True).mean))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::integrand.ConvergenceWarning")  # of few steps
def test_a_run_that_was_cut_off_goes_on_as_if_it_had_not_been(plane, tmp_path):
    whole = fit(plane, steps=300)
    with pytest.warns(ConvergenceWarning, match="minutes used up"):
        cut = fit(plane, steps=300, max_minutes=1e-6, run_dir=tmp_path / "run")
    assert cut.counts["gradients"] == 4
    resumed = integrand.resume(tmp_path / "run", max_minutes=None)
    np.testing.assert_array_equal(resumed.chains.x, whole.chains.x)
    np.testing.assert_array_equal(resumed.conditional.factors, whole.conditional.factors)


def test_draws_that_fail_are_drawn_again_and_told(as_users_see_it):
    settings = Settings(chains=2, predictive_draws=100)
    problem = SimpleNamespace(settings=settings, rng=lambda purpose: np.random.default_rng(purpose))
    centre, C = np.array([1.0, 2.0]), np.array([[0.5, 0.0], [0.2, 0.3]])
    fine, none = draws_of_q(problem, centre, C, lambda phis: np.ones(len(phis), bool))
    assert none == ()
    chains, findings = draws_of_q(problem, centre, C, lambda phis: phis[:, 0] > 0.5)
    bad = fine.x[:, :, 0] <= 0.5
    assert 0 < bad.sum() < 50
    assert np.all(chains.x[:, :, 0] > 0.5)
    np.testing.assert_array_equal(chains.x[~bad], fine.x[~bad])
    assert [f.code for f in findings] == ["rejections"]
    assert findings[0].serious
    assert f"{bad.sum()} of 100 draws" in findings[0].sentence
    log_q = stats.multivariate_normal(centre, C @ C.T).logpdf(chains.x) + np.log(2 * np.pi)
    np.testing.assert_allclose(chains.log_density, log_q, atol=1e-9)
    with pytest.raises(NumericalError, match="no draw"):
        draws_of_q(problem, centre, C, lambda phis: np.zeros(len(phis), bool))


@pytest.mark.slow
def test_a_q_that_reaches_where_nothing_is_finite_is_told(data, monkeypatch):
    whole = module.lower
    monkeypatch.setattr(module, "lower", lambda root, diagonal: 400.0 * whole(root, diagonal))
    with pytest.warns(ConvergenceWarning, match="draws of q"):
        posterior = fit(data, steps=100, jitter=integrand.Jitter(0.0, 0.0))
    assert "rejections" in posterior.verdict.codes
    assert np.all(np.isfinite(posterior.predict(data[0], include_noise=False).mean))


@pytest.mark.slow
def test_labels_recover_their_probability():
    rng = np.random.default_rng(3)
    X, new = rng.uniform(-2.0, 2.0, (300, 1)), np.linspace(-1.8, 1.8, 30)[:, None]

    def probability(X):
        return 1.0 / (1.0 + np.exp(-3.0 * np.sin(2 * X[:, 0])))

    y = (rng.random(300) < probability(X)).astype(float)
    posterior = fit((X, y), likelihood="bernoulli", batch_size=50, steps=1000, vi_covariance="diagonal")
    p = posterior.predict(new, include_noise=True).mean
    assert np.abs(p - probability(new)).max() < 0.15
    assert abs(np.corrcoef(posterior.chains.x.reshape(-1, 2).T)[0, 1]) < 0.2  # of 400 draws
    assert posterior.verdict.ok, str(posterior.verdict)


def test_full_and_diagonal_factors():
    with float64_scope():
        root = np.array([[0.0, 5.0], [2.0, np.log(3.0)]])
        np.testing.assert_allclose(lower(root, False), [[1.0, 0.0], [2.0, 3.0]])
        np.testing.assert_allclose(lower(root, True), [[1.0, 0.0], [0.0, 3.0]])
        assert entropy(root) == pytest.approx(stats.multivariate_normal(cov=np.diag([1.0, 9.0])).entropy())


def test_there_must_be_something_to_integrate_over(data):
    with pytest.raises(InputError, match="nothing to integrate over"):
        fit(data, kernel=integrand.RBF(1.0, 1.0), noise=0.3)
