import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from integrand import GP, RBF, InputError, log_marginal_likelihood
from reference import KERNELS, central_differences, largest_error, naive_exact, with_arrays

pytestmark = pytest.mark.usefixtures("strict_float64")

value_and_gradient = jax.jit(jax.value_and_grad(log_marginal_likelihood))


def make_case(kernel, noise=0.3):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((19, 3))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(19)
    return GP(with_arrays(kernel), jnp.asarray(noise, float), jnp.asarray(0.1)), jnp.asarray(X), jnp.asarray(y)


def test_four_way_fixture(four_way):
    gp = GP(RBF(four_way.lengthscale, four_way.scale), four_way.noise)
    assert log_marginal_likelihood(gp, four_way.X, four_way.y) == pytest.approx(four_way.exact, rel=1e-10)


def test_against_scikit_learn(four_way):
    kernel = sk.ConstantKernel(four_way.scale**2) * sk.RBF(four_way.lengthscale)
    theirs = GaussianProcessRegressor(kernel, alpha=four_way.noise**2, optimizer=None).fit(four_way.X, four_way.y)
    gp = GP(RBF(four_way.lengthscale, four_way.scale), four_way.noise)
    ours = log_marginal_likelihood(gp, four_way.X, four_way.y)
    assert ours == pytest.approx(theirs.log_marginal_likelihood_value_, rel=1e-10)


@pytest.mark.parametrize("name", ["rbf", "linear ard", "sum of products"])
def test_value_and_gradient_against_the_naive_formula(name):
    gp, X, y = make_case(KERNELS[name])
    value, gradient = value_and_gradient(gp, X, y)
    assert value == pytest.approx(float(naive_exact(gp, X, y)), rel=1e-11)
    assert largest_error(gradient, central_differences(lambda at: naive_exact(at, X, y), gp)) <= 1e-7


def test_duplicate_rows_are_fine():
    gp, X, y = make_case(KERNELS["matern12"])
    X, y = jnp.asarray(np.tile(X, (2, 1))), jnp.asarray(np.concatenate([y, np.asarray(y) + 0.1]))
    value, gradient = value_and_gradient(gp, X, y)
    assert value == pytest.approx(float(naive_exact(gp, X, y)), rel=1e-11)
    assert largest_error(gradient, central_differences(lambda at: naive_exact(at, X, y), gp)) <= 1e-7


@pytest.mark.parametrize("noise", [0.0, np.inf, np.nan])
def test_a_failed_factorisation_is_minus_infinity_without_nan(noise):
    gp, X, y = make_case(KERNELS["rbf"], noise)
    value, gradient = value_and_gradient(gp, jnp.asarray(np.tile(X[:1], (19, 1))), y)
    assert value == -jnp.inf
    assert all(bool(jnp.all(leaf == 0.0)) for leaf in jax.tree.leaves(gradient))


def test_float64_without_a_scope_of_the_caller(four_way):
    gp = GP(RBF(four_way.lengthscale, four_way.scale), four_way.noise)
    with jax.enable_x64(False):
        value = log_marginal_likelihood(gp, four_way.X, four_way.y)
    assert value.dtype == jnp.float64
    assert float(value) == pytest.approx(four_way.exact, rel=1e-10)


@pytest.mark.usefixtures("as_users_see_it")
@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros(4), np.zeros(4), r"shapes \(N, D\) and \(N,\), but have \(4,\) and \(4,\)"),
        (np.zeros((4, 3)), np.zeros((4, 1)), r"but have \(4, 3\) and \(4, 1\)"),
        (np.zeros((4, 3)), np.zeros(5), r"but have \(4, 3\) and \(5,\)"),
        (np.zeros((0, 3)), np.zeros(0), r"but have \(0, 3\)"),
        (np.zeros((4, 2)), np.zeros(4), "lengthscale has 3 values"),
    ],
)
def test_errors_name_the_cause(X, y, message):
    with pytest.raises(InputError, match=message):
        log_marginal_likelihood(GP(RBF((1.0, 1.0, 1.0), 1.0), 0.1), X, y)
