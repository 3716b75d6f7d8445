"""From draws of a sparse posterior to draws of the exact one, by Pareto-smoothed importance weights.

A draw of q*(θ) ∝ p(θ) exp L(θ, Z) has the weight p(y | θ) / exp L(θ, Z) under the exact posterior p(θ) p(y | θ). Where
N rows can be factored these weights are known, and k̂ says whether they can be trusted.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from integrand.bounds.collapsed import collapsed_bound
from integrand.bounds.exact import log_marginal_likelihood
from integrand.data.dataset import Dataset
from integrand.errors import InputError, UnreliableWeightsError
from integrand.infer.base import Chains, Finding
from integrand.infer.convergence import Convergence
from integrand.infer.importance import K_HAT_LIMIT, Smoothed, pareto_smoothed
from integrand.infer.verdict import Verdict
from integrand.linalg import Jitter
from integrand.model import Model
from integrand.posterior.conditional import Conditional, SparseConditional
from integrand.precision import in_float64

# Weights within a tenth of each other hardly move any mean, whatever the shape of their tail.
_ALIKE = 0.1
# With fewer draws than this k̂ may be infinite because less than five are in its tail, whatever the weights are.
_FEW_FOR_K_HAT = 25
# Draws worth less than this share of their number do not reach the tails that the weights ask for, whatever k-hat says:
# at 0.09 the noise of boston stayed half a standard deviation off (`make bench-reweighting`).
LEAST_EFFICIENCY = 0.1
_OF_SPARSE_DRAWS = ("few-inducing", "sparse-posterior")


class Reweighted(NamedTuple):
    """Which draws to keep, as often as their weights say."""

    index: Int[np.ndarray, " J"]
    slack: Float[np.ndarray, " J"]  # log p(y | θ) - L(θ, Z) of each draw
    k_hat: float
    efficiency: float  # effective sample size of the weights, divided by J


@in_float64
def reweigh(
    model: Model,
    jitter: Jitter,
    conditional: Conditional,
    data: Dataset,
    rng: np.random.Generator,
) -> Reweighted:
    """Weights of the draws that predict, and a systematic resample by them; `data` are the rows, standardised."""
    if not isinstance(conditional, SparseConditional):
        raise InputError("only draws with the collapsed bound can be re-weighted to the exact posterior: use sgpr-hmc")
    if conditional.n_draws < 2:
        raise InputError("one optimised point has no draws to re-weight: use a method that draws, such as sgpr-hmc")
    inputs = conditional.inputs
    Z_of_draws = inputs if conditional.inputs_vary else [inputs] * conditional.n_draws
    draws = zip(conditional.phis, Z_of_draws, strict=True)
    slack = np.array([float(_slack(phi, Z, data, model=model, jitter=jitter)) for phi, Z in draws])
    log_weights, k_hat = smoothed_weights(slack)
    if too_few_for_k_hat(len(slack), float(k_hat)):
        raise UnreliableWeightsError(
            f"{len(slack)} draws are too few for k-hat, which says whether they can be re-weighted: take a posterior "
            f"with {_FEW_FOR_K_HAT} draws or more, such as one whose file was saved without a limit"
        )
    if k_hat > K_HAT_LIMIT:
        raise UnreliableWeightsError(
            f"the sparse posterior is too far from the exact one to be re-weighted: k-hat is {k_hat:.2f}, above "
            f"{K_HAT_LIMIT}. Fit with more inducing points than {inputs.shape[-2]}, or use the method gpr-hmc"
        )
    efficiency = efficiency_of(log_weights)
    if efficiency < LEAST_EFFICIENCY:
        raise UnreliableWeightsError(
            f"the sparse posterior is too far from the exact one to be re-weighted: {len(slack)} draws would be worth "
            f"{efficiency:.0%} of their number, below {LEAST_EFFICIENCY:.0%}. Fit with more inducing points than "
            f"{inputs.shape[-2]}, or use the method gpr-hmc"
        )
    return Reweighted(resampled_index(log_weights, rng), slack, float(k_hat), efficiency)


def smoothed_weights(log_weights: Float[np.ndarray, " J"]) -> Smoothed:
    """`pareto_smoothed`, with a k̂ of 0 where all weights are nearly the same, and infinite where all are zero."""
    if not np.any(np.isfinite(log_weights)):
        return Smoothed(np.full(len(log_weights), -np.log(len(log_weights))), np.array(np.inf))
    smoothed = pareto_smoothed(log_weights)
    return smoothed._replace(k_hat=np.zeros(())) if np.ptp(log_weights) < _ALIKE else smoothed


def too_few_for_k_hat(n: int, k_hat: float) -> bool:
    """Whether k̂ of n weights is infinite for want of draws."""
    return 1 < n < _FEW_FOR_K_HAT and k_hat == np.inf


def efficiency_of(log_weights: Float[np.ndarray, " J"]) -> float:
    """Effective sample size of normalised weights, divided by J: 1 / (J Σ w²)."""
    return float(1.0 / (len(log_weights) * np.sum(np.exp(2.0 * log_weights))))


def resampled_index(log_weights: Float[np.ndarray, " J"], rng: np.random.Generator) -> Int[np.ndarray, " J"]:
    """Which draws to keep: systematic, so that each is kept J w times, rounded up or down."""
    n = len(log_weights)
    index = np.searchsorted(np.cumsum(np.exp(log_weights)), (np.arange(n) + rng.random()) / n).clip(0, n - 1)
    return rng.permutation(index)  # neighbours in a chain are spread again


@partial(jax.jit, static_argnames=("model", "jitter"))
def _slack(phi, Z, data: Dataset, model: Model, jitter: Jitter):
    gp = model.gp(model.theta(jnp.asarray(phi)))
    (X, y), v = data.arrays(), data.noise_variances()
    exact = log_marginal_likelihood(gp, X, y, 0.0 if v is None else v)
    return exact - collapsed_bound(gp, Z, data, jitter, model.bound)


def resampled_chains(chains: Chains, result: Reweighted) -> Chains:
    """The draws kept, with their exact log density."""
    flat = chains._replace(log_density=chains.log_density + result.slack.reshape(chains.log_density.shape))
    return picked(flat, result.index)


def picked(chains: Chains, index: Int[np.ndarray, " J"]) -> Chains:
    """These draws, counted over all chains, in as many chains as before where that comes out even."""
    n_chains = len(chains.x) if len(index) % len(chains.x) == 0 else 1
    return Chains(*(a.reshape(-1, *a.shape[2:])[index].reshape(n_chains, -1, *a.shape[2:]) for a in chains))


def reweighted_verdict(verdict: Verdict, result: Reweighted) -> Verdict:
    """The verdict on the sparse draws, with the sample sizes that the weights leave."""
    n = len(result.index)
    sentence = (
        f"Draws were re-weighted to the exact posterior: k-hat is {result.k_hat:.2f} (trusted up to {K_HAT_LIMIT}), "
        f"and {n} draws are worth {result.efficiency:.0%} of their number."
    )
    # What the inducing points cost θ is made good.
    before = [finding for finding in verdict.findings if finding.code not in _OF_SPARSE_DRAWS]
    findings = (*before, Finding("re-weighted", False, sentence, ""))
    left = with_weights(verdict.convergence, n, result.efficiency)
    return replace(verdict, findings=findings, convergence=left, sparseness=None)


def for_chains(verdict: Verdict, chains: Chains) -> Verdict:
    """The verdict with the smallest E-BFMI alone where the draws of several chains are now one."""
    n = len(chains.x)
    return verdict if len(verdict.e_bfmi) == n else replace(verdict, e_bfmi=np.full(n, np.min(verdict.e_bfmi)))


def with_weights(numbers: Convergence, n: int, efficiency: float) -> Convergence:
    """The sample sizes that weights leave of n draws."""
    left = (np.minimum(ess, n) * efficiency for ess in (numbers.ess_bulk, numbers.ess_tail))
    return Convergence(numbers.r_hat, *left)
