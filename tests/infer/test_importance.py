"""Smoothed weights and k̂ are those of ArviZ, and mean what they should."""

import math
import warnings

import numpy as np
import pytest

from integrand.errors import InputError
from integrand.infer.base import Proposals
from integrand.infer.coordinates import Coordinates
from integrand.infer.evidence import evidence, second_opinion
from integrand.infer.importance import pareto_smoothed
from integrand.infer.modes import Mode
from known_posteriors import SEED_SHIFT, Chains

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import arviz


def psislw(x, efficiency=1.0):
    """Smoothed log weights and k̂ by the installed ArviZ."""
    if arviz.__version__.startswith("0."):
        return arviz.psislw(x.copy(), efficiency)
    from arviz_stats.base import array_stats

    return array_stats.psislw(-x, r_eff=efficiency)  # it takes log likelihoods, whose ratios are one over them


@pytest.mark.parametrize("efficiency", [1.0, 0.4])
@pytest.mark.parametrize("n", [30, 400, 1001])
@pytest.mark.parametrize("spread", [1e-3, 0.5, 2.0, 8.0])
def test_the_numbers_are_those_of_arviz(spread, n, efficiency):
    x = spread * np.random.default_rng(n).standard_t(4, (3, n))
    expected, k_hat = psislw(x, efficiency)
    found = pareto_smoothed(x, efficiency)
    np.testing.assert_allclose(found.log_weights, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.k_hat, k_hat, rtol=1e-9, atol=1e-9)


def test_repeated_draws_and_weights_of_zero():
    rng = np.random.default_rng(1)
    x = np.repeat(rng.standard_normal(150), 4)
    x[::9] = -np.inf
    expected, k_hat = psislw(x)
    found = pareto_smoothed(x)
    np.testing.assert_allclose(np.exp(found.log_weights), np.exp(expected), rtol=1e-9, atol=1e-12)
    assert found.k_hat == pytest.approx(float(k_hat), abs=1e-9)
    assert np.sum(np.exp(found.log_weights)) == pytest.approx(1.0)


def test_k_hat_is_the_shape_of_the_tail():
    """Weights u^-k have a Pareto tail of shape k."""
    u = np.random.default_rng(2).random(40_000)
    for k in (0.2, 0.5, 0.9):
        assert pareto_smoothed(-k * np.log(u)).k_hat == pytest.approx(k, abs=0.12)


def test_weighted_draws_are_those_of_the_other_density():
    x = 1.5 * np.random.default_rng(3).standard_normal(20_000)
    weights, k_hat = pareto_smoothed(-0.5 * x**2 + 0.5 * (x / 1.5) ** 2)
    assert k_hat < 0.7
    assert np.exp(weights) @ x**2 == pytest.approx(1.0, abs=0.05)


def test_equal_weights_stay_equal():
    found = pareto_smoothed(np.full((2, 100), -3.0) + 1e-9 * np.arange(100))
    np.testing.assert_allclose(found.log_weights, -math.log(100), atol=1e-6)
    assert np.all(found.k_hat == 0.0)


def test_few_draws_say_nothing_about_the_tail():
    found = pareto_smoothed(np.array([0.0, 1.0, 2.0]))
    assert found.k_hat == math.inf
    np.testing.assert_allclose(np.exp(found.log_weights), np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum())
    assert pareto_smoothed(np.zeros(1)).log_weights == 0.0


@pytest.mark.parametrize("bad", [[0.0, math.nan], [0.0, math.inf], [-math.inf, -math.inf], []])
def test_weights_that_are_none_are_refused(bad):
    with pytest.raises(InputError, match="weights"):
        pareto_smoothed(np.array(bad))


# ---- the evidence from proposals

LOG_2PI = np.log(2.0 * np.pi)
MODES = tuple(Mode(Coordinates(np.array([c]), np.eye(1)), 0.0, 0.0) for c in (0.0, 8.0))


def log_normal(x, centre=0.0, sd=1.0):
    return -0.5 * ((x - centre) / sd) ** 2 - np.log(sd) - 0.5 * LOG_2PI


def proposals_of(n=4_000, seed=0, share=0.5, spread=1.2):
    """Of two normal densities; the density has 0.3 and 0.7 of its mass e^-3 there."""
    rng = np.random.default_rng([SEED_SHIFT, seed])
    second = rng.random(n) < share
    x = np.where(second, 8.0, 0.0) + spread * rng.standard_normal(n)
    log_q = np.logaddexp(np.log1p(-share) + log_normal(x, 0.0, spread), np.log(share) + log_normal(x, 8.0, spread))
    log_d = np.logaddexp(np.log(0.3) + log_normal(x), np.log(0.7) + log_normal(x, 8.0)) - 3.0
    return Proposals(x[:, None], log_d, log_q)


def chains_of(mass, n=400):
    rng = np.random.default_rng([SEED_SHIFT, 7])
    x = rng.standard_normal((4, n)) + 8.0 * (rng.random((4, n)) < mass)
    zero = np.zeros(x.shape)
    none = zero.astype(int)
    return Chains(x[..., None], zero, zero, zero, none, none, none.astype(bool), zero)


def test_the_evidence_and_its_error():
    errors = []
    for seed in range(40):
        result = evidence(proposals_of(seed=seed))
        assert result is not None
        assert result.k_hat < 0.5
        assert result.weights.sum() == pytest.approx(1.0)
        errors.append((result.log_evidence + 3.0) / result.error)
    assert 0.6 < np.sqrt(np.mean(np.square(errors))) < 1.45


def test_of_few_proposals_or_without_a_density_nothing_is_known():
    few = proposals_of(20)
    assert evidence(few) is None
    many = proposals_of(400)
    assert evidence(many._replace(log_density=np.full(400, -np.inf))) is None


@pytest.mark.parametrize(("mass", "codes"), [(0.7, []), (0.3, ["proposals-disagree"]), (0.0, ["proposals-disagree"])])
def test_chains_that_drew_the_wrong_mass_are_seen(mass, codes):
    proposals = proposals_of()
    result = evidence(proposals)
    assert result is not None
    findings = second_opinion(proposals, chains_of(mass), ["a"], result, MODES)
    assert [f.code for f in findings] == codes
    assert all(f.serious for f in findings)


def test_proposals_that_hardly_meet_a_mode_have_a_high_k_hat():
    proposals = proposals_of(3_000, share=3e-3, spread=0.9)
    result = evidence(proposals)
    assert result is not None
    assert result.k_hat > 0.7
    (finding,) = second_opinion(proposals, chains_of(0.0), ["a"], result)
    assert finding.code == "pareto-k"
