"""`fit`, which standardises the data and runs a method of the table, and `resume`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from integrand.data.checked import checked_rows
from integrand.data.disk import MappedRows, RowsOnDisk, rows_from
from integrand.data.scaling import Standardiser
from integrand.distributed.layout import Overview, overview, own_part
from integrand.distributed.ranks import Ranks
from integrand.errors import InputError
from integrand.kernels import RBF
from integrand.kernels.base import Kernel
from integrand.likelihoods import LIKELIHOODS, Gaussian, Likelihood
from integrand.linalg import Jitter
from integrand.methods.origin import InMemory, OnDisk, Origin
from integrand.methods.problem import Settings
from integrand.methods.recipe import Recipe, opened, settings_from
from integrand.methods.table import METHODS
from integrand.model import Model
from integrand.posterior.posterior import Posterior
from integrand.posterior.storage import RUN, RunDirectory
from integrand.presets import DEFAULT
from integrand.priors import Prior
from integrand.progress import Progress

T = TypeVar("T")

# Rows of a process that take no more stay in memory; those of a larger table are read from disk at every pass.
MEMORY = 2**30


def fit(
    X: Any,
    y: Any = None,
    kernel: Kernel | None = None,
    *,
    method: str = "sgpr-hmc",
    noise: Any = None,
    mean: Any = 0.0,
    priors: str = DEFAULT,
    likelihood: str | Likelihood = "gaussian",
    columns: Sequence[str] | None = None,
    scaler: Standardiser | None = None,
    Z: Any = None,
    jitter: Jitter = Jitter(),
    run_dir: str | Path | None = None,
    record: Mapping[str, Any] | None = None,
    strict: bool = False,
    progress: bool | Progress = False,
    ranks: Ranks | None = None,
    memory: int = MEMORY,
    seen: Overview | None = None,
    **settings: Any,
) -> Posterior:
    """Fit a GP to X (N, D) and y (N,), in their own units, and return the posterior.

    Parameters
    ----------
    X, y
        Arrays; or, without y, rows on disk: `open_rows("big.parquet", target="y")`, or `MappedRows(X, y)`.
    kernel, noise, mean, priors
        See `Model`; the default kernel is RBF with one lengthscale a column. Priors speak of standardised data.
    method
        One of `METHODS`: `sgpr-hmc` integrates over the hyperparameters, `ml2` optimises them.
    likelihood
        Of y given f: `gaussian`, `student-t`, `bernoulli` (y is 0 or 1), `poisson` (counts), or an object such as
        `integrand.likelihoods.StudentT(df=7)`. All but the first need a method that does not collapse u, such as
        `joint-hmc` or `svgp`.
    columns
        Names of the columns of X.
    scaler
        How to standardise; by default mean and standard deviation of these rows.
    Z
        Inducing inputs to start from, in the units of X; by default the best of several candidates.
    run_dir
        A directory that keeps the state of the fit, so that `resume` can go on after a crash.
    record
        Anything JSON can hold, kept in the run directory beside the fit.
    strict
        Raise NotConvergedError if the verdict is bad.
    progress
        True for progress bars on standard error, or an object that is told of it (`integrand.progress.Progress`).
    jitter
        What is added to the diagonal of k(Z, Z).
    ranks
        The processes that fit together, from `join()`; every one of them calls `fit`. Arrays are then the rows of this
        process alone; of rows on disk each process reads its part. All get the same posterior, only rank 0 writes.
    memory
        Bytes that the rows of a process may take; rows on disk beyond that are read at every pass.
    seen
        What one pass over rows on disk has shown (`overview`), to save another; X is then the part of this process.
    settings
        Fields of `Settings`: n_inducing, chains, target_ess, max_draws, max_minutes, seed, ...
    """
    chosen, observed = checked_request(method, likelihood, run_dir is not None, settings)
    if ranks is None and not isinstance(X, RowsOnDisk):
        X, y = checked_rows(X, y)
        observed.check_y(y)
        # What the method refuses, before anything is computed.
        METHODS[method].check(method, chosen, observed, len(y), run_dir is not None)
        scaler = Standardiser.fit(X, y) if scaler is None else scaler
        origin: Origin = InMemory(X, y)
        n_columns, low, high = X.shape[1], float(y.min()), float(y.max())
    else:
        METHODS[method].check_large(method, chosen)
        divided = seen is not None or not isinstance(X, RowsOnDisk)
        rows = _rows(X, y, columns) if ranks is None else ranks.all_or_none(lambda: _rows(X, y, columns))
        part = own_part(rows, ranks, divided)
        seen = seen or overview(part, ranks, chosen.sample_rows, chosen.seed)
        scaler = seen.whole.standardiser() if scaler is None else scaler
        origin = OnDisk(part, seen.whole.n_rows, seen.sample, memory, ranks)
        columns = columns or seen.names
        n_columns, low, high = len(seen.names), float(seen.whole.low[-1]), float(seen.whole.high[-1])
    if not observed.standardises_y:
        scaler = dataclasses.replace(scaler, y_mean=0.0, y_sd=1.0)
    if not 1e-100 < scaler.y_sd < 1e100:  # its square is a variance
        raise InputError(f"the standard deviation of y is {scaler.y_sd:.1e}: give y in other units")
    model = Model(RBF() if kernel is None else kernel, columns or n_columns, noise, mean, priors, observed)
    if model.n_columns != n_columns:
        raise InputError(f"{model.n_columns} column names were given for {n_columns} columns")
    if METHODS[method].draws:
        _refuse_nothing_to_draw(model, origin.n_rows, low, high)
    start = None if Z is None else scaler.transform_X(np.asarray(Z, float))
    recipe = Recipe(method, model, scaler, chosen, jitter, origin, start)
    leads = ranks is None or ranks.leads
    run = None
    if run_dir is not None:
        header = recipe.header() | {"record": dict(record or {})}
        run = _by_rank_0(lambda: _begun(Path(run_dir), header, recipe), ranks)
    return recipe.carry_out(run, strict, progress if leads else False)


def checked_request(
    method: str, likelihood: Any, on_disk: bool, settings: Mapping[str, Any]
) -> tuple[Settings, Likelihood]:
    """Settings and likelihood, if the method exists and can do with them; before any row is looked at."""
    if method not in METHODS:
        raise InputError(f"there is no method {method!r}: choose from {', '.join(METHODS)}")
    chosen, observed = settings_from(settings), _likelihood(likelihood)
    METHODS[method].check(method, chosen, observed, 0, on_disk)
    return chosen, observed


def resume(
    run_dir: str | Path,
    *,
    rows: RowsOnDisk | None = None,
    strict: bool = False,
    progress: bool | Progress = False,
    ranks: Ranks | None = None,
    **changes: Any,
) -> Posterior:
    """Go on with a fit from its run directory; `changes` are settings such as max_minutes or target_ess.

    With `ranks`, of which only rank 0 needs to see the directory, the rows on disk are divided among them anew: a run
    may go on with another number of processes than it was begun with. `rows` are for a run that was begun with arrays
    of several processes: each gives its own again, `MappedRows(X, y)`.
    """
    leads = ranks is None or ranks.leads
    run = _by_rank_0(lambda: RunDirectory.open(Path(run_dir)), ranks)
    try:
        recipe = _by_rank_0(lambda: opened(run, rows) if run is not None else None, ranks)
        recipe = _alone(recipe) if ranks is None else _among(recipe, rows, ranks)
        recipe = dataclasses.replace(recipe, settings=settings_from(dataclasses.asdict(recipe.settings) | changes))
        recipe.check(True)
    except BaseException:
        if run is not None:
            run.close()
        raise
    return recipe.carry_out(run, strict, progress if leads else False)


def _by_rank_0(work: Callable[[], T], ranks: Ranks | None) -> T | None:
    """What rank 0 alone does; if it fails, all end with its error."""
    return work() if ranks is None else ranks.all_or_none(lambda: work() if ranks.leads else None)


def _begun(path: Path, header: Mapping[str, Any], recipe: Recipe) -> RunDirectory:
    """A new run directory with all that a fit begins with."""
    run = _new_run(path, header)
    try:
        recipe.save(run)
    except BaseException:
        run.close()
        raise
    return run


def _alone(recipe: Recipe | None) -> Recipe:
    """The recipe of one process, if it has all rows."""
    assert recipe is not None
    if isinstance(recipe.origin, OnDisk):
        _refuse_other_rows(recipe.origin.rows.n_rows, recipe.origin.total)
    return recipe


def _among(recipe: Recipe | None, rows: RowsOnDisk | None, ranks: Ranks) -> Recipe:
    """Rank 0's recipe in all processes, each with its part of the rows."""

    def tell() -> list[Any] | None:
        if recipe is None:
            return None
        if not isinstance(recipe.origin, OnDisk):
            raise InputError("this run keeps its rows in its directory: resume it with one process")
        scaler = {name: np.asarray(value).tolist() for name, value in dataclasses.asdict(recipe.scaler).items()}
        return [recipe.header(), scaler, recipe.n_inducing]

    header, scaler, n_inducing = ranks.exchange(ranks.all_or_none(tell))[0]
    found = ranks.all_or_none(lambda: rows if rows is not None else rows_from(header["rows"]))
    part = own_part(found, ranks, divided=rows is not None)
    _refuse_other_rows(sum(ranks.exchange(part.n_rows)), header["total"])
    sample = recipe.origin.sample if recipe is not None and isinstance(recipe.origin, OnDisk) else np.zeros((0, 0))
    origin = OnDisk(part, header["total"], sample, header["memory"], ranks)
    if recipe is not None:
        return dataclasses.replace(recipe, origin=origin)
    return Recipe.told(header, scaler, n_inducing, origin)


