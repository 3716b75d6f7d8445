from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import solve_triangular

from integrand import GP, RBF, Constant, Dataset, InputError, Jitter, Matern52, collapsed_bound
from integrand.bounds.collapsed import factorise, inducing_posterior
from reference import (
    KERNELS,
    central_differences,
    covariance,
    jittered,
    largest_error,
    naive_bound,
    rbf_bound_and_gradient,
    with_arrays,
)

pytestmark = pytest.mark.usefixtures("strict_float64")

# Every shape, kernel and jitter is a program of its own: most tests share one of each.
JITTER, BLOCK = Jitter(1e-6), 8


BOUNDS = ("titsias", "tight")
both_bounds = pytest.mark.parametrize("bound", BOUNDS)
# The tight bound has all that the other has, and a term more.
tight_first = pytest.mark.parametrize("bound", ["tight", pytest.param("titsias", marks=pytest.mark.slow)])


@partial(jax.jit, static_argnames=("jitter", "bound"))
def _value_and_gradient(gp, Z, data, jitter, cotangent, bound):
    value, pull = jax.vjp(lambda gp, Z: collapsed_bound(gp, Z, data, jitter, bound), gp, Z)
    return value, pull(cotangent)


def value_and_gradient(gp, Z, data, jitter=JITTER, cotangent=1.0, bound="titsias"):
    """The bound, and its gradient in θ and Z times the cotangent."""
    return _value_and_gradient(gp, Z, data, jitter, jnp.asarray(cotangent, float), bound)


value = jax.jit(collapsed_bound, static_argnames=("jitter", "bound"))
factors_of = jax.jit(factorise, static_argnames="jitter")


def make_gp(kernel, noise=0.3, mean=0.1, n_columns=3):
    return GP(with_arrays(kernel, n_columns), jnp.asarray(noise, float), jnp.asarray(mean, float))


def make_rows(seed=0, N=21, M=5, D=3):
    rng = np.random.default_rng(seed)
    X, Z = rng.standard_normal((N, D)), rng.standard_normal((M, D))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(N)
    return X, y, jnp.asarray(Z)


def no_nan(tree):
    return not any(bool(jnp.any(jnp.isnan(leaf))) for leaf in jax.tree.leaves(tree))


# ---- the same number by other ways


def test_four_way_fixture(four_way):
    gp = make_gp(RBF(four_way.lengthscale, four_way.scale), four_way.noise, 0.0)
    data, jitter = Dataset.of(four_way.X, four_way.y), Jitter(0.0, four_way.jitter)

    @jax.jit
    def everything(gp, Z, X_new):
        factors = factorise(gp, Z, data, jitter)
        q = inducing_posterior(factors)
        A = factors.Li @ gp.kernel(Z, X_new)
        V = solve_triangular(factors.LB, A, lower=True)
        variance = gp.kernel.diagonal(X_new) - jnp.sum(A**2, axis=0) + jnp.sum(V**2, axis=0)
        return collapsed_bound(gp, Z, data, jitter), A.T @ q.m, variance

    bound, mean, variance = everything(gp, jnp.asarray(four_way.Z), jnp.asarray(four_way.X_new))
    assert bound == pytest.approx(four_way.bound, rel=1e-10)
    # The fixture gives twelve decimals, half a unit of which is all that is left of the relative 1e-10.
    np.testing.assert_allclose(mean, four_way.mean, rtol=1e-10, atol=5e-13)
    np.testing.assert_allclose(variance, four_way.variance, rtol=1e-10, atol=5e-13)


