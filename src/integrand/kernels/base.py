"""Kernels are immutable trees: leaves hold hyperparameters, `+` and `*` make flat sums and products.

A field of a leaf holds a number (fixed), a prior (inferred) or None (left open: the model fills in the prior of its
preset, or the default of the field). A field with an entry per column may hold one of these for each column, by name.
The path of the field, such as `lengthscale`, `0.lengthscale` or `trend.lengthscale`, is its name everywhere. A tree
whose fields are all numbers is a covariance function.
"""

import dataclasses
import functools
import operator
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Number
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from integrand.errors import InputError
from integrand.priors import Prior, Rule, Standardised, bare, number_text, standardised

_RESERVED = ("noise", "mean", "transform")
_MOST_NAMES = 40  # of columns, in a message


class FieldInfo(NamedTuple):
    """Where a field stands: its path, its own name, the columns its kernel sees, its shape when inferred, its unit.

    The unit is "x" or "y" (that of the inputs or the output), "y/x", "1/x", or "1" for a number without one. `default`
    is the prior where neither the user nor the preset gives one; a tuple has one for each entry. `entries` are names
    of the entries of a vector that does not go by columns. Numbers are positive unless `signed`.
    """

    path: str
    field: str
    columns: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    unit: str = "1"
    default: Prior | Rule | tuple[Prior, ...] | None = None
    entries: tuple[str, ...] = ()
    signed: bool = False

    def labels(self, names: Sequence[str]) -> tuple[str, ...]:
        """The name of each entry of a vector, such as `lengthscale[age]` or `kappa[station=A]`."""
        if self.entries:
            return tuple(f"{self.path}[{names[self.columns[0]]}={entry}]" for entry in self.entries)
        return tuple(f"{self.path}[{names[i]}]" for i in self.columns)

    def without_y(self) -> "FieldInfo":
        """The same in a factor of a product that does not carry the unit of y."""
        return self._replace(unit={"y": "1", "y/x": "1/x"}.get(self.unit, self.unit))


@dataclasses.dataclass(frozen=True)
class ByColumn:
    """What a field holds for some of the columns, by their names (or numbers); other columns are left open."""

    items: tuple[tuple[str | int, Any], ...]

    def of(self, path: str, names: Sequence[str], columns: Sequence[int]) -> tuple[Any, ...]:
        """The entries in the order of the columns that the kernel sees."""
        entries = {column_number(key, names): value for key, value in self.items}
        for number in entries:
            if number not in columns:
                visible = ", ".join(names[i] for i in columns)
                raise InputError(f"{path}: the kernel does not see the column {names[number]!r}: it sees {visible}")
        return tuple(entries.get(number) for number in columns)


def column_number(column: str | int, names: Sequence[str]) -> int:
    """The number of a column that is given by its name or number."""
    if isinstance(column, int):
        if not 0 <= column < len(names):
            raise InputError(f"the kernel is for column {column}, but the data has only columns 0 to {len(names) - 1}")
        return column
    if column not in names:
        listed = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        raise InputError(f"there is no column {column!r}: the columns are {listed}")
    return list(names).index(column)


# From where a field stands and what it holds to what it shall hold.
Change = Callable[[FieldInfo, Any], Any]


def join(prefix: str, name: str) -> str:
    """Path of `name` below `prefix`."""
    return f"{prefix}.{name}" if prefix else name


