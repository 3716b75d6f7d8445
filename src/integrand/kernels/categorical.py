"""The kernel of a column that holds categories: stations, outputs, fidelities."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from integrand.data.categories import MOST_LEVELS
from integrand.errors import InputError
from integrand.kernels.base import (
    ByColumn,
    Change,
    FieldInfo,
    Kernel,
    LeafKernel,
    column_keys,
    hyperparameter,
    join,
)
from integrand.kernels.registry import register_kernel
from integrand.priors import Exponential, Gamma, HalfCauchy, Normal, Prior, bare, on_variance, standardised

# Rows that pivots are chosen by, and the distance, in standard deviations of a column, of rows that are near.
PIVOT_ROWS, _NEAR = 1_000, 0.3


def _levels(levels: Any) -> tuple[str, ...] | None:
    if levels is None:
        return None
    if isinstance(levels, str):
        raise InputError(f"levels are several names, such as levels=('A', 'B'), not {levels!r}")
    names = tuple(map(str, levels))
    if not names or len(set(names)) < len(names):
        raise InputError(f"levels are different names, at least one, not {', '.join(names) or 'none'}")
    if len(names) > MOST_LEVELS:
        raise InputError(f"a column with {len(names)} categories (limit {MOST_LEVELS}): join rare ones, or drop it")
    return names


@register_kernel
class Categorical(LeafKernel):
    """Coregionalisation: scale² B[c, c'] for rows of levels c and c' of one column, B = W Wᵀ + diag(kappa).

    Multiplied by a kernel of the other columns it says how alike the functions of two levels are; added to one it gives
    each level an offset. Kernels without `active` do not see the column.

    W (K, rank) has zeros above its diagonal, where it is positive, so that each W Wᵀ has one W. By default its entries
    below are N(0, 1), and W_jj² is χ² with rank - j + 1 degrees of freedom. Then W Wᵀ is distributed as if all entries
    of a full W were N(0, 1), and the prior does not depend on the order of the levels. So any levels, the `pivots`, may
    be the rows with zeros. `kappa` are Exponential(1).

    Parameters
    ----------
    active
        The column, by name or number.
    rank
        Columns of W; 0 makes the levels independent. With K levels no more than K - 1 are used, which reach every
        positive definite B.
    weights
        Fixed entries of W, row after row without the zeros above its diagonal. Left open they have the prior above.
    kappa
        The variance of a level that it shares with no other: one number or prior, or one for each level.
    scale
        In units of y. In a product with kernels whose scale is open one of both is fixed at 1.
    levels
        Names of the levels in the order of their codes 0, 1, ...; by default those in the data.
    pivots
        Levels whose rows of W have zeros, one for each column of W; by default those that some of the data suggest.

    Notes
    -----
    A row holds a code. One that belongs to no level is an unknown category: f there is uncorrelated with all levels,
    and its variance is the mean of theirs. All unknown categories count as one.
    """

    active: Any = eqx.field(default=None, converter=column_keys, static=True)
    rank: int = eqx.field(default=2, static=True)
    weights: Any = hyperparameter()
    kappa: Any = hyperparameter(default=lambda n_columns: Exponential(1.0))
    scale: Any = hyperparameter(default=lambda n_columns: HalfCauchy(1.0), unit="y")
    levels: Any = eqx.field(default=None, converter=_levels, static=True, kw_only=True)
    pivots: Any = eqx.field(default=None, converter=_levels, static=True, kw_only=True)
    positional: ClassVar[tuple[str, ...]] = ("active",)

    def __check_init__(self):
        if self.active is None or len(self.active) != 1:
            raise InputError("Categorical is for one column: write Categorical('station')")
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 0:
            raise InputError(f"Categorical: rank must be a whole number from 0, not {self.rank!r}")
        if isinstance(bare(self.weights), Prior | float):
            raise InputError("Categorical: weights are all entries of W as numbers, row after row; or leave them out")
        if any(isinstance(held, ByColumn) for held in (self.weights, self.kappa, self.scale)):
            raise InputError("Categorical: give one number or prior for each level in a tuple, not by names of columns")
        if self.pivots is not None and self.levels is not None:
            strange = [level for level in self.pivots if level not in self.levels]
            if strange or len(self.pivots) != self._rank:
                raise InputError(
                    f"Categorical: pivots are {self._rank} of the levels {', '.join(self.levels)}, not "
                    f"{', '.join(self.pivots)}"
                )

    @property
    def column(self) -> int | str:
        """The column that it sees."""
        return self.active[0]

    def category_levels(self) -> Mapping[int | str, tuple[str, ...] | None]:
        """See `Kernel.category_levels`."""
        return {self.column: self.levels}

    def with_levels(self, levels: Mapping[int | str, Sequence[str]]) -> "Categorical":
        """The same kernel with the names of the levels of its column, if it has no names of its own."""
        return self if self.levels is not None else dataclasses.replace(self, levels=tuple(levels[self.column]))

    def with_pivots(
        self, X: Float[np.ndarray, "N D"], y: Float[np.ndarray, " N"], columns: Collection[int]
    ) -> "Categorical":
        """The same kernel with the pivots that some standardised rows suggest; `columns` hold categories.

        Which levels they are changes the coordinates alone. Where the loading of a pivot may be zero, the signs of its
        column of W are not known, and chains would not agree about them. So they are levels with large loadings.
        """
        is_open = self.weights is None or self.weights == tuple(map(standardised, self._priors()))
        if self.levels is None or not self._rank or self.pivots is not None or not is_open:
            return self
        numbers = [i for i in range(X.shape[1]) if i not in columns]
        chosen = pivots(X[:, numbers], y, X[:, self._numbers()[0]], len(self.levels), self._rank)
        return dataclasses.replace(self, weights=None, pivots=tuple(self.levels[i] for i in chosen))

    def without_columns(self, columns: Collection[int], names: Sequence[str]) -> Kernel:
        """Itself: it is for such a column."""
        return self

    @property
    def _rank(self) -> int:
        """Columns of W that are used."""
        return min(self.rank, len(self.levels) - 1)

    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the entries of W: those of the pivots first, then row after row."""
        first = [self.levels.index(level) for level in self.pivots or ()]
        order = np.array(first + [i for i in range(len(self.levels)) if i not in first])
        rows, columns = np.nonzero(np.tri(len(order), self._rank))
        return order[rows], columns

    def _priors(self) -> tuple[Prior, ...]:
        """Of the entries of W: those of the LQ decomposition of a full matrix of standard normal numbers."""
        rows, columns = np.nonzero(np.tri(len(self.levels), self._rank))
        return tuple(
            on_variance(Gamma(0.5 * (self._rank - j), 0.5)) if i == j else Normal()
            for i, j in zip(rows.tolist(), columns.tolist(), strict=True)
        )

    def map_fields(self, change: Change, n_columns: int, prefix: str = "") -> Kernel:
        """See `Kernel.map_fields`. Vectors have no length, and are left as they are, before the levels are known."""
        columns, values = self.active_columns(n_columns), {}

        def changed(field: str, default: Any, unit: str = "1", entries: tuple[str, ...] = (), signed: bool = False):
            shape = (len(entries),) if entries else ()
            info = FieldInfo(join(prefix, field), field, columns, shape, unit, default, entries, signed)
            values[field] = change(info, getattr(self, field))

        if self.levels is not None:
            rows, below = self._places()
            if len(rows):
                names = tuple(f"{self.levels[i]},{j + 1}" for i, j in zip(rows, below, strict=True))
                changed("weights", self._priors(), entries=names, signed=True)
            changed("kappa", Exponential(1.0), entries=self.levels)
        changed("scale", HalfCauchy(1.0), "y")
        return dataclasses.replace(self, **values)

    def covariance(self) -> Float[Array, "K K"]:
        """scale² B, between the levels."""
        B = jnp.diag(jnp.broadcast_to(jnp.asarray(self.kappa), (len(self.levels),)))
        rows, below = self._places()
        if len(rows):
            W = jnp.zeros((len(self.levels), self._rank), B.dtype).at[rows, below].set(jnp.asarray(self.weights))
            shared = W @ W.T
            B = B + 0.5 * (shared + shared.T)  # exactly symmetric
        return self.scale**2 * B

    def _with_unknown(self) -> Float[Array, "L L"]:
        """The same with one level more, for all categories that are unknown."""
        if self.levels is None:
            raise InputError(f"the levels of {self} are not known: give levels=('A', 'B'), or fit it to data")
        B = self.covariance()
        return jnp.pad(B, (0, 1)).at[-1, -1].set(jnp.mean(jnp.diagonal(B)))

    def _indicators(self, X: Float[Array, "A D"]) -> Float[Array, "A L"]:
        """1 in the column of a row's level, the last one for unknown categories; constant in X."""
        code = jnp.round(self.columns(X))
        K = len(self.levels)
        known = (code >= 0.0) & (code < K)
        return (jnp.where(known, code, float(K)) == np.arange(K + 1.0)).astype(X.dtype)

    def __call__(self, X1: Float[Array, "A D"], X2: Float[Array, "B D"]) -> Float[Array, "A B"]:
        """scale² B[c, c']."""
        B = self._with_unknown()
        return self._indicators(X1) @ B @ self._indicators(X2).T

    def gram(self, X: Float[Array, "A D"]) -> Float[Array, "A A"]:
        """scale² B[c, c']."""
        return self(X, X)

    def diagonal(self, X: Float[Array, "A D"]) -> Float[Array, " A"]:
        """scale² B[c, c] for each row."""
        B = jnp.diagonal(self._with_unknown())
        return self._indicators(X) @ B

    def expression(self, exact: bool) -> str:
        """See `Kernel.expression`. In short, without the vectors."""
        if exact or self.levels is None:
            return super().expression(exact)
        hidden = {"weights": None, "kappa": None} if isinstance(self.kappa, tuple) else {"weights": None}
        short = dataclasses.replace(self, **hidden, levels=None, pivots=None)
        return short.expression(exact)


def pivots(
    X: Float[np.ndarray, "N C"], y: Float[np.ndarray, " N"], codes: Float[np.ndarray, " N"], n_levels: int, rank: int
) -> list[int]:
    """`rank` levels with large loadings, from covariances between levels that rows near to each other show.

    B_ab is the mean of yᵢ yⱼ over rows i of level a and j of level b, i ≠ j, weighted by how near their inputs are. Its
    leading eigenvectors are W, and the pivots those of W's rows by Gram and Schmidt, the longest one first.
    """
    squares = np.sum(X**2, axis=1)
    distances = np.maximum(squares[:, None] + squares[None, :] - 2.0 * X @ X.T, 0.0) / max(X.shape[1], 1)
    near = np.exp(-0.5 * distances / _NEAR**2)
    np.fill_diagonal(near, 0.0)
    of_level = (codes[:, None] == np.arange(n_levels)).astype(float)
    centred = of_level * (y - y.mean())[:, None]
    B = (centred.T @ near @ centred) / np.maximum(of_level.T @ near @ of_level, 1e-300)
    values, vectors = np.linalg.eigh(B)
    W, chosen = vectors[:, -rank:] * np.sqrt(np.maximum(values[-rank:], 1e-12)), []
    for _ in range(rank):  # the longest row, and then what is left of the others
        chosen.append(int(np.argmax(np.sum(W**2, axis=1))))
        along = W[chosen[-1]] / max(float(np.linalg.norm(W[chosen[-1]])), 1e-300)
        W = W - np.outer(W @ along, along)
        W[chosen] = 0.0
    return chosen


def checked_codes(
    X: Float[np.ndarray, "N D"], levels: Mapping[int, Sequence[str]], names: Sequence[str], what: str
) -> None:
    """Refuse codes that are not those of known levels, where all must be known; `what` holds them, in words."""
    for column, known in levels.items():
        codes = X[:, column]
        bad = (codes != np.round(codes)) | (codes < 0) | (codes >= len(known))
        if bad.any():
            held = f"{what} hold {codes[bad][0]:g} in the column {names[column]!r}"
            raise InputError(f"{held}, which is no code of its {len(known)} categories: use 0 to {len(known) - 1}")
