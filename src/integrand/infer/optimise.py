"""Maximise a function given with its gradient: L-BFGS, or Adam as in the paper.

A point where the function is -inf or NaN (a failed factorisation) is a step that went too far, never the end.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float

Vector = Float[np.ndarray, " P"]
LogDensity = Callable[[Vector], tuple[float, Vector]]
# callback(best point, value there) after each evaluation -> why to end now, or "".
OptimiserCallback = Callable[[Vector, float], str]

# Conditions of Wolfe on a step, those of every textbook, and how many points a line search tries.
_ARMIJO, _WOLFE, _MAX_TRIALS = 1e-4, 0.9, 20
# A pair teaches curvature if the cosine between step and change is above this; the diagonal spans this many powers.
_LEAST_CURVATURE, _DIAGONAL_RANGE = 1e-10, 1e3
# A largest entry of the gradient that counts as none.
_LEAST_GRADIENT = 1e-6


@dataclass(frozen=True)
class Optimum:
    """Where an optimiser ended: the best point it saw, the value there, and how it went."""

    x: Vector
    value: float
    steps: int
    evaluations: int
    failures: int
    converged: bool
    message: str
    history: tuple[float, ...] = field(repr=False)
    ended: str = ""  # why a callback ended it


class _Ended(Exception):
    """A callback has seen enough."""


class _Objective:
    """f, with failures as -inf and the best point remembered."""

    def __init__(self, f: LogDensity, x: Vector, callback: OptimiserCallback | None = None):
        self.f, self.callback = f, callback
        self.best_x, self.best = x, -np.inf
        self.evaluations = self.failures = 0
        self.history: list[float] = []

    def __call__(self, x: Vector) -> tuple[float, Vector]:
        value, gradient = self.f(x)
        recorded = self._recorded(x, value, gradient)
        if self.callback is not None and (why := self.callback(self.best_x, self.best)):
            raise _Ended(why)
        return recorded

    def _recorded(self, x: Vector, value: float, gradient: Vector) -> tuple[float, Vector]:
        self.evaluations += 1
        if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
            self.failures += 1
            return -np.inf, np.zeros_like(x)
        if value > self.best:
            self.best_x, self.best = x.copy(), value
        self.history.append(self.best)
        return value, np.asarray(gradient, float)


class Curvature:
    """What L-BFGS knows of H = (-∂²f)⁻¹: the latest pairs of a step and what it took off the gradient, and a diagonal.

    The diagonal starts the recursion in the place of the usual multiple of the identity. It follows the pairs by the
    diagonal of the BFGS update (Gilbert and Lemaréchal 1989), so that coordinates of different scale need no scaling.
    """

    def __init__(self, memory: int = 50):
        self._pairs: deque[tuple[Vector, Vector, float]] = deque(maxlen=memory)
        self._diagonal: Vector | None = None

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it, for a file."""
        steps, changes = (np.array([pair[i] for pair in self._pairs]) for i in (0, 1))
        return {"steps": steps, "changes": changes} | ({} if self._diagonal is None else {"diagonal": self._diagonal})

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "Curvature":
        """From `arrays`."""
        curvature = cls()
        for step, change in zip(arrays["steps"], arrays["changes"], strict=True):
            curvature._pairs.append((step, change, 1.0 / float(step @ change)))
        curvature._diagonal = arrays.get("diagonal")
        return curvature

    def copied(self) -> "Curvature":
        """A copy that learns on its own."""
        copy = Curvature()
        copy._pairs, copy._diagonal = self._pairs.copy(), self._diagonal
        return copy

    def forget(self) -> None:
        """Begin again."""
        self._pairs.clear()
        self._diagonal = None

    def add(self, step: Vector, change: Vector) -> None:
        """Learn from a step and the gradient before it less the gradient after it; without curvature, nothing."""
        product = float(step @ change)
        if product <= _LEAST_CURVATURE * float(np.linalg.norm(step) * np.linalg.norm(change)):
            return
        self._pairs.append((step, change, 1.0 / product))
        d = self._diagonal
        d = np.full(len(step), 1.0) if d is None else d
        d = d * (product / float(change @ (d * change)))
        inverse = 1.0 / d
        along = inverse * step
        inverse = inverse + change**2 / product - along**2 / float(step @ along)
        d = np.where(inverse > 0.0, 1.0 / np.where(inverse > 0.0, inverse, 1.0), d)
        middle = float(np.median(d))
        self._diagonal = np.clip(d, middle / _DIAGONAL_RANGE, middle * _DIAGONAL_RANGE)

    def times(self, g: Float[np.ndarray, "P K"]) -> Float[np.ndarray, "P K"]:
        """H g, for several g."""
        assert self._diagonal is not None
        q, shares = g.copy(), []
        for step, change, weight in reversed(self._pairs):
            shares.append(weight * (step @ q))
            q -= change[:, None] * shares[-1]
        q *= self._diagonal[:, None]
        for (step, change, weight), share in zip(self._pairs, reversed(shares), strict=True):
            q += step[:, None] * (share - weight * (change @ q))
        return q

    def direction(self, gradient: Vector, held: int = 0) -> Vector:
        """Newton's step by this curvature, with the first `held` coordinates where they are."""
        if not self:
            free = np.where(np.arange(len(gradient)) < held, 0.0, gradient)
            return free * min(1.0, 1.0 / max(float(np.abs(free).sum()), 1e-300))
        if not held:
            return self.times(gradient[:, None])[:, 0]
        unit = np.eye(len(gradient), held)
        columns = self.times(np.column_stack([gradient, unit]))
        forces = np.linalg.lstsq(columns[:held, 1:], columns[:held, 0], rcond=None)[0]
        step = columns[:, 0] - columns[:, 1:] @ forces
        step[:held] = 0.0
        return step


