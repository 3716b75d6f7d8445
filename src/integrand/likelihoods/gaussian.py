"""The Gaussian likelihood: y is f plus normal noise, the only one that the collapsed bound takes."""

from dataclasses import dataclass
from typing import final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from integrand.likelihoods.base import Likelihood, Numbers, Value, register_likelihood
from integrand.likelihoods.quadrature import LOG_TWO_PI, log_normal


@final
@register_likelihood
@dataclass(frozen=True)
class Gaussian(Likelihood):
    """y ~ N(f, noise²)."""

    name = "gaussian"
    has_noise = True
    standardises_y = True
    discrete = False

    def log_prob(self, y: Value, f: Value, noise: Value) -> Float[Array, "..."]:
        """-½ (y - f)²/noise² - log noise - ½ log 2π."""
        return -0.5 * jnp.square((y - f) / noise) - jnp.log(noise) - 0.5 * LOG_TWO_PI

    def expected_log_prob(self, y: Value, mean: Value, variance: Value, noise: Value) -> Float[Array, "..."]:
        """Log N(y; mean, noise²) - ½ variance/noise²."""
        return self.log_prob(y, mean, noise) - 0.5 * variance / jnp.square(noise)

    def conditional_mean(self, f: Value, noise: Value) -> Float[Array, "..."]:
        """f."""
        return jnp.asarray(f)

    def conditional_variance(self, f: Value, noise: Value) -> Float[Array, "..."]:
        """noise²."""
        return jnp.zeros_like(f) + jnp.square(noise)

    def cdf(self, y: Numbers, f: Numbers, noise: Numbers) -> Numbers:
        """Φ((y - f)/noise)."""
        return special.ndtr((y - f) / noise)

    def sample(self, rng: np.random.Generator, f: Numbers, noise: Numbers) -> Numbers:
        """One draw of y for each f."""
        return f + noise * rng.standard_normal(np.shape(f))

    def marginal_mean(self, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """The mean of f."""
        return mean

    def marginal_variance(self, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """variance + noise²."""
        return variance + np.square(noise)

    def marginal_log_prob(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """Log N(y; mean, variance + noise²)."""
        return log_normal(y - mean, variance + np.square(noise))

    def marginal_cdf(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """Φ((y - mean)/√(variance + noise²))."""
        return special.ndtr((y - mean) / np.sqrt(variance + np.square(noise)))
