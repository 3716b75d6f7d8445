"""A dataset knows how to sum over its rows; nothing above it knows in how many pieces that happens."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from integrand.data.checked import checked_rows
from integrand.data.spread import Spread
from integrand.data.stream import Stream
from integrand.errors import InputError
from integrand.precision import in_float64

T = TypeVar("T")

# Bytes of a block of k(Z, X): one that stays in cache.
_BLOCK_BYTES = 4 * 2**20
# Bytes that may be kept between two passes.
_KEEP_BYTES = 256 * 2**20


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

    Build one with `Dataset.of(X, y)`, or with `laid_out` (`distributed/layout.py`) for rows over devices and processes
    or on disk. Rows are used through `sum` and `sum_and_keep`; only what needs all of them in memory asks for `arrays`.
    """

    blocks: Rows | None  # each array with a leading axis of blocks; None where a stream reads them
    n_rows: int = eqx.field(static=True)  # those of all devices and processes
    scale: float = eqx.field(static=True, default=1.0)  # each row stands for so many
    spread: Spread | None = eqx.field(static=True, default=None)
    stream: Stream | None = eqx.field(static=True, default=None)

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
        X, y, ones = (jnp.asarray(cut(a, length, n_blocks)) for a in (X, y, np.ones(n_rows)))
        return cls(Rows(X, y, ones if n_blocks * length > n_rows else None), n_rows)

    def standing_for(self, n_rows: int) -> "Dataset":
        """The same rows as a sample of `n_rows`: every sum is scaled up to what it estimates."""
        return dataclasses.replace(self, scale=n_rows / self.n_rows, n_rows=n_rows)

    @property
    def n_columns(self) -> int:
        """D."""
        return self.blocks.X.shape[-1] if self.blocks is not None else self.streaming.n_columns

    @property
    def n_padded(self) -> int:
        """Number of rows with padding: inside a program, those of one device."""
        return self.blocks.y.size if self.blocks is not None else self.streaming.n_padded

    def can_keep(self, n: int) -> bool:
        """Whether n numbers for each row may stay from one pass to the next, or are made again."""
        return 8 * n * self.n_padded <= _KEEP_BYTES

    @property
    def held(self) -> Rows:
        """The blocks of a dataset in memory."""
        assert self.blocks is not None
        return self.blocks

    @property
    def streaming(self) -> Stream:
        """The stream of a dataset that has one."""
        assert self.stream is not None
        return self.stream

    @property
    def local(self) -> bool:
        """Whether all rows are in the memory of this process."""
        return self.stream is None and self.spread is None

    def together(self, program: Callable[..., T], *replicated: Any) -> T:
        """`program(*replicated, data)` where the rows are: on every device that has some, each with its own.

        Inside, sums over rows are sums over all devices, so everything else is the same everywhere.
        """
        return program(*replicated, self) if self.spread is None else self.spread.run(program, replicated, self)

    def call(self, task: str, phi: np.ndarray, Z: np.ndarray, run: Callable[[], T]) -> T:
        """`run()`, which runs a program that sums over rows; where there are several processes, in all of them.

        `task` names the program for the others, who have the same model and are told φ and Z.
        """
        together = None if self.spread is None else self.spread.together
        result = run() if together is None else together.lead(task, phi, Z, run)
        if self.stream is not None and self.stream.error is not None:
            error, self.stream.error = self.stream.error, None
            raise error
        return result

    def sum(self, summand: Callable[..., T], *kept: Any) -> T:
        """Σ over blocks of summand(rows, *kept_of_that_block), a pytree of arrays."""
        return self.sum_and_keep(lambda rows, *block: (summand(rows, *block), None), *kept)[0]

    def sum_and_keep(self, summand: Callable[..., tuple[T, Any]], *kept: Any) -> tuple[T, Any]:
        """Sum the first result of `summand` over blocks and stack its second result, one entry a block.

        `kept` are such stacks from an earlier pass: block i of each is given to `summand` after the rows.
        """
        if self.stream is not None:
            total, keep = _sum_chunks(self.stream, summand, *kept)
        else:
            total, keep = _sum_blocks(summand, self.blocks, *kept)
        if self.scale != 1.0:
            total = jax.tree.map(lambda a: self.scale * a, total)
        return total if self.spread is None else self.spread.sum(total), keep

    def arrays(self) -> tuple[Float[Array, "N D"], Float[Array, " N"]]:
        """X and y without padding, in the original order: for methods that need the whole matrix."""
        if not self.local or self.blocks is None:
            raise InputError("this method needs all rows in one process: use a method that collapses u, such as ml2")
        n = round(self.n_rows / self.scale)
        return self.blocks.X.reshape(-1, self.n_columns)[:n], self.blocks.y.reshape(-1)[:n]


def cut(values: np.ndarray, length: int, n_blocks: int) -> np.ndarray:
    """Rows in blocks, the last filled up with zeros."""
    padding = n_blocks * length - len(values)
    padded = np.pad(values, [(0, padding)] + [(0, 0)] * (values.ndim - 1)) if padding else values
    return padded.reshape(n_blocks, length, *values.shape[1:])


def _sum_blocks(summand: Callable, *inputs: Any) -> tuple[Any, Any]:
    """Sums over the leading axis of `inputs`, block by block."""
    if jax.tree.leaves(inputs)[0].shape[0] == 1:  # no loop, so that XLA can fuse across the whole bound
        total, keep = summand(*jax.tree.map(lambda a: a[0], inputs))
        return total, jax.tree.map(lambda a: a[None], keep)

    def step(total, block):
        part, keep = summand(*block)
        return jax.tree.map(jnp.add, total, part), keep

    first = jax.tree.map(lambda a: a[0], inputs)
    shapes = jax.eval_shape(lambda block: summand(*block)[0], first)
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(step, zero, inputs)


def _sum_chunks(stream: Stream, summand: Callable, *kept: Any) -> tuple[Any, Any]:
    """The same over chunks that are read while the one before computes, each in blocks."""

    def chunk(number, *kept_of_chunk):
        return _sum_blocks(summand, Rows(*stream.chunk(number)), *kept_of_chunk)

    return _sum_blocks(chunk, stream.numbers(), *kept)
