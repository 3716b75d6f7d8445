"""The density that `joint-hmc` draws from, log p(θ) + log N(v; 0, I) + Σ E log p(y | f), over φ and v (and Z).

It comes in two sets of coordinates. x = (φ, v) is that of Hensman et al. (2015). With x = (φ, ε) the density is the
same, but v = m(θ) + LB(θ)⁻ᵀ ε moves with θ (see `bounds/joint.py`), and the log Jacobian is added. It is easier to
sample. `JointTarget` evaluates the density; samplers get it at a fixed Z (`JointAtZ`) or as a sum over rows
(`JointFromRows`).
"""

import functools
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import solve_triangular

from integrand.bounds.joint import (
    Sites,
    carried_values,
    centred_log_density,
    expected_log_likelihood,
    gaussian_sites,
    mean_given_v,
    refined_sites,
    v_given_theta,
)
from integrand.bounds.laplace import curvature
from integrand.compilation import LARGE, available_cores, jitted, timed, trace_counts
from integrand.data.dataset import Dataset, RowBlock
from integrand.errors import NumericalError
from integrand.infer.base import Counter, Target, TracedDensity, TracedRows
from integrand.likelihoods import Gaussian
from integrand.linalg import Jitter
from integrand.model import Model
from integrand.precision import float64_scope

Vector = Float[np.ndarray, " _"]  # φ, v, ε or all together, each of its own length
Indices = Int[np.ndarray, " n"]
Inducing = Float[np.ndarray, "M D"]

# Newton steps to the mode of v; and the gain, as a share of the value, below which a step is the last.
_MAX_NEWTON_STEPS, _TOLERANCE = 50, 1e-9

trace_counts.setdefault("joint", 0)
trace_counts.setdefault("centred", 0)


def _log_normal(v: Any) -> Any:
    return -0.5 * jnp.sum(v**2) - 0.5 * v.size * math.log(2.0 * math.pi)


def _joint(phi, v, Z, data: Dataset, model: Model, jitter: Jitter):
    trace_counts["joint"] += 1

    def log_density(phi, v, Z):
        fit = expected_log_likelihood(model.likelihood, model.gp(model.theta(phi)), Z, v, data, jitter)
        return model.log_prior(phi) + _log_normal(v) + fit

    return jax.value_and_grad(log_density, (0, 1, 2))(phi, v, Z)


def _centred(phi, epsilon, Z, sites: Sites, data: Dataset, model: Model, jitter: Jitter):
    trace_counts["centred"] += 1

    def log_density(phi, epsilon, Z):
        gp = model.gp(model.theta(phi))
        return model.log_prior(phi) + centred_log_density(model.likelihood, gp, Z, epsilon, sites, data, jitter)

    return jax.value_and_grad(log_density, (0, 1, 2))(phi, epsilon, Z)


def _moments(phi, Z, sites: Sites, data: Dataset, model: Model, jitter: Jitter):
    return v_given_theta(model.gp(model.theta(phi)), Z, sites, data, jitter)


def _mean(phi, v, Z, data: Dataset, model: Model, jitter: Jitter):
    return mean_given_v(model.gp(model.theta(phi)), Z, v, data, jitter)


def _refined(phi, v, Z, data: Dataset, model: Model, jitter: Jitter):
    return refined_sites(model.likelihood, model.gp(model.theta(phi)), Z, v, data, jitter)


def _guessed(phi, data: Dataset, model: Model, jitter: Jitter):
    """Sites with the slope and curvature of log p(y | f) at the likelihood's guess of f; without one, at the mean."""
    gp, y = model.gp(model.theta(phi)), data.held.y
    guess = model.likelihood.guess(y)
    f = jnp.zeros_like(y) + (gp.mean if guess is None else guess)
    slope, W = curvature(lambda f: model.likelihood.log_prob(y, f, gp.noise), f)
    return Sites((W * f + slope) * gp.noise**2, W * gp.noise**2)


class Surrogate(NamedTuple):
    """Sites that ε is measured against, and their rows: those of the data, or some that represent all."""

    sites: Sites
    data: Dataset


