"""Several processes that fit together: joining them, what they tell each other, and programs that run in all of them.

Small values go through JAX's coordination service, which rank 0 starts. Everything large goes through collectives of
compiled programs.

Rank 0, the leader, runs the method; the others follow. Before each program that sums over rows the leader sends a
message of fixed length with the name of the program, φ and Z. All processes then run the program, and their sums
meet. So every process evaluates the same θ bit for bit, whatever decides what comes next: an optimiser, chains in
threads, the clock. Collectives cannot interleave, because one thread of each process issues them all. Each message
also carries the number that the program before it gave the leader. A process that got another number (other data,
other software) says so at once.
"""

import contextlib
import json
import os
import queue
import socket
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar, final

import numpy as np

from integrand.data.devices import DeviceMesh, all_devices, local_devices
from integrand.errors import DistributedError, InputError, IntegrandError

T = TypeVar("T")

# Seconds without a sign of life after which a process is given up, and to wait for all of them to join.
TIMEOUT, JOIN_TIMEOUT = 300.0, 120.0
# Seconds of silence after which another process's error report is looked at, and between two looks.
_SILENCE, _LOOK = 4.0, 2.0
# JAX must not miss rank 0 between a process's last message and its end: seconds that rank 0 stays longer.
_GRACE = 1.5
# Relative difference up to which two processes computed the same: each rounds its own work with the shared sums.
_TOLERANCE = 1e-8
# What a message can ask for besides the programs of `SharedWork`, and the numbers at its start: kind, number of the
# message, rows of Z, the number that the last program gave, length of a result.
_WAIT, _RESULT, _END, _FAILED = range(4)
_HEAD = 5
_VARIABLES = {"coordinator": "INTEGRAND_COORDINATOR", "processes": "INTEGRAND_PROCESSES", "rank": "INTEGRAND_RANK"}


@dataclass(frozen=True)
class SharedWork(Generic[T]):
    """What the leader can ask all processes for: programs by name, as functions of φ and Z; and how to send a result.

    Made alike in all processes, except for the rows behind the programs.
    """

    programs: Mapping[str, Callable[[np.ndarray, np.ndarray], Any]]
    n_theta: int
    n_inducing: int
    n_columns: int
    to_bytes: Callable[[T], bytes] = lambda result: b""
    from_bytes: Callable[[bytes], T] = lambda content: None  # pyright: ignore[reportAssignmentType]


