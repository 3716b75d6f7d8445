"""Priors of hyperparameters, such as `Gamma(2, 1)`, and the presets for hyperparameters that a model leaves open.

A prior only holds its name and numbers. The distribution is that of `numpyro.distributions` with the same name and
arguments; it is made when it is used, so that importing this library does not import NumPyro. Its support decides how
θ becomes an unconstrained φ. What a user writes is in the units of the data; presets, and what `standardised` is put
around, are for standardised inputs and outputs.
"""

import functools
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from integrand.errors import InputError
from integrand.registry import Registry


@functools.cache
def _distributions() -> Any:
    """`numpyro.distributions`; in a notebook tqdm, which NumPyro imports, would warn that it has no widgets."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")
        import numpyro.distributions
    return numpyro.distributions


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
            if not _is_number(value) or not np.isfinite(value):
                raise InputError(f"{self.family}: arguments must be finite numbers, not {value!r}")
        object.__setattr__(self, "arguments", tuple(map(float, self.arguments)))
        if self.family == "Uniform" and not self.arguments[0] < self.arguments[1]:  # NumPyro lets it pass
            raise InputError(f"{self!r} is not a distribution: its bounds must be in order and apart")
        try:
            self.distribution  # noqa: B018  (NumPyro checks the arguments)
        except ValueError as error:
            raise InputError(f"{self!r} is not a distribution: {error}") from None

    @property
    def distribution(self) -> Any:
        """The `numpyro.distributions` object, in the precision of the caller's scope."""
        make = self._family.distribution
        if make is not None:
            return make(*self.arguments)
        return getattr(_distributions(), self.family)(*self.arguments, validate_args=True)

    @property
    def _family(self) -> "Family":
        return _FAMILIES[self.family] if self.family in _FAMILIES else _FAMILIES.restored(self.family)

    @property
    def _bijection(self) -> Any:
        return _distributions().biject_to(self.distribution.support)

    @property
    def positive(self) -> bool:
        """Whether every value in the support is positive."""
        return self._positive_support

    @property
    def _positive_support(self) -> bool:
        constraints, support = _distributions().constraints, self.distribution.support
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
        x = float(self._family.median(*self.arguments))
        return math.sqrt(x) if self.squared else x

    def rescaled(self, factor: float, offset: float = 0.0) -> "Prior":
        """The prior of factor · θ + offset: of the same family where that is closed, else an `AffinePrior`."""
        if factor == 1.0 and offset == 0.0:
            return self
        family = self._family
        if family.scaled is None or (offset != 0.0 and (self.squared or family.shifted is None)):
            return AffinePrior(self.family, self.arguments, self.squared, factor, offset)
        arguments = family.scaled(factor**2 if self.squared else factor, *self.arguments)
        if offset != 0.0 and family.shifted is not None:
            arguments = family.shifted(offset, *arguments)
        return replace(self, arguments=tuple(arguments))

    def log_density_of_theta(self, phi: Float[Array, "..."]) -> Float[Array, ""]:
        """Σ log p(θ(φ)): the log density of θ itself."""
        of_square = jnp.sum(jnp.log(2.0 * self.constrain(phi))) if self.squared else 0.0
        return self.log_density(phi) - self.log_jacobian(phi) + of_square

    def density(self, theta: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """p(θ) at each value, 0 outside of the support; in the precision of the caller's scope."""
        x, slope = (theta**2, 2.0 * np.abs(theta)) if self.squared else (theta, np.ones_like(theta))
        distribution, positive = self.distribution, self._positive_support
        inside = np.asarray(distribution.support(x)) & (not positive or theta > 0)
        safe = np.where(inside, x, float(self._family.median(*self.arguments)))
        return np.where(
            inside, np.exp(np.asarray(_log_prob(safe, prior=Prior(self.family, self.arguments)))) * slope, 0.0
        )

    def mass(self, low: float, high: float) -> float:
        """P(low ≤ θ ≤ high); NaN where NumPyro has no distribution function."""
        if self.squared:
            low, high = max(low, 0.0) ** 2, max(high, 0.0) ** 2
        distribution = self.distribution
        edges = [
            getattr(distribution.support, "lower_bound", -np.inf),
            getattr(distribution.support, "upper_bound", np.inf),
        ]
        if self._positive_support:
            edges[0] = max(float(edges[0]), 0.0)

        def below(x: float) -> float:
            if x <= edges[0] or x == -np.inf:
                return 0.0
            return 1.0 if x >= edges[1] or x == np.inf else float(distribution.cdf(x))

        try:
            return max(below(high) - below(low), 0.0)
        except NotImplementedError:
            return math.nan

    def entry(self, i: int) -> "Prior":
        """The prior of entry i of a vector, by itself."""
        return self

    def expression(self, exact: bool) -> str:
        """What makes this prior, with all digits of its numbers or with six."""
        text = f"{self._family.make.__name__}({', '.join(number_text(a, exact) for a in self.arguments)})"
        return f"on_variance({text})" if self.squared else text

    def __repr__(self) -> str:
        return self.expression(exact=True)

    def __str__(self) -> str:
        return self.expression(exact=False)


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


@dataclass(frozen=True, repr=False)
class AffinePrior(Prior):
    """The prior of factor · θ + offset, where θ has the prior that family, arguments and `squared` describe."""

    factor: float = 1.0
    offset: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        if not (np.isfinite(self.factor) and self.factor > 0.0 and np.isfinite(self.offset)):
            raise InputError(f"rescaled: the factor must be positive and the offset finite, not {self.factor!r}")
        object.__setattr__(self, "factor", float(self.factor))
        object.__setattr__(self, "offset", float(self.offset))

    @property
    def base(self) -> Prior:
        """The prior of θ."""
        return Prior(self.family, self.arguments, self.squared)

    @property
    def positive(self) -> bool:
        """Whether every value in the support is positive."""
        return self._positive_support and self.offset >= 0.0

    def constrain(self, phi: Float[Array, "..."]) -> Float[Array, "..."]:
        """factor · θ + offset from φ."""
        return self.factor * super().constrain(phi) + self.offset

    def unconstrain(self, theta: Float[Array, "..."]) -> Float[Array, "..."]:
        """φ from factor · θ + offset."""
        return super().unconstrain((theta - self.offset) / self.factor)

    def sample(self, key: jax.Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Independent draws."""
        return self.factor * super().sample(key, shape) + self.offset

    @property
    def median(self) -> float:
        """Median."""
        return self.factor * super().median + self.offset

    def rescaled(self, factor: float, offset: float = 0.0) -> Prior:
        """See `Prior.rescaled`."""
        both, shift = factor * self.factor, factor * self.offset + offset
        # There and back gives the prior itself, up to rounding.
        near_one = abs(both - 1.0) < 1e-12
        shift = 0.0 if abs(shift) < 1e-12 * max(abs(factor * self.offset), abs(offset)) else shift
        return self.base.rescaled(1.0 if near_one else both, shift)

    def log_density_of_theta(self, phi: Float[Array, "..."]) -> Float[Array, ""]:
        """See `Prior.log_density_of_theta`."""
        base = self.base
        return base.log_density_of_theta(phi) - jnp.size(phi) * math.log(self.factor)

    def density(self, theta: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """See `Prior.density`."""
        return super().density((theta - self.offset) / self.factor) / self.factor

    def mass(self, low: float, high: float) -> float:
        """See `Prior.mass`."""
        return super().mass((low - self.offset) / self.factor, (high - self.offset) / self.factor)

    def expression(self, exact: bool) -> str:
        """What makes this prior, with all digits of its numbers or with six."""
        numbers = (self.factor, self.offset) if self.offset else (self.factor,)
        return f"rescaled({self.base.expression(exact)}, {', '.join(number_text(v, exact) for v in numbers)})"


@dataclass(frozen=True, repr=False)
class ColumnPriors(Prior):
    """Entries of a vector with a prior each; those with the same pooled prior are pooled."""

    family: str = "ColumnPriors"
    arguments: tuple[float, ...] = ()
    entries: tuple[Prior, ...] = ()

    def __post_init__(self):
        pass

    @functools.cached_property
    def _groups(self) -> tuple[tuple[Prior, np.ndarray], ...]:
        return tuple(
            (prior, np.flatnonzero([other == prior for other in self.entries])) for prior in dict.fromkeys(self.entries)
        )

    @property
    def positive(self) -> bool:
        """Whether every value in the support of every entry is positive."""
        return all(prior.positive for prior in self.entries)

    def _by_group(self, values: Any, function: Callable[[Prior, Any], Any]) -> Any:
        values = jnp.asarray(values)
        result = jnp.zeros_like(values)
        for prior, places in self._groups:
            result = result.at[..., places].set(function(prior, values[..., places]))
        return result

    def constrain(self, phi: Float[Array, "..."]) -> Float[Array, "..."]:
        """θ from φ."""
        return self._by_group(phi, lambda prior, values: prior.constrain(values))

    def unconstrain(self, theta: Float[Array, "..."]) -> Float[Array, "..."]:
        """φ from θ."""
        return self._by_group(theta, lambda prior, values: prior.unconstrain(values))

    def _sum(self, phi: Float[Array, "..."], function: Callable[[Prior, Any], Any]) -> Float[Array, ""]:
        return functools.reduce(lambda a, b: a + b, (function(prior, phi[..., at]) for prior, at in self._groups))

    def log_density(self, phi: Float[Array, "..."]) -> Float[Array, ""]:
        """The log density of φ, summed over entries."""
        return self._sum(phi, lambda prior, values: prior.log_density(values))

    def log_jacobian(self, phi: Float[Array, "..."]) -> Float[Array, ""]:
        """Σ log |T'(φ)|."""
        return self._sum(phi, lambda prior, values: prior.log_jacobian(values))

    def log_density_of_theta(self, phi: Float[Array, "..."]) -> Float[Array, ""]:
        """See `Prior.log_density_of_theta`."""
        return self._sum(phi, lambda prior, values: prior.log_density_of_theta(values))

    def sample(self, key: jax.Array, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Independent draws of vectors: the last axis is that of the entries."""
        result = jnp.zeros(shape)
        for k, (prior, at) in zip(jax.random.split(key, len(self._groups)), self._groups, strict=True):
            result = result.at[..., at].set(prior.sample(k, (*shape[:-1], len(at))))
        return result

    @property
    def median(self) -> Any:
        """Medians of the entries."""
        return np.array([prior.median for prior in self.entries])

    def entry(self, i: int) -> Prior:
        """The prior of entry i."""
        return self.entries[i]

    def expression(self, exact: bool) -> str:
        """The priors of the entries."""
        return f"({', '.join(prior.expression(exact) for prior in self.entries)})"


@dataclass(frozen=True, repr=False)
class Standardised:
    """A number or a prior that speaks of standardised columns and a standardised target; see `standardised`."""

    value: Any

    def expression(self, exact: bool) -> str:
        """What makes this."""
        held = self.value
        text = held.expression(exact) if isinstance(held, Prior) else number_text(held, exact)
        return f"standardised({text})"

    def __repr__(self) -> str:
        return self.expression(exact=True)

    def __str__(self) -> str:
        return self.expression(exact=False)


def standardised(value: Any) -> Any:
    """Say that a number or a prior speaks of standardised data: of columns and a target with mean 0 and variance 1.

    `RBF(lengthscale=standardised(Gamma(2, 1)))` has its mean at two standard deviations of each column. Without it a
    number or a prior is in the units of the data. A tuple or a dictionary by column is standardised entry by entry.
    """
    if isinstance(value, Standardised) or value is None:
        return value
    if isinstance(value, Mapping):
        return {key: standardised(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return tuple(standardised(entry) for entry in value)
    if isinstance(value, Prior):
        return Standardised(value)
    if not _is_number(value):
        raise InputError(f"standardised takes a number or a prior such as Gamma(2, 1), not {value!r}")
    return Standardised(float(value))


def bare(value: Any) -> Any:
    """A number or a prior without the remark that it speaks of standardised data."""
    return value.value if isinstance(value, Standardised) else value


def _pooled_marginal(a: float, c: float, d: float) -> Any:
    """The distribution of one entry by itself: x d ~ BetaPrime(c, a)."""
    dist = _distributions()
    if min(a, c, d) <= 0.0:
        raise ValueError("its arguments must be positive")
    transforms = dist.transforms
    steps = [transforms.SigmoidTransform().inv, transforms.AffineTransform(-math.log(d), 1.0)]
    return dist.TransformedDistribution(dist.Beta(c, a, validate_args=True), [*steps, transforms.ExpTransform()])


def _pooled_median(a: float, c: float, d: float) -> float:
    """Median of one entry."""
    below = special.betaincinv(c, a, 0.5)
    return below / (1.0 - below) / d


@functools.partial(jax.jit, static_argnames="prior")
def _log_prob(x: Float[Array, "..."], prior: Prior) -> Float[Array, "..."]:
    """Log density of x: one program for each prior instead of one for each operation in it."""
    return prior.distribution.log_prob(x)


class Family(NamedTuple):
    """The priors of one name: the function that makes one, the median and the distribution of x, c · x and x + o."""

    make: Callable[..., Prior]
    median: Callable[..., float]
    distribution: Callable[..., Any] | None  # None: NumPyro's of that name
    scaled: Callable[..., tuple[float, ...]] | None = None  # None: not a family of scales
    shifted: Callable[..., tuple[float, ...]] | None = None


_FAMILIES: Registry[Family] = Registry("prior")

F = TypeVar("F", bound=Callable[..., Prior])


def register_prior(
    *,
    median: Callable[..., float],
    distribution: Callable[..., Any] | None = None,
    family: str | None = None,
    scaled: Callable[..., tuple[float, ...]] | None = None,
    shifted: Callable[..., tuple[float, ...]] | None = None,
) -> Callable[[F], F]:
    """Decorator of a function that makes a `Prior`: it can be saved, loaded, and used in kernel expressions.

    Parameters
    ----------
    median
        Median of the distribution, as a function of the arguments. NumPyro has no quantile function for some.
    distribution
        The NumPyro distribution, as a function of the arguments; by default NumPyro's class called `family`.
    family
        Name in files, and `family` of the prior that is made; by default the name of the function.
    scaled, shifted
        Arguments of the prior of c · x from c and the arguments, and of x + o from o and the arguments, where these are
        of the same family. Without them such a prior is an `AffinePrior`, which is as good but prints longer.
    """

    def add(make: F) -> F:
        name = family or make.__name__
        _FAMILIES.register(make, Family(make, median, distribution, scaled, shifted), name, [make.__name__])
        return make

    return add


def registered_priors() -> dict[str, Callable[..., Prior]]:
    """The functions that make priors, by their names in files."""
    return {name: family.make for name, family in _FAMILIES.items()}


def prior_named(name: str) -> Callable[..., Prior]:
    """The function that makes priors of this name, in any case of letters."""
    return _FAMILIES.named(name).make


def describe_value(value: Any) -> Any:
    """A number, tuple, text, None or prior as JSON."""
    if isinstance(value, Standardised):
        return {"standardised": describe_value(value.value)}
    if isinstance(value, Prior):
        described = {"prior": value.family, "arguments": list(value.arguments), "on_variance": value.squared}
        if isinstance(value, AffinePrior):
            described |= {"factor": value.factor, "offset": value.offset}
        return described | _FAMILIES.hint(value.family)
    return [describe_value(entry) for entry in value] if isinstance(value, tuple) else value


def restore_value(value: Any) -> Any:
    """What `describe_value` described."""
    if isinstance(value, Mapping) and "standardised" in value:
        return standardised(restore_value(value["standardised"]))
    if isinstance(value, Mapping):
        family = _FAMILIES.restored(value["prior"], value.get("module"))
        prior = family.make(*map(float, value["arguments"]))
        prior = on_variance(prior) if value["on_variance"] else prior
        if "factor" not in value:
            return prior
        return AffinePrior(prior.family, prior.arguments, prior.squared, float(value["factor"]), float(value["offset"]))
    return tuple(restore_value(entry) for entry in value) if isinstance(value, list) else value


def number_text(value: float, exact: bool) -> str:
    """A number with six digits, or, if it is to be exact, with as many as it takes to read the same number back."""
    short = f"{value:g}"
    return repr(float(value)) if exact and float(short) != value else short


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


@register_prior(
    median=lambda concentration, rate: special.gammaincinv(concentration, 0.5) / rate,
    scaled=lambda c, concentration, rate: (concentration, rate / c),
)
def Gamma(concentration: float, rate: float = 1.0) -> Prior:
    """Gamma with density ∝ x^(concentration - 1) exp(-rate x)."""
    return Prior("Gamma", (concentration, rate))


@register_prior(
    median=lambda concentration, rate: rate / special.gammainccinv(concentration, 0.5),
    scaled=lambda c, concentration, rate: (concentration, rate * c),
)
def InverseGamma(concentration: float, rate: float = 1.0) -> Prior:
    """Inverse gamma with density ∝ x^(-concentration - 1) exp(-rate / x)."""
    return Prior("InverseGamma", (concentration, rate))


@register_prior(
    median=lambda scale: scale,
    scaled=lambda c, scale: (c * scale,),
)
def HalfCauchy(scale: float = 1.0) -> Prior:
    """Half-Cauchy on the positive numbers."""
    return Prior("HalfCauchy", (scale,))


@register_prior(
    median=lambda scale: scale * special.ndtri(0.75),
    scaled=lambda c, scale: (c * scale,),
)
def HalfNormal(scale: float = 1.0) -> Prior:
    """Half-normal on the positive numbers."""
    return Prior("HalfNormal", (scale,))


@register_prior(
    median=lambda location, scale: math.exp(location),
    scaled=lambda c, location, scale: (location + math.log(c), scale),
)
def LogNormal(location: float = 0.0, scale: float = 1.0) -> Prior:
    """Log-normal: log x ~ N(location, scale²)."""
    return Prior("LogNormal", (location, scale))


@register_prior(
    median=_pooled_median,
    distribution=_pooled_marginal,
    scaled=lambda k, a, c, d: (a, c, d / k),
)
def PooledInverseGamma(a: float = 2.0, c: float = 2.0, d: float = 1.0) -> Prior:
    """For the entries of a vector together: inverses are Gamma(a, b), with a rate b ~ Gamma(c, d) learned from all."""
    return PooledPrior("PooledInverseGamma", (a, c, d))


@register_prior(
    median=lambda rate: math.log(2.0) / rate,
    scaled=lambda c, rate: (rate / c,),
)
def Exponential(rate: float = 1.0) -> Prior:
    """Exponential with mean 1 / rate."""
    return Prior("Exponential", (rate,))


@register_prior(
    median=lambda scale, concentration: scale * math.log(2.0) ** (1.0 / concentration),
    scaled=lambda c, scale, concentration: (c * scale, concentration),
)
def Weibull(scale: float, concentration: float) -> Prior:
    """Weibull on the positive numbers."""
    return Prior("Weibull", (scale, concentration))


@register_prior(
    median=lambda low, high: 0.5 * (low + high),
    scaled=lambda c, low, high: (c * low, c * high),
    shifted=lambda o, low, high: (low + o, high + o),
)
def Uniform(low: float, high: float) -> Prior:
    """Uniform between two bounds."""
    return Prior("Uniform", (low, high))


@register_prior(median=lambda a, b: special.betaincinv(a, b, 0.5))
def Beta(a: float, b: float) -> Prior:
    """Beta on (0, 1), with densities ∝ x^(a - 1) (1 - x)^(b - 1)."""
    return Prior("Beta", (a, b))


@register_prior(
    median=lambda location, scale: location,
    scaled=lambda c, location, scale: (c * location, c * scale),
    shifted=lambda o, location, scale: (location + o, scale),
)
def Normal(location: float = 0.0, scale: float = 1.0) -> Prior:
    """Normal: for a constant mean, not for scales."""
    return Prior("Normal", (location, scale))


@register_prior(
    median=lambda df, location, scale: location,
    family="StudentT",
    scaled=lambda c, df, location, scale: (df, c * location, c * scale),
    shifted=lambda o, df, location, scale: (df, location + o, scale),
)
def StudentTPrior(df: float, location: float = 0.0, scale: float = 1.0) -> Prior:
    """Student's t: for a constant mean, not for scales."""
    return Prior("StudentT", (df, location, scale))


def between(low: float, high: float, probability: float = 0.9) -> Prior:
    """The prior that holds `probability` between two positive numbers, with equal tails on both sides: a `LogNormal`.

    `between(2, 15)` is `LogNormal(1.70, 0.61)`: 5 % below 2, 5 % above 15. Where `low` is not positive, as for a mean,
    it is a `Normal`.
    """
    _check_statement("between", probability, low, high)
    if not low < high:
        raise InputError(f"between({low:g}, {high:g}): give the smaller number first")
    width = float(special.ndtri(0.5 + 0.5 * probability))
    if low > 0.0:
        return LogNormal(0.5 * (math.log(low) + math.log(high)), 0.5 * (math.log(high) - math.log(low)) / width)
    return Normal(0.5 * (low + high), 0.5 * (high - low) / width)


def at_most(value: float, probability: float = 0.95) -> Prior:
    """The prior on a positive number that is below `value` with this probability: an `Exponential`.

    Its density is highest at 0. For standard deviations it is the penalised-complexity prior of Simpson et al. (2017).
    """
    _check_statement("at_most", probability, value)
    if not value > 0.0:
        raise InputError(f"at_most({value:g}): give a positive number")
    return Exponential(-math.log1p(-probability) / value)


def at_least(value: float, probability: float = 0.95) -> Prior:
    """The prior on a positive number that is above `value` with this probability: an `InverseGamma(1, ...)`.

    It has almost nothing near 0 and a long upper tail. For lengthscales in two columns it is the penalised-complexity
    prior of Fuglstad et al. (2019).
    """
    _check_statement("at_least", probability, value)
    if not value > 0.0:
        raise InputError(f"at_least({value:g}): give a positive number")
    return InverseGamma(1.0, -value * math.log1p(-probability))


def _check_statement(name: str, probability: float, *numbers: float) -> None:
    for number in numbers:
        if not _is_number(number) or not np.isfinite(number):
            raise InputError(f"{name} takes finite numbers, not {number!r}")
    if not _is_number(probability) or not 0.0 < probability < 1.0:
        raise InputError(f"{name}: probability must lie between 0 and 1, not {probability!r}")


def rescaled(prior: Prior, factor: float, offset: float = 0.0) -> Prior:
    """The prior of factor · θ + offset: what `print` shows of a prior in other units, if it has no name of its own."""
    if not isinstance(prior, Prior) or not _is_number(factor) or not _is_number(offset) or not factor > 0.0:
        raise InputError("rescaled takes a prior, a positive factor and an offset")
    return prior.rescaled(float(factor), float(offset))


def on_variance(prior: Any) -> Any:
    """Put `prior` on the square: `noise=on_variance(InverseGamma(2, 1))` is a prior on the noise variance."""
    if isinstance(prior, Standardised):
        return standardised(on_variance(prior.value))
    if not isinstance(prior, Prior):
        raise InputError(f"on_variance takes a prior such as HalfCauchy(1), not {prior!r}")
    if not prior.positive:
        raise InputError(f"on_variance({prior!r}): a prior on a variance must be over positive numbers")
    return replace(prior, squared=True)


# The prior of a field of a kernel that sees this many columns.
Rule = Callable[[int], Prior]

# The preset of models for which none is named. In the suite `priors` (docs/evidence/paper.md) it is worse than ML-II
# on none of five sets; `paper` is worse on one, and `scaled` does not always converge.
DEFAULT = "pooled"

# Fields that a preset does not name have the prior that comes with the field: the paper says nothing of them.
PRESETS: dict[str, dict[str, Rule]] = {
    # The paper's code block: Gamma(2, 1) on lengthscales, half-Cauchy(1) on the standard deviations.
    "paper": {"lengthscale": lambda n_columns: Gamma(2.0, 1.0)},
    # Hvarfner, Hellsten & Nardi (2024): lengthscales that grow with the number of columns.
    "scaled": {"lengthscale": lambda n_columns: LogNormal(math.sqrt(2.0) + 0.5 * math.log(n_columns), math.sqrt(3.0))},
    # Distances grow with the root of the number of columns; what is long among lengthscales is learned.
    "pooled": {"lengthscale": lambda n_columns: PooledInverseGamma(2.0, 2.0, 2.0 / (3.0 * math.sqrt(n_columns)))},
}


def preset_prior(preset: str, field: str, n_columns: int, default: Prior | Rule | None = None) -> Prior:
    """The prior that a preset gives to a field of a kernel with this many columns, else the default of that field."""
    if preset not in PRESETS:
        raise InputError(f"there is no preset {preset!r} of priors: choose one of {', '.join(PRESETS)}")
    rule = PRESETS[preset].get(field, default)
    if rule is None:
        raise InputError(f"the preset {preset!r} has no prior for {field!r}: give a number or a prior")
    return rule if isinstance(rule, Prior) else rule(n_columns)
