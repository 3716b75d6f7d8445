"""Priors of hyperparameters, such as `Gamma(2, 1)`, and the presets for hyperparameters that a model leaves open.

A prior only holds its name and numbers. The distribution is that of `numpyro.distributions` with the same name and
arguments; it is made when it is used, so that importing this library does not import NumPyro. Its support decides how
θ becomes an unconstrained φ. Presets are for standardised inputs and outputs.
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


class Family(NamedTuple):
    """The priors of one name: the function that makes one, the median of x, and the distribution of x."""

    make: Callable[..., Prior]
    median: Callable[..., float]
    distribution: Callable[..., Any] | None  # None: NumPyro's of that name


_FAMILIES: Registry[Family] = Registry("prior")

F = TypeVar("F", bound=Callable[..., Prior])


def register_prior(
    *,
    median: Callable[..., float],
    distribution: Callable[..., Any] | None = None,
    family: str | None = None,
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
    """

    def add(make: F) -> F:
        name = family or make.__name__
        _FAMILIES.register(make, Family(make, median, distribution), name, [make.__name__])
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
    if isinstance(value, Prior):
        described = {"prior": value.family, "arguments": list(value.arguments), "on_variance": value.squared}
        return described | _FAMILIES.hint(value.family)
    return [describe_value(entry) for entry in value] if isinstance(value, tuple) else value


def restore_value(value: Any) -> Any:
    """What `describe_value` described."""
    if isinstance(value, Mapping):
        family = _FAMILIES.restored(value["prior"], value.get("module"))
        prior = family.make(*map(float, value["arguments"]))
        return on_variance(prior) if value["on_variance"] else prior
    return tuple(restore_value(entry) for entry in value) if isinstance(value, list) else value


def number_text(value: float, exact: bool) -> str:
    """A number with six digits, or, if it is to be exact, with as many as it takes to read the same number back."""
    short = f"{value:g}"
    return repr(float(value)) if exact and float(short) != value else short


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


@register_prior(median=lambda concentration, rate: special.gammaincinv(concentration, 0.5) / rate)
def Gamma(concentration: float, rate: float = 1.0) -> Prior:
    """Gamma with density ∝ x^(concentration - 1) exp(-rate x)."""
    return Prior("Gamma", (concentration, rate))


@register_prior(median=lambda concentration, rate: rate / special.gammainccinv(concentration, 0.5))
def InverseGamma(concentration: float, rate: float = 1.0) -> Prior:
    """Inverse gamma with density ∝ x^(-concentration - 1) exp(-rate / x)."""
    return Prior("InverseGamma", (concentration, rate))


@register_prior(median=lambda scale: scale)
def HalfCauchy(scale: float = 1.0) -> Prior:
    """Half-Cauchy on the positive numbers."""
    return Prior("HalfCauchy", (scale,))


@register_prior(median=lambda scale: scale * special.ndtri(0.75))
def HalfNormal(scale: float = 1.0) -> Prior:
    """Half-normal on the positive numbers."""
    return Prior("HalfNormal", (scale,))


@register_prior(median=lambda location, scale: math.exp(location))
def LogNormal(location: float = 0.0, scale: float = 1.0) -> Prior:
    """Log-normal: log x ~ N(location, scale²)."""
    return Prior("LogNormal", (location, scale))


@register_prior(median=_pooled_median, distribution=_pooled_marginal)
def PooledInverseGamma(a: float = 2.0, c: float = 2.0, d: float = 1.0) -> Prior:
    """For the entries of a vector together: inverses are Gamma(a, b), with a rate b ~ Gamma(c, d) learned from all."""
    return PooledPrior("PooledInverseGamma", (a, c, d))


@register_prior(median=lambda rate: math.log(2.0) / rate)
def Exponential(rate: float = 1.0) -> Prior:
    """Exponential with mean 1 / rate."""
    return Prior("Exponential", (rate,))


@register_prior(median=lambda scale, concentration: scale * math.log(2.0) ** (1.0 / concentration))
def Weibull(scale: float, concentration: float) -> Prior:
    """Weibull on the positive numbers."""
    return Prior("Weibull", (scale, concentration))


@register_prior(median=lambda low, high: 0.5 * (low + high))
def Uniform(low: float, high: float) -> Prior:
    """Uniform between two bounds."""
    return Prior("Uniform", (low, high))


@register_prior(median=lambda a, b: special.betaincinv(a, b, 0.5))
def Beta(a: float, b: float) -> Prior:
    """Beta on (0, 1), with densities ∝ x^(a - 1) (1 - x)^(b - 1)."""
    return Prior("Beta", (a, b))


@register_prior(median=lambda location, scale: location)
def Normal(location: float = 0.0, scale: float = 1.0) -> Prior:
    """Normal: for a constant mean, not for scales."""
    return Prior("Normal", (location, scale))


@register_prior(median=lambda df, location, scale: location, family="StudentT")
def StudentTPrior(df: float, location: float = 0.0, scale: float = 1.0) -> Prior:
    """Student's t: for a constant mean, not for scales."""
    return Prior("StudentT", (df, location, scale))


def on_variance(prior: Prior) -> Prior:
    """Put `prior` on the square: `noise=on_variance(InverseGamma(2, 1))` is a prior on the noise variance."""
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
