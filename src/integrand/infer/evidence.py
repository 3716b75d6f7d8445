"""What independence proposals say of a density besides the chains: Pareto k̂, weighted moments, and the evidence.

Every proposal x ~ q has the weight w = d(x) / q(x). The mean of the weights is ∫ d, the evidence. The shape k̂ of the
largest ones says whether q covers the density that the proposals met (`importance.py`). A part of the density that no
proposal met leaves k̂ low: this is a second opinion, not a proof.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from integrand.infer.base import Chains, Finding, Proposals
from integrand.infer.convergence import convergence
from integrand.infer.importance import K_HAT_LIMIT, pareto_smoothed
from integrand.infer.modes import Mode, membership

Values = Float[np.ndarray, " S"]

# Fewer proposals than this say nothing.
LEAST_PROPOSALS = 100
# Chains and proposals disagree where a number differs by this many standard errors, and by this share of a posterior sd
# (of a probability: by this much).
_ERRORS, _SHARE_OF_SD, _PROBABILITY = 4.0, 0.3, 0.1
# With k̂ above its limit, no proposal may have more than this share of all weights.
_HEAVY = 0.02
# Quantiles that are compared, by the share of draws below them.
_TAILS = (0.01, 0.99)


class Evidence(NamedTuple):
    """Smoothed weights of proposals that sum to one, and what they say."""

    weights: Values
    k_hat: float
    log_evidence: float
    error: float  # of the log evidence

    @property
    def reliable(self) -> bool:
        """Whether no few proposals decide: k̂ is small, or no weight is large."""
        return self.k_hat <= K_HAT_LIMIT or float(self.weights.max()) <= _HEAVY


def evidence(proposals: Proposals) -> Evidence | None:
    """Smoothed weights, k̂, and the log of the mean weight; None of few proposals or where all have no density."""
    known = np.isfinite(proposals.log_density)
    if len(known) < LEAST_PROPOSALS or not np.any(known):
        return None
    log_weights = np.where(known, proposals.log_density - proposals.log_q, -np.inf)
    smoothed = pareto_smoothed(log_weights)
    w = np.exp(smoothed.log_weights)
    # Var(mean of w) / mean², by the delta method that of its logarithm.
    error = math.sqrt(max(float(np.sum(w**2)) - 1.0 / len(w), 0.0))
    return Evidence(w, float(smoothed.k_hat), float(np.asarray(logsumexp(log_weights))) - math.log(len(w)), error)


def second_opinion(
    proposals: Proposals, chains: Chains, names: Sequence[str], result: Evidence, modes: Sequence[Mode] = ()
) -> list[Finding]:
    """What the verdict says of chains beside weighted proposals: k̂, and numbers or masses of modes that differ."""
    if result.k_hat > K_HAT_LIMIT:
        sentence = (
            f"Pareto k̂ of the independence proposals is {result.k_hat:.2f} (limit {K_HAT_LIMIT}): they do not cover "
            "the posterior, and a part of it may be missing."
        )
        return [
            Finding(
                "pareto-k",
                not result.reliable,
                sentence,
                "Use priors with lighter tails, or compare with sampler='nuts'.",
            )
        ]
    columns = [(name, proposals.x[:, i], chains.x[:, :, i]) for i, name in enumerate(names)]
    if len(modes) > 1:
        of_proposals, of_draws = membership(modes, proposals.x), membership(modes, chains.x)
        columns += [(f"mode {k + 1}", of_proposals == k, of_draws == k) for k in range(len(modes))]
    differing = [name for name, x, draws in columns if _differs(x + 0.0, draws + 0.0, result.weights)]
    if not differing:
        return []
    sentence = (
        f"Chains and weighted proposals disagree on {', '.join(differing[:3])}: chains have not drawn every part of "
        "the posterior as often as they should."
    )
    return [Finding("proposals-disagree", True, sentence, "Draw more (a larger `target_ess`), or use another seed.")]


def _differs(x: Values, draws: Float[np.ndarray, "C n"], weights: Values) -> bool:
    """Whether mean, standard deviation or a quantile of the weighted x is far from that of the draws."""
    binary = set(np.unique(draws)) <= {0.0, 1.0}
    if binary:
        return _far(x, draws, weights, _PROBABILITY)
    mean = float(weights @ x)
    sd = math.sqrt(max(float(weights @ (x - mean) ** 2), 1e-300))
    z, z_draws = (x - mean) / sd, (draws - mean) / sd
    checks = [(z, z_draws, _SHARE_OF_SD), (z**2, z_draws**2, 2.0 * _SHARE_OF_SD)]
    low, high = np.quantile(draws, _TAILS)
    checks += [((x < q) + 0.0, (draws < q) + 0.0, _PROBABILITY) for q in (low, high)]
    return any(_far(*check[:2], weights, check[2]) for check in checks)


def _far(x: Values, draws: Float[np.ndarray, "C n"], weights: Values, least: float) -> bool:
    """Whether two means differ by more than `least`, and by more than four of their standard errors."""
    estimate = float(weights @ x)
    ess = float(convergence(draws[..., None]).ess_bulk[0])
    variance = float(np.sum(weights**2 * (x - estimate) ** 2)) + float(draws.var()) / max(ess, 1.0)
    return abs(float(draws.mean()) - estimate) > max(least, _ERRORS * math.sqrt(variance))
