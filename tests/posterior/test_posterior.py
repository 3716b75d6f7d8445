import dataclasses

import numpy as np
import pandas as pd
import pytest

import integrand
from integrand import RBF, Dataset, InputError, Jitter, Linear, Normal, Periodic
from integrand.data.scaling import Standardiser
from integrand.infer.base import Chains
from integrand.posterior.conditional import marginals, sparse_conditional
from integrand.targets import CollapsedTarget

COLUMNS = ("age", "size")
N = 40


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    X = np.column_stack([50.0 + 10.0 * rng.standard_normal(N), 1e-3 * rng.standard_normal(N)])
    return X, 1000.0 + 30.0 * np.sin(X[:, 0] / 7.0) + 3.0 * rng.standard_normal(N)


def with_draws(posterior, seed=0, chains=3, draws=50):
    """The posterior with draws around its optimum, as if they had been sampled."""
    rng = np.random.default_rng(seed)
    shape = (chains, draws)
    x = posterior.optimum + 0.1 * rng.standard_normal((*shape, len(posterior.optimum)))
    ones = np.ones(shape)
    statistics = Chains(
        x, -ones, rng.standard_normal(shape), 0.8 * ones, 7 * ones.astype(int), 3 * ones.astype(int), ones > 2, ones
    )
    return dataclasses.replace(posterior, chains=statistics)


@pytest.fixture(scope="module")
def posterior(data):
    rows = integrand.ArrayRows(*data, COLUMNS)
    mean = integrand.standardised(Normal(0.0, 1.0))
    fitted = integrand.fit(rows, kernel=RBF(), mean=mean, method="map", n_inducing=8)
    return with_draws(fitted)


@pytest.mark.slow
def test_draws_by_name(posterior):
    assert posterior.model.names == ("lengthscale[age]", "lengthscale[size]", "scale", "noise", "mean")
    theta = posterior.theta
    assert {k: v.shape for k, v in theta.items()} == {
        "lengthscale": (3, 50, 2),
        "scale": (3, 50),
        "noise": (3, 50),
        "mean": (3, 50),
    }
    phi = posterior.chains.x[1, 7]
    np.testing.assert_allclose(theta["lengthscale"][1, 7], np.exp(phi[:2]), rtol=1e-12)
    np.testing.assert_allclose(theta["noise"][1, 7], np.exp(phi[3]), rtol=1e-12)
    assert theta["mean"][1, 7] == phi[4]
    np.testing.assert_allclose(posterior.theta_optimum["lengthscale"], np.exp(posterior.optimum[:2]), rtol=1e-12)
    assert all(v.dtype == np.float64 for v in theta.values())


def test_original_units(posterior, data):
    X, y = data
    theta, original = posterior.theta, posterior.theta_original
    np.testing.assert_allclose(original["lengthscale"], theta["lengthscale"] * X.std(axis=0), rtol=1e-10)
    np.testing.assert_allclose(original["scale"], theta["scale"] * y.std(), rtol=1e-10)
    np.testing.assert_allclose(original["noise"], theta["noise"] * y.std(), rtol=1e-10)
    np.testing.assert_allclose(original["mean"], theta["mean"] * y.std() + y.mean(), rtol=1e-10)


def test_original_units_of_some(posterior, data):
    assert posterior.in_original_units({"noise": 0.2}) == {"noise": pytest.approx(0.2 * data[1].std())}
    with pytest.raises(InputError, match="no inferred hyperparameter 'nois': choose from lengthscale, scale, noise"):
        posterior.in_original_units({"nois": 0.2})


def test_a_gp_with_the_original_units_predicts_the_same_without_scaling(posterior, data):
    X, y = data
    phi = posterior.optimum[None]
    original = posterior.in_original_units(posterior.theta_optimum)
    model = posterior.model
    raw = model.unconstrained(original)[None]
    conditional = sparse_conditional(raw, posterior.Z, CollapsedTarget(model, Dataset.of(X, y)).inducing_posterior)
    means, variances, noise = marginals(model, Jitter(), conditional, X[:9])
    standardised = Dataset.of(posterior.scaler.transform_X(X), posterior.scaler.transform_y(y))
    ours = dataclasses.replace(
        posterior,
        conditional=sparse_conditional(
            phi, posterior.Z_path[-1], CollapsedTarget(model, standardised).inducing_posterior
        ),
    ).predict(X[:9], include_noise=True)
    np.testing.assert_allclose(ours.mean, means[0], rtol=1e-8)
    np.testing.assert_allclose(ours.variance, variances[0] + noise[0], rtol=1e-6)


def test_other_units_of_the_data_change_nothing_else(data):
    X, y = data
    settings = {"method": "map", "n_inducing": 8}
    here = integrand.fit(X, y, **settings).predict(X[:9], include_noise=True)
    there = integrand.fit(X * [2.0, 1e6] - [7.0, 3.0], 1e-3 * y + 5.0, **settings)
    moved = there.predict(X[:9] * [2.0, 1e6] - [7.0, 3.0], include_noise=True)
    np.testing.assert_allclose(moved.mean, 1e-3 * here.mean + 5.0, rtol=1e-5)
    np.testing.assert_allclose(moved.sd, 1e-3 * here.sd, rtol=1e-3)


