"""What all kernels that are not made of others share: their fields and the columns they see."""

import dataclasses
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from integrand.errors import InputError
from integrand.kernels.base import Change, Kernel, Slot, join
from integrand.priors import Prior


def hyperparameter(*, per_column: bool = False, unit: str = "1") -> Any:
    """Declare a field that holds a number, a prior or None; `per_column` fields have one entry a column (ARD)."""
    return eqx.field(default=None, converter=number_or_prior, metadata={"per_column": per_column, "unit": unit})


class LeafKernel(Kernel):
    """A kernel that is not made of others. `active` are the columns it sees (all by default)."""

    active: tuple[int, ...] | None = eqx.field(default=None, static=True, kw_only=True)
    name: str | None = eqx.field(default=None, static=True, kw_only=True)

    def columns(self, X: Float[Array, "A D"]) -> Float[Array, "A C"]:
        """The columns of X that this kernel sees."""
        return X if self.active is None else X[:, np.asarray(self.active)]

    def active_columns(self, n_columns: int) -> tuple[int, ...]:
        """The columns it sees of data with `n_columns`; an InputError if it wants one that is not there."""
        if self.active is None:
            return tuple(range(n_columns))
        if not self.active or min(self.active) < 0 or len(set(self.active)) != len(self.active):
            raise InputError(f"{self!r}: active must be distinct column numbers from 0, not {self.active}")
        if max(self.active) >= n_columns:
            raise InputError(
                f"{self!r} is for column {max(self.active)}, but the data has only columns 0 to {n_columns - 1}"
            )
        return self.active

    def map_fields(self, change: Change, n_columns: int, prefix: str = "") -> Kernel:
        """See `Kernel.map_fields`."""
        columns = self.active_columns(n_columns)
        ard = getattr(self, "ard", False)
        values = {}
        for field in dataclasses.fields(self):
            if "per_column" in field.metadata:
                shape = (len(columns),) if ard and field.metadata["per_column"] else ()
                slot = Slot(join(prefix, field.name), field.name, columns, shape, field.metadata["unit"])
                values[field.name] = change(slot, getattr(self, field.name))
        return dataclasses.replace(self, **values)

    @property
    def own_scale(self) -> Any:
        """What the field `scale` holds."""
        return self.scale  # pyright: ignore[reportAttributeAccessIssue]

    def with_scale(self, scale: Any) -> Kernel:
        """The same kernel with another content of its field `scale`."""
        return dataclasses.replace(self, scale=scale)  # pyright: ignore[reportCallIssue]

    def __repr__(self) -> str:
        fields = sorted(dataclasses.fields(self), key=lambda f: bool(f.kw_only))  # hyperparameters first
        held = ((f.name, getattr(self, f.name), f.default) for f in fields)
        shown = (f"{name}={_text(value)}" for name, value, default in held if value is not default)
        return f"{type(self).__name__}({', '.join(shown)})"


def number_or_prior(value: Any, name: str = "a hyperparameter") -> Any:
    """Numbers become floats or tuples, so that descriptions can be compared and hashed; JAX arrays stay."""
    if isinstance(value, (bool, str)):
        raise InputError(f"{name} is a number or a prior such as Gamma(2, 1), not {value!r}")
    if isinstance(value, (int, float, np.number)):
        return float(value)
    if isinstance(value, (list, tuple, np.ndarray)):
        array = np.asarray(value)
        if array.dtype.kind not in "iuf" or array.ndim > 1:
            raise InputError(f"{name} is a number, one number a column, or a prior, not {value!r}")
        return float(array) if array.ndim == 0 else tuple(float(v) for v in array)
    return value


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return "(" + ", ".join(_text(v) for v in value) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, (Prior, bool, str, int)):
        return repr(value)
    return str(value)