class Kernel(eqx.Module):
    """A covariance function k(x, x'), or the description of a family of them."""

    name: eqx.AbstractVar[str | None]

    @abstractmethod
    def __call__(self, X1: Float[Array, "A D"], X2: Float[Array, "B D"]) -> Float[Array, "A B"]:
        """k(X1, X2)."""

    @abstractmethod
    def gram(self, X: Float[Array, "A D"]) -> Float[Array, "A A"]:
        """k(X, X), symmetric, and exact where rows coincide."""

    @abstractmethod
    def diagonal(self, X: Float[Array, "A D"]) -> Float[Array, " A"]:
        """k(xᵢ, xᵢ) for each row."""

    @abstractmethod
    def map_fields(self, change: Change, n_columns: int, prefix: str = "") -> "Kernel":
        """The same tree with every hyperparameter field replaced by what `change` returns for it."""

    def check(self, n_columns: int) -> None:
        """Refuse, with an InputError, values whose number does not fit data with `n_columns` columns."""
        self.map_fields(_check_shape, n_columns, self.name or "")

    def for_columns(self, names: Sequence[str]) -> "Kernel":
        """The same kernel with numbers where it has names of columns, for data with these columns."""
        return self

    def map_leaves(self, change: "Callable[[Kernel], Kernel]") -> "Kernel":
        """The same tree with every kernel that is not made of others replaced by what `change` returns for it."""
        return change(self)

    def category_levels(self) -> Mapping[int | str, tuple[str, ...] | None]:
        """The columns that hold categories, each with the names of its levels, or None where they are not known yet."""
        return {}

    def without_columns(self, columns: Collection[int], names: Sequence[str]) -> "Kernel":
        """The same kernel, which sees none of these columns unless it was made for one of them."""
        return self

    @property
    def own_scale(self) -> Any:
        """What the field `scale` of a leaf holds; 1.0 for a kernel that has no such field."""
        return 1.0

    def with_scale(self, scale: Any) -> "Kernel":
        """The same kernel with another content of its field `scale`, if it has one."""
        return self

    def named(self, name: str) -> "Kernel":
        """The same kernel under a name, which replaces its position in the paths of its fields."""
        return dataclasses.replace(self, name=name)

    @abstractmethod
    def expression(self, exact: bool) -> str:
        """What makes this kernel, with all digits of its numbers or with six; `parse_kernel` reads it."""

    def __repr__(self) -> str:
        return self.expression(exact=True)

    def __str__(self) -> str:
        return self.expression(exact=False)

    def __check_init__(self):
        if self.name is not None and (not self.name.isidentifier() or self.name in _RESERVED):
            raise InputError(
                f"a kernel cannot be called {self.name!r}: use a plain identifier other than {', '.join(_RESERVED)}"
            )

    def __add__(self, other: "Kernel") -> "Kernel":
        return Sum(parts=_flat(Sum, self, other)) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: "Kernel") -> "Kernel":
        if isinstance(other, Number):
            raise InputError(f"a kernel is not multiplied by a number: give its standard deviation, RBF(scale={other})")
        return Product(parts=_one_scale(_flat(Product, self, other))) if isinstance(other, Kernel) else NotImplemented

    __rmul__ = __mul__


class Sum(Kernel):
    """Σ of kernels: the covariance of a sum of independent functions."""

    parts: tuple[Kernel, ...]
    name: str | None = eqx.field(default=None, static=True)

    def __check_init__(self):
        _refuse_same_names(self.parts)

    def __call__(self, X1: Float[Array, "A D"], X2: Float[Array, "B D"]) -> Float[Array, "A B"]:
        """Σ of the parts."""
        return functools.reduce(operator.add, (k(X1, X2) for k in self.parts))

    def gram(self, X: Float[Array, "A D"]) -> Float[Array, "A A"]:
        """Σ of the parts."""
        return functools.reduce(operator.add, (k.gram(X) for k in self.parts))

    def diagonal(self, X: Float[Array, "A D"]) -> Float[Array, " A"]:
        """Σ of the parts."""
        return functools.reduce(operator.add, (k.diagonal(X) for k in self.parts))

    def map_fields(self, change: Change, n_columns: int, prefix: str = "") -> Kernel:
        """See `Kernel.map_fields`."""
        return Sum(parts=_map_parts(self.parts, change, n_columns, prefix), name=self.name)

    def for_columns(self, names: Sequence[str]) -> Kernel:
        """See `Kernel.for_columns`."""
        return dataclasses.replace(self, parts=tuple(k.for_columns(names) for k in self.parts))

    def map_leaves(self, change: Callable[[Kernel], Kernel]) -> Kernel:
        """See `Kernel.map_leaves`."""
        return dataclasses.replace(self, parts=tuple(k.map_leaves(change) for k in self.parts))

    def category_levels(self) -> Mapping[int | str, tuple[str, ...] | None]:
        """See `Kernel.category_levels`."""
        return _all_levels(self.parts)

    def expression(self, exact: bool) -> str:
        """See `Kernel.expression`."""
        text = " + ".join(k.expression(exact) for k in self.parts)
        return f"({text}).named({self.name!r})" if self.name else text


