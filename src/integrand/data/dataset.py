"""A dataset knows how to sum over its rows; nothing above it knows in how many pieces that happens."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from integrand.errors import InputError
from integrand.precision import in_float64

T = TypeVar("T")

# Bytes of a block of k(Z, X): one that stays in cache is half again as fast as one five times as large.
_BLOCK_BYTES = 4 * 2**20


def block_rows_for(n_inducing: int) -> int:
    """Rows a block for which the block of k(Z, X) stays in cache."""
    return max(64, _BLOCK_BYTES // (8 * max(n_inducing, 1)))


class Rows(NamedTuple):
    """One block of rows. Padding rows are zero and have weight 0; without any, `weight` is None."""

    X: Float[Array, "..."]
    y: Float[Array, "..."]
    weight: Float[Array, "..."] | None

    def masked(self, values: Float[Array, "..."]) -> Float[Array, "..."]:
        """`values`, whose last axis runs over the rows, with zeros in the padding."""
        return values if self.weight is None else values * self.weight


class Dataset(eqx.Module):
    """Rows of (X, y) in blocks of equal length, as JAX arrays in float64.

    Build one with `Dataset.of(X, y)`. The only operations on rows are `sum` and `sum_and_keep`.
    """

    blocks: Rows  # each array with a leading axis of blocks
    n_rows: int = eqx.field(static=True)

    @classmethod
    @in_float64
    def of(cls, X: Any, y: Any, block_rows: int = 1024) -> "Dataset":
        """Check X (N, D) and y (N,) and cut them into near-equal blocks of at most `block_rows` rows."""
        X, y = checked_rows(X, y)
        if block_rows < 1:
            raise InputError(f"block_rows must be at least 1, not {block_rows}")
        n_rows = len(y)
        n_blocks = -(-n_rows // block_rows)
        length = -(-n_rows // n_blocks)
        padding = n_blocks * length - n_rows

        def cut(values):
            padded = np.pad(values, [(0, padding)] + [(0, 0)] * (values.ndim - 1))
            return jnp.asarray(padded.reshape(n_blocks, length, *values.shape[1:]))

        weight = cut(np.ones(n_rows)) if padding else None
        return cls(Rows(cut(X), cut(y), weight), n_rows)

    @property
    def n_columns(self) -> int:
        """D."""
        return self.blocks.X.shape[-1]

    @property
    def n_padded(self) -> int:
        """Number of rows with padding."""
        return self.blocks.y.size

    def sum(self, summand: Callable[..., T], *kept: Any) -> T:
        """Σ over blocks of summand(rows, *kept_of_that_block), a pytree of arrays."""
        return self.sum_and_keep(lambda rows, *block: (summand(rows, *block), None), *kept)[0]

    def sum_and_keep(self, summand: Callable[..., tuple[T, Any]], *kept: Any) -> tuple[T, Any]:
        """Sum the first result of `summand` over blocks and stack its second result, one entry a block.

        `kept` are such stacks from an earlier pass: block i of each is given to `summand` after the rows.
        """
        inputs = (self.blocks, *kept)
        if self.blocks.y.shape[0] == 1:  # no loop, so that XLA can fuse across the whole bound
            total, keep = summand(*jax.tree.map(lambda a: a[0], inputs))
            return total, jax.tree.map(lambda a: a[None], keep)

        def step(total, block):
            part, keep = summand(*block)
            return jax.tree.map(jnp.add, total, part), keep

        first = jax.tree.map(lambda a: a[0], inputs)
        shapes = jax.eval_shape(lambda block: summand(*block)[0], first)
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        return jax.lax.scan(step, zero, inputs)

    def arrays(self) -> tuple[Float[Array, "N D"], Float[Array, " N"]]:
        """X and y without padding, in the original order: for methods that need the whole matrix."""
        X = self.blocks.X.reshape(-1, self.n_columns)[: self.n_rows]
        return X, self.blocks.y.reshape(-1)[: self.n_rows]


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
    X = _numbers(X, name)
    if X.ndim != 2:
        hint = f": use {name}.reshape(-1, 1) for a single column" if X.ndim == 1 else ""
        raise InputError(f"{name} must be two-dimensional (rows, columns), but has shape {X.shape}{hint}")
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise InputError(f"{name} is empty: its shape is {X.shape}")
    _refuse_non_finite(X, name)
    return X


def _numbers(values: Any, name: str) -> np.ndarray:
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
