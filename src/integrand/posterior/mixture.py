"""Predictions of a fully Bayesian model: an equal-weight mixture of Gaussians, one component per draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf, logsumexp, ndtr

from integrand.errors import InputError
from integrand.posterior.gaussian_quantile import gaussian_quantile, standardised
from integrand.posterior.rows import Array, RowMixture, checked_levels, finite_array


@dataclass(frozen=True, eq=False, repr=False)
class GaussianMixture(RowMixture):
    """Equal-weight mixture over J draws, separately at each of T rows.

    p_t(y) = 1/J Σ_j N(y; means[j, t], variances[j, t])

    Parameters
    ----------
    means : (J, T)
    variances : (J, T), non-negative; zero is a point mass.
    """

    means: Array
    variances: Array

    def __post_init__(self) -> None:
        means, variances = finite_array(self.means, "means"), finite_array(self.variances, "variances")
        if means.ndim != 2 or means.shape[0] == 0:
            raise InputError(f"means must have shape (draws, rows), at least one draw; got {means.shape}")
        if variances.shape != means.shape:
            raise InputError(f"variances have shape {variances.shape} but means {means.shape}")
        if (variances < 0).any():
            raise InputError(f"variances must not be negative; the smallest is {variances.min():.3g}")
        if np.signbit(variances).any():
            # A variance of -0.0 would turn the sign of a quotient.
            variances = np.abs(variances)
        for name, array in (("means", means), ("variances", variances)):
            view = array.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    def __repr__(self) -> str:
        return f"GaussianMixture(draws={self.means.shape[0]}, rows={self.means.shape[1]})"

    @property
    def mean(self) -> Array:
        """Mean of the mixture, 1/J Σ_j μ_j, shape (T,)."""
        out = np.empty(self.means.shape[1])
        for rows in self._row_blocks():
            mu = self.means[:, rows]
            # Differences to one draw: a common offset such as 1e9 then costs no digits.
            out[rows] = mu[0] + (mu - mu[0]).mean(axis=0)
        return out

    @property
    def variance(self) -> Array:
        """Law of total variance, 1/J Σ_j s_j² + 1/J Σ_j (μ_j - mean)², shape (T,)."""
        mean, out = self.mean, self.variances.mean(axis=0)
        for rows in self._row_blocks():
            out[rows] += ((self.means[:, rows] - mean[rows]) ** 2).mean(axis=0)
        return out

    def cdf(self, y: ArrayLike) -> Array:
        """F(y) = 1/J Σ_j Φ((y - μ_j)/s_j) at y of shape (T,) or (K, T)."""
        return self._at(y, lambda y, mu, s: ndtr(standardised(y, mu, s)).mean(axis=0))

    def log_density(self, y: ArrayLike) -> Array:
        """Log p(y) = log 1/J Σ_j N(y; μ_j, s_j²) at y of shape (T,) or (K, T)."""
        log_draws = np.log(self.means.shape[0])
        return self._at(y, lambda y, mu, s: logsumexp(_log_normal(y, mu, s), axis=0) - log_draws)

    def expected_log_density(self, y: ArrayLike) -> Array:
        """1/J Σ_j log N(y; μ_j, s_j²), by Jensen never above `log_density`; same shapes."""
        return self._at(y, lambda y, mu, s: _log_normal(y, mu, s).mean(axis=0))

    def quantile(self, p: ArrayLike) -> Array:
        """Smallest q with F(q) ≥ p.

        |F(q) - p| ≤ 1e-12 where F is continuous and doubles near q are fine enough to say so;
        otherwise (a jump, or a spread below the spacing of doubles) q is a double next to where F passes p.

        Parameters
        ----------
        p : scalar or (P,), strictly between 0 and 1.

        Returns
        -------
        (T,) for a scalar p, else (P, T).
        """
        p = checked_levels(p)
        out = np.empty((p.size, self.means.shape[1]))
        for rows in self._row_blocks():
            mu, s = self._components(rows)
            for k, level in enumerate(p.ravel()):
                out[k, rows] = gaussian_quantile(float(level), mu, s)
        return out[0] if p.ndim == 0 else out

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score ∫ (F(x) - 1{y ≤ x})² dx at y of shape (T,) or (K, T).

        1/J Σ_j A(y - μ_j, s_j) - 1/(2J²) Σ_jk A(μ_j - μ_k, √(s_j² + s_k²)), where
        A(m, s) = E|N(m, s²)| = 2 s φ(m/s) + m (2Φ(m/s) - 1) (Grimit et al., 2006). Time O(J² T).
        """
        first = self._at(y, lambda y, mu, s: _expected_absolute(y - mu, s).mean(axis=0))
        spread = np.empty(self.means.shape[1])
        for rows in self._row_blocks():
            mu, var = self.means[:, rows], self.variances[:, rows]
            # The terms j = k: A(0, √2 s) = 2 s/√π. The others come in equal pairs, so half suffice.
            total = (np.sqrt(var) / np.sqrt(np.pi)).sum(axis=0)
            for j in range(1, len(mu)):
                total += _expected_absolute(mu[:j] - mu[j], np.sqrt(var[:j] + var[j])).sum(axis=0)
            spread[rows] = total / len(mu) ** 2
        return np.maximum(first - spread, 0.0)

    def sample(self, rng: np.random.Generator, n: int) -> Array:
        """Draw n independent values at each row, (n, T); rows are independent of each other."""
        rows = np.arange(self.means.shape[1])
        draw = rng.integers(self.means.shape[0], size=(n, rows.size))
        noise = rng.standard_normal(draw.shape)
        return self.means[draw, rows] + np.sqrt(self.variances[draw, rows]) * noise

    def transformed(self, shift: ArrayLike, scale: ArrayLike) -> GaussianMixture:
        """Return the mixture of scale·f + shift; both are scalars or (T,), and scale > 0."""
        shift, scale = finite_array(shift, "shift"), finite_array(scale, "scale")
        for name, value in (("shift", shift), ("scale", scale)):
            if value.shape not in ((), self.means.shape[1:]):
                raise InputError(f"{name} must be a number or one per row, got shape {value.shape}")
        if (scale <= 0).any():
            raise InputError("scale must be positive")
        return GaussianMixture(self.means * scale + shift, self.variances * scale**2)

    def plus_noise(self, noise_variance: ArrayLike) -> GaussianMixture:
        """Return the mixture of f + ε, ε ~ N(0, noise_variance), per draw (J,) or per draw and row (J, T)."""
        noise = finite_array(noise_variance, "noise_variance")
        if noise.shape not in (self.means.shape, self.means.shape[:1]):
            draws, rows = self.means.shape
            raise InputError(f"noise_variance must have shape ({draws},) or ({draws}, {rows}), got {noise.shape}")
        if (noise < 0).any():
            raise InputError("noise_variance must not be negative")
        return GaussianMixture(self.means, self.variances + noise.reshape(len(noise), -1))

    def _components(self, rows: slice) -> tuple[Array, Array]:
        """Means and standard deviations (J, rows)."""
        return self.means[:, rows], np.sqrt(self.variances[:, rows])


def _log_normal(y: Array, mu: Array, s: Array) -> Array:
    """Log N(y; μ, s²); for s = 0 plus infinity on the point mass, minus infinity elsewhere."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value = -0.5 * ((y - mu) / s) ** 2 - np.log(s) - 0.5 * np.log(2 * np.pi)
    return np.where(s > 0, value, np.where(y == mu, np.inf, -np.inf))


def _expected_absolute(m: Array, s: Array) -> Array:
    """E|N(m, s²)| = 2 s φ(m/s) + m (2Φ(m/s) - 1), which is |m| for s = 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = m / s
        value = np.sqrt(2 / np.pi) * s * np.exp(-0.5 * z**2) + m * erf(z / np.sqrt(2))
    return np.where(s > 0, value, np.abs(m))