def test_optimal_q_is_the_dense_formula():
    """L m = σ⁻² Kmm (Kmm + σ⁻² Kmn Knm)⁻¹ Kmn r and L B⁻¹ Lᵀ = Kmm (Kmm + σ⁻² Kmn Knm)⁻¹ Kmm."""
    X, y, Z = make_rows()
    gp, jitter = make_gp(KERNELS["matern32"]), Jitter(1e-8)
    factors = factors_of(gp, Z, Dataset.of(X, y), jitter=jitter)
    q = jax.jit(inducing_posterior)(factors)
    Kmm = np.asarray(jittered(gp.kernel, Z, jitter), float)
    Kmn = np.asarray(covariance(gp.kernel, Z, X), float)
    middle = np.linalg.solve(Kmm + Kmn @ Kmn.T / 0.09, np.column_stack([Kmn @ (y - 0.1) / 0.09, Kmm]))
    L, LB = np.asarray(factors.L), np.asarray(q.LB)
    np.testing.assert_allclose(L @ np.asarray(q.m), Kmm @ middle[:, 0], rtol=1e-9)
    S = L @ np.linalg.solve(LB @ LB.T, L.T)
    np.testing.assert_allclose(S, Kmm @ middle[:, 1:], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "N", "M"),
    [
        ("product", 30, 6),
        ("matern12", 17, 11),
        pytest.param("rbf", 30, 6, marks=pytest.mark.slow),
        pytest.param("rational quadratic", 30, 6, marks=pytest.mark.slow),
        pytest.param("sum", 17, 11, marks=pytest.mark.slow),
    ],
)
def test_random_cases_against_the_naive_formula(name, N, M):
    """Twenty cases for each bound, one program each."""
    worst = 0.0
    for seed in range(20):
        rng = np.random.default_rng([seed, N])
        factor = jnp.asarray(np.exp(rng.uniform(-0.5, 0.5)))
        gp = make_gp(KERNELS[name], np.exp(rng.uniform(-3, 1)), rng.standard_normal())
        gp = gp._replace(kernel=jax.tree.map(lambda v, by=factor: v * by, gp.kernel))
        X, y, Z = make_rows(seed, N, M)
        data = Dataset.of(X, y, 8)
        for bound in BOUNDS:
            reference = naive_bound(gp, Z, X, y, Jitter(), bound)
            found = float(value(gp, Z, data, jitter=Jitter(), bound=bound))
            worst = max(worst, abs(found - reference) / abs(reference))
    assert worst <= 1e-10


# ---- accuracy where the covariance is nearly singular: the table of design notes, errors in nats

TABLE = [
    # N, D, lengthscale, relative jitter, noise variance; the rows of one shape and jitter share a program
    (800, 4, 3.0, 1e-6, 1e-4),
    pytest.param((3000, 2, 1.0, 1e-8, 1e-2), marks=pytest.mark.slow),
    (3000, 2, 1.0, 1e-8, 1e-4),
    pytest.param((800, 4, 3.0, 1e-8, 1e-2), marks=pytest.mark.slow),
    pytest.param((3000, 2, 1.0, 1e-6, 1e-4), marks=pytest.mark.slow),
    pytest.param((3000, 2, 1.0, 1e-10, 1e-2), marks=pytest.mark.slow),
]
WELL_CONDITIONED = [
    (800, 4, 0.5, 1e-6, 1e-1),
    pytest.param((3000, 2, 0.05, 1e-8, 1e-2), marks=pytest.mark.slow),
]


def table_errors(N, D, lengthscale, relative, variance, bound, M=100, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, D))
    y = np.sin(X[:, 0]) + np.sqrt(variance) * rng.standard_normal(N)
    gp = make_gp(RBF((lengthscale,) * D, 1.0), np.sqrt(variance), 0.0, D)
    Z, jitter = jnp.asarray(X[:M]), Jitter(relative)
    found, (d_gp, dZ) = value_and_gradient(gp, Z, Dataset.of(X, y), jitter=jitter, bound=bound)
    assert no_nan((found, d_gp, dZ))
    reference, d_theta, dZ_reference = rbf_bound_and_gradient(gp, Z, X, y, jitter, bound)
    theta = [d_gp.kernel.lengthscale, d_gp.kernel.scale, d_gp.noise, d_gp.mean]
    theta_reference = [d_theta[name] for name in ("lengthscale", "scale", "noise", "mean")]
    return abs(float(found) - reference), largest_error(theta, theta_reference), largest_error(dZ, dZ_reference)


@tight_first
@pytest.mark.parametrize("case", TABLE, ids=str)
def test_accuracy_table(case, bound, record_property):
    nats, theta, Z = table_errors(*case, bound)
    record_property("errors", f"{nats:.1e} nats, gradient θ {theta:.1e}, Z {Z:.1e}")
    if case[3] >= 1e-8:
        assert nats <= 1e-4
        assert theta <= 1e-5
        assert Z <= 1e-5


@both_bounds
@pytest.mark.parametrize("case", WELL_CONDITIONED, ids=str)
def test_accuracy_when_well_conditioned(case, bound, record_property):
    nats, theta, Z = table_errors(*case, bound)
    record_property("errors", f"{nats:.1e} nats, gradient θ {theta:.1e}, Z {Z:.1e}")
    assert nats <= 1e-8
    assert theta <= 1e-8
    assert Z <= 1e-8


# ---- the gradient


