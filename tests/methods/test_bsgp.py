"""SG-HMC: near the posterior that quadrature knows, as `joint-hmc`'s sampler; and `bsgp`, which draws Z too."""

import warnings

import numpy as np
import pytest
from test_joint_hmc import QUADRATURE, quadrature_fit

import integrand
from integrand import ConvergenceWarning, InputError
from integrand.methods.minibatch import batch_size
from integrand.methods.problem import Problem, Settings
from integrand.posterior.modelfile import load_model, save_model


def test_sghmc_comes_near_the_quadrature_posterior():
    """Without rejection there is a bias, of 0.06 standard deviations at the default step size."""
    posterior, draws = quadrature_fit(sampler="sghmc", target_ess=800, max_draws=1_500)
    assert posterior.verdict.ok
    for name, (mean, sd) in QUADRATURE.items():
        assert abs(draws[name].mean() - mean) < 0.2 * sd, name
        assert abs(draws[name].std() - sd) < 0.2 * sd, name


@pytest.mark.slow
def test_sghmc_from_batches_comes_near_the_quadrature_posterior():
    """Six of eleven rows a step."""
    _, draws = quadrature_fit(sampler="sghmc", target_ess=800, max_draws=1_500, batch_size=6)
    for name, (mean, sd) in QUADRATURE.items():
        assert abs(draws[name].mean() - mean) < 0.3 * sd, name


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 2))
    return X, 10.0 + 3.0 * (np.sin(2 * X[:, 0]) + 0.2 * rng.standard_normal(120))


SETTINGS = {
    "method": "bsgp",
    "n_inducing": 10,
    "chains": 2,
    "batch_size": 60,
    "target_ess": 30.0,
    "max_draws": 300,
    "seed": 1,
}


@pytest.fixture(scope="module")
def posterior(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return integrand.fit(*data, **SETTINGS)


def test_every_draw_has_its_own_inducing_inputs(posterior):
    assert posterior.method == "bsgp"
    J = len(posterior.conditional.phis)
    assert posterior.conditional.Z.shape == (J, 10, 2)
    assert posterior.conditional.m.shape == (J, 10)
    assert posterior.conditional.S.shape == (J, 0, 0)
    assert np.all(posterior.conditional.Z.std(axis=0) > 1e-4)
    assert posterior.chains.x.shape[2] == 4
    assert posterior.Z_path.shape == (2, 10, 2)


def test_the_chains_move_and_stay(posterior):
    assert not np.any(posterior.chains.diverging)
    assert np.all(np.abs(posterior.chains.x - posterior.optimum) < 8.0)
    assert posterior.verdict.convergence.r_hat.max() < 1.2


def test_it_predicts(posterior, data):
    X, y = data
    predictive = posterior.predict(X, include_noise=True)
    assert np.sqrt(np.mean((predictive.mean - y) ** 2)) < 0.9
    lower, upper = predictive.interval(0.95)
    assert 0.88 <= np.mean((lower < y) & (y < upper)) <= 1.0


def test_it_agrees_with_the_collapsed_method(posterior, data):
    """θ is nearly that of `sgpr-hmc`: ten inducing points are enough here wherever they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        other = integrand.fit(*data, n_inducing=10, chains=2, target_ess=50, max_draws=300, max_rounds=1)
    x, ref = (p.chains.x.reshape(-1, 4) for p in (posterior, other))
    assert np.all(np.abs(x.mean(axis=0) - ref.mean(axis=0)) < 1.5 * ref.std(axis=0))


def test_a_saved_model_predicts_the_same(posterior, data, tmp_path):
    save_model(posterior, tmp_path / "model", settings=SETTINGS)
    loaded = load_model(tmp_path / "model").posterior
    one, two = (p.predict(data[0], include_noise=True) for p in (posterior, loaded))
    np.testing.assert_array_equal(one.mean, two.mean)
    np.testing.assert_array_equal(one.variance, two.variance)


def test_its_sampler_is_the_default_or_named(data, as_users_see_it):
    with pytest.raises(InputError, match="bsgp has no sampler 'hmc': it has sghmc"):
        integrand.fit(*data, **(SETTINGS | {"sampler": "hmc"}))
    with pytest.raises(InputError, match="constant"):
        integrand.fit(data[0], np.ones(120), **SETTINGS)


def test_batches_are_even_or_everything(data):
    from integrand import RBF, Dataset, Model
    from integrand.data.scaling import Standardiser

    rows = Dataset.of(*data)
    for asked, given in ((7, 8), (60, 60), (119, 120), (120, 120), (500, 120)):
        settings = Settings(batch_size=asked)
        assert batch_size(Problem(Model(RBF(), 2), rows, Standardiser.identity(2), settings)) == given
