"""Programs that run in all processes at the same time: rank 0 leads, the others follow.

Rank 0 runs the method. Before each program that sums over rows it tells the others which one it is, with φ and Z, in
a message of fixed length; they run the same program, and its sums meet. So every process evaluates the same θ bit for
bit by construction, whatever decides what comes next (an optimiser, chains in threads, the clock), and collectives
cannot interleave, because a single thread of each process issues them. With each message goes the number that the
program before it gave rank 0: a process that got another one (other data, other software) says so at once.
"""

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from integrand.data.spread import Spread
from integrand.distributed.issuer import Issuer
from integrand.distributed.ranks import Ranks, lost
from integrand.errors import DistributedError
from integrand.precision import float64_scope

T = TypeVar("T")

TASKS = ("evaluate", "factored", "wait", "result", "end", "failed")
_TOLERANCE = 1e-8
_HEAD = 5  # task, number of the message, rows of Z, what the last program gave, length of a result


class Together:
    """One fit of several processes; made in all of them, in the same order."""

    def __init__(self, ranks: Ranks, n_theta: int, n_inducing: int, n_columns: int):
        self.ranks, self.n_theta, self.n_columns = ranks, n_theta, n_columns
        self.size = _HEAD + n_theta + n_inducing * n_columns
        self.spread: Spread | None = None  # set once the mesh is there
        self.count, self.number = 0, 0.0
        self.issuer = Issuer(ranks)
        self._over = threading.Event()

    def lead(self, task: str, phi: np.ndarray, Z: np.ndarray, run: Callable[[], T]) -> T:
        """Rank 0: tell the others what comes, and do it with them. Callable from any thread."""

        def work() -> T:
            self._tell(task, phi, Z)
            result = run()
            self.number = _number_of(result)
            return result

        return self.issuer.wait(work)

    def keep_company(self) -> None:
        """Rank 0: let the others know, while it works on its own, that it is alive."""

        def beat() -> None:
            pause = min(self.ranks.timeout / 5.0, 20.0)
            while not self._over.wait(pause / 4.0):
                if time.monotonic() - self.issuer.last > pause:
                    try:
                        self.lead("wait", np.zeros(0), np.zeros((0, self.n_columns)), lambda: None)
                    except Exception:  # whoever asks for something next hears of it
                        return

        threading.Thread(target=beat, daemon=True, name="integrand-company").start()

    def end(self, result: bytes = b"", error: BaseException | None = None) -> None:
        """Rank 0: give the others the result, or the reason why there is none, and let them go."""
        self._over.set()
        if self.issuer.broken is not None:
            return
        if error is not None:
            self.ranks.complain(str(error) or type(error).__name__)
        nothing = np.zeros(0), np.zeros((0, self.n_columns))
        try:
            if error is None and result:
                self.issuer.wait(lambda: (self._tell("result", *nothing, length=len(result)), self._share(result)))
            self.issuer.wait(lambda: self._tell("failed" if error is not None else "end", *nothing))
        except DistributedError:
            if error is None:
                raise
        self.issuer.broken = DistributedError("the fit has ended")  # for a chain that is still under way

    def follow(self, tasks: dict[str, Callable[[np.ndarray, np.ndarray], Any]]) -> bytes:
        """The other ranks: do what rank 0 does until it ends, and return its result."""
        result = b""
        try:
            while True:
                task, phi, Z, length = self.issuer.wait(self._hear)
                if task == "end":
                    return result
                if task == "failed":
                    raise lost("rank 0 gave up", self.ranks)
                if task == "result":
                    result = self.issuer.wait(lambda length=length: self._share(None, length))
                elif task != "wait":
                    found = self.issuer.wait(lambda task=task, phi=phi, Z=Z: tasks[task](phi, Z))
                    self.number = _number_of(found)
                else:
                    self.number = 0.0
        except BaseException as error:
            if not isinstance(error, DistributedError):
                self.ranks.complain(str(error) or type(error).__name__)
            raise

    def _tell(self, task: str, phi: np.ndarray, Z: np.ndarray, length: int = 0) -> None:
        message = np.zeros(self.size)
        message[:_HEAD] = TASKS.index(task), self.count, len(Z), self.number, length
        message[_HEAD : _HEAD + len(phi)] = phi
        message[_HEAD + self.n_theta : _HEAD + self.n_theta + Z.size] = Z.ravel()
        self._broadcast(message)
        self.count += 1

    def _hear(self) -> tuple[str, np.ndarray, np.ndarray, int]:
        heard = self._broadcast(np.zeros(self.size))
        task, count, rows, number, length = heard[:_HEAD]
        if int(count) != self.count or not _same(float(number), self.number):
            message = (
                f"rank {self.ranks.rank} got {self.number} where rank 0 got {float(number)}: the processes do not "
                "compute the same; use the same versions everywhere"
            )
            self.ranks.complain(message)
            raise DistributedError(message)
        self.count += 1
        Z = heard[_HEAD + self.n_theta :][: int(rows) * self.n_columns].reshape(-1, self.n_columns)
        return TASKS[int(task)], heard[_HEAD : _HEAD + self.n_theta], Z, int(length)

    def _broadcast(self, message: np.ndarray) -> np.ndarray:
        """Rank 0's array, in all processes: the others add zeros to it."""
        spread = self.spread
        assert spread is not None
        with float64_scope():
            mine = np.zeros((spread.n_local, *message.shape), message.dtype)
            mine[0] = message
            return np.asarray(_summed(spread.place(mine), spread))

    def _share(self, content: bytes | None, length: int = 0) -> bytes:
        length = len(content) if content is not None else length
        padded = np.zeros(-(-length // 4), np.int32)
        if content is not None:
            padded[:] = np.frombuffer(content + b"\0" * (4 * len(padded) - length), np.int32)
        return self._broadcast(padded).tobytes()[:length]


@functools.partial(jax.jit, static_argnames="spread")
def _summed(a: jax.Array, spread: Spread) -> jax.Array:
    return spread.run(lambda a: spread.sum(a[0]), (), a)


def _same(one: float, other: float) -> bool:
    """Whether two processes computed the same: what each does with the same sums may be rounded in its own way."""
    if not (np.isfinite(one) and np.isfinite(other)):
        return True  # a factorisation on the brink, which rank 0 alone judges
    return abs(one - other) <= _TOLERANCE * max(1.0, abs(one))


def _number_of(result: Any) -> float:
    """What two processes that did the same agree on: the value of a program, or 0."""
    return float(getattr(result, "log_likelihood", 0.0))