class Product(Kernel):
    """Π of kernels. Only the product of their scales matters, so at most one scale may be inferred.

    `a * b` leaves the scale with the factor that has a prior on it, else with the first one that leaves it
    open, and fixes the other open scales at 1. This factor carries the unit of y; if all scales are fixed, the first
    one does. The scales of the others are numbers without a unit.
    """

    parts: tuple[Kernel, ...]
    name: str | None = eqx.field(default=None, static=True)

    def __check_init__(self):
        _refuse_same_names(self.parts)

    def __call__(self, X1: Float[Array, "A D"], X2: Float[Array, "B D"]) -> Float[Array, "A B"]:
        """Π of the parts."""
        return functools.reduce(operator.mul, (k(X1, X2) for k in self.parts))

    def gram(self, X: Float[Array, "A D"]) -> Float[Array, "A A"]:
        """Π of the parts."""
        return functools.reduce(operator.mul, (k.gram(X) for k in self.parts))

    def diagonal(self, X: Float[Array, "A D"]) -> Float[Array, " A"]:
        """Π of the parts."""
        return functools.reduce(operator.mul, (k.diagonal(X) for k in self.parts))

    def map_fields(self, change: Change, n_columns: int, prefix: str = "") -> Kernel:
        """See `Kernel.map_fields`."""
        carrier = _unit_carrier(self.parts)

        def change_factor(i: int) -> Change:
            return change if i == carrier else lambda info, value: change(info.without_y(), value)

        parts = tuple(
            part.map_fields(change_factor(i), n_columns, join(prefix, part.name or str(i)))
            for i, part in enumerate(self.parts)
        )
        return Product(parts=parts, name=self.name)

    def for_columns(self, names: Sequence[str]) -> Kernel:
        """See `Kernel.for_columns`."""
        return dataclasses.replace(self, parts=tuple(k.for_columns(names) for k in self.parts))

    def map_leaves(self, change: Callable[[Kernel], Kernel]) -> Kernel:
        """See `Kernel.map_leaves`."""
        return dataclasses.replace(self, parts=tuple(k.map_leaves(change) for k in self.parts))

    def category_levels(self) -> Mapping[int | str, tuple[str, ...] | None]:
        """See `Kernel.category_levels`."""
        return _all_levels(self.parts)

    @property
    def own_scale(self) -> Any:
        """The one scale of the product: the inferred or open scale of a factor, else 1.0."""
        free = _first_free(self.parts)
        return 1.0 if free is None else self.parts[free].own_scale

    def with_scale(self, scale: Any) -> Kernel:
        """The same product with another content of the inferred or open scale, if it has one."""
        free = _first_free(self.parts)
        parts = tuple(k.with_scale(scale) if i == free else k for i, k in enumerate(self.parts))
        return dataclasses.replace(self, parts=parts)

    def expression(self, exact: bool) -> str:
        """See `Kernel.expression`."""
        texts = ((k, k.expression(exact)) for k in self.parts)
        text = " * ".join(f"({text})" if isinstance(k, Sum) and not k.name else text for k, text in texts)
        return f"({text}).named({self.name!r})" if self.name else text


