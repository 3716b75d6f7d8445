"""Latent Gaussian models: φ and f drawn together by slices, after Murray & Adams (2010) with their surrogate data.

The model is φ ~ p(φ), f = mean + L ν with ν ~ N(0, I), y ~ p(y | f, φ), where mean and L depend on φ. A step of φ at
fixed f is short when f is known well, and at fixed ν it moves f away from the data. The surrogate data g ~ N(f, W⁻¹)
in the place of y give a middle way: f given g is Gaussian,

    ν | g, φ ~ N(B⁻¹ Lᵀ(h - W mean), B⁻¹),   B = I + LᵀWL = LB LBᵀ,   h = W g,

so ν = LB⁻ᵀ(c + η) with η ~ N(0, I) and c = LB⁻¹ Lᵀ(h - W mean). At fixed η and g a step of φ moves f too:

    log p(φ | η, g, y) = log p(φ) + log N(g; mean, LLᵀ + W⁻¹) + log p(y | f, φ) + constant     (their Algorithm 4)
    log N(g; mean, LLᵀ + W⁻¹) = ½ cᵀc - Σ log diag LB + hᵀmean - ½ meanᵀW mean + constant.

W is any vector that is not negative, best the curvature of -log p(y | f); W = 0 is their whitening by the prior. The
paper factors the covariance of f given g; LLB⁻ᵀ is another root of it that stays well conditioned when LLᵀ does not.

For f at fixed φ, elliptical slices (Murray, Adams & MacKay 2010), with N(f | g, φ) instead of the prior as the
Gaussian: the ellipse is as wide as f is uncertain, so that most of it is acceptable. BlackJAX's elliptical slices are
not used: they compute the likelihood's argument again at each angle, where one product with L serves a whole ellipse,
accept a NaN, and never end if nothing on the ellipse is acceptable.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float

from integrand.compilation import compiler_options, one_blas_thread
from integrand.errors import NumericalError
from integrand.infer.base import Callback, Matrix, Plan, Run, Sampler, Target, Vector
from integrand.infer.chain_runner import DrawRange, DrawRecord, chain_key, run_chains, run_draws
from integrand.infer.coordinates import Coordinates
from integrand.linalg import cholesky, log_diagonal_sum
from integrand.precision import float64_scope

# Cuts of an interval, which is nothing after a hundred: the limit only ends a slice on which nothing is acceptable.
MAX_CUTS = 100


class LatentGaussian(NamedTuple):
    """The model, as functions that JAX traces; the same objects for equal models, so that they are compiled once."""

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


@dataclass(frozen=True, eq=False)
class LatentSlice(Sampler):
    """Chains of (φ, ν) by slices of φ and ellipses of f; draws hold φ and then ν. There is nothing to adapt.

    Parameters
    ----------
    model
        The density. The target of `run`, a density of φ, is not evaluated.
    precision
        W of the surrogate data: roughly the curvature of -log p(y | f).
    first_latent
        ν where a chain starts that is given only φ.
    thin
        Slices of φ, each with two ellipses, per draw: by default 2 P.
    ellipses
        Ellipses of f per slice of φ: they cost N² where a point of the slice costs N³.
    width
        Of the first interval of φ along a line, in standard deviations. An interval that is too wide is soon cut.
    """

    model: LatentGaussian
    precision: Float[np.ndarray, " N"]
    first_latent: Callable[[Vector], Vector] | None = None
    thin: int | None = None
    ellipses: int = 2
    width: float = 12.0

    def run(self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback) -> Run:
        """Draw, in parallel chains; slices run along random directions in `coordinates`, which are those of φ alone.

        `n_steps` of a draw counts factorisations.
        """
        n, model = coordinates.dimension, self.model
        if starts.shape[1] == n and self.first_latent is not None:
            starts = np.array([np.concatenate([start, self.first_latent(start)]) for start in starts])
        thin = 2 * n if self.thin is None else self.thin
        keys = [chain_key([*plan.seed, c]) for c in range(len(starts))]
        fixed = (np.asarray(coordinates.factor, float), np.asarray(self.precision, float), model.data)
        functions = model._replace(data=None)  # programs are cached by the functions alone
        program = _program(functions, self.ellipses, self.width, 1 if plan.parallel > 1 else 0)

        def advance(chain: int, state: _State, first: int, count: int) -> tuple[_State, DrawRecord]:
            return program(keys[chain], state, DrawRange(first, count, plan.warmup, thin), *fixed)

        states = [_State(start[:n], start[n:]) for start in np.asarray(starts, float)]
        with float64_scope(), one_blas_thread(plan.parallel > 1):
            density = _density(functions)
            if not all(np.isfinite(float(density(*state, model.data))) for state in states):
                raise NumericalError(
                    "the log density is not finite where a chain should start: try other priors or another start"
                )
        return run_chains(
            advance,
            states,
            starts.shape[1],
            warmup=plan.warmup,
            draws=plan.draws,
            parallel=plan.parallel,
            callback=callback,
        )


@functools.lru_cache(maxsize=64)
def _density(functions: LatentGaussian):
    """log p(φ) + log p(y | f, φ) of (φ, ν), compiled."""

    def density(phi, nu, data):
        mean, L = functions.root(phi, data)
        return functions.log_prior(phi, data) + functions.log_likelihood(mean + L @ nu, phi, data)

    return jax.jit(density)


@functools.lru_cache(maxsize=64)
def _program(functions: LatentGaussian, ellipses: int, width: float, threads: int):
    """The compiled chain of a model without its data. JAX keeps one for each shape of the arguments."""

    def program(key, state, draws, factor, W, data):
        model = functions._replace(data=data)

        def step(key, state, in_warmup):
            return _transition(key, state, model, factor, W, ellipses, width)

        return run_draws(step, key, state, draws)

    return jax.jit(program, compiler_options=compiler_options(threads))


def _transition(
    key, state: _State, model: LatentGaussian, factor, W, ellipses: int, width: float
) -> tuple[_State, DrawRecord]:
    """Some ellipses of f, then one slice of φ."""
    log_prior, root, log_likelihood, data = model
    key_ellipses, key_surrogate, key_direction, key_slice = jax.random.split(key, 4)

    def factors(phi):
        mean, L = root(phi, data)
        return _Factors(mean, L, cholesky(jnp.eye(W.shape[0]) + L.T @ (W[:, None] * L))[0])

    current = factors(state.phi)

    def surrogate(key, nu):
        """h = W g with g ~ N(f, W⁻¹), written so that W may be zero."""
        return W * current.f(nu) + jnp.sqrt(W) * jax.random.normal(key, W.shape)

    def ellipse(i, nu):
        """f at fixed φ and g, on the ellipse through ν and another draw of it, around its mean."""
        key_g, key_other, key_slice = jax.random.split(jax.random.fold_in(key_ellipses, i), 3)
        centre = current.nu(current.centre(surrogate(key_g, nu), W))
        arm, other = nu - centre, current.nu(jax.random.normal(key_other, W.shape))
        f_centre, f_arm, f_other = current.f(centre), current.L @ arm, current.L @ other

        def along(t):
            f = f_centre + f_arm * jnp.cos(t) + f_other * jnp.sin(t)
            return log_likelihood(f, state.phi, data), centre + arm * jnp.cos(t) + other * jnp.sin(t)

        return shrinking_slice(key_slice, along, along(0.0), 2.0 * math.pi)[0]

    nu = jax.lax.fori_loop(0, ellipses, ellipse, state.nu)

    h = surrogate(key_surrogate, nu)
    eta = current.LB.T @ nu - current.centre(h, W)
    direction = jax.random.normal(key_direction, state.phi.shape)
    direction = factor @ (direction / jnp.linalg.norm(direction))

    def evaluate(phi, of_phi: _Factors):
        """The log density of φ given η and g; and φ, ν and log p(φ) + log p(y | f, φ)."""
        c = of_phi.centre(h, W)
        nu = of_phi.nu(c + eta)
        evidence = 0.5 * c @ c - log_diagonal_sum(of_phi.LB) + jnp.sum(h * of_phi.mean - 0.5 * W * of_phi.mean**2)
        density = log_prior(phi, data) + log_likelihood(of_phi.f(nu), phi, data)
        return evidence + density, (phi, nu, density)

    def along(t):
        phi = state.phi + t * direction
        return evaluate(phi, factors(phi))

    (phi, nu, density), tries = shrinking_slice(key_slice, along, evaluate(state.phi, current), width)
    return _State(phi, nu), DrawRecord(
        x=jnp.concatenate([phi, nu]),
        log_density=density - 0.5 * nu @ nu - 0.5 * math.log(2.0 * math.pi) * nu.shape[0],
        energy=jnp.asarray(jnp.nan),
        acceptance=jnp.asarray(1.0),
        n_steps=tries + 1,
        diverging=jnp.asarray(False),
        step_size=jnp.asarray(width),
    )


def shrinking_slice(key, along, start, width):
    """A point t in the slice of a density through t = 0 (Neal 2003): what `along(t)` gives, and the number of tries.

    `along(t)` gives the log density and anything else; `start` is along(0). The interval lies around 0 at random, is
    not widened (an ellipse, of width 2π, is all there is) and shrinks towards 0. A NaN is outside the slice.
    """
    key_level, key_place, key_points = jax.random.split(key, 3)
    level = start[0] + jnp.log1p(-jax.random.uniform(key_level))
    left = -width * jax.random.uniform(key_place)

    def attempt(carry):
        _, _, left, right, count = carry
        t = jax.random.uniform(jax.random.fold_in(key_points, count), minval=left, maxval=right)
        log_density, point = along(t)
        return log_density >= level, point, jnp.where(t < 0.0, t, left), jnp.where(t < 0.0, right, t), count + 1

    first = (jnp.asarray(False), start[1], left, left + width, jnp.asarray(0))
    inside, point, _, _, count = jax.lax.while_loop(lambda c: ~c[0] & (c[4] < MAX_CUTS), attempt, first)
    return jax.tree.map(lambda new, old: jnp.where(inside, new, old), point, start[1]), count
