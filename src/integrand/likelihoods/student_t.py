"""Noise with heavy tails."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from integrand.errors import InputError
from integrand.likelihoods.base import Likelihood, Numbers, Value, register_likelihood
from integrand.likelihoods.quadrature import DIGITS, NODES, bandwidth, decay_range, log_normal, log_sum


@final
@register_likelihood
@dataclass(frozen=True)
class StudentT(Likelihood):
    """y = f + noise · t, t ~ Student-t with `df` degrees of freedom: outliers move the fit less.

    Given w ~ Gamma(df/2, df/2), y is N(f, noise²/w): what is Gaussian given w is integrated over w.
    For df ≤ 1, where y has no mean, f stands in for it; for df ≤ 2 the variance is infinite.
    """

    df: float = 4.0

    name = "student-t"
    has_noise = True
    standardises_y = True
    discrete = False

    def __post_init__(self):
        number = isinstance(self.df, (int, float)) and not isinstance(self.df, bool)
        if not number or not 0 < self.df < math.inf:
            raise InputError(f"df must be a positive number such as 4, not {self.df!r}")
        object.__setattr__(self, "df", float(self.df))

    @property
    def tail_power(self) -> float:
        """df."""
        return self.df

    @property
    def _variance_factor(self) -> float:
        return self.df / (self.df - 2.0) if self.df > 2 else math.inf

    def log_prob(self, y: Value, f: Value, noise: Value) -> Float[Array, "..."]:
        """Log Γ((df+1)/2) - log Γ(df/2) - ½ log(π df noise²) - (df+1)/2 log(1 + (y - f)²/(df noise²))."""
        ratio = jnp.square((y - f) / noise) / self.df
        return self._log_constant - jnp.log(noise) - 0.5 * (self.df + 1.0) * jnp.log1p(ratio)

    def expected_log_prob(self, y: Value, mean: Value, variance: Value, noise: Value) -> Float[Array, "..."]:
        """As `log_prob`, with E log(1 + x²), x ~ N(m, s²), for its last logarithm.

        log(1 + q) = ∫ (1 - e^(-q v)) e^(-v) dv/v, hence E log(1 + x²) = ∫ (1 - e^(-v m²/r)/√r) e^(-v) dlog v with
        r = 1 + 2 v s²: smooth in log v whatever the ratio of s to 1.
        """
        m2, s2 = jnp.broadcast_arrays(
            jnp.square((y - mean) / noise) / self.df, variance / (self.df * jnp.square(noise))
        )
        # Left of the first node the integrand is proportional to v: a geometric sum.
        low = jax.lax.stop_gradient(-10.0 - jnp.log1p(m2 + s2))[..., None]
        step = (3.6 - low) / (NODES - 1)
        v = jnp.exp(low + step * np.arange(float(NODES)))
        first = jnp.where(np.arange(NODES) == 0, -1.0 / jnp.expm1(-step), 1.0)
        r = 1.0 + 2.0 * v * s2[..., None]
        expected = -jnp.expm1(-v * m2[..., None] / r - 0.5 * jnp.log(r))
        log_term = jnp.sum(step * first * jnp.exp(-v) * expected, axis=-1)
        return self._log_constant - jnp.log(noise) - 0.5 * (self.df + 1.0) * log_term

    def conditional_mean(self, f: Value, noise: Value) -> Float[Array, "..."]:
        """f."""
        return jnp.asarray(f)

    def conditional_variance(self, f: Value, noise: Value) -> Float[Array, "..."]:
        """noise² df/(df - 2)."""
        return jnp.zeros_like(f) + jnp.square(noise) * self._variance_factor

    def cdf(self, y: Numbers, f: Numbers, noise: Numbers) -> Numbers:
        """Student's distribution function at (y - f)/noise."""
        return special.stdtr(self.df, (y - f) / noise)

    def sample(self, rng: np.random.Generator, f: Numbers, noise: Numbers) -> Numbers:
        """One draw of y for each f."""
        return f + noise * rng.standard_t(self.df, np.shape(f))

    def marginal_mean(self, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """The mean of f."""
        return mean

    def marginal_variance(self, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """variance + noise² df/(df - 2)."""
        return variance + np.square(noise) * self._variance_factor

    def marginal_log_prob(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """Log E_w N(y; mean, variance + noise²/w)."""
        variances, log_weights = self._scale_mixture(y - mean, variance, noise, 0.5, DIGITS)
        return log_sum(c + log_normal(y - mean, v) for v, c in zip(variances, log_weights, strict=True))

    def marginal_cdf(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """E_w Φ((y - mean)/√(variance + noise²/w))."""
        return self._marginal_cdf(y, mean, variance, noise, DIGITS)

    def continued_cdf(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """`marginal_cdf` to 1e-8, with half as many nodes."""
        return self._marginal_cdf(y, mean, variance, noise, 8.0)

    def _marginal_cdf(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers, digits: float) -> Numbers:
        variances, log_weights = self._scale_mixture(y - mean, variance, noise, 0.0, digits)
        rule = zip(variances, np.exp(log_weights), strict=True)
        return sum(c * special.ndtr((y - mean) / np.sqrt(v)) for v, c in rule)

    @property
    def _log_constant(self) -> float:
        half = 0.5 * self.df
        return math.lgamma(half + 0.5) - math.lgamma(half) - 0.5 * math.log(math.pi * self.df)

    def _scale_mixture(
        self, difference: Numbers, variance: Numbers, noise: Numbers, extra: float, digits: float
    ) -> tuple[Iterable[Numbers], np.ndarray]:
        """Variances variance + noise²/w and their log weights, for w ~ Gamma(df/2, df/2) equally spaced in log w.

        As w → 0 the function that is averaged is as w^extra: the nodes left out there are a geometric sum.
        """
        a = 0.5 * self.df
        left, right = map(float, decay_range(a, digits))
        left = min(left, math.log1p(a) + 2.5 * digits / (a + 0.5))
        # An observation far out is explained by a small w.
        farthest = float(np.max(np.abs(difference / noise), initial=0.0))
        left += 2.0 * math.log(math.hypot(1.0, farthest / math.sqrt(self.df)))
        step = 2.0 * math.pi / float(bandwidth(a, digits))
        t = np.arange(-left, right + step, step)
        log_weights = a * (t - np.exp(t)) + a * math.log(a) - math.lgamma(a) + math.log(step)
        log_weights[0] -= math.log(-math.expm1(-(a + extra) * step))
        square = np.square(noise)
        return (variance + square / w for w in np.exp(t)), log_weights
