"""Nested sampling (Skilling 2006) with slices (Yallup, Kroupa & Handley 2026): the evidence, and weighted draws.

Live points drawn from the prior are replaced, lowest likelihood first, by new draws from the prior with a higher
likelihood. When n are live, the prior volume X above the lowest shrinks by a factor t with density n tⁿ⁻¹, so

    Z = ∫ L dX ≈ Σ L_i (X_{i-1} - X_{i+1}) / 2,    log X_i = Σ_{j ≤ i} log t_j.

A replacement starts at a live point and walks along slices in random directions, shaped by the live points, with
BlackJAX's slice kernel and constraint. BlackJAX's own outer loop (`nss`) moves its walkers in lockstep, so that each
waits for the slowest at every slice. Here they walk one after the other, and side by side in threads.
"""

import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy.special import logsumexp

from integrand.compilation import compiler_options, one_blas_thread
from integrand.errors import InputError, NumericalError, need
from integrand.infer.base import Chains, Plan, TracedDensity
from integrand.infer.blackjax_kernels import MAX_CUTS, MAX_EXPANSIONS, finite_or_rejected, stepping_out
from integrand.infer.chain_runner import arrays, chain_key
from integrand.precision import float64_scope

# Simulated sequences of volumes: their standard deviation is then known within 5 %.
_SIMULATIONS = 200
# Walks in one call of the compiled program, at most: enough to share the cost of a call.
WALKS = 16
# The share of the live points that is replaced at once, by walks that all start above one level.
_SHARE = 0.1
# Seconds between two calls of the callback.
_POLL_SECONDS = 0.25


class Points(NamedTuple):
    """Points with their log prior and log likelihood."""

    x: Float[np.ndarray, "S P"]
    log_prior: Float[np.ndarray, " S"]
    log_likelihood: Float[np.ndarray, " S"]


class NestedSnapshot(NamedTuple):
    """What a callback sees: points that died, log evidence so far, and the live points' share of the evidence."""

    dead: int
    log_evidence: float
    remaining: float
    seconds: float


# Called a few times a second; True ends the run.
NestedCallback = Callable[[NestedSnapshot], bool | None]


class NestedRun(NamedTuple):
    """The result. `points` count by `log_weights`; `chains` hold draws of equal weight resampled from them."""

    points: Points
    log_weights: Float[np.ndarray, " S"]  # normalised
    log_evidence: float
    log_evidence_error: float  # standard deviation over simulated volumes
    information: float  # KL divergence of the posterior from the prior, in nats
    ess: float  # independent draws that the weighted points are worth
    remaining: float  # share of the evidence that the live points still had at the end
    chains: Chains
    evaluations: int
    interrupted: bool
    stuck: bool  # ended because all live points had one likelihood


class Weights(NamedTuple):
    """Weights of all points in the order of their deaths, and their sums."""

    log_weights: Float[np.ndarray, " S"]  # normalised
    log_evidence: float
    information: float
    remaining: float


class Errors(NamedTuple):
    """The uncertainty of log evidence and means that comes from the volumes, which are only known as random numbers."""

    log_evidence: float  # mean and standard deviation over simulated volumes
    log_evidence_error: float
    ess: float


@dataclass(frozen=True)
class NestedSampling:
    """Evidence and posterior from live points that are draws from the prior.

    The error of the log evidence is about √(information / K) with K live points.

    Parameters
    ----------
    precision
        The run ends when the live points hold less than this share of the evidence.
    n_slices
        Slices walked to a new point: by default 3 P, at least 6. With fewer, the error of the evidence is too small.
    n_chains
        Chains into which the draws of equal weight are divided, since nested sampling has none.
    max_evaluations
        The run ends after this many evaluations of the likelihood, whatever the precision.
    """

    precision: float = 1e-3
    n_slices: int | None = None
    n_chains: int = 4
    max_evaluations: int | None = None

    def run(
        self,
        target: TracedDensity,
        prior_draws: Float[np.ndarray, "K P"],
        plan: Plan,
        callback: NestedCallback | None = None,
    ) -> NestedRun:
        """Nested sampling of `target` with the seed of the plan, and as many walks at the same time.

        The prior draws are the first live points. They alone normalise the prior: `log_prior` may lack a constant.
        """
        n_live, dimension = prior_draws.shape
        if n_live < max(20, 2 * dimension):
            raise InputError(f"nested sampling needs at least {max(20, 2 * dimension)} live points, not {n_live}")
        n_slices = max(6, 3 * dimension) if self.n_slices is None else self.n_slices
        work = _LivePoints(target, plan, n_slices)
        began, called, interrupted, ended = time.monotonic(), 0.0, False, False
        with float64_scope(), one_blas_thread(plan.parallel > 1):
            work.begin(prior_draws)
            while not ended:
                try:
                    work.replace()
                    now, weights = time.monotonic(), work.weights()
                    ended = work.stuck or weights.remaining < self.precision
                    ended = ended or (self.max_evaluations is not None and work.evaluations >= self.max_evaluations)
                    if callback is not None and now - called > _POLL_SECONDS:
                        called, dead = now, sum(len(d.x) for d in work.dead)
                        stop = callback(NestedSnapshot(dead, weights.log_evidence, weights.remaining, now - began))
                        ended = bool(stop) or ended
                except KeyboardInterrupt:
                    interrupted = ended = True
        return work.result(np.random.default_rng([*plan.seed, 1]), self.n_chains, interrupted)


