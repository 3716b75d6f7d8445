"""Latent Gaussian models: φ and f drawn together by slices, after Murray & Adams (2010) with their surrogate data.

The model is φ ~ p(φ), f = mean + L ν with ν ~ N(0, I), y ~ p(y | f, φ), where mean and L depend on φ. A step of φ at
fixed f is short when f is known well, and at fixed ν it tears f off the data. The surrogate data g ~ N(f, W⁻¹), which
stand in for y, give a middle way: f given g is Gaussian,

    ν | g, φ ~ N(B⁻¹ Lᵀ(h - W mean), B⁻¹),   B = I + LᵀWL = LB LBᵀ,   h = W g,

so ν = LB⁻ᵀ(c + η) with η ~ N(0, I) and c = LB⁻¹ Lᵀ(h - W mean), and at fixed η and g a step of φ takes f along:

    log p(φ | η, g, y) = log p(φ) + log N(g; mean, LLᵀ + W⁻¹) + log p(y | f, φ) + constant     (their Algorithm 4)
    log N(g; mean, LLᵀ + W⁻¹) = ½ cᵀc - Σ log diag LB + hᵀmean - ½ meanᵀW mean + constant.

W is any vector that is not negative, best the curvature of -log p(y | f); W = 0 is their whitening by the prior. The
paper factors the covariance of f given g; LLB⁻ᵀ is another root of it, that stays well conditioned when LLᵀ does not.

For f at fixed φ, elliptical slices (Murray, Adams & MacKay 2010), with N(f | g, φ) instead of the prior as the
Gaussian: the ellipse is as wide as f is uncertain, so that most of it is acceptable. BlackJAX has elliptical slices
too: they compute the likelihood's argument anew at each angle, where one product with L does for a whole ellipse,
accept a NaN, and have no end if nothing on the ellipse is acceptable.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float

from integrand.errors import NumericalError
from integrand.infer.chains import SampledRun, Watcher
from integrand.infer.metric import Whitening
from integrand.infer.side_by_side import run_side_by_side
from integrand.infer.slots import Slot, Span, chain_key, slots
from integrand.infer.threads import compiler_options, one_blas_thread
from integrand.linalg import cholesky, log_diagonal_sum
from integrand.precision import float64_scope

# Width of the first interval of φ along a line, in standard deviations; what is too wide is soon cut.
WIDTH = 12.0
MOST_CUTS = 100
# Ellipses for each slice of φ; they cost N² where a point of that slice costs N³.
ELLIPSES = 2


class LatentGaussian(NamedTuple):
    """The model, as functions that JAX traces; the same objects for equal models, so that programs are found again."""

    log_prior: Callable[[Any, Any], Any]  # (φ, data)
    root: Callable[[Any, Any], tuple[Any, Any]]  # (φ, data) -> mean (one number, or N) and L
    log_likelihood: Callable[[Any, Any, Any], Any]  # (f, φ, data)
    data: Any


class _State(NamedTuple):
    phi: Any
    nu: Any


class _Factors(NamedTuple):
    mean: Any
    L: Any
    LB: Any

    def f(self, nu):
        """mean + L ν."""
        return self.mean + self.L @ nu

    def centre(self, h, W):
        """c = LB⁻¹ Lᵀ(h - W mean)."""
        return solve_triangular(self.LB, self.L.T @ (h - W * self.mean), lower=True)

    def nu(self, white):
        """LB⁻ᵀ (c + η)."""
        return solve_triangular(self.LB, white, lower=True, trans=1)


def sample_latent(
    model: LatentGaussian,
    W: Float[np.ndarray, " N"],
    starts: Float[np.ndarray, "C PN"],
    whitening: Whitening,
    *,
    tune: int,
    draws: int,
    seed: Sequence[int],
    thin: int | None = None,
    parallel: int = 2,
    watch: Watcher | None = None,
) -> SampledRun:
    """Draw (φ, ν), one chain for each row of `starts`, which hold φ and then ν.

    Parameters
    ----------
    W
        Curvature of -log p(y | f), roughly: the precision of the surrogate data.
    whitening
        Of φ: its slices run along random directions in whitened coordinates.
    tune, draws
        Steps thrown away and draws kept, for each chain; there is nothing to tune.
    thin
        Slices of φ (and twice as many ellipses) for each kept draw: 2 P unless told.
    seed, parallel, watch
        As for `sample_nuts`. `n_steps` of a draw counts factorisations.
    """
    n = len(whitening.centre)
    thin = 2 * n if thin is None else thin
    keys = [chain_key([*seed, c]) for c in range(len(starts))]
    fixed = (np.asarray(whitening.factor, float), np.asarray(W, float), model.data)
    program = _program(model.log_prior, model.root, model.log_likelihood, 1 if parallel > 1 else 0)

    def advance(chain: int, state: _State, first: int, count: int) -> tuple[_State, Slot]:
        return program(keys[chain], state, Span(first, count, tune, thin), *fixed)

    states = [_State(start[:n], start[n:]) for start in np.asarray(starts, float)]
    with float64_scope(), one_blas_thread(parallel > 1):
        there = _density(model.log_prior, model.root, model.log_likelihood)
        if not all(np.isfinite(float(there(*state, model.data))) for state in states):
            raise NumericalError(
                "the log density is not finite where a chain should start: try other priors or another start"
            )
    return run_side_by_side(advance, states, starts.shape[1], tune=tune, draws=draws, parallel=parallel, watch=watch)


@functools.lru_cache(maxsize=64)
def _density(log_prior, root, log_likelihood):
    """log p(φ) + log p(y | f, φ) of (φ, ν), compiled."""

    def density(phi, nu, data):
        mean, L = root(phi, data)
        return log_prior(phi, data) + log_likelihood(mean + L @ nu, phi, data)

    return jax.jit(density)


@functools.lru_cache(maxsize=64)
def _program(log_prior, root, log_likelihood, threads: int):
    """The compiled chain. JAX keeps one for each shape of the arguments."""

    def program(key, state, span, factor, W, data):
        def step(key, state, tuning):
            return _transition(key, state, factor, W, log_prior, root, log_likelihood, data)

        return slots(step, key, state, span)

    return jax.jit(program, compiler_options=compiler_options(threads))


def _transition(key, state: _State, factor, W, log_prior, root, log_likelihood, data) -> tuple[_State, Slot]:
    """Some ellipses of f, then one slice of φ."""
    key_ellipses, key_surrogate, key_direction, key_slice = jax.random.split(key, 4)

    def factors(phi):
        mean, L = root(phi, data)
        return _Factors(mean, L, cholesky(jnp.eye(W.shape[0]) + L.T @ (W[:, None] * L))[0])

    def surrogate(key, nu):
        """h = W g with g ~ N(f, W⁻¹), written so that W may be zero."""
        return W * here.f(nu) + jnp.sqrt(W) * jax.random.normal(key, W.shape)

    def ellipse(i, nu):
        """f at fixed φ and g, on the ellipse through ν and another draw of it, around its mean."""
        key_g, key_other, key_slice = jax.random.split(jax.random.fold_in(key_ellipses, i), 3)
        centre = here.nu(here.centre(surrogate(key_g, nu), W))
        arm, other = nu - centre, here.nu(jax.random.normal(key_other, W.shape))
        f_centre, f_arm, f_other = here.f(centre), here.L @ arm, here.L @ other

        def at(t):
            f = f_centre + f_arm * jnp.cos(t) + f_other * jnp.sin(t)
            return log_likelihood(f, state.phi, data), centre + arm * jnp.cos(t) + other * jnp.sin(t)

        return shrinking_slice(key_slice, at, at(0.0), 2.0 * math.pi)[0]

    here = factors(state.phi)
    nu = jax.lax.fori_loop(0, ELLIPSES, ellipse, state.nu)

    h = surrogate(key_surrogate, nu)
    eta = here.LB.T @ nu - here.centre(h, W)
    towards = jax.random.normal(key_direction, state.phi.shape)
    towards = factor @ (towards / jnp.linalg.norm(towards))

    def described(phi, at: _Factors):
        """The log density of φ given η and g; and φ, ν and log p(φ) + log p(y | f, φ)."""
        c = at.centre(h, W)
        nu = at.nu(c + eta)
        evidence = 0.5 * c @ c - log_diagonal_sum(at.LB) + jnp.sum(h * at.mean - 0.5 * W * at.mean**2)
        density = log_prior(phi, data) + log_likelihood(at.f(nu), phi, data)
        return evidence + density, (phi, nu, density)

    def moved(t):
        phi = state.phi + t * towards
        return described(phi, factors(phi))

    (phi, nu, density), tries = shrinking_slice(key_slice, moved, described(state.phi, here), WIDTH)
    return _State(phi, nu), Slot(
        x=jnp.concatenate([phi, nu]),
        log_density=density - 0.5 * nu @ nu - 0.5 * math.log(2.0 * math.pi) * nu.shape[0],
        energy=jnp.asarray(jnp.nan),
        acceptance=jnp.asarray(1.0),
        n_steps=tries + 1,
        diverging=jnp.asarray(False),
        step_size=jnp.asarray(WIDTH),
    )


def shrinking_slice(key, at, start, width):
    """What `at` says of a point t in the slice of a density through t = 0 (Neal 2003), and how many t were tried.

    `at(t)` gives the log density and anything else; `start` is at(0). The interval lies around 0 at random, is not
    widened (on an ellipse, where it has width 2π, it need not be) and shrinks towards 0. A NaN is outside the slice.
    """
    key_level, key_place, key_points = jax.random.split(key, 3)
    level = start[0] + jnp.log1p(-jax.random.uniform(key_level))
    left = -width * jax.random.uniform(key_place)

    def try_one(carry):
        _, _, left, right, count = carry
        t = jax.random.uniform(jax.random.fold_in(key_points, count), minval=left, maxval=right)
        log_density, found = at(t)
        return log_density >= level, found, jnp.where(t < 0.0, t, left), jnp.where(t < 0.0, right, t), count + 1

    first = (jnp.asarray(False), start[1], left, left + width, jnp.asarray(0))
    inside, found, _, _, count = jax.lax.while_loop(lambda c: ~c[0] & (c[4] < MOST_CUTS), try_one, first)
    return jax.tree.map(lambda new, old: jnp.where(inside, new, old), found, start[1]), count
