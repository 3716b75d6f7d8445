"""Every number two ways: closed forms and rules against adaptive quadrature, gradients against differences."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from scipy.integrate import quad

from integrand.errors import InputError
from integrand.likelihoods import LIKELIHOODS, Bernoulli, Gaussian, Likelihood, Poisson, StudentT
from integrand.precision import float64_scope

pytestmark = pytest.mark.usefixtures("strict_float64")

ALL = [Gaussian(), StudentT(), StudentT(1.0), StudentT(50), Bernoulli(), Bernoulli("logit"), Poisson()]
NAMES = [repr(likelihood) for likelihood in ALL]
every = pytest.mark.parametrize("likelihood", ALL, ids=NAMES)
NOISE = 0.7


# Compiled, a likelihood being static, as the library does.
log_prob = jax.jit(lambda likelihood, *args: likelihood.log_prob(*args), static_argnums=0)
expected_log_prob = jax.jit(lambda likelihood, *args: likelihood.expected_log_prob(*args), static_argnums=0)


def scipy_log_prob(likelihood, y, f, noise):
    z = (y - f) / noise
    match likelihood:  # stats.norm.logpdf and stats.t.logpdf check their arguments for longer than they compute
        case Gaussian():
            return stats.norm._logpdf(z) - np.log(noise)
        case StudentT(df=df):
            return stats.t._logpdf(z, df) - np.log(noise)
        case Bernoulli(link="probit"):
            return special.log_ndtr((2 * y - 1) * f)
        case Bernoulli():
            return special.log_expit((2 * y - 1) * f)
        case Poisson():
            return special.xlogy(y, np.exp(f)) - np.exp(f) - special.gammaln(y + 1)


def observations(likelihood):
    return {"bernoulli": [0.0, 1.0], "poisson": [0.0, 3.0, 40.0]}.get(likelihood.name, [-1.5, 0.2, 8.0])


def average(function, mean, sd, breaks=()):
    """∫ function(f) N(f; mean, sd²) df by Gauss–Legendre on fine pieces, which end where the function has structure."""
    ends = np.concatenate([mean + sd * np.linspace(-24, 24, 97), breaks])
    ends = np.unique(ends[np.abs(ends - mean) <= 24 * sd])
    nodes, weights = np.polynomial.legendre.leggauss(24)
    half = np.diff(ends)[:, None] / 2
    f = ends[:-1, None] + half * (1 + nodes)
    return np.sum(half * weights * function(f) * np.exp(-0.5 * ((f - mean) / sd) ** 2)) / (sd * np.sqrt(2 * np.pi))


# The classes


def test_names():
    assert all(issubclass(kind, Likelihood) and kind().name == name for name, kind in LIKELIHOODS.items())
    ours = {name: kind for name, kind in LIKELIHOODS.items() if kind.__module__.startswith("integrand.")}
    assert set(ours) == {"gaussian", "student-t", "bernoulli", "poisson"}
    noisy = {name for name, kind in ours.items() if kind.has_noise}
    assert noisy == {name for name, kind in ours.items() if kind.standardises_y} == {"gaussian", "student-t"}
    assert {name for name, kind in ours.items() if kind.discrete} == {"bernoulli", "poisson"}


def test_equal_ones_share_a_compiled_function():
    assert StudentT(4) == StudentT(4.0) != StudentT(5)
    assert hash(StudentT(4)) == hash(StudentT(4.0))
    assert len({*ALL, StudentT(), Gaussian(), Bernoulli("logit")}) == len(ALL)
    traced = []

    def total(likelihood, f):
        traced.append(likelihood)
        return jnp.sum(likelihood.log_prob(1.0, f, NOISE))

    compiled = jax.jit(total, static_argnums=0)
    for likelihood in (StudentT(4), StudentT(4.0), Poisson(), Poisson()):
        assert compiled(likelihood, jnp.zeros(3)).shape == ()
    assert traced == [StudentT(), Poisson()]


@every
def test_immutable(likelihood):
    with pytest.raises(AttributeError):
        likelihood.df = 3.0


@pytest.mark.parametrize("df", [0, -1.0, np.nan, np.inf, "4", True, None])
@pytest.mark.usefixtures("as_users_see_it")
def test_bad_df(df):
    with pytest.raises(InputError, match="df must be a positive number"):
        StudentT(df)


@pytest.mark.parametrize("link", ["cloglog", "Probit", "", None])
@pytest.mark.usefixtures("as_users_see_it")
def test_bad_link(link):
    with pytest.raises(InputError, match="link must be 'probit' or 'logit'"):
        Bernoulli(link)


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        (Gaussian(), [0.0, np.nan, np.inf], r"^y\[1\] is nan: a gaussian likelihood wants finite numbers"),
        (StudentT(), [np.inf], r"^y\[0\] is inf: a student-t likelihood"),
        (Bernoulli(), [0, 1, 2, 3], r"^y\[2\] is 2: a bernoulli likelihood wants 0 and 1"),
        (Bernoulli(), [1.0, -1.0], r"^y\[1\] is -1.0"),
        (Bernoulli(), [np.nan], r"^y\[0\] is nan"),
        (Poisson(), [3.0, 2.5], r"^y\[1\] is 2.5: a poisson likelihood wants counts"),
        (Poisson(), [-1], r"^y\[0\] is -1"),
        (Poisson(), [np.inf], r"^y\[0\] is inf"),
    ],
)
def test_bad_y(likelihood, y, message):
    with pytest.raises(InputError, match=message):
        likelihood.check_y(np.array(y))


def test_good_y():
    Gaussian().check_y(np.array([-1.0, 1e300]))
    Bernoulli().check_y(np.array([0, 1, 1]))
    Bernoulli().check_y(np.array([True, False]))
    Poisson().check_y(np.array([[0.0], [1e9]]))


# log p(y | f) and its expectation


@every
def test_log_prob(likelihood):
    f = np.linspace(-6, 6, 25)
    for y in observations(likelihood):
        expected = scipy_log_prob(likelihood, y, f, NOISE)
        np.testing.assert_allclose(log_prob(likelihood, y, f, NOISE), expected, rtol=1e-12, atol=1e-13)


def test_probabilities_add_up():
    f = np.linspace(-20, 20, 41)
    for link in ("probit", "logit"):
        total = sum(np.exp(log_prob(Bernoulli(link), y, f, NOISE)) for y in (0.0, 1.0))
        np.testing.assert_allclose(total, 1, rtol=1e-14)
    total = sum(np.exp(log_prob(Poisson(), float(y), np.array([-2.0, 0.0, 2.0]), NOISE)) for y in range(60))
    np.testing.assert_allclose(total, 1, rtol=1e-14)


@every
@pytest.mark.parametrize("sd", [1e-4, 0.1, 1.0, 3.0])
def test_expected_log_prob_against_quadrature(likelihood, sd):
    for y in observations(likelihood):
        means = np.array([-3.0, 0.3, 2.0])
        expected = [average(lambda f, y=y: scipy_log_prob(likelihood, y, f, NOISE), mean, sd, [y]) for mean in means]
        value = expected_log_prob(likelihood, y, means, sd**2, NOISE)
        np.testing.assert_allclose(value, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("noise", [1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("y", [0.0, 0.37, 5.0])
def test_student_t_with_little_noise(noise, y):
    breaks = y + noise * np.array([0, -1, 1, -10, 10, -100, 100])
    expected = average(lambda f: stats.t._logpdf((y - f) / noise, 4) - np.log(noise), 0.0, 1.0, breaks)
    np.testing.assert_allclose(expected_log_prob(StudentT(), y, 0.0, 1.0, noise), expected, rtol=1e-7)


@pytest.mark.parametrize("sd", [10.0, 100.0])
@pytest.mark.parametrize("mean", [-30.0, 0.0, 5.0])
def test_logit_with_a_wide_gaussian(mean, sd):
    expected = average(special.log_expit, mean, sd, [-5.0, -1.0, 0.0, 1.0, 5.0])
    np.testing.assert_allclose(expected_log_prob(Bernoulli("logit"), 1.0, mean, sd**2, NOISE), expected, rtol=1e-9)


@jax.jit
@jax.vmap
def probit_slopes(mean, variance):
    """The expectation under a probit link, and its slopes."""
    return jax.value_and_grad(lambda m, v: Bernoulli().expected_log_prob(1.0, m, v, NOISE), (0, 1))(mean, variance)


@pytest.mark.parametrize("sd", [6.0, 10.0, 30.0, 100.0])
def test_probit_with_a_wide_gaussian(sd):
    """Value, and slopes in mean and variance, that is E[(log Φ)'] and ½ E[(log Φ)''] (Bonnet and Price)."""

    def mills(f):
        return np.sqrt(2.0 / np.pi) / special.erfcx(-f / np.sqrt(2.0))

    def integral(function, mean):
        ends = [-24.0 * sd + mean, *(k for k in (-30.0, -5.0, 0.0, 5.0) if abs(k - mean) < 24.0 * sd), 24.0 * sd + mean]
        pieces = [
            quad(lambda f: function(f) * np.exp(-0.5 * ((f - mean) / sd) ** 2), a, b, epsabs=1e-12, limit=400)[0]
            for a, b in itertools.pairwise(ends)
        ]
        return sum(pieces) / (sd * np.sqrt(2.0 * np.pi))

    means = np.array([-3.0 * sd, -30.0, -5.0, 0.0, 2.0, sd, 3.0 * sd])
    value, (in_mean, in_variance) = probit_slopes(means, np.full(7, sd**2))
    for found, function in (
        (value, special.log_ndtr),
        (in_mean, mills),
        (2.0 * in_variance, lambda f: -mills(f) * (mills(f) + f)),
    ):
        np.testing.assert_allclose(found, [integral(function, m) for m in means], rtol=1e-7, atol=1e-9)


@every
def test_expected_log_prob_of_a_point_is_log_prob(likelihood):
    f = np.linspace(-4, 4, 3)  # as many as there are means in the test above: nothing new is compiled
    for y in observations(likelihood):
        at_point = expected_log_prob(likelihood, y, f, 0.0, NOISE)
        np.testing.assert_allclose(at_point, log_prob(likelihood, y, f, NOISE), rtol=1e-8, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ALL), st.integers(0, 2), st.floats(-10, 10), st.floats(0, 30), st.floats(0.01, 10))
