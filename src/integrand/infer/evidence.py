"""Weights and evidence from the likelihoods at which the points of a nested run died (Skilling 2006)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import logsumexp

_SIMULATIONS = 200


class Weighed(NamedTuple):
    """Weights of all points in the order of their deaths, and what they add up to."""

    log_weights: Float[np.ndarray, " S"]  # normalised
    log_evidence: float
    information: float
    remaining: float


class Errors(NamedTuple):
    """What the volumes, which are known as random numbers only, make of the log evidence and of means."""

    log_evidence: float  # mean and standard deviation over simulated volumes
    log_evidence_error: float
    ess: float


def weigh(dead: Sequence[Float[np.ndarray, " _"]], live: Float[np.ndarray, " K"]) -> Weighed:
    """Weights from log likelihoods, in rising order: blocks of deaths, each with K points live before it, and the rest.

    The volumes are those where log t is at its mean of -1/n.
    """
    log_likelihood = np.concatenate([*dead, live])
    log_weights, log_evidence = _weights(log_likelihood, -1.0 / _n_live(dead, live))
    p = np.exp(log_weights)
    information = float(np.sum(p[p > 0] * log_likelihood[p > 0]) - log_evidence)
    return Weighed(log_weights, log_evidence, information, float(np.sum(p[-len(live) :])))


def errors(
    dead: Sequence[Float[np.ndarray, " _"]],
    live: Float[np.ndarray, " K"],
    x: Float[np.ndarray, "S P"],
    rng: np.random.Generator,
) -> Errors:
    """Errors from simulated volumes (Skilling 2006), and how many independent draws the weighted points x are worth.

    The weighted mean of a coordinate varies with the volumes, and with where on its contour a point happened to be
    (Higson et al. 2018): ess = variance / (Var_volumes(mean) + Σ w² (x - mean)²), the least of all coordinates, and
    never more than 1 / Σ w².
    """
    log_likelihood, n = np.concatenate([*dead, live]), _n_live(dead, live)
    totals, means = [], []
    for _ in range(_SIMULATIONS):
        log_weights, total = _weights(log_likelihood, np.log1p(-rng.uniform(size=len(n))) / n)
        totals.append(total)
        means.append(np.exp(log_weights) @ x)
    w = np.exp(_weights(log_likelihood, -1.0 / n)[0])[:, None]
    squares = (x - np.sum(w * x, axis=0)) ** 2
    spread = np.var(means, axis=0, ddof=1) + np.sum(w**2 * squares, axis=0)
    ess = np.sum(w * squares, axis=0) / np.maximum(spread, 1e-300)
    # Where one point has nearly all the weight (a run that was cut off) the others say nothing of the variance.
    worth = max(1.0, min(float(np.min(ess)), 1.0 / float(np.sum(w**2))))
    return Errors(float(np.mean(totals)), float(np.std(totals, ddof=1)), worth)


def _n_live(dead: Sequence[np.ndarray], live: np.ndarray) -> np.ndarray:
    """Points live at each death: K, K - 1, ... within a block, where nobody is replaced (Fowlie et al. 2021)."""
    return np.concatenate([len(live) - np.arange(len(block)) for block in (*dead, live)])


def _weights(log_likelihood: Float[np.ndarray, " S"], log_t: Float[np.ndarray, " S"]):
    """Log weights L_i (X_{i-1} - X_{i+1}) / 2, normalised, and the log of their sum."""
    X = np.exp(np.concatenate([[0.0], np.cumsum(log_t)]))
    width = 0.5 * (X[:-1] - np.append(X[2:], 0.0))
    with np.errstate(divide="ignore"):
        log_weights = log_likelihood + np.log(width)
    total = float(logsumexp(log_weights))
    return log_weights - total, total


def equal_weights(
    log_weights: Float[np.ndarray, " S"], ess: float, n_chains: int, rng: np.random.Generator
) -> Int[np.ndarray, "C n"]:
    """Numbers of points resampled to equal weight, as many as they are worth, dealt out at random to some chains."""
    n = max(1, int(ess) // n_chains)
    ticks = (np.arange(n * n_chains) + rng.uniform()) / (n * n_chains)  # systematic: each comes n w times, rounded
    cumulated = np.cumsum(np.exp(log_weights))
    chosen = np.searchsorted(cumulated / cumulated[-1], ticks)
    return rng.permutation(chosen).reshape(n_chains, n)