# ---- live points


class _LivePoints:
    """The live points, the dead, and the program that replaces them."""

    def __init__(self, target: TracedDensity, plan: Plan, n_slices: int):
        self.target, self.n_slices, self.parallel = target, n_slices, plan.parallel
        self.key, self.rng = chain_key([*plan.seed, 0]), np.random.default_rng([*plan.seed, 0])
        self.program = walks_program(target.log_prior, target.log_likelihood, 1 if plan.parallel > 1 else 0)
        self.dead: list[Points] = []
        self.block, self.evaluations, self.compiled, self.stuck = 0, 0, False, False

    def begin(self, draws: np.ndarray) -> None:
        """Evaluate the first live points."""
        values = values_program(self.target.log_prior, self.target.log_likelihood)
        self.data = jax.tree.map(jnp.asarray, self.target.data)
        log_prior, log_likelihood = values(jnp.asarray(draws), self.data)
        self.live = Points(np.array(draws, float), np.array(log_prior), np.array(log_likelihood))
        self.evaluations += len(draws)
        if not np.all(np.isfinite(self.live.log_prior)):
            raise NumericalError("the log prior is not finite at some of the draws from it")
        if not np.any(np.isfinite(self.live.log_likelihood)):
            raise NumericalError("the log likelihood is not finite at any draw from the prior: try other priors")

    def replace(self) -> None:
        """Replace the lowest tenth of the live points by walks from the others.

        All points with the likelihood of the last one to die go with it: on a plateau they have no order.
        """
        level = np.sort(self.live.log_likelihood)[max(1, int(_SHARE * len(self.live.x))) - 1]
        dying = self.live.log_likelihood <= level
        if np.all(dying):  # nothing lies above: the live points are on one plateau
            self.stuck = True
            return
        survivors = np.flatnonzero(~dying)
        starts = self.rng.choice(survivors, int(dying.sum()))
        factor = _factor(self.live.x)
        size = min(WALKS, -(-len(starts) // max(1, self.parallel)))

        def walk(first: int) -> tuple[Points, int]:
            return self._walk(first, starts[first : first + size], level, factor)

        calls = list(range(0, len(starts), size))
        # The first call ever compiles: two threads at the same time would both do it.
        head, tail = (calls, []) if self.parallel == 1 else ([], calls) if self.compiled else (calls[:1], calls[1:])
        walks = [walk(first) for first in head]
        if tail:
            with ThreadPoolExecutor(self.parallel) as pool:
                walks += list(pool.map(walk, tail))
        new = Points(*(np.concatenate(parts) for parts in zip(*(w[0] for w in walks), strict=True)))
        dead = [*self.dead, _sorted(Points(*(a[dying] for a in self.live)))]
        live = Points(*(np.concatenate([old[~dying], fresh]) for old, fresh in zip(self.live, new, strict=True)))
        self.dead, self.live = dead, live  # at once, for Ctrl-C may come between any two calls
        self.evaluations += sum(w[1] for w in walks)
        self.block, self.compiled = self.block + 1, True

    def _walk(self, first: int, starts: np.ndarray, level: float, factor: np.ndarray) -> tuple[Points, int]:
        """New points from walks that start at some of the live ones."""
        padded = np.resize(starts, WALKS)
        particles = Points(*(a[padded] for a in self.live))
        numbers = arrays((self.block, first, len(starts), self.n_slices, float(level)))
        with float64_scope():
            points, evaluations = self.program(self.key, numbers, particles, factor, self.data)
            return Points(*(np.asarray(a)[: len(starts)] for a in points)), int(evaluations)

    def weights(self) -> Weights:
        """Weights of all points, dead and live, in the order of their deaths."""
        return weigh([d.log_likelihood for d in self.dead], np.sort(self.live.log_likelihood))

    def result(self, rng: np.random.Generator, n_chains: int, interrupted: bool) -> NestedRun:
        """All points with their weights, and draws of equal weight."""
        live = _sorted(self.live)
        points = Points(*(np.concatenate(columns) for columns in zip(*self.dead, live, strict=True)))
        w = self.weights()
        e = errors([d.log_likelihood for d in self.dead], live.log_likelihood, points.x, rng)
        chosen = equal_weights(w.log_weights, e.ess, n_chains, rng)
        shape = chosen.shape
        chains = Chains(
            points.x[chosen],
            (points.log_prior + points.log_likelihood)[chosen],
            np.full(shape, np.nan),
            np.ones(shape),
            np.full(shape, max(1, self.evaluations // max(1, chosen.size))),
            np.zeros(shape, int),
            np.zeros(shape, bool),
            np.zeros(shape),
        )
        return NestedRun(
            points,
            w.log_weights,
            e.log_evidence,
            e.log_evidence_error,
            w.information,
            e.ess,
            w.remaining,
            chains,
            self.evaluations,
            interrupted,
            self.stuck,
        )


def _sorted(points: Points) -> Points:
    """Points in the order of rising likelihood."""
    order = np.argsort(points.log_likelihood, kind="stable")
    return Points(*(a[order] for a in points))


def _factor(x: Float[np.ndarray, "K P"]) -> Float[np.ndarray, "P P"]:
    """Factor of the live points' covariance; any factor gives right draws, this one gives long slices."""
    covariance = np.atleast_2d(np.cov(x.T))
    return np.linalg.cholesky(covariance + np.diag(1e-10 * np.diag(covariance) + 1e-300))


# ---- compiled programs


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
    need("blackjax", "samplers", "nested sampling")
    from blackjax.mcmc.slice import build_kernel
    from blackjax.ns.base import StateWithLogLikelihood, init_state_strategy
    from blackjax.ns.nss import covariance_proposal, slice_constrained_step

    kernel = build_kernel(stepping_out, MAX_EXPANSIONS, MAX_CUTS)

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


# ---- weights


def weigh(dead: Sequence[Float[np.ndarray, " _"]], live: Float[np.ndarray, " K"]) -> Weights:
    """Weights from rising log likelihoods: blocks of deaths, each with K points live before it, and then the live ones.

    The volumes are those where log t is at its mean of -1/n.
    """
    log_likelihood = np.concatenate([*dead, live])
    log_weights, log_evidence = _weights(log_likelihood, -1.0 / _n_live(dead, live))
    p = np.exp(log_weights)
    information = float(np.sum(p[p > 0] * log_likelihood[p > 0]) - log_evidence)
    return Weights(log_weights, log_evidence, information, float(np.sum(p[-len(live) :])))


def errors(
    dead: Sequence[Float[np.ndarray, " _"]],
    live: Float[np.ndarray, " K"],
    x: Float[np.ndarray, "S P"],
    rng: np.random.Generator,
) -> Errors:
    """Errors from simulated volumes (Skilling 2006), and the number of independent draws that the points x are worth.

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
    # If one point has nearly all the weight, as in a run that was cut off, the others do not show the variance.
    worth = max(1.0, min(float(np.min(ess)), 1.0 / float(np.sum(w**2))))
    return Errors(float(np.mean(totals)), float(np.std(totals, ddof=1)), worth)


def _n_live(dead: Sequence[np.ndarray], live: np.ndarray) -> np.ndarray:
    """Points live at each death: K, K - 1, ... within a block, in which no point is replaced (Fowlie et al. 2021)."""
    return np.concatenate([len(live) - np.arange(len(block)) for block in (*dead, live)])


def _weights(log_likelihood: Float[np.ndarray, " S"], log_t: Float[np.ndarray, " S"]):
    """Log weights L_i (X_{i-1} - X_{i+1}) / 2, normalised, and the log of their sum."""
    X = np.exp(np.concatenate([[0.0], np.cumsum(log_t)]))
    width = 0.5 * (X[:-1] - np.append(X[2:], 0.0))
    with np.errstate(divide="ignore"):
        log_weights = log_likelihood + np.log(width)
    total = float(np.asarray(logsumexp(log_weights)))
    return log_weights - total, total


def equal_weights(
    log_weights: Float[np.ndarray, " S"], ess: float, n_chains: int, rng: np.random.Generator
) -> Int[np.ndarray, "C n"]:
    """Indices of points resampled to equal weight, as many as they are worth, in a random order as chains."""
    n = max(1, int(ess) // n_chains)
    ticks = (np.arange(n * n_chains) + rng.uniform()) / (n * n_chains)  # systematic: each comes n w times, rounded
    cumulated = np.cumsum(np.exp(log_weights))
    chosen = np.searchsorted(cumulated / cumulated[-1], ticks)
    return rng.permutation(chosen).reshape(n_chains, n)
