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


_POOLED = "PooledLogNormal"


@dataclass(frozen=True, repr=False)
class PooledPrior(Prior):
    """Entries that share a location μ and a spread τ, both unknown and integrated out in closed form.

        log x_d | μ, τ ~ N(μ, τ²),   μ | τ ~ N(location, (width τ / spread)²)
        τ² ~ InverseGamma(df / 2, df spread² / 2)

    Together log x is multivariate t with df degrees of freedom, centre `location` and scale matrix
    spread² I + width² 1 1ᵀ. The entries that the data speak of tell where those belong that it says nothing of.
    """

    def __post_init__(self):
        super().__post_init__()
        if self.squared:
            raise InputError("a pooled prior stands on lengthscales as they are: on_variance is not for it")

    @property
    def distribution(self) -> Any:
        """Of one entry by itself: the exponential of a Student t."""
        import numpyro.distributions as dist

        location, width, spread, df = self.arguments
        for name, value in (("width", width), ("spread", spread), ("df", df)):
            if value <= 0.0:
                raise ValueError(f"{name} must be positive")
        one = dist.StudentT(df, location, math.hypot(width, spread), validate_args=True)
        return dist.TransformedDistribution(one, dist.transforms.ExpTransform())

    def log_density(self, phi: Float[Array, "..."]) -> Float[Array, ""]:
        """log of the multivariate t density of φ = log x."""
        location, width, spread, df = self.arguments
        r, kappa = (phi - location).reshape(-1), (width / spread) ** 2
        n, pooled = r.size, 1.0 + kappa * r.size
        square = (jnp.sum(r**2) - kappa / pooled * jnp.sum(r) ** 2) / spread**2
        log_scale = n * math.log(spread) + 0.5 * math.log(pooled)
        constant = math.lgamma(0.5 * (df + n)) - math.lgamma(0.5 * df) - 0.5 * n * math.log(math.pi * df)
        return constant - log_scale - 0.5 * (df + n) * jnp.log1p(square / df)

    def sample(self, key: jax.Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Draws of vectors: the last axis is pooled, others are independent."""
        location, width, spread, df = self.arguments
        keys, outer = jax.random.split(key, 3), (*shape[:-1], 1)
        tau = spread * jnp.sqrt(df / (2.0 * jax.random.gamma(keys[0], 0.5 * df, outer)))
        mu = location + width / spread * tau * jax.random.normal(keys[1], outer)
        return jnp.exp(mu + tau * jax.random.normal(keys[2], shape))

    @property
    def median(self) -> float:
        """Median of each entry."""
        return math.exp(self.arguments[0])


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


def PooledLogNormal(location: float = 0.0, width: float = 1.0, spread: float = 1.0, df: float = 4.0) -> Prior:
    """For the entries of a vector together: log-normal with a location and a spread learned from all of them."""
    return PooledPrior(_POOLED, tuple(float(a) if _is_number(a) else a for a in (location, width, spread, df)))


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
