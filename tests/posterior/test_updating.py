"""New rows: the bound and q*(u) of all rows without the old ones, draws by weights, k-hat, or a new fit."""

import json
import math
import pickle
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import integrand as ig
from integrand import RBF, ArrayRows, Dataset, InputError, Jitter, MappedRows, ModelFileError, UnreliableWeightsError
from integrand.bounds.exact import log_marginal_likelihood
from integrand.cli.app import app
from integrand.data.scaling import Standardiser
from integrand.infer.base import Chains, Finding
from integrand.infer.importance import pareto_smoothed
from integrand.likelihoods import Poisson
from integrand.model import Model
from integrand.posterior.conditional import (
    ExactConditional,
    VariationalConditional,
    exact_conditional,
    sparse_conditional,
)
from integrand.posterior.updating import Updates, with_rows
from integrand.precision import float64_scope
from integrand.storage import tensor_file
from integrand.targets import CollapsedTarget

N, M, OLD = 90, 8, 76
rng = np.random.default_rng(3)
X = rng.uniform(-3.0, 3.0, (N, 2))
Y = 5.0 + 2.0 * (np.sin(2.0 * X[:, 0]) + 0.3 * rng.standard_normal(N))
V = rng.uniform(0.01, 0.5, N)
NEW = rng.uniform(-3.0, 3.0, (9, 2))
NOT_COVERED = Finding("rows-uncovered", False, "Z misses rows.", "")
SHORT = {"n_inducing": M, "chains": 2, "target_ess": 50, "predictive_draws": 100, "max_rounds": 1, "warmup": 40}


def fit(X, y, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ig.ConvergenceWarning)
        return ig.fit(X, y, **(SHORT | options))


def any_weights(monkeypatch):
    """Re-weight these short fits, whatever their weights say."""
    monkeypatch.setattr("integrand.posterior.reweighting.K_HAT_LIMIT", math.inf)
    monkeypatch.setattr("integrand.posterior.reweighting.LEAST_EFFICIENCY", 0.0)


@pytest.fixture(scope="module")
def fitted():
    return fit(X[:OLD], Y[:OLD])


@pytest.fixture(scope="module")
def updated(fitted):
    return fitted.update(X[OLD:83], Y[OLD:83]).update(X[83:], Y[83:])


def no_chains(n):
    """One chain of n draws whose log density is zero."""
    zero = np.zeros((1, n))
    counts = zero.astype(int)
    return Chains(np.zeros((1, n, 4)), zero, zero, zero, counts, counts, zero.astype(bool), zero)


# ---- the numbers


@pytest.mark.parametrize(("bound", "known", "varies"), [("titsias", True, False), ("tight", False, True)])
def test_each_draw_has_the_bound_and_the_posterior_of_all_rows(bound, known, varies):
    scaler, J = Standardiser.fit(X[:OLD], Y[:OLD]), 5
    model = Model(RBF(), 2, bound=bound).for_data(scaler)
    phis = model.start() + 0.3 * np.random.default_rng(0).standard_normal((J, model.n_theta))
    Z = np.random.default_rng(1).standard_normal((J, M, 2) if varies else (M, 2))

    def target(n):
        v = scaler.transform_variance(V[:n]) if known else None
        data = Dataset.of(scaler.transform_X(X[:n]), scaler.transform_y(Y[:n]), noise_variance=v)
        return CollapsedTarget(model, data)

    old, new = target(OLD), target(N)
    before = Updates(no_chains(J), sparse_conditional(phis, Z, old.inducing_posterior), np.zeros(J))
    for first, last in ((OLD, 77), (77, N)):
        v = V[first:last] if known else None
        rows = ArrayRows(X[first:last], Y[first:last], noise_variance=v)
        before, ranges = with_rows(model, Jitter(), scaler, before, rows)
        np.testing.assert_array_equal(ranges[:, 0], X[first:last].min(axis=0))
    Zs = Z if varies else [Z] * J
    gains = [new.value(phi, z) - old.value(phi, z) for phi, z in zip(phis, Zs, strict=True)]
    np.testing.assert_allclose(before.log_weights, gains, atol=1e-8)
    np.testing.assert_allclose(before.chains.log_density[0], gains, atol=1e-8)
    wanted = sparse_conditional(phis, Z, new.inducing_posterior)
    np.testing.assert_allclose(before.conditional.weights, wanted.weights, atol=1e-8)
    np.testing.assert_allclose(before.conditional.factors, wanted.factors, atol=1e-8)
    assert (before.n_rows, before.n_updates) == (N - OLD, 2)


