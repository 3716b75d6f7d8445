"""Models in the units of the data and for standardised data: the way from one to the other, and back.

A value in units of the data is factor · (standardised value) + offset. A lengthscale or period has the standard
deviation of its column as factor, a scale or noise that of y, a slope the ratio of both. With a transform of y these
speak of the transformed y. Only a mean has an offset: the
mean of y.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from integrand.errors import InputError
from integrand.kernels.base import FieldInfo, value_text
from integrand.precision import float64_scope
from integrand.priors import PooledPrior, Prior, Standardised, bare

MEAN = "mean"  # path of the one field with an offset


def unit_factors(unit: str, columns: tuple[int, ...], scaler: Any) -> Float[np.ndarray, " C"]:
    """The factor from standardised to original units, for each column that a field speaks of (one, if it has none)."""
    x = np.asarray(scaler.x_sd)[list(columns)] if columns else np.ones(1)
    y = float(scaler.y_sd)
    if unit in ("1", "y", "1/y"):
        return np.full(1, {"1": 1.0, "y": y, "1/y": 1.0 / y}[unit])
    with np.errstate(over="ignore"):  # columns of subnormal numbers
        return x if unit == "x" else {"y/x": y, "1/x": 1.0}[unit] / x


def unit_offset(path: str, scaler: Any) -> float:
    """What is added in original units: the mean of y, for a constant mean."""
    return float(scaler.y_mean) if path == MEAN else 0.0


def parameter_factor(p: Any, scaler: Any) -> Any:
    """The factor of a parameter; 1 where one number covers columns of different spread, for it stays standardised."""
    factors = unit_factors(p.unit, p.columns, scaler)
    if p.shape:
        return np.broadcast_to(factors, p.shape)
    return float(factors[0]) if np.all(factors == factors[0]) else 1.0


def standardised_field(info: FieldInfo, value: Any, scaler: Any, names: tuple[str, ...]) -> Any:
    """What a field holds in units of the data, for standardised data. An InputError where no such thing exists."""
    if isinstance(value, Standardised):
        return value.value
    factors, offset = unit_factors(info.unit, info.columns, scaler), unit_offset(info.path, scaler)
    alike = bool(np.all(factors == factors[0]))
    if isinstance(value, tuple):
        entries = tuple(
            _standardised_value(v, float(f), offset)
            for v, f in zip(value, np.broadcast_to(factors, len(value)), strict=True)
        )
        pooled = [v for v in value if isinstance(v, PooledPrior)]
        if not alike and len(pooled) > 1:
            raise InputError(_about_pooled(info, pooled[0]))
        return entries
    if alike:
        return _standardised_value(value, float(factors[0]), offset)
    if not info.shape:
        listed = ", ".join(names[i] for i in info.columns[:6]) + (", ..." if len(info.columns) > 6 else "")
        text = value_text(value, exact=False)
        raise InputError(
            f"{info.path} is one value for columns that have units of their own ({listed}): let the kernel see one of "
            f"them (active={listed.split(', ')[0]!r}), give a value for each column (ard=True, where the kernel has "
            f"it), or write standardised({text}) if it speaks of standardised columns"
        )
    if isinstance(value, PooledPrior):
        raise InputError(_about_pooled(info, value))
    return tuple(_standardised_value(value, float(f), offset) for f in factors)


def _about_pooled(info: FieldInfo, prior: Prior) -> str:
    return (
        f"{info.path}: {prior} pools columns that have units of their own, so it can only speak of standardised ones: "
        f"write standardised({prior})"
    )


def _standardised_value(value: Any, factor: float, offset: float) -> Any:
    if isinstance(value, Standardised):
        return value.value
    if isinstance(value, Prior):
        return value.rescaled(1.0 / factor, -offset / factor)
    return (value - offset) / factor


class Value(NamedTuple):
    """One number or prior of a model of a fit, in both units."""

    path: str  # such as `trend.lengthscale`
    name: str  # with the column, such as `trend.lengthscale[age]`
    unit: str  # in words; "" for a number without a unit
    original: Any  # a number or a prior, in the units of the data
    standardised: Any
    column: int | None  # that it speaks of, if that is one
    kind: str  # the unit as in FieldInfo
    chosen: bool  # by the user in units of the data, and not by a preset or inside `standardised`

    @property
    def fixed(self) -> bool:
        """Whether it is a number."""
        return not isinstance(self.original, Prior)


def values(model: Any) -> list[Value]:
    """All values of a model, fixed ones too, in the order of its fields; one for each column of a vector.

    Of a model that knows no data yet both units are the same: it shows what was written.
    """
    found: list[Value] = []
    given, scaler = _given_values(model.given), model.scaler or _Unscaled.of(model.n_columns)

    def note(info: FieldInfo, value: Any) -> Any:
        factors, offset = unit_factors(info.unit, info.columns, scaler), unit_offset(info.path, scaler)
        alike = bool(np.all(factors == factors[0]))
        several = isinstance(value, tuple) or (bool(info.shape) and (isinstance(bare(value), Prior) or not alike))
        if info.field == "noise" and not info.columns and not model.likelihood.has_noise:
            return value
        for i in range(info.shape[0] if several and info.shape else 1):
            held = value[i] if isinstance(value, tuple) else value
            column = info.columns[0] if len(info.columns) == 1 else info.columns[i] if several else None
            shared = several or alike
            factor = float(np.broadcast_to(factors, max(len(factors), i + 1))[i]) if shared else 1.0
            original = _affine(held, factor, offset)
            name = info.labels(model.columns)[i] if several and column is not None else info.path
            typed = given.get(info.path)
            typed = typed[i] if isinstance(typed, tuple) else typed
            chosen = typed is not None and not isinstance(typed, Standardised)
            along = "x" if column is None else model.columns[column]
            unit = unit_text(info.unit, along, y_text(model)) if shared else "standardised"
            found.append(Value(info.path, name, unit, original, held, column, info.unit, chosen))
        return value

    model.map_fields(note)
    return found


class _Unscaled(NamedTuple):
    """The scaler of data that are not known."""

    x_sd: np.ndarray
    y_mean: float = 0.0
    y_sd: float = 1.0

    @classmethod
    def of(cls, n_columns: int) -> "_Unscaled":
        return cls(np.ones(n_columns))


def _affine(value: Any, factor: float, offset: float) -> Any:
    if isinstance(value, Standardised):  # of a model that knows no data
        return value
    try:
        return value.rescaled(factor, offset) if isinstance(value, Prior) else value * factor + offset
    except (InputError, ArithmeticError):  # numbers at the end of the range: shown as they are
        return value


def _given_values(given: Any) -> Mapping[str, Any]:
    held: dict[str, Any] = {}
    if given is not None:
        given.map_fields(lambda info, value: held.update({info.path: value}) or value)
    return held


def y_text(model: Any) -> str:
    """What the scale, the noise and the mean are in units of: y, or the function f behind counts and classes."""
    if not model.likelihood.standardises_y:
        return "f"
    return "y" if model.target_transform is None else "the transformed y"


def unit_text(unit: str, column: str, y: str = "y") -> str:
    """A unit in words; empty for a number without one."""
    texts = {"1": "", "1/y": "", "y": f"unit of {y}", "x": f"unit of {column}", "y/x": f"unit of {y} per {column}"}
    return (texts | {"1/x": f"per {column}"})[unit]


def lines_of_values(model: Any) -> list[str]:
    """A table of all values of a model; in both units if the model is of a fit."""
    if model.scaler is None:
        rows = [("", "in the units of the data", "unit")]
        for v in values(model):
            unit = "" if isinstance(v.original, Standardised) else v.unit
            of_y = v.path == MEAN and v.original == Standardised(0.0) and model.likelihood.standardises_y
            rows.append((v.name, f"the mean of {y_text(model)}" if of_y else value_text(v.original, exact=False), unit))
    else:
        rows = [("", "in the units of the data", "unit", "standardised")]
        rows += [
            (v.name, value_text(v.original, exact=False), v.unit, value_text(v.standardised, exact=False))
            for v in values(model)
        ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


class Doubt(NamedTuple):
    """A value that lies where the data cannot speak: a stable code, a sentence, and what to do."""

    code: str
    sentence: str
    remedy: str


def doubts(model: Any, X: Float[np.ndarray, "K D"], n_rows: int, y_range: tuple[float, float]) -> list[Doubt]:
    """What the user chose in units of the data and the data cannot speak of.

    Parameters
    ----------
    model
        Of a fit.
    X
        Rows in their own units: all `n_rows`, or a uniform sample of them.
    y_range
        Smallest and largest y.
    """
    found = [_doubt(v, model, X, n_rows, y_range) for v in values(model) if v.chosen]
    return [doubt for doubt in found if doubt is not None]


# A prior with less than this between the limits is a choice of something else.
_LITTLE = 0.05
# A lengthscale of this many ranges is a straight line; a scale of this many standard deviations of y is out of reach.
_MANY_RANGES, _MANY_SDS = 100.0, 100.0


def _doubt(v: Value, model: Any, X: np.ndarray, n_rows: int, y_range: tuple[float, float]) -> Doubt | None:
    field, text = v.path.split(".")[-1], value_text(v.original, exact=False)
    is_y = model.likelihood.standardises_y
    y_mean, y_sd = float(model.scaler.y_mean), float(model.scaler.y_sd)
    transform = model.target_transform
    y = "log of y" if transform is not None and transform.of_log else "y"
    if v.kind == "y" and field == "noise" and is_y:
        if _within(v.original, 0.0, y_sd):
            return None
        sentence = f"{v.name} is {text}, above the standard deviation of {y} ({y_sd:.3g}): all of y would be noise."
        return Doubt("noise-above-y", sentence, f"Leave it out, or write a noise such as at_most({y_sd:.2g}).")
    if v.path == MEAN and is_y:
        reach = y_range[1] - y_range[0]
        low, high = y_range[0] - reach, y_range[1] + reach
        if _within(v.original, low, high):
            return None
        sentence = f"mean is {text}, far from all of {y}, which lies between {y_range[0]:.4g} and {y_range[1]:.4g}."
        return Doubt("mean-outside-data", sentence, f"Leave it out for the mean of {y} ({y_mean:.4g}).")
    if v.kind == "y" and is_y:
        if _within(v.original, 0.0, _MANY_SDS * y_sd):
            return None
        sentence = f"{v.name} is {text}, more than {_MANY_SDS:.0f} standard deviations of {y} ({y_sd:.3g})."
        return Doubt("scale-outside-data", sentence, f"Leave it out, or write one such as at_most({3.0 * y_sd:.2g}).")
    if v.kind != "x" or v.column is None:
        return None
    column = model.columns[v.column]
    spacing, reach = _spacing(X[:, v.column], n_rows)
    if reach == 0.0:
        return None
    if field == "period":
        if _within(v.original, 2.0 * spacing, 1.1 * reach + spacing):  # hours from 0 to 23 have a period of 24
            return None
        limits = f"{column!r} has a range of {reach:.3g} and rows about {spacing:.3g} apart"
        sentence = f"{v.name} is {text}, but {limits}: the data cannot show such a period."
        return Doubt("period-outside-data", sentence, f"Write a period in the unit of {column!r}.")
    if _within(v.original, spacing, _MANY_RANGES * reach):
        return None
    limits = f"{column!r} has a range of {reach:.3g} and rows about {spacing:.3g} apart"
    sentence = f"{v.name} is {text}, but {limits}: the data cannot tell such values from each other."
    remedy = f"Write it in the unit of {column!r}, such as between({0.1 * reach:.2g}, {reach:.2g}), or leave it out."
    return Doubt(f"{field}-outside-data", sentence, remedy)


def _within(value: Any, low: float, high: float) -> bool:
    """Whether a number, or enough of a prior, lies between two limits."""
    if not isinstance(value, Prior):
        return bool(low * (1.0 - 1e-9) <= value <= high * (1.0 + 1e-9)) if low >= 0.0 else bool(low <= value <= high)
    with float64_scope():
        return not value.mass(low, high) < _LITTLE  # NaN: NumPyro does not know


def _spacing(column: np.ndarray, n_rows: int) -> tuple[float, float]:
    """The median distance between neighbouring values of a column, and its range."""
    distinct = np.unique(column)
    if len(distinct) < 2:
        return 0.0, 0.0
    # Values of a sample lie further apart than those of all rows, unless they repeat.
    thinner = len(column) / n_rows if len(distinct) > 0.5 * len(column) else 1.0
    return float(np.median(np.diff(distinct))) * thinner, float(distinct[-1] - distinct[0])
