"""New rows without the old ones: at fixed Z and draws of θ, each draw takes the rows in and gets a weight.

A draw keeps m and LB of its q*(u), B = LB LBᵀ. For new rows let A = L⁻¹ k(Z, X), S their noise variances,
e = y - mean - Aᵀm, C = LB⁻¹ A, I + C S⁻¹ Cᵀ = R Rᵀ and c = R⁻¹ C S⁻¹ e. Then with them

    LB' = LB R,   m' = m + LB⁻ᵀ R⁻ᵀ c
    L_new - L_old = -½ Σ log 2πsₙ - Σ log diag R - ½ eᵀS⁻¹e + ½ cᵀc - ½ Σ k̃ₙ/sₙ

and -½ Σ log(1 + k̃ₙ/sₙ) in place of the last term for the tight bound. These are the q*(u) and the bound of all rows:
what Bui, Nguyen & Turner (2017) do for a stream, with Z and θ held. The weight of a draw is exp(L_new - L_old), and
weights of one update after the other multiply. An exact GP appends rows to its Cholesky factor.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float, Int

from integrand.data.categories import refuse_other_levels
from integrand.data.scaling import Standardiser
from integrand.data.sources import RowSource
from integrand.errors import InputError, counted
from integrand.infer.base import Chains, Finding
from integrand.infer.importance import K_HAT_LIMIT, Smoothed
from integrand.infer.verdict import Verdict
from integrand.kernels.categorical import checked_codes
from integrand.likelihoods import Gaussian
from integrand.linalg import Jitter, cholesky, log_diagonal_sum, triangular_inverse
from integrand.model import Model
from integrand.posterior.conditional import (
    FACTOR_BYTES,
    Conditional,
    ExactConditional,
    SparseConditional,
    of_each_draw,
    over_draws,
)
from integrand.posterior.reweighting import (
    efficiency_of,
    picked,
    resampled_index,
    smoothed_weights,
    too_few_for_k_hat,
    with_weights,
)

# What to do where weights cannot be trusted.
REFIT = "Refit with all rows: give the earlier ones to `integrand.update` as `old_rows`."
# Weights that leave fewer effective draws than this, or than half of those there are, make quantiles too rough.
_FEWEST = 25.0
# With a larger share of rows at which Z leaves f open by more than the noise, predictions there are mostly the prior.
_MOST_OPEN = 0.05
# Rows that each draw takes in at a time.
_BLOCK = 1024
# Relative difference of numbers that are made of the same rows.
_SAME = 1e-5
_CODES = ("updated", "rows-uncovered")
NOTE = "New rows: "  # what the note on them begins with


@dataclass(frozen=True, eq=False)
class Updates:
    """The draws that predicted after the fit, each with all rows since, and their weights."""

    chains: Chains
    conditional: Conditional  # its draws are those of `chains`, one chain after the other
    log_weights: Float[np.ndarray, " J"]  # L_new - L_old since the fit; -inf where a factorisation failed
    n_rows: int = 0  # new since the fit
    n_updates: int = 0
    n_open: int = 0  # rows at which the inducing points leave f open by more than the noise

    def __repr__(self) -> str:
        return f"<Updates: {self.text}>"

    @property
    def k_hat(self) -> float:
        """Of the weights of all updates together."""
        return float(self._smoothed.k_hat)

    @property
    def effective(self) -> float:
        """How many draws the weighted ones are worth."""
        return efficiency_of(self._smoothed.log_weights) * len(self.log_weights)

    @property
    def too_few(self) -> bool:
        """Whether there are too few draws for k-hat, as files with a limit may keep: `effective` alone judges them."""
        return too_few_for_k_hat(len(self.log_weights), self.k_hat)

    @property
    def uncovered(self) -> bool:
        """Whether the inducing points miss too many of the new rows."""
        return self.n_open > _MOST_OPEN * self.n_rows

    @property
    def text(self) -> str:
        """What was updated, in a sentence without its full stop."""
        times = f" in {self.n_updates} steps" if self.n_updates > 1 else ""
        rows = f"Updated with {counted(self.n_rows, 'row')}{times}"
        J = len(self.log_weights)
        if J == 1 and np.isfinite(self.log_weights[0]):
            return f"{rows} at the optimised hyperparameters, which stay as they were"
        k_hat = "unknown for so few draws" if self.too_few else f"{self.k_hat:.2f} (trusted up to {K_HAT_LIMIT})"
        return f"{rows}: k-hat {k_hat}, draws worth {self.effective:.0f} of {J}"

    @property
    def note(self) -> str:
        """What the rows did to the bound, for the notes of the fit."""
        known = self.log_weights[np.isfinite(self.log_weights)]
        if len(known) == 0:
            return f"{NOTE}{self.text}. Their density is zero under every draw."
        spread = f" with an sd of {known.std():.2f} over the draws" if len(known) > 1 else ""
        return f"{NOTE}{self.text}. L_new - L_old is {known.mean():.1f} nats{spread}."

    @cached_property
    def _smoothed(self) -> Smoothed:
        return smoothed_weights(self.log_weights)

    @cached_property
    def index(self) -> Int[np.ndarray, " J"]:
        """The draws by their weights: as many as there are, some more than once. The same at every call."""
        return resampled_index(self._smoothed.log_weights, np.random.default_rng(0))

    def drawn(self) -> tuple[Chains, Conditional]:
        """Draws of equal weight, and what each needs to predict."""
        return picked(self.chains, self.index), self.conditional.subset(self.index)

    @property
    def problem(self) -> str:
        """Why the weighted draws cannot stand for the new posterior; "" if they can."""
        J, missed = len(self.log_weights), f", and {self._missed}" if self.uncovered else ""
        if not np.any(np.isfinite(self.log_weights)):
            return f"the new rows are impossible under each of the {counted(J, 'draw')} of θ: all weights are zero"
        if not (self.k_hat <= K_HAT_LIMIT or self.too_few):
            return (
                f"the new rows change the posterior of θ too much for its {J} draws: k-hat is {self.k_hat:.2f}, above "
                f"{K_HAT_LIMIT}{missed}"
            )
        if J > 1 and self.effective < min(_FEWEST, J / 2):
            draws = f"{J} draws, too few for k-hat," if self.too_few else f"{J} draws"
            return f"with the new rows {draws} are worth only {self.effective:.0f}{missed}"
        return ""

    @property
    def _missed(self) -> str:
        rows = f"{self.n_open} of the {counted(self.n_rows, 'new row')}"
        return f"the inducing points leave f open by more than the noise at {rows}"

    def verdict(self, verdict: Verdict, earlier: "Updates | None") -> Verdict:
        """The verdict on the draws before, with the sample sizes that all weights leave."""
        found = [Finding("updated", bool(self.problem), f"{self.text}.", REFIT if self.problem else "")]
        if self.uncovered:
            sentence = f"{self._missed[0].upper()}{self._missed[1:]}: predictions there are mostly the prior."
            found.append(Finding("rows-uncovered", False, sentence, REFIT))
        J, numbers = len(self.log_weights), verdict.convergence
        if J > 1:
            share = 1.0 if earlier is None else earlier.effective / J  # what the weights before this left
            numbers = numbers._replace(ess_bulk=numbers.ess_bulk / share, ess_tail=numbers.ess_tail / share)
            numbers = with_weights(numbers, J, self.effective / J)
        kept = (finding for finding in verdict.findings if finding.code not in _CODES)
        return replace(verdict, findings=(*kept, *found), convergence=numbers)


def with_rows(
    model: Model, jitter: Jitter, scaler: Standardiser, before: Updates, rows: RowSource
) -> tuple[Updates, Float[np.ndarray, "D 2"]]:
    """Each draw with these rows, and its weight; and the ranges of their columns."""
    conditional, gains, n_open, ranges = _taken_in(model, jitter, scaler, before.conditional, rows)
    density = before.chains.log_density
    updates = Updates(
        before.chains._replace(log_density=density + np.where(np.isfinite(gains), gains, 0.0).reshape(density.shape)),
        conditional,
        before.log_weights + gains,
        before.n_rows + rows.n_rows,
        before.n_updates + 1,
        before.n_open + n_open,
    )
    return updates, ranges


def refuse_other_rows(
    model: Model, jitter: Jitter, scaler: Standardiser, conditional: Conditional, rows: RowSource
) -> None:
    """An InputError unless the posterior has seen just these rows; what its first draw keeps must come of them."""
    one = conditional.subset(slice(0, 1))
    if isinstance(one, ExactConditional):
        X, y, _ = scaler.transform_rows(rows.read(0, rows.n_rows))
        residuals = one.factors[0] @ (one.factors[0].T @ one.weights[0])
        same = X.shape == one.inputs.shape and bool(np.allclose(X, one.inputs, atol=_SAME))
        same = same and bool(np.ptp(y - residuals) < _SAME * max(float(np.ptp(y)), 1e-300))
    else:
        empty = replace(one, weights=np.zeros_like(one.weights), factors=np.eye(one.weights.shape[1])[None])
        found, _, _, _ = _taken_in(model, jitter, scaler, empty, rows)
        # A S⁻¹ r = B m, which every row has a part in.
        a, b = (c.factors[0] @ (c.factors[0].T @ c.weights[0]) for c in (found, one))
        same = bool(np.max(np.abs(a - b)) <= _SAME * np.max(np.abs(b)))
    if not same:
        raise InputError(
            "these are not the rows that the posterior has seen: give all those of the fit and of every update since, "
            "with their noise_variance if the fit had one"
        )


def _taken_in(
    model: Model, jitter: Jitter, scaler: Standardiser, conditional: Conditional, rows: RowSource
) -> tuple[Conditional, Float[np.ndarray, " J"], int, Float[np.ndarray, "D 2"]]:
    """The draws with these rows, L_new - L_old, the number of rows that Z leaves open, and the ranges of columns."""
    gains, n_open = np.zeros(conditional.n_draws), 0
    ranges = np.array([[np.inf, -np.inf]] * model.n_columns)
    for first in range(0, rows.n_rows, _BLOCK):
        table = rows.read(first, min(first + _BLOCK, rows.n_rows))
        X, y, v = scaler.transform_rows(table)
        if model.noise == 0.0 and (v is None or np.any(v == 0.0)):
            raise InputError("the model has no noise of its own: give variances above zero as noise_variance")
        own = table[:, : model.n_columns]
        ranges = joined_ranges(ranges, np.stack([own.min(axis=0), own.max(axis=0)], axis=1))
        block = np.column_stack([X, y, np.zeros(len(y)) if v is None else v])
        conditional, gain, left = _with_block(model, jitter, conditional, block)
        gains, n_open = gains + gain, n_open + int(np.sum(left > 1.0))
    return conditional, gains, n_open, ranges


def joined_ranges(a: Float[np.ndarray, "D 2"], b: Float[np.ndarray, "D 2"]) -> Float[np.ndarray, "D 2"]:
    """Smallest and largest value of each column of both."""
    return np.stack([np.minimum(a[:, 0], b[:, 0]), np.maximum(a[:, 1], b[:, 1])], axis=1)


def check_updatable(model: Model, conditional: Conditional, rows: RowSource) -> None:
    """An InputError where this posterior cannot take in these rows."""
    if not isinstance(model.likelihood, Gaussian):
        raise InputError(
            f"update is for Gaussian noise: with a {model.likelihood.name} likelihood fit all rows again, old and new"
        )
    if model.target_transform is not None:
        raise InputError("update is not for models with a target_transform: fit all rows again, old and new")
    if not isinstance(conditional, SparseConditional | ExactConditional):
        raise InputError(
            "update is for methods that integrate f or u in closed form, such as sgpr-hmc, ml2 or gpr-hmc: fit all "
            "rows again with one of them"
        )
    if rows.processes.size > 1:
        raise InputError("update takes the rows of one process: open them without processes=")
    if rows.n_columns != model.n_columns:
        raise InputError(f"X has {rows.n_columns} columns, but the model was fitted to {model.n_columns}")
    unnamed = tuple(f"x{i}" for i in range(model.n_columns))
    if rows.columns != model.columns and unnamed not in (rows.columns, model.columns):
        wanted = ", ".join(model.columns)
        raise InputError(
            f"the columns are {', '.join(rows.columns)}, but the model was fitted to {wanted}, in this order"
        )
    if model.levels:
        if not rows.in_memory:
            raise InputError("with categories update takes arrays or a data frame: read the new rows into memory")
        refuse_other_levels(rows.levels, model.levels, rows.columns, "new rows")
        checked_codes(rows.arrays()["X"], model.levels, model.columns, "new rows")
    if isinstance(conditional, ExactConditional):
        n = len(conditional.inputs) + rows.n_rows
        size = 8 * conditional.n_draws * n**2
        if size > 2 * FACTOR_BYTES:
            raise InputError(
                f"with {n} rows the factors of {conditional.n_draws} draws of an exact GP need {size / 2**30:.1f} GB: "
                "fit all rows again, with a sparse method such as sgpr-hmc"
            )


def _with_block(
    model: Model, jitter: Jitter, conditional: Conditional, table: Float[np.ndarray, "T columns"]
) -> tuple[Conditional, Float[np.ndarray, " J"], Float[np.ndarray, " T"]]:
    """The draws with these rows, L_new - L_old of each, and the mean over draws of k̃ₙ/sₙ; where one fails, -inf."""
    n, M = len(table), conditional.weights.shape[1]
    sparse = isinstance(conditional, SparseConditional)
    # Padded to a power of two, with rows of weight 0, so that updates of many sizes compile few programs.
    length = max(64, 1 << (n - 1).bit_length()) if sparse else n
    padded = np.zeros((length, table.shape[1] + 1))
    padded[:n, :-1], padded[:n, -1], padded[n:, -2] = table, 1.0, 1.0
    function, work = (
        (_extended, 2.0 * M**3 + 2.0 * M**2 * length) if sparse else (_appended, (M + n) ** 2 * (M / 3 + n))
    )
    out = of_each_draw(function, work, model, jitter, conditional, padded)
    weights, factors, gain, left = out
    ok = np.isfinite(gain) & np.all(np.isfinite(weights), axis=1) & np.all(np.isfinite(factors), axis=(1, 2))
    if not sparse:
        if not np.all(ok):
            raise InputError("the covariance of old and new rows cannot be factored: drop rows that are repeated")
        inputs = np.concatenate([conditional.inputs, table[:, :-2]])
        return replace(conditional, inputs=inputs, weights=weights, factors=factors), gain, left.mean(axis=0)
    if not np.all(ok):
        weights = np.where(ok[:, None], weights, conditional.weights)
        factors = np.where(ok[:, None, None], factors, conditional.factors)
        gain = np.where(ok, gain, -np.inf)
    left = np.mean(left[ok], axis=0) if np.any(ok) else np.full(length, np.inf)
    return replace(conditional, weights=weights, factors=factors), gain, left[:n]


def _split(table, n_columns: int):
    X, (y, v, present) = table[:, :n_columns], table[:, n_columns:].T
    return X, y, v, present


def _extended(inputs, draws, table, model: Model, jitter: Jitter, kind: type[Conditional]):
    X, y, v, present = _split(table, inputs.shape[-1])

    def one(draw):
        phi, Z, m, LB = draw
        gp = model.gp(model.theta(phi))
        mean, A, C = kind.project(gp, Z, m, LB, X, jitter)
        s = gp.noise**2 + v
        e, C = present * (y - mean), C * present
        R, _ = cholesky(jnp.eye(len(m)) + (C / s) @ C.T)
        c = solve_triangular(R, C @ (e / s), lower=True)
        step = solve_triangular(LB, solve_triangular(R, c, lower=True, trans=1), lower=True, trans=1)
        left = present * jnp.maximum(gp.kernel.diagonal(X) - jnp.sum(A**2, axis=0), 0.0) / s
        lost = jnp.sum(jnp.log1p(left) if model.bound == "tight" else left)
        normaliser = -0.5 * jnp.sum(present * jnp.log(2.0 * jnp.pi * s)) - log_diagonal_sum(R)
        gain = normaliser - 0.5 * jnp.sum(e**2 / s) + 0.5 * jnp.sum(c**2) - 0.5 * lost
        return m + step, jnp.tril(LB @ R), gain, left

    return over_draws(one, inputs, draws)


def _appended(inputs, draws, table, model: Model, jitter: Jitter, kind: type[Conditional]):
    """The exact GP: with A = L⁻¹ k(X_old, X) the factor of all rows is [[L, 0], [Aᵀ, chol(k(X, X) + S - AᵀA)]]."""
    X, y, v, _ = _split(table, inputs.shape[-1])
    n = len(y)

    def one(draw):
        phi, X_old, alpha, L = draw
        gp = model.gp(model.theta(phi))
        mean, A, _ = kind.project(gp, X_old, alpha, L, X, jitter)
        R, _ = cholesky(gp.kernel.gram(X) + jnp.diag(gp.noise**2 + v) - A.T @ A)
        white = solve_triangular(R, y - mean, lower=True)
        beta = solve_triangular(R, white, lower=True, trans=1)
        whole = jnp.block([[L, jnp.zeros((len(alpha), n))], [A.T, R]])
        gain = -0.5 * jnp.sum(white**2) - log_diagonal_sum(R) - 0.5 * n * jnp.log(2.0 * jnp.pi)
        new = jnp.concatenate([alpha - triangular_inverse(L).T @ (A @ beta), beta])
        return new, whole, gain, jnp.zeros(n)

    return over_draws(one, inputs, draws)
