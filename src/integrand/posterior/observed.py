"""Predictions of observations that are not Gaussian: classes, counts, values with outliers, averaged over draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from integrand.errors import InputError
from integrand.likelihoods import Likelihood, Numbers
from integrand.posterior.mixture import GaussianMixture
from integrand.posterior.observed_rows import ContinuousRow, CountsRow, average, continuous_quantile
from integrand.posterior.rows import Array, RowMixture, checked_levels, finite_array


@dataclass(frozen=True, eq=False, repr=False)
class ObservedMixture(RowMixture):
    """Equal-weight mixture over J draws of what is observed, separately at each of T rows.

    p_t(y) = 1/J Σ_j ∫ p(y | f, noise_j) N(f; means[j, t], variances[j, t]) df

    For counts and classes p_t is a probability, for the others a density. Log densities are good to 1e-9, in
    the tails too, distribution functions to 1e-10, scores to 1e-7 of their value.

    Parameters
    ----------
    likelihood : how y depends on f.
    means : (J, T), of f.
    variances : (J, T), of f, non-negative; zero is a point mass.
    noise : (J,), positive; not asked for by a likelihood without noise.
    """

    likelihood: Likelihood
    means: Array
    variances: Array
    noise: Array = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if not isinstance(self.likelihood, Likelihood):
            raise InputError(f"likelihood must be one such as Poisson(), not {self.likelihood!r}")
        latent = GaussianMixture(self.means, self.variances)
        draws = latent.means.shape[0]
        if self.likelihood.has_noise:
            noise = finite_array(self.noise, "noise")
            if noise.shape != (draws,) or not (noise > 0).all():
                raise InputError(f"noise must be {draws} positive numbers, one a draw; got shape {noise.shape}")
        else:
            noise = np.ones(draws)
        view = noise.view()
        view.flags.writeable = False
        for name, array in (("means", latent.means), ("variances", latent.variances), ("noise", view)):
            object.__setattr__(self, name, array)

    def __repr__(self) -> str:
        return f"ObservedMixture({self.likelihood!r}, draws={self.means.shape[0]}, rows={self.means.shape[1]})"

    @property
    def mean(self) -> Array:
        """Mean of the mixture, 1/J Σ_j E_j[y], shape (T,)."""
        out = np.empty(self.means.shape[1])
        for rows in self._row_blocks():
            of_draws = np.asarray(self.likelihood.marginal_mean(*self._components(rows)))
            # Differences to one draw: a common offset such as 1e9 then costs no digits.
            base = np.where(np.isfinite(of_draws[0]), of_draws[0], 0.0)
            out[rows] = base + average(of_draws - base)
        return out

    @property
    def variance(self) -> Array:
        """Law of total variance, 1/J Σ_j Var_j[y] + 1/J Σ_j (E_j[y] - mean)², shape (T,)."""
        mean, out = self.mean, np.empty(self.means.shape[1])
        for rows in self._row_blocks():
            f = self._components(rows)
            with np.errstate(over="ignore", invalid="ignore"):
                between = np.square(self.likelihood.marginal_mean(*f) - mean[rows])
                within = self.likelihood.marginal_variance(*f)
            out[rows] = np.where(np.isfinite(mean[rows]), average(within + between), np.inf)
        return out

    @property
    def probability(self) -> Array:
        """P(y = 1) of a likelihood of classes, shape (T,)."""
        if not self._binary:
            raise InputError(f"a {self.likelihood.name} likelihood has no classes; ask for its mean, cdf or quantile")
        return self.mean

    def cdf(self, y: ArrayLike) -> Array:
        """F(y) = P(Y ≤ y) at y of shape (T,) or (K, T)."""
        if self.likelihood.discrete and not self._binary:
            return self._each_row(y, lambda row, y: row.cdf(np.floor(y)))
        return self._at(y, lambda y, *f: average(self.likelihood.marginal_cdf(y, *f)))

    def log_density(self, y: ArrayLike) -> Array:
        """Log p(y), the log of the mean over draws, at y of shape (T,) or (K, T)."""
        log_draws = np.log(self.means.shape[0])
        return self._at_observed(y, lambda terms: logsumexp(terms, axis=0) - log_draws)

    def expected_log_density(self, y: ArrayLike) -> Array:
        """1/J Σ_j log p_j(y), by Jensen never above `log_density`; same shapes."""
        return self._at_observed(y, average)

    def quantile(self, p: ArrayLike) -> Array:
        """Smallest q with F(q) ≥ p; a whole number for counts and classes.

        Parameters
        ----------
        p : scalar or (P,), strictly between 0 and 1.

        Returns
        -------
        (T,) for a scalar p, else (P, T).
        """
        p = checked_levels(p)
        levels, out = p.reshape(-1, 1), np.empty((p.size, self.means.shape[1]))
        if self._binary:
            out[:] = self.cdf(np.zeros(out.shape[1])) < levels
        elif self.likelihood.discrete:
            out[:] = self._each_row(np.broadcast_to(levels, out.shape), lambda row, p: row.quantile(p))
        else:
            for rows in self._row_blocks():
                out[:, rows] = continuous_quantile(self.likelihood, levels, *self._components(rows))
        return out[0] if p.ndim == 0 else out

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score ∫ (F(x) - 1{y ≤ x})² dx at y of shape (T,) or (K, T).

        A sum over whole numbers for counts; (y - P(y = 1))², the Brier score, for classes. Infinite for
        a Student-t with df ≤ 1/2.
        """
        y = finite_array(y, "y")
        self.likelihood.check_y(y)
        if self._binary:
            return self._at(y, lambda y, *f: np.square(average(self.likelihood.marginal_mean(*f)) - y))
        return self._each_row(y, lambda row, y: np.array([row.crps(float(value)) for value in y]))

    def sample(self, rng: np.random.Generator, n: int) -> Array:
        """Draw n independent values at each row, (n, T); rows are independent of each other."""
        rows = np.arange(self.means.shape[1])
        draw = rng.integers(self.means.shape[0], size=(n, rows.size))
        f = self.means[draw, rows] + np.sqrt(self.variances[draw, rows]) * rng.standard_normal(draw.shape)
        return np.asarray(self.likelihood.sample(rng, f, self.noise[draw]), float)

    @property
    def _binary(self) -> bool:
        return self.likelihood.largest == 1

    def _components(self, rows: slice) -> tuple[Array, Array, Array]:
        """Means, variances (J, rows) and noise (J, 1)."""
        return self.means[:, rows], self.variances[:, rows], self.noise[:, None]

    def _at_observed(self, y: ArrayLike, reduce: Callable[[Numbers], Array]) -> Array:
        """Apply ``reduce`` to the log p_j(y) of all draws, at every y that can be an observation."""
        y = finite_array(y, "y")
        self.likelihood.check_y(y)
        return self._at(y, lambda y, *f: reduce(self.likelihood.marginal_log_prob(y, *f)))

    def _each_row(self, y: ArrayLike, value: Callable[[Any, Array], Array]) -> Array:
        """Apply ``value(row, y)`` to all values (K,) of a row, row by row."""
        y, out = self._checked(y)
        grid, result = np.atleast_2d(y), np.atleast_2d(out)
        kind = CountsRow if self.likelihood.discrete else ContinuousRow
        for t in range(y.shape[-1]):
            row = kind(self.likelihood, self.means[:, t], self.variances[:, t], self.noise)
            result[:, t] = value(row, grid[:, t])
        return out
