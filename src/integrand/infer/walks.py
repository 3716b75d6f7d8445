"""Draws from the prior whose likelihood is above a level: walks along slices, with BlackJAX's kernel."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from integrand.infer.threads import compiler_options
from integrand.infer.transitions import MOST_CUTS, MOST_EXPANSIONS, finite_or_rejected, stepping_out

# Walks in one call of the compiled program, at most.
WALKS = 16


class Points(NamedTuple):
    """Points with their log prior and log likelihood."""

    x: Float[np.ndarray, "S P"]
    log_prior: Float[np.ndarray, " S"]
    log_likelihood: Float[np.ndarray, " S"]


def _parts(log_prior, log_likelihood, data):
    """Log prior and log likelihood, -inf where they are not finite."""
    return finite_or_rejected(lambda x: log_prior(x, data)), finite_or_rejected(lambda x: log_likelihood(x, data))


@functools.lru_cache(maxsize=64)
def values_program(log_prior, log_likelihood):
    """Log prior and log likelihood of many points."""

    def values(draws, data):
        prior, likelihood = _parts(log_prior, log_likelihood, data)
        return jax.lax.map(lambda x: (prior(x), likelihood(x)), draws)

    return jax.jit(values)


@functools.lru_cache(maxsize=64)
def walks_program(log_prior, log_likelihood, threads: int):
    """Walks under the constraint, one after the other: up to `WALKS` in a call, any number of slices."""
    from blackjax.mcmc.slice import build_kernel
    from blackjax.ns.base import StateWithLogLikelihood, init_state_strategy
    from blackjax.ns.nss import covariance_proposal, slice_constrained_step

    kernel = build_kernel(stepping_out, MOST_EXPANSIONS, MOST_CUTS)

    def program(key, numbers, particles, factor, data):
        block, first, count, n_slices, level = numbers
        prior, likelihood = _parts(log_prior, log_likelihood, data)

        def particle(x, loglikelihood_birth):
            return init_state_strategy(x, prior, likelihood, loglikelihood_birth)

        step = slice_constrained_step(particle, kernel, covariance_proposal)

        def walk(i, carry):
            points, evaluations = carry
            walk_key = jax.random.fold_in(jax.random.fold_in(key, block), first + i)
            start = StateWithLogLikelihood(points.x[i], points.log_prior[i], points.log_likelihood[i], level)

            def slice_of(k, carry):
                state, evaluations = carry
                state, info = step(jax.random.fold_in(walk_key, k), state, level, covariance_factor=factor)
                return state, evaluations + 2 + info.num_expansions + info.num_shrink

            end, evaluations = jax.lax.fori_loop(0, n_slices, slice_of, (start, evaluations))
            new = Points(end.position, end.logdensity, end.loglikelihood)
            return jax.tree.map(lambda rows, row: rows.at[i].set(row), points, new), evaluations

        return jax.lax.fori_loop(0, count, walk, (particles, jnp.asarray(0, int)))

    return jax.jit(program, compiler_options=compiler_options(threads))
