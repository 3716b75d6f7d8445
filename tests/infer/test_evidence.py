"""Weighted proposals give the evidence with its error, and see what chains have missed."""

import numpy as np
import pytest

from integrand.infer.base import Proposals
from integrand.infer.coordinates import Coordinates
from integrand.infer.evidence import evidence, second_opinion
from integrand.infer.modes import Mode
from known_posteriors import SEED_SHIFT, Chains

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
