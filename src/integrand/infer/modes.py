"""The distinct optima of a log density: short ascents from many dispersed points, of which the few that differ finish.

An optimum counts as another one if it is further than two standard deviations from those before it, by their curvature.
Its mass is that of the Gaussian with its height and curvature (Laplace).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from integrand.infer.coordinates import Coordinates, coordinates_from_hessian
from integrand.infer.optimise import LogDensity, Vector, maximise_lbfgs

# Gradients of a first ascent, and of one that is finished.
SHORT, LONG = 15, 100
# Most ascents that are finished.
MOST = 6
# An optimum whose mass is less than this many nats below the largest is kept.
NEGLIGIBLE = 10.0
# Within this distance (standard deviations) and loss (nats) a point belongs to a known optimum.
_NEAR, _NEAR_NATS = 2.0, 4.0


class Mode(NamedTuple):
    """An optimum, with the coordinates of its curvature, its height and its log mass."""

    coordinates: Coordinates
    value: float
    log_mass: float

    def holds(self, x: Vector, value: float) -> bool:
        """Whether a point is so near that an ascent from it would end here."""
        return value > self.value - _NEAR_NATS and self.distance(x) < _NEAR

    def distance(self, x: Vector) -> float:
        """In standard deviations."""
        return float(np.linalg.norm(self.coordinates.to_eta(x)))


def find_modes(
    log_density: LogDensity,
    starts: Sequence[Vector],
    known: Sequence[Vector] = (),
    over_time: Callable[[], bool] = lambda: False,
) -> tuple[Mode, ...]:
    """The optima that ascents from `known` points and from `starts` reach, the one with the largest mass first."""
    modes: list[Mode] = []
    for x in known:
        _finish(log_density, x, modes)
    ends: list[tuple[float, Vector]] = []
    for x in starts:
        if over_time():
            break
        value, end = _ascent(log_density, x, SHORT, modes)
        if math.isfinite(value) and not any(mode.holds(end, value) for mode in modes):
            ends.append((value, end))
    finished = 0
    for value, x in sorted(ends, key=lambda end: -end[0]):
        if finished < MOST and not (over_time() or any(mode.holds(x, value) for mode in modes)):
            _finish(log_density, x, modes)
            finished += 1
    if not modes:
        return ()
    best = max(mode.log_mass for mode in modes)
    kept = [mode for mode in modes if mode.log_mass > best - NEGLIGIBLE]
    return tuple(sorted(kept, key=lambda mode: -mode.log_mass))


def _ascent(log_density: LogDensity, x: Vector, steps: int, modes: Sequence[Mode]) -> tuple[float, Vector]:
    """Where an ascent ends, or is when it comes near a known optimum."""
    if not math.isfinite(log_density(x)[0]):
        return -math.inf, x
    evaluations = 0

    def near(x: Vector, value: float) -> str:
        nonlocal evaluations
        evaluations += 1
        if any(mode.holds(x, value) for mode in modes):
            return "known"
        return "long enough" if evaluations >= 2 * steps else ""

    optimum = maximise_lbfgs(log_density, x, max_steps=steps, tolerance=1e-7, callback=near)
    if optimum.ended == "interrupted":
        raise KeyboardInterrupt
    return optimum.value, optimum.x


def _finish(log_density: LogDensity, x: Vector, modes: list[Mode]) -> None:
    """Add the optimum above x, if it is not among the modes."""
    value, x = _ascent(log_density, x, LONG, modes)
    if not math.isfinite(value) or any(mode.holds(x, value) for mode in modes):
        return
    coordinates = coordinates_from_hessian(lambda x: log_density(x)[1], x, value=lambda x: log_density(x)[0])
    mass = value + 0.5 * len(x) * math.log(2.0 * math.pi) + float(np.linalg.slogdet(coordinates.factor)[1])
    modes.append(Mode(coordinates, value, mass))


def membership(modes: Sequence[Mode], x: Float[np.ndarray, "... P"]) -> Int[np.ndarray, "..."]:
    """The number of the mode that is nearest, in its own standard deviations."""
    return np.argmin([np.linalg.norm(mode.coordinates.to_eta(x), axis=-1) for mode in modes], axis=0)
