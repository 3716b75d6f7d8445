"""Likelihoods p(y | f): how an observation scatters around the latent function, at one number f or at a Gaussian f.

The first half of each class is for training: JAX, elementwise, differentiable. The second is for prediction:
NumPy, elementwise, good to about 1e-10. Gauss–Hermite rules lose all digits where the Gaussian is wide against
the likelihood; so integrals are closed where they can be, or run over the scale of a Gaussian (Student-t and
logistic are scale mixtures), or over a grid that is as fine as the integrand itself is narrow.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, log_ndtr, ndtr
from jaxtyping import Array, Float
from scipy import special

from integrand.errors import InputError
from integrand.linalg import AnyArray

Value = Float[AnyArray, "..."] | float
Numbers = np.ndarray | float

_LOG_TWO_PI = math.log(2.0 * math.pi)
# Of the NumPy rules, unless fewer will do.
_DIGITS = 12.0
# Fewest nodes that JAX's rules need for 1e-7 or better (see the tests).
_NODES = 48
# A rate of exp(60) is no count any more; beyond, exp goes on along its tangent so that gradients stay numbers.
_LARGEST_LOG_RATE = 60.0


@dataclass(frozen=True)
class Likelihood(ABC):
    """How y depends on f, and on the model's `noise` where `has_noise`; the others ignore that argument.

    Likelihoods are immutable and hashable: static arguments of compiled functions. `f`, `mean` and `variance` are
    in the units of the latent function, everything broadcasts.
    """

    name: ClassVar[str]
    has_noise: ClassVar[bool]  # whether the model's `noise` is its scale
    standardises_y: ClassVar[bool]  # whether y may be shifted and scaled
    discrete: ClassVar[bool]  # whether y is a whole number
    largest: ClassVar[float] = math.inf  # no y is larger

    @property
    def tail_power(self) -> float:
        """P(|y| > x | f) falls like x to minus this power; infinite if faster."""
        return math.inf

    @abstractmethod
    def log_prob(self, y: Value, f: Value, noise: Value) -> Float[Array, "..."]:
        """Log p(y | f)."""

    @abstractmethod
    def expected_log_prob(self, y: Value, mean: Value, variance: Value, noise: Value) -> Float[Array, "..."]:
        """∫ log p(y | f) N(f; mean, variance) df."""

    @abstractmethod
    def conditional_mean(self, f: Value, noise: Value) -> Float[Array, "..."]:
        """E[y | f]."""

    @abstractmethod
    def conditional_variance(self, f: Value, noise: Value) -> Float[Array, "..."]:
        """Var[y | f]."""

    def check_y(self, y: Numbers) -> None:
        """Raise `InputError` naming the first value that cannot be an observation."""
        _refuse(y, ~np.isfinite(y), f"a {self.name} likelihood wants finite numbers, so remove or replace it")

    @abstractmethod
    def cdf(self, y: Numbers, f: Numbers, noise: Numbers) -> Numbers:
        """P(Y ≤ y | f)."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, f: Numbers, noise: Numbers) -> Numbers:
        """One draw of y for each f."""

    @abstractmethod
    def marginal_mean(self, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """E[y] for f ~ N(mean, variance)."""

    @abstractmethod
    def marginal_variance(self, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """Var[y] for f ~ N(mean, variance)."""

    @abstractmethod
    def marginal_log_prob(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """Log ∫ p(y | f) N(f; mean, variance) df."""

    @abstractmethod
    def marginal_cdf(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """P(Y ≤ y) for f ~ N(mean, variance)."""

    def continued_cdf(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """`marginal_cdf` at whole y ≥ 0 if y is discrete, and smooth in between: sums over many y are made of few."""
        return self.marginal_cdf(y, mean, variance, noise)


@final
@dataclass(frozen=True)
class Gaussian(Likelihood):
    """y ~ N(f, noise²)."""

    name = "gaussian"
    has_noise = True
    standardises_y = True
    discrete = False

    def log_prob(self, y: Value, f: Value, noise: Value) -> Float[Array, "..."]:
        """-½ (y - f)²/noise² - log noise - ½ log 2π."""
        return -0.5 * jnp.square((y - f) / noise) - jnp.log(noise) - 0.5 * _LOG_TWO_PI

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
        return _log_normal(y - mean, variance + np.square(noise))

    def marginal_cdf(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """Φ((y - mean)/√(variance + noise²))."""
        return special.ndtr((y - mean) / np.sqrt(variance + np.square(noise)))


@final
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
        step = (3.6 - low) / (_NODES - 1)
        v = jnp.exp(low + step * np.arange(float(_NODES)))
        first = jnp.where(np.arange(_NODES) == 0, -1.0 / jnp.expm1(-step), 1.0)
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
        variances, log_weights = self._scale_mixture(y - mean, variance, noise, 0.5, _DIGITS)
        return _log_sum(c + _log_normal(y - mean, v) for v, c in zip(variances, log_weights, strict=True))

    def marginal_cdf(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """E_w Φ((y - mean)/√(variance + noise²/w))."""
        return self._marginal_cdf(y, mean, variance, noise, _DIGITS)

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
        left, right = map(float, _span(a, digits))
        left = min(left, math.log1p(a) + 2.5 * digits / (a + 0.5))
        # An observation far out is explained by a small w.
        farthest = float(np.max(np.abs(difference / noise), initial=0.0))
        left += 2.0 * math.log(math.hypot(1.0, farthest / math.sqrt(self.df)))
        step = 2.0 * math.pi / float(_bandwidth(a, digits))
        t = np.arange(-left, right + step, step)
        log_weights = a * (t - np.exp(t)) + a * math.log(a) - math.lgamma(a) + math.log(step)
        log_weights[0] -= math.log(-math.expm1(-(a + extra) * step))
        square = np.square(noise)
        return (variance + square / w for w in np.exp(t)), log_weights


@final
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

    def log_prob(self, y: Value, f: Value, noise: Value) -> Float[Array, "..."]:
        """Log g((2y - 1) f)."""
        signed = (2.0 * y - 1.0) * f
        return log_ndtr(jnp.asarray(signed)) if self.link == "probit" else jax.nn.log_sigmoid(signed)

    def expected_log_prob(self, y: Value, mean: Value, variance: Value, noise: Value) -> Float[Array, "..."]:
        """E log g(x), x ~ N((2y - 1) mean, variance).

        Probit: nodes equally spaced over 7 standard deviations either side, good to 1e-8 for a standard deviation
        of 3 (where Gauss–Hermite with as many nodes has 1e-6). Logit: -log g(x) = E_ψ h(-x, ψ), where
        h(x, ψ) = x Φ(x/ψ) + ψ φ(x/ψ) turns into h(·, √(ψ² + variance)) under a Gaussian.
        """
        m, v = jnp.broadcast_arrays((2.0 * y - 1.0) * mean, variance)
        m, v = m[..., None], v[..., None]
        if self.link == "probit":
            # The slope of a square root at 0 is infinite.
            return jnp.sum(_GAUSSIAN_WEIGHTS * log_ndtr(m + jnp.sqrt(jnp.maximum(v, 1e-12)) * _GAUSSIAN_NODES), axis=-1)
        width = jnp.sqrt(v + _LOGISTIC_SCALES**2)
        z = -m / width
        density = jnp.exp(-0.5 * jnp.square(z)) / math.sqrt(2.0 * math.pi)
        return -jnp.sum(_LOGISTIC_WEIGHTS * width * (z * ndtr(z) + density), axis=-1)

    def conditional_mean(self, f: Value, noise: Value) -> Float[Array, "..."]:
        """g(f)."""
        return ndtr(jnp.asarray(f)) if self.link == "probit" else jax.nn.sigmoid(f)

    def conditional_variance(self, f: Value, noise: Value) -> Float[Array, "..."]:
        """g(f) g(-f)."""
        return self.conditional_mean(f, noise) * self.conditional_mean(-jnp.asarray(f), noise)

    def check_y(self, y: Numbers) -> None:
        """Refuse all but 0 and 1."""
        bad = ~np.isin(y, (0, 1))
        _refuse(y, bad, "a bernoulli likelihood wants 0 and 1, so write one class as 0 and the other as 1")

    def cdf(self, y: Numbers, f: Numbers, noise: Numbers) -> Numbers:
        """0 below 0, g(-f) from there on, 1 from 1 on."""
        return _two_steps(y, special.ndtr(-f) if self.link == "probit" else special.expit(-f))

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
        return _two_steps(y, np.exp(self._log_probability(-mean, variance)))

    def _log_probability(self, mean: Numbers, variance: Numbers) -> Numbers:
        if self.link == "probit":
            return special.log_ndtr(mean / np.sqrt(1.0 + variance))
        # g(f) = e^f g(-f): tilting the Gaussian by e^f turns the side where the weights are too small into the other.
        tilt = mean + 0.5 * variance
        m = np.where(tilt < 0, -mean - variance, mean)
        rule = zip(_LOGISTIC_SCALES, np.log(_LOGISTIC_WEIGHTS), strict=True)
        return np.minimum(tilt, 0.0) + _log_sum(c + special.log_ndtr(m / np.sqrt(x**2 + variance)) for x, c in rule)


@final
@dataclass(frozen=True)
class Poisson(Likelihood):
    """y is a count with mean λ = exp(f)."""

    name = "poisson"
    has_noise = False
    standardises_y = False
    discrete = True

    def log_prob(self, y: Value, f: Value, noise: Value) -> Float[Array, "..."]:
        """y f - exp(f) - log y!."""
        return jnp.multiply(y, f) - _tame_exp(f) - gammaln(y + 1.0)

    def expected_log_prob(self, y: Value, mean: Value, variance: Value, noise: Value) -> Float[Array, "..."]:
        """y mean - exp(mean + variance/2) - log y!."""
        return jnp.multiply(y, mean) - _tame_exp(mean + 0.5 * variance) - gammaln(y + 1.0)

    def conditional_mean(self, f: Value, noise: Value) -> Float[Array, "..."]:
        """exp(f)."""
        return _tame_exp(f)

    def conditional_variance(self, f: Value, noise: Value) -> Float[Array, "..."]:
        """exp(f)."""
        return _tame_exp(f)

    def check_y(self, y: Numbers) -> None:
        """Refuse all but 0, 1, 2, ..."""
        with np.errstate(invalid="ignore"):
            bad = ~(np.isfinite(y) & (np.asarray(y) >= 0) & (np.floor(y) == y))
        _refuse(y, bad, "a poisson likelihood wants counts 0, 1, 2, ..., so round it, or choose another likelihood")

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
        left, right = (np.minimum(side, widest) for side in _span(rate))
        count = _count(left + right, _bandwidth(rate + precision))
        step, total = (left + right) / (count - 1), 0.0
        for i in range(count):
            d = i * step - left
            total = total + np.exp(-rate * _exp_remainder(d) - 0.5 * precision * np.square(d))
        at_mode = y * log_rate - rate - special.gammaln(y + 1.0)
        return (
            at_mode - 0.5 * variance * np.square(y - rate) - 0.5 * (_LOG_TWO_PI + log_variance) + np.log(total * step)
        )

    def marginal_cdf(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """0 below 0, then the `continued_cdf` of the whole number below y."""
        k = np.floor(y)
        return np.where(k < 0, 0.0, self.continued_cdf(np.maximum(k, 0.0), mean, variance, noise))

    def continued_cdf(self, y: Numbers, mean: Numbers, variance: Numbers, noise: Numbers) -> Numbers:
        """P(f < log G) with G ~ Gamma(y + 1): over f where f is narrower than log G, else over log G."""
        shape, mean, variance = np.broadcast_arrays(np.add(y, 1.0), mean, variance)
        narrow = variance * shape < 0.25
        out = np.empty(shape.shape)
        out[narrow] = _over_f(shape[narrow], mean[narrow], np.sqrt(variance[narrow]))
        out[~narrow] = _over_log_gamma(shape[~narrow], mean[~narrow], np.sqrt(variance[~narrow]))
        return out


LIKELIHOODS: dict[str, type[Likelihood]] = {c.name: c for c in (Gaussian, StudentT, Bernoulli, Poisson)}


def _refuse(y: Numbers, bad: np.ndarray, wish: str) -> None:
    """Raise `InputError` for the first bad value, if there is one."""
    bad, y = np.ravel(bad), np.ravel(y)
    if bad.any():
        first = int(np.argmax(bad))
        raise InputError(f"y[{first}] is {y[first]}: {wish}")


def _two_steps(y: Numbers, below_one: Numbers) -> np.ndarray:
    return np.where(np.asarray(y) < 0, 0.0, np.where(np.asarray(y) < 1, below_one, 1.0))


def _log_normal(difference: Numbers, variance: Numbers) -> Numbers:
    return -0.5 * (np.square(difference) / variance + np.log(variance) + _LOG_TWO_PI)


def _log_sum(terms: Iterable[Numbers]) -> Numbers:
    """Log Σ exp(term), holding one term at a time."""
    largest, total = -1e300, 0.0
    for term in terms:
        new = np.maximum(largest, term)
        total = total * np.exp(largest - new) + np.exp(term - new)
        largest = new
    with np.errstate(divide="ignore"):
        return largest + np.log(total)


def _over_f(shape: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> Numbers:
    """P(f < log G), G ~ Gamma(shape), by a Gauss–Hermite rule for f ~ N(mean, sd²)."""
    nodes, weights = _HERMITE if sd.any() else ((0.0,), (1.0,))
    with np.errstate(over="ignore"):
        return sum(w * special.gammaincc(shape, np.exp(mean + sd * x)) for x, w in zip(nodes, weights, strict=True))


def _over_log_gamma(shape: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> Numbers:
    """P(f < log G), by the trapezoidal rule for d = log G - log shape, of density ∝ exp(-shape (e^d - 1 - d))."""
    left, right = _span(shape)
    count = _count(left + right, _bandwidth(shape) + 7.5 / sd)
    step, z = (left + right) / (count - 1), (np.log(shape) - mean) / sd
    total, mass = np.zeros(shape.shape), np.zeros(shape.shape)
    for i in range(count):
        d = i * step - left
        weight = np.exp(-shape * _exp_remainder(d))
        total, mass = total + weight * special.ndtr(z + d / sd), mass + weight
    return total / mass


def _tame_exp(x: Value) -> Float[Array, "..."]:
    """exp(x), and its tangent beyond `_LARGEST_LOG_RATE`."""
    x = jnp.asarray(x)
    below = jnp.minimum(x, _LARGEST_LOG_RATE)
    return jnp.exp(below) * (1.0 + x - below)


# Rules of integration. The trapezoidal rule with step 2π/b is as exact as the integrand has no frequencies beyond b.


def _exp_remainder(d: Numbers) -> np.ndarray:
    """e^d - 1 - d, without cancellation."""
    series = np.square(d) * (0.5 + d * (1 / 6 + d * (1 / 24 + d * (1 / 120 + d / 720))))
    return np.where(np.abs(d) < 1e-2, series, np.expm1(d) - d)


def _span(a: Numbers, digits: float = _DIGITS) -> tuple[Numbers, Numbers]:
    """How far left and right of 0 the function exp(-a (e^d - 1 - d)) counts, at least."""
    nats = 3.0 * digits
    # For d > 0 we have e^-d - 1 + d > d²/(2 + d), and e^d - 1 - d > d²/2.
    left = (nats + np.sqrt(nats**2 + 8.0 * nats * a)) / (2.0 * a)
    far = np.log1p(nats / a)
    return left, np.minimum(np.sqrt(2.0 * nats / a), np.log1p(nats / a + 1.5 * far + 1.0))


def _bandwidth(a: Numbers, digits: float = _DIGITS) -> Numbers:
    """Frequency b beyond which exp(-a (e^d - 1 - d)) has nothing, to so many digits: where |Γ(a + ib)| ≪ Γ(a)."""
    return np.hypot(5.0 / 3.0 * digits, 2.165 * np.sqrt(digits * a))


def _count(length: Numbers, bandwidth: Numbers) -> int:
    """Nodes for the longest of all."""
    return 2 + int(np.max(length * bandwidth, initial=0.0) / (2.0 * math.pi))


def _logistic_rule() -> tuple[np.ndarray, np.ndarray]:
    """Scales ψ and weights with logistic(f) = Σ weight Φ(f/ψ), from Kolmogorov's density and its theta twin."""
    step = 0.12
    scales = np.exp(np.arange(-1.0, 2.3, step))
    k, n = scales / 2, np.arange(1, 20)[:, None]
    exponents = ((2 * n - 1) * math.pi / k) ** 2 / 8
    small = math.sqrt(2 * math.pi) / k**2 * np.sum((2 * exponents - 1) * np.exp(-exponents), axis=0)
    large = 8 * k * np.sum((-1.0) ** (n + 1) * n**2 * np.exp(-2 * (n * k) ** 2), axis=0)
    weights = k * np.where(k > 1, large, small)
    return scales, weights / weights.sum()


def _hermite_rule(n: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return nodes, weights / weights.sum()


_HERMITE = _hermite_rule(16)
_LOGISTIC_SCALES, _LOGISTIC_WEIGHTS = _logistic_rule()
_GAUSSIAN_NODES = np.linspace(-7.0, 7.0, _NODES)
_GAUSSIAN_WEIGHTS = np.exp(-0.5 * _GAUSSIAN_NODES**2) / np.sum(np.exp(-0.5 * _GAUSSIAN_NODES**2))
