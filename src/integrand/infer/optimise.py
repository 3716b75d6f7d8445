"""Maximise a function given with its gradient: SciPy's L-BFGS, or Adam as in the paper.

A point where the function is -inf or NaN (a failed factorisation) is a step that went too far, never the end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize

Vector = Float[np.ndarray, " P"]
LogDensity = Callable[[Vector], tuple[float, Vector]]
# callback(best point, value there) after each evaluation -> why to end now, or "".
OptimiserCallback = Callable[[Vector, float], str]


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
    """-f for a minimiser, with failures replaced by a finite penalty and the best point remembered."""

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
            # Worse than anything seen, with no slope: the line search comes back between the two points.
            return -self.best + 10.0 * (1.0 + abs(self.best)) if np.isfinite(self.best) else 1e10, np.zeros_like(x)
        if value > self.best:
            self.best_x, self.best = x.copy(), value
        self.history.append(self.best)
        return -value, -np.asarray(gradient, float)


def maximise_lbfgs(
    f: LogDensity,
    x: Vector,
    *,
    max_steps: int = 1000,
    tolerance: float = 1e-9,
    memory: int = 20,
    callback: OptimiserCallback | None = None,
) -> Optimum:
    """Maximise f from x by L-BFGS until its relative gain in a step is below `tolerance`.

    With a callback the run ends when the callback returns a reason, or at Ctrl-C, with the best point so far.
    """
    objective = _Objective(f, x, callback)
    try:
        steps, converged, message = _lbfgs(objective, max_steps, tolerance, memory)
    except (_Ended, KeyboardInterrupt) as error:
        if callback is None:
            raise
        why = str(error) if isinstance(error, _Ended) else "interrupted"
        optimum = _optimum(
            objective, len(objective.history), False, f"ended after {objective.evaluations} evaluations: {why}"
        )
        return replace(optimum, ended=why)
    return _optimum(objective, steps, converged, message)


def _lbfgs(objective: _Objective, max_steps: int, tolerance: float, memory: int) -> tuple[int, bool, str]:
    """Steps taken, whether they led to the end, and SciPy's message."""
    steps, converged, message = 0, False, "no step was possible"
    for _ in range(6):  # a line search that a failure broke off starts again from the best point, without memory
        before = objective.best
        options = {
            "maxiter": max_steps - steps,
            "maxfun": 20 * max_steps,
            "maxcor": memory,
            "ftol": tolerance,
            "gtol": 1e-6,
        }
        failures = objective.failures
        result = minimize(objective, objective.best_x, jac=True, method="L-BFGS-B", options=options)
        steps += int(result.nit)
        converged, message = bool(result.success), str(result.message)
        broken = objective.failures > failures or not (result.success or steps >= max_steps)
        if steps >= max_steps or not broken:
            break
        if objective.best <= before + tolerance * abs(before):
            converged = True  # a search from here, without memory, gains nothing either
            break
    if steps >= max_steps and not converged:
        message = f"stopped after {max_steps} steps"
    return steps, converged, message


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
        _, descent = objective(x)
        if objective.failures > failures:
            x = 0.5 * (x + good)  # half-way back to the last point that worked
        else:
            good, x = x, adam.step(x, -descent)
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
