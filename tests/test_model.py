import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from integrand import (
    RBF,
    Constant,
    Gamma,
    HalfCauchy,
    HalfNormal,
    InputError,
    Linear,
    LogNormal,
    Matern32,
    Model,
    Normal,
    Periodic,
    Polynomial,
    RationalQuadratic,
    Uniform,
    on_variance,
)
from integrand.data.scaling import Standardiser
from integrand.precision import float64_scope
from integrand.priors import PRESETS, PooledPrior, preset_prior

pytestmark = pytest.mark.usefixtures("strict_float64")

COLUMNS = ("age", "dose")
MODELS = {
    "rbf": Model(RBF(), COLUMNS),
    "one lengthscale": Model(RBF(ard=False), COLUMNS),
    "scaled": Model(Matern32(), COLUMNS, priors="scaled"),
    "tree": Model(
        RBF(name="trend") + Periodic(period=1.0, active=(1,)) * Linear() + Constant(scale=on_variance(Gamma(2, 1))),
        COLUMNS,
        noise=on_variance(HalfNormal(1)),
        mean=Normal(0, 2),
    ),
    "every field": Model(
        RationalQuadratic() + Polynomial(3) + Periodic() + Linear(ard=True), COLUMNS, noise=Uniform(0.01, 2)
    ),
    "fixed": Model(RBF(lengthscale=(1.0, 2.0), scale=0.5), COLUMNS, noise=0.1, mean=1.0),
}


def random_phi(model, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(model.n_theta))


# ---- θ and φ


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_theta_and_back(model):
    phi = random_phi(model)
    theta = model.theta(phi)
    assert phi.shape == (model.n_theta,) == (len(model.names),)
    assert {p.name: p.shape for p in model.parameters} == {name: value.shape for name, value in theta.items()}
    np.testing.assert_allclose(model.phi(theta), phi, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("model", [MODELS["rbf"], MODELS["tree"], MODELS["fixed"]], ids=["rbf", "tree", "fixed"])
def test_log_prior_is_the_sum_over_parameters(model):
    phi = random_phi(model)
    start, total = 0, 0.0
    for parameter in model.parameters:
        step = parameter.size if isinstance(parameter.prior, PooledPrior) else 1
        for at in range(start, start + parameter.size, step):
            total += float(parameter.prior.log_density(phi[at : at + step]))
        start += parameter.size
    assert start == model.n_theta
    assert float(model.log_prior(phi)) == pytest.approx(total, rel=1e-12, abs=1e-12)


def test_log_prior_in_full():
    """The paper's priors by hand: θ = exp φ, so each entry adds log p(θ) + φ."""
    model = Model(RBF(), COLUMNS, priors="paper")
    phi = random_phi(model)
    theta = np.exp(phi)
    laws = [stats.gamma(2), stats.gamma(2), stats.halfcauchy(), stats.halfcauchy()]
    expected = sum(law.logpdf(t) + np.log(t) for law, t in zip(laws, theta, strict=True))
    assert float(model.log_prior(phi)) == pytest.approx(expected, rel=1e-12)


def test_names():
    assert MODELS["rbf"].names == ("lengthscale[age]", "lengthscale[dose]", "scale", "noise")
    assert MODELS["one lengthscale"].names == ("lengthscale", "scale", "noise")
    assert MODELS["tree"].names == (
        "trend.lengthscale[age]",
        "trend.lengthscale[dose]",
        "trend.scale",
        "1.0.lengthscale[dose]",
        "1.0.scale",
        "2.scale",
        "noise",
        "mean",
    )
    assert MODELS["fixed"].names == ()
    assert Model(RBF(), 2).names[:2] == ("lengthscale[x0]", "lengthscale[x1]")
    assert Model(RBF(name="f"), 1).names == ("f.lengthscale[x0]", "f.scale", "noise")


def test_gp_holds_fixed_numbers_and_inferred_values():
    model = MODELS["tree"]
    theta = model.theta(random_phi(model))
    gp = model.gp(theta)
    trend, season, constant = gp.kernel.parts
    assert np.array_equal(trend.lengthscale, theta["trend.lengthscale"])
    assert float(season.parts[0].period) == 1.0
    assert float(season.parts[1].scale) == 1.0
    assert constant.scale == theta["2.scale"]
    assert (gp.noise, gp.mean) == (theta["noise"], theta["mean"])
    assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(gp))