def test_jensen(likelihood, which, mean, variance, noise):
    """E log p(y | f) ≤ log p(y | E f) where log p is concave in f; ≤ log E p(y | f) always."""
    y = observations(likelihood)[which % len(observations(likelihood))]
    with float64_scope():
        expected = float(expected_log_prob(likelihood, y, mean, variance, noise))
        at_mean = float(log_prob(likelihood, y, mean, noise))
    marginal = likelihood.marginal_log_prob(np.array(y), np.array(mean), np.array(variance), np.array(noise))
    slack = 1e-5 * (1 + abs(expected))
    assert expected <= marginal + slack
    if not isinstance(likelihood, StudentT):
        assert expected <= at_mean + slack


@every
def test_gradients_against_differences(likelihood):
    y = np.array(observations(likelihood))
    points = np.array([[0.4, 0.5, 0.7], [-2.0, 2.0, 0.1]])

    def both(x):
        expected = jnp.sum(likelihood.expected_log_prob(y, x[0], x[1], x[2]))
        return jnp.stack([expected, jnp.sum(likelihood.log_prob(y, x[0], x[2]))])

    @jax.jit
    @jax.vmap
    def value_and_gradients(x):
        value, pull = jax.vjp(both, x)
        return value, jax.vmap(pull)(jnp.eye(2))[0]

    moves = [value_and_gradients(points + e)[0] - value_and_gradients(points - e)[0] for e in 1e-5 * np.eye(3)]
    differences = np.stack(moves, axis=-1) / 2e-5
    np.testing.assert_allclose(value_and_gradients(points)[1], differences, rtol=1e-6, atol=1e-6)


