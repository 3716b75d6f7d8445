"""The tools of the tests are code as well: the references of the bounds, and the checker of signatures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Float, TypeCheckError

import typechecker
from integrand import GP, RBF, Jitter
from integrand.linalg import cholesky
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


# ---- the checker of signatures


def test_signatures_of_the_library_are_checked():
    with pytest.raises(TypeCheckError):
        cholesky(jnp.ones((2, 3)))


def test_of_each_function_only_the_first_calls_in_a_test_are_checked():
    def total(x: Float[jnp.ndarray, "N N"]) -> float:
        return float(x.sum())

    total.__qualname__ = "total"  # as if it stood at the top of a file
    total = typechecker.often_enough(typechecker=typechecker.checked)(total)
    wrong = jnp.ones((2, 3))
    for _ in range(typechecker._CALLS):
        with pytest.raises(TypeCheckError):
            total(wrong)
    assert total(wrong) == 6.0
    typechecker.next_test()
    with pytest.raises(TypeCheckError):
        total(wrong)
