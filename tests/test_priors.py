import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import integrand
from integrand import (
    RBF,
    Beta,
    Exponential,
    Gamma,
    HalfCauchy,
    HalfNormal,
    InputError,
    InverseGamma,
    LogNormal,
    Model,
    Normal,
    PooledLogNormal,
    StudentT,
    Uniform,
    Weibull,
    on_variance,
)
from integrand.description import describe_model, model_from

pytestmark = pytest.mark.usefixtures("strict_float64")

# Each prior with the same distribution in SciPy's parameters.
PRIORS = {
    Gamma(2, 1): stats.gamma(2),
    Gamma(2.5, 4): stats.gamma(2.5, scale=0.25),
    InverseGamma(3, 2): stats.invgamma(3, scale=2),
    HalfCauchy(1.5): stats.halfcauchy(scale=1.5),
    HalfNormal(0.7): stats.halfnorm(scale=0.7),
    LogNormal(0.3, 1.2): stats.lognorm(1.2, scale=math.exp(0.3)),
    Exponential(2.5): stats.expon(scale=0.4),
    Weibull(1.3, 1.7): stats.weibull_min(1.7, scale=1.3),
    Uniform(0.5, 3): stats.uniform(0.5, 2.5),
    Beta(2, 3): stats.beta(2, 3),
    Normal(0.4, 1.3): stats.norm(0.4, 1.3),
    StudentT(4, 0.4, 1.3): stats.t(4, 0.4, 1.3),
}
POSITIVE = {prior: law for prior, law in PRIORS.items() if prior.family not in ("Normal", "StudentT")}
SQUARED = {on_variance(prior): law for prior, law in POSITIVE.items()}
ALL = PRIORS | SQUARED

PHI = np.linspace(-3.0, 2.0, 11)


@pytest.mark.parametrize("prior", ALL, ids=repr)
def test_constrain_and_back(prior):
    theta = prior.constrain(jnp.asarray(PHI))
    np.testing.assert_allclose(prior.unconstrain(theta), PHI, rtol=1e-10, atol=1e-12)
    low, high = ALL[prior].support()
    x = np.asarray(theta) ** (2 if prior.squared else 1)
    assert np.all((x > low) & (x < high))
    assert np.all(np.diff(theta) > 0)


@pytest.mark.parametrize("prior", ALL, ids=repr)
def test_density_of_phi_is_that_of_theta_with_the_jacobian(prior):
    """p(φ) = p(θ) |dθ/dφ|, with the density by SciPy and the derivative by differences of the transform itself."""
    step = 1e-4

    def theta_of(phi):
        return np.asarray(prior.constrain(jnp.asarray(phi)))

    theta = theta_of(PHI)
    # Five points: error of order step⁴.
    near = theta_of(PHI - 2 * step) - 8 * theta_of(PHI - step) + 8 * theta_of(PHI + step) - theta_of(PHI + 2 * step)
    jacobian = near / (12 * step)
    law = ALL[prior]
    # A prior on the square: p(θ) = p(x) dx/dθ with x = θ².
    log_p = law.logpdf(theta**2) + np.log(2 * theta) if prior.squared else law.logpdf(theta)
    for phi, expected in zip(PHI, log_p + np.log(jacobian), strict=True):
        assert float(prior.log_density(jnp.asarray(phi))) == pytest.approx(expected, rel=1e-8, abs=1e-8)
    assert float(prior.log_density(jnp.asarray(PHI))) == pytest.approx(np.sum(log_p + np.log(jacobian)), rel=1e-8)


@pytest.mark.parametrize("prior", ALL, ids=repr)
def test_density_of_phi_is_numpyro_s(prior):
    from numpyro.distributions import TransformedDistribution, biject_to

    law = prior.distribution
    pulled_back = TransformedDistribution(law, biject_to(law.support).inv)
    expected = jnp.sum(pulled_back.log_prob(jnp.asarray(PHI)))
    assert float(prior.log_density(jnp.asarray(PHI))) == pytest.approx(float(expected), rel=1e-10)


@pytest.mark.parametrize("prior", ALL, ids=repr)
def test_density_of_phi_integrates_to_one(prior):
    phi = np.linspace(-60.0, 60.0, 48_001)
    density = np.exp(jax.vmap(prior.log_density)(jnp.asarray(phi)))
    tail = 1.0 if prior.family not in ("Normal", "StudentT") else ALL[prior].cdf(60.0) - ALL[prior].cdf(-60.0)
    assert np.trapezoid(density, phi) == pytest.approx(tail, abs=1e-8)


@pytest.mark.parametrize("prior", ALL, ids=repr)
def test_draws_follow_the_distribution(prior):
    draws = np.asarray(prior.sample(jax.random.key(1), (4000,)))
    x = draws**2 if prior.squared else draws
    assert stats.kstest(x, ALL[prior].cdf).pvalue > 1e-4
    assert np.array_equal(draws, prior.sample(jax.random.key(1), (4000,)))


@pytest.mark.parametrize("prior", ALL, ids=repr)
def test_median(prior):
    x = prior.median**2 if prior.squared else prior.median
    assert ALL[prior].cdf(x) == pytest.approx(0.5, abs=1e-10)


@pytest.mark.parametrize("prior", ALL, ids=repr)
def test_repr_can_be_read_back_and_equality_is_by_value(prior):
    again = eval(repr(prior), vars(integrand))
    assert again == prior
    assert hash(again) == hash(prior)