class _Parts(NamedTuple):
    """The density's parts as functions that JAX traces; the same for equal models."""

    prior: Any
    likelihood: Any
    theta_prior: Any
    centred: Any
    carried_prior: Any
    carried_rows: Any


@functools.cache
def _parts(model: Model, jitter: Jitter) -> _Parts:
    n, D = model.n_theta, model.n_columns

    def gp(x: Any) -> Any:
        return model.gp(model.theta(x[:n]))

    def centred(x: Any, data: Any) -> Any:
        Z, sites, rows = data
        return centred_log_density(model.likelihood, gp(x), Z, x[n:], sites, rows, jitter)

    def carried(x: Any, data: Any) -> Any:
        """Z, v and log |∂v/∂ε| at x = (φ, ε) with Z among the data, or (φ, Z, ε) with an empty one there."""
        Z, surrogate = data
        M = Z.shape[0] or (x.size - n) // (1 + D)
        Z = Z if Z.shape[0] else x[n : x.size - M].reshape(M, D)
        return Z, *carried_values(gp(x), Z, x[x.size - M :], surrogate.sites, surrogate.data, jitter)

    def carried_prior(x: Any, data: Any) -> Any:
        _, v, log_jacobian = carried(x, data)
        drawn_Z = x[n : x.size - v.size]
        return model.log_prior(x[:n]) + _log_normal(drawn_Z) + _log_normal(v) + log_jacobian

    def carried_rows(x: Any, rows: Any, data: Any) -> Any:
        (X, y), (Z, v, _) = rows, carried(x, data)
        batch = Dataset(RowBlock(X[None], y[None], None), y.shape[0])
        return expected_log_likelihood(model.likelihood, gp(x), Z, v, batch, jitter)

    return _Parts(
        prior=lambda x, data: model.log_prior(x[:n]) + _log_normal(x[n:]),
        likelihood=lambda x, data: expected_log_likelihood(model.likelihood, gp(x), data[0], x[n:], data[1], jitter),
        theta_prior=lambda x, data: model.log_prior(x[:n]),
        centred=centred,
        carried_prior=carried_prior,
        carried_rows=carried_rows,
    )


