"""Transforms of the target: bijections that are fixed at the middle of the data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from integrand import InputError, Model, Normal
from integrand.kernels import RBF
from integrand.model import describe_model, restore_model
from integrand.transforms import BoxCox, Log, SinhArcsinh, as_transform

SOME = {
    "log": Log(),
    "power": BoxCox(power=0.4),
    "power 0": BoxCox(power=0.0),
    "negative power": BoxCox(power=-1.5),
    "sinh-arcsinh": SinhArcsinh(skewness=0.7, tails=0.6),
    "light tails": SinhArcsinh(skewness=-1.5, tails=1.8),
}
T = np.linspace(-8.0, 8.0, 401)


@pytest.mark.parametrize("name", SOME)
def test_it_goes_there_and_back(name):
    g = SOME[name]
    z = g(T)
    assert np.all(np.diff(z) > 0)
    np.testing.assert_allclose(g.inverse(z), T, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(g(g.inverse(T)), T, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SOME)
def test_it_is_fixed_at_the_middle(name):
    """So that its parameters do not stand for a shift or a scale, which the GP has."""
    g = SOME[name]
    assert abs(g(np.array(0.0))) < 1e-15
    assert abs(g.log_slope(np.array(0.0))) < 1e-15


@pytest.mark.parametrize("name", SOME)
def test_the_slope_is_that_of_differences(name):
    g, h = SOME[name], 1e-6
    kink = np.abs(g.log_slope(T) + 5.0) < 1e-3  # where a Box-Cox transform goes on as a logarithm
    slope = (g(T + h) - g(T - h)) / (2.0 * h)
    np.testing.assert_allclose(np.log(slope[~kink]), g.log_slope(T)[~kink], atol=1e-6)


@pytest.mark.usefixtures("strict_float64")
@pytest.mark.parametrize("name", SOME)
def test_numpy_and_jax_agree(name):
    g = SOME[name]
    for function in (type(g).__call__, type(g).log_slope, type(g).inverse):
        np.testing.assert_allclose(np.asarray(function(g, jnp.asarray(T))), function(g, T), rtol=1e-13, atol=1e-13)


def test_powers_of_y():
    y = np.geomspace(0.02, 50.0, 30)
    scaled, sd = np.log(y) - np.log(y).mean(), np.log(y).std()
    for power in (1.0, 0.5, -1.0):
        wanted = np.expm1(power * scaled) / (power * sd)
        np.testing.assert_allclose(BoxCox(power=power * sd)(scaled / sd), wanted, rtol=1e-10, atol=1e-12)


def test_no_skewness_and_normal_tails_change_nothing():
    np.testing.assert_allclose(SinhArcsinh(skewness=0.0, tails=1.0)(T), T, rtol=1e-13)


@pytest.mark.usefixtures("strict_float64")
@pytest.mark.parametrize("power", [0.0, 1e-9, 1e-4, -1e-3, 0.3])
def test_the_gradient_in_the_power_loses_no_digits(power):
    """∂z/∂λ is t²/2 + λt³/3 + ... where λt is small."""
    t = jnp.linspace(-2.0, 2.0, 41)
    found = jax.jacobian(lambda p: BoxCox(power=p)(t))(jnp.array(power))
    k = np.arange(2, 30)[:, None]
    factorials = np.cumprod(np.arange(1, 30.0))[1:, None]
    wanted = np.sum((k - 1) * power ** (k - 2.0) * np.asarray(t) ** k / factorials, axis=0)
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("transform", ["log", "box-cox", "sinh-arcsinh", BoxCox(power=0.5), SinhArcsinh(tails=1.0)])
def test_a_model_comes_back_from_its_description(transform):
    model = Model(RBF(), 2, target_transform=transform)
    back = restore_model(describe_model(model))
    assert back == model
    assert hash(back) == hash(model)
    assert back.names == model.names
    assert "target_transform" in repr(model)
    assert model != Model(RBF(), 2)


def test_its_parameters_are_among_those_of_the_model():
    assert Model(RBF(), 1, target_transform="log").names == Model(RBF(), 1).names
    assert Model(RBF(), 1, target_transform="box-cox").names[-1:] == ("transform.power",)
    assert Model(RBF(), 1, target_transform="sinh-arcsinh").names[-2:] == ("transform.skewness", "transform.tails")
    assert "transform.tails" not in Model(RBF(), 1, target_transform=SinhArcsinh(tails=1.0)).names


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"target_transform": "sqrt"}, "one of log, box-cox, sinh-arcsinh"),
        ({"target_transform": "log", "likelihood": "poisson"}, "Gaussian noise, not for a poisson"),
        ({"target_transform": SinhArcsinh(tails=-1.0)}, "transform.tails must be positive"),
        ({"target_transform": SinhArcsinh(tails=Normal(0.0, 1.0))}, "transform.tails must be positive"),
        ({"target_transform": BoxCox(power=(1.0, 2.0))}, "one number or one prior"),
        ({"target_transform": BoxCox(power=float("nan"))}, "finite"),
    ],
)
def test_what_is_refused(arguments, reason):
    from integrand.methods.fit import as_likelihood

    likelihood = as_likelihood(arguments.pop("likelihood", None))
    with pytest.raises(InputError, match=reason):
        Model(RBF(), 1, likelihood=likelihood, **arguments)


def test_none_is_none():
    assert as_transform(None) is None
