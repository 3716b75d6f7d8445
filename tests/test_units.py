"""Numbers and priors in the units of the data: what they mean, the way to standardised data and back, and doubts."""

import json
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import integrand
from integrand import (
    RBF,
    ArrayRows,
    Beta,
    Constant,
    Exponential,
    Gamma,
    HalfCauchy,
    HalfNormal,
    InputError,
    InverseGamma,
    Linear,
    LogNormal,
    Matern32,
    Model,
    Normal,
    Periodic,
    Polynomial,
    PooledInverseGamma,
    PriorWarning,
    RationalQuadratic,
    StudentTPrior,
    Uniform,
    Weibull,
    at_least,
    at_most,
    between,
    fit,
    on_variance,
    parse_kernel,
    rescaled,
    standardised,
)
from integrand.data.scaling import Standardiser
from integrand.kernels import parse_value
from integrand.likelihoods import Poisson
from integrand.model import describe_model, restore_model
from integrand.priors import AffinePrior, ColumnPriors
from integrand.units import doubts, values

SCALER = Standardiser(np.array([15.0, 12.0, 3.0]), np.array([8.0, 7.0, 0.5]), 190.0, 40.0)
NAMES = ("temp", "hr", "wind")

POSITIVE = [
    Gamma(2, 0.5),
    InverseGamma(3, 2),
    HalfCauchy(1.5),
    HalfNormal(0.7),
    LogNormal(0.3, 1.2),
    Exponential(2.5),
    Weibull(1.3, 1.7),
    Uniform(0.01, 3),
    PooledInverseGamma(2, 3, 1.5),
    Beta(2, 3),
]
SIGNED = [Normal(0.4, 1.3), StudentTPrior(4, 0.4, 1.3), Uniform(-1, 2), *POSITIVE]
SQUARED = [on_variance(prior) for prior in POSITIVE if prior.family != "PooledInverseGamma"]


def of_data(kernel, noise=None, mean=None, **more):
    return Model(kernel, NAMES, noise, mean, **more).for_data(SCALER)


def shown(model):
    return {v.name: v for v in values(model)}


# ---- priors


@pytest.mark.usefixtures("strict_float64")
@pytest.mark.parametrize(
    ("prior", "offset"), [*((p, 0.0) for p in POSITIVE + SQUARED), *((p, 5.0) for p in SIGNED + SQUARED)], ids=str
)
def test_a_rescaled_prior_is_that_of_the_rescaled_variable(prior, offset):
    """The density of 3 θ + 5 is that of θ over 3, at the same place; and the way back gives the prior itself."""
    other = prior.rescaled(3.0, offset)
    theta = np.array([0.2, 0.4, 0.6, 0.9])
    np.testing.assert_allclose(other.density(3.0 * theta + offset), prior.density(theta) / 3.0, rtol=1e-10)
    np.testing.assert_allclose(other.median, 3.0 * prior.median + offset, rtol=1e-10)
    phi = other.unconstrain(jnp.asarray(3.0 * theta + offset))
    np.testing.assert_allclose(other.constrain(phi), 3.0 * theta + offset, rtol=1e-10)
    if not isinstance(prior, type(PooledInverseGamma())):  # whose density is one of all entries together
        log_density = [float(other.log_density_of_theta(value)) for value in phi]
        np.testing.assert_allclose(np.exp(log_density), prior.density(theta) / 3.0, rtol=1e-9)
    back = other.rescaled(1.0 / 3.0, -offset / 3.0)
    assert back.family == prior.family
    assert back.squared == prior.squared
    np.testing.assert_allclose(back.arguments, prior.arguments, rtol=1e-10, atol=1e-12)
    assert other.positive == (prior.positive and offset >= 0.0) or not isinstance(other, AffinePrior)


# Each family's random numbers are programs of their own.
OFTEN = ("LogNormal", "HalfNormal", "Gamma")


@pytest.mark.parametrize(
    "prior",
    [
        pytest.param(p, marks=() if p.family in OFTEN else pytest.mark.slow)
        for p in POSITIVE + SQUARED
        if p.family != "PooledInverseGamma"
    ],
    ids=str,
)
def test_mass_is_the_share_of_draws(prior):
    draws = np.asarray(prior.rescaled(2.0).sample(jax.random.key(0), (20_000,)))
    low, high = np.quantile(draws, [0.2, 0.7])
    assert prior.rescaled(2.0).mass(float(low), float(high)) == pytest.approx(0.5, abs=0.02)
    assert prior.mass(-1.0, math.inf) == pytest.approx(1.0)
    assert prior.mass(-3.0, -2.0) == 0.0


