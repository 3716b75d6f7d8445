"""Priors: thin, hashable names over `numpyro.distributions`, with the transform that their support implies.

`Gamma(2, 1)` only remembers its name and numbers; the distribution is made when it is used, so that importing
this library does not import NumPyro. Arguments are those of NumPyro's class of the same name.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from integrand.errors import InputError


@dataclass(frozen=True, repr=False)
class Prior:
    """A distribution over one hyperparameter θ, and the map from the unconstrained φ to θ.

    Let x = T(φ) with T the bijection onto the distribution's support. Then θ = x, or θ = √x for a prior put on
    the square of a standard deviation (`on_variance`), and the density of φ is p(x) |dx/dφ| in both cases.
    """

    family: str
    arguments: tuple[float, ...]
    squared: bool = False

    def __post_init__(self):
        for value in self.arguments:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
                raise InputError(f"{self.family}: arguments must be finite numbers, not {value!r}")
        if self.family == "Uniform" and not self.arguments[0] < self.arguments[1]:  # NumPyro lets it pass
            raise InputError(f"{self!r} is not a distribution: its bounds must be in order and apart")
        try:
            self.distribution  # noqa: B018  (NumPyro checks the arguments)
        except ValueError as error:
            raise InputError(f"{self!r} is not a distribution: {error}") from None

    @classmethod
    def named(cls, family: str, arguments: tuple[float, ...], squared: bool) -> "Prior":
        """A prior from its description; only the families of this module are known."""
        if family == _POOLED:
            return PooledPrior(family, arguments, squared)
        if family not in _MEDIANS:
            raise InputError(f"there is no prior {family!r}: choose from {', '.join([*_MEDIANS, _POOLED])}")
        return cls(family, arguments, squared)

    @property
    def distribution(self) -> Any:
        """The `numpyro.distributions` object, in the precision of the caller's scope."""
        import numpyro.distributions as dist

        return getattr(dist, self.family)(*self.arguments, validate_args=True)

    @property
    def _bijection(self) -> Any:
        from numpyro.distributions import biject_to

        return biject_to(self.distribution.support)

    @property
    def positive(self) -> bool:
        """Whether every value in the support is positive."""
        from numpyro.distributions import constraints

        support = self.distribution.support
        if support in (constraints.positive, constraints.nonnegative, constraints.unit_interval):
            return True
        return bool(getattr(support, "lower_bound", -1.0) >= 0)

    def constrain(self, phi: Float[Array, "..."]) -> Float[Array, "..."]:
        """θ from φ."""
        x = self._bijection(phi)
        return jnp.sqrt(x) if self.squared else x

    def unconstrain(self, theta: Float[Array, "..."]) -> Float[Array, "..."]:
        """φ from θ."""
        return self._bijection.inv(theta**2 if self.squared else theta)

    def log_density(self, phi: Float[Array, "..."]) -> Float[Array, ""]:
        """Σ log p(T(φ)) + log |T'(φ)|: the log density of φ, summed over independent entries."""
        bijection = self._bijection
        x = bijection(phi)
        return jnp.sum(self.distribution.log_prob(x) + bijection.log_abs_det_jacobian(phi, x))

    def log_jacobian(self, phi: Float[Array, "..."]) -> Float[Array, ""]:
        """Σ log |T'(φ)|."""
        bijection = self._bijection
        return jnp.sum(bijection.log_abs_det_jacobian(phi, bijection(phi)))

    def sample(self, key: jax.Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Independent draws of θ."""
        x = self.distribution.sample(key, shape)
        return jnp.sqrt(x) if self.squared else x

    @property
    def median(self) -> float:
        """Median of θ."""
        x = float(_MEDIANS[self.family](*self.arguments))
        return math.sqrt(x) if self.squared else x

    def __repr__(self) -> str:
        text = f"{self.family}({', '.join(f'{value:g}' for value in self.arguments)})"
        return f"on_variance({text})" if self.squared else text


_POOLED = "PooledInverseGamma"


@dataclass(frozen=True, repr=False)
class PooledPrior(Prior):
    """Entries whose inverses share an unknown rate, which is integrated out in closed form.

        1/x_d | b ~ Gamma(a, b),   b ~ Gamma(c, d)

    For lengthscales 1/x is how much a column matters. The columns that matter teach b, and with it what is long for
    those that the data say little of; a column that does not matter is a finite place, 1/x = 0, not a long way off.
    The arguments are a, c and d.
    """

    def __post_init__(self):
        super().__post_init__()
        if self.squared:
            raise InputError("a pooled prior stands on lengthscales as they are: on_variance is not for it")

    @property
    def distribution(self) -> Any:
        """Of one entry by itself: x d ~ BetaPrime(c, a)."""
        import numpyro.distributions as dist

        a, c, d = self.arguments
        if min(a, c, d) <= 0.0:
            raise ValueError("its arguments must be positive")
        transforms = dist.transforms
        steps = [transforms.SigmoidTransform().inv, transforms.AffineTransform(-math.log(d), 1.0)]
        return dist.TransformedDistribution(dist.Beta(c, a, validate_args=True), [*steps, transforms.ExpTransform()])

    def log_density(self, phi: Float[Array, "..."]) -> Float[Array, ""]:
        """log p(φ) with φ = log x: constant - a Σ φ_d - (a n + c) log(d + Σ exp(-φ_d))."""
        (a, c, d), phi = self.arguments, phi.reshape(-1)
        total = a * phi.size + c
        constant = c * math.log(d) + math.lgamma(total) - phi.size * math.lgamma(a) - math.lgamma(c)
        # log(d + Σ 1/x) without overflow at small x.
        log_sum = jax.scipy.special.logsumexp(jnp.append(-phi, math.log(d)))
        return constant - a * jnp.sum(phi) - total * log_sum

    def sample(self, key: jax.Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Draws of vectors: the last axis is pooled, others are independent."""
        a, c, d = self.arguments
        keys = jax.random.split(key)
        rate = jax.random.gamma(keys[0], c, (*shape[:-1], 1)) / d
        return rate / jax.random.gamma(keys[1], a, shape)

    @property
    def median(self) -> float:
        """Median of each entry."""
        a, c, d = self.arguments
        below = special.betaincinv(c, a, 0.5)
        return float(below / (1.0 - below) / d)


# Medians in closed form: NumPyro has no quantile function for some of these without further packages.
_MEDIANS: dict[str, Callable[..., float]] = {
    "Beta": lambda a, b: special.betaincinv(a, b, 0.5),
    "Exponential": lambda rate: math.log(2.0) / rate,
    "Gamma": lambda concentration, rate: special.gammaincinv(concentration, 0.5) / rate,
    "HalfCauchy": lambda scale: scale,
    "HalfNormal": lambda scale: scale * special.ndtri(0.75),
    "InverseGamma": lambda concentration, rate: rate / special.gammainccinv(concentration, 0.5),
    "LogNormal": lambda location, scale: math.exp(location),
    "Normal": lambda location, scale: location,
    "StudentT": lambda df, location, scale: location,
    "Uniform": lambda low, high: 0.5 * (low + high),
    "Weibull": lambda scale, concentration: scale * math.log(2.0) ** (1.0 / concentration),
}


def _prior(family: str, *arguments: Any) -> Prior:
    return Prior(family, tuple(float(a) if _is_number(a) else a for a in arguments))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def Gamma(concentration: float, rate: float = 1.0) -> Prior:
    """Gamma with density ∝ x^(concentration - 1) exp(-rate x)."""
    return _prior("Gamma", concentration, rate)


def InverseGamma(concentration: float, rate: float = 1.0) -> Prior:
    """Inverse gamma with density ∝ x^(-concentration - 1) exp(-rate / x)."""
    return _prior("InverseGamma", concentration, rate)


def HalfCauchy(scale: float = 1.0) -> Prior:
    """Half-Cauchy on the positive numbers."""
    return _prior("HalfCauchy", scale)


def HalfNormal(scale: float = 1.0) -> Prior:
    """Half-normal on the positive numbers."""
    return _prior("HalfNormal", scale)


def LogNormal(location: float = 0.0, scale: float = 1.0) -> Prior:
    """Log-normal: log x ~ N(location, scale²)."""
    return _prior("LogNormal", location, scale)


def PooledInverseGamma(a: float = 2.0, c: float = 2.0, d: float = 1.0) -> Prior:
    """For the entries of a vector together: inverses are Gamma(a, b), with a rate b ~ Gamma(c, d) learned from all."""
    return PooledPrior(_POOLED, tuple(float(v) if _is_number(v) else v for v in (a, c, d)))


def Exponential(rate: float = 1.0) -> Prior:
    """Exponential with mean 1 / rate."""
    return _prior("Exponential", rate)


def Weibull(scale: float, concentration: float) -> Prior:
    """Weibull on the positive numbers."""
    return _prior("Weibull", scale, concentration)


def Uniform(low: float, high: float) -> Prior:
    """Uniform between two bounds."""
    return _prior("Uniform", low, high)


def Beta(a: float, b: float) -> Prior:
    """Beta on (0, 1), with densities ∝ x^(a - 1) (1 - x)^(b - 1)."""
    return _prior("Beta", a, b)


def Normal(location: float = 0.0, scale: float = 1.0) -> Prior:
    """Normal: for a constant mean, not for scales."""
    return _prior("Normal", location, scale)


def StudentT(df: float, location: float = 0.0, scale: float = 1.0) -> Prior:
    """Student's t: for a constant mean, not for scales."""
    return _prior("StudentT", df, location, scale)


def on_variance(prior: Prior) -> Prior:
    """Put `prior` on the square: `noise=on_variance(InverseGamma(2, 1))` is a prior on the noise variance."""
    if not isinstance(prior, Prior):
        raise InputError(f"on_variance takes a prior such as HalfCauchy(1), not {prior!r}")
    if not prior.positive:
        raise InputError(f"on_variance({prior!r}): a prior on a variance must be over positive numbers")
    return replace(prior, squared=True)