@pytest.mark.slow
def test_units_of_shared_and_other_fields(data):
    kernel = RBF(ard=False).named("a") + Linear(ard=True).named("b") + Periodic(active=(0,)).named("c")
    fitted = integrand.fit(*data, kernel, method="map", n_inducing=4, steps=2)
    x_sd, y_sd = fitted.scaler.x_sd, fitted.scaler.y_sd
    ratio = {k: fitted.theta_original[k] / fitted.theta[k] for k in fitted.theta}
    np.testing.assert_allclose(ratio["a.lengthscale"], 1.0)  # one number for two columns of different scales
    np.testing.assert_allclose(ratio["a.scale"], y_sd)
    np.testing.assert_allclose(ratio["b.scale"][0, 0], y_sd / x_sd)
    np.testing.assert_allclose(ratio["c.period"], x_sd[0])
    np.testing.assert_allclose(ratio["c.lengthscale"], 1.0)
    np.testing.assert_allclose(ratio["noise"], y_sd)


# --- ArviZ


def test_arviz_values_and_statistics(posterior):
    data = posterior.to_arviz()
    np.testing.assert_array_equal(data["posterior"]["scale"].values, posterior.theta_original["scale"])
    standardised = posterior.to_arviz(original_units=False)
    np.testing.assert_array_equal(standardised["posterior"]["scale"].values, posterior.theta["scale"])
    found = data["sample_stats"]
    np.testing.assert_array_equal(found["lp"].values, posterior.chains.log_density)
    assert found["diverging"].dtype == bool
    assert {"energy", "acceptance_rate", "n_steps", "tree_depth", "step_size"} <= set(found.data_vars)


# --- what it keeps


def arrays_in(value):
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from arrays_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from arrays_in(item)
    elif dataclasses.is_dataclass(value):
        yield from arrays_in({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})


def test_no_row_of_the_training_data_is_kept(posterior):
    found = list(arrays_in(posterior))
    assert len(found) > 10
    assert all(N not in a.shape for a in found)


def test_inducing_inputs_in_the_units_of_the_data(posterior):
    np.testing.assert_allclose(posterior.Z, posterior.scaler.inverse_X(posterior.Z_path[-1]), rtol=1e-12)
    assert np.all(np.abs(posterior.Z[:, 0] - 50.0) < 60.0)


def test_an_identity_scaler_leaves_the_units(data):
    X, y = data[0] / [10.0, 1e-3], (data[1] - 1000.0) / 30.0
    rows = integrand.ArrayRows(X, y, scaler=Standardiser.identity(2))
    fitted = integrand.fit(rows, method="map", n_inducing=8)
    for name in fitted.theta:
        np.testing.assert_array_equal(fitted.theta[name], fitted.theta_original[name])


@pytest.mark.usefixtures("as_users_see_it")
def test_errors_name_the_cause(posterior):
    with pytest.raises(InputError, match="1 columns, but the model was fitted to 2"):
        posterior.predict(np.zeros((3, 1)), include_noise=True)
    with pytest.raises(InputError, match="NaN or infinite"):
        posterior.predict(np.full((3, 2), np.nan), include_noise=True)
    with pytest.raises(TypeError, match="include_noise"):
        posterior.predict(np.zeros((3, 2)))


def test_a_data_frame_has_the_columns_of_the_model_in_their_order(posterior, data):
    X, y = data
    frame = pd.DataFrame(X, columns=COLUMNS)
    mean = posterior.predict(frame, include_noise=False).mean
    unnamed = dataclasses.replace(posterior, model=integrand.Model(RBF(), 2).for_data(posterior.scaler))
    for same in (X, frame.set_axis(["x0", "x1"], axis=1), frame.set_axis([0, 1], axis=1)):
        np.testing.assert_array_equal(posterior.predict(same, include_noise=False).mean, mean)
    assert unnamed._inputs(frame).shape == X.shape
    swapped = frame[["size", "age"]]
    uses = (
        lambda X: posterior.predict(X, include_noise=False),
        posterior.predict_gradient,
        posterior.prior_predictive,
        lambda X: posterior.loo(X, y),
        lambda X: posterior.to_arviz(X, y),
        lambda X: posterior.update(X, y),
        lambda X: integrand.update(posterior, X, y),
    )
    for use in uses:
        with pytest.raises(InputError, match=r"size, age, but .* age, size: give X\[\['age', 'size'\]\]"):
            use(swapped)
        with pytest.raises(InputError, match=r"no column 'age': the model was fitted to age, size"):
            use(frame.rename(columns={"age": "years"}))
    for use in (unnamed._inputs, lambda X: integrand.update(unnamed, X, y)):
        with pytest.raises(InputError, match="the columns are x1, x0"):
            use(frame.set_axis(["x1", "x0"], axis=1))
