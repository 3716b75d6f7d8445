"""Nested sampling (Skilling 2006) with slices (Yallup, Kroupa & Handley 2026): the evidence, and weighted draws.

Live points drawn from the prior are replaced, lowest likelihood first, by new draws from the prior with a higher
likelihood. When n are live, the prior volume X above the lowest shrinks by a factor t with density n tⁿ⁻¹, so

    Z = ∫ L dX ≈ Σ L_i (X_{i-1} - X_{i+1}) / 2,    log X_i = Σ_{j ≤ i} log t_j.

A replacement starts at a live point and walks along slices in random directions, shaped by the live points, with
BlackJAX's slice kernel and constraint. BlackJAX's own outer loop (`nss`) moves its walkers in lockstep, so that each
waits for the slowest at every slice; here they walk one after the other, and side by side in threads.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from integrand.errors import InputError, NumericalError
from integrand.infer.chains import Chains
from integrand.infer.evidence import Weighed, equal_weights, errors, weigh
from integrand.infer.slots import arrays, chain_key
from integrand.infer.threads import one_blas_thread
from integrand.infer.traced import Traced
from integrand.infer.walks import WALKS, Points, values_program, walks_program
from integrand.precision import float64_scope

# The share of the live points that is replaced at once.
_SHARE = 0.1
_WATCH_SECONDS = 0.25


class NestedWatch(NamedTuple):
    """What a watcher sees: points that died, log evidence so far, and the live points' share of the evidence."""

    dead: int
    log_evidence: float
    remaining: float
    seconds: float


class NestedRun(NamedTuple):
    """What a run gave. `points` count by `log_weights`; `chains` hold draws of equal weight resampled from them."""

    points: Points
    log_weights: Float[np.ndarray, " S"]  # normalised
    log_evidence: float
    log_evidence_error: float  # standard deviation over simulated volumes
    information: float  # KL divergence of the posterior from the prior, in nats
    ess: float  # independent draws that the weighted points are worth
    remaining: float  # share of the evidence that was still with the live points at the end
    chains: Chains
    evaluations: int
    interrupted: bool
    stuck: bool  # ended because all live points had one likelihood


def sample_nested(
    target: Traced,
    prior_draws: Float[np.ndarray, "K P"],
    *,
    seed: Sequence[int],
    precision: float = 1e-3,
    n_slices: int | None = None,
    n_chains: int = 4,
    max_evaluations: int | None = None,
    parallel: int = 2,
    watch: Callable[[NestedWatch], bool | None] | None = None,
) -> NestedRun:
    """Evidence and posterior of `target`, from live points that are draws from its prior.

    The error of the log evidence is about √(information / K).

    Parameters
    ----------
    prior_draws
        The first live points. They alone say how the prior is normalised: `log_prior` may lack a constant.
    precision
        End when the live points hold less than this share of the evidence.
    n_slices
        Slices walked to a new point: 3 P, at least 6, unless told. Fewer make the evidence's error too small.
    n_chains
        Chains into which the draws of equal weight are divided (nested draws have no chains of their own).
    max_evaluations
        End after so many evaluations of the likelihood, whatever the precision.
    parallel
        Walks that run at the same time; 1 also leaves all threads to the evaluation.
    watch
        Called a few times a second; ends the run by returning True.
    """
    n_live, dimension = prior_draws.shape
    if n_live < max(20, 2 * dimension):
        raise InputError(f"nested sampling needs at least {max(20, 2 * dimension)} live points, not {n_live}")
    n_slices = max(6, 3 * dimension) if n_slices is None else n_slices
    work = _Nested(target, seed, n_slices, parallel)
    began, looked, interrupted, ended = time.monotonic(), 0.0, False, False
    with float64_scope(), one_blas_thread(parallel > 1):
        work.begin(prior_draws)
        while not ended:
            try:
                work.replace()
                now, so_far = time.monotonic(), work.weighed()
                ended = work.stuck or so_far.remaining < precision
                ended = ended or (max_evaluations is not None and work.evaluations >= max_evaluations)
                if watch is not None and now - looked > _WATCH_SECONDS:
                    looked = now
                    dead = sum(len(d.x) for d in work.dead)
                    ended = bool(watch(NestedWatch(dead, so_far.log_evidence, so_far.remaining, now - began))) or ended
            except KeyboardInterrupt:
                interrupted = ended = True
    return work.result(np.random.default_rng([*seed, 1]), n_chains, interrupted)


class _Nested:
    """The live points, the dead, and the program that replaces them."""

    def __init__(self, target: Traced, seed: Sequence[int], n_slices: int, parallel: int):
        self.target, self.n_slices, self.parallel = target, n_slices, parallel
        self.key, self.rng = chain_key([*seed, 0]), np.random.default_rng([*seed, 0])
        self.program = walks_program(target.log_prior, target.log_likelihood, 1 if parallel > 1 else 0)
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
        """Let the lowest tenth of the live points die, and put walkers from the others in their places.

        All points on the level at which the last one dies go with it: on a plateau they have no order.
        """
        level = np.sort(self.live.log_likelihood)[max(1, int(_SHARE * len(self.live.x))) - 1]
        dying = self.live.log_likelihood <= level
        if np.all(dying):  # nothing lies above: what is left is one plateau
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

    def weighed(self) -> Weighed:
        """Weights of all points, dead and live, in the order of their deaths."""
        return weigh([d.log_likelihood for d in self.dead], np.sort(self.live.log_likelihood))

    def result(self, rng: np.random.Generator, n_chains: int, interrupted: bool) -> NestedRun:
        """Put the weights to the points."""
        live = _sorted(self.live)
        points = Points(*(np.concatenate(columns) for columns in zip(*self.dead, live, strict=True)))
        w = self.weighed()
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
