"""Rows that are read from disk while the rows before them compute: memory for two chunks, whatever their number.

A compiled program asks for chunks by number through a callback; a thread of this module reads the next one meanwhile.
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from integrand.data.disk import RowsOnDisk
from integrand.data.scaling import Standardiser

# Rows a chunk: long enough that the call costs nothing beside its work, short enough that two fit in any memory.
CHUNK_BYTES = 16 * 2**20


@final
class Stream:
    """Standardised rows of a part of a table on disk, in chunks of `n_blocks` blocks of `length` rows.

    `most` is the largest number of rows that a process has: all have as many chunks, filled up with rows of weight 0.
    Compared by identity: a compiled program belongs to the stream that it reads.
    """

    def __init__(self, rows: RowsOnDisk, scaler: Standardiser, length: int, most: int, devices: int = 1):
        self.rows, self.scaler, self.length = rows, scaler, length
        self.n_columns = rows.n_columns
        self.n_blocks = max(1, min(CHUNK_BYTES // (8 * length * (rows.n_columns + 2)), -(-most // length)))
        self.chunk_rows = self.n_blocks * length
        self.devices = devices
        self.n_chunks = -(-most // (self.chunk_rows * devices)) * devices
        self.error: BaseException | None = None  # what a read of the latest pass failed with
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="integrand-read")
        self._lock = threading.Lock()
        self._next: dict[int, Future] = {}

    @property
    def n_padded(self) -> int:
        """Rows of one device, with padding."""
        return self.n_chunks * self.chunk_rows // self.devices

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.n_blocks, self.length, self.n_columns + 2, 2

    def numbers(self) -> Int[Array, " C"]:
        """The numbers of the chunks that the calling device sums over."""
        numbers = jnp.arange(0, self.n_chunks, self.devices)
        if self.devices == 1:
            return numbers
        from integrand.data.spread import AXIS

        return numbers + jax.lax.axis_index(AXIS) % self.devices

    def chunk(self, number: Array) -> tuple[Array, Array, Array]:
        """X, y and weight of a chunk, in blocks: what a compiled program calls."""
        # Scoped float64 does not reach the thread of a callback, where JAX would make float32 of them: words do pass.
        like = jax.ShapeDtypeStruct(self._shape, jnp.uint32)
        table = jax.lax.bitcast_convert_type(jax.pure_callback(self._chunk, like, number), jnp.float64)
        return table[..., :-2], table[..., -2], table[..., -1]

    def _chunk(self, number: Any) -> np.ndarray:
        """The chunk that was read ahead, while the one after it begins to be read."""
        i = int(number)
        ahead = (i + self.devices) % self.n_chunks
        with self._lock:
            here = self._next.pop(i, None) or self._pool.submit(self._read, i)
            if ahead != i and ahead not in self._next:
                self._next[ahead] = self._pool.submit(self._read, ahead)
        try:
            return here.result()
        except Exception as error:  # raised by `Dataset.call`: JAX would log it with a stack trace
            self.error = error
            return np.full((self.chunk_rows, self.n_columns + 2), np.nan).view(np.uint32).reshape(self._shape)

    def _read(self, i: int) -> np.ndarray:
        first = min(i * self.chunk_rows, self.rows.n_rows)
        n = min(self.chunk_rows, self.rows.n_rows - first)
        table = np.zeros((self.chunk_rows, self.n_columns + 2))
        if n:
            scaler, read = self.scaler, self.rows.read(first, first + n)
            table[:n, :-2] = (read[:, :-1] - scaler.x_mean) / scaler.x_sd
            table[:n, -2] = (read[:, -1] - scaler.y_mean) / scaler.y_sd
            table[:n, -1] = 1.0
        return table.view(np.uint32).reshape(self._shape)
