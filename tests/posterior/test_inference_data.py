"""What ArviZ gets, in the container and with the function names of the installed version."""

import dataclasses
import sys
import warnings

import numpy as np
import pytest
from scipy import stats

import integrand
from integrand import RBF, Gamma, HalfNormal, InputError, InverseGamma, Model, Normal, on_variance, standardised
from integrand.likelihoods import Bernoulli
from integrand.posterior import posterior as posterior_module
from integrand.posterior.inference_data import draws_that_predict, groups_of_draws_and_rows
from integrand.storage.model_file import load_model, save_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ArviZ 0.x announces its refactoring
    import arviz

    NEW = not arviz.__version__.startswith("0.")

POINTWISE = {"posterior_predictive", "log_likelihood"}
OF_ROWS = POINTWISE | {"observed_data", "constant_data"}
OF_DRAWS = {"posterior", "sample_stats", "log_prior"}


def groups(data):
    return set(data.children) if NEW else set(data.groups())


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = np.column_stack([50.0 + 10.0 * rng.standard_normal(60), rng.standard_normal(60)])
    return X, 300.0 + 30.0 * np.sin(X[:, 0] / 7.0) + 5.0 * rng.standard_normal(60)


@pytest.fixture(scope="module")
def fitted(rows):
    """An exact GP, so that leaving one row out has a closed form under each draw."""
    return integrand.fit(
        integrand.ArrayRows(*rows, ["age", "size"]),
        kernel=RBF(lengthscale=standardised(Gamma(2, 1)), scale=standardised(HalfNormal(2))),
        noise=standardised(on_variance(InverseGamma(2, 1))),
        mean=standardised(Normal(0, 1)),
        method="gpr-hmc",
        chains=2,
        target_ess=200,
    )


@pytest.fixture(scope="module")
def data(fitted, rows):
    return fitted.to_arviz(*rows)


def test_groups(fitted, data, rows):
    assert groups(fitted.to_arviz()) == OF_DRAWS
    assert groups(data) == OF_DRAWS | OF_ROWS
    X, y = rows
    assert np.array_equal(data["observed_data"]["y"].values, y)
    assert np.array_equal(data["constant_data"]["X"].values, X)
    assert list(data["constant_data"]["X"].coords["column"].values) == ["age", "size"]
    assert list(data["posterior"]["lengthscale"].coords["lengthscale_column"].values) == ["age", "size"]
    assert data["posterior"].attrs["inference_library"] == "integrand"


