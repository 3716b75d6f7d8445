"""The joint density's part from the data, against dense formulas, quadrature, differences and the collapsed bound."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import solve_triangular
from scipy import integrate

from integrand import GP, Constant, Dataset, InputError, Jitter, collapsed_bound
from integrand.bounds.exact import factorise_exact
from integrand.bounds.joint import (
    Sites,
    centred_log_density,
    expected_log_likelihood,
    gaussian_sites,
    refined_sites,
    v_given_theta,
)
from integrand.likelihoods import Bernoulli, Gaussian, Poisson, StudentT
from reference import KERNELS, central_differences, cholesky, covariance, jittered, long, solve_lower, with_arrays

pytestmark = pytest.mark.usefixtures("strict_float64")

JITTER, BLOCK = Jitter(1e-7), 7
STATIC = ("likelihood", "jitter")
expected = jax.jit(expected_log_likelihood, static_argnames=STATIC)
slopes = jax.jit(jax.value_and_grad(expected_log_likelihood, (1, 2, 3)), static_argnames=STATIC)
refined = jax.jit(refined_sites, static_argnames=STATIC)
moments = jax.jit(v_given_theta, static_argnames="jitter")
centred = jax.jit(centred_log_density, static_argnames=STATIC)
centred_slopes = jax.jit(jax.value_and_grad(centred_log_density, (1, 2, 3)), static_argnames=STATIC)


def make_gp(kernel=KERNELS["rbf"], noise=0.3, mean=0.1):
    return GP(with_arrays(kernel, 3), jnp.asarray(noise, float), jnp.asarray(mean, float))


GAUSSIAN = Gaussian()


def make_rows(likelihood=GAUSSIAN, seed=0, N=23, M=6):
    rng = np.random.default_rng(seed)
    X, Z, v = rng.standard_normal((N, 3)), rng.standard_normal((M, 3)), rng.standard_normal(M)
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(N)
    if likelihood.name == "bernoulli":
        y = (y > 0).astype(float)
    if likelihood.name == "poisson":
        y = np.round(np.exp(y))
    return X, y, jnp.asarray(Z), jnp.asarray(v)


# Noise, and counts; tests of likelihoods hold the others against quadrature.
SOME = [Gaussian(), Poisson(), *(pytest.param(one, marks=pytest.mark.slow) for one in (StudentT(df=4.0), Bernoulli()))]


def naive_marginals(gp, Z, v, X):
    """Mean and variance of f at the rows given u = mean + L v, in 80 bits."""
    A = solve_lower(cholesky(jittered(gp.kernel, Z, JITTER)), covariance(gp.kernel, Z, X))
    return long(gp.mean) + long(v) @ A, np.diag(covariance(gp.kernel, X, X)) - np.sum(A**2, axis=0)


def naive_gaussian(gp, Z, v, X, y):
    mean, variance = naive_marginals(gp, Z, v, X)
    s = long(gp.noise) ** 2
    terms = -((long(y) - mean) ** 2 + variance) / (2 * s) - np.log(8 * np.arctan(long(1.0)) * s) / 2
    return np.sum(terms)


@pytest.mark.parametrize("name", ["rbf", pytest.param("sum of products", marks=pytest.mark.slow)])
def test_value_is_the_dense_formula(name):
    X, y, Z, v = make_rows()
    gp = make_gp(KERNELS[name])
    value = expected(Gaussian(), gp, Z, v, Dataset.of(X, y, BLOCK), JITTER)
    assert float(value) == pytest.approx(float(naive_gaussian(gp, Z, v, X, y)), rel=1e-9)


@pytest.mark.parametrize("likelihood", SOME, ids=lambda likelihood: likelihood.name)
def test_value_is_the_expectation_by_quadrature(likelihood):
    X, y, Z, v = make_rows(likelihood)
    gp = make_gp()
    mean, variance = (np.asarray(a, float) for a in naive_marginals(gp, Z, v, X))
    log_prob = jax.jit(lambda y, f: likelihood.log_prob(y, f, gp.noise))

    def term(y, m, s):
        def integrand(t):
            return float(log_prob(y, m + s * t)) * np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi)

        return integrate.quad(integrand, -9.0, 9.0, epsabs=1e-8, limit=200)[0]

    reference = sum(term(*row) for row in zip(y, mean, np.sqrt(variance), strict=True))
    assert float(expected(likelihood, gp, Z, v, Dataset.of(X, y, BLOCK), JITTER)) == pytest.approx(reference, rel=1e-6)


def against_differences(function, point):
    """The gradient of a compiled (value, gradient), compared with differences of its value."""
    numeric = central_differences(lambda p: long(function(*p)[0]), point, step=2.0**-17)
    gradient = function(*point)[1]
    size = max(np.max(np.abs(a)) for a in jax.tree.leaves(numeric))
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(numeric), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7 * size)


def test_gradients():
    """In θ, Z and v, or ε. Gaussian noise has the gradient of the collapsed bound, below."""
    X, y, Z, v = make_rows(Poisson())
    gp, data = make_gp(), Dataset.of(X, y, BLOCK)
    sites = refined(Poisson(), gp, Z, v, data, JITTER)
    against_differences(lambda *p: slopes(Poisson(), *p, data, JITTER), (gp, Z, v))
    against_differences(lambda *p: centred_slopes(Poisson(), *p, sites, data, JITTER), (gp, Z, v))


@pytest.mark.slow
def test_gradient_where_blocks_are_made_again(monkeypatch):
    monkeypatch.setattr("integrand.data.dataset._KEEP_BYTES", 0)
    X, y, Z, v = make_rows(StudentT(), N=13, M=4)
    gp, data = make_gp(), Dataset.of(X, y, 5)
    sites = refined(StudentT(), gp, Z, v, data, JITTER)

    @jax.jit
    def both(*point):  # traced here, as the bytes are no argument
        density = partial(centred_log_density, StudentT(), sites=sites, data=data, jitter=JITTER)
        return jax.value_and_grad(density, (0, 1, 2))(*point)

    against_differences(both, (gp, Z, v))


@pytest.mark.slow
def test_blocks_change_nothing():
    X, y, Z, v = make_rows(Poisson())
    gp, whole, data = make_gp(), Dataset.of(X, y), Dataset.of(X, y, BLOCK)
    # Padding has y = 0: under a Poisson likelihood it would count if its weight did not.
    sites, sites_whole = (refined(Poisson(), gp, Z, v, d, JITTER) for d in (data, whole))
    for one, two in zip(sites, sites_whole, strict=True):
        np.testing.assert_allclose(np.ravel(one)[:23], np.ravel(two), rtol=1e-9)
    for one, two in zip(
        jax.tree.leaves(centred_slopes(Poisson(), gp, Z, v, sites, data, JITTER)),
        jax.tree.leaves(centred_slopes(Poisson(), gp, Z, v, sites_whole, whole, JITTER)),
        strict=True,
    ):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.slow if c == "nothing" else ()) for c in ("noise", "pivot", "nothing")]
)
def test_a_failure_is_minus_infinity_without_slope(case):
    X, y, Z, v = make_rows()
    gp, jitter, data = make_gp(), JITTER, Dataset.of(X, y, BLOCK)
    if case == "noise":
        gp = make_gp(noise=1e-250)
    if case == "pivot":
        gp, jitter = make_gp(Constant(1.0)), Jitter(0.0)  # the second pivot is zero however it is rounded
    value, gradient = centred_slopes(Gaussian(), gp, Z, v, gaussian_sites(data), data, jitter)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient)])
    if case == "nothing":
        assert np.isfinite(value)
        assert np.any(flat != 0.0)
    else:
        assert value == -np.inf
        np.testing.assert_array_equal(flat, 0.0)


def test_wrong_shapes_are_named(as_users_see_it):
    X, y, Z, v = make_rows()
    with pytest.raises(InputError, match=r"v must have shape \(6,\)"):
        expected_log_likelihood(Gaussian(), make_gp(), Z, v[:5], Dataset.of(X, y), JITTER)


# ---- v given θ


@pytest.mark.slow
def test_centred_gaussian_density_is_the_collapsed_bound_and_a_standard_normal():
    """log N(v; 0, I) + ℓ + log |∂v/∂ε| = L(θ, Z) + log N(ε; 0, I), in value and gradient."""
    X, y, Z, epsilon = make_rows()
    gp, data = make_gp(), Dataset.of(X, y, BLOCK)

    def collapsed(gp, Z, epsilon):
        return collapsed_bound(gp, Z, data, JITTER) - 0.5 * epsilon @ epsilon - 3.0 * np.log(2 * np.pi)

    value, gradient = centred_slopes(Gaussian(), gp, Z, epsilon, gaussian_sites(data), data, JITTER)
    reference, slope = jax.jit(jax.value_and_grad(collapsed, (0, 1, 2)))(gp, Z, epsilon)
    assert float(value) == pytest.approx(float(reference), rel=1e-11)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(slope), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "likelihood", [pytest.param(StudentT(), marks=pytest.mark.slow), Poisson()], ids=lambda likelihood: likelihood.name
)
def test_centring_is_a_change_of_variables(likelihood):
    X, y, Z, epsilon = make_rows(likelihood)
    gp, data = make_gp(), Dataset.of(X, y, BLOCK)
    rng = np.random.default_rng(4)
    shape = data.blocks.y.shape
    sites = Sites(jnp.asarray(rng.standard_normal(shape)), jnp.asarray(rng.uniform(0.0, 2.0, shape)))
    m, LB = moments(gp, Z, sites, data, JITTER)
    v = m + solve_triangular(LB, epsilon, lower=True, trans=1)
    normal = -0.5 * v @ v - 3.0 * np.log(2 * np.pi)
    reference = normal + expected(likelihood, gp, Z, v, data, JITTER) - jnp.sum(jnp.log(jnp.diagonal(LB)))
    assert float(centred(likelihood, gp, Z, epsilon, sites, data, JITTER)) == pytest.approx(float(reference), rel=1e-11)


def test_v_given_theta_gives_back_the_exact_gp():
    """With Z = X, f* averaged over v ~ N(m, (LB LBᵀ)⁻¹) has the exact GP's mean and variance."""
    X, y, _, _ = make_rows(N=15)
    X_new = jnp.asarray(np.random.default_rng(9).standard_normal((5, 3)))
    gp, data, jitter = make_gp(), Dataset.of(X, y), Jitter(0.0, 1e-12)
    Z = jnp.asarray(X)

    @jax.jit
    def both(gp, Z, y, X_new):
        """Mean and variance at new inputs, averaged over v and by the exact GP."""
        m, LB = v_given_theta(gp, Z, gaussian_sites(data), data, jitter)
        L, K, prior = jnp.linalg.cholesky(jitter.gram(gp.kernel, Z)), gp.kernel(Z, X_new), gp.kernel.diagonal(X_new)
        A = solve_triangular(L, K, lower=True)
        C = solve_triangular(LB, A, lower=True)
        exact = factorise_exact(gp, Z, y)
        left = prior - jnp.sum(solve_triangular(exact.L, K, lower=True) ** 2, axis=0)
        averaged = gp.mean + m @ A, prior - jnp.sum(A**2, axis=0) + jnp.sum(C**2, axis=0)
        return averaged, (gp.mean + exact.alpha @ K, left)

    for one, two in zip(*both(gp, Z, jnp.asarray(y), X_new), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("likelihood", SOME, ids=lambda likelihood: likelihood.name)
def test_sites_lead_to_the_mode(likelihood):
    """Repeated, sites at v and v at their mean end where the density of v has its mode; one step for Gaussian noise."""
    X, y, Z, _ = make_rows(likelihood, N=30)
    gp, data = make_gp(noise=0.5), Dataset.of(X, y, BLOCK)

    def density(v):
        return expected_log_likelihood(likelihood, gp, Z, v, data, JITTER) - 0.5 * v @ v

    slope, v = jax.jit(jax.grad(density)), jnp.zeros(len(Z))
    for _ in range(1 if likelihood.name == "gaussian" else 40):
        sites = refined(likelihood, gp, Z, v, data, JITTER)
        v, _ = moments(gp, Z, sites, data, JITTER)
    np.testing.assert_allclose(slope(v), 0.0, atol=1e-7)
    sites = refined(likelihood, gp, Z, v, data, JITTER)
    if np.all(np.asarray(sites.precision) > 0.0):  # not where an outlier of the Student-t curves the other way
        _, LB = moments(gp, Z, sites, data, JITTER)
        hessian = central_differences(lambda v: long(slope(v)[0]), v, step=2.0**-14)
        np.testing.assert_allclose((LB @ LB.T)[0], -hessian, rtol=1e-5, atol=1e-5)