def test_families_without_a_form_of_their_own_can_be_written_and_read():
    prior = Beta(2, 3).rescaled(0.25)
    assert str(prior) == "rescaled(Beta(2, 3), 0.25)"
    assert parse_value(repr(prior)) == rescaled(Beta(2, 3), 0.25) == prior
    model = of_data(RBF(lengthscale=Beta(2, 3)), mean=on_variance(Gamma(2, 1)))
    assert restore_model(json.loads(json.dumps(describe_model(model)))) == model


@pytest.mark.slow
@pytest.mark.usefixtures("strict_float64")
def test_column_priors_are_their_entries():
    pooled = PooledInverseGamma(2, 2, 0.4)
    prior = ColumnPriors(entries=(pooled, Uniform(1, 3), pooled, on_variance(Gamma(2, 1))))
    phi = jnp.asarray([0.3, -0.2, 0.7, 0.1])
    pair, one, other = phi[jnp.asarray([0, 2])], phi[1], phi[3]
    expected = pooled.log_density(pair) + prior.entries[1].log_density(one) + prior.entries[3].log_density(other)
    assert float(prior.log_density(phi)) == pytest.approx(float(expected))
    theta = prior.constrain(phi)
    np.testing.assert_allclose(theta, [prior.entries[i].constrain(phi[i]) for i in range(4)], rtol=1e-12)
    np.testing.assert_allclose(prior.unconstrain(theta), phi, rtol=1e-10)
    draws = np.asarray(prior.sample(jax.random.key(0), (3000, 4)))
    assert np.all((draws[:, 1] > 1) & (draws[:, 1] < 3))
    assert abs(np.corrcoef(np.log(draws[:, 0]), np.log(draws[:, 2]))[0, 1]) > 0.1  # they share a rate
    assert [prior.entry(i).median for i in range(4)] == list(prior.median)


# ---- priors from statements


@pytest.mark.parametrize("probability", [0.5, 0.9, 0.99])
def test_statements_about_tails_hold(probability):
    outside = 0.5 * (1.0 - probability)
    inner = between(2, 15, probability)
    assert inner.family == "LogNormal"
    assert inner.mass(0, 2) == pytest.approx(outside, rel=1e-3)
    assert inner.mass(15, math.inf) == pytest.approx(outside, rel=1e-3)
    signed = between(-1, 4, probability)
    assert signed.family == "Normal"
    assert signed.mass(-1, 4) == pytest.approx(probability, rel=1e-3)
    assert at_most(3, probability).family == "Exponential"
    assert at_most(3, probability).mass(0, 3) == pytest.approx(probability, rel=1e-3)
    assert at_least(3, probability).family == "InverseGamma"
    assert at_least(3, probability).mass(3, math.inf) == pytest.approx(probability, rel=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: between(15, 2), "smaller number first"),
        (lambda: between(2, 15, probability=1.0), "between 0 and 1"),
        (lambda: between(2, math.inf), "finite numbers"),
        (lambda: at_most(-1), "positive"),
        (lambda: at_least(0), "positive"),
        (lambda: standardised("2"), "number or a prior"),
        (lambda: rescaled(Gamma(2, 1), -3.0), "positive factor"),
    ],
)
def test_statements_that_make_no_sense(make, message):
    with pytest.raises(InputError, match=message):
        make()


# ---- models