@pytest.mark.slow
def test_an_exact_gp_appends_its_rows():
    scaler, J = Standardiser.fit(X[:OLD], Y[:OLD]), 3
    model = Model(RBF(), 2).for_data(scaler)
    phis = model.start() + 0.3 * np.random.default_rng(0).standard_normal((J, model.n_theta))
    v = scaler.transform_variance(V)

    def data(n):
        return Dataset.of(scaler.transform_X(X[:n]), scaler.transform_y(Y[:n]), noise_variance=v[:n])

    before = Updates(no_chains(J), exact_conditional(model, phis, data(OLD)), np.zeros(J))
    rows = ArrayRows(X[OLD:], Y[OLD:], noise_variance=V[OLD:])
    after, _ = with_rows(model, Jitter(), scaler, before, rows)
    wanted = exact_conditional(model, phis, data(N))
    np.testing.assert_allclose(after.conditional.inputs, wanted.inputs, atol=1e-12)
    np.testing.assert_allclose(after.conditional.weights, wanted.weights, atol=1e-7)
    np.testing.assert_allclose(after.conditional.factors, wanted.factors, atol=1e-9)

    def log_p(phi, n):
        gp = model.gp(model.theta(jnp.asarray(phi)))
        rows, y = data(n).arrays()
        return log_marginal_likelihood(gp, rows, y, v[:n])

    with float64_scope():
        gains = [float(jax.jit(lambda phi: log_p(phi, N) - log_p(phi, OLD))(phi)) for phi in phis[:1]]
    np.testing.assert_allclose(after.log_weights[:1], gains, atol=1e-8)


@pytest.mark.slow
def test_a_draw_that_cannot_take_the_rows_has_no_weight():
    scaler = Standardiser.identity(1)
    model = Model(RBF(), 1).for_data(scaler)
    data = Dataset.of(np.linspace(-1, 1, 9)[:, None], np.linspace(-1, 1, 9))
    phis = np.stack([model.start()] * 2)
    conditional = sparse_conditional(
        phis, np.linspace(-1, 1, 4)[:, None], CollapsedTarget(model, data).inducing_posterior
    )
    broken = replace(conditional, weights=conditional.weights * [[1.0], [np.nan]])
    after, _ = with_rows(model, Jitter(), scaler, Updates(no_chains(2), broken, np.zeros(2)), ArrayRows([[0.3]], [0.2]))
    assert np.isfinite(after.log_weights[0])
    assert after.log_weights[1] == -math.inf
    assert set(after.index) == {0}


# ---- draws by weights


@pytest.mark.slow
def test_draws_are_resampled_by_the_weights_of_all_updates(fitted, updated):
    assert fitted.updates is None
    u = updated.updates
    at_once = fitted.update(X[OLD:], Y[OLD:])
    np.testing.assert_allclose(u.log_weights, at_once.updates.log_weights, atol=1e-8)
    assert u.k_hat == pytest.approx(at_once.updates.k_hat, abs=1e-5)
    assert u.k_hat == pytest.approx(float(pareto_smoothed(u.log_weights).k_hat))
    expected = 100 * np.exp(pareto_smoothed(u.log_weights).log_weights)
    kept = np.array([np.sum(np.all(updated.conditional.phis == phi, axis=1)) for phi in u.conditional.phis])
    assert np.max(expected) > 1.2
    assert np.all(np.abs(kept - expected) < 1.01)
    # Draws, their densities and what predicts belong together.
    np.testing.assert_array_equal(updated.chains.x.reshape(100, -1), updated.conditional.phis)
    scaler, phi = updated.scaler, updated.chains.x[0, 0]
    target = CollapsedTarget(updated.model, Dataset.of(scaler.transform_X(X), scaler.transform_y(Y)))
    density = target.value(phi, updated.conditional.inputs) + target.log_prior(phi)
    assert updated.chains.log_density[0, 0] == pytest.approx(density, abs=1e-7)
    whole = sparse_conditional(updated.conditional.phis, updated.conditional.inputs, target.inducing_posterior)
    mean, sd = (getattr(updated.predict(NEW, include_noise=True), name) for name in ("mean", "sd"))
    by_all = replace(updated, conditional=whole).predict(NEW, include_noise=True)
    np.testing.assert_allclose(mean, by_all.mean, rtol=1e-9)
    np.testing.assert_allclose(sd, by_all.sd, rtol=1e-8)
    assert updated.to_arviz(X, Y).posterior["noise"].size == 100
    assert updated.loo(X, Y).n_rows == N


