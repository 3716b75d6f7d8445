import jax
import jax.numpy as jnp
import numpy as np
import pytest

from integrand import GP, RBF, Constant, Dataset, InputError, Jitter, upper_bound
from reference import KERNELS, naive_upper, with_arrays

pytestmark = pytest.mark.usefixtures("strict_float64")

upper = jax.jit(upper_bound, static_argnames="jitter")


def make_case(kernel, noise=0.3, block_rows=8):
    rng = np.random.default_rng(5)
    X, Z = rng.standard_normal((19, 3)), rng.standard_normal((5, 3))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(19)
    gp = GP(with_arrays(kernel), jnp.asarray(noise, float), jnp.asarray(0.1))
    return gp, jnp.asarray(Z), X, y, Dataset.of(X, y, block_rows)


def test_four_way_fixture(four_way):
    kernel = with_arrays(RBF(four_way.lengthscale, four_way.scale))
    gp = GP(kernel, jnp.asarray(four_way.noise), jnp.asarray(0.0))
    data = Dataset.of(four_way.X, four_way.y)
    above = upper(gp, four_way.Z, data, jitter=Jitter(0.0, four_way.jitter))
    assert above == pytest.approx(four_way.upper, rel=1e-10)


@pytest.mark.parametrize("name", ["rbf", "linear ard", "sum of products"])
def test_against_the_dense_formula(name):
    gp, Z, X, y, data = make_case(KERNELS[name])
    jitter = Jitter(1e-6)
    above = upper(gp, Z, data, jitter=jitter)
    assert above == pytest.approx(float(naive_upper(gp, Z, X, y, jitter)), rel=1e-10)


@pytest.mark.parametrize("noise", [0.0, np.inf, np.nan])
def test_a_failed_factorisation_is_plus_infinity(noise):
    gp, Z, _, _, data = make_case(KERNELS["rbf"], noise)
    assert upper(gp, Z, data, jitter=Jitter(1e-6)) == jnp.inf


def test_a_zero_pivot_is_plus_infinity():
    """k = 1 everywhere: the second pivot is zero however it is rounded."""
    gp, Z, _, _, data = make_case(Constant(1.0))
    assert upper(gp, Z, data, jitter=Jitter(0.0, 0.0)) == jnp.inf


@pytest.mark.usefixtures("as_users_see_it")
def test_errors_name_the_cause():
    gp, _, _, _, data = make_case(KERNELS["rbf"])
    with pytest.raises(InputError, match="Z must have shape"):
        upper_bound(gp, np.zeros((4, 2)), data)
