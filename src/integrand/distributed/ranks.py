"""Joining processes into one JAX runtime, and what they tell each other outside of programs.

JAX's coordination service does both: it is started by rank 0, and holds small values that any rank may set and wait
for. Everything that is large goes through collectives of compiled programs instead.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from integrand.errors import DistributedError, InputError, IntegrandError

T = TypeVar("T")

# Seconds without a sign of life after which a process is given up, and to wait for the others to join.
TIMEOUT, JOIN_TIMEOUT = 300.0, 120.0
_VARIABLES = {"coordinator": "INTEGRAND_COORDINATOR", "processes": "INTEGRAND_PROCESSES", "rank": "INTEGRAND_RANK"}


@dataclass
class Ranks:
    """The processes of a fit: which one this is, of how many, and the client of the coordination service."""

    rank: int
    size: int
    timeout: float
    client: Any = field(repr=False)
    _told: int = 0

    @property
    def leads(self) -> bool:
        """Whether this is the process that decides, draws and writes."""
        return self.rank == 0

    def exchange(self, value: Any) -> list[Any]:
        """What every process has to say, by rank, as JSON; waits for all of them."""
        self._told += 1
        key = f"integrand/exchange/{self._told}"
        self.client.key_value_set(f"{key}/{self.rank}", json.dumps(value))
        ends = time.monotonic() + self.timeout
        return [self._heard(key, rank, ends) for rank in range(self.size)]

    def _heard(self, key: str, rank: int, ends: float) -> Any:
        """What a process has to say; an error if it has left, or says nothing in time."""
        while True:
            left = ends - time.monotonic()
            milliseconds = int(1000 * min(max(left, 0.1), 2.0))
            try:
                return json.loads(self.client.blocking_key_value_get(f"{key}/{rank}", milliseconds))
            except Exception as error:
                silent = "DEADLINE_EXCEEDED" in str(error)
                if not silent or left < 0.0 or self.complaints():
                    what = f"said nothing for {self.timeout:.0f} s" if silent else "cannot be asked"
                    raise lost(f"rank {rank} {what}", self) from error

    def all_or_none(self, work: Callable[[], T]) -> T:
        """Do `work` in every process; an error of one of them is raised in all, with its rank."""
        result, mine, message = None, None, ""
        try:
            result = work()
        except IntegrandError as error:
            mine, message = error, str(error)
        for rank, theirs in enumerate(self.exchange(message)):
            if theirs:
                raise mine or InputError(f"rank {rank}: {theirs}")
        return result  # pyright: ignore[reportReturnType]

    def part_ways(self) -> None:
        """Wait until all are done: who is still there when rank 0 ends would be ended by JAX."""
        with contextlib.suppress(DistributedError):
            self.exchange("done")
        _let_go(self)

    def complain(self, message: str) -> None:
        """Leave a message for those who wait for this process; it is about to end."""
        with contextlib.suppress(Exception):  # the service may be what was lost
            self.client.key_value_set(f"integrand/error/{self.rank}", message or "an error without a message")

    def complaints(self) -> str:
        """What other processes that ended have left."""
        try:
            found = self.client.key_value_dir_get("integrand/error/")
        except Exception:
            return ""
        return "; ".join(f"rank {key.rpartition('/')[2]}: {text}" for key, text in sorted(found))


def _let_go(ranks: Ranks) -> None:
    """Between a last word and the end of a process lies a moment in which JAX must not miss rank 0."""
    time.sleep(1.5 if ranks.leads else 0.0)


def lost(what: str, ranks: Ranks) -> DistributedError:
    """The error of a process that others have left alone."""
    said = ranks.complaints()
    return DistributedError(
        f"{said or what}; rank {ranks.rank} stops. What was drawn is in the run directory of rank 0, if there is one: "
        "go on with `integrand resume`, with any number of processes"
    )


_joined: Ranks | None = None


def leave_together(message: str, seconds: float = 20.0) -> bool:
    """In a process that ends with an error, if it has joined others: rank 0 stays until they have told theirs, too.

    JAX would end them on the spot when rank 0 ends. Returns whether there are others.
    """
    if _joined is None:
        return False
    _joined.complain(message)
    with contextlib.suppress(Exception):
        _joined.client.key_value_set(f"integrand/leaving/{_joined.rank}", "now")
        for rank in range(1, _joined.size if _joined.leads else 1):
            _joined.client.blocking_key_value_get(f"integrand/leaving/{rank}", int(1000 * seconds))
        _let_go(_joined)
    return True


def join(
    coordinator: str | None = None,
    processes: int | None = None,
    rank: int | None = None,
    *,
    timeout: float = TIMEOUT,
    join_timeout: float = JOIN_TIMEOUT,
) -> Ranks:
    """Join the processes of a fit, before JAX computes anything in this one.

    Parameters
    ----------
    coordinator
        Address of rank 0, such as `node1:7800`; the port must be free there.
    processes, rank
        How many there are, and which one this is, from 0.
    timeout
        Seconds after which a process that shows no sign of life is given up.
    join_timeout
        Seconds to wait for all of them to arrive.

    What is not given is taken from INTEGRAND_COORDINATOR, INTEGRAND_PROCESSES and INTEGRAND_RANK, and what is not
    there either from the cluster manager, where JAX knows it (Slurm, Open MPI, Kubernetes).
    """
    global _joined
    if _joined is not None:
        _joined.timeout = timeout
        return _joined
    import jax
    from jax._src import distributed, xla_bridge

    if xla_bridge.backends_are_initialized():
        raise InputError("JAX has already computed something in this process: call integrand.join() before that")
    coordinator = coordinator or os.environ.get(_VARIABLES["coordinator"])
    processes = _number("processes", processes)
    rank = _number("rank", rank)
    if coordinator is not None:
        _check_address(coordinator, processes, rank, join_timeout)
    if jax.config.jax_cpu_collectives_implementation in (None, "none"):  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Otherwise the death of one process ends the others on the spot, before they can say why.
    jax.config.update("jax_enable_recoverability", True)
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            rank,
            initialization_timeout=int(join_timeout),
            heartbeat_timeout_seconds=int(max(timeout, 10.0)),
            shutdown_timeout_seconds=10,
        )
    except Exception as error:
        advice = "give coordinator, processes and rank, or start the processes by Slurm, Open MPI or Kubernetes"
        raise DistributedError(f"the processes could not join ({str(error).splitlines()[0]}): {advice}") from error
    state = distributed.global_state
    _joined = Ranks(state.process_id, state.num_processes, timeout, state.client)
    return _joined


def _number(name: str, value: Any) -> int | None:
    text = os.environ.get(_VARIABLES[name]) if value is None else value
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{name} must be a whole number, not {text!r}") from None


def _check_address(coordinator: str, processes: int | None, rank: int | None, patience: float) -> None:
    """What JAX would end the process for: an address that is none, a port in use, nobody at the other end."""
    host, colon, port = coordinator.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"the coordinator's address must be host:port, such as node1:7800, not {coordinator!r}")
    if processes is not None and rank is not None and not 0 <= rank < processes:
        raise InputError(f"rank {rank} is not one of {processes} processes: ranks go from 0 to {processes - 1}")
    if rank == 0:
        try:
            with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", int(port)))
        except OSError as error:
            raise InputError(f"port {port} cannot be used here ({error.strerror}): choose another one") from error
    elif rank is not None:
        ends = time.monotonic() + patience
        while True:
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
                return
            except OSError as error:
                if time.monotonic() > ends:
                    raise DistributedError(
                        f"nobody answers at {coordinator} for {patience:.0f} s ({error.strerror or error}): "
                        "is rank 0 running, and is the address right?"
                    ) from error
                time.sleep(0.2)


def gathered(spread: Any, local: np.ndarray, offset: int, length: int) -> np.ndarray:
    """Rows that the processes have of one array, put together in all of them: each has those from `offset` on."""
    import jax

    from integrand.precision import float64_scope

    with float64_scope():
        mine = np.zeros((spread.n_local, length, *local.shape[1:]))
        mine[0, offset : offset + len(local)] = local
        whole = jax.jit(lambda a: spread.run(lambda a: spread.sum(a[0]), (), a))(spread.place(mine))
        return np.asarray(whole)
