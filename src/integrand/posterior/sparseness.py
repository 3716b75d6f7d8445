"""How far a sparse posterior of θ is from the exact one: the bound with more inducing points, and log p(y | θ).

All of it from covariance matrices, in NumPy: for a few draws of few rows that is sooner done than compiled.
"""

import math

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import solve_triangular

from integrand.linalg import Jitter

# A row whose variance given the points is below this share of the largest prior variance adds nothing.
_EXPLAINED = 1e-6


def further_points(K: Float[np.ndarray, "T T"], n_inducing: int, m: int, jitter: Jitter) -> Int[np.ndarray, " m"]:
    """Rows (counted from 0) that the points leave most uncertain, one after the other: at most `m`.

    `K` is the covariance of the `n_inducing` points and, behind them, of the rows. Rows are pivots of its Cholesky
    factor, and end where what is left is explained.
    """
    variances = np.diagonal(K)[n_inducing:].copy()
    rows = np.zeros((n_inducing + m, len(variances)))  # of the factor
    if n_inducing:
        L = np.linalg.cholesky(jitter.added(K[:n_inducing, :n_inducing]))
        rows[:n_inducing] = solve_triangular(L, K[:n_inducing, n_inducing:], lower=True)
    left = variances - np.sum(rows[:n_inducing] ** 2, axis=0)
    chosen: list[int] = []
    for i in range(n_inducing, n_inducing + m):
        pivot = int(np.argmax(left))
        if left[pivot] <= _EXPLAINED * np.max(variances):
            break
        row = (K[n_inducing + pivot, n_inducing:] - rows[:i, pivot] @ rows[:i]) / math.sqrt(left[pivot])
        rows[i], left = row, left - row**2
        left[pivot] = -1.0
        chosen.append(pivot)
    return np.array(chosen, int)


def dense_bound(
    Kmm: Float[np.ndarray, "M M"],
    Kmn: Float[np.ndarray, "M N"],
    variances: Float[np.ndarray, " N"],
    residuals: Float[np.ndarray, " N"],
    noise: float | Float[np.ndarray, " N"],
    bound: str,
) -> float:
    """L(θ, Z) as in `bounds.collapsed`, from k(Z, Z) with jitter, k(Z, X), k(x, x) and y - mean; NaN on failure.

    The noise is σ², or sₙ of each row.
    """
    try:
        A = solve_triangular(np.linalg.cholesky(Kmm), Kmn, lower=True)
        LB = np.linalg.cholesky(np.eye(len(A)) + (A / noise) @ A.T)
    except np.linalg.LinAlgError:
        return math.nan
    c = solve_triangular(LB, A @ (residuals / noise), lower=True)
    log_determinant = np.sum(np.log(2.0 * math.pi * noise) * np.ones(len(residuals))) + 2.0 * np.sum(
        np.log(np.diagonal(LB))
    )
    left = np.maximum(variances - np.sum(A**2, axis=0), 0.0) / noise
    trace = np.sum(np.log1p(left) if bound == "tight" else left)
    return float(-0.5 * (log_determinant + residuals @ (residuals / noise) - c @ c + trace))


def log_marginal(
    K: Float[np.ndarray, "N N"], residuals: Float[np.ndarray, " N"], noise: float | Float[np.ndarray, " N"]
) -> float:
    """log p(y | θ) of the exact GP, from k(X, X), y - mean and σ² (or sₙ of each row); NaN if it fails."""
    try:
        L = np.linalg.cholesky(K + noise * np.eye(len(K)))
    except np.linalg.LinAlgError:
        return math.nan
    white = solve_triangular(L, residuals, lower=True)
    return float(-0.5 * white @ white - np.sum(np.log(np.diagonal(L))) - 0.5 * len(K) * math.log(2.0 * math.pi))
