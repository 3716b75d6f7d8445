"""Room for compiled programs.

Linux allows a process so many memory maps (65 530 unless told otherwise), and every program that XLA compiles for the
CPU takes a few. A process that fits data of ever new shapes, such as a long
search over models, would be ended by the system after a few hundred of them, inside the compiler.
"""

import gc
from collections.abc import Callable
from pathlib import Path

import jax

_MAPS, _LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_forgetting: list[Callable[[], object]] = []


def on_make_room(forget: Callable[[], object]) -> None:
    """Call `forget` too when compiled programs are forgotten."""
    _forgetting.append(forget)


def maps_in_use() -> int:
    """Memory maps of this process; 0 where the system does not tell."""
    try:
        with open(_MAPS, "rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


def most_maps() -> int:
    """How many the system allows; 0 where it does not tell."""
    try:
        return int(_LIMIT.read_text())
    except (OSError, ValueError):
        return 0


def make_room(share: float = 0.5) -> bool:
    """Forget compiled programs if they take more than this share of the maps allowed; whether that was done.

    What is needed again is compiled again. Results do not change.
    """
    if maps_in_use() <= share * most_maps():
        return False
    jax.clear_caches()
    for forget in _forgetting:
        forget()
    gc.collect()
    return True