@every
def test_bonnet_and_price(likelihood):
    """d/dmean E = E[d/df], d/dvariance E = ½ E[d²/df²], the identities that natural gradients rest on."""
    y, mean, variance = observations(likelihood)[1], 0.3, 0.8

    @jax.jit
    def derivatives(f, x):
        slope = jax.grad(lambda f: likelihood.log_prob(y, f, NOISE))
        gradient = jax.grad(lambda x: likelihood.expected_log_prob(y, x[0], x[1], NOISE))(x)
        return jax.vmap(slope)(f), jax.vmap(jax.grad(slope))(f), gradient

    def derivative(order):
        return lambda f: np.asarray(derivatives(f.ravel(), x)[order - 1]).reshape(f.shape)

    x = np.array([mean, variance])
    expected = [c * average(derivative(order), mean, np.sqrt(variance), [y]) for order, c in ((1, 1.0), (2, 0.5))]
    nodes = np.zeros(24 * 97)  # as many as `average` asks for, so that one program is compiled
    np.testing.assert_allclose(derivatives(nodes, x)[2], expected, rtol=1e-6)


@every
def test_extremes_are_finite(likelihood):
    def values(f, variance, y):
        return jnp.stack([likelihood.log_prob(y, f, 1e-3), likelihood.expected_log_prob(y, f, variance, 1e-3)])

    f, variance, y = np.meshgrid(
        [-300.0, -40.0, -1.0, 1.0, 40.0, 300.0], [0.0, 1e-12, 1.0, 900.0], observations(likelihood)
    )
    cases = f.ravel(), variance.ravel(), y.ravel()

    @jax.jit
    @jax.vmap
    def with_slopes(*case):
        return values(*case), jax.jacrev(values, argnums=(0, 1))(*case)

    for number in jax.tree.leaves(with_slopes(*cases)):
        assert np.isfinite(number).all()


