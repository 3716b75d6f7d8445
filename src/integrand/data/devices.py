"""Rows on several devices, of one process or of many: how a program runs on all of them, and how sums meet."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from integrand.precision import float64_scope

AXIS = "rows"


@dataclass(frozen=True)
class DeviceMesh:
    """Devices along one axis, over which blocks of rows are divided."""

    mesh: Mesh

    @property
    def n_devices(self) -> int:
        """Devices of all processes."""
        return self.mesh.size

    @property
    def n_local(self) -> int:
        """Devices of this process."""
        return len(self.mesh.local_devices)

    def run(self, program: Callable, replicated: tuple, data: Any) -> Any:
        """`program(*replicated, data)` on every device, with the device's blocks of the data."""
        rows = jax.tree.map(lambda _: P(AXIS), data)
        specs = (*(P() for _ in replicated), rows)
        # A sum over all devices is the same on each; JAX cannot see that through custom derivatives.
        return jax.shard_map(program, mesh=self.mesh, in_specs=specs, out_specs=P(), check_vma=False)(*replicated, data)

    def sum(self, total: Any) -> Any:
        """Σ over devices, the same on all of them. Inside a program that `run` runs."""
        leaves, structure = jax.tree.flatten(total)
        flat = jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])  # one message, however many arrays
        flat = jax.lax.psum(flat, AXIS)
        ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
        parts = [part.reshape(leaf.shape) for part, leaf in zip(jnp.split(flat, ends), leaves, strict=True)]
        return jax.tree.unflatten(structure, parts)

    def sum_over_processes(self, array: np.ndarray) -> np.ndarray:
        """Σ over processes of an array of each, in all of them. Every process calls it at the same time."""
        with float64_scope():
            stacked = np.zeros((self.n_local, *array.shape), array.dtype)
            stacked[0] = array
            return np.asarray(_sum_of_first(self.place(stacked), self))

    def place(self, local: np.ndarray) -> jax.Array:
        """A global array whose leading axis is divided over the devices, from this process's part of it."""
        return jax.make_array_from_process_local_data(NamedSharding(self.mesh, P(AXIS)), local)


@functools.partial(jax.jit, static_argnames="devices")
def _sum_of_first(a: jax.Array, devices: DeviceMesh) -> jax.Array:
    return devices.run(lambda a: devices.sum(a[0]), (), a)


def local_devices() -> DeviceMesh:
    """All devices of this process."""
    return DeviceMesh(Mesh(np.array(jax.local_devices()), (AXIS,)))


def all_devices() -> DeviceMesh:
    """All devices of all processes."""
    return DeviceMesh(Mesh(np.array(jax.devices()), (AXIS,)))
