import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

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
    PooledInverseGamma,
    Prior,
    StudentTPrior,
    Uniform,
    UnregisteredError,
    Weibull,
    on_variance,
    parse_kernel,
    register_prior,
)
from integrand.model import describe_model, restore_model
from integrand.priors import prior_named, registered_priors, restore_value

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
    StudentTPrior(4, 0.4, 1.3): stats.t(4, 0.4, 1.3),
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
    assert not any(prior.positive for prior in (Normal(0, 1), StudentTPrior(4), Uniform(-1, 1)))


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
        (lambda: StudentTPrior(-1), "not a distribution"),
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


POOLED = PooledInverseGamma(2.0, 3.0, 1.5)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_pooled_density_is_the_hierarchy_integrated_by_quadrature(n):
    """p(φ) = ∫ Gamma(b; c, d) Π Gamma(1/x_d; a, b) / x_d db, with φ = log x."""
    phi = np.linspace(-1.0, 2.0, n)
    log_b = np.linspace(-12.0, 8.0, 8001)
    b = np.exp(log_b)
    relevance = np.exp(-phi)[:, None]
    density = (
        stats.gamma(3.0, scale=1.0 / 1.5).pdf(b) * b * np.prod(stats.gamma.pdf(relevance, 2.0, scale=1.0 / b), axis=0)
    )
    expected = np.log(np.trapezoid(density, log_b)) - np.sum(phi)  # |d(1/x)/dφ| = 1/x
    assert float(POOLED.log_density(jnp.asarray(phi))) == pytest.approx(expected, abs=1e-8)


@pytest.mark.slow
def test_pooled_marginal_is_that_of_one_entry():
    law = stats.betaprime(3.0, 2.0, scale=1.0 / 1.5)
    x = np.array([0.05, 0.7, 3.0, 40.0])
    np.testing.assert_allclose(POOLED.distribution.log_prob(jnp.asarray(x)), law.logpdf(x), rtol=1e-10)
    alone = [float(POOLED.log_density(jnp.asarray([np.log(v)]))) for v in x]
    np.testing.assert_allclose(alone, law.logpdf(x) + np.log(x), rtol=1e-10)
    assert law.cdf(POOLED.median) == pytest.approx(0.5, abs=1e-10)
    assert POOLED.positive


@pytest.mark.slow
def test_pooled_draws_share_their_rate():
    draws = np.asarray(POOLED.sample(jax.random.key(0), (4000, 3)))
    assert stats.kstest(draws[:, 1], stats.betaprime(3.0, 2.0, scale=1.0 / 1.5).cdf).pvalue > 1e-4
    # log x_d = log b - log g_d with independent terms: variances add, and the covariance is that of log b.
    shared, own = special.polygamma(1, 3.0), special.polygamma(1, 2.0)
    found = np.corrcoef(np.log(draws[:, 0]), np.log(draws[:, 2]))[0, 1]
    assert found == pytest.approx(shared / (shared + own), abs=0.06)


def test_pooled_density_is_finite_at_both_ends():
    for value in (-600.0, 600.0):
        phi = jnp.asarray([value, 0.0])
        assert np.isfinite(POOLED.log_density(phi))
        assert np.all(np.isfinite(jax.grad(POOLED.log_density)(phi)))


@pytest.mark.slow
def test_pooled_prior_draws_of_a_scalar_are_independent():
    model = Model(RBF(lengthscale=POOLED, scale=1.0, ard=False), 3, noise=0.1)
    draws = np.asarray(model.sample_prior(jax.random.key(0), 2000)["lengthscale"])
    assert draws.shape == (2000,)
    assert stats.kstest(draws, stats.betaprime(3.0, 2.0, scale=1.0 / 1.5).cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    "make", [lambda: PooledInverseGamma(-1), lambda: PooledInverseGamma(1, 1, 0), lambda: on_variance(POOLED)]
)
def test_pooled_refuses(make):
    with pytest.raises(InputError):
        make()


def test_pooled_can_be_described_and_read_back():
    again = eval(repr(POOLED), vars(integrand))
    assert again == POOLED
    model = Model(RBF(), 4, priors="pooled")
    assert restore_model(describe_model(model)) == model
    assert model.parameters[0].prior.family == "PooledInverseGamma"


# ---- priors of users


@register_prior(median=lambda concentration: np.log1p(np.log(2.0) / concentration))
def Gompertz(concentration):
    return Prior("Gompertz", (concentration,))


def test_a_prior_of_a_user():
    prior, law = Gompertz(3), stats.gompertz(3)
    assert law.cdf(prior.median) == pytest.approx(0.5, abs=1e-10)
    phi = jnp.asarray(0.3)
    assert float(prior.log_density(phi)) == pytest.approx(law.logpdf(np.exp(0.3)) + 0.3, rel=1e-10)
    assert prior_named("gompertz") is registered_priors()["Gompertz"] is Gompertz
    assert parse_kernel("rbf(scale=on_variance(gompertz(3)))").scale == on_variance(prior)
    model = Model(RBF(scale=prior), 1, noise=on_variance(prior))
    described = json.loads(json.dumps(describe_model(model)))
    assert described["noise"] == {"prior": "Gompertz", "arguments": [3.0], "on_variance": True, "module": __name__}
    assert restore_model(described) == model


def test_a_prior_with_a_distribution_of_its_own():
    import numpyro.distributions as dist

    @register_prior(median=lambda scale: scale * math.log(2.0), distribution=lambda scale: dist.Exponential(1 / scale))
    def WaitingTime(scale=1.0):
        return Prior("WaitingTime", (scale,))

    law = stats.expon(scale=2.0)
    assert law.cdf(WaitingTime(2.0).median) == pytest.approx(0.5)
    assert stats.kstest(np.asarray(WaitingTime(2.0).sample(jax.random.key(0), (2000,))), law.cdf).pvalue > 1e-4
    assert repr(WaitingTime(2)) == "WaitingTime(2)"


def test_a_prior_that_is_not_here():
    described = {"prior": "Gone", "arguments": [1.0], "on_variance": False, "module": "mypriors"}
    with pytest.raises(UnregisteredError, match=r"uses the prior 'Gone'.*import mypriors first"):
        restore_value(described)
    with pytest.raises(UnregisteredError, match="knows no prior 'Gone'"):
        Prior("Gone", (1.0,))
    with pytest.raises(InputError, match=r"a prior called 'Gamma' is registered already \(integrand.priors\)"):
        register_prior(median=float)(type("Gamma", (), {}))