def test_a_rate_beyond_all_counts_still_pulls_back():
    gradient = jax.jit(jax.grad(lambda f: Poisson().log_prob(5.0, f, NOISE)))
    assert gradient(1000.0) < -1e20
    np.testing.assert_allclose(log_prob(Poisson(), 5.0, 59.9, NOISE), 5 * 59.9 - np.exp(59.9) - np.log(120))


@every
def test_broadcasting(likelihood):
    y, f = np.array(observations(likelihood)[:2])[:, None], np.linspace(-1, 1, 3)
    assert jax.eval_shape(likelihood.log_prob, y, f, NOISE).shape == (2, 3)
    assert jax.eval_shape(likelihood.expected_log_prob, y, f, np.ones((2, 3)), NOISE).shape == (2, 3)
    assert likelihood.marginal_log_prob(y, f, np.ones(3), NOISE).shape == (2, 3)
    assert likelihood.marginal_cdf(y, f, np.ones(3), NOISE).shape == (2, 3)
    assert jax.eval_shape(likelihood.conditional_mean, f, NOISE).shape == (3,)
    assert jax.eval_shape(likelihood.conditional_variance, f, NOISE).shape == (3,)


# Moments, distribution functions and draws given f


@every
def test_conditional_moments_and_cdf_against_draws(likelihood):
    n, f = 100_000, np.array([-1.0, 0.5, 2.0])
    draws = likelihood.sample(np.random.default_rng(0), np.broadcast_to(f, (n, 3)), NOISE)
    assert draws.shape == (n, 3)
    likelihood.check_y(draws)
    if getattr(likelihood, "df", 9) > 2:
        mean, variance = likelihood.conditional_mean(f, NOISE), likelihood.conditional_variance(f, NOISE)
        assert (np.abs(draws.mean(axis=0) - mean) < 5 * np.sqrt(variance / n)).all()
        if getattr(likelihood, "df", 9) > 4:
            squares = (draws - mean) ** 2
            assert (np.abs(squares.mean(axis=0) - variance) < 5 * squares.std(axis=0) / np.sqrt(n)).all()
    for y in (0.0, 0.8, 3.0):
        p = likelihood.cdf(y, f, NOISE)
        assert (np.abs((draws <= y).mean(axis=0) - p) <= 5 * np.sqrt(p * (1 - p) / n) + 1e-12).all()