def test_different_priors_differ():
    assert len(set(ALL)) == len(ALL)
    assert on_variance(Gamma(2, 1)) != Gamma(2, 1)


def test_positive():
    assert all(prior.positive for prior in POSITIVE)
    assert not any(prior.positive for prior in (Normal(0, 1), StudentT(4), Uniform(-1, 1)))


@pytest.mark.usefixtures("as_users_see_it")
def test_numbers_of_any_kind():
    assert Gamma(np.float32(2), np.int64(1)) == Gamma(2.0, 1.0)


@pytest.mark.usefixtures("as_users_see_it")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gamma(-1, 1), "not a distribution"),
        (lambda: Gamma(0, 1), "not a distribution"),
        (lambda: InverseGamma(1, -2), "not a distribution"),
        (lambda: HalfCauchy(0), "not a distribution"),
        (lambda: HalfNormal(-1), "not a distribution"),
        (lambda: LogNormal(0, -1), "not a distribution"),
        (lambda: Exponential(-1), "not a distribution"),
        (lambda: Weibull(-1, 1), "not a distribution"),
        (lambda: Beta(-1, 1), "not a distribution"),
        (lambda: Normal(0, 0), "not a distribution"),
        (lambda: StudentT(-1), "not a distribution"),
        (lambda: Uniform(2, 1), "bounds must be in order"),
        (lambda: Uniform(1, 1), "bounds must be in order"),
        (lambda: Gamma(np.nan, 1), "finite numbers, not nan"),
        (lambda: Gamma(np.inf, 1), "finite numbers, not inf"),
        (lambda: Gamma("2", 1), "finite numbers, not '2'"),
        (lambda: Gamma(True, 1), "finite numbers, not True"),
        (lambda: Gamma(None), "finite numbers, not None"),
        (lambda: Gamma([1.0, 2.0]), "finite numbers"),
        (lambda: Gamma(1j), "finite numbers"),
        (lambda: on_variance(Normal(0, 1)), "must be over positive numbers"),
        (lambda: on_variance(Uniform(-1, 1)), "must be over positive numbers"),
        (lambda: on_variance(1.0), "takes a prior"),
    ],
)
def test_errors_name_the_cause(make, message):
    with pytest.raises(InputError, match=message):
        make()


POOLED = PooledLogNormal(0.4, 0.8, 0.6, 5.0)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_pooled_density_is_the_multivariate_t(n):
    phi = np.linspace(-2.0, 3.0, n)
    scale = 0.36 * np.eye(n) + 0.64 * np.ones((n, n))
    expected = stats.multivariate_t(np.full(n, 0.4), scale, df=5.0).logpdf(phi)
    assert float(POOLED.log_density(jnp.asarray(phi))) == pytest.approx(float(expected), rel=1e-10)


def test_pooled_density_is_the_hierarchy_integrated_by_quadrature():
    """One entry at a time: p(φ) = ∫∫ N(φ; μ, τ²) N(μ; location, (width τ/spread)²) p(τ²) dμ dτ²."""
    phi = np.array([-0.5, 1.3])
    mu, log_t = np.meshgrid(np.linspace(-14.0, 14.0, 2001), np.linspace(-3.0, 4.0, 801))
    tau = np.exp(log_t)
    density = stats.invgamma(2.5, scale=2.5 * 0.36).pdf(tau**2) * 2.0 * tau**2  # of log τ
    density = density * stats.norm(0.4, 0.8 / 0.6 * tau).pdf(mu)
    density = density * stats.norm(mu, tau).pdf(phi[0]) * stats.norm(mu, tau).pdf(phi[1])
    total = np.trapezoid(np.trapezoid(density, mu[0], axis=1), log_t[:, 0])
    assert float(POOLED.log_density(jnp.asarray(phi))) == pytest.approx(np.log(total), abs=1e-4)


def test_pooled_draws_have_the_marginals_and_the_correlation_of_the_density():
    draws = np.log(np.asarray(POOLED.sample(jax.random.key(0), (4000, 3))))
    one = stats.t(5.0, 0.4, math.hypot(0.8, 0.6))
    assert stats.kstest(draws[:, 1], one.cdf).pvalue > 1e-4
    # Kendall's τ of an elliptical law is 2/π arcsin of its correlation, here 0.64.
    found = stats.kendalltau(draws[:, 0], draws[:, 2]).statistic
    assert found == pytest.approx(2.0 / np.pi * np.arcsin(0.64), abs=0.04)
    assert float(np.median(np.exp(draws))) == pytest.approx(POOLED.median, rel=0.05)


def test_pooled_prior_draws_of_a_scalar_are_independent():
    model = Model(RBF(lengthscale=POOLED, ard=False), 3)
    draws = np.log(np.asarray(model.sample_prior(jax.random.key(0), 2000)["lengthscale"]))
    assert draws.shape == (2000,)
    assert stats.kstest(draws, stats.t(5.0, 0.4, 1.0).cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    "make", [lambda: PooledLogNormal(0, -1), lambda: PooledLogNormal(0, 1, 1, 0), lambda: on_variance(POOLED)]
)
def test_pooled_refuses(make):
    with pytest.raises(InputError):
        make()


def test_pooled_can_be_described_and_read_back():
    again = eval(repr(POOLED), vars(integrand))
    assert again == POOLED
    model = Model(RBF(), 4, priors="pooled")
    assert model_from(describe_model(model)) == model
    assert model.parameters[0].prior.family == "PooledLogNormal"
