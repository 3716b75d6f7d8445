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
from integrand.infer.importance import K_HAT_LIMIT, pareto_smoothed
from integrand.infer.verdict import Verdict
from integrand.linalg import Jitter
from integrand.model import Model
from integrand.posterior.conditional import Conditional, SparseConditional
from integrand.precision import in_float64

# Weights within a tenth of each other hardly move any mean, whatever the shape of their tail.
_ALIKE = 0.1
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
    log_weights, k_hat = pareto_smoothed(slack)
    if np.ptp(slack) < _ALIKE:
        k_hat = 0.0
    if k_hat > K_HAT_LIMIT:
        raise UnreliableWeightsError(
            f"the sparse posterior is too far from the exact one to be re-weighted: k-hat is {k_hat:.2f}, above "
            f"{K_HAT_LIMIT}. Fit with more inducing points than {inputs.shape[-2]}, or use the method gpr-hmc"
        )
    weights = np.exp(log_weights)
    n = len(weights)
    # Systematic: each draw is kept n w times, rounded up or down. Neighbours in a chain are then spread again.
    index = np.searchsorted(np.cumsum(weights), (np.arange(n) + rng.random()) / n).clip(0, n - 1)
    return Reweighted(rng.permutation(index), slack, float(k_hat), float(1.0 / (n * np.sum(weights**2))))


@partial(jax.jit, static_argnames=("model", "jitter"))
def _slack(phi, Z, data: Dataset, model: Model, jitter: Jitter):
    gp = model.gp(model.theta(jnp.asarray(phi)))
    (X, y), v = data.arrays(), data.noise_variances()
    exact = log_marginal_likelihood(gp, X, y, 0.0 if v is None else v)
    return exact - collapsed_bound(gp, Z, data, jitter, model.bound)


def resampled_chains(chains: Chains, result: Reweighted) -> Chains:
    """The draws kept, in as many chains as before where that comes out even, with their exact log density."""
    n_chains = len(chains.x) if len(result.index) % len(chains.x) == 0 else 1
    flat = chains._replace(log_density=chains.log_density + result.slack.reshape(chains.log_density.shape))
    return Chains(*(a.reshape(-1, *a.shape[2:])[result.index].reshape(n_chains, -1, *a.shape[2:]) for a in flat))


def reweighted_verdict(verdict: Verdict, result: Reweighted) -> Verdict:
    """The verdict on the sparse draws, with the sample sizes that the weights leave."""
    numbers, n = verdict.convergence, len(result.index)
    left = [np.minimum(ess, n) * result.efficiency for ess in (numbers.ess_bulk, numbers.ess_tail)]
    sentence = (
        f"Draws were re-weighted to the exact posterior: k-hat is {result.k_hat:.2f} (trusted up to {K_HAT_LIMIT}), "
        f"and {n} draws are worth {result.efficiency:.0%} of their number."
    )
    # What the inducing points cost θ is made good.
    before = [finding for finding in verdict.findings if finding.code not in _OF_SPARSE_DRAWS]
    findings = (*before, Finding("re-weighted", False, sentence, ""))
    return replace(verdict, findings=findings, convergence=Convergence(numbers.r_hat, *left), sparseness=None)
