"""Transforms of the target: z = g(y), of which the model says z = f(x) + ε (Snelson, Rasmussen & Ghahramani 2004).

A transform is a fixed change of y, its logarithm or none, then standardising, then g with parameters of its own:

    t = (log y - mean) / sd   or   t = (y - mean) / sd,      z = g(t),      g(0) = 0,  g'(0) = 1

The parameters of g are sampled with θ: log p(y | θ) = L(θ, Z; g(t)) + Σ log g'(tₙ). Every g is fixed at the middle of
the data. So z is near zero with a spread near one whatever the parameters are, priors have no unit, and the scale of
the kernel and the noise keep their meaning there. Every g maps all numbers onto all numbers, so a density of z
is one of y, without mass that is lost.

The formulas take NumPy arrays as well as those of JAX.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from integrand.errors import InputError
from integrand.kernels.base import Change, FieldInfo, number_or_prior
from integrand.priors import HalfNormal, LogNormal, Normal, Rule, describe_value, restore_value

# Beyond |λ t| = 5, which is y below 0.7 % of its middle for a power of 1, a Box-Cox transform goes on as a logarithm.
# Without this some values of z would have no y: z > -1/λ. Its slope there is exp(-5).
LOG_FROM = 5.0
# Below this argument (exp(x) - 1)/x and log(1 + x)/x are their series, whose gradients lose no digits.
_SMALL = 1e-3

PATH = "transform"  # of the parameters, as in `transform.power`


class Transform(eqx.Module):
    """z = g(t) of a standardised target t, increasing from all numbers onto all numbers."""

    name: ClassVar[str]
    of_log: ClassVar[bool]  # whether t is the standardised logarithm of y
    # Of each parameter: its unit as in FieldInfo, and its prior where the user gives none. Both speak of t.
    defaults: ClassVar[Mapping[str, tuple[str, Rule]]]

    @abstractmethod
    def __call__(self, t: Any) -> Any:
        """g(t)."""

    @abstractmethod
    def log_slope(self, t: Any) -> Any:
        """log g'(t)."""

    @abstractmethod
    def inverse(self, z: Any) -> Any:
        """The t of a z."""

    def base(self, y: Any) -> np.ndarray:
        """The y that is standardised: y or log y. It is not a number where y has no logarithm."""
        y = np.asarray(y, float)
        return np.log(np.where(y > 0.0, y, np.nan)) if self.of_log else y

    def original(self, base: Any) -> np.ndarray:
        """The y of what was standardised."""
        with np.errstate(over="ignore"):
            return np.exp(base) if self.of_log else np.asarray(base, float)

    def map_fields(self, change: Change) -> "Transform":
        """The same with every parameter replaced by what `change` returns for it."""
        infos = {
            field: FieldInfo(f"{PATH}.{field}", field, unit=unit, default=rule)
            for field, (unit, rule) in self.defaults.items()
        }
        return type(self)(**{field: change(info, getattr(self, field)) for field, info in infos.items()})

    def __repr__(self) -> str:
        held = ", ".join(f"{field}={getattr(self, field)!r}" for field in self.defaults)
        return f"{type(self).__name__}({held})"


class Log(Transform):
    """z is the standardised logarithm of y, which has to be positive. It has no parameters."""

    name = "log"
    of_log = True
    defaults: ClassVar[Mapping[str, tuple[str, Rule]]] = {}

    def __call__(self, t: Any) -> Any:
        """It is t itself."""
        return t

    def log_slope(self, t: Any) -> Any:
        """Zero."""
        return 0.0 * t

    def inverse(self, z: Any) -> Any:
        """It is z itself."""
        return z


class BoxCox(Transform):
    """z = (exp(λt) - 1)/λ with t the standardised logarithm of y, which has to be positive.

    With m the geometric mean of y that is ((y/m)^p - 1)/p in units of the standard deviation of log y, and λ is p times
    that. A power p of 1 leaves y as it is, 0.5 is the square root, 0 the logarithm. Where λt < -5 it goes on as a
    logarithm.

    Parameters
    ----------
    power
        The power p: a number or a prior. By default λ has a half-normal one: with a power below zero y has no mean.
    """

    power: Any = eqx.field(default=None, converter=lambda value: number_or_prior(value, f"{PATH}.power"))

    name = "box-cox"
    of_log = True
    defaults: ClassVar[Mapping[str, tuple[str, Rule]]] = {"power": ("1/y", lambda n_columns: HalfNormal(1.0))}

    def __call__(self, t: Any) -> Any:
        """((exp(max(λt, -5)) - 1)/λ, and below a line."""
        xp, v = _library(t), self.power * t
        beyond = xp.minimum(v + LOG_FROM, 0.0) / _not_zero(xp, self.power)
        inside = t - beyond
        return inside * _exp_ratio(xp, self.power * inside) + np.exp(-LOG_FROM) * beyond

    def log_slope(self, t: Any) -> Any:
        """max(λt, -5)."""
        return _library(t).maximum(self.power * t, -LOG_FROM)

    def inverse(self, z: Any) -> Any:
        """log(1 + λz)/λ, and below a line."""
        xp, w = _library(z), self.power * z
        beyond = xp.minimum(w - np.expm1(-LOG_FROM), 0.0) / _not_zero(xp, self.power)
        inside = z - beyond
        return inside * _log_ratio(xp, xp.maximum(self.power * inside, np.expm1(-LOG_FROM))) + np.exp(LOG_FROM) * beyond