def _refuse_other_rows(found: int, total: int) -> None:
    if found != total:
        raise InputError(
            f"the run was begun with {total} rows, here are {found}: give the rows of every process again, as rows="
        )


def _rows(X: Any, y: Any, columns: Sequence[str] | None) -> RowsOnDisk:
    if isinstance(X, RowsOnDisk):
        if y is not None:
            raise InputError("rows on disk have their target with them: leave y out")
        return X
    return MappedRows(*checked_rows(X, y), columns)


def _refuse_nothing_to_draw(model: Model, n_rows: int, low: float, high: float) -> None:
    """A posterior needs hyperparameters, and a y that varies."""
    if model.n_theta == 0:
        raise InputError("every hyperparameter is a fixed number, so there is nothing to integrate over: use a prior")
    observed = model.likelihood
    if low == high and observed.largest == 1.0:
        raise InputError(f"y is {low:g} in all rows, one class only: there is nothing to tell apart")
    if low == high and observed.standardises_y:
        where = "the one sample there is" if n_rows == 1 else f"all {n_rows} rows"
        advice = " (`map` predicts it)" if isinstance(observed, Gaussian) else ""
        raise InputError(f"y is {low:g} in {where}: there is no noise or signal to learn from a constant{advice}")


def _new_run(path: Path, header: Mapping[str, Any]) -> RunDirectory:
    """A directory for a new fit; one that was killed before its data were kept is as good as empty."""
    if (path / RUN).exists() and not (path / "data.npz").exists():
        with RunDirectory.open(path):  # refuses if it is being written at this moment
            (path / RUN).unlink(missing_ok=True)
    return RunDirectory.create(path, header)


def _likelihood(value: Any) -> Likelihood:
    if isinstance(value, Likelihood):
        return value
    if value is None:
        return Gaussian()
    if isinstance(value, Prior):
        raise InputError(f"{value} is a prior: take the likelihood from integrand.likelihoods, or a name")
    if value not in LIKELIHOODS:
        raise InputError(f"there is no likelihood {value!r}: choose from {', '.join(LIKELIHOODS)}")
    return LIKELIHOODS[value]()