@dataclass(frozen=True)
class JointTarget:
    """log p(φ) + log N(v; 0, I) + ℓ(θ, v, Z); with `sites`, the same over ε in the place of v."""

    model: Model
    data: Dataset
    jitter: Jitter = Jitter()
    counter: Counter = field(default_factory=Counter, compare=False)

    def threads(self, n_inducing: int) -> int:
        """1 when chains should run side by side, 0 (all) when the threads belong inside the products."""
        return 1 if 8.0 * self.data.n_rows * n_inducing**2 < LARGE else 0

    def parallel(self, n_inducing: int) -> int:
        """How many evaluations to run at the same time."""
        return available_cores() if self.threads(n_inducing) == 1 else 1

    def at(self, Z: Inducing, sites: Sites | None = None) -> "JointAtZ":
        """The density over (φ, v) at a fixed Z, or over (φ, ε) where sites are given, for samplers."""
        return JointAtZ(self, Z, sites)

    def from_rows(self, surrogate: "Surrogate", Z: Inducing, move_Z: bool) -> "JointFromRows":
        """The density over (φ, ε) at a fixed Z, or over (φ, Z, ε), for samplers that use a few rows at a time."""
        return JointFromRows(self, surrogate, Z, move_Z)

    def evaluate(self, x: Vector, Z: Inducing, sites: Sites | None = None) -> tuple[float, Vector]:
        """Log density and gradient at x = (φ, v), or (φ, ε) where sites are given. Callable from any thread."""
        value, (d_phi, dv, _) = self._everything(x, Z, sites)
        return value, np.concatenate([d_phi, dv])

    def evaluate_with_Z(self, x: Vector, sites: Sites | None = None) -> tuple[float, Vector]:
        """The same at x = (φ, Z, v) or (φ, Z, ε), without a prior of Z, with the gradient in all of it."""
        phi, Z, v = self.split(x)
        value, (d_phi, dv, dZ) = self._everything(np.concatenate([phi, v]), Z, sites)
        return value, np.concatenate([d_phi, dZ.ravel(), dv])

    def split(self, x: Vector) -> tuple[Vector, Inducing, Vector]:
        """φ, Z and v of x = (φ, Z, v)."""
        n, D = self.model.n_theta, self.model.n_columns
        M = (len(x) - n) // (1 + D)
        return x[:n], x[n : len(x) - M].reshape(M, D), x[len(x) - M :]

    def moments(
        self, phi: Vector, Z: Inducing, sites: Sites, data: Dataset | None = None
    ) -> tuple[Vector, Float[np.ndarray, "M M"]]:
        """m and LB of v | θ ~ N(m, (LB LBᵀ)⁻¹) under the sites; `data` are their rows, if not all."""
        m, LB = self._call(_moments, len(Z), phi, Z, sites, data=data)
        return np.asarray(m), np.asarray(LB)

    def inducing_values(
        self, phi: Vector, epsilon: Vector, Z: Inducing, sites: Sites, data: Dataset | None = None
    ) -> tuple[Vector, float]:
        """v at ε, and log |∂v/∂ε|."""
        m, LB = self.moments(phi, Z, sites, data)
        v = m + solve_triangular(LB, epsilon, lower=True, trans=1)
        return v, -float(np.sum(np.log(np.diagonal(LB))))

    def sites(self, phi: Vector, Z: Inducing) -> Sites:
        """Gaussians in the place of the rows: exact for Gaussian noise, else those of Laplace's method at φ.

        Newton's steps to the mode of v, each cut until it gains, from v = 0 or from where the likelihood guesses.
        """
        if isinstance(self.model.likelihood, Gaussian):
            with float64_scope():
                return _arrays(gaussian_sites(self.data))
        guessed = self.moments(phi, Z, _arrays(self._call(_guessed, len(Z), phi)))[0]
        (value, slope), v = max(
            ((self._value_and_slope(phi, v, Z), v) for v in (np.zeros(len(Z)), guessed)), key=lambda start: start[0][0]
        )
        if not np.isfinite(value):
            raise NumericalError(
                "the density is not finite where the fit should start: look for extreme values in the data, use other "
                "priors or a larger jitter"
            )
        for _ in range(_MAX_NEWTON_STEPS):
            sites = _arrays(self._call(_refined, len(Z), phi, v, Z))
            move, length, least = self.moments(phi, Z, sites)[0] - v, 1.0, _TOLERANCE * (1.0 + abs(value))
            expected_gain, before = float(slope @ move), value
            while length * expected_gain > least:
                value, slope = self._value_and_slope(phi, v + length * move, Z)
                if value > before:
                    break
                length *= 0.5
            else:  # no length is expected to gain anything: v is the mode
                return sites
            v = v + length * move
            if value - before < least:
                break
        return _arrays(self._call(_refined, len(Z), phi, v, Z))

    def surrogate(self, phi: Vector, Z: Inducing, rows: Indices) -> Surrogate:
        """The sites at φ of all rows; or of n `rows` that represent all, each N/n times, at the means from all rows."""
        sites, some = self.sites(phi, Z), self.some(rows)
        if some is self.data:
            return Surrogate(sites, some)
        m, _ = self.moments(phi, Z, sites)
        mean = np.asarray(self._call(_mean, len(Z), phi, m, Z, data=some))
        precision = np.ravel(sites.precision)[rows][None] * (self.data.n_rows / len(rows))
        return Surrogate(Sites(mean * precision, precision), some)

    def some(self, rows: Indices) -> Dataset:
        """These rows, in one block; all of the data if `rows` is empty."""
        if len(rows) == 0:
            return self.data
        with float64_scope():
            X, y = (np.asarray(a)[rows] for a in self.data.arrays())
            v = self.data.noise_variances()
            return Dataset.of(X, y, len(rows), None if v is None else np.asarray(v)[rows])

    def traced(self, Z: Inducing, sites: Sites | None = None) -> TracedDensity:
        """The density at fixed Z for samplers that run inside JAX.

        Over (φ, v) log prior and log likelihood are apart; over (φ, ε) the prior of v is with the likelihood.
        """
        parts = _parts(self.model, self.jitter)
        if sites is None:
            return TracedDensity(parts.prior, parts.likelihood, (Z, self.data))
        return TracedDensity(parts.theta_prior, parts.centred, (Z, sites, self.data))

    def _value_and_slope(self, phi: Vector, v: Vector, Z: Inducing) -> tuple[float, Vector]:
        """The density over (φ, v), and its slope in v."""
        value, gradient = self.evaluate(np.concatenate([phi, v]), Z)
        return value, gradient[self.model.n_theta :]

    def _everything(self, x: Vector, Z: Inducing, sites: Sites | None) -> tuple[float, list[np.ndarray]]:
        n = self.model.n_theta
        if sites is None:
            value, gradient = self._call(_joint, len(Z), x[:n], x[n:], Z)
        else:
            value, gradient = self._call(_centred, len(Z), x[:n], x[n:], Z, sites)
        value = float(value)
        self.counter.add(bool(np.isfinite(value)))
        return value, [np.asarray(g) for g in gradient]

    def _call(self, function: Any, n_inducing: int, *arguments: Any, data: Dataset | None = None) -> Any:
        with float64_scope():
            program = jitted(function, ("model", "jitter"), self.threads(n_inducing))
            numbers = jax.tree.map(lambda a: np.asarray(a, float), arguments)
            rows = self.data if data is None else data
            return timed(program, *numbers, rows, model=self.model, jitter=self.jitter)