KERNELS = {
    "every leaf": RBF(lengthscale=2.0, scale=3.0)
    + Matern32(lengthscale=Gamma(2, 1))
    + RationalQuadratic(lengthscale=(1.0, 2.0, 3.0), scale=Gamma(2, 1), alpha=LogNormal(0, 1))
    + Periodic(period=24.0, active="hr", lengthscale=0.7)
    + Linear(scale=on_variance(Uniform(0.1, 2)), ard=True)
    + Constant(scale=HalfNormal(30)),
    "products": Periodic(period=between(20, 28), active=("hr",)) * RBF(scale=HalfNormal(30), lengthscale=Uniform(2, 5))
    + (RBF(lengthscale=1.0, scale=2.0) + Constant(scale=4.0)) * Linear(scale=1.0, active="temp"),
    "columns": RBF(lengthscale={"temp": Uniform(2, 15), "hr": 24.0})
    + Linear(scale=standardised(Gamma(2, 1)), active="wind")
    + Matern32(ard=False, active=1, lengthscale={"hr": 3.0}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_model_of_the_data_has_the_covariance_of_the_standardised_model(name):
    """In units of the data k at X is y_sd² times k of the standardised model at (X - mean) / sd."""
    rng = np.random.default_rng(0)
    model = of_data(KERNELS[name], noise=Gamma(2, 1), mean=Normal(100, 20))
    assert model.given.for_data(SCALER) == model == model.for_data(SCALER)
    theta = {p.name: np.full(p.shape, 0.4) * (1.0 + np.arange(p.size).reshape(p.shape)) for p in model.parameters}
    # A GP in units of the data with the same numbers, on the columns stretched by their sd. (A Polynomial has no such
    # twin: its columns are the standardised ones.)
    kernel = _in_original_units(model, theta)
    X = rng.standard_normal((6, 3))
    standard = np.asarray(model.gp(theta).kernel.gram(jnp.asarray(X)))
    original = np.asarray(kernel.gram(jnp.asarray(X * SCALER.x_sd)))
    np.testing.assert_allclose(original, SCALER.y_sd**2 * standard, rtol=1e-4)


def _in_original_units(model, theta):
    """The kernel with the numbers that `values` says, in units of the data."""
    fixed = {v.name: v for v in values(model)}
    whole = {}
    for p in model.parameters:
        names = [f"{p.name}[{model.columns[c]}]" for c in p.columns] if p.shape else [p.name]
        for label, number in zip(names, np.ravel(theta[p.name]), strict=True):
            v = fixed[label]
            # The factor as the prior shows it: medians of the prior in both units.
            factor = v.original.median / v.standardised.median
            whole[label] = number * factor

    def fill(info, value):
        labels = [f"{info.path}[{model.columns[c]}]" for c in info.columns] if info.shape else [info.path]
        if info.path in fixed:
            labels = [info.path]
        numbers = [whole.get(label, fixed[label].original) for label in labels]
        return jnp.asarray(numbers[0] if not info.shape or len(numbers) == 1 else numbers, float)

    return model.map_fields(fill).kernel


@pytest.mark.parametrize("name", KERNELS)
def test_values_show_what_was_written(name):
    """Round trip: what a number or a prior was given as is what the table shows in units of the data."""
    model = of_data(KERNELS[name], noise=3.0, mean=180.0)
    table = shown(model)
    assert table["noise"].original == pytest.approx(3.0)
    assert table["noise"].standardised == pytest.approx(3.0 / 40.0)
    assert table["mean"].original == pytest.approx(180.0)
    assert table["mean"].standardised == pytest.approx(-0.25)
    given = {}
    model.given.map_fields(lambda info, value: given.update({info.path: value}) or value)
    checked = 0
    for v in values(model):
        typed = given[v.path]
        if isinstance(typed, tuple):
            typed = typed[list(KERNEL_COLUMNS).index(v.column)] if v.column is not None else None
        if isinstance(typed, float):
            assert v.original == pytest.approx(typed)
            checked += 1
        elif isinstance(typed, integrand.Prior):
            assert str(v.original) == str(typed)
            checked += 1
        if v.chosen is False:
            assert not isinstance(typed, (float, integrand.Prior)) or typed is None
    assert checked >= 4


KERNEL_COLUMNS = (0, 1, 2)


def test_what_has_which_unit():
    model = of_data(
        RBF(lengthscale=4.0, scale=2.0)
        + Periodic(period=24.0, lengthscale=0.7, active="hr")
        + Linear(scale=5.0, active="wind")
        + Polynomial(2, scale=8.0, offset=2.0)
    )
    numbers = {name: v.standardised for name, v in shown(model).items() if v.fixed}
    assert numbers == pytest.approx(
        {
            "0.lengthscale[temp]": 4.0 / 8.0,
            "0.lengthscale[hr]": 4.0 / 7.0,
            "0.lengthscale[wind]": 4.0 / 0.5,
            "0.scale": 2.0 / 40.0,
            "1.period": 24.0 / 7.0,
            "1.lengthscale": 0.7,
            "2.scale": 5.0 * 0.5 / 40.0,
            "3.scale": 8.0 / 40.0,
            "3.offset": 2.0,
            "mean": 0.0,
        }
    )
    units = {name: v.unit for name, v in shown(model).items()}
    assert units["2.scale"] == "unit of y per wind"
    assert units["1.period"] == "unit of hr"
    assert units["3.offset"] == ""
    assert shown(model)["mean"].original == 190.0  # None is the mean of y
    assert of_data(RBF(), mean=0.0).mean == pytest.approx(-190.0 / 40.0)


def test_one_factor_of_a_product_carries_the_unit_of_y():
    """The one whose scale is inferred; if none is, the first. Scales of the others are plain numbers."""
    for kernel, carrier in (
        (Periodic(active=0, period=1.0) * RBF(), "0.scale"),
        (Periodic(active=0, period=1.0) * RBF(scale=Gamma(2, 1)), "1.scale"),
        (RBF(scale=2.0) * Matern32(scale=3.0), "0.scale"),
        (RBF(scale=2.0) * Linear(active=0), "1.scale"),
    ):
        table = shown(of_data(kernel))
        for name in ("0.scale", "1.scale"):
            assert ("unit of y" in table[name].unit) == (name == carrier), (kernel, name)
    both = of_data(RBF(scale=2.0) * Matern32(scale=3.0))
    assert shown(both)["0.scale"].standardised * shown(both)["1.scale"].standardised == pytest.approx(6.0 / 40.0)
    sums = shown(of_data((RBF(scale=2.0) + Constant(scale=4.0)) * Linear(scale=3.0, active="temp")))
    assert sums["0.1.scale"].standardised == pytest.approx(4.0 / 40.0)
    assert sums["1.scale"].standardised == pytest.approx(3.0 * 8.0)  # per degree becomes per standard deviation


def test_entries_by_column():
    model = of_data(RBF(lengthscale={"temp": Uniform(2, 15), "hr": 24.0}))
    assert model.names == ("lengthscale[temp]", "lengthscale[wind]", "scale", "noise")
    table = shown(model)
    assert str(table["lengthscale[temp]"].original) == "Uniform(2, 15)"
    assert str(table["lengthscale[temp]"].standardised) == "Uniform(0.25, 1.875)"
    assert table["lengthscale[hr]"].standardised == pytest.approx(24.0 / 7.0)
    assert table["lengthscale[wind]"].standardised == PooledInverseGamma(2, 2, 2 / (3 * math.sqrt(3)))
    theta = model.theta(jnp.zeros(model.n_theta))
    assert theta["lengthscale"].shape == (2,)
    filled = model.gp(theta).kernel.lengthscale
    np.testing.assert_allclose(filled, [theta["lengthscale"][0], 24.0 / 7.0, theta["lengthscale"][1]], rtol=1e-6)
    again = restore_model(json.loads(json.dumps(describe_model(model))))
    assert again == model
    assert again.given == model.given
    assert hash(again) == hash(model)
    assert repr(again.given) == repr(model.given)


def test_columns_by_name():
    by_name, by_number = RBF(active=["hr", "temp"]), RBF(active=(1, 0))
    assert Model(by_name, NAMES) == Model(by_number, NAMES)
    assert Model(by_name + Linear(active="wind"), NAMES).names[:2] == ("0.lengthscale[hr]", "0.lengthscale[temp]")
    assert Model(RBF(lengthscale={0: 2.0, 1: 3.0}, active=(0, 1)), NAMES).kernel.lengthscale == (2.0, 3.0)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (RBF(active="tmp"), "there is no column 'tmp': the columns are temp, hr, wind"),
        (RBF(lengthscale={"tmp": 2.0}), "there is no column 'tmp'"),
        (RBF(lengthscale={7: 2.0}), "only columns 0 to 2"),
        (RBF(lengthscale={"wind": 2.0}, active="hr"), "does not see the column 'wind': it sees hr"),
        (RBF(lengthscale={"hr": 2.0}, ard=False), "only with ard=True"),
        (Periodic(period={"hr": 24.0}), "only for a kernel of one column"),
        (RBF(lengthscale=2.0, ard=False), r"units of their own \(temp, hr, wind\).*standardised\(2\)"),
        (RBF(lengthscale=Gamma(2, 1), ard=False), r"standardised\(Gamma\(2, 1\)\)"),
        (Periodic(period=24.0), r"active='temp'"),
        (RBF(lengthscale=PooledInverseGamma()), r"write standardised\(PooledInverseGamma\(2, 2, 1\)\)"),
        (RBF(lengthscale={"hr": PooledInverseGamma(), "wind": PooledInverseGamma()}), "pools columns"),
        (RBF(lengthscale={"hr": Normal(0, 1)}), "allows negative values"),
        (RBF(lengthscale={"hr": -1.0}), "positive and finite"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(kernel, message):
    with pytest.raises(InputError, match=message):
        of_data(kernel)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RBF(lengthscale={}), "by name"),
        (lambda: RBF(lengthscale={"a": (1.0, 2.0)}), "by name"),
        (lambda: RBF(active=(0.5,)), "active takes names of columns"),
        (lambda: RBF(active="a").gram(jnp.ones((2, 2))), "make a Model of it"),
    ],
)
def test_kernels_that_make_no_sense(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_standardised_keeps_its_meaning():
    kernel = RBF(lengthscale=standardised(Gamma(2, 1)), ard=False, scale=standardised(1.5))
    model = of_data(kernel, noise=standardised(0.2), mean=standardised(Normal(0, 1)))
    assert model.kernel == RBF(lengthscale=Gamma(2, 1), ard=False, scale=1.5)
    assert (model.noise, model.mean) == (0.2, Normal(0, 1))
    assert standardised(standardised(2.0)) == standardised(2)
    assert on_variance(standardised(Gamma(2, 1))) == standardised(on_variance(Gamma(2, 1)))
    by_column = RBF(lengthscale=standardised({"hr": Gamma(2, 1), "wind": 0.3}))
    assert of_data(by_column).kernel.lengthscale[1:] == (Gamma(2, 1), 0.3)


def test_presets_are_for_standardised_data():
    for preset in ("pooled", "paper", "scaled"):
        bare = Model(RBF() + Periodic(active=0), NAMES, priors=preset)
        assert [p.prior for p in bare.for_data(SCALER).parameters] == [p.prior for p in bare.parameters]


def test_counts_have_a_latent_function_without_units():
    model = Model(RBF(), NAMES, likelihood=Poisson()).for_data(Standardiser(SCALER.x_mean, SCALER.x_sd, 0.0, 1.0))
    assert "noise" not in shown(model)
    assert shown(model)["mean"].original == 0.0


def test_print_shows_both_units():
    given = Model(RBF(lengthscale={"temp": Uniform(2, 15)}), NAMES, noise=3.0)
    assert "standardised(HalfCauchy(1))" in str(given)
    text = str(given.for_data(SCALER))
    line = next(line for line in text.splitlines() if line.startswith("noise"))
    assert line.split() == ["noise", "3", "unit", "of", "y", "0.075"]
    assert "Uniform(2, 15)" in text
    assert "Uniform(0.25, 1.875)" in text
    assert "HalfCauchy(40)" in text  # the preset's scale, in units of y


def test_expressions():
    kernel = parse_kernel(
        "rbf(lengthscale={'temp': uniform(2,15), 'hr': 24}, active=('temp','hr')) + periodic(period=1, active='hr')"
        " * rbf(lengthscale=between(2, 15, probability=0.8), scale=standardised(at_most(3)))"
    )
    assert kernel == RBF(lengthscale={"temp": Uniform(2, 15), "hr": 24.0}, active=("temp", "hr")) + Periodic(
        period=1.0, active="hr"
    ) * RBF(lengthscale=between(2, 15, 0.8), scale=standardised(at_most(3)))
    assert parse_kernel(repr(kernel)) == kernel
    assert parse_kernel(repr(Model(kernel, NAMES).kernel)) == Model(kernel, NAMES).kernel
    assert parse_value("at_least(2)") == at_least(2)
    assert parse_value("-3.5") == -3.5
    for text in ("open('x')", "2 +", "rbf"):
        with pytest.raises(InputError):
            parse_value(text)


# ---- what the data cannot speak of


YEARS = np.arange(0.0, 30.0, 1.0 / 12.0)[:, None]


@pytest.mark.parametrize(
    ("kernel", "noise", "mean", "code"),
    [
        (Periodic(period=0.1), None, None, "period-outside-data"),
        (Periodic(period=80.0), None, None, "period-outside-data"),
        (Periodic(period=Uniform(40, 90)), None, None, "period-outside-data"),
        (RBF(lengthscale=0.001), None, None, "lengthscale-outside-data"),
        (RBF(lengthscale=Uniform(1e4, 2e4)), None, None, "lengthscale-outside-data"),
        (RBF(scale=1e5), None, None, "scale-outside-data"),
        (RBF(), 20.0, None, "noise-above-y"),
        (RBF(), Uniform(20, 30), None, "noise-above-y"),
        (RBF(), None, 0.0, "mean-outside-data"),
        (RBF(), None, Normal(0.0, 1.0), "mean-outside-data"),
    ],
    ids=str,
)
def test_a_value_that_the_data_cannot_speak_of_is_a_doubt(kernel, noise, mean, code):
    y = 340.0 + 0.9 * YEARS[:, 0]
    scaler = Standardiser.fit(YEARS, y)
    model = Model(kernel, ["year"], noise, mean).for_data(scaler)
    found = doubts(model, YEARS, len(y), (float(y.min()), float(y.max())))
    assert [doubt.code for doubt in found] == [code]
    assert found[0].sentence.endswith(".")
    assert found[0].remedy.endswith(".")


@pytest.mark.parametrize(
    "kernel",
    [
        RBF(),
        RBF(lengthscale=between(5, 50)) + Periodic(period=1.0),
        RBF(lengthscale=Gamma(2, 0.1), scale=between(1, 60)),
        Periodic(period=standardised(500.0)),
        Linear(scale=1.0),
    ],
    ids=str,
)
def test_sound_values_are_no_doubt(kernel):
    y = 340.0 + 0.9 * YEARS[:, 0]
    model = Model(kernel, ["year"], at_most(1), between(300, 400)).for_data(Standardiser.fit(YEARS, y))
    assert doubts(model, YEARS, len(y), (float(y.min()), float(y.max()))) == []
    # A sample of many rows: its values lie further apart than those of all.
    assert doubts(model, YEARS[::6], len(y), (float(y.min()), float(y.max()))) == []


def test_hours_of_the_day_may_have_a_period_of_a_day():
    hours = np.tile(np.arange(24.0), 4)[:, None]
    model = Model(Periodic(period=24.0), ["hr"]).for_data(Standardiser.fit(hours, hours[:, 0]))
    assert doubts(model, hours, len(hours), (0.0, 23.0)) == []


# ---- fits: the traps


def test_a_noise_is_in_units_of_y():
    """`noise=3.0` on data with noise 3: the standard deviation of y (13 here) has no part in it."""
    rng = np.random.default_rng(0)
    X = np.linspace(0.0, 30.0, 60)[:, None]
    y = 200.0 + 20.0 * np.sin(X[:, 0] / 3.0) + 3.0 * rng.standard_normal(60)
    posterior = fit(X, y, noise=3.0, method="ml2", n_inducing=20, steps=60)
    assert posterior.theta_original["noise"][0, 0] == pytest.approx(3.0)
    assert float(posterior.model.noise) == pytest.approx(3.0 / y.std())
    f, observed = (posterior.predict(X, include_noise=noisy) for noisy in (False, True))
    np.testing.assert_allclose(observed.variance - f.variance, 9.0, rtol=1e-6)


def test_a_prior_on_a_lengthscale_is_in_units_of_its_column():
    """`Uniform(2, 15)` on degrees: draws stay between 2 and 15 degrees, not between as many standard deviations."""
    rng = np.random.default_rng(1)
    degrees = rng.uniform(-5.0, 35.0, 60)
    y = np.sin(degrees / 6.0) + 0.1 * rng.standard_normal(60)
    rows = ArrayRows(degrees[:, None], y, ["temp"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", integrand.ConvergenceWarning)
        posterior = fit(
            rows, kernel=RBF(lengthscale=Uniform(2, 15)), method="gpr-hmc", chains=2, max_draws=60, target_ess=50
        )
    draws = posterior.theta_original["lengthscale"]
    assert np.all((draws > 2.0) & (draws < 15.0))
    assert draws.min() < 2.0 * degrees.std()  # where the old meaning began


def season(rng):
    """Thirty years of monthly values: a curved trend, a yearly cycle and noise with standard deviation 0.3."""
    year = np.arange(0.0, 30.0, 1.0 / 12.0)
    value = 315.0 + 0.9 * year + 0.012 * year**2 + 3.0 * np.sin(2.0 * np.pi * year)
    return year, value + 0.3 * rng.standard_normal(len(year))


@pytest.mark.slow
def test_a_period_of_one_year_is_one_year():
    """README's kernel on a series in years finds the season, also in months that were left out."""
    year, value = season(np.random.default_rng(0))
    left_out = np.arange(len(year)) % 5 == 2
    kernel = RBF(lengthscale=between(5, 50)) + Periodic(period=1.0)
    rows = ArrayRows(year[~left_out, None], value[~left_out], ["year"])
    posterior = fit(rows, kernel=kernel, method="ml2", n_inducing=60, steps=100)
    assert posterior.theta_original["1.period"][0, 0] == pytest.approx(1.0)
    error = posterior.predict(year[left_out, None], include_noise=True).mean - value[left_out]
    assert np.sqrt(np.mean(error**2)) < 0.5


@pytest.mark.slow
def test_a_doubt_is_a_warning_a_note_and_kept_for_a_resumed_run(tmp_path):
    year, value = season(np.random.default_rng(0))
    with pytest.warns(PriorWarning, match=r"period is 80, but 'year' has a range of 29\.9"):
        posterior = fit(
            ArrayRows(year[:, None], value, ["year"]),
            kernel=Periodic(period=80.0),
            method="ml2",
            n_inducing=5,
            steps=2,
            run_dir=tmp_path / "run",
        )
    assert "period is 80" in str(posterior.verdict)
    assert "period is 80" in str(integrand.resume(tmp_path / "run").verdict)


# ---- draws from the priors


def test_draws_from_fixed_numbers_have_their_moments():
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 50.0, (60, 1))
    y = 10.0 + 4.0 * rng.standard_normal(60)
    model = Model(RBF(lengthscale=2.0, scale=3.0), ["t"], noise=1.0, mean=10.0)
    at, n = np.array([[0.0], [1.0], [40.0]]), 2000
    draws = integrand.prior_predictive(model, ArrayRows(X, y, ["t"]), at=at, n_draws=n)
    f = integrand.prior_predictive(model, ArrayRows(X, y, ["t"]), at=at, n_draws=n, include_noise=False)
    distance = (at - at.T) / 2.0
    covariance = 9.0 * np.exp(-0.5 * distance**2)
    assert draws.shape == (n, 3)
    np.testing.assert_allclose(draws.mean(axis=0), 10.0, atol=5 * np.sqrt(10.0 / n))
    np.testing.assert_allclose(np.cov(f.T), covariance, atol=5 * 9.0 * np.sqrt(2.0 / n))
    np.testing.assert_allclose(np.cov(draws.T), covariance + np.eye(3), atol=5 * 10.0 * np.sqrt(2.0 / n))


@pytest.mark.slow
def test_draws_from_priors_are_the_same_by_every_way():
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 50.0, (40, 1))
    y = 10.0 + 4.0 * rng.standard_normal(40)
    kernel = RBF(lengthscale=between(2, 20))
    direct = integrand.prior_predictive(Model(kernel, 1, at_most(2)), X, y, at=X[:5], n_draws=20, seed=3)
    gp = integrand.SparseGPRegressor(kernel, noise=at_most(2), method="map", n_inducing=5, steps=3)
    np.testing.assert_array_equal(gp.prior_predictive(X, y, at=X[:5], n_samples=20, random_state=3).T, direct)
    assert not hasattr(gp, "posterior_")
    posterior = fit(X, y, kernel, noise=at_most(2), method="map", n_inducing=5, steps=3)
    np.testing.assert_array_equal(posterior.prior_predictive(X[:5], 20, seed=3), direct)
    with pytest.raises(InputError, match="n_draws must be a whole number"):
        posterior.prior_predictive(X, 0)
    with pytest.warns(PriorWarning, match="all of y would be noise"):
        integrand.prior_predictive(Model(RBF(), 1, noise=100.0), X, y, n_draws=2)


@pytest.mark.slow
def test_counts_from_the_priors_are_counts():
    X = np.linspace(0.0, 9.0, 10)[:, None]
    model = Model(RBF(), 1, likelihood=Poisson())
    draws = integrand.prior_predictive(model, X, np.arange(10.0), n_draws=10)
    assert np.all((draws >= 0) & (draws == np.round(draws)))


# ---- the command line


@pytest.fixture
def table(tmp_path):
    """Monthly values, of which the last five years are to be forecast."""
    year, value = season(np.random.default_rng(0))
    for name, rows in (("past", year < 25.0), ("future", year >= 25.0)):
        np.savetxt(
            tmp_path / f"{name}.csv",
            np.column_stack([1960.0 + year[rows], value[rows]]),
            delimiter=",",
            header="year,co2",
            comments="",
        )
    return tmp_path


def run(*arguments):
    from typer.testing import CliRunner

    from integrand.cli.app import app

    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_kernel_that_a_person_would_type_forecasts_a_series(table):
    past, model = table / "past.csv", table / "co2.integrand"
    kernel = "rbf + periodic(period=1)"
    fitted = run("fit", past, "--target", "co2", "--out", model, "--kernel", kernel, "--method", "ml2", "--quiet")
    assert fitted.exit_code == 0, fitted.output
    found = run("evaluate", model, table / "future.csv", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["rmse"] <= 0.5


def test_flags_are_in_units_of_the_data(table):
    past, model = table / "past.csv", table / "co2.integrand"
    kernel = "rbf(lengthscale={'year': between(5, 50)}) + periodic(period=1, active='year')"
    flags = ["--kernel", kernel, "--noise", "0.3", "--mean", "between(300, 400)", "--method", "map", "--inducing", "10"]
    fitted = run("fit", past, "--target", "co2", "--out", model, *flags, "--json")
    assert fitted.exit_code == 0, fitted.output
    facts = json.loads(fitted.stdout)
    assert facts["fixed"] == pytest.approx({"noise": 0.3, "1.period": 1.0})
    assert 300.0 < facts["hyperparameters"]["mean"] < 400.0
    given = integrand.load_model(model).posterior.model.given
    assert (given.noise, given.mean) == (0.3, between(300, 400))


@pytest.mark.slow
def test_the_prior_is_printed_before_a_fit(table):
    past, out = table / "past.csv", table / "draws.csv"
    shown = run("prior", past, "--target", "co2", "--kernel", "periodic(period=80)", "--draws", 20, "--out", out)
    assert shown.exit_code == 0, shown.output
    assert "! period is 80, but 'year' has a range of 24.9" in shown.output
    assert "a priori" in shown.output
    assert np.loadtxt(out, delimiter=",", skiprows=1).shape == (20, 200)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--kernel", "rbf(active='month')"], "there is no column 'month': the columns are year"),
        (["--noise", "gamma(2"], "cannot be read: write a number, or a prior"),
        (["--noise", "nothing(2)"], "no prior 'nothing'"),
        (["--mean", "'a'"], "mean is a number or a prior"),
    ],
)
def test_mistakes_are_one_line(table, flags, message):
    for command in ("fit", "prior"):
        more = ["--out", table / "m"] if command == "fit" else []
        result = run(command, table / "past.csv", "--target", "co2", *more, *flags)
        assert result.exit_code == 2
        assert message in result.output
        assert len(result.output.strip().splitlines()) == 1