FEW = (("matern12", "titsias"), ("matern12", "tight"), ("sum of products", "titsias"))


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        pytest.param(name, bound, marks=() if (name, bound) in FEW else pytest.mark.slow)
        for name in KERNELS
        for bound in BOUNDS
    ],
)
def test_value_and_gradient_against_the_naive_formula(name, bound):
    """Few kernels; what the bound asks of a kernel is a contract of all kernels (`tests/contracts`)."""
    # Kernels of finite rank leave nothing but jitter on Kmm, and any float64 answer then loses digits with it.
    X, y, Z = make_rows()
    gp = make_gp(KERNELS[name])
    found, gradient = value_and_gradient(gp, Z, Dataset.of(X, y, BLOCK), bound=bound)
    assert found == pytest.approx(float(naive_bound(gp, Z, X, y, JITTER, bound)), rel=1e-10)
    differences = central_differences(lambda at: naive_bound(at[0], at[1], X, y, JITTER, bound), (gp, Z))
    assert largest_error(gradient, differences) <= 1e-6


@tight_first
def test_gradient_with_inducing_inputs_on_rows(bound):
    """Where the distance is exactly zero, kernels with a kink included; only θ has a derivative there."""
    X, y, _ = make_rows()
    for name in ("rbf", "matern12"):
        gp = make_gp(KERNELS[name])
        _, (d_gp, _) = value_and_gradient(gp, jnp.asarray(X[:5]), Dataset.of(X, y, BLOCK), bound=bound)
        differences = central_differences(lambda at: naive_bound(at, X[:5], X, y, JITTER, bound), gp)
        assert largest_error(d_gp, differences) <= 1e-6


@pytest.mark.slow
def test_gradient_scales_with_the_cotangent():
    X, y, Z = make_rows()
    gp, data = make_gp(KERNELS["rbf"]), Dataset.of(X, y, BLOCK)
    _, once = value_and_gradient(gp, Z, data)
    _, thrice = value_and_gradient(gp, Z, data, cotangent=3.0)
    assert largest_error(thrice, jax.tree.map(lambda g: 3.0 * g, once)) <= 1e-14


# ---- blocks


@tight_first
def test_blocked_is_unblocked(bound):
    X, y, Z = make_rows()
    gp = make_gp(KERNELS["rbf"])
    whole, gradient = value_and_gradient(gp, Z, Dataset.of(X, y, len(y)), bound=bound)
    for block_rows in (1, BLOCK, 100):
        found, blocked = value_and_gradient(gp, Z, Dataset.of(X, y, block_rows), bound=bound)
        assert found == pytest.approx(float(whole), rel=1e-10)
        assert largest_error(blocked, gradient) <= 1e-10


@pytest.mark.slow
@tight_first
def test_gradient_is_the_same_whether_A_is_kept_or_made_again(bound, monkeypatch):
    X, y, Z = make_rows()
    gp, data = make_gp(KERNELS["matern12"]), Dataset.of(X, y, BLOCK)
    kept = value_and_gradient(gp, Z, data, bound=bound)
    monkeypatch.setattr("integrand.data.dataset._KEEP_BYTES", 0)
    # Another function object, or JAX would answer with the program that it has.
    again = jax.jit(jax.value_and_grad(lambda gp, Z: collapsed_bound(gp, Z, data, JITTER, bound), (0, 1)))(gp, Z)
    assert largest_error(again, kept) <= 1e-12


# ---- what cannot be factored, and what is wrong


@both_bounds
@pytest.mark.parametrize(
    ("kernel", "noise", "jitter"),
    [
        (Constant(1.0), 0.3, Jitter(0.0, 0.0)),  # the second pivot is zero however it is rounded
        (KERNELS["rbf"], 0.0, JITTER),
        (KERNELS["rbf"], np.inf, JITTER),
        (KERNELS["rbf"], np.nan, JITTER),
        (KERNELS["rbf"], 1e-200, JITTER),
    ],
)
def test_a_failed_factorisation_is_minus_infinity_without_nan(kernel, noise, jitter, bound):
    X, y, Z = make_rows()
    data = Dataset.of(X, y, BLOCK)
    found, gradient = value_and_gradient(make_gp(kernel, noise), Z, data, jitter=jitter, bound=bound)
    assert found == -jnp.inf
    assert all(bool(jnp.all(leaf == 0.0)) for leaf in jax.tree.leaves(gradient))


