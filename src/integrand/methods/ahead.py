"""What a fit needs later, made while it climbs: XLA compiles without Python's lock, on a core that would be idle."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from integrand.infer.threads import available_cores


@contextlib.contextmanager
def ahead(*tasks: Callable[[], object]) -> Iterator[None]:
    """Do tasks side by side, in threads that end with this scope; on a single core nothing is done.

    A task makes something that is made anyway where it is needed (a compiled program, an imported package): one that
    fails will fail there, in the caller's thread. What the scope itself needs should be imported before it: of a circle
    of imports that two threads are in, each sees half.
    """
    if not tasks or available_cores() == 1:
        yield
        return

    def work(task: Callable[[], object]) -> None:
        with contextlib.suppress(Exception):
            task()

    threads = [threading.Thread(target=work, args=(task,), name="integrand-ahead") for task in tasks]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()
