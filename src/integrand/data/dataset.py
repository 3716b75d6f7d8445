"""The standardised rows of a fit, in memory, on several devices or on disk, and sums over them in blocks.

Nothing above a dataset knows in how many pieces its sums are made.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from integrand.data.checks import checked_rows, checked_variances
from integrand.data.devices import DeviceMesh
from integrand.data.processes import Processes, SingleProcess
from integrand.data.streaming import Stream
from integrand.errors import InputError
from integrand.precision import in_float64

T = TypeVar("T")

# Bytes of a block of k(Z, X): it stays in cache.
_BLOCK_BYTES = 4 * 2**20
# Bytes that may be saved between two passes.
_KEEP_BYTES = 256 * 2**20


def block_rows_for(n_inducing: int) -> int:
    """Rows of a block for which k(Z, X) stays in cache."""
    return max(64, _BLOCK_BYTES // (8 * max(n_inducing, 1)))


class RowBlock(NamedTuple):
    """One block of rows. Padding rows are zero and have weight 0; without any, `weight` is None.

    Where the variance of each row's noise is known, it is in `noise_variance` (1 in the padding).
    """

    X: Float[Array, "..."]
    y: Float[Array, "..."]
    weight: Float[Array, "..."] | None
    noise_variance: Float[Array, "..."] | None = None

    def variance(self, noise: Any) -> Any:
        """sₙ = σ² + vₙ: a number for each row, or σ² alone where no vₙ is known."""
        return noise**2 if self.noise_variance is None else noise**2 + self.noise_variance

    def masked(self, values: Float[Array, "..."]) -> Float[Array, "..."]:
        """`values`, whose last axis runs over the rows, with zeros in the padding."""
        return values if self.weight is None else values * self.weight


class Dataset(eqx.Module):
    """Rows of (X, y) in blocks of equal length, as JAX arrays in float64.

    Build one with `Dataset.of(X, y)`, or by `RowSource.dataset` for rows on disk, on several devices or in several
    processes. Methods use rows through `sum` and `sum_and_keep`; those that need all rows in memory use `arrays`.
    """

    blocks: RowBlock | None  # each array with a leading axis of blocks; None where a stream reads them
    n_rows: int = eqx.field(static=True)  # of all devices and processes
    scale: float = eqx.field(static=True, default=1.0)  # rows that each row represents
    mesh: DeviceMesh | None = eqx.field(static=True, default=None)  # None: one device
    stream: Stream | None = eqx.field(static=True, default=None)
    processes: Processes = eqx.field(static=True, default=SingleProcess())

    @classmethod
    @in_float64
    def of(cls, X: Any, y: Any, block_rows: int = 1024, noise_variance: Any = None) -> "Dataset":
        """Check X (N, D), y (N,) and perhaps known noise variances (N,), and cut them into near-equal blocks."""
        X, y = checked_rows(X, y)
        v = None if noise_variance is None else checked_variances(noise_variance, len(y))
        if block_rows < 1:
            raise InputError(f"block_rows must be at least 1, not {block_rows}")
        n_rows = len(y)
        n_blocks = -(-n_rows // block_rows)
        length = -(-n_rows // n_blocks)
        X, y, ones = (jnp.asarray(in_blocks(a, length, n_blocks)) for a in (X, y, np.ones(n_rows)))
        v = None if v is None else jnp.asarray(in_blocks(v, length, n_blocks, 1.0))
        return cls(RowBlock(X, y, ones if n_blocks * length > n_rows else None, v), n_rows)

    @classmethod
    @in_float64
    def sharded(
        cls,
        X: np.ndarray,
        y: np.ndarray,
        mesh: DeviceMesh,
        max_rows: int,
        block_rows: int,
        noise_variance: np.ndarray | None = None,
    ) -> "Dataset":
        """The rows of this process over its devices of a mesh, equally many blocks on each device of the mesh.

        `max_rows` is the largest number of rows of any process: all are filled up to it with rows of weight 0.
        """
        per_device = math.ceil(max_rows / mesh.n_local)
        n_blocks = max(1, math.ceil(per_device / block_rows))
        length, total = math.ceil(per_device / n_blocks), n_blocks * mesh.n_local
        placed_X, placed_y, ones = (mesh.place(in_blocks(a, length, total)) for a in (X, y, np.ones(len(y))))
        v = None if noise_variance is None else mesh.place(in_blocks(noise_variance, length, total, 1.0))
        return cls(RowBlock(placed_X, placed_y, ones, v), len(y), mesh=mesh)

    def representing(self, n_rows: int) -> "Dataset":
        """The same rows as a sample of `n_rows` rows: every sum is scaled up to estimate theirs."""
        return dataclasses.replace(self, scale=n_rows / self.n_rows, n_rows=n_rows)

    @property
    def n_columns(self) -> int:
        """D."""
        return self.blocks.X.shape[-1] if self.blocks is not None else self.streaming.n_columns

    @property
    def n_padded(self) -> int:
        """Number of rows with padding; inside a program, of one device."""
        return self.blocks.y.size if self.blocks is not None else self.streaming.n_padded

    @property
    def has_noise_variance(self) -> bool:
        """Whether the variance of each row's noise is known, or a known part of it."""
        return self.streaming.has_noise_variance if self.blocks is None else self.blocks.noise_variance is not None

    def can_keep(self, n: int) -> bool:
        """Whether n numbers per row may stay in memory from one pass to the next; if not, compute them again."""
        return 8 * n * self.n_padded <= _KEEP_BYTES

    @property
    def held(self) -> RowBlock:
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
        return self.stream is None and self.mesh is None

    def on_all_devices(self, program: Callable[..., T], *replicated: Any) -> T:
        """`program(*replicated, data)` on every device that has rows, each with its own rows as `data`.

        Inside the program sums over rows are sums over all devices, so everything else is the same on each.
        """
        return program(*replicated, self) if self.mesh is None else self.mesh.run(program, replicated, self)

    def on_all_processes(self, name: str, phi: np.ndarray, Z: np.ndarray, program: Callable[[], T]) -> T:
        """`program()`, which sums over rows; other processes run their program of this name at the same φ and Z."""
        result = self.processes.run_on_all(name, phi, Z, program)
        if self.stream is not None:
            self.stream.raise_error()
        return result

    def sum(self, summand: Callable[..., T], *saved: Any) -> T:
        """Σ over blocks of summand(rows, *kept_of_that_block), a pytree of arrays."""
        return self.sum_and_keep(lambda rows, *block: (summand(rows, *block), None), *saved)[0]

    def sum_and_keep(self, summand: Callable[..., tuple[T, Any]], *saved: Any) -> tuple[T, Any]:
        """Sum the first result of `summand` over blocks and stack its second result, one entry per block.

        `saved` are such stacks from an earlier pass: block i of each is given to `summand` after the rows.
        """
        if self.stream is not None:
            total, keep = _sum_chunks(self.stream, summand, *saved)
        else:
            total, keep = _sum_blocks(summand, self.blocks, *saved)
        if self.scale != 1.0:
            total = jax.tree.map(lambda a: self.scale * a, total)
        return total if self.mesh is None else self.mesh.sum(total), keep

    def arrays(self) -> tuple[Float[Array, "N D"], Float[Array, " N"]]:
        """X and y without padding, in the original order: for methods that need the whole matrix."""
        if not self.local or self.blocks is None:
            raise InputError("this method needs all rows in one process: use a method that collapses u, such as ml2")
        n = round(self.n_rows / self.scale)
        return self.blocks.X.reshape(-1, self.n_columns)[:n], self.blocks.y.reshape(-1)[:n]

    def noise_variances(self) -> Float[Array, " N"] | None:
        """The known noise variance of each row of `arrays`, or None."""
        v = self.held.noise_variance
        return None if v is None else v.reshape(-1)[: round(self.n_rows / self.scale)]


def in_blocks(values: np.ndarray, length: int, n_blocks: int, pad: float = 0.0) -> np.ndarray:
    """Rows in blocks, the last filled up with zeros, or with another number."""
    padding = n_blocks * length - len(values)
    widths = [(0, padding)] + [(0, 0)] * (values.ndim - 1)
    padded = np.pad(values, widths, constant_values=pad) if padding else values
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


def _sum_chunks(stream: Stream, summand: Callable, *saved: Any) -> tuple[Any, Any]:
    """The same over chunks, each in blocks; a chunk is read while the one before it computes."""

    def chunk(number, *saved_of_chunk):
        return _sum_blocks(summand, RowBlock(*stream.chunk(number)), *saved_of_chunk)

    return _sum_blocks(chunk, stream.numbers(), *saved)
