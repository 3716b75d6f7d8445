"""R-hat and effective sample sizes of many coordinates at once (Vehtari, Gelman, Simpson, Carpenter & Bürkner 2021).

The numbers are those of `arviz.rhat` and `arviz.ess`, which the tests compare with. Chains are looked at many times
while they run, with the interpreter's lock held that their threads need: here all coordinates go through one transform.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.fft import next_fast_len
from scipy.special import ndtri

Draws = Float[np.ndarray, "C n P"]


Numbers = Float[np.ndarray, " P"]


# Blom's offset of ranks, and the shares of draws whose quantiles the tail ESS is about.
_BLOM, _TAILS = 0.375, (0.05, 0.95)
LEAST_DRAWS = 4


def r_hat(x: Draws) -> Numbers:
    """The larger one of rank-normalised split R-hat, of the draws and of their distances from the median."""
    halves = _halves(x)
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    return np.maximum(_r_hat(_normal_scores(halves)), _r_hat(_normal_scores(folded)))


def ess_bulk(x: Draws) -> Numbers:
    """Effective sample size of the rank-normalised draws."""
    return _ess(_normal_scores(_halves(x)))


def ess_tail(x: Draws) -> Numbers:
    """The smaller one of the effective sample sizes of the 5 % and the 95 % quantile."""
    return np.min([_ess(_halves((x <= q).astype(float))) for q in np.quantile(x, _TAILS, axis=(0, 1))], axis=0)


def _halves(x: Draws) -> Float[np.ndarray, "C2 m P"]:
    """Each chain as two."""
    half = x.shape[1] // 2
    return np.concatenate([x[:, :half], x[:, x.shape[1] - half :]])


def _normal_scores(x: Draws) -> Draws:
    ranks = np.array([_ranks(column) for column in x.reshape(-1, x.shape[2]).T]).T
    return ndtri((ranks - _BLOM) / (len(ranks) - 2.0 * _BLOM + 1.0)).reshape(x.shape)


def _ranks(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Ranks from 1, equal values sharing the mean of theirs (without loading `scipy.stats`)."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - 0.5 * (count - 1.0))[place]


def _r_hat(z: Draws) -> Numbers:
    n = z.shape[1]
    between, within = n * z.mean(axis=1).var(axis=0, ddof=1), z.var(axis=1, ddof=1).mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):  # a chain that never moves
        return np.sqrt((between / within + n - 1.0) / n)


def _ess(z: Draws) -> Numbers:
    """Geyer's initial monotone sequence of the autocorrelations, for each coordinate."""
    chains, n, _ = z.shape
    length = next_fast_len(2 * n)
    spectrum = np.fft.rfft(z - z.mean(axis=1, keepdims=True), length, axis=1)
    autocovariance = np.fft.irfft(np.abs(spectrum) ** 2, length, axis=1)[:, :n].mean(axis=0) / n  # (lag, P)
    within = autocovariance[0] * n / (n - 1.0)
    variance = autocovariance[0] + z.mean(axis=1).var(axis=0, ddof=1)
    still = np.ptp(z, axis=(0, 1)) < np.finfo(float).resolution
    rho = 1.0 - (within - autocovariance) / np.where(still, 1.0, variance)
    rho[0] = 1.0
    most = chains * n / np.maximum([_time(r) for r in rho.T], 1.0 / np.log10(chains * n))
    return np.where(still, chains * n, most)


def _time(rho: Float[np.ndarray, " n"]) -> float:
    """The integrated autocorrelation time: sums of pairs of lags as long as they are positive, and never rising."""
    pairs = [rho[0] + rho[1]]
    t = 1
    while t < len(rho) - 3 and pairs[-1] > 0.0:
        pairs.append(rho[t + 1] + rho[t + 2])
        t += 2
    # Of the last pair only the even lag counts, and not where it is what made the sum negative.
    last = float(rho[t - 1]) if rho[t - 1] > 0.0 or pairs[-1] >= 0.0 else 0.0
    whole = np.minimum.accumulate(pairs[:-1]) if len(pairs) > 1 else np.zeros(0)
    return -1.0 + 2.0 * float(whole.sum()) + last


R_HAT_LIMIT = 1.01


class Convergence(NamedTuple):
    """Rank-normalised split R-hat and effective sample sizes of each coordinate (Vehtari et al. 2021)."""

    r_hat: Float[np.ndarray, " P"]
    ess_bulk: Float[np.ndarray, " P"]
    ess_tail: Float[np.ndarray, " P"]

    def reached(self, target_ess: float) -> bool:
        """Every coordinate has R-hat <= 1.01 and both sample sizes."""
        return bool(
            np.all(self.r_hat <= R_HAT_LIMIT)
            and np.all(self.ess_bulk >= target_ess)
            and np.all(self.ess_tail >= target_ess)
        )


def convergence(x: Float[np.ndarray, "C n P"]) -> Convergence:
    """R-hat, bulk ESS and tail ESS of draws; a coordinate that never moves has ESS 0 and infinite R-hat."""
    _, n, p = x.shape
    nothing = np.full(p, np.nan)
    known = n >= LEAST_DRAWS and bool(np.all(np.isfinite(x)))
    ratio = r_hat(x) if known else nothing  # of half chains, so that one chain has an R-hat too
    bulk, tail = (ess_bulk(x), ess_tail(x)) if known else (nothing, nothing)
    stuck = np.ptp(x, axis=(0, 1)) == 0.0
    ratio = np.where(stuck | ~np.isfinite(ratio), np.inf, ratio)
    return Convergence(ratio, np.where(stuck, 0.0, np.nan_to_num(bulk)), np.where(stuck, 0.0, np.nan_to_num(tail)))


def e_bfmi(energy: Float[np.ndarray, "C n"]) -> Float[np.ndarray, " C"]:
    """Energy's Bayesian fraction of missing information of each chain: mean of (ΔE)² / variance of E; NaN if unknown.

    Draws without an energy (independence proposals have none) do not count.
    """
    return np.array([_e_bfmi(chain) for chain in energy])


def _e_bfmi(energy: Float[np.ndarray, " n"]) -> float:
    known = np.isfinite(energy)
    changes = np.diff(energy)[known[1:] & known[:-1]] if len(energy) else energy
    if len(changes) == 0:
        return math.nan
    variance = float(np.var(energy[known]))
    return float(np.mean(changes**2)) / variance if variance > 0.0 else 0.0
