"""The Bernoulli likelihood of two classes, with a probit or a logit link."""

import math
from dataclasses import dataclass
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, ndtr
from jaxtyping import Array, Float
from scipy import special

from integrand.errors import InputError
from integrand.likelihoods.base import Likelihood, Numbers, Value, refuse, register_likelihood
from integrand.likelihoods.quadrature import LOGISTIC_SCALES, LOGISTIC_WEIGHTS, log_sum, probit_rule, two_steps


@final
@register_likelihood
@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """y is 1 with probability g(f), else 0; g = Φ for the link `probit`, the logistic function for `logit`.

    The logistic function is a scale mixture, E Φ(f/ψ) where ψ/2 has Kolmogorov's distribution (Andrews and Mallows,
    1974): two dozen values of ψ make it, and its averages over any Gaussian f, exact to 1e-12.
    """

    link: str = "probit"

    name = "bernoulli"
    has_noise = False
    standardises_y = False
    discrete = True
    largest = 1.0

    def __post_init__(self):
        if self.link not in ("probit", "logit"):
            raise InputError(f"link must be 'probit' or 'logit', not {self.link!r}")

    @property
    def latent_scale(self) -> float:
        """2 for the probit, the same probabilities for the logit.

        Where a function of the columns separates the classes, the data say nothing against ever larger scales. A prior
        with a heavy tail then gives a posterior with one (Ghosh, Li & Mitra 2018), which no step size suits.
        """
        return 2.0 if self.link == "probit" else 3.4

    def log_prob(self, y: Value, f: Value, noise: Value) -> Float[Array, "..."]:
        """Log g((2y - 1) f)."""
        signed = (2.0 * y - 1.0) * f
        return log_ndtr(jnp.asarray(signed)) if self.link == "probit" else jax.nn.log_sigmoid(signed)

    def expected_log_prob(self, y: Value, mean: Value, variance: Value, noise: Value) -> Float[Array, "..."]:
        """E log g(x), x ~ N((2y - 1) mean, variance).

        Probit: a sum over nodes that gather where log Φ bends, good to 1e-9 for a standard deviation of 10 and to 1e-8
        for 100 (where Gauss–Hermite with as many nodes has one digit). Logit: -log g(x) = E_ψ h(-x, ψ), where
        h(x, ψ) = x Φ(x/ψ) + ψ φ(x/ψ) turns into h(·, √(ψ² + variance)) under a Gaussian.
        """
        m, v = jnp.broadcast_arrays((2.0 * y - 1.0) * mean, variance)
        if self.link == "probit":
            sd = jnp.sqrt(jnp.maximum(v, 1e-12))  # the slope of a square root at 0 is infinite
            z, weights = probit_rule(m, sd)
            return jnp.sum(weights * log_ndtr(m[..., None] + sd[..., None] * z), axis=-1)
        m, v = m[..., None], v[..., None]
        width = jnp.sqrt(v + LOGISTIC_SCALES**2)
        z = -m / width
        density = jnp.exp(-0.5 * jnp.square(z)) / math.sqrt(2.0 * math.pi)
        return -jnp.sum(LOGISTIC_WEIGHTS * width * (z * ndtr(z) + density), axis=-1)

    def conditional_mean(self, f: Value, noise: Value) -> Float[Array, "..."]:
        """g(f)."""
        return ndtr(jnp.asarray(f)) if self.link == "probit" else jax.nn.sigmoid(f)

    def conditional_variance(self, f: Value, noise: Value) -> Float[Array, "..."]:
        """g(f) g(-f)."""
        return self.conditional_mean(f, noise) * self.conditional_mean(-jnp.asarray(f), noise)

    def check_y(self, y: Numbers) -> None:
        """Refuse all but 0 and 1."""
        bad = ~np.isin(y, (0, 1))
        refuse(y, bad, "a bernoulli likelihood wants 0 and 1, so write one class as 0 and the other as 1")

    def cdf(self, y: Numbers, f: Numbers, noise: Numbers) -> Numbers:
        """0 below 0, g(-f) from there on, 1 from 1 on."""
        return two_steps(y, special.ndtr(-f) if self.link == "probit" else special.expit(-f))

    def sample(self, rng: np.random.Generator, f: Numbers, noise: Numbers) -> Numbers:
        """One draw of y for each f."""
        return np.asarray(rng.uniform(size=np.shape(f)) >= self.cdf(0.0, f, noise), float)

    def marginal_mean(self, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """P(y = 1): Φ(mean/√(1 + variance)) for the probit, E_ψ Φ(mean/√(ψ² + variance)) for the logit."""
        return np.exp(self._log_probability(mean, variance))

    def marginal_variance(self, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """P(y = 1) P(y = 0)."""
        return np.exp(self._log_probability(mean, variance) + self._log_probability(-mean, variance))

    def marginal_log_prob(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """Log P(y = 1) at (2y - 1) mean."""
        return self._log_probability((2.0 * y - 1.0) * mean, variance)

    def marginal_cdf(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """0 below 0, P(y = 0) from there on, 1 from 1 on."""
        return two_steps(y, np.exp(self._log_probability(-mean, variance)))

    def _log_probability(self, mean: Numbers, variance: Numbers) -> Numbers:
        if self.link == "probit":
            return special.log_ndtr(mean / np.sqrt(1.0 + variance))
        # g(f) = e^f g(-f): tilting the Gaussian by e^f turns the side where the weights are too small into the other.
        tilt = mean + 0.5 * variance
        m = np.where(tilt < 0, -mean - variance, mean)
        rule = zip(LOGISTIC_SCALES, np.log(LOGISTIC_WEIGHTS), strict=True)
        return np.minimum(tilt, 0.0) + log_sum(c + special.log_ndtr(m / np.sqrt(x**2 + variance)) for x, c in rule)
