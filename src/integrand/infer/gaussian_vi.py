"""A Gaussian in place of a density: maximise E_q log p + H[q] over q(x) = N(m, C Cᵀ), and over nuisances of p.

The expectation is over a fixed set of standardised draws ε (scrambled Sobol points made exactly white), so the
objective is a smooth function that L-BFGS maximises (sample average approximation; Giordano et al. 2024). The tail of
the importance ratios p/q shows how well the Gaussian fits: Pareto k̂ (Vehtari et al. 2024).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.stats import norm, qmc

from integrand.infer.coordinates import Coordinates
from integrand.infer.importance import pareto_smoothed
from integrand.infer.optimise import OptimiserCallback, maximise_lbfgs

# log density and gradients in x of each row, and the mean gradient in the nuisance: f(xs (S, P), nuisance (K,)).
BatchedDensity = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


# Draws ε of the objective. With fewer than a few for each dimension q would fit the draws instead of the density.
_MIN_DRAWS, _DRAWS_PER_DIMENSION = 32, 8
# Fresh draws for the bound and k̂, and how many of them must be finite for a fit of their tail.
_CHECK_DRAWS, _MIN_TAIL_DRAWS = 400, 50


class GaussianFit(NamedTuple):
    """q(x) = N(mean, factor factorᵀ), the nuisance, and the objective on draws that did not fit it."""

    mean: Float[np.ndarray, " P"]
    factor: Float[np.ndarray, "P P"]  # lower triangular times the factor of the coordinates
    nuisance: Float[np.ndarray, " K"]
    elbo: float
    elbo_error: float
    pareto_k: float
    message: str
    converged: bool
    ended: str  # why a callback ended the ascent
    unknowns: Float[np.ndarray, " n"]  # where the ascent ended; another may start there


def white_draws(n: int, dimension: int, seed: int) -> Float[np.ndarray, "n P"]:
    """Quasi-random standard normal draws whose mean is 0 and whose covariance is I to the last digit."""
    points = qmc.Sobol(dimension, rng=seed).random(1 << (n - 1).bit_length())
    draws = norm.ppf(np.clip(points, 1e-9, 1 - 1e-9))
    draws -= draws.mean(axis=0)
    root = np.linalg.cholesky(draws.T @ draws / len(draws))
    return np.linalg.solve(root, draws.T).T


def fit_gaussian(
    density: BatchedDensity,
    coordinates: Coordinates,
    nuisance: Float[np.ndarray, " K"],
    *,
    diagonal: bool = False,
    max_steps: int = 200,
    seed: int = 0,
    first: Float[np.ndarray, " n"] | None = None,
    callback: OptimiserCallback | None = None,
) -> GaussianFit:
    """Maximise the bound E_q log p(x, nuisance) + H[q] from q = N(centre, factor factorᵀ) of the coordinates.

    Parameters
    ----------
    coordinates
        η with x = centre + factor η, in which q is N(μ, T Tᵀ) with a lower triangular T.
    diagonal
        Whether entries of x are independent under q. The factor is then replaced by the conditional scales
        1 / √(Σ⁻¹)ᵢᵢ, which are those of the best such q if the density is a Gaussian.
    first
        Unknowns of an earlier ascent to start from.
    callback
        Sees the best unknowns and the bound there after each evaluation. It may return a reason to end.
    """
    n = len(coordinates.centre)
    if diagonal:
        coordinates = Coordinates(
            coordinates.centre, np.diag(1.0 / np.sqrt(np.diagonal(np.linalg.inv(coordinates.covariance))))
        )
    draws = white_draws(max(_MIN_DRAWS, _DRAWS_PER_DIMENSION * n), n, seed)
    lower = (np.arange(n), np.arange(n)) if diagonal else np.tril_indices(n)
    on_diagonal = np.flatnonzero(lower[0] == lower[1])

    def unpack(v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        entries = v[n : n + len(lower[0])].copy()
        entries[on_diagonal] = np.exp(entries[on_diagonal])
        T = np.zeros((n, n))
        T[lower] = entries
        return v[:n], T, v[n + len(lower[0]) :]

    def objective(v: np.ndarray) -> tuple[float, np.ndarray]:
        mu, T, extra = unpack(v)
        values, gradients, d_extra = density(coordinates.to_x(mu + draws @ T.T), extra)
        g = gradients @ coordinates.factor  # in η
        dT = (g.T @ draws / len(draws))[lower]
        dT[on_diagonal] = dT[on_diagonal] * np.diagonal(T) + 1.0  # in log T_ii; the entropy adds Σ log T_ii
        entropy = float(np.sum(np.log(np.diagonal(T)))) + _entropy_offset(coordinates)
        return float(np.mean(values)) + entropy, np.concatenate([g.mean(axis=0), dT, d_extra])

    if first is None:
        first = np.concatenate([np.zeros(n + len(lower[0])), nuisance])
    optimum = maximise_lbfgs(objective, first, max_steps=max_steps, callback=callback)
    mu, T, nuisance = unpack(optimum.x)
    factor = coordinates.factor @ T
    elbo, error, k = _bound_and_fit(density, coordinates.to_x(mu), factor, nuisance, seed)
    return GaussianFit(
        coordinates.to_x(mu),
        factor,
        nuisance,
        elbo,
        error,
        k,
        optimum.message,
        optimum.converged,
        optimum.ended,
        optimum.x,
    )


def _entropy_offset(coordinates: Coordinates) -> float:
    n = len(coordinates.centre)
    return float(np.linalg.slogdet(coordinates.factor)[1]) + 0.5 * n * float(np.log(2.0 * np.pi * np.e))


def _bound_and_fit(
    density: BatchedDensity, mean: np.ndarray, factor: np.ndarray, nuisance: np.ndarray, seed: int
) -> tuple[float, float, float]:
    """The bound with its standard error, and Pareto k̂ of p/q, on fresh independent draws."""
    draws = np.random.default_rng([seed, 1]).standard_normal((_CHECK_DRAWS, len(mean)))
    values = density(mean + draws @ factor.T, nuisance)[0]
    log_q = -0.5 * np.sum(draws**2, axis=1) - np.linalg.slogdet(factor)[1] - 0.5 * len(mean) * np.log(2 * np.pi)
    ratios = values - log_q
    finite = ratios[np.isfinite(ratios)]
    k = float(pareto_smoothed(finite).k_hat) if len(finite) > _MIN_TAIL_DRAWS else float("inf")
    if len(finite) < len(ratios):
        return -np.inf, float("inf"), float("inf")
    return float(ratios.mean()), float(ratios.std(ddof=1) / np.sqrt(len(ratios))), k