def test_all_groups_hold_the_same_draws(fitted, data):
    J = len(fitted.conditional.phis)
    for name in ("posterior", "sample_stats", "log_prior", *POINTWISE):
        assert (data[name].sizes["chain"], data[name].sizes["draw"]) == (2, J // 2), name
    noise = data["posterior"]["noise"].values
    predicts = fitted.predict(np.zeros((1, 2)), include_noise=False).components()[2]
    np.testing.assert_allclose(noise.ravel() ** 2, predicts, rtol=1e-10)


@pytest.mark.slow
def test_a_model_file_with_fewer_draws_is_one_chain(fitted, rows, tmp_path):
    save_model(fitted, tmp_path / "model", max_bytes=7 * 4 * 60 * 61)
    data = load_model(tmp_path / "model").posterior.to_arviz(*rows)
    assert (data["posterior"].sizes["chain"], data["posterior"].sizes["draw"]) == (1, 7)
    assert data["log_likelihood"]["y"].shape == (1, 7, 60)


def test_new_observations_have_the_moments_of_the_mixture(fitted, data, rows):
    predictive = fitted.predict(rows[0], include_noise=True)
    drawn = data["posterior_predictive"]["y"].values.reshape(-1, 60)
    z = (drawn.mean(axis=0) - predictive.mean) / (predictive.sd / np.sqrt(len(drawn)))
    assert np.abs(z).max() < 4.5
    np.testing.assert_allclose(drawn.std(axis=0), predictive.sd, rtol=0.25)


@pytest.mark.parametrize("original_units", [True, False])
def test_log_prior_is_the_density_of_the_numbers_beside_it(fitted, original_units):
    data = fitted.to_arviz(original_units=original_units)
    x_sd, y_sd = (fitted.scaler.x_sd, fitted.scaler.y_sd) if original_units else (np.ones(2), 1.0)
    draws, prior = data["posterior"], data["log_prior"]
    lengthscale = stats.gamma(2.0, scale=x_sd).logpdf(draws["lengthscale"].values).sum(axis=-1)
    np.testing.assert_allclose(prior["lengthscale"].values, lengthscale, rtol=1e-10)
    scale = stats.halfnorm(scale=2.0 * y_sd).logpdf(draws["scale"].values)
    np.testing.assert_allclose(prior["scale"].values, scale, rtol=1e-10)
    noise = draws["noise"].values / y_sd  # the prior is on its square: p(s) = p(s²) 2s
    of_noise = stats.invgamma(2.0).logpdf(noise**2) + np.log(2.0 * noise) - np.log(y_sd)
    np.testing.assert_allclose(prior["noise"].values, of_noise, rtol=1e-10)
    offset = fitted.scaler.y_mean if original_units else 0.0
    mean = stats.norm(offset, y_sd).logpdf(draws["mean"].values)
    np.testing.assert_allclose(prior["mean"].values, mean, rtol=1e-10)


@pytest.mark.slow
def test_leaving_one_row_out_agrees_with_its_closed_form(fitted, data, rows):
    """1/p(y_i | others) = E[1/p(y_i | others, θ)] over the posterior, with the exact GP's p under each draw."""
    inverse_densities = []
    X, y = fitted.scaler.transform_X(rows[0]), fitted.scaler.transform_y(rows[1])
    scale, noise, mean = (fitted.theta[name].ravel() for name in ("scale", "noise", "mean"))
    lengthscale = fitted.theta["lengthscale"].reshape(-1, 2)
    for j in range(0, len(scale), 2):
        scaled = X / lengthscale[j]
        distance = ((scaled[:, None] - scaled[None]) ** 2).sum(axis=-1)
        inverse = np.linalg.inv(scale[j] ** 2 * np.exp(-0.5 * distance) + noise[j] ** 2 * np.eye(60))
        variance = 1.0 / np.diagonal(inverse)
        left_out = y - variance * (inverse @ (y - mean[j]))
        inverse_densities.append(1.0 / stats.norm(left_out, np.sqrt(variance)).pdf(y))
    exact = -np.log(np.mean(inverse_densities, axis=0)).sum() - 60 * np.log(fitted.scaler.y_sd)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows with a large Pareto k
        found = arviz.loo(data)
    assert float(found.elpd if NEW else found.elpd_loo) == pytest.approx(exact, abs=3.0)
    # The log density of the training rows, each of which has been seen, is far from it.
    seen = fitted.predict(rows[0], include_noise=True).log_density(rows[1]).sum()
    assert seen > exact + 6.0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of ArviZ's own calls
def test_summary_and_plots_by_the_names_of_the_version(data):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    summary = arviz.summary(data)
    assert set(summary.index) == {"lengthscale[age]", "lengthscale[size]", "scale", "noise", "mean"}
    assert float(summary.loc["noise", "mean"]) == pytest.approx(data["posterior"]["noise"].values.mean(), rel=0.05)
    assert float(summary.loc["scale", "r_hat"]) < 1.1
    trace, posterior, check = (
        ("plot_trace_dist", "plot_dist", "plot_ppc_dist") if NEW else ("plot_trace", "plot_posterior", "plot_ppc")
    )
    for name in (trace, posterior, check, "plot_forest", "plot_rank"):
        before = set(pyplot.get_fignums())
        getattr(arviz, name)(data)
        figures = [pyplot.figure(number) for number in set(pyplot.get_fignums()) - before]
        assert figures, name
        assert any(axes.lines or axes.collections or axes.patches for f in figures for axes in f.axes), name
    pyplot.close("all")


def test_pointwise_arrays_are_left_out_beyond_a_number_of_rows(fitted, rows, monkeypatch):
    monkeypatch.setattr(posterior_module, "MOST_ROWS", 59)
    with pytest.warns(UserWarning, match="60 rows: beyond 59"):
        data = fitted.to_arviz(*rows)
    assert groups(data) == (OF_DRAWS | OF_ROWS) - POINTWISE
    assert data["posterior"].sizes["draw"] == fitted.chains.n_draws


def test_classes(fitted, rows):
    latent = fitted.predict(rows[0], include_noise=False)
    mean, variance, noise = latent.components()
    classes = dataclasses.replace(latent, model=Model(RBF(), 2, likelihood=Bernoulli()))
    classes.__dict__["_cached"] = (mean - 300.0, variance, noise)  # probabilities away from 0 and 1
    y = (rows[1] > 300.0).astype(float)
    found = groups_of_draws_and_rows(classes, y, draws_that_predict(fitted.conditional.phis, fitted.chains), seed=0)
    values = {name: group.variables["y"][1] for name, group in found.items()}
    assert set(np.unique(values["posterior_predictive"])) == {0.0, 1.0}
    assert np.all(values["log_likelihood"] <= 0.0)


def test_rows_are_checked(fitted, rows):
    X, y = rows
    with pytest.raises(InputError, match="both X and y"):
        fitted.to_arviz(X)
    with pytest.raises(InputError, match="for 60 rows"):
        fitted.to_arviz(X, y[:5])
    with pytest.raises(InputError, match="columns"):
        fitted.to_arviz(X[:, :1], y)


def test_a_missing_arviz_names_the_extra(fitted, monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(integrand.MissingPackageError, match=r"pip install 'integrand\[report\]'"):
        fitted.to_arviz()
