"""Rows as the library takes them: finite float64 arrays of matching shapes, or an error that names what is wrong."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from integrand.errors import InputError


def checked_rows(X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """X as float64 (N, D) and y as float64 (N,), or an InputError that names what is wrong."""
    X, y = checked_matrix(X, "X"), _numbers(y, "y")
    if y.ndim != 1:
        hint = ": use y.ravel() for a single output" if y.ndim == 2 and y.shape[1] == 1 else ""
        raise InputError(f"y must be one-dimensional, but has shape {y.shape}{hint}")
    if len(X) != len(y):
        raise InputError(f"X has {len(X)} rows and y has {len(y)}: they must be equal")
    _refuse_non_finite(y, "y")
    return X, y


def checked_matrix(X: Any, name: str) -> np.ndarray:
    """A non-empty, finite float64 matrix, or an InputError that names what is wrong."""
    refuse_series(X, name)
    X = _numbers(X, name)
    if X.ndim != 2:
        hint = f": use {name}.reshape(-1, 1) for one column, {name}.reshape(1, -1) for one row" if X.ndim == 1 else ""
        raise InputError(f"{name} must be two-dimensional (rows, columns), but has shape {X.shape}{hint}")
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise InputError(f"{name} is empty: its shape is {X.shape}")
    _refuse_non_finite(X, name)
    return X


def refuse_series(X: Any, name: str) -> None:
    """A Series of pandas or polars is one row or one column of a table, and not a table."""
    if type(X).__name__ == "Series" and hasattr(X, "to_frame"):
        column = X.name if isinstance(X.name, str) else "a"
        raise InputError(
            f"{name} is a Series, not a table: give df[[{column!r}]] for one column, or df.iloc[[0]] for one row"
        )


def refuse_other_columns(X: Any, columns: Sequence[str]) -> None:
    """An InputError if X is a data frame without some columns of the model, or with these in another order.

    Where one of the two has the automatic names x0, x1, ... alone, columns go by their place.
    """
    names = list(getattr(X, "columns", ())) if hasattr(X, "dtypes") else []
    if not names or not all(isinstance(name, str) for name in names) or names == list(columns):
        return
    unnamed = [f"x{i}" for i in range(len(columns))]
    if set(names).isdisjoint(columns) and unnamed in (names, list(columns)):
        return
    wanted = ", ".join(columns)
    if missing := [name for name in columns if name not in names]:
        raise InputError(f"X has no column {', '.join(map(repr, missing))}: the model was fitted to {wanted}")
    if len(names) == len(columns):
        given = ", ".join(names)
        raise InputError(f"the columns are {given}, but the model was fitted to {wanted}: give X[{list(columns)!r}]")


def refuse_words(y: Any) -> None:
    """A target of words is one of classes."""
    try:
        array = np.asarray(y)
        if array.dtype.kind in "OU":
            array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        word = next((value for value in np.asarray(y, object).ravel() if isinstance(value, str)), None)
        if word is not None:
            raise InputError(
                f"the target holds words, such as {str(word)!r}, and this model predicts numbers: use "
                "SparseGPClassifier for classes"
            ) from None


def _numbers(values: Any, name: str) -> np.ndarray:
    if name == "y":
        refuse_words(values)
    try:
        array = np.asarray(values)
        if array.dtype.kind == "c":
            raise InputError(f"{name} holds complex numbers: give the real part, or modulus and phase as columns")
        return array.astype(np.float64)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} holds values that are not numbers ({error}): encode or drop them") from None


def _refuse_non_finite(array: np.ndarray, name: str) -> None:
    bad = ~np.isfinite(array)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        position = f"row {where[0]}" + (f", column {where[1]}" if len(where) > 1 else "")
        raise InputError(
            f"{name} has {int(bad.sum())} NaN or infinite values, the first at {position}: drop or impute them"
        )


def checked_variances(values: Any, n_rows: int) -> np.ndarray:
    """Known noise variances as float64 (N,), finite and not negative, or an InputError that names what is wrong."""
    v = _numbers(values, "noise_variance")
    if v.shape != (n_rows,):
        raise InputError(f"noise_variance has shape {v.shape}: one number for each of the {n_rows} rows is needed")
    _refuse_non_finite(v, "noise_variance")
    if (v < 0).any():
        row = int(np.argmax(v < 0))
        raise InputError(
            f"noise_variance is {v[row]:g} in row {row}: a variance, in squared units of y, is not negative"
        )
    return v


def logarithms(y: np.ndarray, name: str, where: Callable[[int], str]) -> np.ndarray:
    """Log y, or an InputError that names the first row that has none, by `where`."""
    if (y <= 0.0).any():
        row = int(np.argmax(y <= 0.0))
        raise InputError(
            f"{where(row)}: {name} is {y[row]:g}, but this target_transform takes a logarithm and needs numbers above "
            "zero: use the target_transform sinh-arcsinh, which takes all numbers"
        )
    return np.log(y)