class Processes(ABC):
    """The processes of a fit. All of them call the same methods in the same order."""

    rank: int
    size: int

    @property
    def is_leader(self) -> bool:
        """Whether this is rank 0: the process that runs the method and writes files."""
        return self.rank == 0

    @abstractmethod
    def devices(self) -> DeviceMesh:
        """The devices of all processes."""

    @abstractmethod
    def all_gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank. What JSON can hold; waits for all of them."""

    @abstractmethod
    def on_all(self, work: Callable[[], T]) -> T:
        """`work()` in every process; an error of one is raised in all."""

    def on_leader(self, work: Callable[[], T]) -> T | None:
        """`work()` in the leader and None in the others; an error is raised in all."""
        return self.on_all(lambda: work() if self.is_leader else None)

    @abstractmethod
    def gather_rows(self, local: np.ndarray, offset: int, length: int) -> np.ndarray:
        """An array of `length` rows in all processes; each has the rows `local`, from `offset` on."""

    @abstractmethod
    def run_on_all(self, name: str, phi: np.ndarray, Z: np.ndarray, program: Callable[[], T]) -> T:
        """`program()`, which sums over rows, while the others run the program with this name at the same φ and Z."""

    @abstractmethod
    def lead(self, work: Callable[[], T], shared: SharedWork[T]) -> T:
        """The result of `work()`, in all processes. The leader does it; the others do their part of each program."""

    @abstractmethod
    def leave(self) -> None:
        """Wait for all processes. JAX kills the others when rank 0 exits."""


@final
@dataclass(frozen=True)
class SingleProcess(Processes):
    """One process: there is nobody to talk to."""

    rank = 0
    size = 1

    def devices(self) -> DeviceMesh:
        """The devices of this process."""
        return local_devices()

    def all_gather(self, value: Any) -> list[Any]:
        """The one value."""
        return [value]

    def on_all(self, work: Callable[[], T]) -> T:
        """`work()`."""
        return work()

    def gather_rows(self, local: np.ndarray, offset: int, length: int) -> np.ndarray:
        """The rows of this process are all rows."""
        return local

    def run_on_all(self, name: str, phi: np.ndarray, Z: np.ndarray, program: Callable[[], T]) -> T:
        """`program()`."""
        return program()

    def lead(self, work: Callable[[], T], shared: SharedWork[T]) -> T:
        """`work()`."""
        return work()

    def leave(self) -> None:
        """Nobody waits."""


@final
class JoinedProcesses(Processes):
    """Several processes, joined by `join`; `client` is that of JAX's coordination service."""

    def __init__(self, rank: int, size: int, timeout: float, client: Any):
        self.rank, self.size, self.timeout, self.client = rank, size, timeout, client
        self._gathered = 0
        self._leader: Leader | None = None

    @cached_property
    def collectives(self) -> "CollectiveThread":
        """The thread that issues the collectives of this process."""
        return CollectiveThread(self)

    def devices(self) -> DeviceMesh:
        """The devices of all processes."""
        return all_devices()

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank."""
        self._gathered += 1
        key = f"integrand/gather/{self._gathered}"
        self.client.key_value_set(f"{key}/{self.rank}", json.dumps(value))
        deadline = time.monotonic() + self.timeout
        return [self._value_of(rank, key, deadline) for rank in range(self.size)]

    def _value_of(self, rank: int, key: str, deadline: float) -> Any:
        """The value of one process; an error if it has left, or sets none in time."""
        while True:
            left = deadline - time.monotonic()
            milliseconds = int(1000 * min(max(left, 0.1), 2.0))
            try:
                return json.loads(self.client.blocking_key_value_get(f"{key}/{rank}", milliseconds))
            except Exception as error:
                silent = "DEADLINE_EXCEEDED" in str(error)
                if not silent or left < 0.0 or self.reported_errors():
                    what = f"said nothing for {self.timeout:.0f} s" if silent else "cannot be asked"
                    raise self.lost(f"rank {rank} {what}") from error

    def on_all(self, work: Callable[[], T]) -> T:
        """`work()` in every process; an error of one is raised in all, with its rank."""
        result, mine, message = None, None, ""
        try:
            result = work()
        except IntegrandError as error:
            mine, message = error, str(error)
        for rank, theirs in enumerate(self.all_gather(message)):
            if theirs:
                raise mine or InputError(f"rank {rank}: {theirs}")
        return result  # pyright: ignore[reportReturnType]

    def gather_rows(self, local: np.ndarray, offset: int, length: int) -> np.ndarray:
        """The rows of all processes, summed into their places."""
        mine = np.zeros((length, *local.shape[1:]))
        mine[offset : offset + len(local)] = local
        return self.collectives.wait(lambda: self.devices().sum_over_processes(mine))

    def run_on_all(self, name: str, phi: np.ndarray, Z: np.ndarray, program: Callable[[], T]) -> T:
        """`program()` here; in the leader of a fit, after telling the others which one it is."""
        return program() if self._leader is None else self._leader.run(name, phi, Z, program)

    def lead(self, work: Callable[[], T], shared: SharedWork[T]) -> T:
        """The leader's result. The others run its programs until it ends, and get the result as bytes."""
        channel = Channel(self, shared)
        if not self.is_leader:
            return shared.from_bytes(follow(channel))
        self._leader = leader = Leader(channel)
        leader.start_heartbeat()
        try:
            result = work()
            leader.end(shared.to_bytes(result))
            return result
        except BaseException as error:
            leader.fail(error)
            raise

    def leave(self) -> None:
        """Wait for all processes. JAX kills the others when rank 0 exits."""
        with contextlib.suppress(DistributedError):
            self.all_gather("done")
        self._stay()

    def part_ways(self) -> None:
        """Deprecated: now `leave`."""
        warnings.warn("part_ways() is now leave(): write processes.leave()", DeprecationWarning, stacklevel=2)
        self.leave()

    def _stay(self) -> None:
        time.sleep(_GRACE if self.is_leader else 0.0)

    def report_error(self, message: str) -> None:
        """Leave a message for the processes that wait for this one, which is about to end."""
        with contextlib.suppress(Exception):  # the service may be what was lost
            self.client.key_value_set(f"integrand/error/{self.rank}", message or "an error without a message")

    def reported_errors(self) -> str:
        """What processes that ended have reported."""
        try:
            reports = self.client.key_value_dir_get("integrand/error/")
        except Exception:
            return ""
        return "; ".join(f"rank {key.rpartition('/')[2]}: {text}" for key, text in sorted(reports))

    def lost(self, what: str) -> DistributedError:
        """The error of a process that others have left alone."""
        reports = self.reported_errors()
        return DistributedError(
            f"{reports or what}; rank {self.rank} stops. What was drawn is in the run directory of rank 0, if there is "
            "one: go on with `integrand resume`, with any number of processes"
        )

    def leave_with_error(self, message: str, seconds: float) -> None:
        """Report an error, then wait until the others have reported theirs."""
        self.report_error(message)
        with contextlib.suppress(Exception):
            self.client.key_value_set(f"integrand/leaving/{self.rank}", "now")
            for rank in range(1, self.size if self.is_leader else 1):
                self.client.blocking_key_value_get(f"integrand/leaving/{rank}", int(1000 * seconds))
            self._stay()