def _check_shape(field_info: FieldInfo, value: Any) -> Any:
    shape = [len(value)] if isinstance(value, tuple) else list(getattr(value, "shape", ()))
    taken = list(field_info.shape)
    if shape and shape != taken:
        each = "entries" if field_info.entries else "columns"
        expected = f"one for each of {taken[0]} {each}" if taken else "a single number"
        raise InputError(f"{field_info.path} has {shape[0]} values, but takes {expected}")
    return value


def _all_levels(parts: tuple[Kernel, ...]) -> Mapping[int | str, tuple[str, ...] | None]:
    """Of all parts, which agree about levels that they know; these count before those that are not known."""
    found: dict[int | str, tuple[str, ...] | None] = {}
    for part in parts:
        for column, levels in part.category_levels().items():
            other = found.get(column)
            if levels and other and levels != other:
                raise InputError(
                    f"the column {column!r} has the levels {', '.join(other[:6])} in one kernel and "
                    f"{', '.join(levels[:6])} in another: give both the same levels, in one order"
                )
            found[column] = found.get(column) or levels
    return found


def _flat(kind: "type[Sum | Product]", *kernels: Kernel) -> tuple[Kernel, ...]:
    """The kernels, unnamed ones of the same kind replaced by their parts."""
    nested = (k.parts if isinstance(k, kind) and k.name is None else (k,) for k in kernels)
    return tuple(part for parts in nested for part in parts)


def _map_parts(parts: tuple[Kernel, ...], change: Change, n_columns: int, prefix: str) -> tuple[Kernel, ...]:
    """`map_fields` of each part, which stands under its name or else its position."""
    return tuple(part.map_fields(change, n_columns, join(prefix, part.name or str(i))) for i, part in enumerate(parts))


