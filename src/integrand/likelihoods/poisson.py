"""The Poisson likelihood of counts, with an exponential link."""

from dataclasses import dataclass
from typing import final

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float
from scipy import special

from integrand.likelihoods.base import Likelihood, Numbers, Value, refuse, register_likelihood
from integrand.likelihoods.quadrature import (
    LOG_TWO_PI,
    bandwidth,
    decay_range,
    exp_remainder,
    node_count,
    over_f,
    over_log_gamma,
    tame_exp,
)


@final
@register_likelihood
@dataclass(frozen=True)
class Poisson(Likelihood):
    """y is a count with mean λ = exp(f)."""

    name = "poisson"
    has_noise = False
    standardises_y = False
    discrete = True

    def log_prob(self, y: Value, f: Value, noise: Value) -> Float[Array, "..."]:
        """y f - exp(f) - log y!."""
        return jnp.multiply(y, f) - tame_exp(f) - gammaln(y + 1.0)

    def expected_log_prob(self, y: Value, mean: Value, variance: Value, noise: Value) -> Float[Array, "..."]:
        """y mean - exp(mean + variance/2) - log y!."""
        return jnp.multiply(y, mean) - tame_exp(mean + 0.5 * variance) - gammaln(y + 1.0)

    def conditional_mean(self, f: Value, noise: Value) -> Float[Array, "..."]:
        """exp(f)."""
        return tame_exp(f)

    def conditional_variance(self, f: Value, noise: Value) -> Float[Array, "..."]:
        """exp(f)."""
        return tame_exp(f)

    def guess(self, y: Value) -> Float[Array, "..."]:
        """log(y + ½)."""
        return jnp.log(jnp.asarray(y) + 0.5)

    def check_y(self, y: Numbers) -> None:
        """Refuse all but 0, 1, 2, ..."""
        with np.errstate(invalid="ignore"):
            bad = ~(np.isfinite(y) & (np.asarray(y) >= 0) & (np.floor(y) == y))
        refuse(y, bad, "a poisson likelihood wants counts 0, 1, 2, ..., so round it, or choose another likelihood")

    def cdf(self, y: Numbers, f: Numbers, noise: Numbers) -> Numbers:
        """Σ_{k ≤ y} λ^k e^(-λ)/k!, an incomplete gamma function."""
        k = np.floor(y)
        with np.errstate(over="ignore"):
            return np.where(k < 0, 0.0, special.gammaincc(np.maximum(k, 0.0) + 1.0, np.exp(f)))

    def sample(self, rng: np.random.Generator, f: Numbers, noise: Numbers) -> Numbers:
        """One draw of y for each f."""
        # NumPy draws no larger ones; there the scatter is a part in 1e8.
        with np.errstate(over="ignore"):
            return np.where(np.asarray(f) < 40, rng.poisson(np.exp(np.minimum(f, 40.0))), np.rint(np.exp(f)))

    def marginal_mean(self, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """m = exp(mean + variance/2)."""
        with np.errstate(over="ignore"):
            return np.exp(mean + 0.5 * variance)

    def marginal_variance(self, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """m + m² (exp(variance) - 1)."""
        with np.errstate(over="ignore", invalid="ignore"):
            m = np.exp(mean + 0.5 * variance)
            return m + np.where(np.asarray(variance) > 0, m * (m * np.expm1(variance)), 0.0)

    def marginal_log_prob(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """Log ∫ p(y | f) N(f; mean, s²) df = log p(y | f₀) N(f₀; mean, s²) ∫ e^(-λ₀ (e^d - 1 - d) - d²/2s²) dd.

        f₀ = log λ₀ is the mode, y - λ₀ = (f₀ - mean)/s², which Wright's ω function gives.
        """
        y, mean, variance = np.broadcast_arrays(y, mean, np.maximum(variance, 1e-30))
        log_variance = np.log(variance)
        exponent = log_variance + mean + y * variance
        omega = special.wrightomega(exponent)
        # ω + log ω is the exponent; an ω that underflows keeps its logarithm.
        log_rate = np.where(omega < 1, exponent - omega, np.log(np.maximum(omega, 1.0))) - log_variance
        rate, precision = np.maximum(np.exp(log_rate), 1e-300), 1.0 / variance
        widest = 8.7 / np.sqrt(precision)
        left, right = (np.minimum(side, widest) for side in decay_range(rate))
        count = node_count(left + right, bandwidth(rate + precision))
        step, total = (left + right) / (count - 1), 0.0
        for i in range(count):
            d = i * step - left
            total = total + np.exp(-rate * exp_remainder(d) - 0.5 * precision * np.square(d))
        at_mode = y * log_rate - rate - special.gammaln(y + 1.0)
        return at_mode - 0.5 * variance * np.square(y - rate) - 0.5 * (LOG_TWO_PI + log_variance) + np.log(total * step)

    def marginal_cdf(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """0 below 0, then the `continued_cdf` of the whole number below y."""
        k = np.floor(y)
        return np.where(k < 0, 0.0, self.continued_cdf(np.maximum(k, 0.0), mean, variance, noise))

    def continued_cdf(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """P(f < log G) with G ~ Gamma(y + 1): over f where f is narrower than log G, else over log G."""
        shape, mean, variance = np.broadcast_arrays(np.add(y, 1.0), mean, variance)
        narrow = variance * shape < 0.25
        out = np.empty(shape.shape)
        out[narrow] = over_f(shape[narrow], mean[narrow], np.sqrt(variance[narrow]))
        out[~narrow] = over_log_gamma(shape[~narrow], mean[~narrow], np.sqrt(variance[~narrow]))
        return out
