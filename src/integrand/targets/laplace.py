"""log p(θ) + log q(y | θ) over φ, with Laplace's approximation: where chains over latent functions start, how wide."""

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from integrand.bounds.laplace import LatentPrior, RowLikelihood, laplace, latent_prior
from integrand.data.dataset import Dataset
from integrand.linalg import Jitter
from integrand.model import Model
from integrand.precision import float64_scope
from integrand.targets.program import (
    LARGE,
    Counter,
    Evaluation,
    compiled,
    evaluation,
    packed,
    prior_terms,
    timed,
    traces,
)

traces.setdefault("laplace", 0)


def latent(phi: Any, X: Any, y: Any, model: Model, jitter: Jitter) -> tuple[RowLikelihood, LatentPrior]:
    """log p(y | f) of each row as a function of f, and the prior of f, at φ."""
    gp = model.gp(model.theta(phi))
    return lambda f: model.likelihood.log_prob(y, f, gp.noise), latent_prior(gp, X, jitter)


def _laplace(phi, X, y, model: Model, jitter: Jitter):
    traces["laplace"] += 1

    def evidence(phi):
        rows, prior = latent(phi, X, y, model, jitter)
        found = laplace(rows, prior, model.likelihood.guess(y))
        return found.log_evidence, (found.mode, found.W, prior.f(found.mode))

    (value, there), d_phi = jax.value_and_grad(evidence, has_aux=True)(phi)
    return packed(value, d_phi, prior_terms(model, phi)), there


@dataclass(frozen=True)
class LaplaceTarget:
    """log p(θ) + log q(y | θ) over φ; for a Gaussian likelihood the exact density, up to the jitter."""

    model: Model
    data: Dataset
    jitter: Jitter = Jitter()
    counter: Counter = field(default_factory=Counter, compare=False)

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
        out, _ = self._at(phi)
        return evaluation(out, self.counter, (0, self.data.n_columns))

    def mode(self, phi: Float[np.ndarray, " P"]) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """The most probable whitened function values ν at φ, and the likelihood's curvature W there."""
        nu, W, _ = self._at(phi)[1]
        return np.asarray(nu), np.asarray(W)

    def f_mode(self, phi: Float[np.ndarray, " P"]) -> Float[np.ndarray, " N"]:
        """The most probable function values f at φ."""
        return np.asarray(self._at(phi)[1][2])

    def _at(self, phi: np.ndarray):
        with float64_scope():
            program = compiled(_laplace, ("model", "jitter"), self.threads)
            return timed(program, np.asarray(phi, float), *self.arrays, model=self.model, jitter=self.jitter)
