"""What a sampling method draws from, and what it looks like before the first draw."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from integrand.infer.chains import LogDensity, SampledRun
from integrand.infer.metric import Whitening, whitening_from_hessian
from integrand.infer.optimise import maximise_lbfgs


class Density(NamedTuple):
    """A log density over x, whose first entries are φ: value and gradient, and how JAX traces it (where it can).

    `values` are log densities alone, of many x, where that is cheaper: with it chains may jump (`infer/jumps.py`).
    A method's own sampler, if it has one, is `own(starts, whitening, tune=, draws=, seed=, parallel=, watch=)`:
    it starts from x, or from the coordinates of x that the whitening has, and draws x.
    """

    at: LogDensity
    traced: Callable[[], Any] | None = None
    own: Callable[..., SampledRun] | None = None
    values: Callable[[np.ndarray], np.ndarray] | None = None


def metric(density: Density, starts: Sequence[np.ndarray], steps: int = 100, saddles: bool = False) -> Whitening:
    """The Hessian of the log density at its own optimum, climbed from the best of some starts.

    Where ML-II ran away, the prior's medians are the better start. If `saddles`, the width of what curves upwards is
    measured, which pays where coordinates are few.
    """
    start = max(starts, key=lambda x: density.at(x)[0])
    optimum = maximise_lbfgs(density.at, start, max_steps=steps)
    value = (lambda x: density.at(x)[0]) if saddles else None
    return whitening_from_hessian(lambda x: density.at(x)[1], optimum.x, value=value)


def pulled_in(density: Density, whitening: Whitening, starts: Float[np.ndarray, "C P"]) -> Float[np.ndarray, "C P"]:
    """Whitened starts, each nearer to the middle until it is not hopeless there."""
    starts, middle = starts.copy(), density.at(whitening.middle)[0]

    def value(start: np.ndarray) -> float:
        return density.at(whitening.to_x(start))[0]

    for start in starts:
        while np.any(start != 0.0) and hopeless(value(start), middle, len(start)):
            start *= 0.5 if np.abs(start).max() > 1e-3 else 0.0
    return starts


def hopeless(value: float, best: float, n: int) -> bool:
    """Whether a log density of n coordinates is too low, beside the one at a mode, for a draw or the start of a chain.

    1.5 standard deviations cost a Gaussian about n nats; where it is a hundred, as on the edge of what can be
    factored when the noise is nearly zero, a chain would not find its way back.
    """
    return not (np.isfinite(value) and value >= best - 100.0 - 10.0 * n)
