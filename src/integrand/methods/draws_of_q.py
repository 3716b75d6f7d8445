"""Draws of a Gaussian q(φ) = N(c, C Cᵀ), shared by the variational methods: independent, and all of them predict."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float

from integrand.errors import NumericalError
from integrand.infer.chains import Chains
from integrand.infer.diagnostics import Finding
from integrand.methods.problem import Problem

# How often draws that fail are drawn again.
MOST_ROUNDS = 20

Works = Callable[[Float[np.ndarray, "n P"]], Bool[np.ndarray, " n"]]


def draws_of_q(
    problem: Problem, centre: Float[np.ndarray, " P"], C: Float[np.ndarray, "P P"], works: Works
) -> tuple[Chains, tuple[Finding, ...]]:
    """Draws shared out among chains, and a finding where q reaches θ at which nothing can be factored.

    `works` says at which φ the bound is finite. A draw at which it is not would break every prediction: it is drawn
    again, so that the draws are those of q where the bound is finite.
    """
    settings, rng, P = problem.settings, problem.rng(6), len(centre)
    shape = (settings.chains, max(settings.predictive_draws // settings.chains, 4))
    white = rng.standard_normal((*shape, P)).reshape(-1, P)
    bad = ~works(centre + white @ C.T)
    failed = int(bad.sum())
    for _ in range(MOST_ROUNDS):
        if not np.any(bad):
            break
        white[bad] = rng.standard_normal((int(bad.sum()), P))
        bad[bad] = ~works(centre + white[bad] @ C.T)
    if np.all(bad):
        raise NumericalError(
            "the bound is finite at no draw of q(θ): use fewer inducing points, a larger jitter, or a prior that keeps "
            "the noise away from zero"
        )
    white[bad] = white[rng.choice(np.flatnonzero(~bad), int(bad.sum()))]
    white = white.reshape(*shape, P)
    log_q = -0.5 * np.sum(white**2, axis=2) - np.linalg.slogdet(C)[1]
    zero = np.zeros(shape)
    none, no = zero.astype(int), zero.astype(bool)
    chains = Chains(centre + white @ C.T, log_q, -log_q, zero + 1.0, none, none, no, zero)
    return chains, _findings(failed, zero.size)


def _findings(failed: int, drawn: int) -> tuple[Finding, ...]:
    if not failed:
        return ()
    sentence = f"{failed} of {drawn} draws of q(θ) failed numerically and were drawn again: q is cut off there."
    return (Finding("rejections", True, sentence, "Use fewer inducing points or a larger jitter."),)
