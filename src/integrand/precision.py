"""Double precision without touching the user's process.

JAX computes in float32 unless a flag says otherwise, and the bound is useless in float32 (errors of up to
hundreds of nats). Setting the flag would change the user's own JAX code, so every public entry point runs
in a scope instead. The scope is local to a thread: code called back from a sampler's threads enters it again.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")


def float64_scope():
    """Context in which JAX computes in float64, in this thread only."""
    return jax.enable_x64(True)


def in_float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` in float64 and leave JAX's flags as they were."""

    @functools.wraps(function)
    def scoped(*args: P.args, **kwargs: P.kwargs) -> R:
        with float64_scope():
            return function(*args, **kwargs)

    return scoped
