"""A likelihood to copy: Laplace noise, whose tails are heavier than Gaussian and lighter than Student-t.

Densities for training are written in JAX, what predictions need in NumPy. Everything broadcasts.

    fit(X, y, likelihood=Laplace())

The decorator is all that it takes to save and load it, and to name it: `likelihood="laplace"`, or on the command line
`--import mylikelihoods --likelihood laplace`. Import this module before you load a file that uses it. The test of this
file compares every function with quadrature.
"""

from dataclasses import dataclass
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from integrand import register_likelihood
from integrand.likelihoods import Likelihood


@final
@register_likelihood
@dataclass(frozen=True)
class Laplace(Likelihood):
    """y = f + noise · e with p(e) = exp(-|e|)/2."""

    name = "laplace"
    has_noise = True  # the model's `noise` is its scale
    standardises_y = True  # y may be shifted and scaled
    discrete = False

    # For training, in JAX.

    def log_prob(self, y, f, noise):
        """Log p(y | f) = -log(2 noise) - |y - f|/noise."""
        return -jnp.log(2.0 * noise) - jnp.abs(y - f) / noise

    def expected_log_prob(self, y, mean, variance, noise):
        """∫ log p(y | f) N(f; mean, variance) df, by the mean of a folded normal."""
        d = y - mean
        folded = jnp.sqrt(2.0 * variance / jnp.pi) * jnp.exp(-0.5 * d**2 / variance)
        folded += d * jax.scipy.special.erf(d / jnp.sqrt(2.0 * variance))
        return -jnp.log(2.0 * noise) - folded / noise

    def conditional_mean(self, f, noise):
        """E[y | f]."""
        return f + 0.0 * noise

    def conditional_variance(self, f, noise):
        """Var[y | f]."""
        return 2.0 * noise**2 + 0.0 * f

    # For predictions, in NumPy.

    def cdf(self, y, f, noise):
        """P(Y ≤ y | f)."""
        e = (y - f) / noise
        return np.where(e < 0, 0.5 * np.exp(np.minimum(e, 0.0)), 1.0 - 0.5 * np.exp(-np.maximum(e, 0.0)))

    def sample(self, rng, f, noise):
        """One draw of y for each f."""
        return f + noise * rng.laplace(size=np.shape(f))

    def marginal_mean(self, mean, variance, noise):
        """E[y] for f ~ N(mean, variance)."""
        return mean + 0.0 * (variance + noise)

    def marginal_variance(self, mean, variance, noise):
        """Var[y] for f ~ N(mean, variance)."""
        return variance + 2.0 * noise**2 + 0.0 * mean

    def marginal_log_prob(self, y, mean, variance, noise):
        """Log ∫ p(y | f) N(f; mean, variance) df: the convolution of a Laplace and a normal density."""
        left, right = self._tails(y - mean, np.sqrt(variance), noise)
        return np.logaddexp(left, right) - np.log(2.0 * noise)

    def marginal_cdf(self, y, mean, variance, noise):
        """P(Y ≤ y) for f ~ N(mean, variance)."""
        d, sd = y - mean, np.sqrt(variance)
        left, right = self._tails(d, sd, noise)
        return special.ndtr(d / sd) - 0.5 * np.exp(left) + 0.5 * np.exp(right)

    @staticmethod
    def _tails(d, sd, noise):
        """Logs of exp(s²/2 ∓ d/noise) Φ(±d/sd - s) with s = sd/noise, which neither overflow nor cancel."""
        s = sd / noise
        return tuple(0.5 * s**2 - sign * d / noise + special.log_ndtr(sign * d / sd - s) for sign in (1.0, -1.0))
