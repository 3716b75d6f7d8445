"""Rows that lie on several devices, of one process or of many: how a program runs on all of them, and how sums meet."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "rows"


@dataclass(frozen=True)
class Spread:
    """A mesh of devices with one axis, over which the blocks of rows are laid out.

    `together`, where there are several processes, makes them run the same program at the same time.
    """

    mesh: Mesh
    together: Any = field(default=None, compare=False)  # integrand.distributed.Together

    @property
    def n_devices(self) -> int:
        """Devices of all processes."""
        return self.mesh.size

    @property
    def n_local(self) -> int:
        """Devices of this process."""
        return len(self.mesh.local_devices)

    def run(self, program: Callable, replicated: tuple, data: Any) -> Any:
        """`program(*replicated, data)` on every device, with its own blocks of the data."""
        rows = jax.tree.map(lambda _: P(AXIS), data)
        specs = (*(P() for _ in replicated), rows)
        # What a sum over all devices gives is the same on each; JAX cannot see that through custom derivatives.
        return jax.shard_map(program, mesh=self.mesh, in_specs=specs, out_specs=P(), check_vma=False)(*replicated, data)

    def sum(self, total: Any) -> Any:
        """Σ over devices, the same on all of them. Inside a program that `run` runs."""
        leaves, structure = jax.tree.flatten(total)
        flat = jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])  # one message, however many arrays
        flat = jax.lax.psum(flat, AXIS)
        ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
        parts = [part.reshape(leaf.shape) for part, leaf in zip(jnp.split(flat, ends), leaves, strict=True)]
        return jax.tree.unflatten(structure, parts)

    def place(self, local: np.ndarray) -> jax.Array:
        """A global array whose leading axis lies over the devices, from what this process has of it."""
        return jax.make_array_from_process_local_data(NamedSharding(self.mesh, P(AXIS)), local)


def local_devices() -> Spread:
    """All devices of this process."""
    return Spread(Mesh(np.array(jax.local_devices()), (AXIS,)))


def all_devices(together: Any = None) -> Spread:
    """All devices of all processes."""
    return Spread(Mesh(np.array(jax.devices()), (AXIS,)), together)
