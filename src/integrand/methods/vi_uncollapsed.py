"""`vi-uncollapsed`: Gaussians q(φ) and q(v), with Z, maximise one bound by Adam on batches, for any likelihood.

    ELBO(q, Z) = E_q(φ)[Σₙ E_q(fₙ) log p(yₙ | fₙ) + log p(φ)] + H[q(φ)] - KL(q(v) ‖ N(0, I))

Hensman et al. (2013, 2015) with a Gaussian over φ beside the one over v. The expectation over φ = c + C ε is over
a few draws of ε a step, each with its opposite. v is white: what θ says of the scale and smoothness of u is in L, so
that v depends less on θ than u does, yet q(φ) q(v) knows of no dependence. So q(φ) is narrower than the posterior
(most for scale and lengthscale), and the bound is at most that of `vi-collapsed`, where u is integrated out for every
θ. Predictions mix over draws of q(φ).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from integrand.bounds.uncollapsed import FactoredGaussian, batch_log_likelihood, kl_from_prior, uncollapsed_bound
from integrand.data.dataset import Dataset
from integrand.errors import NumericalError
from integrand.infer.climb import Batches
from integrand.infer.diagnostics import Verdict, convergence, e_bfmi
from integrand.linalg import Jitter
from integrand.methods.adam import NOT_FINITE, bound_history, climbed, decaying, starting_unknowns
from integrand.methods.draws_of_q import draws_of_q
from integrand.methods.problem import Problem
from integrand.methods.record import FitRecord
from integrand.model import Model
from integrand.posterior.conditional import VariationalConditional
from integrand.posterior.posterior import BoundPoint, Posterior
from integrand.precision import float64_scope
from integrand.targets import Counter
from integrand.targets.program import compiled

# Draws of φ in a step: so many pairs c ± C ε.
PAIRS = 2
# Independent draws of φ that the bound on all rows is judged with.
JUDGES = 100
# Standard deviation of each coordinate of φ at the start.
FIRST_SD = 0.1


class Unknowns(NamedTuple):
    """What is climbed over: q(φ) = N(centre, C Cᵀ) with C = `lower(root)`, Z and q(v)."""

    centre: Any
    root: Any
    Z: Any
    q: FactoredGaussian


def lower(root: Any, diagonal: bool) -> Any:
    """C: what is below the diagonal of `root` (nothing if q(φ) is to be diagonal), and exp of its diagonal."""
    scales = jnp.diag(jnp.exp(jnp.diagonal(root)))
    return scales if diagonal else jnp.tril(root, -1) + scales


def entropy(root: Any) -> Any:
    """H[q(φ)] = Σ log Cᵢᵢ + P/2 log 2πe."""
    return jnp.trace(root) + 0.5 * len(root) * jnp.log(2.0 * jnp.pi * jnp.e)


def _objective(x: Unknowns, inputs: Any, fixed: Any, model: Model, jitter: Jitter, diagonal: bool) -> Any:
    """The ELBO, estimated from some rows and some pairs of draws of φ."""
    (rows, white), (X, y) = inputs, fixed
    C = lower(x.root, diagonal)

    def at(white: Any) -> Any:
        phi = x.centre + C @ white
        gp = model.gp(model.theta(phi))
        fit = batch_log_likelihood(model.likelihood, gp, x.Z, x.q, X[rows], y[rows], len(y), jitter)
        return fit + model.log_prior(phi)

    each = jax.lax.map(at, jnp.concatenate([white, -white]))
    return jnp.mean(each) + entropy(x.root) - kl_from_prior(x.q)


_OBJECTIVES = {"full": partial(_objective, diagonal=False), "diagonal": partial(_objective, diagonal=True)}


def _judged(x: Unknowns, white: Any, C: Any, data: Dataset, model: Model, jitter: Jitter) -> Any:
    """What the ELBO averages, on all rows, at each draw of φ."""

    def at(white: Any) -> Any:
        phi = x.centre + C @ white
        bound = uncollapsed_bound(model.likelihood, model.gp(model.theta(phi)), x.Z, x.q, data, jitter)
        return bound + model.log_prior(phi)

    # With log q(φ) in place of its mean, -H[q], the spread is that of log p(φ, y) - log q(φ) and smaller.
    return jax.lax.map(at, white) + entropy(x.root) + 0.5 * (jnp.sum(white**2, axis=1) - white.shape[1])


def _first_row(x: Unknowns, phis: Any, row: Any, model: Model, jitter: Jitter) -> Any:
    """What one row adds to the bound at each φ: finite where Kmm can be factored."""

    def at(phi: Any) -> Any:
        gp = model.gp(model.theta(phi))
        return batch_log_likelihood(model.likelihood, gp, x.Z, x.q, row[0], row[1], 1, jitter)

    return jax.lax.map(at, phis)


def vi_uncollapsed(problem: Problem) -> Posterior:
    """Climb from the start of `svgp` and a narrow q(φ) around it."""
    settings, n = problem.settings, problem.model.n_theta
    record = FitRecord(problem, Counter(), 1)
    record.enter("warm start")
    start, name = starting_unknowns(problem)
    x = Unknowns(start.phi, np.log(FIRST_SD) * np.eye(n), start.Z, start.q)
    batches, rng = Batches(problem.rng(7), problem.data.n_rows, settings.batch_size), problem.rng(8)
    record.enter("optimise")
    objective = _OBJECTIVES[settings.vi_covariance]

    def white_pairs(count: int) -> np.ndarray:
        return rng.standard_normal((count, PAIRS, n))

    found = climbed(problem, objective, x, batches, decaying(problem), white_pairs)
    with float64_scope():
        C = np.asarray(lower(jnp.asarray(found.x.root), settings.vi_covariance == "diagonal"))
        judge = compiled(_judged, ("model", "jitter"), 0)
        white = problem.rng(9).standard_normal((JUDGES, n))
        bounds = np.asarray(judge(found.x, white, C, problem.data, model=problem.model, jitter=problem.jitter))
    if not np.any(np.isfinite(bounds)):
        raise NumericalError(NOT_FINITE)
    finite = bounds[np.isfinite(bounds)]
    bound, error = float(finite.mean()), float(finite.std() / np.sqrt(len(finite)))
    if len(finite) < JUDGES:
        bound, error = -np.inf, np.inf
    record.counter.gradients, record.counter.failures = 2 * PAIRS * len(found.values), found.failures
    record.notes += [f"Z started from {name}.", *found.notes(batches)]
    record.notes.append(f"The bound E_q log p(y, φ) + H[q] - KL on all rows is {bound:.2f} ± {error:.2f} nats.")
    record.history += bound_history(problem, found)
    record.history.append(BoundPoint("optimise", len(found.values), record.clock.elapsed, bound, error))
    record.enter("conditional")

    def works(phis: np.ndarray) -> np.ndarray:
        with float64_scope():
            first = tuple(a[:1] for a in problem.data.arrays())
            program = compiled(_first_row, ("model", "jitter"), 0)
            return np.isfinite(program(found.x, phis, first, model=problem.model, jitter=problem.jitter))

    chains, failing = draws_of_q(problem, found.x.centre, C, works)
    drawn = record.thinned(chains)
    conditional = VariationalConditional(drawn, found.x.Z, *(np.repeat(a[None], len(drawn), 0) for a in found.x.q))
    # Draws of q are independent: what can go wrong is the climb to q, and that q reaches where nothing is finite.
    record.judged = Verdict(
        (*found.findings(), *failing),
        convergence(chains.x),
        tuple(problem.model.names),
        0,
        e_bfmi(chains.energy),
        found.failures,
        record.counter.gradients,
    )
    path = np.array([start.Z, found.x.Z])
    return record.posterior("vi-uncollapsed", chains, conditional, found.x.centre, path)
