"""Rows that are read from disk while the rows before them compute: memory for two chunks, whatever their number.

A compiled program asks for chunks by number through a callback. Meanwhile a thread reads the next chunk.
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from integrand.data.scaling import Standardiser

# Bytes of a chunk: enough rows to make the cost of a call small, few enough that two chunks fit in memory.
CHUNK_BYTES = 16 * 2**20


class ReadableRows(Protocol):
    """Rows of numbers read by position: inputs, the target, and perhaps the known variance of its noise."""

    noise_column: str | None

    @property
    def n_own(self) -> int:
        """Rows of this process."""
        ...

    @property
    def n_columns(self) -> int:
        """D."""
        ...

    def read(self, first: int, last: int) -> np.ndarray:
        """Rows first ... last - 1, all of them finite."""
        ...


@final
class Stream:
    """Standardised rows of this process, in chunks of `n_blocks` blocks of `length` rows.

    `max_rows` is the largest number of rows of any process: all have equally many chunks, filled up with rows of
    weight 0. Compared by identity: a compiled program belongs to the stream that it reads.
    """

    def __init__(self, rows: ReadableRows, scaler: Standardiser, length: int, max_rows: int, devices: int = 1):
        self.rows, self.scaler, self.length = rows, scaler, length
        self.n_columns, self.has_noise_variance = rows.n_columns, rows.noise_column is not None
        self.width = rows.n_columns + 2 + self.has_noise_variance  # of a row: X, y, weight, known noise variance
        self.n_blocks = max(1, min(CHUNK_BYTES // (8 * length * self.width), -(-max_rows // length)))
        self.chunk_rows = self.n_blocks * length
        self.devices = devices
        self.n_chunks = -(-max_rows // (self.chunk_rows * devices)) * devices
        self.error: BaseException | None = None  # of a read in the latest pass
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="integrand-read")
        self._lock = threading.Lock()
        self._next: dict[int, Future] = {}

    @property
    def n_padded(self) -> int:
        """Rows of one device, with padding."""
        return self.n_chunks * self.chunk_rows // self.devices

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.n_blocks, self.length, self.width, 2

    def numbers(self) -> Int[Array, " C"]:
        """The numbers of the chunks that the calling device sums over."""
        numbers = jnp.arange(0, self.n_chunks, self.devices)
        if self.devices == 1:
            return numbers
        from integrand.data.devices import AXIS

        return numbers + jax.lax.axis_index(AXIS) % self.devices

    def chunk(self, number: Array) -> tuple[Array, ...]:
        """X, y, weight and perhaps known noise variance of a chunk, in blocks. Inside a compiled program."""
        # Scoped float64 does not reach the callback's thread, where JAX would round to float32: pass 32-bit words.
        like = jax.ShapeDtypeStruct(self._shape, jnp.uint32)
        table = jax.lax.bitcast_convert_type(jax.pure_callback(self._chunk, like, number), jnp.float64)
        D = self.n_columns
        return table[..., :D], *(table[..., column] for column in range(D, self.width))

    def _chunk(self, number: Any) -> np.ndarray:
        """A chunk, read in advance; begins to read the one after it."""
        i = int(number)
        after = (i + self.devices) % self.n_chunks
        with self._lock:
            current = self._next.pop(i, None) or self._pool.submit(self._read, i)
            if after != i and after not in self._next:
                self._next[after] = self._pool.submit(self._read, after)
        try:
            return current.result()
        except Exception as error:  # kept for `raise_error`: JAX would log it with a stack trace
            self.error = error
            return np.full((self.chunk_rows, self.width), np.nan).view(np.uint32).reshape(self._shape)

    def raise_error(self) -> None:
        """Raise the error of a read that failed in the latest pass."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def _read(self, i: int) -> np.ndarray:
        first = min(i * self.chunk_rows, self.rows.n_own)
        n = min(self.chunk_rows, self.rows.n_own - first)
        D, table = self.n_columns, np.zeros((self.chunk_rows, self.width))
        table[n:, D + 2 :] = 1.0  # no variance of zero, also where there is no row
        if n:
            table[:n, :D], table[:n, D], v = self.scaler.transform_rows(self.rows.read(first, first + n))
            table[:n, D + 1] = 1.0
            if v is not None:
                table[:n, D + 2] = v
        return table.view(np.uint32).reshape(self._shape)
