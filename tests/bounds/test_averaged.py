import jax
import jax.numpy as jnp
import numpy as np
import pytest

from integrand import RBF, Dataset, InputError, Jitter, Model, collapsed_bound
from integrand.bounds.averaged import averaged_bound
from reference import largest_error

pytestmark = pytest.mark.usefixtures("strict_float64")

MODEL = Model(RBF(), 2)


def gp_of(phi):
    return MODEL.gp(MODEL.theta(phi))


@pytest.fixture(scope="module")
def case(strict_float64):
    rng = np.random.default_rng(6)
    X, Z = rng.standard_normal((25, 2)), rng.standard_normal((5, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(25)
    return rng.standard_normal((4, MODEL.n_theta)), Z, Dataset.of(X, y, 9)


@pytest.mark.parametrize("jitter", [Jitter(), Jitter(0.0, 1e-3)])
def test_mean_of_the_bounds_and_of_their_gradients(case, jitter):
    phis, Z, data = case
    value, gradient = averaged_bound(gp_of, phis, Z, data, jitter)
    one = jax.jit(jax.value_and_grad(lambda Z, phi: collapsed_bound(gp_of(phi), Z, data, jitter)))
    each = [one(jnp.asarray(Z), jnp.asarray(phi)) for phi in phis]
    assert value == pytest.approx(float(np.mean([v for v, _ in each])), rel=1e-12)
    assert largest_error(gradient, np.mean([g for _, g in each], axis=0)) <= 1e-11


def test_one_draw_is_the_bound(case):
    phis, Z, data = case
    value, _ = averaged_bound(gp_of, phis[:1], Z, data)
    assert value == pytest.approx(float(collapsed_bound(gp_of(jnp.asarray(phis[0])), Z, data)), rel=1e-12)


def test_a_failed_draw_makes_the_value_minus_infinity_and_no_nan(case):
    phis, Z, data = case
    broken = phis.copy()
    broken[1, -1] = -500.0  # noise of e⁻⁵⁰⁰
    value, gradient = averaged_bound(gp_of, broken, Z, data)
    assert value == -jnp.inf
    assert bool(jnp.all(jnp.isfinite(gradient)))


def test_float64_without_a_scope_of_the_caller(case):
    phis, Z, data = case
    with jax.enable_x64(False):
        value, gradient = averaged_bound(gp_of, phis, Z, data)
    assert value.dtype == gradient.dtype == jnp.float64


@pytest.mark.usefixtures("as_users_see_it")
def test_errors_name_the_cause(case):
    phis, Z, data = case
    with pytest.raises(InputError, match="Z must have shape"):
        averaged_bound(gp_of, phis, Z[:, :1], data)
