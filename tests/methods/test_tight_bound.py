"""The tighter collapsed bound as a choice of the model: fits use it, files keep it, other methods refuse it."""

import json
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import integrand
from integrand import METHODS, Dataset, InputError, collapsed_bound
from integrand.precision import float64_scope

rng = np.random.default_rng(0)
X = rng.standard_normal((60, 2))
Y = np.sin(2 * X[:, 0]) + 0.2 * rng.standard_normal(60)
SHORT = {"n_inducing": 6, "max_draws": 30, "round_draws": 10, "warmup": 20, "max_rounds": 1, "chains": 2, "steps": 50}


def fit(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", integrand.ConvergenceWarning)
        return integrand.fit(X, Y, **SHORT | options)


def likelihood_at(posterior, phi, bound):
    """The collapsed bound at a draw."""
    model, scaler = posterior.model, posterior.scaler
    with float64_scope():
        data = Dataset.of(scaler.transform_X(X), scaler.transform_y(Y))
        gp = model.gp(model.theta(jnp.asarray(phi)))
        return float(collapsed_bound(gp, posterior.Z_path[-1], data, posterior.jitter, bound))


def log_prior(posterior, phi):
    with float64_scope():
        return float(posterior.model.log_prior(jnp.asarray(phi)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A sampled fit and its run directory."""
    folder = tmp_path_factory.mktemp("tight") / "run"
    return fit(bound="tight", run_dir=folder), folder


@pytest.mark.slow
def test_draws_are_from_the_tight_bound(run):
    posterior, _ = run
    assert posterior.model.bound == "tight"
    phi, density = posterior.chains.x[0, -1], posterior.chains.log_density[0, -1]
    value = likelihood_at(posterior, phi, "tight")
    assert density == pytest.approx(value + log_prior(posterior, phi), rel=1e-9)
    assert value > likelihood_at(posterior, phi, "titsias") + 0.1


@pytest.mark.slow
def test_the_optimum_of_the_tight_bound_is_higher_by_it(run):
    tight, old = fit(method="ml2", bound="tight"), fit(method="ml2", bound="titsias")
    assert likelihood_at(tight, tight.optimum, "tight") > likelihood_at(old, old.optimum, "tight")


def test_a_run_goes_on_with_its_bound_and_a_file_keeps_it(run, tmp_path):
    posterior, folder = run
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", integrand.ConvergenceWarning)
        assert integrand.resume(folder, max_draws=40).model == posterior.model
    integrand.save_model(posterior, tmp_path / "m.integrand")
    assert integrand.load_model(tmp_path / "m.integrand").posterior.model.bound == "tight"


def test_a_description_without_a_bound_is_of_the_old_one(run):
    described = integrand.model.describe_model(run[0].model)
    assert json.loads(json.dumps(described))["bound"] == "tight"
    assert integrand.model.restore_model({k: v for k, v in described.items() if k != "bound"}).bound == "titsias"


@pytest.mark.parametrize("method", ["gpr-hmc", "svgp"])
def test_other_methods_have_none(method):
    assert not METHODS[method].collapsed
    with pytest.raises(InputError, match=f"{method} has no collapsed bound: leave bound='tight' out, or use ml2"):
        fit(method=method, bound="tight")


def test_a_setting_that_does_not_exist():
    with pytest.raises(InputError, match="bound must be one of titsias, tight, not 'upper'"):
        fit(bound="upper")