def maximise_lbfgs(
    f: LogDensity,
    x: Vector,
    *,
    max_steps: int = 1000,
    tolerance: float = 1e-9,
    enough: tuple[int, float] = (0, 0.0),
    curvature: Curvature | None = None,
    held: int = 0,
    callback: OptimiserCallback | None = None,
) -> Optimum:
    """Maximise f from x by L-BFGS.

    Parameters
    ----------
    tolerance
        Two steps in a row whose relative gain is below this are the last.
    enough
        A number of steps and a gain: so are this many steps that together gain less than this.
    curvature
        Of an earlier run for nearly the same f; it is used and goes on learning.
    held
        The first coordinates, which stay where they are. Their gradient still teaches the curvature.
    callback
        Called after each evaluation; the run ends when it returns a reason, or at Ctrl-C, with the best point so far.
    """
    objective = _Objective(f, x, callback)
    try:
        steps, converged, message = _lbfgs(
            objective, max_steps, tolerance, enough, Curvature() if curvature is None else curvature, held
        )
    except (_Ended, KeyboardInterrupt) as error:
        if callback is None:
            raise
        why = str(error) if isinstance(error, _Ended) else "interrupted"
        optimum = _optimum(
            objective, len(objective.history), False, f"ended after {objective.evaluations} evaluations: {why}"
        )
        return replace(optimum, ended=why)
    return _optimum(objective, steps, converged, message)


def _lbfgs(
    objective: _Objective,
    max_steps: int,
    tolerance: float,
    enough: tuple[int, float],
    curvature: Curvature,
    held: int,
) -> tuple[int, bool, str]:
    """Steps taken, whether they led to the end, and how it ended in words."""
    x = objective.best_x
    value, gradient = objective(x)
    if not np.isfinite(value):
        return 0, False, "no step was possible"
    values, small, (window, least_gain) = [value], 0, enough
    for steps in range(max_steps):
        if np.abs(gradient[held:]).max(initial=0.0) <= _LEAST_GRADIENT:
            return steps, True, f"converged after {steps} steps: no gradient is left"
        found = _line_search(objective, x, value, gradient, curvature.direction(gradient, held))
        if found is None and curvature:  # from here without what was learned: it may mislead
            curvature.forget()
            found = _line_search(objective, x, value, gradient, curvature.direction(gradient, held))
        if found is None:
            return steps, True, f"converged after {steps} steps: no step gains anything"
        before = x, value, gradient
        x, value, gradient = found
        curvature.add(x - before[0], before[2] - gradient)
        values.append(value)
        small = small + 1 if value - before[1] <= tolerance * max(abs(value), 1.0) else 0
        if small == 2:
            return steps + 1, True, f"converged after {steps + 1} steps: they gain nothing"
        if steps + 1 >= window > 0 and value - values[-1 - window] < least_gain:
            return steps + 1, True, f"converged after {steps + 1} steps: the last {window} gained {least_gain} at most"
    return max_steps, False, f"stopped after {max_steps} steps"


def _line_search(
    objective: _Objective, x: Vector, value: float, gradient: Vector, direction: Vector
) -> tuple[Vector, float, Vector] | None:
    """A point along a direction by the weak Wolfe conditions, its value and gradient; None where there is none."""
    slope = float(gradient @ direction)
    if not (np.isfinite(slope) and slope > 0.0):
        return None
    low, high, length = (0.0, value, slope), np.inf, 1.0
    best: tuple[Vector, float, Vector] | None = None  # the highest point so far that is high enough
    for _ in range(_MAX_TRIALS):
        end = x + length * direction
        end_value, end_gradient = objective(end)
        if end_value < value + _ARMIJO * length * slope or end_value <= value:
            high = length
            width = high - low[0]
            share = 0.25
            if np.isfinite(end_value):  # the top of a parabola
                fall = low[1] + low[2] * width - end_value
                share = float(np.clip(0.5 * low[2] * width / fall, 0.1, 0.5)) if fall > 0.0 else 0.5
            length = low[0] + share * width
            continue
        best = end, end_value, end_gradient
        end_slope = float(end_gradient @ direction)
        if end_slope <= _WOLFE * slope:
            return best
        low = length, end_value, end_slope
        length = 2.5 * length if np.isinf(high) else 0.5 * (length + high)
    return best


class Adam:
    """The paper's optimiser, one ascent step at a time."""

    def __init__(self, n: int, rate: float = 0.01):
        self.rate, self.steps = rate, 0
        self.first, self.second = np.zeros(n), np.zeros(n)

    def step(self, x: Vector, gradient: Vector) -> Vector:
        """The next point, given the gradient at this one."""
        self.steps += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        first, second = self.first / (1.0 - 0.9**self.steps), self.second / (1.0 - 0.999**self.steps)
        return x + self.rate * first / (np.sqrt(second) + 1e-8)


def maximise_adam(f: LogDensity, x: Vector, *, max_steps: int = 2000, rate: float = 0.01) -> Optimum:
    """Maximise f from x by Adam with a fixed rate, as the paper does, and return the best point seen."""
    objective, adam = _Objective(f, x), Adam(len(x), rate)
    good = x
    for _ in range(max_steps):
        failures = objective.failures
        _, gradient = objective(x)
        if objective.failures > failures:
            x = 0.5 * (x + good)  # half-way back to the last point that worked
        else:
            good, x = x, adam.step(x, gradient)
    return _optimum(objective, max_steps, True, f"{max_steps} steps of Adam")


def _optimum(objective: _Objective, steps: int, converged: bool, message: str) -> Optimum:
    return Optimum(
        objective.best_x,
        objective.best,
        steps,
        objective.evaluations,
        objective.failures,
        converged,
        message,
        tuple(objective.history),
    )
