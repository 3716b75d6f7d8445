"""Columns that hold categories: the names of their levels, and codes 0, 1, ... in the place of the names.

A table (a data frame, or an array of objects) holds the categories themselves, words or numbers. An array of numbers
holds codes. A category that no level has is coded as K, one more than the last level.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from integrand.errors import InputError

# More different words than this are names of rows, not categories.
MOST_LEVELS = 100
# Types of columns, as pandas and polars print them, that hold words.
_WORDS = ("category", "categorical", "enum", "string", "str", "utf8")


def is_table(X: Any) -> bool:
    """Whether X has columns with names and types of their own."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def holds_words(column: Any) -> bool:
    """Whether a column of a table, or a vector, holds something else than numbers, dates and times."""
    kind = str(getattr(column, "dtype", "")).lower()
    if kind.startswith(_WORDS):
        return True
    if kind != "object":
        return False
    try:
        np.asarray(column, float)
    except (TypeError, ValueError):
        return any(isinstance(value, str) for value in column)
    return False


def _texts(column: Any, name: Any) -> np.ndarray:
    """Each category as text; whole numbers without a point. A missing one is an InputError."""
    values = np.asarray(column, dtype=object).ravel()
    texts: dict[Any, str] = {}
    for row, value in enumerate(values):
        if value in texts:
            continue
        if value is None or (str(value) in ("nan", "<NA>", "NaT") and not isinstance(value, str)):
            raise InputError(
                f"column {name!r} is missing in row {row}: drop such rows, or give them a level of their own"
            )
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        texts[value] = str(int(value)) if number and float(value).is_integer() else str(value)
    return np.array([texts[value] for value in values], dtype=object)


def levels_of(column: Any, name: Any) -> tuple[str, ...]:
    """The levels of a column: those that its type lists, else those that occur, numbers by size and words by letter."""
    listed = getattr(getattr(column, "dtype", None), "categories", None)
    if listed is not None and str(column.dtype) == "category":
        _texts(column, name)  # refuses missing ones
        return tuple(dict.fromkeys(_texts(np.asarray(listed), name)))
    return sorted_levels(set(_texts(column, name)), name)


def sorted_levels(found: set[str], name: Any) -> tuple[str, ...]:
    """These levels in an order that does not depend on the rows."""
    if len(found) > MOST_LEVELS:
        raise InputError(
            f"column {name!r} has {len(found)} different categories (limit {MOST_LEVELS}): join rare ones, or drop it"
        )

    def order(level: str) -> tuple[bool, float, str]:
        try:
            return False, float(level), level
        except ValueError:
            return True, 0.0, level

    return tuple(sorted(found, key=order))


def codes_of(column: Any, levels: Sequence[str], name: Any, known: bool = False) -> Float[np.ndarray, " N"]:
    """The code of each category; K where it is none of the K levels, or an InputError where all must be `known`."""
    codes = {level: float(code) for code, level in enumerate(levels)}
    texts = _texts(column, name)
    if known and (strange := sorted(set(texts) - set(codes))):
        raise InputError(
            f"column {name!r} holds {strange[0]!r}, which is none of its {len(levels)} levels "
            f"({', '.join(levels[:6])}{', ...' * (len(levels) > 6)}): leave such rows out, or fit all rows again"
        )
    return np.array([codes.get(text, float(len(levels))) for text in texts])