def test_a_variance_that_does_not_exist():
    assert np.isinf(StudentT(2).conditional_variance(np.zeros(1), 1.0)).all()
    assert np.isinf(StudentT(1).marginal_variance(np.zeros(1), np.ones(1), 1.0)).all()
    np.testing.assert_allclose(StudentT(3).conditional_variance(np.zeros(1), 2.0), 12.0)


@every
def test_cdf_adds_up_log_prob(likelihood):
    f = 0.4
    if likelihood.discrete:
        total = np.cumsum([np.exp(log_prob(likelihood, float(y), f, NOISE)) for y in range(8)])
        total = total[: 2 if likelihood.name == "bernoulli" else 8]
        np.testing.assert_allclose(likelihood.cdf(np.arange(float(len(total))) + 0.3, f, NOISE), total, rtol=1e-12)
        assert likelihood.cdf(-0.1, f, NOISE) == 0
    else:
        mass, _ = quad(lambda y: np.exp(scipy_log_prob(likelihood, y, f, NOISE)), -1.2, 0.9, epsabs=1e-13)
        between = likelihood.cdf(0.9, f, NOISE) - likelihood.cdf(-1.2, f, NOISE)
        np.testing.assert_allclose(between, mass, rtol=1e-10)


def test_counts_too_large_for_the_generator():
    draws = Poisson().sample(np.random.default_rng(0), np.array([39.0, 45.0, 800.0]), 1.0)
    np.testing.assert_allclose(draws[:2], np.exp([39.0, 45.0]), rtol=1e-7)
    assert draws[2] == np.inf


# Marginals over f ~ N(mean, variance)


@every
@pytest.mark.parametrize("sd", [1e-3, 0.3, 2.0, 8.0])
def test_marginals_against_quadrature(likelihood, sd):
    for y in observations(likelihood):
        for mean in (-2.0, 0.1, 3.0):
            breaks = [0.0, y, y - 3, y + 3, y - 0.5, y + 0.5, np.log1p(abs(y)), np.log1p(abs(y)) + 1.5]
            density = average(lambda f, y=y: np.exp(scipy_log_prob(likelihood, y, f, NOISE)), mean, sd, breaks)
            value = likelihood.marginal_log_prob(np.array(y), np.array(mean), np.array(sd**2), np.array(NOISE))
            np.testing.assert_allclose(np.exp(value), density, rtol=1e-9)
            cdf = average(lambda f, y=y: likelihood.cdf(y, f, NOISE), mean, sd, breaks)
            value = likelihood.marginal_cdf(np.array(y), np.array(mean), np.array(sd**2), np.array(NOISE))
            np.testing.assert_allclose(value, cdf, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("mean", "sd", "y"), [(0, 2, 80), (0, 5, 0), (3, 2, 2000), (-8, 1, 50), (12, 0.01, 160_000)])
def test_poisson_where_gauss_hermite_fails(mean, sd, y):
    # Around the mode of the integrand, found by bisection of its slope, in logs.
    low, high = -50.0, 50.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if y - np.exp(middle) - (middle - mean) / sd**2 > 0 else (low, middle)

    def exponent(f):
        return y * f - np.exp(f) - special.gammaln(y + 1) + stats.norm._logpdf((f - mean) / sd) - np.log(sd)

    width, top = 1 / np.sqrt(1 / sd**2 + np.exp(low)), exponent(low)
    ends = low + width * np.linspace(-30, 30, 61)
    pieces = [quad(lambda f: np.exp(exponent(f) - top), a, b)[0] for a, b in itertools.pairwise(ends)]
    value = Poisson().marginal_log_prob(y, mean, sd**2, 1.0)
    np.testing.assert_allclose(value, top + np.log(sum(pieces)), rtol=1e-9)


@pytest.mark.parametrize(("noise", "y"), [(1e-3, 0.0), (1e-3, 2.0), (1e-3, 30.0), (0.05, 1e4), (1e-6, 1.0)])
@pytest.mark.parametrize("df", [0.5, 4.0, 30.0])
def test_student_t_where_gauss_hermite_fails(df, noise, y):
    breaks = np.concatenate([y + sign * noise * 10.0 ** np.arange(-1, 6) for sign in (-1, 1)] + [[y]])
    density = average(lambda f: stats.t._pdf((y - f) / noise, df) / noise, 0.0, 1.0, breaks)
    value = StudentT(df).marginal_log_prob(y, 0.0, 1.0, noise)
    np.testing.assert_allclose(value, np.log(density), rtol=1e-10, atol=1e-9)


