"""Nested sampling through `fit`: its evidence is that of the quadrature posterior, exact or with Z = X."""

import warnings

import numpy as np
import pytest
from test_quadrature_posterior import MEAN, SD, X, Y

import integrand
from integrand import RBF, ConvergenceWarning, Gamma, HalfNormal, Jitter, on_variance
from integrand.data.scaling import Standardiser
from integrand.posterior.modelfile import load_model, save_model

LOG_EVIDENCE = -27.555456


def fit(method, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return integrand.fit(
            X,
            Y,
            RBF(lengthscale=Gamma(25.0, 4.0), scale=HalfNormal(2.0)),
            noise=on_variance(HalfNormal(1.0)),
            method=method,
            sampler="nested",
            scaler=Standardiser.identity(1),
            jitter=Jitter(0.0, 1e-10),
            **({"seed": 2} | settings),
        )


@pytest.fixture(scope="module", params=["gpr-hmc", "sgpr-hmc-fixed-z"])
def posterior(request):
    return fit(request.param, **({} if request.param == "gpr-hmc" else {"Z": X}))


def test_evidence_is_that_of_quadrature_within_its_own_error(posterior):
    log_evidence, error = posterior.evidence
    assert 0.02 < error < 0.2
    assert abs(log_evidence - LOG_EVIDENCE) < 3 * error
    assert any("log evidence" in note for note in posterior.notes)


def test_draws_agree_with_quadrature(posterior):
    theta = posterior.theta
    draws = np.stack([theta["lengthscale"][..., 0], theta["scale"], theta["noise"] ** 2], axis=-1)
    ess = posterior.verdict.convergence.ess_bulk.min()
    assert ess > 200
    assert np.all(np.abs(draws.mean(axis=(0, 1)) - MEAN) < 4 * SD / np.sqrt(ess))


def test_evidence_is_kept_in_model_files_and_run_directories(tmp_path):
    posterior = fit("gpr-hmc", live_points=30, run_dir=tmp_path / "run")
    save_model(posterior, tmp_path / "model")
    assert load_model(tmp_path / "model").posterior.evidence == posterior.evidence
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        again = integrand.resume(tmp_path / "run")
    assert again.evidence == posterior.evidence
    np.testing.assert_array_equal(again.chains.x, posterior.chains.x)


def test_time_that_is_up_is_told():
    posterior = fit("gpr-hmc", max_minutes=0.02)
    assert "budget" in posterior.verdict.codes
    assert not posterior.verdict.ok