def test_fixed_fields_are_not_inferred():
    model = MODELS["fixed"]
    assert model.n_theta == 0
    assert model.phi({}).shape == (0,)
    assert float(model.log_prior(jnp.zeros(0))) == 0.0
    gp = model.gp({})
    assert (gp.kernel.lengthscale.tolist(), float(gp.noise), float(gp.mean)) == ([1.0, 2.0], 0.1, 1.0)


def test_one_number_for_all_columns():
    gp = Model(RBF(lengthscale=1.5, scale=1), COLUMNS, noise=1).gp({})
    assert float(gp.kernel.diagonal(jnp.zeros((1, 2)))[0]) == 1.0
    assert float(gp.kernel(jnp.zeros((1, 2)), jnp.ones((1, 2)))[0, 0]) == pytest.approx(math.exp(-1 / 1.5**2))


def test_start_is_the_median():
    model = MODELS["tree"]
    theta = model.theta(jnp.asarray(model.start()))
    assert float(theta["1.0.lengthscale"][0]) == pytest.approx(1.5, rel=1e-9)  # pooled, one column
    assert float(theta["2.scale"]) ** 2 == pytest.approx(stats.gamma(2).median(), rel=1e-9)
    assert float(theta["mean"]) == 0.0
    assert model.start().dtype == np.float64


def test_float64_without_a_scope_of_the_caller():
    with jax.enable_x64(False):
        start = MODELS["tree"].start()
    assert np.array_equal(start, MODELS["tree"].start())


# ---- prior draws


@pytest.mark.slow
def test_prior_draws_match_the_moments_of_the_prior():
    model = Model(
        RBF(lengthscale=Gamma(4, 2), scale=LogNormal(0, 0.3)),
        COLUMNS,
        noise=on_variance(Gamma(3, 1)),
        mean=Normal(1, 2),
    )
    n = 20_000
    theta = model.sample_prior(jax.random.key(3), n)
    assert {name: value.shape for name, value in theta.items()} == {
        "lengthscale": (n, 2),
        "scale": (n,),
        "noise": (n,),
        "mean": (n,),
    }
    draws = {"lengthscale": theta["lengthscale"][:, 1], "scale": theta["scale"], "noise": theta["noise"] ** 2}
    laws = {"lengthscale": stats.gamma(4, scale=0.5), "scale": stats.lognorm(0.3), "noise": stats.gamma(3)}
    draws["mean"], laws["mean"] = theta["mean"], stats.norm(1, 2)
    for name, law in laws.items():
        assert abs(np.mean(draws[name]) - law.mean()) < 4 * law.std() / math.sqrt(n)
        assert np.std(draws[name]) == pytest.approx(law.std(), rel=0.05)
    columns = np.asarray(theta["lengthscale"])
    assert abs(np.corrcoef(columns.T)[0, 1]) < 0.04  # one draw a column, not one for all


@pytest.mark.slow
def test_prior_draws_depend_on_the_key_alone():
    model = MODELS["rbf"]
    a, b, c = (model.sample_prior(jax.random.key(seed), 3) for seed in (1, 1, 2))
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert not any(np.array_equal(a[name], c[name]) for name in a)


# ---- presets


def test_paper_preset():
    priors = {p.name: p.prior for p in Model(RBF(), 3, priors="paper").parameters}
    assert priors == {"lengthscale": Gamma(2, 1), "scale": HalfCauchy(1), "noise": HalfCauchy(1)}


@pytest.mark.parametrize("D", [1, 4, 18])
def test_pooled_preset_is_the_default(D):
    prior = Model(RBF(), D).parameters[0].prior
    assert prior == Model(RBF(), D, priors="pooled").parameters[0].prior
    assert prior.arguments == pytest.approx((2.0, 2.0, 2.0 / (3.0 * math.sqrt(D))))
    assert prior.median == pytest.approx(1.5 * math.sqrt(D))  # the median of BetaPrime(2, 2) is 1


@pytest.mark.parametrize("D", [1, 4, 18])
def test_scaled_preset(D):
    prior = Model(RBF(), D, priors="scaled").parameters[0].prior
    assert prior == LogNormal(math.sqrt(2) + 0.5 * math.log(D), math.sqrt(3))