class CollectiveThread:
    """The one thread of a process that issues collectives; callers wait only while other processes show life."""

    def __init__(self, processes: JoinedProcesses):
        self.processes = processes
        self.broken: BaseException | None = None
        self.last_active = time.monotonic()  # when a job last began or ended
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="integrand-collectives").start()

    def wait(self, work: Callable[[], T]) -> T:
        """The result of `work`, which all processes do at the same time; DistributedError if one is lost."""
        if self.broken is not None:
            raise DistributedError(str(self.broken)) from self.broken
        future: Future[T] = Future()
        self._jobs.put((future, work))
        began, timeout = time.monotonic(), self.processes.timeout
        while True:
            try:
                return future.result(timeout=min(_LOOK, timeout))
            except TimeoutError:
                silent = time.monotonic() - max(began, self.last_active)
                reported = silent > _SILENCE and self.processes.reported_errors()
                if not future.done() and (silent > timeout or reported):
                    self.broken = self.processes.lost(f"another process was silent for {silent:.0f} s")
                    raise self.broken from None
            except IntegrandError:
                raise
            except Exception as error:
                if not any(word in str(error) for word in ("Gloo", "NCCL", "UNAVAILABLE")):
                    raise
                time.sleep(0.5)  # the other's report may be on its way
                self.broken = self.processes.lost("another process has ended")
                raise self.broken from error

    def _work(self) -> None:
        while True:
            future, work = self._jobs.get()
            self.last_active = time.monotonic()
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            self.last_active = time.monotonic()


class Message(NamedTuple):
    """A request of the leader: its kind, φ and Z for a program, or the length of a result."""

    kind: int
    phi: np.ndarray
    Z: np.ndarray
    length: int


