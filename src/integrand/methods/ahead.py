"""What a fit needs later, made while it climbs: XLA compiles without Python's lock, on a core that would be idle."""

import contextlib
import threading
from collections.abc import Callable

from integrand.infer.threads import available_cores


def ahead(*tasks: Callable[[], object]) -> threading.Thread | None:
    """Do tasks one after the other in a thread of their own; None on a single core, where nothing is gained.

    A task makes something that is made anyway where it is needed (a compiled program, an imported package), so nobody
    waits for it here, and one that fails will fail there, in the caller's thread.
    """
    if available_cores() == 1:
        return None

    def work() -> None:
        for task in tasks:
            with contextlib.suppress(Exception):
                task()

    thread = threading.Thread(target=work, name="integrand-ahead")
    thread.start()
    return thread