@pytest.mark.slow
def test_the_verdict_and_the_notes_say_what_was_updated(fitted, updated):
    u, verdict = updated.updates, updated.verdict
    said = f"k-hat {u.k_hat:.2f} (trusted up to 0.7), draws worth {u.effective:.0f} of 100."
    assert f"Updated with 14 rows in 2 steps: {said}" in str(verdict)
    assert sum(note.startswith("New rows: ") for note in updated.notes) == 1
    assert verdict.codes.count("updated") == 1
    # What was said of the model is of the rows of the fit; new rows that Z misses are not.
    assert "examined before the new rows" in verdict.model_headline
    assert "examined" not in fitted.verdict.model_headline
    uncovered = replace(verdict, sparseness=None, findings=(Finding("updated", False, "", ""), NOT_COVERED))
    assert uncovered.model_headline == "Model, with 1 remark:"
    # Sample sizes are those that the weights of all updates leave, not of each after the other.
    at_once = fitted.update(X[OLD:], Y[OLD:]).verdict.convergence
    np.testing.assert_allclose(verdict.convergence.ess_bulk, at_once.ess_bulk, rtol=1e-5)
    assert np.all(verdict.convergence.ess_bulk <= u.effective + 1e-9)
    assert updated.evidence is None
    assert updated.seconds["update"] > 0
    np.testing.assert_array_equal(updated.ranges, np.stack([X.min(axis=0), X.max(axis=0)], axis=1))


@pytest.mark.slow
def test_one_optimised_point_takes_rows_at_its_theta():
    ml2 = fit(X[:OLD], Y[:OLD], method="ml2", steps=20)
    after = ml2.update(X[OLD:], Y[OLD:])
    scaler = ml2.scaler
    target = CollapsedTarget(ml2.model, Dataset.of(scaler.transform_X(X), scaler.transform_y(Y)))
    q = target.inducing_posterior(ml2.optimum, ml2.conditional.inputs)
    np.testing.assert_allclose(after.conditional.weights[0], q.m, atol=1e-8)
    assert "Updated with 14 rows at the optimised hyperparameters" in str(after.verdict)
    assert after.updates.k_hat == 0.0


def test_rows_of_files_are_read_in_blocks(fitted, updated, tmp_path, monkeypatch):
    monkeypatch.setattr("integrand.posterior.updating._BLOCK", 6)
    frame = pd.DataFrame({"x0": X[OLD:, 0], "x1": X[OLD:, 1], "y": Y[OLD:]})
    frame.to_parquet(tmp_path / "new.parquet", row_group_size=5)
    for rows in (ig.open_rows(tmp_path / "new.parquet", "y", memory=0), MappedRows(X[OLD:], Y[OLD:])):
        np.testing.assert_allclose(fitted.update(rows).updates.log_weights, updated.updates.log_weights, atol=1e-8)


# ---- files


