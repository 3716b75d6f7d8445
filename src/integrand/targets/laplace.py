"""Target: log p(θ) + log q(y | θ) over φ by Laplace's approximation, where chains of latent functions start."""

import functools
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from integrand.bounds.laplace import LatentPrior, RowLikelihood, laplace, latent_prior
from integrand.compilation import LARGE, available_cores, jitted, timed, trace_counts
from integrand.data.dataset import Dataset
from integrand.infer.base import Counter, Target, Vector
from integrand.linalg import Jitter
from integrand.model import Model
from integrand.precision import float64_scope
from integrand.targets.evaluation import Evaluation, density, evaluation, packed, prior_terms

trace_counts.setdefault("laplace", 0)


def latent(phi: Any, X: Any, y: Any, model: Model, jitter: Jitter) -> tuple[RowLikelihood, LatentPrior]:
    """log p(y | f) of each row as a function of f, and the prior of f, at φ."""
    gp = model.gp(model.theta(phi))
    return lambda f: model.likelihood.log_prob(y, f, gp.noise), latent_prior(gp, X, jitter)


def _laplace(phi, X, y, model: Model, jitter: Jitter):
    trace_counts["laplace"] += 1

    def evidence(phi):
        rows, prior = latent(phi, X, y, model, jitter)
        approximation = laplace(rows, prior, model.likelihood.guess(y))
        mode = approximation.mode
        return approximation.log_evidence, (mode, approximation.W, prior.f(mode))

    (value, at_mode), d_phi = jax.value_and_grad(evidence, has_aux=True)(phi)
    return packed(value, d_phi, prior_terms(model, phi)), at_mode


class LaplaceTarget(Target):
    """log p(θ) + log q(y | θ) over φ; for a Gaussian likelihood the exact density, up to the jitter."""

    def __init__(self, model: Model, data: Dataset, jitter: Jitter = Jitter()):
        self.model, self.data, self.jitter, self.counter = model, data, jitter, Counter()
        self.n_theta = self.dimension = model.n_theta
        self.parallel = available_cores() if self.threads == 1 else 1

    @functools.cached_property
    def arrays(self):
        """X and y."""
        with float64_scope():
            return self.data.arrays()

    @property
    def threads(self) -> int:
        """1 when chains should run side by side, 0 (all) when the threads belong inside the factorisation."""
        return 1 if self.data.n_rows**3 < LARGE else 0

    def evaluate(self, phi: Float[np.ndarray, " P"]) -> Evaluation:
        """The density at one point with its gradient."""
        out, _ = self._evaluate(phi)
        return evaluation(out, self.counter, (0, self.data.n_columns))

    def value_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Log q(y | θ) + log prior + log Jacobian, and the gradient."""
        return density(self.evaluate(x))

    def mode(self, phi: Float[np.ndarray, " P"]) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """The most probable whitened function values ν at φ, and the likelihood's curvature W there."""
        nu, W, _ = self._evaluate(phi)[1]
        return np.asarray(nu), np.asarray(W)

    def f_mode(self, phi: Float[np.ndarray, " P"]) -> Float[np.ndarray, " N"]:
        """The most probable function values f at φ."""
        return np.asarray(self._evaluate(phi)[1][2])

    def _evaluate(self, phi: np.ndarray):
        with float64_scope():
            program = jitted(_laplace, ("model", "jitter"), self.threads)
            return timed(program, np.asarray(phi, float), *self.arrays, model=self.model, jitter=self.jitter)
