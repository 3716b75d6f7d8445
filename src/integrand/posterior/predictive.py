"""The mixture over draws at new inputs, in the user's units, in blocks of rows under a memory budget."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular

from integrand.data.scaling import Standardiser
from integrand.errors import InputError
from integrand.infer.threads import one_blas_thread
from integrand.likelihoods import Gaussian
from integrand.linalg import Jitter
from integrand.model import Model
from integrand.posterior.conditional import Conditional, draws_of, joints, marginals
from integrand.posterior.mixture import GaussianMixture
from integrand.posterior.observed import ObservedMixture

# A joint density or joint draws need a T x T covariance for each draw.
MOST_JOINT_ROWS = 5_000


@dataclass(frozen=True)
class Predictive:
    """p(y* | y) or p(f* | y) at the rows of X: 1/J Σ_j N(μ_j, Σ_j), the paper's equations (17) and (18).

    With another likelihood f is that mixture too, and y is observed through the likelihood: `mean` of a Bernoulli is
    the probability of 1.

    Nothing is computed until a method is called. Means and variances of all draws are kept if they fit into
    `memory` bytes, and made again for each block of rows if they do not.
    """

    model: Model
    jitter: Jitter
    scaler: Standardiser
    conditional: Conditional
    X: Float[np.ndarray, "T D"]  # standardised
    include_noise: bool
    memory: int = 256 * 2**20

    @property
    def n_draws(self) -> int:
        """J, the number of components."""
        return len(self.conditional.phis)

    @property
    def mean(self) -> Float[np.ndarray, " T"]:
        """Mean of the mixture at each row."""
        return self._by_rows(lambda mixture: mixture.mean)

    @property
    def variance(self) -> Float[np.ndarray, " T"]:
        """Variance of the mixture at each row: mean of the variances plus variance of the means."""
        return self._by_rows(lambda mixture: mixture.variance)

    @property
    def sd(self) -> Float[np.ndarray, " T"]:
        """Standard deviation of the mixture at each row."""
        return np.sqrt(self.variance)

    def quantile(self, p: float | Float[np.ndarray, " P"]) -> Float[np.ndarray, "..."]:
        """The p-quantile of the mixture (not the mean of quantiles) at each row: (T,), or (P, T) for several p."""
        return self._by_rows(lambda mixture: mixture.quantile(p))

    def interval(self, level: float) -> tuple[Float[np.ndarray, " T"], Float[np.ndarray, " T"]]:
        """Central interval that holds `level` of the mixture at each row."""
        lower, upper = self._by_rows(lambda mixture: np.array(mixture.interval(level)))
        return lower, upper

    def cdf(self, y: Float[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
        """P(y* ≤ y) at each row."""
        return self._by_rows(lambda mixture, y: mixture.cdf(y), y)

    def log_density(self, y: Float[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
        """Log density of the mixture at each row: the log of the mean, not the mean of logs."""
        return self._by_rows(lambda mixture, y: mixture.log_density(y), y)

    def crps(self, y: Float[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
        """Continuous ranked probability score at each row."""
        return self._by_rows(lambda mixture, y: mixture.crps(y), y)

    def sample(self, rng: np.random.Generator, n: int) -> Float[np.ndarray, "n T"]:
        """Draws at each row on its own; for functions, see `sample_joint`."""
        return self._by_rows(lambda mixture: mixture.sample(rng, n))

    def sample_joint(self, rng: np.random.Generator, n: int) -> Float[np.ndarray, "n T"]:
        """Draws of all rows together: a draw of θ, then a function from its Gaussian."""
        self._check_joint()
        picked = np.sort(rng.integers(self.n_draws, size=n))
        out = np.empty((n, len(self.X)))
        for start in range(0, n, self._joint_block()):
            some = slice(start, start + self._joint_block())
            means, covariances, noise = joints(
                self.model, self.jitter, draws_of(self.conditional, picked[some]), self.X
            )
            with one_blas_thread():
                for i, (mean, covariance, s) in enumerate(zip(means, covariances, noise, strict=True)):
                    extra = s if self.include_noise and self._gaussian else 0.0
                    drawn = mean + _root(covariance, extra) @ rng.standard_normal(len(mean))
                    if self.include_noise and not self._gaussian:
                        drawn = self.model.likelihood.sample(rng, drawn, math.sqrt(s))
                    out[start + i] = drawn
        return self.scaler.inverse_y(rng.permutation(out))

    def joint_log_density(self, y: Float[np.ndarray, " T"]) -> Float[np.ndarray, " J"]:
        """Log density of all of y together under each draw: what the paper's NLPD averages."""
        self._check_joint()
        if self.include_noise and not self._gaussian:
            raise InputError(f"a {self.model.likelihood.name} likelihood has no joint density in closed form")
        target = self.scaler.transform_y(np.asarray(y, float))
        parts = []
        for start in range(0, self.n_draws, self._joint_block()):
            some = draws_of(self.conditional, slice(start, start + self._joint_block()))
            means, covariances, noise = joints(self.model, self.jitter, some, self.X)
            with one_blas_thread():
                for mean, covariance, s in zip(means, covariances, noise, strict=True):
                    root = _root(covariance, s if self.include_noise else 0.0)
                    white = solve_triangular(root, target - mean, lower=True)
                    log_det = np.sum(np.log(np.diagonal(root)))
                    parts.append(-0.5 * white @ white - log_det - 0.5 * len(mean) * math.log(2.0 * math.pi))
        return np.array(parts) - len(target) * math.log(self.scaler.y_sd)

    def mixture(self) -> GaussianMixture | ObservedMixture:
        """All components at all rows as one in-memory mixture (16 bytes a draw and row)."""
        return self._observed(*(self._few or self._all()))

    def latent(self) -> "Predictive":
        """The same rows without noise: p(f* | y). What is computed already is not computed again."""
        without = replace(self, include_noise=False)
        if self._few is not None:
            without.__dict__["_few"] = self._few
        return without

    def _all(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        parts = [self._components(self.X[b]) for b in self._blocks()]
        mean, variance = (np.concatenate([p[i] for p in parts], axis=1) for i in range(2))
        return mean, variance, parts[0][2]

    @property
    def _gaussian(self) -> bool:
        return isinstance(self.model.likelihood, Gaussian)

    def _components(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean and variance of f, and the noise variance, of each draw in the units of the user."""
        mean, variance, noise = marginals(self.model, self.jitter, self.conditional, X)
        square = self.scaler.y_sd**2
        return self.scaler.inverse_y(mean), variance * square, noise * square

    def _observed(self, mean: np.ndarray, variance: np.ndarray, noise: np.ndarray) -> GaussianMixture | ObservedMixture:
        if self.include_noise and not self._gaussian:
            return ObservedMixture(self.model.likelihood, mean, variance, np.sqrt(noise))
        return GaussianMixture(mean, variance + noise[:, None] if self.include_noise else variance)

    def _blocks(self) -> Iterator[slice]:
        """Row blocks whose components, and what is needed to make them, stay within the budget."""
        bytes_a_row = 8 * (6 * self.n_draws + 4 * self.conditional[2].shape[1])
        rows = max(64, self.memory // bytes_a_row)
        rows = 1 << (int(rows).bit_length() - 1)  # a power of two, as blocks are padded to
        yield from (slice(i, min(i + rows, len(self.X))) for i in range(0, len(self.X), rows))

    @cached_property
    def _few(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Components of f and the noise of all draws, if they fit into a quarter of the budget."""
        return self._all() if 2 * 8 * self.n_draws * len(self.X) <= self.memory // 4 else None

    @cached_property
    def _kept(self) -> GaussianMixture | ObservedMixture | None:
        """All components, if they fit into the budget."""
        return None if self._few is None else self.mixture()

    def _by_rows(self, reduce: Callable, *aligned: np.ndarray) -> np.ndarray:
        aligned = tuple(_aligned(a, len(self.X)) for a in aligned)
        if self._kept is not None:
            return reduce(self._kept, *aligned)
        parts = [reduce(self._observed(*self._components(self.X[b])), *(a[b] for a in aligned)) for b in self._blocks()]
        return np.concatenate(parts, axis=-1)

    def _check_joint(self) -> None:
        if len(self.X) > MOST_JOINT_ROWS:
            raise InputError(
                f"a joint distribution over {len(self.X)} rows needs a matrix of that size for each draw: "
                f"ask for at most {MOST_JOINT_ROWS} rows at a time"
            )

    def _joint_block(self) -> int:
        return max(1, self.memory // (40 * len(self.X) ** 2))


def _aligned(values: np.ndarray, n_rows: int) -> np.ndarray:
    values = np.asarray(values, float)
    if values.shape != (n_rows,):
        raise InputError(f"y has shape {values.shape} for {n_rows} rows of X: one number a row is needed")
    return values


def _root(covariance: np.ndarray, extra: float) -> np.ndarray:
    """Lower Cholesky factor of covariance + extra I, with as little jitter as it takes."""
    scale = float(np.mean(np.diagonal(covariance))) + extra
    identity = np.eye(len(covariance))
    for jitter in (0.0, 1e-12, 1e-10, 1e-8, 1e-6):
        try:
            return np.linalg.cholesky(covariance + (extra + jitter * scale) * identity)
        except np.linalg.LinAlgError:
            continue
    eigenvalues, vectors = np.linalg.eigh(covariance)
    return np.linalg.cholesky((vectors * np.maximum(eigenvalues, 1e-6 * scale)) @ vectors.T + extra * identity)
