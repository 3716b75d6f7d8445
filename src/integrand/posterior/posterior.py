"""The Posterior that a fit returns: draws of the hyperparameters, a verdict on them, predictions, and updates."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from itertools import groupby
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from integrand.data.checks import checked_matrix, checked_variances, logarithms, refuse_other_columns
from integrand.data.dataset import Dataset
from integrand.data.scaling import Standardiser
from integrand.data.sources import RowSource, as_rows
from integrand.errors import (
    ExtrapolationWarning,
    InputError,
    KnownNoiseWarning,
    UnknownCategoryWarning,
    UnreliableWeightsError,
    callers_level,
    counted,
)
from integrand.infer.base import Chains
from integrand.infer.verdict import Sparseness, Verdict
from integrand.linalg import Jitter
from integrand.model import Model, Parameter, check_known_noise
from integrand.posterior.conditional import FACTOR_BYTES, Conditional, SparseConditional, exact_conditional
from integrand.posterior.extrapolation import beyond, outside_text, reach
from integrand.posterior.gradient import PredictiveGradient, predictive_gradient
from integrand.posterior.inference_data import (
    MOST_ROWS,
    draws_that_predict,
    groups_of_draws_and_rows,
    groups_of_rows,
    inference_data,
    log_prior_group,
    posterior_group,
    sample_stats_group,
)
from integrand.posterior.leave_one_out import Comparison, LeaveOneOut, leave_one_out, refuse_part_of_rows
from integrand.posterior.mixture import finite_array
from integrand.posterior.predictive import Predictive, draws_from_prior
from integrand.posterior.reweighting import for_chains, resampled_chains, reweigh, reweighted_verdict
from integrand.posterior.updating import (
    NOTE,
    REFIT,
    Updates,
    check_updatable,
    joined_ranges,
    refuse_other_rows,
    with_rows,
)
from integrand.precision import in_float64
from integrand.units import parameter_factor, unit_offset, values

# Hyperparameters that a notebook shows.
_MOST_NAMES = 12


class BoundPoint(NamedTuple):
    """One entry of the bound's history: phase, round or step, seconds since the start, bound, standard error."""

    phase: str
    step: int
    seconds: float
    bound: float
    error: float


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Draws of θ (one, for methods that optimise), inducing inputs, and what they predict.

    Hyperparameters are those of standardised data unless `original_units` is asked for, and so is `model`, of which
    `print` shows every value in both units. `model.given` is the model as the user described it.
    """

    method: str
    model: Model
    scaler: Standardiser
    jitter: Jitter
    chains: Chains  # x is φ
    conditional: Conditional
    verdict: Verdict | None  # None in files of before, for methods that optimise one point
    optimum: Float[np.ndarray, " P"]  # the ML-II point (for `map` methods: the MAP point)
    history: tuple[BoundPoint, ...] = ()
    Z_path: Float[np.ndarray, "R M D"] | None = None  # inducing inputs after the warm start and after each round
    seconds: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)  # gradients, failures, rounds, ...
    notes: tuple[str, ...] = ()  # what the method decided or ran into, in sentences
    evidence: tuple[float, float] | None = None  # log evidence and its standard error, where the sampler gives one
    ranges: Float[np.ndarray, "D 2"] | None = None  # smallest and largest value of each column, in the units of X
    known_noise: bool = False  # whether the noise of each row was known, in the fit or an update
    updates: Updates | None = None  # after `update`: all draws of the fit with the new rows, and their weights

    def __post_init__(self):
        object.__setattr__(self, "model", self.model.restored_for(self.scaler))

    def __repr__(self) -> str:
        verdict = self.verdict
        state = (
            "optimised" if verdict is None or not verdict.sampled else "converged" if verdict.ok else "not converged"
        )
        draws = f"{counted(len(self.chains.x), 'chain')} of {counted(self.chains.n_draws, 'draw')}"
        inputs = counted(self.conditional.inputs.shape[-2], "inducing input")
        columns = counted(self.model.n_columns, "column")
        return f"<Posterior: {self.method}, {state}; {columns}, {inputs}, {draws}>"

    def _repr_html_(self) -> str:
        """For notebooks: what was fitted, the verdict, and the hyperparameters in the units of the data."""
        lines, names = [], self.model.names
        found = self.inferred_in_original_units(self.theta)
        flat = [v.reshape(*v.shape[:2], -1) for v in found.values()]
        draws = np.concatenate(flat, axis=2).reshape(-1, len(names)) if flat else np.zeros((1, 0))
        quantiles = np.quantile(draws, [0.05, 0.5, 0.95], axis=0).T
        for name, (low, middle, high) in list(zip(names, quantiles, strict=True))[:_MOST_NAMES]:
            cells = "".join(f"<td>{value:.4g}</td>" for value in (middle, low, high))
            lines.append(f'<tr><td style="text-align:left">{escape(name)}</td>{cells}</tr>')
        more = f"<p>and {len(names) - _MOST_NAMES} more</p>" if len(names) > _MOST_NAMES else ""
        verdict = "<br>".join(escape(line) for line in str(self.verdict or "Optimised.").splitlines())
        head = "".join(f"<th>{label}</th>" for label in ("hyperparameter", "median", "5 %", "95 %"))
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
        return f"<div><code>{escape(repr(self))}</code><p>{verdict}</p>{table}{more}</div>"

    @cached_property
    def theta(self) -> dict[str, Float[np.ndarray, "..."]]:
        """Draws by name, each (chain, draw, ...), for standardised data."""
        return self._theta_of(self.chains.x)

    @cached_property
    def theta_original(self) -> dict[str, Float[np.ndarray, "..."]]:
        """Draws by name in the units of the data, each (chain, draw, ...); fixed values are there too.

        A number that has no unit of its own stays as it is. A vector has an entry for each column, fixed or not.
        """
        shape = self.chains.x.shape[:2]
        fixed = {}
        for path, (names, entries) in self._fixed.items():
            if not np.any(np.isnan(entries)):
                value = np.array(entries[0] if names == [path] else entries)
                fixed[path] = np.broadcast_to(value, (*shape, *value.shape))
        found = fixed | self.in_original_units(self.theta)
        return {path: found[path] for path in self._fixed}

    @cached_property
    def _fixed(self) -> dict[str, tuple[list[str], list[float]]]:
        """Of each field the names of its values and those that are fixed, in the units of the data; NaN elsewhere."""
        return {
            path: ([v.name for v in held], [float(v.original) if v.fixed else np.nan for v in held])
            for path, entries in groupby(values(self.model), lambda value: value.path)
            if (held := list(entries))
        }

    def in_original_units(self, theta: Mapping[str, Any]) -> dict[str, Any]:
        """Hyperparameters of standardised data, all or some by name, in the units of the data.

        A vector that is fixed for some columns has these entries too.
        """
        unknown = [name for name in theta if name not in {p.name for p in self.model.parameters}]
        if unknown:
            known = ", ".join(p.name for p in self.model.parameters) or "none"
            raise InputError(f"there is no inferred hyperparameter {unknown[0]!r}: choose from {known}")
        found = self.inferred_in_original_units(theta)
        for path, inferred in found.items():
            entries = np.array(self._fixed[path][1])
            if not np.all(np.isnan(entries)):
                found[path] = _merged(np.asarray(inferred), entries, np.isnan(entries))
        return found

    def inferred_in_original_units(self, theta: Mapping[str, Any]) -> dict[str, Any]:
        """The same for what is inferred alone: of a vector with fixed entries the others."""
        parameters = (p for p in self.model.parameters if p.name in theta)
        return {p.name: theta[p.name] * self.unit_factor(p) + self.unit_offset(p) for p in parameters}

    @cached_property
    def theta_optimum(self) -> dict[str, Float[np.ndarray, "..."]]:
        """The ML-II (or MAP) point by name, for standardised data."""
        return self._theta_of(self.optimum)

    @property
    def sparseness(self) -> Sparseness | None:
        """What the inducing points cost; None for methods without them."""
        return None if self.verdict is None else self.verdict.sparseness

    @property
    def evidence_is_bound(self) -> bool:
        """Whether the evidence is log ∫ p(θ) exp L(θ, Z) dθ, which is no more than that of the exact model."""
        return self.Z_path is not None

    @property
    def Z(self) -> Float[np.ndarray, "M D"]:
        """Inducing inputs in the units of the data: training inputs for exact methods, the mean of drawn ones."""
        inputs = self.conditional.inputs
        return self.scaler.inverse_X(inputs.mean(axis=0) if self.conditional.inputs_vary else inputs)

    def predict(
        self,
        X: Any,
        *,
        include_noise: bool,
        memory: int = 256 * 2**20,
        noise_variance: Any = None,
        strict: bool = False,
    ) -> Predictive:
        """The mixture over draws at the rows of X: of y (`include_noise=True`) or of f (`False`).

        `noise_variance` is the known variance of each row's noise, in squared units of y. The model's own noise is
        added to it. If the fit had one and these rows have none, y is without it, with a KnownNoiseWarning.

        A category that the fit did not know is predicted by the prior, with an UnknownCategoryWarning; under `strict`
        it is an InputError.
        """
        X = self._inputs(X, strict)
        if noise_variance is not None:
            check_known_noise(self.model)
            noise_variance = checked_variances(noise_variance, len(X)) if include_noise else None
        elif include_noise:
            self._warn_without_noise(
                "spreads and densities of y have the model's own noise alone. Give noise_variance=, a variance for "
                "each row, or ask for the function by include_noise=False"
            )
        if X.shape[1] != self.model.n_columns:
            raise InputError(f"X has {X.shape[1]} columns, but the model was fitted to {self.model.n_columns}")
        self._warn_outside(X)
        return Predictive(
            self.model,
            self.jitter,
            self.scaler,
            self.conditional,
            self.scaler.transform_X(X),
            include_noise,
            memory,
            noise_variance,
        )

    def predict_gradient(self, X: Any) -> PredictiveGradient:
        """The gradient of f at the rows of X: the mixture over draws of each ∂f/∂x_d, in units of y per unit of x_d.

        For kernels whose functions are differentiable: all but Matern12. With another likelihood than the Gaussian f is
        the latent function, such as the log of a rate. Along a column of categories the slope is zero.
        """
        if self.model.target_transform is not None:
            raise InputError("with a target_transform f has other units than y: fit without it to predict gradients")
        X = self._inputs(X)
        if X.shape[1] != self.model.n_columns:
            raise InputError(f"X has {X.shape[1]} columns, but the model was fitted to {self.model.n_columns}")
        self._warn_outside(X)
        return predictive_gradient(self.model, self.jitter, self.scaler, self.conditional, self.scaler.transform_X(X))

    def prior_predictive(
        self, X: Any, n_draws: int = 100, *, include_noise: bool = True, seed: int = 0
    ) -> Float[np.ndarray, "n T"]:
        """Draws of y (or of f) at the rows of X from the priors alone, each a function at all rows; in units of y."""
        X = self.scaler.transform_X(self._inputs(X))
        drawn = self.scaler.inverse_y(draws_from_prior(self.model, X, n_draws, seed, include_noise))
        return drawn if self.model.target_transform is None else self.model.target_transform.original(drawn)

    def _inputs(self, X: Any, strict: bool = False) -> Float[np.ndarray, "T D"]:
        """Checked inputs, with codes in the place of categories; see `predict` for those that are unknown."""
        refuse_other_columns(X, self.model.columns)
        levels = self.model.levels
        if not levels:
            return checked_matrix(X, "X")
        from integrand.data.categories import coded, unknown_rows  # few models need it

        X = checked_matrix(coded(X, levels)[0], "X")
        if X.shape[1] == self.model.n_columns and (found := unknown_rows(X, levels, self.model.columns)):
            listed = ", ".join(f"{count} of {len(X)} rows in the column {name!r}" for name, count in found.items())
            text = f"categories that the fit did not know: {listed}"
            if strict:
                raise InputError(f"{text}. Leave these rows out, or predict without strict=True")
            text += ". They are predicted by the prior: as one new level, uncorrelated with the others"
            warnings.warn(text, UnknownCategoryWarning, stacklevel=callers_level())
        return X

    def level_correlations(self, column: str) -> tuple[tuple[str, ...], Float[np.ndarray, "C n K K"]]:
        """How alike the functions of the levels of a column are: their names, and the correlations at each draw.

        They are those of f at one place: other columns are at their means, other categories at their first level.
        Where f is zero there, as a line is, other columns are one standard deviation above their means.
        """
        at = list(self.model.columns).index(column) if column in self.model.columns else -1
        if at not in self.model.levels:
            known = ", ".join(self.model.columns[i] for i in self.model.levels) or "none"
            raise InputError(f"the column {column!r} holds no categories: those that do are {known}")
        points = np.zeros((len(self.model.levels[at]), self.model.n_columns))
        points[:, at] = np.arange(len(points))
        phis = np.asarray(self.chains.x).reshape(-1, self.model.n_theta)
        B = _covariances_at(phis, points, self.model)
        if not np.diagonal(B, axis1=1, axis2=2).all():
            points[:, [i for i in range(self.model.n_columns) if i not in self.model.levels]] = 1.0
            B = _covariances_at(phis, points, self.model)
        sd = np.sqrt(np.diagonal(B, axis1=1, axis2=2))
        if not sd.all():
            raise InputError(f"f of some level of {column!r} is zero whatever the draw: it has no correlation")
        correlations = B / (sd[:, :, None] * sd[:, None, :])
        return self.model.levels[at], correlations.reshape(*self.chains.x.shape[:2], *B.shape[1:])

    def outside(self, X: Float[np.ndarray, "T D"]) -> Float[np.ndarray, "T D"]:
        """How many lengthscales each value lies outside the range of its training column; 0 inside.

        0, too, in columns that the kernel follows for ever (a line, a cycle), and where the ranges are not known.
        """
        if self.ranges is None:
            return np.zeros(X.shape)
        return beyond(X, self.ranges, self._reach * self.scaler.x_sd)

    @cached_property
    @in_float64
    def _reach(self) -> Float[np.ndarray, " D"]:
        """Of the middle draw, for standardised columns."""
        theta = self.model.theta(jnp.asarray(np.median(self.conditional.phis, axis=0)))
        return reach(self.model.gp(theta).kernel, self.model.n_columns)

    def _warn_outside(self, X: np.ndarray) -> None:
        """Once for each posterior."""
        if "_warned" in self.__dict__ or self.ranges is None:
            return
        if text := outside_text(self.outside(X) > 1.0, self.model.columns):
            self.__dict__["_warned"] = True
            warnings.warn(text, ExtrapolationWarning, stacklevel=callers_level())

    def _warn_without_noise(self, text: str) -> None:
        if self.known_noise:
            text = f"the fit knew the noise of each row, and these rows come without theirs: {text}"
            warnings.warn(text, KnownNoiseWarning, stacklevel=callers_level())

    def loo(self, X: Any, y: Any, noise_variance: Any = None) -> LeaveOneOut:
        """How well the mixture predicts each row from the others, without refitting (PSIS-LOO).

        Parameters
        ----------
        X, y, noise_variance
            The rows of the fit, which a posterior does not keep. Other rows are refused where that can be seen.

        Notes
        -----
        For each draw the effect of a row is in closed form; Pareto-smoothed weights take the draws to the posterior
        without the row. Z stays where all rows put it. One optimised point has no weights: rows that θ was fitted to
        score it, so its result is too good. Memory is 16 bytes for each draw and row.
        """
        data = self._standardised(X, y, noise_variance)
        if self.ranges is not None:
            refuse_part_of_rows(data, self.scaler.transform_X(self.ranges.T))
        return leave_one_out(self.model, self.jitter, self.scaler, self.conditional, data)

    def reweighted(
        self,
        X: Any,
        y: Any,
        noise_variance: Any = None,
        *,
        exact_predictions: bool = False,
        max_exact_rows: int = 8_000,
        seed: int = 0,
    ) -> "Posterior":
        """Draws of the exact posterior, from these sparse ones by Pareto-smoothed importance weights.

        Parameters
        ----------
        X, y, noise_variance
            The rows of the fit, which a posterior does not keep.
        exact_predictions
            Predict by the exact GP at the draws that are kept, not through the inducing points. It keeps an N x N
            factor for each draw, so fewer draws may predict.
        max_exact_rows
            Rows that may be factored: each draw that predicts takes N³ time once.
        seed
            Of the resampling by weight.

        Returns
        -------
        A posterior with as many draws as predict here, some of them repeated. Its verdict says k-hat.

        Raises
        ------
        UnreliableWeightsError
            If k-hat is above 0.7: the sparse posterior is too far from the exact one.
        """
        data = self._standardised(X, y, noise_variance)
        if data.n_rows > max_exact_rows:
            raise InputError(
                f"re-weighting factors a matrix with {data.n_rows} rows for each draw (limit {max_exact_rows}): raise "
                "max_exact_rows, or use more inducing points"
            )
        if self.method.startswith("vi-"):
            raise InputError(f"draws of {self.method} are from a Gaussian, not from the sparse posterior: use sgpr-hmc")
        sparse = isinstance(self.conditional, SparseConditional) and not self.conditional.inputs_vary
        if sparse and self.model.target_transform is None:
            self.refuse_other_rows(as_rows(X, y, noise_variance, self.model.levels))
        result = reweigh(self.model, self.jitter, self.conditional, data, np.random.default_rng(seed))
        conditional, slack = self.conditional.subset(result.index), result.slack
        if exact_predictions:
            kept = max(2, min(len(slack), FACTOR_BYTES // (8 * data.n_rows**2)))
            conditional = exact_conditional(self.model, conditional.phis[:kept], data)
        note = f"log p(y | θ) - L(θ, Z) was {slack.mean():.2f} nats with an sd of {slack.std():.2f} over the draws."
        chains = resampled_chains(draws_that_predict(self.conditional.phis, self.chains), result)
        return replace(
            self,
            chains=chains,
            conditional=conditional,
            verdict=self.verdict and for_chains(reweighted_verdict(self.verdict, result), chains),
            notes=(*self.notes, note),
            evidence=None,
            updates=None,
        )

    def update(self, X: Any, y: Any = None, noise_variance: Any = None, *, strict: bool = True) -> "Posterior":
        """The posterior with new rows, at fixed inducing inputs and draws, without the old rows.

        Each draw takes the rows in exactly and gets the weight exp(L_new - L_old). The result has draws by these
        weights, and is updated like any other: weights of all updates since the fit multiply. Its `updates` and its
        verdict say k-hat. Data stay standardised as in the fit.

        Parameters
        ----------
        X, y, noise_variance
            The new rows alone, as for `fit`: arrays, a data frame, or rows of a file such as `open_rows(path, target)`.
        strict
            False: where weights cannot be trusted, give the result all the same, with a bad verdict.

        Raises
        ------
        UnreliableWeightsError
            If k-hat is above 0.7, or few draws have all the weight: the rows change θ too much.
            `integrand.update(posterior, X, y, old_rows=...)` then fits all rows again.
        """
        refuse_other_columns(X, self.model.columns)
        rows, began = as_rows(X, y, noise_variance, self.model.levels), time.monotonic()
        if rows.noise_column is not None:
            check_known_noise(self.model)
        check_updatable(self.model, self.conditional, rows)
        if rows.noise_column is None:
            self._warn_without_noise(
                "they count as if they had the model's own noise alone. Give noise_variance=, a variance for each row"
            )
        earlier = self.updates
        before = earlier
        if before is None:
            chains = draws_that_predict(self.conditional.phis, self.chains)
            before = Updates(chains, self.conditional, np.zeros(self.conditional.n_draws))
        updates, ranges = with_rows(self.model, self.jitter, self.scaler, before, rows)
        if strict and updates.problem:
            raise UnreliableWeightsError(f"{updates.problem}. {REFIT}")
        chains, conditional = updates.drawn()
        seconds = self.seconds.get("update", 0.0) + time.monotonic() - began
        return replace(
            self,
            chains=chains,
            conditional=conditional,
            verdict=self.verdict and for_chains(updates.verdict(self.verdict, earlier), chains),
            seconds={**self.seconds, "update": seconds},
            notes=(*(note for note in self.notes if not note.startswith(NOTE)), updates.note),
            evidence=None,
            ranges=None if self.ranges is None else joined_ranges(self.ranges, ranges),
            known_noise=self.known_noise or rows.noise_column is not None,
            updates=updates,
        )

    def refuse_other_rows(self, rows: RowSource) -> None:
        """An InputError unless the posterior has seen just these rows, which it does not keep."""
        refuse_other_rows(self.model, self.jitter, self.scaler, self.conditional, rows)

    def to_arviz(
        self,
        X: Any = None,
        y: Any = None,
        *,
        original_units: bool = True,
        seed: int = 0,
        noise_variance: Any = None,
    ) -> Any:
        """An `arviz.InferenceData` (ArviZ 0.x) or an `xarray.DataTree` (ArviZ 1.x).

        Parameters
        ----------
        X, y
            Rows, for example the training data, which the posterior does not keep. With them the groups
            `posterior_predictive`, `log_likelihood`, `observed_data` and `constant_data` are there too. The first two
            hold a number for each draw and row: beyond 10 000 rows they are left out, with a warning.
        original_units
            Whether hyperparameters are in the units of the data, or in those of standardised data.
        seed
            Of the draws of f and y at the rows.
        noise_variance
            Known variance of the noise of each row, as in `fit`.

        Notes
        -----
        The groups `posterior`, `sample_stats` and `log_prior` hold all draws. With pointwise groups beside them they
        hold, as these do, the draws that predict (400 by default, setting `predictive_draws`). The log likelihood is
        log p(y | f) at a draw of f: for the training data it is what `arviz.loo` wants.
        """
        if (X is None) != (y is None):
            raise InputError("`to_arviz` takes rows with their observations: give both X and y, or neither")
        chains, of_rows = self.chains, {}
        if X is not None:
            X, y = self._inputs(X), finite_array(y, "y")
            if y.shape != (len(X),):
                raise InputError(f"y has shape {y.shape} for {len(X)} rows of X: one number per row is needed")
            self.model.likelihood.check_y(y)
            self._base(y)  # refuses what the transform cannot take
            if len(X) <= MOST_ROWS:
                chains = draws_that_predict(self.conditional.phis, chains)
                predictive = self.predict(X, include_noise=True, noise_variance=noise_variance)
                of_rows = groups_of_draws_and_rows(predictive, y, chains, seed)
            else:
                left_out = "posterior_predictive and log_likelihood are left out"
                warnings.warn(f"{len(X)} rows: beyond {MOST_ROWS}, {left_out}", stacklevel=2)
            of_rows |= groups_of_rows(self.model, X, y)
        theta = self._theta_of(chains.x)
        factors = {p.name: self.unit_factor(p) if original_units else 1.0 for p in self.model.parameters}
        groups = {
            "posterior": posterior_group(
                self.model, self.inferred_in_original_units(theta) if original_units else theta
            ),
            "sample_stats": sample_stats_group(chains),
            "log_prior": log_prior_group(self.model, chains.x, factors),
        }
        return inference_data(groups | of_rows)

    def _standardised(self, X: Any, y: Any, noise_variance: Any) -> Dataset:
        """Rows with observations, checked and standardised."""
        X, y = self._inputs(X), finite_array(y, "y")
        if X.shape[1] != self.model.n_columns:
            raise InputError(f"X has {X.shape[1]} columns, but the model was fitted to {self.model.n_columns}")
        if y.shape != (len(X),):
            raise InputError(f"y has shape {y.shape} for {len(X)} rows of X: one number per row is needed")
        self.model.likelihood.check_y(y)
        v = None
        if noise_variance is not None:
            check_known_noise(self.model)
            v = self.scaler.transform_variance(checked_variances(noise_variance, len(y)))
        elif self.known_noise:
            raise InputError("the fit knew the noise of each row: give it again, as noise_variance=")
        return Dataset.of(self.scaler.transform_X(X), self.scaler.transform_y(self._base(y)), noise_variance=v)

    def _base(self, y: np.ndarray) -> np.ndarray:
        """What is standardised of y: its logarithm, where the transform is of that."""
        transform = self.model.target_transform
        return logarithms(y, "y", "row {}".format) if transform is not None and transform.of_log else y

    @in_float64
    def _theta_of(self, phi: np.ndarray) -> dict[str, np.ndarray]:
        flat = jax.vmap(self.model.theta)(jnp.asarray(phi.reshape(-1, self.model.n_theta)))
        return {name: np.asarray(value).reshape((*phi.shape[:-1], *value.shape[1:])) for name, value in flat.items()}

    def unit_factor(self, p: Parameter) -> Any:
        """The factor from standardised to original units; 1 where a number covers columns of different scales."""
        return parameter_factor(p, self.scaler)

    def unit_offset(self, p: Parameter) -> float:
        """What is added in original units: the mean of y, for a constant mean."""
        return unit_offset(p.name, self.scaler)


@in_float64
def _covariances_at(
    phis: Float[np.ndarray, "J P"], points: Float[np.ndarray, "K D"], model: Model
) -> Float[np.ndarray, "J K K"]:
    """k of a few points with each other, at each draw."""
    of_one = jax.jit(lambda phi: model.gp(model.theta(phi)).kernel.gram(jnp.asarray(points)))
    return np.array([of_one(jnp.asarray(phi)) for phi in phis])


def _merged(inferred: np.ndarray, fixed: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Vectors of inferred and fixed entries."""
    whole = np.array(np.broadcast_to(fixed, (*inferred.shape[:-1], len(fixed))))
    whole[..., free] = inferred
    return whole


def compare(models: Mapping[str, Any], X: Any, y: Any, noise_variance: Any = None) -> Comparison:
    """Rank fits of the same rows, with other kernels, priors or methods, by their leave-one-out density.

    Parameters
    ----------
    models
        Posteriors, or fitted estimators, by name.
    X, y, noise_variance
        The rows that all of them were fitted to.
    """
    posteriors = {name: getattr(model, "posterior_", model) for name, model in models.items()}
    return Comparison.of({name: posterior.loo(X, y, noise_variance) for name, posterior in posteriors.items()})
