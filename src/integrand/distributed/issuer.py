"""The one thread of a process that issues collectives, and waiting for it no longer than others may be silent."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from integrand.distributed.ranks import Ranks, lost
from integrand.errors import DistributedError, IntegrandError

T = TypeVar("T")

# Seconds of silence after which a complaint of another process counts, and between two looks.
_SILENCE, _LOOK = 4.0, 2.0


class Issuer:
    """Does what it is given in a thread of its own, one thing after the other."""

    def __init__(self, ranks: Ranks):
        self.ranks = ranks
        self.broken: BaseException | None = None
        self.last = time.monotonic()  # when something was begun or ended
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="integrand-collectives").start()

    def wait(self, work: Callable[[], T]) -> T:
        """The result of `work`, which the other processes do at the same time; DistributedError if one is lost."""
        if self.broken is not None:
            raise DistributedError(str(self.broken)) from self.broken
        future: Future[T] = Future()
        self._jobs.put((future, work))
        began, patience = time.monotonic(), self.ranks.timeout
        while True:
            try:
                return future.result(timeout=min(_LOOK, patience))
            except TimeoutError:
                silent = time.monotonic() - max(began, self.last)
                if not future.done() and (silent > patience or (silent > _SILENCE and self.ranks.complaints())):
                    self.broken = lost(f"another process was silent for {silent:.0f} s", self.ranks)
                    raise self.broken from None
            except IntegrandError:
                raise
            except Exception as error:
                if "Gloo" not in str(error) and "NCCL" not in str(error) and "UNAVAILABLE" not in str(error):
                    raise
                time.sleep(0.5)  # what the other has to say may be on its way
                self.broken = lost("another process has ended", self.ranks)
                raise self.broken from error

    def _work(self) -> None:
        while True:
            future, work = self._jobs.get()
            self.last = time.monotonic()
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            self.last = time.monotonic()