def _one_scale(parts: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Fix at 1 the open scales of all factors but one."""
    inferred = [k for k in parts if k.own_scale is not None and not is_fixed(k.own_scale)]
    if len(inferred) > 1:
        raise InputError(
            f"the data cannot tell the scales of {inferred[0]!r} and {inferred[1]!r} apart in a product: "
            "give one of them scale=1.0"
        )
    has_scale = inferred or any(isinstance(k, Sum) for k in parts)
    # By position: the same kernel may stand in a product twice.
    carrier = None if has_scale else _first_free(parts)
    fixed = (k.own_scale is None and i != carrier for i, k in enumerate(parts))
    return tuple(k.with_scale(_unit_scale(k)) if one else k for k, one in zip(parts, fixed, strict=True))


def _unit_scale(kernel: Kernel) -> Any:
    """A scale of 1; of a slope for standardised columns, so that the unit of a column does not matter."""
    units = [field.metadata["unit"] for field in dataclasses.fields(kernel) if field.name == "scale"]
    return standardised(1.0) if units and "x" in units[0] else 1.0


def _first_free(parts: tuple[Kernel, ...]) -> int | None:
    """Position of the first part whose scale is open or inferred."""
    return next((i for i, k in enumerate(parts) if not is_fixed(k.own_scale)), None)


def _unit_carrier(parts: tuple[Kernel, ...]) -> int:
    """Position of the factor whose scale has the unit of y."""
    free = _first_free(parts)
    if free is not None:
        return free
    have_one = (i for i, k in enumerate(parts) if isinstance(k, Sum))
    return next(have_one, next((i for i, k in enumerate(parts) if hasattr(k, "scale")), 0))


def is_fixed(value: Any) -> bool:
    """Whether a field holds only numbers: nothing in it is inferred or left open."""
    if isinstance(value, tuple):
        return all(is_fixed(entry) for entry in value)
    return isinstance(bare(value), float)


def _refuse_same_names(parts: tuple[Kernel, ...]) -> None:
    names = [part.name for part in parts if part.name]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"two kernels of one sum or product are both called {twice[0]!r}: rename one")


def hyperparameter(*, default: Prior | Rule | None = None, per_column: bool = False, unit: str = "1") -> Any:
    """Declare a field of a kernel that holds a number, a prior or None.

    Parameters
    ----------
    default
        The prior of a field that holds None, where the preset of the model has none for it. It may be a function of
        the number of columns; then the prior is made when a model is.
    per_column
        Whether there is one entry per column where the kernel has `ard=True`.
    unit
        See `FieldInfo`.
    """
    metadata = {"default": default, "per_column": per_column, "unit": unit}
    return eqx.field(default=None, converter=number_or_prior, metadata=metadata)


def column_keys(active: Any) -> tuple[int | str, ...] | None:
    """Names or numbers of columns as a tuple; a single one is one column."""
    if active is None:
        return None
    keys = active if isinstance(active, (list, tuple, range, np.ndarray)) else (active,)
    if not all(isinstance(key, (int, np.integer, str)) and not isinstance(key, bool) for key in keys):
        raise InputError(
            f"active takes names of columns, such as active=('temp', 'hr'), or numbers from 0, not {active!r}"
        )
    return tuple(str(key) if isinstance(key, str) else int(key) for key in keys)


class LeafKernel(Kernel):
    """A kernel that is not made of others. `active` are the columns it sees, by name or number (all by default)."""

    active: tuple[int | str, ...] | None = eqx.field(default=None, converter=column_keys, static=True, kw_only=True)
    name: str | None = eqx.field(default=None, static=True, kw_only=True)
    # Fields that an expression may give without their names.
    positional: ClassVar[tuple[str, ...]] = ()

    def columns(self, X: Float[Array, "A D"]) -> Float[Array, "A C"]:
        """The columns of X that this kernel sees."""
        return X if self.active is None else X[:, np.asarray(self._numbers())]

    def _numbers(self) -> tuple[int, ...]:
        """The columns it sees, as numbers."""
        if any(isinstance(column, str) for column in self.active or ()):
            raise InputError(f"{self!r} names its columns: make a Model of it with the names of the data's columns")
        return tuple(column for column in self.active or () if isinstance(column, int))

    def active_columns(self, n_columns: int) -> tuple[int, ...]:
        """The columns it sees of data with `n_columns`; an InputError if it wants one that is not there."""
        if self.active is None:
            return tuple(range(n_columns))
        numbers = self._numbers()
        if not numbers or min(numbers) < 0 or len(set(numbers)) != len(numbers):
            raise InputError(f"{self!r}: active must be distinct column numbers from 0, not {self.active}")
        if max(numbers) >= n_columns:
            raise InputError(
                f"{self!r} is for column {max(numbers)}, but the data has only columns 0 to {n_columns - 1}"
            )
        return numbers

    def for_columns(self, names: Sequence[str]) -> Kernel:
        """See `Kernel.for_columns`."""
        active = self.active
        if active is not None and any(isinstance(column, str) for column in active):
            active = tuple(column_number(column, names) for column in active)
        kernel = dataclasses.replace(self, active=active)
        columns, values = kernel.active_columns(len(names)), {}
        for field in dataclasses.fields(self):
            held = getattr(self, field.name)
            if isinstance(held, ByColumn):
                entries = held.of(field.name, names, columns)
                per_column = field.metadata["per_column"] and getattr(self, "ard", False)
                if not per_column and len(entries) > 1:
                    reason = "with ard=True" if field.metadata["per_column"] else "for a kernel of one column"
                    raise InputError(f"{field.name} has an entry for each column only {reason}: give one value")
                values[field.name] = entries if per_column else next(iter(entries))
        return dataclasses.replace(kernel, **values) if values else kernel

    def without_columns(self, columns: Collection[int], names: Sequence[str]) -> Kernel:
        """See `Kernel.without_columns`."""
        own = self.active_columns(len(names))
        others = tuple(i for i in own if i not in columns)
        if others == own:
            return self
        name = names[next(i for i in own if i in columns)]
        if self.active is not None:
            raise InputError(
                f"{self} looks at the column {name!r}, which holds categories: leave it out of active, and multiply by "
                f"Categorical({name!r})"
            )
        if not others:
            raise InputError(f"{self} has no column to see: {', '.join(names)} hold categories. Leave this kernel out")
        return dataclasses.replace(self, active=others)

    def map_fields(self, change: Change, n_columns: int, prefix: str = "") -> Kernel:
        """See `Kernel.map_fields`."""
        columns = self.active_columns(n_columns)
        ard = getattr(self, "ard", False)
        values = {}
        for field in dataclasses.fields(self):
            if "per_column" in field.metadata:
                shape = (len(columns),) if ard and field.metadata["per_column"] else ()
                unit, default = field.metadata["unit"], field.metadata["default"]
                field_info = FieldInfo(join(prefix, field.name), field.name, columns, shape, unit, default)
                values[field.name] = change(field_info, getattr(self, field.name))
        return dataclasses.replace(self, **values)

    @property
    def own_scale(self) -> Any:
        """What the field `scale` holds; 1.0 where there is none."""
        return getattr(self, "scale", 1.0)

    def with_scale(self, scale: Any) -> Kernel:
        """The same kernel with another content of its field `scale`, if it has one."""
        return dataclasses.replace(self, scale=scale) if hasattr(self, "scale") else self  # pyright: ignore[reportCallIssue]

    def expression(self, exact: bool) -> str:
        """See `Kernel.expression`."""
        fields = sorted(dataclasses.fields(self), key=lambda f: bool(f.kw_only))  # hyperparameters first
        held = ((f.name, getattr(self, f.name), f.default) for f in fields)
        shown = (f"{name}={value_text(value, exact)}" for name, value, default in held if value is not default)
        return f"{type(self).__name__}({', '.join(shown)})"


def number_or_prior(value: Any, name: str = "a hyperparameter") -> Any:
    """Numbers become floats or tuples, so that descriptions can be compared and hashed; JAX arrays stay."""
    if isinstance(value, (bool, str)):
        raise InputError(f"{name} is a number or a prior such as Gamma(2, 1), not {value!r}")
    if isinstance(value, (int, float, np.number)):
        return float(value)
    if isinstance(value, Mapping):
        keys = (int(key) if isinstance(key, (int, np.integer)) else key for key in value)
        items = tuple((key, number_or_prior(entry, name)) for key, entry in zip(keys, value.values(), strict=True))
        if not items or not all(
            isinstance(key, (int, str)) and not isinstance(entry, (tuple, ByColumn)) for key, entry in items
        ):
            raise InputError(f"{name}: give one number or prior for each column, by name, not {value!r}")
        return ByColumn(items)
    if isinstance(value, (list, tuple)) and any(isinstance(v, (Prior, Standardised)) or v is None for v in value):
        return tuple(number_or_prior(v, name) for v in value)
    if isinstance(value, (list, tuple, np.ndarray)):
        array = np.asarray(value)
        if array.dtype.kind not in "iuf" or array.ndim > 1:
            raise InputError(f"{name} is a number, one number a column, or a prior, not {value!r}")
        return float(array) if array.ndim == 0 else tuple(float(v) for v in array)
    return value


def value_text(value: Any, exact: bool) -> str:
    """What a field holds, as it is written."""
    if isinstance(value, float):
        return number_text(value, exact)
    if isinstance(value, tuple):
        return "(" + ", ".join(value_text(v, exact) for v in value) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, ByColumn):
        return "{" + ", ".join(f"{key!r}: {value_text(entry, exact)}" for key, entry in value.items) + "}"
    if isinstance(value, (Prior, Standardised)):
        return value.expression(exact)
    return repr(value) if isinstance(value, (bool, str, int)) else str(value)