class Channel:
    """Messages from the leader to all processes, by collectives. Used from the thread of collectives alone."""

    def __init__(self, processes: JoinedProcesses, shared: SharedWork):
        self.processes, self.shared, self.collectives = processes, shared, processes.collectives
        self.size = _HEAD + shared.n_theta + shared.n_inducing * shared.n_columns
        self.names = list(shared.programs)
        self.count = 0  # of messages
        self.number = 0.0  # that the last program gave

    def kind_of(self, name: str) -> int:
        """The kind of a message that asks for this program."""
        return _FAILED + 1 + self.names.index(name)

    def program_of(self, message: Message) -> Callable[[], Any] | None:
        """The program that a message asks for, at its φ and Z."""
        if message.kind <= _FAILED:
            return None
        program = self.shared.programs[self.names[message.kind - _FAILED - 1]]
        return lambda: program(message.phi, message.Z)

    def send(self, kind: int, phi: np.ndarray | None = None, Z: np.ndarray | None = None, length: int = 0) -> None:
        """The leader's side of a message."""
        shared = self.shared
        phi = np.zeros(0) if phi is None else phi
        Z = np.zeros((0, shared.n_columns)) if Z is None else Z
        content = np.zeros(self.size)
        content[:_HEAD] = kind, self.count, len(Z), self.number, length
        content[_HEAD : _HEAD + len(phi)] = phi
        content[_HEAD + shared.n_theta : _HEAD + shared.n_theta + Z.size] = Z.ravel()
        self.broadcast(content)
        self.count += 1

    def receive(self) -> Message:
        """The others' side of a message; an error if this process and the leader do not compute the same."""
        content, shared = self.broadcast(np.zeros(self.size)), self.shared
        kind, count, rows, number, length = content[:_HEAD]
        if int(count) != self.count or not _equal_to_rounding(float(number), self.number):
            message = (
                f"rank {self.processes.rank} got {self.number} where rank 0 got {float(number)}: the processes do not "
                "compute the same; use the same versions everywhere"
            )
            self.processes.report_error(message)
            raise DistributedError(message)
        self.count += 1
        phi = content[_HEAD : _HEAD + shared.n_theta]
        Z = content[_HEAD + shared.n_theta :][: int(rows) * shared.n_columns].reshape(-1, shared.n_columns)
        return Message(int(kind), phi, Z, int(length))

    def share(self, content: bytes | None, length: int) -> bytes:
        """The leader's bytes, in all processes."""
        padded = np.zeros(-(-length // 4), np.int32)
        if content is not None:
            padded[:] = np.frombuffer(content + b"\0" * (4 * len(padded) - length), np.int32)
        return self.broadcast(padded).tobytes()[:length]

    def broadcast(self, content: np.ndarray) -> np.ndarray:
        """The leader's array, in all processes: the others add zeros to it."""
        return self.processes.devices().sum_over_processes(content)


class Leader:
    """Rank 0's side of a fit."""

    def __init__(self, channel: Channel):
        self.channel, self.collectives = channel, channel.collectives
        self.ended = False
        self._over = threading.Event()

    def run(self, name: str, phi: np.ndarray, Z: np.ndarray, program: Callable[[], T]) -> T:
        """Run a program in all processes. Callable from any thread."""
        return self._run(self.channel.kind_of(name), phi, Z, program)

    def _run(self, kind: int, phi: np.ndarray | None, Z: np.ndarray | None, program: Callable[[], T]) -> T:
        def work() -> T:
            if self.ended:  # a chain may still be running
                raise DistributedError("the fit has ended")
            self.channel.send(kind, phi, Z)
            result = program()
            self.channel.number = _number_of(result)
            return result

        return self.collectives.wait(work)

    def start_heartbeat(self) -> None:
        """Show the others that this process is alive while it works alone."""
        pause = min(self.channel.processes.timeout / 5.0, 20.0)

        def beat() -> None:
            while not self._over.wait(pause / 4.0):
                if time.monotonic() - self.collectives.last_active > pause:
                    try:
                        self._run(_WAIT, None, None, lambda: None)
                    except Exception:  # raised again by the next program
                        return

        threading.Thread(target=beat, daemon=True, name="integrand-heartbeat").start()

    def end(self, result: bytes = b"") -> None:
        """Give the others the result and let them go."""

        def work() -> None:
            if result:
                self.channel.send(_RESULT, length=len(result))
                self.channel.share(result, len(result))
            self._close(_END)

        self._over.set()
        if self.collectives.broken is None:  # the leader keeps its result if the others are lost by now
            self.collectives.wait(work)

    def fail(self, error: BaseException) -> None:
        """Give the others the reason why there is no result."""
        self._over.set()
        self.channel.processes.report_error(str(error) or type(error).__name__)
        if self.collectives.broken is None:
            with contextlib.suppress(DistributedError):
                self.collectives.wait(lambda: self._close(_FAILED))

    def _close(self, kind: int) -> None:
        if not self.ended:
            self.channel.send(kind)
        self.ended = True


def follow(channel: Channel) -> bytes:
    """The other processes' side of a fit: run the leader's programs until it ends; returns its result."""
    result, collectives = b"", channel.collectives
    try:
        while True:
            message = collectives.wait(channel.receive)
            if message.kind == _END:
                return result
            if message.kind == _FAILED:
                raise channel.processes.lost("rank 0 gave up")
            if message.kind == _RESULT:
                result = collectives.wait(lambda length=message.length: channel.share(None, length))
                continue
            program = channel.program_of(message)
            channel.number = 0.0 if program is None else _number_of(collectives.wait(program))
    except BaseException as error:
        if not isinstance(error, DistributedError):
            channel.processes.report_error(str(error) or type(error).__name__)
        raise


def _equal_to_rounding(one: float, other: float) -> bool:
    if not (np.isfinite(one) and np.isfinite(other)):
        return True  # a factorisation that nearly fails: the leader alone decides
    return abs(one - other) <= _TOLERANCE * max(1.0, abs(one))


def _number_of(result: Any) -> float:
    """The number that processes compare: the bound that a program gave, or 0."""
    return float(getattr(result, "log_likelihood", 0.0))


_joined: JoinedProcesses | None = None


def leave_with_error(message: str, seconds: float = 20.0) -> bool:
    """In a process that ends with an error: tell the others, if there are any, and wait for their reports.

    JAX kills the others when rank 0 exits, so it waits. Returns whether there are others.
    """
    if _joined is None:
        return False
    _joined.leave_with_error(message, seconds)
    return True


def join(
    coordinator: str | None = None,
    processes: int | None = None,
    rank: int | None = None,
    *,
    timeout: float = TIMEOUT,
    join_timeout: float = JOIN_TIMEOUT,
) -> JoinedProcesses:
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
    # Otherwise the death of one process kills the others on the spot, before they can say why.
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
    _joined = JoinedProcesses(state.process_id, state.num_processes, timeout, state.client)
    return _joined


def _number(name: str, value: Any) -> int | None:
    text = os.environ.get(_VARIABLES[name]) if value is None else value
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{name} must be a whole number, not {text!r}") from None


def _check_address(coordinator: str, processes: int | None, rank: int | None, seconds: float) -> None:
    """What JAX would kill the process for: an address that is none, a port in use, nobody at the other end."""
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
        _wait_for_answer(host.strip("[]"), int(port), seconds)


def _wait_for_answer(host: str, port: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=5.0).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise DistributedError(
                    f"nobody answers at {host}:{port} for {seconds:.0f} s ({error.strerror or error}): "
                    "is rank 0 running, and is the address right?"
                ) from error
            time.sleep(0.2)