def test_a_model_file_keeps_the_weights(updated, tmp_path):
    ig.save_model(updated, tmp_path / "model")
    loaded = ig.load_model(tmp_path / "model").posterior
    np.testing.assert_array_equal(loaded.chains.x, updated.chains.x)
    np.testing.assert_array_equal(
        loaded.predict(NEW, include_noise=True).mean, updated.predict(NEW, include_noise=True).mean
    )
    assert repr(loaded.updates) == repr(updated.updates)
    assert str(loaded.verdict) == str(updated.verdict)
    one, two = (p.update(NEW, np.full(9, 5.0), strict=False).updates.log_weights for p in (loaded, updated))
    np.testing.assert_array_equal(one, two)
    ig.save_model(loaded, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()


def test_a_file_with_fewer_draws_keeps_their_weights(updated, tmp_path):
    ig.save_model(updated, tmp_path / "model", max_bytes=40 * 4 * M * (M + 1))
    loaded = ig.load_model(tmp_path / "model").posterior
    index = np.linspace(0, 99, 40).astype(int)
    np.testing.assert_array_equal(loaded.updates.log_weights, updated.updates.log_weights[index])
    np.testing.assert_array_equal(loaded.updates.chains.x.reshape(40, -1), loaded.updates.conditional.phis)
    assert loaded.conditional.n_draws == 40


@pytest.mark.parametrize("change", ["no weights", "few weights", "nan", "no header", "all zero"])
def test_a_file_whose_weights_make_no_sense_is_refused(updated, tmp_path, change):
    ig.save_model(updated, tmp_path / "model")
    with open(tmp_path / "model", "rb") as stream:
        text, arrays = tensor_file.read(stream)
    header, arrays = json.loads(text), {name: array.copy() for name, array in arrays.items()}
    if change == "no weights":
        del arrays["draws.log_weight"]
    elif change == "few weights":
        arrays["draws.log_weight"] = arrays["draws.log_weight"][:, :-1]
    elif change == "nan":
        arrays["draws.log_weight"][0, 0] = np.nan
    elif change == "all zero":
        arrays["draws.log_weight"][:] = -np.inf
    else:
        header["updates"] = None
    (tmp_path / "model").write_bytes(tensor_file.to_bytes(json.dumps(header), arrays))
    with pytest.raises(ModelFileError, match="weight"):
        ig.load_model(tmp_path / "model")


# ---- a new fit


@pytest.mark.slow
def test_rows_that_change_theta_ask_for_a_new_fit(tmp_path):
    run = tmp_path / "run"
    first = fit(X[:OLD], Y[:OLD], run_dir=run)
    noisy = Y[OLD:] + 20.0 * np.random.default_rng(0).standard_normal(N - OLD)
    with pytest.raises(
        UnreliableWeightsError, match=r"k-hat is .* above 0\.7.* Refit .*`integrand\.update` as `old_rows`"
    ):
        first.update(X[OLD:], noisy)
    bad = first.update(X[OLD:], noisy, strict=False)
    assert not bad.verdict.ok
    assert not bad.updates.k_hat <= 0.7
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ig.ConvergenceWarning)
        again = ig.update(first, X[OLD:], noisy, old_rows=run)
    assert again.updates is None
    assert again.scaler.y_sd > 1.5 * first.scaler.y_sd
    assert again.notes[-1].startswith("Fitted again with all 90 rows, because the new rows change")
    assert "Z started from given." in again.notes
    assert again.conditional.n_draws == first.conditional.n_draws
    later = first.update(X[OLD:78], Y[OLD:78], strict=False)
    with pytest.raises(InputError, match="not the rows that the posterior has seen"):
        ig.update(later, X[OLD:], noisy, old_rows=run)


@pytest.mark.slow
def test_a_new_fit_after_exact_predictions_has_as_many_inducing_points(fitted, monkeypatch):
    any_weights(monkeypatch)
    exact = fitted.reweighted(X[:OLD], Y[:OLD], exact_predictions=True)
    noisy = Y[OLD:] + 20.0 * np.random.default_rng(0).standard_normal(N - OLD)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ig.ConvergenceWarning)
        short = {name: value for name, value in SHORT.items() if name != "n_inducing"}
        again = ig.update(exact, X[OLD:], noisy, old_rows=(X[:OLD], Y[:OLD]), **short)
    assert again.Z.shape == (M, 2)
    assert "Z started from given." in again.notes


@pytest.mark.slow
def test_rows_that_the_inducing_points_miss_ask_for_others(fitted):
    far = X[OLD:] + 12.0
    missed = fitted.update(far, Y[OLD:], strict=False)
    assert "rows-uncovered" in missed.verdict.codes
    assert "at 14 of the 14 new rows" in str(missed.verdict)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ig.ConvergenceWarning)
        again = ig.update(fitted, far, Y[OLD:], old_rows=(X[:OLD], Y[:OLD]), **SHORT)
    assert again.updates is None
    assert np.any(again.Z > 6.0)


# ---- interfaces


