"""After a fit: what the inducing points cost, and what leave-one-out residuals of some rows say of the model.

A few draws and at most some thousand rows are looked at, so that this takes a small part of the time of the fit. Where
not all rows are looked at, the residuals are still those of a fit to all of them: q(u) of each draw has seen them.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize

from integrand.compilation import one_blas_thread, program_for
from integrand.infer.base import Finding
from integrand.infer.verdict import Sparseness
from integrand.likelihoods import Gaussian
from integrand.methods.problem import FitContext, Problem
from integrand.methods.table import METHODS
from integrand.model import Model
from integrand.posterior.conditional import Conditional, ExactConditional, SparseConditional
from integrand.posterior.model_findings import (
    Rows,
    column_findings,
    count_findings,
    elsewhere_finding,
    prior_finding,
    residual_findings,
    size_findings,
    sparseness_findings,
    transform_remedy,
)
from integrand.posterior.posterior import Posterior
from integrand.posterior.residuals import (
    Marginals,
    Residuals,
    is_best_for_gaussian_noise,
    left_out_exact,
    left_out_sparse,
    marginals_of,
    residuals_of,
    weighted_residuals,
)
from integrand.posterior.sparseness import dense_bound, further_points, log_marginal
from integrand.posterior.transformed import transforms_of
from integrand.precision import float64_scope
from integrand.priors import Prior
from integrand.targets.collapsed import CollapsedTarget
from integrand.units import values

# Draws that are looked at; of other likelihoods, whose weights need more, and those of large matrices.
_DRAWS, _WEIGHTED_DRAWS, _FEW_DRAWS = 30, 100, 12
# With more rows than this the exact GP is not factored, and fewer than all rows have residuals, in runs of this many.
_EXACT_ROWS, _SOME_ROWS, _RUN = 2_000, 1_000, 50
# With more rows than this there are fewer draws; for other likelihoods rows are fewer, too.
_MANY_ROWS, _WEIGHTED_ROWS = 1_000, 400
# Rows up to which other hyperparameters are tried with the exact GP, and how many.
_ELSEWHERE_ROWS, _ELSEWHERE_VALUES = 500, 80
# Multiplications, N (2M)², of values of the bound above which there are fewer draws, and the fewest.
_BOUND_WORK, _LEAST_DRAWS = 4e8, 8


def examined(posterior: Posterior, problem: Problem, context: FitContext) -> Posterior:
    """The posterior, with findings on the model in its verdict."""
    verdict = posterior.verdict
    posterior = dataclasses.replace(posterior, ranges=_ranges(problem))
    if verdict is None or context.interrupted or not problem.settings.check_model:
        return posterior
    context.phase("checks")
    notes = posterior.notes
    try:
        with one_blas_thread(problem.data.n_rows <= _EXACT_ROWS):
            findings, sparseness = _examination(posterior, problem)
    except (ArithmeticError, MemoryError, np.linalg.LinAlgError, KeyboardInterrupt) as error:  # the fit is worth more
        findings, sparseness = [], None
        notes = (*notes, f"The model was not checked: {str(error) or type(error).__name__}.")
    context.clock.enter("")
    context.store.save_seconds(context.seconds)
    verdict = dataclasses.replace(verdict, findings=(*verdict.findings, *findings), sparseness=sparseness)
    return dataclasses.replace(posterior, verdict=verdict, notes=notes, seconds=context.seconds)


def _examination(posterior: Posterior, problem: Problem) -> tuple[list[Finding], Sparseness | None]:
    rows, model, n_rows = _some_rows(problem), posterior.model, problem.data.n_rows
    findings = size_findings(n_rows, model.n_theta)
    numbers = [i for i in range(model.n_columns) if i not in model.levels]
    names = [model.columns[i] for i in numbers]  # codes have no order and no distance
    findings += column_findings(rows.X[:, numbers], names)
    findings += _prior_findings(posterior)
    sparseness = _sparseness(posterior, problem, rows)
    if sparseness is not None:
        M = len(posterior.conditional.inputs)
        findings += sparseness_findings(sparseness, n_rows, M, problem.Z is not None)
        if M < n_rows <= _ELSEWHERE_ROWS and problem.data.local:
            findings += elsewhere_finding(_gain_elsewhere(posterior, problem, rows), M, findings)
    residuals, rows = _residuals(posterior, problem, rows)
    if residuals is not None:
        if model.likelihood.discrete:
            findings += count_findings(residuals)
        else:
            remedy, rows = _transform_remedy(problem, rows), rows._replace(X=rows.X[:, numbers])
            findings += residual_findings(residuals, rows, names, remedy)
    return findings, sparseness


def _prior_findings(posterior: Posterior) -> list[Finding]:
    """Of the priors that the user gave in the units of the data."""
    model, findings = posterior.model, []
    if posterior.chains.n_draws < _LEAST_DRAWS:
        return []
    given = {v.name: v.original for v in values(model) if v.chosen and isinstance(v.original, Prior)}
    original = posterior.inferred_in_original_units(posterior.theta)
    for p in model.parameters:
        medians = np.median(original[p.name].reshape(-1, p.size), axis=0)
        for name, median in zip(model.names[p.start : p.start + p.size], medians, strict=True):
            if name in given:
                with float64_scope():
                    findings += prior_finding(name, given[name], float(median))
    return findings


def _transform_remedy(problem: Problem, rows: Rows) -> str:
    """How to transform y, where the model may."""
    model, method, transform = problem.model, METHODS[problem.method], problem.model.target_transform
    if not isinstance(model.likelihood, Gaussian) or isinstance(rows.noise_variance, np.ndarray):
        return "Model a transform of y"
    lowest = problem.scaler.inverse_y(np.min(rows.y))
    # What is zero has come back from standardised units with a rounding error.
    positive = bool(lowest > 1e-9 * (abs(problem.scaler.y_mean) + problem.scaler.y_sd))
    positive = positive or (transform is not None and transform.of_log)
    return transform_remedy(positive, transform and transform.name, "" if method.transforms_target else "sgpr-hmc")


def _some_rows(problem: Problem) -> Rows:
    """All rows, if they are few; else runs of rows that follow each other, or a sample where rows are on disk."""
    data = problem.data
    if not data.local:
        if problem.subsample is None:
            return Rows(np.zeros((0, data.n_columns)), np.zeros(0), np.zeros(0, bool))
        with float64_scope():
            (X, y), v = map(np.asarray, problem.subsample.arrays()), problem.subsample.noise_variances()
        index = np.linspace(0, len(y) - 1, min(_SOME_ROWS, len(y))).astype(int)
        known = 0.0 if v is None else np.asarray(v)[index]
        return Rows(X[index], y[index], np.zeros(max(len(index) - 1, 0), bool), known)
    with float64_scope():
        (X, y), v = map(np.asarray, data.arrays()), data.noise_variances()
    index = np.arange(len(y))
    if len(y) > _EXACT_ROWS:
        starts = np.linspace(0, len(y) - _RUN, _SOME_ROWS // _RUN).astype(int)
        index = np.unique(starts[:, None] + np.arange(_RUN))
    return Rows(X[index], y[index], np.diff(index) == 1, 0.0 if v is None else np.asarray(v)[index])


def _ranges(problem: Problem) -> Float[np.ndarray, "D 2"]:
    """Of the columns, in the units of the data; of the subsample where the rows are on disk."""
    X = problem.scaler.inverse_X(problem.some_inputs())
    return np.stack([X.min(axis=0), X.max(axis=0)], axis=1)


def _evenly(n: int, wanted: int) -> Int[np.ndarray, " J"]:
    return np.unique(np.linspace(0, n - 1, min(n, wanted)).astype(int))


# ---- covariances


class _AtDraw(NamedTuple):
    """Of one draw."""

    K: Float[np.ndarray, "T T"]  # k of all points with each other
    noise: float  # σ²
    mean: float
    y: Float[np.ndarray, " n"]  # of the rows, transformed where the model has a transform
    slopes: float  # Σ log g' of that


def _gram(phi, points, y, model: Model):
    gp = model.gp(model.theta(phi))
    slopes = 0.0 if gp.transform is None else jnp.sum(gp.transform.log_slope(y))
    return gp.kernel.gram(points), gp.noise**2, gp.mean, gp.residuals(y) + gp.mean, slopes


def _covariances(
    model: Model, phis: Float[np.ndarray, "J P"], points: Float[np.ndarray, "T D"], y: Float[np.ndarray, " N"]
) -> Iterator[_AtDraw]:
    """Covariances of all points, and y of the rows, at each draw."""
    with float64_scope():
        program = program_for(_gram, 1, (phis[0], points, y), {"model": model})
        for phi in phis:
            K, noise, mean, observed, slopes = program(phi, points, y)
            yield _AtDraw(np.asarray(K), float(noise), float(mean), np.asarray(observed), float(slopes))


# ---- what the inducing points cost


def _sparseness(posterior: Posterior, problem: Problem, rows: Rows) -> Sparseness | None:
    conditional, data = posterior.conditional, problem.data
    sparse = isinstance(conditional, SparseConditional) and not conditional.inputs_vary
    if not sparse or problem.data.processes.size > 1 or len(rows.y) == 0:
        return None
    Z, phis, N = conditional.inputs, conditional.phis, data.n_rows
    M, exact = len(Z), data.local and min(_EXACT_ROWS, problem.settings.max_exact_rows) >= N
    wanted = _DRAWS if N <= _MANY_ROWS else _FEW_DRAWS
    if not exact:
        wanted = int(np.clip(_DRAWS * _BOUND_WORK / (4.0 * N * M**2), _LEAST_DRAWS, wanted))
    phis = phis[_evenly(len(phis), wanted)]
    distance = np.sum(((phis - phis.mean(axis=0)) / np.maximum(phis.std(axis=0), 1e-12)) ** 2, axis=1)
    middle, points = phis[[int(np.argmin(distance))]], np.concatenate([Z, rows.X])
    K = next(_covariances(posterior.model, middle, points, rows.y)).K
    further = further_points(K, M, M, problem.jitter)
    if exact:
        values = _dense_values(problem, rows, Z, further, phis)
    else:
        target, both = CollapsedTarget(problem.model, data, problem.jitter), np.concatenate([Z, rows.X[further]])
        values = np.stack([_bounds(target, phis, Z), _bounds(target, phis, both), np.full(len(phis), math.nan)], axis=1)
    values = values[np.all(np.isfinite(values[:, :2]), axis=1)]
    gains, slacks = values[:, 1] - values[:, 0], values[:, 2] - values[:, 0]
    if len(gains) == 0:
        return None
    afresh = [_bound_afresh(problem, rows, M, phi, exact) for phi in (middle, posterior.model.start()[None])]
    return Sparseness(
        draws=len(gains),
        further=len(further),
        gain=float(gains.mean()),
        gain_sd=float(gains.std(ddof=1)) if len(gains) > 1 else math.nan,
        fresh_gain=float(np.max(afresh) - values[:, 0].mean()),
        slack=float(slacks.mean()),
        slack_sd=float(slacks.std(ddof=1)) if len(gains) > 1 else math.nan,
    )


def _gain_elsewhere(posterior: Posterior, problem: Problem, rows: Rows) -> float:
    """Nats by which p(y | θ) p(θ) of the exact GP is higher at another θ than at the best of some draws.

    Few points cannot follow fast structure, and the bound then prefers a θ that calls it noise. At such draws more
    points gain nothing. So the exact density is maximised, by values alone, from the medians of the priors
    or from shorter lengthscales and less noise, whichever is best.
    """
    model, phis = posterior.model, posterior.conditional.phis
    prior = CollapsedTarget(problem.model, problem.data, problem.jitter).log_prior

    def log_density(phi: Float[np.ndarray, " P"]) -> float:
        at = next(_covariances(model, phi[None], rows.X, rows.y))
        return log_marginal(at.K, at.y - at.mean, at.noise + rows.noise_variance) + at.slopes + prior(phi)

    def lost(phi: Float[np.ndarray, " P"]) -> float:
        value = log_density(phi)
        return -value if math.isfinite(value) else 1e300

    ours = max(log_density(phi) for phi in phis[_evenly(len(phis), _FEW_DRAWS)])
    lengthscales, noise = (np.array([f".{name}" in f".{n}" for n in model.names]) for name in ("lengthscale", "noise"))
    starts = [model.start() - 0.8 * k * lengthscales - less * noise for k in range(4) for less in (0.0, 1.0)]
    found = minimize(lost, min(starts, key=lost), method="Nelder-Mead", options={"maxfev": _ELSEWHERE_VALUES})
    return -float(found.fun) - ours


def _bounds(
    target: CollapsedTarget, phis: Float[np.ndarray, "J P"], Z: Float[np.ndarray, "M D"]
) -> Float[np.ndarray, " J"]:
    """L(θ, Z) of all rows at each draw, by the program that samplers have compiled."""
    return target.values(phis, Z) - np.array([target.log_prior(phi) for phi in phis])


def _dense_values(
    problem: Problem,
    rows: Rows,
    Z: Float[np.ndarray, "M D"],
    further: Int[np.ndarray, " K"],
    phis: Float[np.ndarray, "J P"],
) -> Float[np.ndarray, "J 3"]:
    """L(θ, Z), L(θ, Z ∪ Z') and log p(y | θ) at each draw."""
    M, values = len(Z), []
    both = np.concatenate([np.arange(M), M + further])
    for at in _covariances(problem.model, phis, np.concatenate([Z, rows.X]), rows.y):
        K, noise, residuals = at.K, at.noise + rows.noise_variance, at.y - at.mean
        bounds = [
            _dense_bound(problem, K[:, M:], K[np.ix_(own, own)], own, noise, residuals) for own in (both[:M], both)
        ]
        values.append(np.array([*bounds, log_marginal(K[M:, M:], residuals, noise)]) + at.slopes)
    return np.array(values)


def _bound_afresh(problem: Problem, rows: Rows, M: int, phi: Float[np.ndarray, "1 P"], exact: bool) -> float:
    """L(θ, Z) at rows that are chosen one after the other where those before leave most open; -inf if it fails."""
    at = next(_covariances(problem.model, phi, rows.X, rows.y))
    chosen = further_points(at.K, 0, M, problem.jitter)
    if exact:
        noise, own = at.noise + rows.noise_variance, at.K[np.ix_(chosen, chosen)]
        value = _dense_bound(problem, at.K, own, chosen, noise, at.y - at.mean) + at.slopes
    elif len(chosen) == M:
        value = float(_bounds(CollapsedTarget(problem.model, problem.data, problem.jitter), phi, rows.X[chosen])[0])
    else:
        value = math.nan
    return value if math.isfinite(value) else -math.inf


def _dense_bound(
    problem: Problem,
    K: Float[np.ndarray, "T N"],
    Kmm: Float[np.ndarray, "M M"],
    points: Int[np.ndarray, " M"],
    noise: float | Float[np.ndarray, " N"],
    residuals: Float[np.ndarray, " N"],
) -> float:
    """The bound with some of the T points, the last N of which are the rows."""
    variances = np.diagonal(K[len(K) - K.shape[1] :])
    return dense_bound(problem.jitter.added(Kmm), K[points], variances, residuals, noise, problem.model.bound)


# ---- residuals


def _residuals(posterior: Posterior, problem: Problem, rows: Rows) -> tuple[Residuals | None, Rows]:
    """Leave-one-out residuals of these rows, or of some of them; None where there are none to speak of."""
    model, conditional, y = posterior.model, posterior.conditional, rows.y
    if len(y) == 0 or model.likelihood.largest == 1.0:
        return None, rows
    gaussian = isinstance(model.likelihood, Gaussian)
    if isinstance(conditional, ExactConditional) and gaussian:
        if len(conditional.inputs) != len(y):  # too many rows to invert a matrix of them
            return None, rows
        draws = _evenly(conditional.n_draws, _DRAWS if len(y) <= _MANY_ROWS else _FEW_DRAWS // 2)
        each = transforms_of(model, conditional.phis[draws])
        observed = y if each is None else each(y[None, :])
        return residuals_of(left_out_exact(conditional, draws, observed), observed), rows
    best = is_best_for_gaussian_noise(model, conditional)
    if not best and len(y) > _WEIGHTED_ROWS:
        known = rows.noise_variance[:_WEIGHTED_ROWS] if isinstance(rows.noise_variance, np.ndarray) else 0.0
        rows = Rows(rows.X[:_WEIGHTED_ROWS], y[:_WEIGHTED_ROWS], rows.follows[: _WEIGHTED_ROWS - 1], known)
        y = rows.y
    wanted = _DRAWS if problem.data.n_rows <= _MANY_ROWS else _FEW_DRAWS
    draws = _evenly(conditional.n_draws, wanted if best else _WEIGHTED_DRAWS)
    f, observed = _marginals(model, conditional, draws, rows, problem)
    if f is None:
        return None, rows
    if best:
        return residuals_of(left_out_sparse(f, observed), observed), rows
    return weighted_residuals(model, f, y, problem.rng(9)), rows


def _marginals(
    model: Model, conditional: Conditional, draws: Int[np.ndarray, " J"], rows: Rows, problem: Problem
) -> tuple[Marginals | None, np.ndarray]:
    """Of f at the rows under each draw, or None if factorisations fail; and y, of each draw where it is transformed."""
    parts, noises, observed = [], [], []
    for j in draws:
        inputs = conditional.inputs[j] if conditional.inputs_vary else conditional.inputs
        at = next(_covariances(model, conditional.phis[[j]], np.concatenate([inputs, rows.X]), rows.y))
        try:
            parts.append(marginals_of(conditional, int(j), at.K, at.mean, problem.jitter))
        except np.linalg.LinAlgError:
            continue
        noises.append(at.noise)
        observed.append(at.y)
    if not parts:
        return None, rows.y
    means, explained, left = (np.array(part) for part in zip(*parts, strict=True))
    noise = np.array(noises)
    if isinstance(rows.noise_variance, np.ndarray):
        noise = noise[:, None] + rows.noise_variance
    return Marginals(means, explained, left, noise), rows.y if model.target_transform is None else np.array(observed)
