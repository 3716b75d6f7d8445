"""Climbing the bound of many rows with a sample of them, in a few passes over all.

The collapsed bound knows the rows through sums, and a sample of n rows whose sums are scaled by N/n estimates every
one of them. Its bound has the curvature of the whole one but not its place, so a linear term is added that makes the
gradients equal at one point:

    c(φ, Z) = L_sample(φ, Z) + aᵀ[(φ, Z) - (φ₀, Z₀)],    a = ∂L(φ₀, Z₀) - ∂L_sample(φ₀, Z₀)

Climbing c and correcting it where the climb ends is Newton's method with a Hessian from a sample: a few gradients of
all rows instead of hundreds.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from integrand.infer.optimise import maximise_lbfgs
from integrand.targets import CollapsedTarget, Evaluation

# Gradients of all rows at most, L-BFGS steps of the sample between two, the gain (nats) that ends a climb, and the
# parts of a move that are tried.
PASSES, _STEPS, _GAIN, _SHARES = 12, 15, 0.1, (1.0, 0.3, 0.1, 0.03)

Objective = Callable[[Evaluation], tuple[float, np.ndarray]]
Point = tuple[Float[np.ndarray, " P"], Float[np.ndarray, "M D"]]


class Corrected:
    """c(φ, Z): the bound of a sample, with the gradient of all rows at one point."""

    def __init__(self, near: CollapsedTarget, at: Point, whole: Evaluation):
        self.near, (self.phi, self.Z) = near, at
        here = near.evaluate(*at)
        self.d_phi, self.dZ = whole.d_likelihood - here.d_likelihood, whole.dZ - here.dZ
        self.constant = whole.log_likelihood - here.log_likelihood

    def evaluate(self, phi: np.ndarray, Z: np.ndarray) -> Evaluation:
        """The corrected bound in the place of the bound."""
        e = self.near.evaluate(phi, Z)
        linear = self.constant + self.d_phi @ (phi - self.phi) + float(np.sum(self.dZ * (Z - self.Z)))
        return e._replace(
            log_likelihood=e.log_likelihood + linear, d_likelihood=e.d_likelihood + self.d_phi, dZ=e.dZ + self.dZ
        )


def climb_by_sample(
    whole: CollapsedTarget,
    near: CollapsedTarget,
    at: Point,
    objective: Objective,
    *,
    move_Z: bool = True,
    passes: int = PASSES,
) -> tuple[np.ndarray, np.ndarray, Evaluation]:
    """Climb an objective of all rows over (φ, Z) by corrected climbs of the sample's; never downhill.

    The correction holds near where it was made, so each climb is short, and where all rows say that it went too far it
    is shortened. `passes` limits the gradients of all rows; a shortened climb costs a value in addition.
    """
    here = whole.evaluate(*at)
    for _ in range(passes):
        move = _move(Corrected(near, at, here), objective, move_Z)
        ahead = _ahead(whole, near, at, move, objective(here)[0], objective)
        if ahead is None:
            break
        there = whole.evaluate(*ahead)
        gain = objective(there)[0] - objective(here)[0]
        at, here = ahead, there
        if gain < _GAIN:
            break
    return at[0], at[1], here


def _move(corrected: Corrected, objective: Objective, move_Z: bool) -> np.ndarray:
    """A few L-BFGS steps of the corrected objective, as a step of (φ, Z)."""
    n, shape = len(corrected.phi), corrected.Z.shape

    def f(x: np.ndarray) -> tuple[float, np.ndarray]:
        e = corrected.evaluate(x[:n], x[n:].reshape(shape))
        value, d_phi = objective(e)
        return value, np.concatenate([d_phi, (e.dZ if move_Z else np.zeros(shape)).ravel()])

    x = np.concatenate([corrected.phi, corrected.Z.ravel()])
    return maximise_lbfgs(f, x, max_steps=_STEPS).x - x


def _ahead(
    whole: CollapsedTarget, near: CollapsedTarget, at: Point, move: np.ndarray, least: float, objective: Objective
) -> Point | None:
    """Where the move, or a part of it, leads to more by all rows."""
    n = len(at[0])
    for share in _SHARES:
        there = at[0] + share * move[:n], at[1] + share * move[n:].reshape(at[1].shape)
        # The prior is that of the sample's evaluation, the bound that of all rows.
        if objective(near.evaluate(*there)._replace(log_likelihood=whole.value(*there)))[0] > least:
            return there
    return None
