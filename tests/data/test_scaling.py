import dataclasses

import numpy as np
import pytest

from integrand.data.scaling import Standardiser
from integrand.errors import InputError


def rows(seed=0, n=50, d=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=n)


@pytest.mark.parametrize("offset", [0.0, 1e9, -1e9])
@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 1e6, 1e12])
def test_scaled_columns_have_zero_mean_and_unit_variance(scale, offset):
    X, y = rows()
    X, y = offset + scale * X, offset + scale * y
    scaling = Standardiser.fit(X, y)
    if scale < np.spacing(abs(offset)):  # the offset's rounding has swallowed the data
        assert scaling.y_sd == 1.0
        assert not scaling.transform_X(X).any()
        return
    # What is lost in rounding the mean to float64 is a shift of this many standard deviations.
    lost = 4 * np.finfo(float).eps * (abs(offset) / scale + 1)
    assert np.abs(scaling.transform_X(X).mean(axis=0)).max() < lost
    assert abs(scaling.transform_y(y).mean()) < lost
    np.testing.assert_allclose(scaling.transform_X(X).std(axis=0), 1, rtol=1e-12)
    np.testing.assert_allclose(scaling.transform_y(y).std(), 1, rtol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e9])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_undoing_is_exact_to_rounding(scale, offset):
    X, y = rows()
    X, y = offset + scale * X, offset + scale * y
    scaling = Standardiser.fit(X, y)
    rounding = 4 * np.finfo(float).eps * (offset + scale * 5)
    np.testing.assert_allclose(scaling.inverse_X(scaling.transform_X(X)), X, rtol=0, atol=rounding)
    np.testing.assert_allclose(scaling.inverse_y(scaling.transform_y(y)), y, rtol=0, atol=rounding)


def test_moments_of_a_large_offset_are_those_without_it():
    X, y = rows(n=1000)
    X = np.round(X * 1024) / 1024  # exactly representable after the shift
    np.testing.assert_allclose(Standardiser.fit(X + 2.0**30, y).x_sd, Standardiser.fit(X, y).x_sd, rtol=1e-13)


def test_population_standard_deviation():
    scaling = Standardiser.fit([[0.0], [2.0]], [0.0, 4.0])
    assert scaling.x_sd[0] == 1.0
    assert scaling.y_sd == 2.0


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9 + 0.1, -1e-12, 1e300])
def test_constant_columns_become_zero(value):
    X, _ = rows(n=7)
    X[:, 1] = value
    scaling = Standardiser.fit(X, np.full(7, value))
    assert scaling.x_sd[1] == 1.0
    assert scaling.y_sd == 1.0
    assert scaling.x_sd[0] != 1.0
    np.testing.assert_array_equal(scaling.transform_X(X)[:, 1], 0.0)
    np.testing.assert_array_equal(scaling.transform_y(np.full(7, value)), 0.0)
    np.testing.assert_array_equal(scaling.inverse_y(np.zeros(7)), value)


def test_differences_of_one_rounding_unit_count_as_constant_but_small_real_ones_do_not():
    noise = np.array([1e9, np.nextafter(1e9, 2e9), 1e9])
    signal = np.array([1e9, 1e9 + 1e-5, 1e9])
    scaling = Standardiser.fit(np.column_stack([noise, signal]), [0.0, 1.0, 2.0])
    assert scaling.x_sd[0] == 1.0
    assert scaling.x_sd[1] < 1e-5


@pytest.mark.parametrize("scale", [1e-160, 1e160])
def test_squares_outside_the_range_of_float64(scale):
    X, y = rows()
    np.testing.assert_allclose(Standardiser.fit(scale * X, y).x_sd / scale, X.std(axis=0), rtol=1e-12)


def test_one_row_is_constant():
    scaling = Standardiser.fit([[3.0, -1.0]], [2.0])
    np.testing.assert_array_equal(scaling.x_sd, 1.0)
    np.testing.assert_array_equal(scaling.transform_X([[3.0, -1.0]]), 0.0)


def test_paper_adds_its_offset_to_each_standard_deviation():
    X, y = rows()
    X[:, 2] = 5.0
    scaling = Standardiser.paper(1e-6 * X, y)
    np.testing.assert_allclose(scaling.x_sd, 1e-6 + 1e-6 * X.std(axis=0), rtol=1e-12)
    np.testing.assert_allclose(scaling.y_sd, 1e-6 + y.std(), rtol=1e-14)
    np.testing.assert_allclose(scaling.x_mean, 1e-6 * X.mean(axis=0), atol=1e-20)
    np.testing.assert_array_equal(scaling.transform_X(1e-6 * X)[:, 2], 0.0)


def test_means_of_predictions_go_back_to_original_units():
    X, y = rows()
    y = 100 + 7 * y
    scaling = Standardiser.fit(X, y)
    draws = np.random.default_rng(1).normal(0.3, 0.5, size=2000)
    original = scaling.inverse_y(draws)
    np.testing.assert_allclose(scaling.inverse_y(draws.mean()), original.mean(), rtol=1e-12)


def test_identity_changes_nothing():
    X, y = rows()
    scaling = Standardiser.identity(3)
    np.testing.assert_array_equal(scaling.transform_X(X), X)
    np.testing.assert_array_equal(scaling.inverse_y(y), y)


def test_inputs_of_many_draws_go_back_together():
    X, y = rows()
    scaling = Standardiser.fit(3 + 2 * X, y)
    Z = np.random.default_rng(2).normal(size=(4, 5, 3))
    np.testing.assert_array_equal(scaling.inverse_X(Z)[2], scaling.inverse_X(Z[2]))


def test_it_cannot_be_changed_and_keeps_no_hold_on_the_data():
    mean = np.zeros(2)
    scaling = Standardiser(mean, np.ones(2), 0.0, 1.0)
    mean[0] = 99
    assert scaling.x_mean[0] == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        scaling.y_sd = 2.0
    with pytest.raises(ValueError, match="read-only"):
        scaling.x_sd[0] = 2.0


def test_errors_name_the_cause():
    X, y = rows()
    with pytest.raises(InputError, match="fitted to 3 columns"):
        Standardiser.fit(X, y).transform_X(X[:, :2])
    with pytest.raises(InputError, match="fitted to 3 columns"):
        Standardiser.fit(X, y).inverse_X(X[:, :2])
    with pytest.raises(InputError, match="rows"):
        Standardiser.fit(X, y[:-1])
    with pytest.raises(InputError, match="positive"):
        Standardiser(np.zeros(1), np.zeros(1), 0.0, 1.0)
    with pytest.raises(InputError, match="one length"):
        Standardiser(np.zeros(2), np.ones(1), 0.0, 1.0)