def coded(
    X: Any, levels: Mapping[Any, Sequence[str] | None], known_only: bool = False
) -> tuple[Any, dict[int, tuple[str, ...]]]:
    """X with codes in the place of categories, and the levels of each column that held them; a new object.

    Parameters
    ----------
    X
        A table or an array.
    levels
        The columns that hold categories, by number or name, each with its levels, or None: those that occur.
    known_only
        True: a category that no level has is an InputError.
    """
    names: list[Any] = list(X.columns) if is_table(X) else list(range(np.shape(X)[1])) if np.ndim(X) == 2 else []
    known: dict[int, Sequence[str] | None] = {}
    for column, of_column in levels.items():
        if isinstance(column, int) and 0 <= column < len(names):
            known[column] = of_column
        elif isinstance(column, str) and column in names:
            known[names.index(column)] = of_column
    if is_table(X):
        words = [name for i, name in enumerate(names) if i not in known and holds_words(X[name])]
        if words:
            raise InputError(about_words(words[0], X[words[0]]))
        found = {i: tuple(v or levels_of(X[names[i]], names[i])) for i, v in known.items()}
        codes = {names[i]: codes_of(X[names[i]], v, names[i], known_only) for i, v in found.items()}
        return (_replaced(X, codes) if codes else X), found
    array = np.asarray(X)
    if array.dtype.kind not in "OUS" or array.ndim != 2:
        return X, {}
    array = array.astype(object)
    found = {i: tuple(v or levels_of(array[:, i], i)) for i, v in known.items()}
    for i, of_column in found.items():
        array[:, i] = codes_of(array[:, i], of_column, i, known_only)
    return array, found


def refuse_numbers(X: Any, levels: Mapping[int, Sequence[str]], names: Sequence[str]) -> None:
    """Refuse an array of numbers where levels are numbers, too, but not their own codes: nobody can tell which it has.

    Tables and arrays of objects hold the levels themselves.
    """
    if is_table(X) or np.asarray(X).dtype.kind in "OUS":
        return
    for column, of_column in levels.items():
        if tuple(of_column) != tuple(map(str, range(len(of_column)))) and all(map(_is_number, of_column)):
            raise InputError(
                f"the levels of the column {names[column]!r} are the numbers {', '.join(of_column[:6])}, and an array "
                "of numbers may hold these or their codes: give a data frame, or an array of objects, with the levels"
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def about_words(name: Any, column: Any = None) -> str:
    """What to do about a column of words that no kernel speaks of."""
    with contextlib.suppress(TypeError, ValueError):
        if column is not None and any(isinstance(value, str) for value in column):
            np.asarray(column, float)
            return f"column {name!r} holds numbers as text: convert it to numbers, or use Categorical({name!r})"
    return f"column {name!r} holds words: use Categorical({name!r}) in the kernel, or drop it"


def _replaced(X: Any, codes: Mapping[Any, np.ndarray]) -> Any:
    """A table of pandas or polars with other columns in the place of some."""
    if hasattr(X, "with_columns"):
        return X.with_columns(*(type(X[name])(name, values) for name, values in codes.items()))
    X = X.copy()
    for name, values in codes.items():
        X[name] = values
    return X


def refuse_other_levels(
    theirs: Mapping[str, Sequence[str]], levels: Mapping[int, Sequence[str]], columns: Sequence[str], what: str
) -> None:
    """Rows that bring levels of their own, by name of their `columns`, agree with a model about codes; or it is said.

    `what` they are, in words.
    """
    for column, of_column in levels.items():
        own = theirs.get(columns[column], of_column)
        if tuple(own) != tuple(of_column):
            raise InputError(
                f"the {what} have the levels {', '.join(own[:6])} in the column {columns[column]!r}, and the model "
                f"{', '.join(of_column[:6])}: give both the same levels, in one order, or a data frame of the names"
            )


def unknown_rows(
    X: Float[np.ndarray, "T D"], levels: Mapping[int, Sequence[str]], names: Sequence[str]
) -> dict[str, int]:
    """By column the rows whose category is none of its levels. A number that cannot be a code is an InputError."""
    counts = {}
    for column, of_column in levels.items():
        codes, name = X[:, column], names[column]
        if (bad := (codes != np.round(codes)) | (codes < 0)).any():
            raise InputError(
                f"column {name!r} holds {codes[bad][0]:g}, which is no category: in arrays of numbers give the codes 0 "
                f"to {len(of_column) - 1} of its levels ({', '.join(of_column[:6])}{', ...' * (len(of_column) > 6)})"
            )
        if count := int((codes >= len(of_column)).sum()):
            counts[name] = count
    return counts
