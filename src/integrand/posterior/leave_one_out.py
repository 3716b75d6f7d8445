"""Leave-one-out: how well a fitted mixture predicts each row from the other rows, without refitting.

For each draw of θ the effect of a row is known in closed form (`bounds/leave_one_out.py`), and Pareto-smoothed
importance sampling takes the draws of θ from all rows to those without one (Vehtari, Gelman & Gabry 2017). Z stays
where all rows have put it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import logsumexp

from integrand.bounds.leave_one_out import LeftOut, exact_left_out, sparse_left_out
from integrand.data.dataset import Dataset
from integrand.data.scaling import Standardiser
from integrand.errors import InputError
from integrand.infer.importance import K_HAT_LIMIT, pareto_smoothed
from integrand.linalg import Jitter
from integrand.model import Model
from integrand.posterior.conditional import Conditional, ExactConditional, SparseConditional, marginals
from integrand.posterior.inference_data import Group, inference_data
from integrand.posterior.transformed import log_units
from integrand.precision import float64_scope, in_float64

# Rows whose A for one draw are in memory at the same time.
_BLOCK = 4_096
# Rows whose numbers agree with the fit's to this share of them are the rows of the fit.
_SAME = 1e-5


@dataclass(frozen=True, eq=False, repr=False)
class LeaveOneOut:
    """The expected log predictive density (ELPD) of a fit by leave-one-out, in nats and the units of y.

    `print` gives it in words. The sum over rows is `elpd`, with standard error `se`.
    """

    log_scores: Float[np.ndarray, "J N"]  # log density of each row given the others, under each draw
    log_weights: Float[np.ndarray, "J N"]  # of the draws without each row: smoothed, normalised
    k_hat: Float[np.ndarray, " N"]  # of these weights; above 0.7 a row's score cannot be trusted

    @property
    def elpd_rows(self) -> Float[np.ndarray, " N"]:
        """Log predictive density of each row from the others."""
        return logsumexp(self.log_weights + self.log_scores, axis=0)

    @property
    def elpd(self) -> float:
        """Sum over rows; higher is better."""
        return float(self.elpd_rows.sum())

    @property
    def se(self) -> float:
        """Standard error of `elpd`, from the spread between rows."""
        rows = self.elpd_rows
        return float(math.sqrt(len(rows)) * rows.std())

    @property
    def n_rows(self) -> int:
        """N."""
        return len(self.k_hat)

    @property
    def uncertain(self) -> int:
        """Rows whose k̂ is above 0.7: without them the posterior is another one, and their scores may be wrong."""
        return int(np.sum(self.k_hat > K_HAT_LIMIT))

    def __str__(self) -> str:
        text = (
            f"Leave-one-out: {self.elpd:.1f} nats (standard error {self.se:.1f}) over {self.n_rows} rows, "
            f"{self.elpd / self.n_rows:.3f} a row."
        )
        if self.uncertain:
            text += (
                f" {self.uncertain} rows have k-hat above {K_HAT_LIMIT} (worst {np.max(self.k_hat):.2f}): one row "
                "moves the posterior there. Cross-validate with `integrand compare --folds`, or look at these rows."
            )
        return text

    def __repr__(self) -> str:
        return f"LeaveOneOut(elpd={self.elpd:.2f}, se={self.se:.2f}, rows={self.n_rows}, uncertain={self.uncertain})"

    def facts(self) -> dict[str, Any]:
        """The numbers as JSON."""
        worst = float(np.max(self.k_hat))
        return {
            "elpd": self.elpd,
            "elpd_se": self.se,
            "rows": self.n_rows,
            "k_hat": worst if math.isfinite(worst) else None,
            "rows_above_k_hat_limit": self.uncertain,
        }

    def to_arviz(self) -> Any:
        """An `arviz.ELPDData` made by ArviZ 1.x of these weights; under ArviZ 0.x, which takes none, this result."""
        dimensions, (j, n) = ("chain", "draw", "row"), self.log_scores.shape
        coords = {"chain": [0], "draw": np.arange(j), "row": np.arange(n)}
        data = inference_data({"log_likelihood": Group({"y": (dimensions, self.log_scores[None])}, coords)})
        import arviz

        if arviz.__version__.startswith("0."):
            return self
        import xarray

        weights = xarray.DataArray(self.log_weights[None], coords, dimensions)
        k_hat = xarray.DataArray(self.k_hat, {"row": coords["row"]}, ("row",))
        return arviz.loo(data, pointwise=True, reff=1.0, log_weights=weights, pareto_k=k_hat)  # pyright: ignore[reportCallIssue]


class Ranked(NamedTuple):
    """A model in a comparison; differences are to the best one."""

    name: str
    elpd: float
    se: float
    difference: float  # of ELPD, at most zero
    difference_se: float
    uncertain: int  # rows whose k̂ is above 0.7


@dataclass(frozen=True)
class Comparison:
    """Models of the same rows, the best first, with the standard errors of paired differences. `print` shows it."""

    models: tuple[Ranked, ...]

    @classmethod
    def of(cls, results: Mapping[str, LeaveOneOut]) -> "Comparison":
        """Rank results by name."""
        if len(results) < 2:
            raise InputError("give at least two models to compare")
        if len({loo.n_rows for loo in results.values()}) > 1:
            raise InputError("these models are of different rows: compare fits of the same X and y")
        rows = {name: loo.elpd_rows for name, loo in results.items()}
        best = max(rows, key=lambda name: rows[name].sum())
        ranked = []
        for name, loo in results.items():
            difference = rows[name] - rows[best]
            error = float(math.sqrt(len(difference)) * difference.std())
            ranked.append(Ranked(name, loo.elpd, loo.se, float(difference.sum()), error, loo.uncertain))
        return cls(tuple(sorted(ranked, key=lambda row: -row.elpd)))

    @property
    def best(self) -> str:
        """Name of the first one."""
        return self.models[0].name

    @property
    def answer(self) -> str:
        """One sentence on who predicts best; a difference counts when it is larger than two standard errors."""
        best, second = self.models[:2]
        amount = f"{-second.difference:.1f} nats (standard error {second.difference_se:.1f})"
        if -second.difference > 2.0 * second.difference_se:
            text = f"{best.name} predicts best: its leave-one-out density is above that of {second.name} by {amount}."
        else:
            close = [row for row in self.models[1:] if -row.difference <= 2.0 * row.difference_se]
            more = f"; {len(close)} models are as close" if len(close) > 1 else ""
            text = f"No clear difference: {best.name} is ahead of {second.name} by {amount}, "
            text += f"less than two standard errors{more}."
        if any(row.uncertain for row in self.models):
            text += f" Some rows have k-hat above {K_HAT_LIMIT}: cross-validate where the answer matters."
        return text

    def __str__(self) -> str:
        width = max(5, *(len(row.name) for row in self.models))
        lines = [f"{'model':<{width}} {'elpd':>10} {'se':>7} {'difference':>18} {'k-hat > 0.7':>11}"]
        for i, row in enumerate(self.models):
            difference = f"{row.difference:+9.1f} ± {row.difference_se:.1f}" if i else "-"
            lines.append(f"{row.name:<{width}} {row.elpd:10.1f} {row.se:7.1f} {difference:>18} {row.uncertain:11d}")
        return "\n".join([*lines, "", self.answer])

    def facts(self) -> dict[str, Any]:
        """The numbers as JSON."""
        return {"models": {row.name: row._asdict() for row in self.models}, "best": self.best, "answer": self.answer}


def leave_one_out(
    model: Model,
    jitter: Jitter,
    scaler: Standardiser,
    conditional: Conditional,
    data: Dataset,
) -> LeaveOneOut:
    """PSIS-LOO of a mixture over draws; `data` are the rows of the fit, standardised."""
    with float64_scope():
        X, y = map(np.asarray, data.arrays())
        known = data.noise_variances()
        v = np.zeros(len(y)) if known is None else np.asarray(known)
    if isinstance(conditional, SparseConditional):
        gain, score = _sparse(model, jitter, conditional, X, y, v)
    elif isinstance(conditional, ExactConditional):
        gain, score = _exact(model, jitter, conditional, X, y)
    elif conditional.factors.size:
        raise InputError(
            "a fitted q(u) has no leave-one-out without refitting: use `integrand compare --folds`, or a method that "
            "draws or collapses u"
        )
    else:
        gain, score = _drawn(model, jitter, conditional, X, y, v)
    log_weights, k_hat = pareto_smoothed(-np.asarray(gain).T)
    units = math.log(scaler.y_sd)
    if model.target_transform is not None:
        units = log_units(model.target_transform, scaler, y)
    return LeaveOneOut(np.asarray(score) - units, log_weights.T, k_hat)


@in_float64
def _sparse(
    model: Model, jitter: Jitter, conditional: Conditional, X: np.ndarray, y: np.ndarray, v: np.ndarray
) -> LeftOut:
    draws = conditional.phis, conditional.weights, conditional.factors
    length = min(_BLOCK, max(64, 1 << (len(y) - 1).bit_length()))  # few programs for many sizes
    parts, sums = [], 0.0
    for i in range(0, len(y), length):
        n = min(length, len(y) - i)
        rows, observed, known = np.zeros((length, X.shape[1])), np.zeros(length), np.zeros(length)
        rows[:n], observed[:n], known[:n] = X[i : i + n], y[i : i + n], v[i : i + n]
        weight = (np.arange(length) < n).astype(float)
        gain, score, part = _sparse_block(
            conditional.inputs,
            draws,
            (rows, observed, known, weight),
            model=model,
            jitter=jitter,
            kind=type(conditional),
        )
        parts.append((np.asarray(gain)[:, :n], np.asarray(score)[:, :n]))
        sums = sums + np.asarray(part)
    # The first draw's A S⁻¹ r is B m, S the noise variances, whatever the order of the rows.
    wanted = conditional.factors[0] @ (conditional.factors[0].T @ conditional.weights[0])
    _refuse_other_rows(np.asarray(sums), wanted)
    return LeftOut(*(np.concatenate(p, axis=1) for p in zip(*parts, strict=True)))  # pyright: ignore[reportArgumentType]


@partial(jax.jit, static_argnames=("model", "jitter", "kind"))
def _sparse_block(inputs, draws, rows, model: Model, jitter: Jitter, kind: type[Conditional]):
    """Gains and scores of a block of rows with known noise v, and A S⁻¹ r of the first draw."""
    X, y, v, weight = rows

    def project(draw):
        phi, own_inputs, weights, factor = draw
        gp = model.gp(model.theta(phi))
        return gp, kind.project(gp, own_inputs, weights, factor, X, jitter)

    def one(draw):
        gp, (mean, A, C) = project(draw)
        left = jnp.maximum(gp.kernel.diagonal(X) - jnp.sum(A**2, axis=0), 0.0)
        residuals = gp.residuals(y) + gp.mean - mean
        left_out = sparse_left_out(residuals, jnp.sum(C**2, axis=0), left, gp.noise**2 + v, model.bound)
        return tuple(left_out.in_units_of(gp, y))

    phis, weights, factors = draws
    own = inputs if inputs.ndim == 3 else None
    gain, score = jax.lax.map(
        lambda draw: one((draw[0], inputs if own is None else draw[3], draw[1], draw[2])),
        (phis, weights, factors) if own is None else (phis, weights, factors, own),
    )
    gp, (_, A, _) = project((phis[0], inputs if own is None else own[0], weights[0], factors[0]))
    return gain, score, A @ (weight * gp.residuals(y) / (gp.noise**2 + v))


@in_float64
def _exact(model: Model, jitter: Jitter, conditional: Conditional, X: np.ndarray, y: np.ndarray) -> LeftOut:
    first = model.gp(model.theta(jnp.asarray(conditional.phis[0])))
    _refuse_other_rows(X, conditional.inputs)
    residuals = conditional.factors[0] @ (conditional.factors[0].T @ conditional.weights[0])
    _refuse_other_rows(np.asarray(first.residuals(jnp.asarray(y))), residuals)
    draws = zip(conditional.phis, conditional.factors, conditional.weights, strict=True)
    parts = [_exact_draw(phi, L, alpha, y, model=model) for phi, L, alpha in draws]
    return LeftOut(*(np.array(p) for p in zip(*parts, strict=True)))  # pyright: ignore[reportArgumentType]


@partial(jax.jit, static_argnames="model")
def _exact_draw(phi: Array, L: Array, alpha: Array, y: Array, model: Model) -> LeftOut:
    return exact_left_out(L, alpha).in_units_of(model.gp(model.theta(phi)), y)


@in_float64
def _drawn(
    model: Model, jitter: Jitter, conditional: Conditional, X: np.ndarray, y: np.ndarray, v: np.ndarray
) -> LeftOut:
    """Where u is drawn with θ: row i adds E log p(yᵢ | f) under p(f | u) to their log density."""
    mean, variance, noise = marginals(model, jitter, conditional, X)
    scale = np.sqrt(noise[:, None] + v)
    gain = model.likelihood.expected_log_prob(*map(jnp.asarray, (y, mean, variance, scale)))
    score = model.likelihood.marginal_log_prob(y, mean, variance, scale)
    return LeftOut(np.asarray(gain), np.asarray(score))  # pyright: ignore[reportArgumentType]


def refuse_part_of_rows(data: Dataset, ranges: Float[np.ndarray, "2 D"]) -> None:
    """Rows that do not reach the smallest and largest values of the fit cannot be all of its rows."""
    with float64_scope():
        X = np.asarray(data.arrays()[0])
    if np.any(X.min(axis=0) > ranges[0] + _SAME) or np.any(X.max(axis=0) < ranges[1] - _SAME):
        raise _other_rows()


def _other_rows() -> InputError:
    return InputError("these are not the rows that the model was fitted to: give its X and y, all rows in their order")


def _refuse_other_rows(found: np.ndarray, wanted: np.ndarray) -> None:
    """Leave-one-out is about the rows of the fit, which a posterior does not keep: numbers made of them must agree."""
    if found.shape != wanted.shape or np.max(np.abs(found - wanted)) > _SAME * np.max(np.abs(wanted), initial=1e-300):
        raise _other_rows()