def _arrays(sites: Sites) -> Sites:
    return Sites(*(np.asarray(s) for s in sites))


class JointAtZ(Target):
    """The joint density at a fixed Z, over (φ, v), or over (φ, ε) where sites are given."""

    def __init__(self, joint: JointTarget, Z: Inducing, sites: Sites | None = None):
        self.joint, self.Z, self.sites, self.counter = joint, Z, sites, joint.counter
        self.n_theta, self.dimension = joint.model.n_theta, joint.model.n_theta + len(Z)
        self.parallel = joint.parallel(len(Z))

    def value_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Log density and gradient."""
        return self.joint.evaluate(x, self.Z, self.sites)

    def traced(self) -> TracedDensity:
        """The same for samplers whose loop runs inside XLA."""
        return self.joint.traced(self.Z, self.sites)


class Unpacked(NamedTuple):
    """The parts of a draw x, with log |∂v/∂ε|."""

    phi: Vector
    Z: Inducing
    v: Vector
    log_jacobian: float


class JointFromRows(Target):
    """The joint density over (φ, ε) at a fixed Z, or over (φ, Z, ε) with Z ~ N(0, I); ε by the sites of some rows."""

    def __init__(self, joint: JointTarget, surrogate: Surrogate, Z: Inducing, move_Z: bool):
        self.joint, self.surrogate, self.Z, self.move_Z, self.counter = joint, surrogate, Z, move_Z, joint.counter
        self.n_theta = joint.model.n_theta
        self.dimension = self.n_theta + len(Z) + (Z.size if move_Z else 0)
        self.parallel = joint.parallel(len(Z))

    def value_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Log density from all rows. The gradient is NaN: samplers of this density estimate it from `rows`."""
        phi, Z, v, log_jacobian = self.unpacked(x)
        value = self.joint.evaluate(np.concatenate([phi, v]), Z)[0] + log_jacobian
        log_prior = -0.5 * float(np.sum(Z**2)) - 0.5 * Z.size * math.log(2.0 * math.pi) if self.move_Z else 0.0
        return value + log_prior, np.full_like(x, np.nan)

    def unpacked(self, x: Vector) -> Unpacked:
        """φ, Z, v and log |∂v/∂ε| of x."""
        phi, Z, epsilon = self.joint.split(x) if self.move_Z else (x[: self.n_theta], self.Z, x[self.n_theta :])
        return Unpacked(phi, Z, *self.joint.inducing_values(phi, epsilon, Z, *self.surrogate))

    def rows(self) -> TracedRows:
        """The density as a sum over rows."""
        joint = self.joint
        parts = _parts(joint.model, joint.jitter)
        with float64_scope():
            fixed = np.zeros((0, joint.model.n_columns)) if self.move_Z else self.Z
            return TracedRows(parts.carried_prior, parts.carried_rows, joint.data.arrays(), (fixed, self.surrogate))