@both_bounds
@pytest.mark.parametrize("field", ["lengthscale", "scale"])
@pytest.mark.parametrize("number", [np.nan, np.inf, 0.0])
def test_hyperparameters_at_the_edge_give_no_nan(field, number, bound):
    X, y, Z = make_rows()
    values = {"lengthscale": (1.0, 1.0, 1.0), "scale": 1.0}
    values[field] = (number,) * 3 if field == "lengthscale" else number
    found, gradient = value_and_gradient(make_gp(RBF(**values)), Z, Dataset.of(X, y, BLOCK), bound=bound)
    assert not jnp.isnan(found)
    if found == -jnp.inf:
        assert no_nan(gradient)


@both_bounds
@pytest.mark.parametrize("jitter", [1e-6, pytest.param(1e-10, marks=pytest.mark.slow)])
def test_rounding_does_not_lift_it(jitter, bound):
    """With next to no noise, Σ k(x, x) - tr W below zero by its last digit would be worth more than any likelihood."""
    rng, X = np.random.default_rng(0), np.linspace(-2.0, 2.0, 20)[:, None]
    data = Dataset.of(X, 0.15 * np.sin(1.5 * X[:, 0] + 1.0))
    for _ in range(200):
        lengthscale, scale, noise = np.exp(rng.uniform([-3.0, -10.0, -230.0], [12.0, 4.0, -5.0]))
        gp = GP(RBF(jnp.asarray([lengthscale]), jnp.asarray(scale)), jnp.asarray(noise))
        found = value(gp, jnp.asarray(X), data, jitter=Jitter(jitter), bound=bound)
        assert found <= -10.0 * np.log(2.0 * np.pi * noise**2) + 1.0, (lengthscale, scale, noise)


def test_duplicated_inducing_inputs_are_fine_with_jitter():
    X, y, Z = make_rows()
    repeated = jnp.asarray(np.asarray(Z)[[0, 1, 2, 0, 1]])
    bound, gradient = value_and_gradient(make_gp(KERNELS["rbf"]), repeated, Dataset.of(X, y, BLOCK))
    assert jnp.isfinite(bound)
    assert no_nan(gradient)


def test_float64_without_a_scope_of_the_caller():
    X, y, Z = make_rows()
    Z = np.asarray(Z)
    gp = GP(RBF((0.8, 1.3, 2.0), 1.3), 0.3, 0.1)
    inside = float(collapsed_bound(gp, Z, Dataset.of(X, y)))
    with jax.enable_x64(False):
        outside = collapsed_bound(gp, Z, Dataset.of(X, y))
        assert outside.dtype == jnp.float64
        assert jnp.asarray(1.0).dtype == jnp.float32
    assert float(outside) == pytest.approx(inside, rel=1e-13)


def test_mean_is_a_shift_of_y():
    X, y, Z = make_rows()
    shifted = value(make_gp(KERNELS["rbf"], mean=2.5), Z, Dataset.of(X, y + 2.5), jitter=Jitter())
    centred = value(make_gp(KERNELS["rbf"], mean=0.0), Z, Dataset.of(X, y), jitter=Jitter())
    assert shifted == pytest.approx(float(centred), rel=1e-12)


@pytest.mark.usefixtures("as_users_see_it")
def test_an_unknown_bound_is_refused():
    X, y, Z = make_rows()
    with pytest.raises(InputError, match="bound must be one of titsias, tight, not 'loose'"):
        collapsed_bound(GP(RBF(1.0, 1.0), 0.3), Z, Dataset.of(X, y), bound="loose")


@pytest.mark.usefixtures("as_users_see_it")
@pytest.mark.parametrize(
    ("kernel", "shape", "message"),
    [
        (RBF(1.0, 1.0), (4, 2), r"Z must have shape \(M, 3\) for this data, but has shape \(4, 2\)"),
        (RBF(1.0, 1.0), (3,), r"has shape \(3,\)"),
        (RBF(1.0, 1.0), (0, 3), r"has shape \(0, 3\)"),
        (RBF(1.0, 1.0), (2, 4, 3), r"has shape \(2, 4, 3\)"),
        (RBF((1.0, 1.0), 1.0), (4, 3), "lengthscale has 2 values, but takes one for each of 3 columns"),
        (RBF(1.0, 1.0) + Matern52(1.0, 1.0, active=(3,)), (4, 3), "for column 3, but the data has only columns 0 to 2"),
    ],
)
def test_errors_name_the_cause(kernel, shape, message):
    X, y, _ = make_rows()
    with pytest.raises(InputError, match=message):
        collapsed_bound(GP(kernel, 0.3), np.zeros(shape), Dataset.of(X, y))
