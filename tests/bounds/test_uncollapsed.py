from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from integrand import GP, RBF, Constant, Dataset, InputError, Jitter, collapsed_bound
from integrand.bounds.collapsed import factorise
from integrand.bounds.uncollapsed import (
    FactoredGaussian,
    batch_log_likelihood,
    kl_from_prior,
    optimal_inducing,
    uncollapsed_bound,
)
from integrand.likelihoods import Bernoulli, Gaussian, Poisson, StudentT
from reference import KERNELS, cholesky, covariance, jittered, long, solve_lower, with_arrays

pytestmark = pytest.mark.usefixtures("strict_float64")
N, M, JITTER, GAUSSIAN = 19, 5, Jitter(1e-6), Gaussian()


@partial(jax.jit, static_argnames="likelihood")
def slopes(likelihood, gp, Z, q, data):
    """The bound, and its gradient in θ, Z and q."""
    return jax.value_and_grad(lambda a: uncollapsed_bound(likelihood, *a, data, JITTER))((gp, Z, q))


@jax.jit
def collapsed(gp, Z, data):
    return optimal_inducing(factorise(gp, Z, data, JITTER)), collapsed_bound(gp, Z, data, JITTER)


def make_case(kernel="rbf", likelihood=GAUSSIAN, block_rows=8):
    rng = np.random.default_rng(5)
    X, Z = rng.standard_normal((N, 3)), jnp.asarray(rng.standard_normal((M, 3)))
    f = np.sin(2 * X[:, 0])
    y = {
        "gaussian": f + 0.3 * rng.standard_normal(N),
        "student-t": f + 0.3 * rng.standard_t(3, N),
        "bernoulli": (f > 0).astype(float),
        "poisson": rng.poisson(np.exp(f)).astype(float),
    }[likelihood.name]
    gp = GP(with_arrays(KERNELS[kernel]), jnp.asarray(0.3, float), jnp.asarray(0.1, float))
    S = np.tril(0.3 * rng.standard_normal((M, M)), -1) + np.diag(rng.uniform(0.3, 1.2, M))
    return gp, Z, FactoredGaussian(jnp.asarray(rng.standard_normal(M)), jnp.asarray(S)), X, y, block_rows


def dense(gp, Z, q, X):
    """Mean and variance of q(f) at each row from u ~ N(mean + L m, L S Sᵀ Lᵀ), in 80 bits and without whitening."""
    L = cholesky(jittered(gp.kernel, Z, JITTER))
    K = covariance(gp.kernel, Z, X)
    P = solve_lower(L[::-1, ::-1].T, solve_lower(L, K)[::-1])[::-1]  # Kmm⁻¹ K
    u, root = L @ long(q.m), L @ long(q.S)
    variance = np.diag(covariance(gp.kernel, X, X)) - np.sum(K * P, axis=0) + np.sum((root.T @ P) ** 2, axis=0)
    return np.asarray(long(gp.mean) + u @ P, float), np.asarray(variance, float)


def log_prob(likelihood, y, f, noise):
    """From SciPy's distributions."""
    return {
        "gaussian": lambda: stats.norm.logpdf(y, f, noise),
        "student-t": lambda: stats.t.logpdf(y, likelihood.df, f, noise),
        "bernoulli": lambda: stats.norm.logcdf((2 * y - 1) * f),
        "poisson": lambda: stats.poisson.logpmf(y, np.exp(f)),
    }[likelihood.name]()


@pytest.mark.parametrize(
    "likelihood",
    [Gaussian(), Poisson(), *(pytest.param(one, marks=pytest.mark.slow) for one in (StudentT(4.0), Bernoulli()))],
    ids=lambda one: one.name,
)
def test_against_the_dense_formula_and_quadrature(likelihood):
    gp, Z, q, X, y, rows = make_case(likelihood=likelihood)
    means, variances = dense(gp, Z, q, X)

    def term(y, mean, sd):
        def integrand(e):
            return log_prob(likelihood, y, mean + sd * e, 0.3) * stats.norm.pdf(e)

        return integrate.quad(integrand, -9.0, 9.0, epsabs=1e-10, limit=200)[0]

    expected = sum(term(*row) for row in zip(y, means, np.sqrt(variances), strict=True))
    value, _ = slopes(likelihood, gp, Z, q, Dataset.of(X, y, rows))
    assert value == pytest.approx(expected - float(kl_from_prior(q)), abs=1e-6)


def test_kl_by_draws_and_by_the_textbook():
    _, _, q, _, _, _ = make_case()
    m, S = np.asarray(q.m), np.asarray(q.S)
    C = S @ S.T
    textbook = 0.5 * (np.trace(C) + m @ m - M - np.linalg.slogdet(C)[1])
    assert kl_from_prior(q) == pytest.approx(textbook, rel=1e-12)
    v = m + np.random.default_rng(0).standard_normal((200_000, M)) @ S.T
    ratios = stats.multivariate_normal.logpdf(v, m, C) - stats.multivariate_normal.logpdf(v, np.zeros(M), np.eye(M))
    assert kl_from_prior(q) == pytest.approx(ratios.mean(), abs=4 * ratios.std() / np.sqrt(len(v)))


@pytest.mark.parametrize("name", ["rbf", "linear"])
def test_with_the_best_q_it_is_the_collapsed_bound(name):
    gp, Z, q, X, y, rows = make_case(name)
    data = Dataset.of(X, y, rows)
    best, expected = collapsed(gp, Z, data)
    np.testing.assert_array_equal(np.triu(best.S, 1), 0.0)
    assert np.all(np.diagonal(best.S) > 0)
    value, (_, _, gradient) = slopes(Gaussian(), gp, Z, best, data)
    assert value == pytest.approx(float(expected), abs=1e-9)
    assert np.abs(gradient.m).max() < 1e-8 * abs(float(value))
    assert np.abs(np.tril(gradient.S)).max() < 1e-6 * abs(float(value))
    for other in (q, best._replace(m=best.m + 0.1), best._replace(S=1.1 * best.S)):
        assert slopes(Gaussian(), gp, Z, other, data)[0] < value