@pytest.mark.slow
def test_estimators_take_new_rows(fitted, tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b"])
    gp = ig.SparseGPRegressor(n_inducing=M, chains=2, target_ess=50, settings={"predictive_draws": 100}, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ig.ConvergenceWarning)
        gp.fit(frame[:OLD], Y[:OLD])
    assert gp.update(frame[OLD:], Y[OLD:]) is gp
    assert gp.posterior_.updates.n_rows == 14
    assert gp.diagnostics_ is gp.posterior_.verdict
    np.testing.assert_array_equal(gp.feature_ranges_, np.stack([X.min(axis=0), X.max(axis=0)], axis=1))
    copy = pickle.loads(pickle.dumps(gp))
    np.testing.assert_array_equal(copy.predict(frame), gp.predict(frame))
    assert repr(copy.posterior_.updates) == repr(gp.posterior_.updates)
    gp.save(tmp_path / "gp")
    np.testing.assert_array_equal(ig.SparseGPRegressor.load(tmp_path / "gp").update(frame[:3], Y[:3]).n_inducing_, M)
    with pytest.raises(InputError, match="feature names"):
        gp.update(frame[["b", "a"]], Y)


def test_the_command_line_takes_new_rows(fitted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"x0": X[:, 0], "x1": X[:, 1], "y": Y})
    frame[:OLD].to_csv("old.csv", index=False)
    frame[OLD:].to_csv("new.csv", index=False)
    frame[OLD:].assign(y=20.0 * frame["y"]).to_csv("other.csv", index=False)
    settings = {name: SHORT[name] for name in ("n_inducing", "chains", "target_ess", "max_rounds", "warmup")}
    ig.save_model(fitted, "m", target_name="y", settings=settings | {"kernel": "rbf"}, extra={"n_rows": OLD})

    def run(*arguments, code=0):
        result = CliRunner().invoke(app, list(map(str, arguments)))
        assert result.exit_code == code, result.output + str(result.exception)
        return result

    facts = json.loads(run("update", "m", "new.csv", "--out", "u", "--json").stdout)
    assert facts["new_rows"] == 14
    assert facts["fitted_again"] is False
    assert facts["k_hat"] <= 0.7
    saved = ig.load_model("u")
    assert saved.extra["n_rows"] == N
    np.testing.assert_array_equal(
        saved.posterior.updates.log_weights, fitted.update(X[OLD:], Y[OLD:]).updates.log_weights
    )
    said = run("update", "m", "new.csv", "--out", "u").stdout
    assert said.startswith("Fitted on 76 rows, 2 columns: x0, x1; updated with 14 rows\n")
    run("report", "u", "--data", "new.csv", "--out", "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "Updated with 14 rows" in page
    assert "90, 14 of them new since the fit" in page
    refused = run("update", "m", "other.csv", "--out", "w", code=2).stderr
    assert "give the earlier ones to `integrand update` as `--old-rows`" in refused
    said = run("update", "m", "other.csv", "--out", "w", "--old-rows", "old.csv").stdout
    assert said.startswith("Fitted again with all 90 rows")
    assert "\nFitted on 90 rows, 2 columns: x0, x1\n" in said
    assert ig.load_model("w").posterior.updates is None


# ---- what is refused


def test_what_cannot_be_updated_is_refused(fitted, updated):
    new = X[OLD:], Y[OLD:]
    with pytest.raises(InputError, match="X has 1 columns, but the model was fitted to 2"):
        fitted.update(X[OLD:, :1], Y[OLD:])
    with pytest.raises(InputError, match="y is missing"):
        fitted.update(X[OLD:])
    with pytest.raises(InputError, match="NaN"):
        fitted.update(np.where(X[0] == X, np.nan, X), Y)
    counts = replace(fitted, model=Model(RBF(), 2, likelihood=Poisson()))
    with pytest.raises(InputError, match="update is for Gaussian noise: with a poisson likelihood"):
        counts.update(*new)
    with pytest.raises(InputError, match="poisson likelihood takes no `noise_variance`"):
        counts.update(*new, V[OLD:])
    with pytest.raises(InputError, match="closed form, such as sgpr-hmc"):
        replace(fitted, conditional=VariationalConditional(*vars(fitted.conditional).values())).update(*new)
    named = replace(fitted, model=Model(RBF(), ["a", "b"], noise=0.0))
    with pytest.raises(InputError, match="the columns are b, a, but the model was fitted to a, b"):
        named.update(pd.DataFrame(X[OLD:], columns=["b", "a"]), Y[OLD:], V[OLD:])
    with pytest.raises(InputError, match="give variances above zero as noise_variance"):
        named.update(*new)
    with pytest.raises(InputError, match="variances above zero"):
        named.update(*new, np.zeros(N - OLD))
    for other in ({"bound": "tight"}, {"target_transform": "log"}, {"kernel": RBF()}):
        with pytest.raises(InputError, match=f"keeps the model and method .*: leave out {next(iter(other))}="):
            ig.update(fitted, *new, **other)
    with pytest.raises(InputError, match="old_rows are"):
        ig.update(fitted, X[OLD:] + 12.0, Y[OLD:], old_rows=X)
    with pytest.raises(InputError, match="old_rows have 1 columns"):
        ig.update(fitted, X[OLD:] + 12.0, Y[OLD:], old_rows=(X[:OLD, :1], Y[:OLD]))
    with pytest.raises(InputError, match="not the rows"):
        ig.update(fitted, X[OLD:] + 12.0, Y[OLD:], old_rows=(X[:OLD], Y[:OLD] + 0.01))


def test_few_draws_are_not_trusted(fitted):
    few = Updates(no_chains(10), fitted.conditional.subset(slice(0, 10)), np.arange(10.0), 5, 1)
    assert "10 draws, too few for k-hat, are worth only 2" in few.problem
    assert few.effective < 3.0
    skewed = Updates(no_chains(100), fitted.conditional, np.r_[np.full(90, -30.0), np.zeros(10)], 5, 1)
    assert not skewed.k_hat > 0.7
    assert "100 draws are worth only" in skewed.problem
    assert Updates(no_chains(100), fitted.conditional, np.zeros(100), 5, 1).problem == ""


def test_factors_of_an_exact_gp_that_do_not_fit_are_refused(fitted):
    factors = np.broadcast_to(np.eye(OLD), (100, OLD, OLD))
    exact = ExactConditional(fitted.conditional.phis, X[:OLD], np.zeros((100, OLD)), factors)
    rows = MappedRows(np.broadcast_to(X[:1], (2_000, 2)), np.broadcast_to(Y[:1], 2_000))
    with pytest.raises(InputError, match=r"with 2076 rows .* need 3\.2 GB: fit all rows again"):
        replace(fitted, conditional=exact).update(rows)


def test_reweighted_draws_start_from_themselves(updated, monkeypatch):
    any_weights(monkeypatch)
    exact = updated.reweighted(X, Y)
    assert exact.updates is None
    assert exact.update(NEW, np.full(9, 5.0), strict=False).updates.n_rows == 9


@pytest.mark.parametrize("exact_predictions", [False, True])
def test_reweighted_draws_with_new_rows_can_be_saved(fitted, tmp_path, monkeypatch, exact_predictions):
    any_weights(monkeypatch)
    exact = fitted.reweighted(X[:OLD], Y[:OLD], exact_predictions=exact_predictions)
    later = exact.update(X[OLD:], Y[OLD:], strict=False)
    assert later.updates.chains.x.shape == exact.chains.x.shape
    ig.save_model(later, tmp_path / "model")
    loaded = ig.load_model(tmp_path / "model").posterior
    np.testing.assert_array_equal(loaded.chains.x, later.chains.x)
    # Draws of two chains that are kept unevenly are one chain, of which the verdict speaks.
    size = later.conditional.weights.shape[1]
    ig.save_model(loaded, tmp_path / "few", max_bytes=31 * 4 * size * (size + 1))
    few = ig.load_model(tmp_path / "few").posterior
    assert len(few.verdict.e_bfmi) == len(few.chains.x)
    ig.save_model(few, tmp_path / "again")


def test_rows_that_no_draw_allows_are_a_reason_for_a_new_fit(fitted, monkeypatch):
    none = fitted.update([[1.0, 1.0]], [1e160], strict=False)
    assert none.updates.k_hat == math.inf
    np.testing.assert_array_equal(np.sort(none.updates.index), np.arange(100))
    with pytest.raises(UnreliableWeightsError, match=r"impossible under each of the 100 draws .*zero.* Refit"):
        fitted.update([[1.0, 1.0]], [1e160])
    calls = []
    monkeypatch.setattr("integrand.methods.fit._fitted_again", lambda *a: calls.append(a) or fitted)
    again = ig.update(fitted, [[1.0, 1.0]], [1e160], old_rows=(X[:OLD], Y[:OLD]))
    assert len(calls) == 1
    assert "because the new rows are impossible" in again.notes[-1]


@pytest.mark.slow
def test_a_model_with_few_draws_is_judged_by_what_they_are_worth(fitted, tmp_path, monkeypatch):
    ig.save_model(fitted, tmp_path / "model", max_bytes=12 * 4 * M * (M + 1))
    loaded = ig.load_model(tmp_path / "model").posterior
    later = loaded.update(X[:1], loaded.predict(X[:1], include_noise=True).mean)
    assert later.conditional.n_draws == 12
    assert (later.updates.k_hat, later.updates.problem) == (math.inf, "")
    assert f"k-hat unknown for so few draws, draws worth {later.updates.effective:.0f} of 12" in str(later.verdict)
    with pytest.raises(UnreliableWeightsError, match=r"12 draws, too few for k-hat, are worth only"):
        loaded.update(X[OLD:], Y[OLD:] + 20.0 * np.random.default_rng(0).standard_normal(N - OLD))
    with pytest.raises(UnreliableWeightsError, match=r"12 draws are too few for k-hat"):
        loaded.reweighted(X[:OLD], Y[:OLD])
