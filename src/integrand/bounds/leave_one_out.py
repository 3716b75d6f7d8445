"""What one draw of θ says of a row if that row is left out: closed forms from the factors, without refitting.

Two numbers are wanted for each row i. The *weight* of the draw changes by exp(L₋ᵢ - L), where L₋ᵢ is the bound (or log
likelihood) of the other rows. The *score* is the log density of yᵢ under the prediction from the other rows.

For the exact GP the score is L - L₋ᵢ (Rasmussen & Williams 2006, equations 5.10 to 5.12). For a sparse GP they differ.
With the leverage hᵢ = aᵢᵀ B⁻¹ aᵢ / s, the residual eᵢ = yᵢ - mean - aᵢᵀ m and vᵢ = s / (1 - hᵢ):

    L - L₋ᵢ = log N(eᵢ / (1 - hᵢ); 0, vᵢ) - k̃ᵢ / 2s            (tight: - ½ log(1 + k̃ᵢ/s))
    score   = log N(eᵢ / (1 - hᵢ); 0, vᵢ + k̃ᵢ)

The low-rank model without row i has the first density. The prediction adds k̃ᵢ, what Z leaves open of f there.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from integrand.gp import GP
from integrand.linalg import triangular_inverse


class LeftOut(NamedTuple):
    """Of each row, given one θ."""

    gain: Float[Array, " T"]  # L - L₋ᵢ
    score: Float[Array, " T"]  # log density of yᵢ given the other rows

    def in_units_of(self, gp: GP, y: Float[Array, " T"]) -> "LeftOut":
        """The same for y, where these are of g(y) with a transform g: both have log g'(yᵢ) more."""
        if gp.transform is None:
            return self
        slopes = gp.transform.log_slope(y)
        return LeftOut(self.gain + slopes, self.score + slopes)


def sparse_left_out(
    residuals: Float[Array, " T"],
    explained: Float[Array, " T"],
    left: Float[Array, " T"],
    s: Float[Array, "..."],
    bound: str,
) -> LeftOut:
    """Of rows with residuals e, aᵀB⁻¹a (`explained`) and k̃ (`left`), for noise variance s, one or of each."""
    kept = 1.0 - explained / s
    error, variance = residuals / kept, s / kept
    penalty = jnp.log1p(left / s) if bound == "tight" else left / s
    return LeftOut(_log_normal(error, variance) - 0.5 * penalty, _log_normal(error, variance + left))


def exact_left_out(L: Float[Array, "N N"], alpha: Float[Array, " N"]) -> LeftOut:
    """Of all rows of an exact GP, K + σ²I = L Lᵀ and alpha = (K + σ²I)⁻¹ (y - mean)."""
    precision = jnp.sum(triangular_inverse(L) ** 2, axis=0)
    score = _log_normal(alpha / precision, 1.0 / precision)
    return LeftOut(score, score)


def _log_normal(error: Array, variance: Array) -> Array:
    return -0.5 * (error**2 / variance + jnp.log(2.0 * math.pi * variance))
