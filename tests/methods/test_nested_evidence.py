"""Nested sampling through `fit`: its evidence is that of the quadrature posterior, exact or with Z = X."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from test_quadrature_posterior import X

import integrand
from integrand import RBF, ConvergenceWarning, Gamma, HalfNormal, InputError, Jitter, on_variance
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows
from integrand.infer.base import Chains
from integrand.methods.nested import FROZEN, PLATEAU, NestedDraws, nested_verdict
from integrand.methods.problem import FitContext, Settings
from integrand.storage.model_file import load_model, save_model
from known_posteriors import GP_MEAN as MEAN
from known_posteriors import GP_SD as SD
from known_posteriors import Y

LOG_EVIDENCE = -27.555456


def fit(method, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return integrand.fit(
            ArrayRows(X, Y, scaler=Standardiser.identity(1)),
            kernel=RBF(lengthscale=Gamma(25.0, 4.0), scale=HalfNormal(2.0)),
            noise=on_variance(HalfNormal(1.0)),
            method=method,
            jitter=Jitter(0.0, 1e-10),
            **({"seed": 2, "sampler": "nested"} | settings),
        )


@pytest.fixture(scope="module", params=["gpr-hmc", pytest.param("sgpr-hmc-fixed-z", marks=pytest.mark.slow)])
def posterior(request):
    return fit(request.param, **({} if request.param == "gpr-hmc" else {"Z": X}))


@pytest.mark.slow
def test_evidence_is_that_of_quadrature_within_its_own_error(posterior):
    log_evidence, error = posterior.evidence
    assert 0.02 < error < 0.2
    assert abs(log_evidence - LOG_EVIDENCE) < 3 * error
    assert any("log evidence" in note for note in posterior.notes)


@pytest.mark.slow
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
    with pytest.raises(InputError, match="draws of nested sampling"):
        integrand.resume(tmp_path / "run", sampler="nuts")


def test_draws_of_chains_are_not_replaced_by_nested_ones(tmp_path):
    fit("gpr-hmc", sampler="nuts", max_draws=10, run_dir=tmp_path / "run")
    before = (tmp_path / "run" / "draws_000.npz").read_bytes()
    with pytest.raises(InputError, match="draws of another sampler"):
        integrand.resume(tmp_path / "run", sampler="nested")
    assert (tmp_path / "run" / "draws_000.npz").read_bytes() == before


@pytest.mark.slow
def test_time_that_is_up_is_told(monkeypatch):
    up = iter([False, True])  # there was time when nested sampling began
    monkeypatch.setattr(FitContext, "over_time", property(lambda self: next(up)))
    posterior = fit("gpr-hmc")
    assert "budget" in posterior.verdict.codes
    assert not posterior.verdict.ok


@pytest.mark.slow
def test_without_time_for_nested_draws_those_of_the_last_round_are_given(monkeypatch):
    monkeypatch.setattr(FitContext, "over_time", property(lambda self: self.clock._phase == "final"))
    posterior = fit("sgpr-hmc", Z=X, round_draws=20, chains=2, max_rounds=1)
    assert posterior.evidence is None
    assert posterior.chains.x.shape == (2, 20, 3)
    assert "budget" in posterior.verdict.codes


def test_a_run_that_is_stuck_says_so():
    """Not that minutes are missing."""
    x = np.random.default_rng(0).standard_normal((2, 50, 3))
    zero = np.zeros((2, 50))
    chains = Chains(x, zero, zero, zero, zero.astype(int), zero.astype(int), zero.astype(bool), zero)
    problem = SimpleNamespace(settings=Settings(target_ess=10.0), model=SimpleNamespace(names=("a", "b", "c")))
    for finished, sentence in ((False, FROZEN), (True, PLATEAU)):
        judged = nested_verdict(NestedDraws(chains, 90.0, finished, (0.0, 0.1), 0, False, sentence), problem, 0, 0)
        assert judged.codes == ("stuck",)
        assert judged.ok == finished
        assert sentence in str(judged)