# ---- files


@pytest.mark.slow
def test_a_file_keeps_the_model_as_it_was_given(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 30.0, (40, 2))
    y = 100.0 + X[:, 0] + rng.standard_normal(40)
    kernel = RBF(lengthscale={"a": between(1, 20), "b": 25.0}) + Constant(scale=standardised(HalfNormal(2)))
    rows = ArrayRows(X, y, ["a", "b"])
    posterior = fit(rows, kernel=kernel, noise=at_most(5), mean=100.0, method="map", n_inducing=10, steps=20)
    integrand.save_model(posterior, tmp_path / "model")
    again = integrand.load_model(tmp_path / "model").posterior
    assert again.model == posterior.model
    assert again.model.given == posterior.model.given == Model(kernel, ["a", "b"], at_most(5), 100.0)
    assert str(again.model) == str(posterior.model)
    for name, value in posterior.theta_original.items():
        np.testing.assert_array_equal(again.theta_original[name], value)
    assert posterior.theta_original["0.lengthscale"].shape == (1, 1, 2)
    assert posterior.theta_original["0.lengthscale"][0, 0, 1] == pytest.approx(25.0)
    assert posterior.theta_original["mean"][0, 0] == pytest.approx(100.0)
    loaded = integrand.SparseGPRegressor.load(tmp_path / "model")
    assert Model(loaded.kernel, ["a", "b"], loaded.noise, loaded.mean) == posterior.model.given


@pytest.mark.parametrize("factor", [1.0, 1e-3])
def test_the_fixed_slope_of_a_product_does_not_depend_on_the_unit_of_its_column(factor):
    kernel = Model(RBF(active=0) * Linear(active=1), 2).kernel
    scaler = Standardiser(np.zeros(2), np.array([1.0, 300.0 * factor]), 0.0, 2.0)
    model = Model(kernel, 2).for_data(scaler)
    assert model.kernel.parts[1].scale == 1.0
    assert parse_kernel(repr(kernel)) == kernel
