"""Climbing the bound of many rows, in few passes over all of them.

The collapsed bound knows the rows through sums, and a sample of n rows whose sums are scaled by N/n estimates every
one of them. In θ, a few coordinates, its bound has nearly the curvature of the whole one but not its place, so value
and gradient are made equal at one point:

    c(φ) = L_sample(φ, Z) + L(φ₀, Z) - L_sample(φ₀, Z) + aᵀ(φ - φ₀),    a = ∂L(φ₀, Z)/∂φ - ∂L_sample(φ₀, Z)/∂φ

Climbing c and correcting it where the climb ends is Newton's method with a Hessian from a sample. In Z, hundreds of
coordinates, a sample's curvature misleads (Z goes where it fits the rows of the sample), so there the sample only says
where to begin, and some steps of L-BFGS with all rows follow.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from integrand.infer.optimise import maximise_lbfgs
from integrand.targets import CollapsedTarget, Evaluation

# θ alone: gradients of all rows at most, L-BFGS steps of the sample between two, the gain (nats) that ends a climb, and
# the parts of a move that are tried.
PASSES, _STEPS, _GAIN, _SHARES = 12, 15, 0.1, (1.0, 0.3, 0.1, 0.03)
# θ and Z: so many gradients of all rows that gain less than that (nats) are the last.
_WINDOW, _LEAST = 10, 0.5

Objective = Callable[[Evaluation], tuple[float, np.ndarray]]
Point = tuple[Float[np.ndarray, " P"], Float[np.ndarray, "M D"]]


class Corrected:
    """c(φ): the bound of a sample at a fixed Z, with the gradient of all rows at one φ."""

    def __init__(self, near: CollapsedTarget, at: Point, whole: Evaluation):
        self.near, (self.phi, self.Z) = near, at
        here = near.evaluate(*at)
        self.d_phi = whole.d_likelihood - here.d_likelihood
        self.constant = whole.log_likelihood - here.log_likelihood

    def evaluate(self, phi: Float[np.ndarray, " P"]) -> Evaluation:
        """The corrected bound in the place of the bound; its gradient in Z is the sample's own."""
        e = self.near.evaluate(phi, self.Z)
        linear = self.constant + self.d_phi @ (phi - self.phi)
        return e._replace(log_likelihood=e.log_likelihood + linear, d_likelihood=e.d_likelihood + self.d_phi)


def climb_theta(
    whole: CollapsedTarget, near: CollapsedTarget, at: Point, objective: Objective, passes: int = PASSES
) -> tuple[Float[np.ndarray, " P"], Evaluation]:
    """Climb an objective of all rows over φ by corrected climbs of the sample's; never downhill.

    The correction holds near where it was made, so each climb is short, and where all rows say that it went too far it
    is shortened. `passes` limits the gradients of all rows; a shortened climb costs a value in addition.
    """
    phi, Z = at
    here = whole.evaluate(phi, Z)
    for _ in range(passes):
        corrected = Corrected(near, (phi, Z), here)
        move = maximise_lbfgs(lambda x, c=corrected: objective(c.evaluate(x)), phi, max_steps=_STEPS).x - phi
        ahead = _ahead(whole, near, (phi, Z), move, objective(here)[0], objective)
        if ahead is None:
            break
        there = whole.evaluate(ahead, Z)
        gain = objective(there)[0] - objective(here)[0]
        phi, here = ahead, there
        if gain < _GAIN:
            break
    return phi, here


def _ahead(
    whole: CollapsedTarget, near: CollapsedTarget, at: Point, move: np.ndarray, least: float, objective: Objective
) -> np.ndarray | None:
    """Where the move, or a part of it, leads to more by all rows."""
    for share in _SHARES:
        there = at[0] + share * move
        # The prior is that of the sample's evaluation, the bound that of all rows.
        if objective(near.evaluate(there, at[1])._replace(log_likelihood=whole.value(there, at[1])))[0] > least:
            return there
    return None


def climb_with_all(
    whole: CollapsedTarget, at: Point, objective: Objective, passes: int
) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, "M D"], Evaluation]:
    """Climb an objective over (φ, Z) by L-BFGS with all rows, from where the climb of a sample has ended.

    Ends after `passes` gradients, or when the last ten gained next to nothing.
    """
    (phi, Z), n = at, len(at[0])
    values: list[float] = []
    best: list[Evaluation] = []  # the latest is the best so far

    def f(x: np.ndarray) -> tuple[float, np.ndarray]:
        e = whole.evaluate(x[:n], x[n:].reshape(Z.shape))
        value, d_phi = objective(e)
        if not best or value > max(values):
            best.append(e)
        values.append(value)
        return value, np.concatenate([d_phi, e.dZ.ravel()])

    def enough(x: np.ndarray, value: float) -> str:
        if len(values) >= passes:
            return "passes used up"
        return "hardly any gain" if value - max(values[:-_WINDOW], default=-np.inf) < _LEAST else ""

    found = maximise_lbfgs(f, np.concatenate([phi, Z.ravel()]), max_steps=passes, watch=enough)
    if found.ended == "interrupted":
        raise KeyboardInterrupt
    return found.x[:n], found.x[n:].reshape(Z.shape), best[-1]
