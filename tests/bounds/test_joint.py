"""The joint density's part from the data, against dense formulas, quadrature, differences and the collapsed bound."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import solve_triangular
from scipy import integrate

from integrand import GP, Dataset, InputError, Jitter, Matern52, collapsed_bound
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

JITTER = Jitter(1e-7)
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


LIKELIHOODS = [Gaussian(), StudentT(df=4.0), Bernoulli(), Poisson()]


def naive_marginals(gp, Z, v, X):
    """Mean and variance of f at the rows given u = mean + L v, in 80 bits."""
    A = solve_lower(cholesky(jittered(gp.kernel, Z, JITTER)), covariance(gp.kernel, Z, X))
    return long(gp.mean) + long(v) @ A, np.diag(covariance(gp.kernel, X, X)) - np.sum(A**2, axis=0)


def naive_gaussian(gp, Z, v, X, y):
    mean, variance = naive_marginals(gp, Z, v, X)
    s = long(gp.noise) ** 2
    terms = -((long(y) - mean) ** 2 + variance) / (2 * s) - np.log(8 * np.arctan(long(1.0)) * s) / 2
    return np.sum(terms)


@pytest.mark.parametrize("name", ["rbf", "periodic", "sum of products"])
def test_value_is_the_dense_formula(name):
    X, y, Z, v = make_rows()
    gp = make_gp(KERNELS[name])
    value = expected(Gaussian(), gp, Z, v, Dataset.of(X, y), JITTER)
    assert float(value) == pytest.approx(float(naive_gaussian(gp, Z, v, X, y)), rel=1e-9)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda likelihood: likelihood.name)
def test_value_is_the_expectation_by_quadrature(likelihood):
    X, y, Z, v = make_rows(likelihood, N=9)
    gp = make_gp()
    mean, variance = (np.asarray(a, float) for a in naive_marginals(gp, Z, v, X))
    log_prob = jax.jit(lambda y, f: likelihood.log_prob(y, f, gp.noise))

    def term(y, m, s):
        def integrand(t):
            return float(log_prob(y, m + s * t)) * np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi)

        return integrate.quad(integrand, -9.0, 9.0, epsabs=1e-8, limit=200)[0]

    reference = sum(term(*row) for row in zip(y, mean, np.sqrt(variance), strict=True))
    assert float(expected(likelihood, gp, Z, v, Dataset.of(X, y), JITTER)) == pytest.approx(reference, rel=1e-6)


@pytest.mark.parametrize(
    ("likelihood", "kept"),
    [(Gaussian(), True), (StudentT(), False), (Poisson(), True)],
    ids=["gaussian", "student-t, made again", "poisson"],
)
def test_gradients(likelihood, kept, monkeypatch):
    """In θ, Z and v (or ε), with blocks that are kept for the gradient and with blocks that are not."""
    if not kept:
        monkeypatch.setattr("integrand.data.dataset._KEEP_BYTES", 0)
    X, y, Z, v = make_rows(likelihood, N=13, M=4)
    gp, data = make_gp(Matern52((0.8, 1.3, 2.0), 1.3)), Dataset.of(X, y, 5)
    sites = refined(likelihood, gp, Z, v, data, JITTER)
    # Traced afresh in each case, as the bytes are no argument.
    for function in (
        lambda *p: expected_log_likelihood(likelihood, *p, data, JITTER),
        lambda *p: centred_log_density(likelihood, *p, sites, data, JITTER),
    ):
        both = jax.jit(jax.value_and_grad(function, (0, 1, 2)))
        numeric = central_differences(lambda p, f=both: long(f(*p)[0]), (gp, Z, v), step=2.0**-17)
        gradient = both(gp, Z, v)[1]
        size = max(np.max(np.abs(a)) for a in jax.tree.leaves(numeric))
        for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(numeric), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7 * size)


def test_blocks_change_nothing():
    X, y, Z, v = make_rows(Poisson())
    gp, whole, data = make_gp(), Dataset.of(X, y), Dataset.of(X, y, 7)
    # Padding has y = 0: under a Poisson likelihood it would count if its weight did not.
    for one, two in zip(
        jax.tree.leaves(slopes(Poisson(), gp, Z, v, data, JITTER)),
        jax.tree.leaves(slopes(Poisson(), gp, Z, v, whole, JITTER)),
        strict=True,
    ):
        np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-10)
    sites, sites_whole = (refined(Poisson(), gp, Z, v, d, JITTER) for d in (data, whole))
    for one, two in zip(sites, sites_whole, strict=True):
        np.testing.assert_allclose(np.ravel(one)[:23], np.ravel(two), rtol=1e-9)
    for one, two in zip(
        jax.tree.leaves(centred_slopes(Poisson(), gp, Z, v, sites, data, JITTER)),
        jax.tree.leaves(centred_slopes(Poisson(), gp, Z, v, sites_whole, whole, JITTER)),
        strict=True,
    ):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", ["noise", "duplicates", "nothing"])
def test_a_failure_is_minus_infinity_without_slope(case):
    X, y, Z, v = make_rows()
    gp, jitter, data = make_gp(), Jitter(0.0), Dataset.of(X, y)
    if case == "noise":
        gp = gp._replace(noise=jnp.asarray(1e-250))
    if case == "duplicates":
        gp, Z = make_gp(KERNELS["linear"]), jnp.concatenate([Z, Z])
        v = jnp.concatenate([v, v])
    sites = gaussian_sites(data)
    for value, gradient in (
        slopes(Gaussian(), gp, Z, v, data, jitter),
        centred_slopes(Gaussian(), gp, Z, v, sites, data, jitter),
    ):
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


def test_centred_gaussian_density_is_the_collapsed_bound_and_a_standard_normal():
    """log N(v; 0, I) + ℓ + log |∂v/∂ε| = L(θ, Z) + log N(ε; 0, I), in value and gradient."""
    X, y, Z, epsilon = make_rows(N=40, M=7)
    gp, data = make_gp(), Dataset.of(X, y, 16)

    def collapsed(gp, Z, epsilon):
        return collapsed_bound(gp, Z, data, JITTER) - 0.5 * epsilon @ epsilon - 3.5 * np.log(2 * np.pi)

    value, gradient = centred_slopes(Gaussian(), gp, Z, epsilon, gaussian_sites(data), data, JITTER)
    reference, slope = jax.jit(jax.value_and_grad(collapsed, (0, 1, 2)))(gp, Z, epsilon)
    assert float(value) == pytest.approx(float(reference), rel=1e-11)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(slope), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("likelihood", [StudentT(), Poisson()], ids=lambda likelihood: likelihood.name)
def test_centring_is_a_change_of_variables(likelihood):
    X, y, Z, epsilon = make_rows(likelihood)
    gp, data = make_gp(), Dataset.of(X, y, 9)
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
    m, LB = moments(gp, Z, gaussian_sites(data), data, jitter)
    L = jnp.linalg.cholesky(jitter.add_to(gp.kernel.gram(Z), gp.kernel.diagonal(Z)))
    A = solve_triangular(L, gp.kernel(Z, X_new), lower=True)
    C = solve_triangular(LB, A, lower=True)
    exact = factorise_exact(gp, Z, jnp.asarray(y))
    K = gp.kernel(Z, X_new)
    np.testing.assert_allclose(gp.mean + m @ A, gp.mean + exact.alpha @ K, rtol=1e-6, atol=1e-6)
    variance = gp.kernel.diagonal(X_new) - jnp.sum(A**2, axis=0) + jnp.sum(C**2, axis=0)
    left = gp.kernel.diagonal(X_new) - jnp.sum(solve_triangular(exact.L, K, lower=True) ** 2, axis=0)
    np.testing.assert_allclose(variance, left, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda likelihood: likelihood.name)
def test_sites_lead_to_the_mode(likelihood):
    """Repeated, sites at v and v at their mean end where the density of v has its mode; one step for Gaussian noise."""
    X, y, Z, _ = make_rows(likelihood, N=30)
    gp, data = make_gp(noise=0.5), Dataset.of(X, y)

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
