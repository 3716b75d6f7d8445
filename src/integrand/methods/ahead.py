"""What a fit needs later, made while it climbs: XLA compiles without Python's lock, on a core that would be idle."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from integrand.infer.threads import available_cores


@contextlib.contextmanager
def ahead(*tasks: Callable[[], object]) -> Iterator[None]:
    """Do tasks one after the other, in a thread that ends with this scope; on a single core nothing is done.

    A task makes something that is made anyway where it is needed (a compiled program, an imported package): one that
    fails will fail there, in the caller's thread. What the scope itself needs should be imported before it: of a circle
    of imports that two threads are in, each sees half.
    """
    if not tasks or available_cores() == 1:
        yield
        return

    def work() -> None:
        for task in tasks:
            with contextlib.suppress(Exception):
                task()

    thread = threading.Thread(target=work, name="integrand-ahead")
    thread.start()
    try:
        yield
    finally:
        thread.join()
