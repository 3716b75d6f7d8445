"""Predictions at new inputs: the mixture over draws, in the user's units, in blocks of rows within a memory limit."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import solve_triangular

from integrand.compilation import one_blas_thread
from integrand.data.scaling import Standardiser
from integrand.errors import InputError, counted
from integrand.likelihoods import Gaussian
from integrand.linalg import Jitter, covariance_root
from integrand.model import Model, Theta
from integrand.posterior.conditional import Conditional, joints, marginals
from integrand.posterior.mixture import GaussianMixture, finite_array
from integrand.posterior.observed import ObservedMixture
from integrand.posterior.transformed import TransformedMixture, log_units, transforms_of
from integrand.precision import float64_scope
from integrand.transforms import Transform

# A joint density or joint draws need a T x T covariance per draw: 200 MB at this T.
MAX_JOINT_ROWS = 5_000

# Mean and variance of f at each row under each draw, and the noise variance of each draw, in the user's units; those of
# a transformed target are of z, standardised.
Components = tuple[Float[np.ndarray, "J T"], Float[np.ndarray, "J T"], Float[np.ndarray, " J"]]


@dataclass(frozen=True)
class Predictive:
    """p(y* | y) or p(f* | y) at the rows of X: 1/J Σ_j N(μ_j, Σ_j), the paper's equations (17) and (18).

    With another likelihood f is that mixture too, and y is observed through the likelihood: `mean` of a Bernoulli is
    the probability of 1.

    With a transformed target f is the median of y in the units of y, and its mean is another than that of y.

    Nothing is computed until a method is called. Means and variances of all draws are cached if they fit into
    `memory` bytes, and computed again for each block of rows if they do not.
    """

    model: Model
    jitter: Jitter
    scaler: Standardiser
    conditional: Conditional
    X: Float[np.ndarray, "T D"]  # standardised
    include_noise: bool
    memory: int = 256 * 2**20
    noise_variance: Float[np.ndarray, " T"] | None = None  # known, of each row, in squared units of y

    def __repr__(self) -> str:
        of = "y" if self.include_noise else "f"
        return f"<Predictive of {of}: {counted(len(self.X), 'row')}, {counted(self.n_draws, 'draw')}>"

    @property
    def n_draws(self) -> int:
        """J, the number of components."""
        return self.conditional.n_draws

    @property
    def mean(self) -> Float[np.ndarray, " T"]:
        """Mean of the mixture at each row."""
        return self._over_rows(lambda mixture: mixture.mean)

    @property
    def variance(self) -> Float[np.ndarray, " T"]:
        """Variance of the mixture at each row: mean of the variances plus variance of the means."""
        return self._over_rows(lambda mixture: mixture.variance)

    @property
    def sd(self) -> Float[np.ndarray, " T"]:
        """Standard deviation of the mixture at each row."""
        return np.sqrt(self.variance)

    def quantile(self, p: float | Float[np.ndarray, " P"]) -> Float[np.ndarray, "..."]:
        """The p-quantile of the mixture (not the mean of quantiles) at each row: (T,), or (P, T) for several p."""
        return self._over_rows(lambda mixture: mixture.quantile(p))

    def interval(self, level: float) -> tuple[Float[np.ndarray, " T"], Float[np.ndarray, " T"]]:
        """Central interval that holds `level` of the mixture at each row."""
        lower, upper = self._over_rows(lambda mixture: np.array(mixture.interval(level)))
        return lower, upper

    def cdf(self, y: Float[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
        """P(y* ≤ y) at each row."""
        return self._over_rows(lambda mixture, y: mixture.cdf(y), y)

    def log_density(self, y: Float[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
        """Log density of the mixture at each row: the log of the mean, not the mean of logs."""
        return self._over_rows(lambda mixture, y: mixture.log_density(y), y)

    def crps(self, y: Float[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
        """Continuous ranked probability score at each row."""
        return self._over_rows(lambda mixture, y: mixture.crps(y), y)

    def sample(self, rng: np.random.Generator, n: int) -> Float[np.ndarray, "n T"]:
        """Draws at each row on its own; for functions, see `sample_joint`."""
        return self._over_rows(lambda mixture: mixture.sample(rng, n))

    def sample_joint(self, rng: np.random.Generator, n: int) -> Float[np.ndarray, "n T"]:
        """Draws of all rows together: a draw of θ, then a function from its Gaussian."""
        self._check_joint()
        picked, known = np.sort(rng.integers(self.n_draws, size=n)), self._scaled_noise_variance
        out = np.empty((n, len(self.X)))
        for start in range(0, n, self._draws_per_block()):
            some = slice(start, start + self._draws_per_block())
            chosen = self.conditional.subset(picked[some])
            means, covariances, noise = joints(self.model, self.jitter, chosen, self.X)
            transform = transforms_of(self.model, chosen.phis)
            with one_blas_thread():
                for i, (mean, covariance, s) in enumerate(zip(means, covariances, noise, strict=True)):
                    extra = s + known if self.include_noise and self._gaussian else 0.0
                    drawn = mean + covariance_root(covariance, extra) @ rng.standard_normal(len(mean))
                    if self.include_noise and not self._gaussian:
                        drawn = self.model.likelihood.sample(rng, drawn, math.sqrt(s))
                    out[start + i] = drawn
            if transform is not None:
                out[some] = transform.inverse(out[some])
        drawn = self.scaler.inverse_y(rng.permutation(out))
        return drawn if self.model.target_transform is None else self.model.target_transform.original(drawn)

    def joint_log_density(self, y: Float[np.ndarray, " T"]) -> Float[np.ndarray, " J"]:
        """Log density of all of y together under each draw: what the paper's NLPD averages."""
        self._check_joint()
        if self.include_noise and not self._gaussian:
            raise InputError(f"a {self.model.likelihood.name} likelihood has no joint density in closed form")
        y, known = finite_array(y, "y"), self._scaled_noise_variance
        transform = transforms_of(self.model, self.conditional.phis)
        base = y if transform is None else transform.base(y)
        if np.isnan(base).any():
            return np.full(self.n_draws, -np.inf)
        t = self.scaler.transform_y(base)
        targets = np.broadcast_to(t if transform is None else transform(t[None, :]), (self.n_draws, len(t)))
        units = len(t) * math.log(self.scaler.y_sd)
        if transform is not None:
            units = np.sum(log_units(transform, self.scaler, t) - transform.log_slope(t[None, :]), axis=1)
        parts = []
        for start in range(0, self.n_draws, self._draws_per_block()):
            some = self.conditional.subset(slice(start, start + self._draws_per_block()))
            means, covariances, noise = joints(self.model, self.jitter, some, self.X)
            with one_blas_thread():
                for target, mean, covariance, s in zip(targets[start:], means, covariances, noise, strict=False):
                    root = covariance_root(covariance, s + known if self.include_noise else 0.0)
                    white = solve_triangular(root, target - mean, lower=True)
                    log_det = np.sum(np.log(np.diagonal(root)))
                    parts.append(-0.5 * white @ white - log_det - 0.5 * len(mean) * math.log(2.0 * math.pi))
        return np.array(parts) - units

    def mixture(self) -> GaussianMixture | ObservedMixture | TransformedMixture:
        """All components at all rows as one in-memory mixture (16 bytes per draw and row)."""
        return self._mixture_of(*self.components(), self.noise_variance)

    def components(self) -> Components:
        """Mean and variance of f at all rows under each draw, and each draw's noise variance, in the user's units.

        Of a transformed target they are those of z = g(y), standardised.
        """
        return self._cached or self._all_components()

    def latent(self) -> "Predictive":
        """The same rows without noise: p(f* | y). What is computed already is not computed again."""
        without = replace(self, include_noise=False, noise_variance=None)
        if self._cached is not None:
            without.__dict__["_cached"] = self._cached
        return without

    def _over_rows(self, reduce: Callable, *aligned: np.ndarray) -> np.ndarray:
        """`reduce(mixture, *aligned)` for all rows, in blocks if their components do not fit into the memory limit."""
        aligned = tuple(_aligned(a, len(self.X)) for a in aligned)
        if self._cached_mixture is not None:
            return reduce(self._cached_mixture, *aligned)
        parts = []
        for rows in self._row_blocks():
            known = None if self.noise_variance is None else self.noise_variance[rows]
            mixture = self._mixture_of(*self._components_at(self.X[rows]), known)
            parts.append(reduce(mixture, *(a[rows] for a in aligned)))
        return np.concatenate(parts, axis=-1)

    @cached_property
    def _cached_mixture(self) -> GaussianMixture | ObservedMixture | TransformedMixture | None:
        """All components as a mixture, if they fit into the memory limit."""
        return None if self._cached is None else self.mixture()

    @cached_property
    def _cached(self) -> Components | None:
        """Components at all rows, if they fit into a quarter of the memory limit."""
        return self._all_components() if 2 * 8 * self.n_draws * len(self.X) <= self.memory // 4 else None

    def _all_components(self) -> Components:
        parts = [self._components_at(self.X[rows]) for rows in self._row_blocks()]
        mean, variance = (np.concatenate([p[i] for p in parts], axis=1) for i in range(2))
        return mean, variance, parts[0][2]

    def _components_at(self, X: np.ndarray) -> Components:
        mean, variance, noise = marginals(self.model, self.jitter, self.conditional, X)
        if self.model.target_transform is not None:
            return mean, variance, noise
        square = self.scaler.y_sd**2
        return self.scaler.inverse_y(mean), variance * square, noise * square

    def _mixture_of(
        self, mean: np.ndarray, variance: np.ndarray, noise: np.ndarray, known: np.ndarray | None
    ) -> GaussianMixture | ObservedMixture | TransformedMixture:
        if self.include_noise and not self._gaussian:
            return ObservedMixture(self.model.likelihood, mean, variance, np.sqrt(noise))
        added = noise[:, None] + (0.0 if known is None else known)
        spread = variance + added if self.include_noise else variance
        if self._transform is not None:
            return TransformedMixture(mean, spread, self._transform, self.scaler)
        return GaussianMixture(mean, spread)

    @cached_property
    def _transform(self) -> Transform | None:
        """That of each draw."""
        return transforms_of(self.model, self.conditional.phis)

    def _row_blocks(self) -> Iterator[slice]:
        """Blocks of rows whose components, and what is needed to compute them, fit into the memory limit."""
        bytes_per_row = 8 * (6 * self.n_draws + 4 * self.conditional.weights.shape[1])
        rows = max(64, self.memory // bytes_per_row)
        rows = 1 << (int(rows).bit_length() - 1)  # a power of two, as blocks are padded to
        yield from (slice(i, min(i + rows, len(self.X))) for i in range(0, len(self.X), rows))

    @property
    def _scaled_noise_variance(self) -> Any:
        """The known noise of each row for scaled y, or zero."""
        return 0.0 if self.noise_variance is None else self.scaler.transform_variance(self.noise_variance)

    @property
    def _gaussian(self) -> bool:
        return isinstance(self.model.likelihood, Gaussian)

    def _check_joint(self) -> None:
        if len(self.X) > MAX_JOINT_ROWS:
            raise InputError(
                f"a joint distribution over {len(self.X)} rows needs a matrix of that size for each draw: "
                f"ask for at most {MAX_JOINT_ROWS} rows at a time"
            )

    def _draws_per_block(self) -> int:
        """Draws whose joint covariances fit into the memory limit at the same time."""
        return max(1, self.memory // (40 * len(self.X) ** 2))


def _aligned(values: np.ndarray, n_rows: int) -> np.ndarray:
    values = np.asarray(values, float)
    if values.shape != (n_rows,):
        raise InputError(f"y has shape {values.shape} for {n_rows} rows of X: one number per row is needed")
    return values


def draws_from_prior(
    model: Model, X: Float[np.ndarray, "T D"], n_draws: int, seed: int, include_noise: bool
) -> Float[np.ndarray, "n T"]:
    """Draws of y (or of f) at standardised rows before any y is known: θ from its prior, then a function at all rows.

    In units of standardised y (or log y, where the transform is of that).
    """
    if isinstance(n_draws, bool) or not isinstance(n_draws, (int, np.integer)) or n_draws < 1:
        raise InputError(f"n_draws must be a whole number of at least 1, not {n_draws!r}")
    if len(X) > MAX_JOINT_ROWS:
        raise InputError(f"{len(X)} rows: draws of functions need a matrix of all rows, at most {MAX_JOINT_ROWS}")
    rng, out = np.random.default_rng(seed), np.empty((n_draws, len(X)))
    with float64_scope():
        thetas = model.sample_prior(jax.random.key(seed), n_draws)
        rows = jnp.asarray(X)

        mean = noise = root = np.zeros(())
        transform: Transform | None = None

        @jax.jit
        def moments(theta: Theta) -> tuple[Array, Array, Array, Transform | None]:
            gp = model.gp(theta)
            return gp.kernel.gram(rows), gp.mean, gp.noise, gp.transform

        with one_blas_thread():
            for i in range(n_draws):
                if i == 0 or thetas:  # else all is fixed
                    theta = {name: value[i] for name, value in thetas.items()}
                    covariance, mean, noise, transform = jax.tree.map(np.asarray, moments(theta))
                    root = covariance_root(covariance, 0.0)
                f = mean + root @ rng.standard_normal(len(X))
                drawn = model.likelihood.sample(rng, f, noise) if include_noise else f
                out[i] = drawn if transform is None else transform.inverse(drawn)
    return out