def test_scaled_preset_counts_the_columns_that_the_kernel_sees():
    prior = Model(RBF(active=(0, 2)), 10, priors="scaled").parameters[0].prior
    assert prior == LogNormal(math.sqrt(2) + 0.5 * math.log(2), math.sqrt(3))


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_know_every_field(preset):
    model = Model(RationalQuadratic() + Periodic() + Polynomial() + Linear() + Constant(), 2, priors=preset)
    assert len(model.parameters) == 11


def test_what_the_user_gives_wins_over_the_preset():
    model = Model(RBF(lengthscale=HalfNormal(2)), 1, noise=Gamma(3, 3))
    assert [repr(p.prior) for p in model.parameters] == ["HalfNormal(2)", "HalfCauchy(1)", "Gamma(3, 3)"]


# ---- equality


def test_equal_models_share_compiled_functions():
    traces = []

    @partial(jax.jit, static_argnums=0)
    def log_prior(model, phi):
        traces.append(model)
        return model.log_prior(phi)

    scaler = Standardiser.identity(2)
    first = Model(RBF(), ("a", "b"), priors="paper").for_data(scaler)
    second = Model(RBF(Gamma(2, 1), HalfCauchy(1)), ("c", "d"), HalfCauchy(1), 0.0).for_data(scaler)
    assert first == second
    assert hash(first) == hash(second)
    log_prior(first, jnp.zeros(4))
    log_prior(second, jnp.zeros(4))
    assert len(traces) == 1
    log_prior(Model(RBF(), 2, priors="scaled"), jnp.zeros(4))
    assert len(traces) == 2


def test_different_models_differ():
    models = [*MODELS.values(), Model(RBF(), 3), Model(RBF(), COLUMNS, noise=0.1), Model(RBF(), COLUMNS, mean=1.0)]
    assert all((a == b) is (a is b) for a in models for b in models)
    assert MODELS["rbf"] != "rbf"


def test_repr():
    assert repr(MODELS["rbf"]) == (
        "Model(RBF(lengthscale=standardised(PooledInverseGamma(2, 2, 0.471405)), scale=standardised(HalfCauchy(1))), "
        "noise=standardised(HalfCauchy(1)), mean=standardised(0), columns=['age', 'dose'])"
    )


# ---- errors


@pytest.mark.usefixtures("as_users_see_it")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Model("rbf", 2), "kernel must be a kernel"),
        (lambda: Model(RBF(), 0), "at least one input column"),
        (lambda: Model(RBF(), []), "at least one input column"),
        (lambda: Model(RBF(), 2, priors="nope"), "no preset 'nope' of priors: choose one of paper, scaled"),
        (lambda: preset_prior("paper", "wiggle", 2), "no prior for 'wiggle'"),
        (lambda: Model(RBF(lengthscale=(1, 2, 3)), 2), "lengthscale has 3 values, but takes one for each of 2 columns"),
        (lambda: Model(RBF(active=(2,)), 2), "for column 2, but the data has only columns 0 to 1"),
        (lambda: Model(RBF(lengthscale=-1.0), 2), "lengthscale must be positive and finite, not -1"),
        (lambda: Model(RBF(lengthscale=(1.0, 0.0)), 2), "lengthscale must be positive"),
        (lambda: Model(RBF(scale=np.inf), 2), "scale must be positive and finite"),
        (lambda: Model(RBF(lengthscale=np.nan), 2), "lengthscale must be positive and finite"),
        (lambda: Model(RBF(name="f", scale=Normal(0, 1)), 2), "f.scale must be positive, but Normal"),
        (lambda: Model(RBF() + Linear(scale=Uniform(-1, 1)), 2), "1.scale must be positive"),
        (lambda: Model(RBF(), 2, noise=-1), "noise must be"),
        (lambda: Model(RBF(), 2, noise="low"), "noise is a number or a prior"),
        (lambda: Model(RBF(), 2, noise=Normal(0, 1)), "noise must be positive"),
        (lambda: Model(RBF(), 2, mean=np.nan), "mean must be finite"),
        (lambda: MODELS["rbf"].phi({"scale": 1.0}), "no value for lengthscale, noise"),
    ],
)
def test_errors_name_the_cause(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_mean_may_be_negative():
    with float64_scope():
        assert float(Model(RBF(), 1, mean=-2.0).gp({"lengthscale": [1.0], "scale": 1.0, "noise": 1.0}).mean) == -2.0