class SinhArcsinh(Transform):
    """z = (sinh(δ asinh t - ε) + sinh ε) / (δ cosh ε) with t the standardised y (Jones & Pewsey 2009).

    Parameters
    ----------
    skewness
        ε: a number or a prior. Above zero where y has its long tail upwards. By default a standard normal prior.
    tails
        δ > 0: a number or a prior. Below one where the tails of y are longer than normal ones. By default
        `LogNormal(0, 0.5)`.
    """

    skewness: Any = eqx.field(default=None, converter=lambda value: number_or_prior(value, f"{PATH}.skewness"))
    tails: Any = eqx.field(default=None, converter=lambda value: number_or_prior(value, f"{PATH}.tails"))

    name = "sinh-arcsinh"
    of_log = False
    defaults: ClassVar[Mapping[str, tuple[str, Rule]]] = {
        "skewness": ("1", lambda n_columns: Normal(0.0, 1.0)),
        "tails": ("1", lambda n_columns: LogNormal(0.0, 0.5)),
    }

    def __call__(self, t: Any) -> Any:
        """As a product, which loses no digits near zero."""
        xp = _library(t)
        half = 0.5 * self.tails * xp.arcsinh(t)
        return 2.0 * xp.sinh(half) * xp.cosh(half - self.skewness) / (self.tails * xp.cosh(self.skewness))

    def log_slope(self, t: Any) -> Any:
        """log cosh(δ asinh t - ε) - log cosh ε - ½ log(1 + t²)."""
        xp = _library(t)
        argument = self.tails * xp.arcsinh(t) - self.skewness
        return _log_cosh(xp, argument) - _log_cosh(xp, self.skewness) - 0.5 * xp.log1p(t**2)

    def inverse(self, z: Any) -> Any:
        """sinh((asinh(δ z cosh ε - sinh ε) + ε)/δ)."""
        xp = _library(z)
        argument = self.tails * z * xp.cosh(self.skewness) - xp.sinh(self.skewness)
        return xp.sinh((xp.arcsinh(argument) + self.skewness) / self.tails)


TRANSFORMS: Mapping[str, type[Transform]] = {cls.name: cls for cls in (Log, BoxCox, SinhArcsinh)}
# Parameters that may be negative.
SIGNED = ("power", "skewness")


def as_transform(value: str | Transform | None) -> Transform | None:
    """A transform by name, or as it is; None leaves y as it is."""
    if value is None or isinstance(value, Transform):
        return value
    if not isinstance(value, str) or value not in TRANSFORMS:
        raise InputError(f"target_transform must be one of {', '.join(TRANSFORMS)}, not {value!r}")
    return TRANSFORMS[value]()


def describe_transform(transform: Transform) -> dict[str, Any]:
    """A transform as JSON."""
    fields = {field: describe_value(getattr(transform, field)) for field in transform.defaults}
    return {"name": transform.name, "fields": fields}


def restore_transform(description: Mapping[str, Any]) -> Transform:
    """What `describe_transform` described."""
    fields = {field: restore_value(value) for field, value in description["fields"].items()}
    return TRANSFORMS[description["name"]](**fields)


def _library(value: Any) -> Any:
    return jnp if isinstance(value, jax.Array) else np


def _not_zero(xp: Any, value: Any) -> Any:
    return xp.where(value == 0.0, 1.0, value)


def _exp_ratio(xp: Any, x: Any) -> Any:
    """(exp(x) - 1)/x."""
    small = xp.abs(x) < _SMALL
    large = xp.where(small, 1.0, x)
    series = 1.0 + x / 2.0 * (1.0 + x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0)))
    return xp.where(small, series, xp.expm1(large) / large)


def _log_ratio(xp: Any, x: Any) -> Any:
    """log(1 + x)/x."""
    small = xp.abs(x) < _SMALL
    large = xp.where(small, 1.0, x)
    series = 1.0 - x * (1.0 / 2.0 - x * (1.0 / 3.0 - x * (1.0 / 4.0 - x * (1.0 / 5.0 - x / 6.0))))
    return xp.where(small, series, xp.log1p(large) / large)


def _log_cosh(xp: Any, x: Any) -> Any:
    return xp.logaddexp(x, -x) - np.log(2.0)