@pytest.mark.slow
def test_blocks_agree():
    gp, Z, q, X, y, _ = make_case(likelihood=Poisson())
    first, *others = [slopes(Poisson(), gp, Z, q, Dataset.of(X, y, rows)) for rows in (1, 8, N)]
    for value, gradient in others:
        assert value == pytest.approx(float(first[0]), rel=1e-12)
        for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(first[1]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "likelihood"),
    [
        pytest.param("rbf", Gaussian(), marks=pytest.mark.slow),
        ("rbf", StudentT(4.0)),
        ("linear", Bernoulli()),
    ],
)
def test_gradient(name, likelihood):
    gp, Z, q, X, y, rows = make_case(name, likelihood)
    X[0] = 0.0  # where a linear kernel is certain of f, as it is in the padding
    data = Dataset.of(X, y, rows)
    point = (gp, Z, q)
    _, gradient = slopes(likelihood, *point, data)
    rng = np.random.default_rng(2)
    for _ in range(4):
        way = jax.tree.map(lambda a: np.asarray(rng.standard_normal(a.shape)), point)

        def slope(h, way=way):
            up = jax.tree.map(lambda a, b: a + h * b, point, way)
            down = jax.tree.map(lambda a, b: a - h * b, point, way)
            return float(slopes(likelihood, *up, data)[0] - slopes(likelihood, *down, data)[0]) / (2 * h)

        richardson = (4.0 * slope(1e-4) - slope(2e-4)) / 3.0
        pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(way), strict=True)
        assert sum(float(np.sum(g * w)) for g, w in pairs) == pytest.approx(richardson, rel=2e-6, abs=2e-6)


def test_a_batch_is_unbiased():
    gp, Z, q, X, y, rows = make_case()
    data = Dataset.of(X, y, rows)
    whole = slopes(Gaussian(), gp, Z, q, data)[0] + kl_from_prior(q)
    X, y = data.arrays()
    batch = jax.jit(lambda rows: batch_log_likelihood(Gaussian(), gp, Z, q, X[rows], y[rows], N, JITTER))
    assert batch(np.arange(N)) == pytest.approx(float(whole), rel=1e-12)
    # Each row is in three of these batches of three: the mean is exact, not only in the limit.
    every = [batch((np.arange(3) * 5 + i) % N) for i in range(N)]
    assert np.std(every) > 1.0
    assert np.mean(every) == pytest.approx(float(whole), rel=1e-12)


def test_coordinates_of_q():
    gp, Z, q, X, y, rows = make_case()
    data = Dataset.of(X, y, rows)
    zero = jax.tree.map(jnp.zeros_like, q)
    along = jax.jit(jax.grad(lambda step: uncollapsed_bound(Gaussian(), gp, Z, q.stepped(step), data, JITTER)))(zero)
    seen = q.in_own_coordinates(slopes(Gaussian(), gp, Z, q, data)[1][2])
    for a, b in zip(along, seen, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
    far = q.stepped(FactoredGaussian(jnp.ones(M), -3.0 * jnp.ones((M, M))))
    assert np.all(np.diagonal(far.S) > 0)
    np.testing.assert_array_equal(np.triu(far.S, 1), 0.0)


@pytest.mark.parametrize("noise", [0.0, np.inf, np.nan])
def test_a_failure_is_minus_infinity_and_has_no_slope(noise):
    gp, Z, q, X, y, rows = make_case()
    gp = gp._replace(noise=jnp.asarray(noise, float))
    data = Dataset.of(X, y, rows)
    value, (*d_theta_and_Z, dq) = slopes(Gaussian(), gp, Z, q, data)
    assert value == -jnp.inf
    assert all(np.all(np.asarray(g) == 0.0) for g in jax.tree.leaves(d_theta_and_Z))
    assert all(np.all(np.isfinite(g)) for g in dq)  # that of the KL


def test_a_zero_pivot_is_minus_infinity():
    """k = 1 everywhere: the second pivot is zero however it is rounded."""
    gp, Z, q, X, y, rows = make_case("constant")
    gp = gp._replace(kernel=with_arrays(Constant(1.0)))
    data = Dataset.of(X, y, rows)
    assert jax.jit(lambda: uncollapsed_bound(Gaussian(), gp, Z, q, data, Jitter(0.0)))() == -jnp.inf


@pytest.mark.usefixtures("as_users_see_it")
def test_errors_name_the_cause():
    gp, _, q, X, y, rows = make_case()
    data = Dataset.of(X, y, rows)
    with pytest.raises(InputError, match="Z must have shape"):
        uncollapsed_bound(Gaussian(), gp, np.zeros((4, 2)), q, data)
    with pytest.raises(InputError, match=r"do not fit 4 inducing points"):
        uncollapsed_bound(Gaussian(), gp, np.zeros((4, 3)), q, data)


@pytest.mark.usefixtures("as_users_see_it")
def test_plain_numbers_will_do():
    q, data = FactoredGaussian(np.zeros(1), np.eye(1)), Dataset.of(np.zeros((3, 1)), np.arange(3.0))
    gp = GP(RBF(1.0, 1.0), 0.3)
    value = jax.jit(lambda: uncollapsed_bound(Gaussian(), gp, np.zeros((1, 1)), q, data, Jitter(0.0)))()
    assert value == pytest.approx(sum(stats.norm.logpdf(y, 0.0, 0.3) - 0.5 / 0.3**2 for y in range(3)), rel=1e-12)