def test_student_t_of_a_point_is_scipys():
    z = np.array([0.0, 1.0, -30.0, 1e6])
    for df in (0.3, 4.0, 200.0):
        likelihood = StudentT(df)
        np.testing.assert_allclose(likelihood.marginal_log_prob(z, 0.0, 0.0, 1.0), stats.t.logpdf(z, df), rtol=1e-10)
        np.testing.assert_allclose(likelihood.marginal_cdf(z, 0.0, 0.0, 1.0), stats.t.cdf(z, df), rtol=1e-10)
        np.testing.assert_allclose(likelihood.continued_cdf(z[:3], 0.0, 0.0, 1.0), stats.t.cdf(z[:3], df), atol=3e-8)


@settings(max_examples=60, deadline=None)
@given(st.floats(-60, 60), st.floats(0, 400), st.sampled_from(["probit", "logit"]))
def test_classes_add_up(mean, variance, link):
    likelihood = Bernoulli(link)
    one, zero = (np.exp(likelihood.marginal_log_prob(np.array(y), mean, variance, 1.0)) for y in (1.0, 0.0))
    np.testing.assert_allclose(one + zero, 1, rtol=1e-12)
    np.testing.assert_allclose(likelihood.marginal_mean(mean, variance, 1.0), one, rtol=1e-12)
    np.testing.assert_allclose(likelihood.marginal_variance(mean, variance, 1.0), one * zero, rtol=1e-9)
    # An average over f can only move a probability towards the middle.
    assert abs(one - 0.5) <= abs(likelihood.cdf(0.0, np.array(mean), 1.0) - 0.5) + 1e-12


def test_logit_in_the_tail():
    # As long as e^f is the logistic function, its mean is exp(mean + variance/2).
    np.testing.assert_allclose(Bernoulli("logit").marginal_log_prob(1.0, -600.0, 9.0, 1.0), -595.5, rtol=1e-13)
    np.testing.assert_allclose(Bernoulli("logit").marginal_log_prob(1.0, -45.0, 0.0, 1.0), -45.0, rtol=1e-13)


@settings(max_examples=40, deadline=None)
@given(st.floats(-5, 4), st.floats(0, 2))
def test_poisson_adds_up(mean, sd):
    variance = sd**2
    likelihood, y = Poisson(), np.arange(400.0)
    p = np.exp(likelihood.marginal_log_prob(y, mean, variance, 1.0))
    np.testing.assert_allclose(likelihood.marginal_cdf(y, mean, variance, 1.0), np.cumsum(p), atol=2e-10)
    # Size-biased: y p(y) is the mean times p(y - 1) at a mean of f that is larger by its variance.
    m = likelihood.marginal_mean(mean, variance, 1.0)
    shifted = np.exp(likelihood.marginal_log_prob(y[:-1], mean + variance, variance, 1.0))
    np.testing.assert_allclose(y[1:] * p[1:], m * shifted, rtol=1e-8, atol=1e-300)


def test_poisson_moments_against_sums():
    y, likelihood = np.arange(3000.0), Poisson()
    p = np.exp(likelihood.marginal_log_prob(y, 1.0, 0.5, 1.0))
    mean = y @ p
    np.testing.assert_allclose(likelihood.marginal_mean(1.0, 0.5, 1.0), mean, rtol=1e-10)
    np.testing.assert_allclose(likelihood.marginal_variance(1.0, 0.5, 1.0), (y - mean) ** 2 @ p, rtol=1e-9)


def test_poisson_cdf_is_smooth_between_counts():
    y = np.linspace(0, 12, 49)
    for variance in (1e-6, 0.01, 1.0):
        values = Poisson().continued_cdf(y, 1.0, variance, 1.0)
        assert (np.diff(values) > 0).all()
        np.testing.assert_allclose(values[::4], Poisson().marginal_cdf(y[::4] + 0.9, 1.0, variance, 1.0), rtol=1e-11)
