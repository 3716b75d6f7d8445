"""The references are code as well: they are held against each other and against differences in 80 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from integrand import GP, RBF, Jitter
from reference import central_differences, largest_error, naive_bound, rbf_bound_and_gradient

pytestmark = pytest.mark.usefixtures("strict_float64")


def test_80_bits():
    assert np.finfo(np.longdouble).eps < 2e-19


@pytest.mark.parametrize("bound", ["titsias", "tight"])
@pytest.mark.parametrize("jitter", [Jitter(1e-4), Jitter(0.0, 1e-3)])
def test_gradient_of_the_reference(jitter, bound):
    rng = np.random.default_rng(3)
    X, Z = rng.standard_normal((17, 2)), rng.standard_normal((5, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(17)
    gp = GP(RBF(lengthscale=jnp.array([0.7, 1.4]), scale=jnp.array(1.3)), jnp.array(0.3), jnp.array(0.2))
    value, theta, dZ = rbf_bound_and_gradient(gp, Z, X, y, jitter, bound)
    assert abs(value - naive_bound(gp, Z, X, y, jitter, bound)) < 1e-14
    d_gp, differences = central_differences(lambda at: naive_bound(at[0], at[1], X, y, jitter, bound), (gp, Z))
    by_name = jax.tree.leaves((d_gp.kernel.lengthscale, d_gp.kernel.scale, d_gp.noise, d_gp.mean))
    assert largest_error([theta["lengthscale"], theta["scale"], theta["noise"], theta["mean"]], by_name) < 1e-9
    assert largest_error(dZ, differences) < 1e-9
