"""`svgp` and `vi-uncollapsed`: the uncollapsed bound, maximised by Adam on batches of rows, with any likelihood.

`svgp`, the paper's SVGP (Hensman et al. 2013, 2015): θ, Z and a Gaussian q(u) maximise the bound. A step costs
B M² + M³ however many rows there are. With Gaussian noise the best q(u) for the final θ and Z is known, from one pass
over all rows. It replaces Adam's at the end, and the notes say how many nats Adam's was short of it (`schedule="paper"`
keeps Adam's). Adam may not have finished with θ and Z either: a few steps of L-BFGS on all rows, which are not kept,
show how much they gain.

`vi-uncollapsed`: Gaussians q(φ) and q(v), with Z, maximise one bound.

    ELBO(q, Z) = E_q(φ)[Σₙ E_q(fₙ) log p(yₙ | fₙ) + log p(φ)] + H[q(φ)] - KL(q(v) ‖ N(0, I))

Hensman et al. (2013, 2015) with a Gaussian over φ beside the one over v. The expectation over φ = c + C ε is over
a few draws of ε in each step, each with its opposite. v is white: L holds what θ says of the scale and smoothness of u,
so v depends less on θ than u does. Yet q(φ) q(v) has no dependence at all, so q(φ) is narrower than the posterior (most
for scale and lengthscale). The bound is at most that of `vi-collapsed`, where u is integrated out for every θ.
Predictions mix over draws of q(φ).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from integrand.bounds.collapsed import factorise
from integrand.bounds.uncollapsed import (
    FactoredGaussian,
    batch_log_likelihood,
    kl_from_prior,
    optimal_inducing,
    uncollapsed_bound,
)
from integrand.compilation import LARGE, jitted
from integrand.data.dataset import Dataset
from integrand.errors import NumericalError
from integrand.inducing import k_means
from integrand.infer.base import Chains, Counter
from integrand.infer.convergence import convergence, e_bfmi
from integrand.infer.minibatch_adam import Ascent, AscentSnapshot, Batches, BatchObjective, maximise_on_batches
from integrand.infer.optimise import maximise_lbfgs
from integrand.infer.verdict import TOLERANCE_NATS, Finding, Verdict, optimised
from integrand.likelihoods import Gaussian
from integrand.linalg import Jitter
from integrand.methods import sampling
from integrand.methods.collapsed_vi import draws_of_q
from integrand.methods.problem import FitContext, Problem
from integrand.methods.warm_start import starting_inducing
from integrand.model import Model
from integrand.posterior.conditional import VariationalConditional
from integrand.posterior.posterior import BoundPoint, Posterior
from integrand.precision import float64_scope
from integrand.targets.collapsed import CollapsedTarget

# The share of the steps in which q(v) moves alone, if it starts at N(0, I): without it θ and Z fit a q(v) that knows
# nothing of the data.
ALONE = 0.1
# Name of Adam's state in a run directory.
STATE = "adam"
# The paper's schedule.
PAPER_RATE, PAPER_BATCH, PAPER_EPOCHS = 0.01, 200, 2_000
# Steps of L-BFGS that show whether θ and Z are at the end of the ascent, and the most rows for which they are taken.
CHECK_STEPS, CHECK_ROWS = 10, 50_000
# A shorter distance to the best q(u) than this many nats is not mentioned.
MIN_SHORT = 0.01
# Of `vi-uncollapsed`: pairs of draws c ± C ε of φ in a step, independent draws of φ for the bound on all rows, and the
# standard deviation of each coordinate of φ at the start.
PAIRS, BOUND_DRAWS, FIRST_SD = 2, 100, 0.1

NOT_FINITE = "the bound is not finite where Adam starts: look for extreme values in the data, or use a larger jitter"


class Unknowns(NamedTuple):
    """φ, Z and q(v)."""

    phi: Any
    Z: Any
    q: FactoredGaussian


def starting_unknowns(problem: Problem, plain: bool = False) -> tuple[Unknowns, str]:
    """The prior's medians, the best candidate for Z, and the best q(v) there; and the candidate's name.

    Without Gaussian noise neither the bound of a candidate nor the best q(v) is known: k-means, and N(0, I). `plain`
    starts q(v) there in any case.
    """
    model, phi = problem.model, problem.model.start()
    gaussian = isinstance(model.likelihood, Gaussian)
    if gaussian:
        Z, name = starting_inducing(problem, CollapsedTarget(model, problem.data, problem.jitter), phi)
    elif problem.Z is not None:
        Z, name = problem.Z, "given"
    else:
        X = np.asarray(problem.data.arrays()[0])
        Z, name = k_means(problem.rng(0), X, problem.n_inducing, model.levels), "k-means"
    q = FactoredGaussian(np.zeros(len(Z)), np.eye(len(Z)))
    if gaussian and not plain:
        q = best_q(problem, phi, Z) or q
    return Unknowns(phi, Z, q), name


def best_q(problem: Problem, phi: Float[np.ndarray, " P"], Z: Float[np.ndarray, "M D"]) -> FactoredGaussian | None:
    """The best q(v) at θ and Z for Gaussian noise, at which the bound is the collapsed one; None if that fails."""
    with float64_scope():
        best = _optimum(phi, Z, problem.data, model=problem.model, jitter=problem.jitter)
    m, S = np.asarray(best.m), np.asarray(best.S)
    return FactoredGaussian(m, S) if np.all(np.isfinite(m)) and np.all(np.isfinite(S)) else None


@partial(jax.jit, static_argnames=("model", "jitter"))
def _optimum(phi: Any, Z: Any, data: Dataset, model: Model, jitter: Jitter) -> FactoredGaussian:
    return optimal_inducing(factorise(model.gp(model.theta(phi)), Z, data, jitter))


def decaying(problem: Problem) -> Float[np.ndarray, "n 2"]:
    """The rates of q and of θ and Z: that of the settings for half of the steps, then linearly down to nearly zero.

    So the noise dies out.
    """
    settings, steps = problem.settings, problem.settings.adam_steps
    done = np.arange(steps) / steps
    rates = settings.learning_rate * np.minimum(1.0, 2.0 * (1.0 - done))
    alone = 0.0 if isinstance(problem.model.likelihood, Gaussian) else ALONE
    return np.column_stack([rates, np.where(done < alone, 0.0, rates)])


def maximise(
    problem: Problem,
    context: FitContext,
    objective: Callable,
    x: Any,
    batches: Batches,
    rates: Float[np.ndarray, "n 2"],
    extra: Callable[[int], Any] | None = None,
    plain: bool = False,
) -> Ascent:
    """Maximise objective(x, (rows, extra), (X, y), model, jitter), with Adam's state in the run directory.

    A run that goes on from there ends where it would have ended without the break.
    """
    M, store = len(x.Z), context.store
    saved_at, latest = context.clock.elapsed, None

    def callback(s: AscentSnapshot) -> str:
        nonlocal saved_at, latest
        latest = s
        context.progress.update(s.done, s.steps, f"bound {s.value:.2f}")
        if context.clock.elapsed - saved_at > sampling.SAVE_SECONDS:
            store.save_state(STATE, s.state())
            saved_at = context.clock.elapsed
        return "minutes used up" if context.over_time else ""

    small = 12.0 * M**2 * (batches.size + M) < LARGE
    ascent = maximise_on_batches(
        BatchObjective(objective, problem.data.arrays(), (problem.model, problem.jitter), plain),
        x,
        batches,
        rates,
        extra=extra,
        threads=1 if small else 0,
        callback=callback,
        saved=store.state(STATE),
    )
    if latest is not None:
        with float64_scope():
            store.save_state(STATE, latest.state())
    return ascent


def _record_history(context: FitContext, ascent: Ascent, bound: float, error: float) -> None:
    """The bound over the steps, as if each had taken as long; and at the end that on all rows."""
    n, seconds = len(ascent.values), context.clock.elapsed
    context.history += [BoundPoint("optimise", at, seconds * (at + 1) / n, mean, e) for at, mean, e in ascent.history()]
    context.record_bound("optimise", n, bound, error)


# ---- svgp


def svgp(problem: Problem, context: FitContext) -> Posterior:
    """Maximise the bound over φ, Z and q(v); no prior takes part, as in ML-II."""
    settings, paper = problem.settings, problem.settings.schedule == "paper"
    context.phase("warm start")
    start, name = starting_unknowns(problem, plain=paper)
    batches = Batches(problem.rng(7), problem.data.n_rows, PAPER_BATCH if paper else settings.batch_size)
    rates = decaying(problem)
    if paper:
        rates = np.full((PAPER_EPOCHS * -(-batches.n_rows // batches.size), 2), PAPER_RATE)
    context.phase("optimise")
    ascent = maximise(problem, context, _svgp_objective, start, batches, rates, plain=paper)
    context.phase("conditional")
    x, bound, notes = _with_best_q(problem, ascent.x, replace=not paper)
    findings = [*ascent.findings(), *_still_to_gain(problem, x)]
    context.notes += [f"Z started from {name}.", *ascent.notes(batches), *notes]
    context.notes.append(f"The bound on all rows is {bound:.2f} nats.")
    _record_history(context, ascent, bound, 0.0)
    return context.posterior(
        Chains.of_one_point(x.phi, bound),
        VariationalConditional(x.phi[None], x.Z, np.asarray(x.q.m)[None], np.asarray(x.q.S)[None]),
        optimum=x.phi,
        counter=_counter(ascent),
        verdict=optimised(findings, problem.model.names, ascent.failures, len(ascent.values)),
        Z_path=[start.Z, x.Z],
    )


def _counter(ascent: Ascent, gradients_per_step: int = 1) -> Counter:
    """Gradients and failures of the ascent."""
    counter = Counter()
    counter.gradients, counter.failures = gradients_per_step * len(ascent.values), ascent.failures
    return counter


def _svgp_objective(x: Unknowns, inputs: Any, fixed: Any, model: Model, jitter: Jitter) -> Any:
    """The bound on all rows, estimated from some."""
    (rows, _), (X, y) = inputs, fixed
    gp = model.gp(model.theta(x.phi))
    return batch_log_likelihood(model.likelihood, gp, x.Z, x.q, X[rows], y[rows], len(y), jitter) - kl_from_prior(x.q)


@partial(jax.jit, static_argnames=("model", "jitter"))
def _full_bound(x: Unknowns, data: Dataset, model: Model, jitter: Jitter) -> Any:
    return uncollapsed_bound(model.likelihood, model.gp(model.theta(x.phi)), x.Z, x.q, data, jitter)


def _still_to_gain(problem: Problem, x: Unknowns) -> list[Finding]:
    """A finding if L-BFGS still gains from θ and Z on all rows; for Gaussian noise, with the best q(v) throughout."""
    n = problem.model.n_theta
    if not isinstance(problem.model.likelihood, Gaussian) or problem.data.n_rows > CHECK_ROWS:
        return []
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)

    def f(w: np.ndarray) -> tuple[float, np.ndarray]:
        e = target.evaluate(w[:n], w[n:].reshape(x.Z.shape))
        return e.log_likelihood, np.concatenate([e.d_likelihood, e.dZ.ravel()])

    try:
        optimum = maximise_lbfgs(f, np.concatenate([x.phi, x.Z.ravel()]), max_steps=CHECK_STEPS)
    except KeyboardInterrupt:  # Adam's result is worth more than this check
        return []
    gain = optimum.value - optimum.history[0] if optimum.history else 0.0
    if not gain > TOLERANCE_NATS:
        return []
    sentence = f"{CHECK_STEPS} steps of L-BFGS on all rows, from the θ and Z that Adam found, gain {gain:.1f} nats."
    return [
        Finding("short", False, sentence, 'Allow more `steps`, or use `method="ml2"`, which maximises the same bound.')
    ]


def _with_best_q(problem: Problem, x: Unknowns, replace: bool) -> tuple[Unknowns, float, list[str]]:
    """x, with the best q(v) for its θ and Z where that is known and wanted, the bound on all rows, and a note."""

    def bound_of(x: Unknowns) -> float:
        with float64_scope():
            return float(_full_bound(x, problem.data, model=problem.model, jitter=problem.jitter))

    bound = bound_of(x)
    if not np.isfinite(bound):
        raise NumericalError(NOT_FINITE)
    best = best_q(problem, x.phi, x.Z) if isinstance(problem.model.likelihood, Gaussian) else None
    if best is None or not (reached := bound_of(x._replace(q=best))) > bound:
        return x, bound, []
    if reached < bound + MIN_SHORT:
        return (x._replace(q=best), reached, []) if replace else (x, bound, [])
    short = f"{reached - bound:.2f} nats short of the best for its θ and Z"
    if not replace:
        return x, bound, [f"q(u) is {short}."]
    return x._replace(q=best), reached, [f"Adam's q(u) was {short}, which took its place."]


# ---- vi-uncollapsed


class VariationalUnknowns(NamedTuple):
    """q(φ) = N(centre, C Cᵀ) with C = `lower(root)`, Z and q(v)."""

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


def _vi_objective(x: VariationalUnknowns, inputs: Any, fixed: Any, model: Model, jitter: Jitter, diagonal: bool) -> Any:
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


_OBJECTIVES = {"full": partial(_vi_objective, diagonal=False), "diagonal": partial(_vi_objective, diagonal=True)}


def _elbo_terms(x: VariationalUnknowns, white: Any, C: Any, data: Dataset, model: Model, jitter: Jitter) -> Any:
    """The terms whose mean is the ELBO on all rows, one for each draw of φ."""

    def at(white: Any) -> Any:
        phi = x.centre + C @ white
        bound = uncollapsed_bound(model.likelihood, model.gp(model.theta(phi)), x.Z, x.q, data, jitter)
        return bound + model.log_prior(phi)

    # With log q(φ) in place of its mean, -H[q], the spread is that of log p(φ, y) - log q(φ) and smaller.
    return jax.lax.map(at, white) + entropy(x.root) + 0.5 * (jnp.sum(white**2, axis=1) - white.shape[1])


def _first_row(x: VariationalUnknowns, phis: Any, row: Any, model: Model, jitter: Jitter) -> Any:
    """What one row adds to the bound at each φ: finite where Kmm can be factored."""

    def at(phi: Any) -> Any:
        gp = model.gp(model.theta(phi))
        return batch_log_likelihood(model.likelihood, gp, x.Z, x.q, row[0], row[1], 1, jitter)

    return jax.lax.map(at, phis)


def vi_uncollapsed(problem: Problem, context: FitContext) -> Posterior:
    """Maximise the bound from the start of `svgp` and a narrow q(φ) around it."""
    settings, n = problem.settings, problem.model.n_theta
    context.phase("warm start")
    start, name = starting_unknowns(problem)
    x = VariationalUnknowns(start.phi, np.log(FIRST_SD) * np.eye(n), start.Z, start.q)
    batches, rng = Batches(problem.rng(7), problem.data.n_rows, settings.batch_size), problem.rng(8)
    context.phase("optimise")

    def white_pairs(count: int) -> np.ndarray:
        return rng.standard_normal((count, PAIRS, n))

    objective = _OBJECTIVES[settings.vi_covariance]
    ascent = maximise(problem, context, objective, x, batches, decaying(problem), white_pairs)
    x = ascent.x
    with float64_scope():
        C = np.asarray(lower(jnp.asarray(x.root), settings.vi_covariance == "diagonal"))
    bound, error = _elbo(problem, x, C)
    context.notes += [f"Z started from {name}.", *ascent.notes(batches)]
    context.notes.append(f"The bound E_q log p(y, φ) + H[q] - KL on all rows is {bound:.2f} ± {error:.2f} nats.")
    _record_history(context, ascent, bound, error)
    context.phase("conditional")

    def works(phis: np.ndarray) -> np.ndarray:
        with float64_scope():
            first = tuple(a[:1] for a in problem.data.arrays())
            program = jitted(_first_row, ("model", "jitter"), 0)
            return np.isfinite(program(x, phis, first, model=problem.model, jitter=problem.jitter))

    chains, failed_draws = draws_of_q(problem, x.centre, C, works)
    draws, counter = context.thinned(chains), _counter(ascent, 2 * PAIRS)
    conditional = VariationalConditional(draws, x.Z, *(np.repeat(a[None], len(draws), 0) for a in x.q))
    # Draws of q are independent. The ascent may not have ended, and q may reach where nothing is finite.
    verdict = Verdict(
        (*ascent.findings(), *failed_draws),
        convergence(chains.x),
        tuple(problem.model.names),
        0,
        e_bfmi(chains.energy),
        counter.failures,
        counter.gradients,
    )
    return context.sampled(
        chains, conditional, optimum=x.centre, counter=counter, verdict=verdict, Z_path=[start.Z, x.Z]
    )


def _elbo(problem: Problem, x: VariationalUnknowns, C: Float[np.ndarray, "P P"]) -> tuple[float, float]:
    """The ELBO on all rows, and its Monte Carlo error; -inf if any draw of φ fails."""
    with float64_scope():
        program = jitted(_elbo_terms, ("model", "jitter"), 0)
        white = problem.rng(9).standard_normal((BOUND_DRAWS, problem.model.n_theta))
        terms = np.asarray(program(x, white, C, problem.data, model=problem.model, jitter=problem.jitter))
    finite = terms[np.isfinite(terms)]
    if len(finite) == 0:
        raise NumericalError(NOT_FINITE)
    if len(finite) < BOUND_DRAWS:
        return -np.inf, np.inf
    return float(finite.mean()), float(finite.std() / np.sqrt(len(finite)))
