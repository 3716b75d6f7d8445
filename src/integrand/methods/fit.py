"""`fit` runs a method on rows of any source, `resume` goes on from a run directory, `update` adds rows."""

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from integrand.compilation import clear_unused_programs
from integrand.data.categories import about_words, coded, refuse_other_levels
from integrand.data.checks import checked_rows, refuse_other_columns
from integrand.data.dataset import Dataset, block_rows_for
from integrand.data.parquet import open_source
from integrand.data.processes import Processes, SharedWork, SingleProcess
from integrand.data.scaling import Standardiser
from integrand.data.sources import ArrayRows, MappedRows, Overview, RowSource, as_rows
from integrand.errors import (
    ConvergenceWarning,
    InputError,
    PriorWarning,
    RunDirectoryError,
    callers_level,
)
from integrand.infer.verdict import Finding
from integrand.kernels import RBF
from integrand.kernels.base import Kernel
from integrand.kernels.categorical import PIVOT_ROWS, Categorical, checked_codes
from integrand.likelihoods import Gaussian, Likelihood, likelihood_named
from integrand.methods.examine import examined
from integrand.methods.problem import AUTO, FitContext, Problem, Settings
from integrand.methods.table import METHODS, default_bound, default_method, method_named
from integrand.model import Model, describe_model, restore_model
from integrand.posterior.conditional import ExactConditional
from integrand.posterior.posterior import Posterior
from integrand.posterior.predictive import draws_from_prior
from integrand.priors import DEFAULT, Prior
from integrand.progress import Progress, shown
from integrand.storage.model_file import model_bytes, model_from_bytes
from integrand.storage.run_store import RunStore
from integrand.targets import CollapsedTarget
from integrand.units import doubts

# Inducing points that blocks of rows are made for where the fit chooses how many.
_MIDDLING = 200
# Arguments of `fit` that an update takes from the posterior.
_KEPT = ("kernel", "method", "likelihood", "noise", "mean", "priors", "Z", "bound", "target_transform")
# Arguments of earlier versions, which work for one version with a warning: what to write in their place.
_INSTEAD = {
    "columns": "give the rows names: fit(ArrayRows(X, y, columns=...))",
    "scaler": "give the rows a scaler: fit(ArrayRows(X, y, scaler=...))",
    "memory": "give it to the rows: open_rows(path, target, memory=...) or MappedRows(X, y, memory=...)",
    "ranks": "give the rows their processes: open_rows(path, target, processes=join()); resume(..., processes=join())",
    "seen": "leave it out: rows keep their overview",
    "record": "run the fit with a store: RunStore.create(run_dir, spec, record=...)",
}


def fit(
    X: Any,
    y: Any = None,
    kernel: Kernel | None = None,
    *,
    method: str | None = None,
    likelihood: str | Likelihood | None = None,
    noise: Any = None,
    mean: Any = None,
    priors: str = DEFAULT,
    Z: Any = None,
    noise_variance: Any = None,
    run_dir: str | Path | None = None,
    strict: bool = False,
    progress: bool | Progress = False,
    **settings: Any,
) -> Posterior:
    """Fit a GP to X (N, D) and y (N,), in their own units, and return the posterior.

    Parameters
    ----------
    X, y
        Arrays or a data frame; or, without y, rows of another source: `ArrayRows(X, y, columns=...)`,
        `open_rows("big.parquet", target="y")` or `MappedRows(X, y)`.
    kernel, noise, mean, priors
        See `Model`; the default kernel is RBF with one lengthscale per column. Numbers and priors are in the units of
        the data. Presets, and what `standardised` is put around, are for standardised data. A value that the data
        cannot speak of is a PriorWarning.
    method
        One of `METHODS`: `sgpr-hmc` integrates over the hyperparameters, `ml2` optimises them. By default `sgpr-hmc`,
        and `joint-hmc` where the likelihood is not Gaussian.
    likelihood
        Of y given f: `gaussian`, which is the default, `student-t`, `bernoulli` (y is 0 or 1), `poisson` (counts), or
        an object such as `integrand.likelihoods.StudentT(df=7)`.
    Z
        Inducing inputs to start from, in the units of X; by default the best of several candidates.
    noise_variance
        Known variance of the noise of each row (N,), in squared units of y. The model's own noise is added; `noise=0`
        leaves the known one alone. Other row sources bring theirs: `open_rows(..., noise_column="v")`.
    run_dir
        A new directory that keeps the state of the fit, so that `resume` can go on after a crash.
    strict
        Raise NotConvergedError if the verdict is bad; otherwise a bad verdict is a ConvergenceWarning.
    progress
        True for bars in a terminal or notebook, and a line every ten seconds in a log file; or an object with the
        methods of `integrand.progress.Progress`.
    settings
        Fields of `Settings`: n_inducing, chains, target_ess, max_draws, max_minutes, seed, jitter, ...; and two of the
        model: `bound`, the collapsed bound of sparse methods, `titsias` or `tight`, and `target_transform`, `log`,
        `box-cox` or `sinh-arcsinh` for a skewed y (`integrand.transforms`).
    """
    settings, old = split_old_arguments(settings)
    if old and noise_variance is not None:
        raise InputError("noise_variance goes with the rows: fit(ArrayRows(X, y, columns, scaler, noise_variance=v))")
    likelihood = as_likelihood(likelihood)
    method = method or default_method(likelihood)
    bound = settings.pop("bound", None) or default_bound(method)
    transform = settings.pop("target_transform", None)
    categories = kernel.category_levels() if isinstance(kernel, Kernel) else {}
    rows = rows_of_old_arguments(X, y, old) if old else as_rows(X, y, noise_variance, categories)
    model = Model(kernel or RBF(), rows.columns, noise, mean, priors, likelihood, bound, transform)
    spec = FitSpec.of(method, model, rows, Settings.of(settings), Z, resumable=run_dir is not None)
    for finding in spec.findings:
        warnings.warn(f"{finding.sentence} {finding.remedy}", PriorWarning, stacklevel=callers_level())
    with RunStore.create(run_dir, spec, old.get("record")) as store:
        posterior = run(spec, store, progress)
    return enforce_verdict(posterior, strict)


def prior_predictive(
    model: Model,
    X: Any,
    y: Any = None,
    *,
    at: Any = None,
    n_draws: int = 100,
    include_noise: bool = True,
    seed: int = 0,
) -> np.ndarray:
    """Draws of y from the priors alone, shape (n_draws, rows): what a model says before it has learned anything.

    Parameters
    ----------
    model
        In the units of the data, such as `Model(kernel, ["temp", "hr"], noise=at_most(3))`.
    X, y
        The data, as for `fit`. Only their means and standard deviations are used, because presets need them.
    at
        Rows at which to draw, in the units of X; by default at most 200 of the data's, evenly spaced.
    include_noise
        True for new observations y, False for the function f.
    """
    rows = rows_for(model, as_rows(X, y, categories=model.levels_given))
    overview = rows.overview(Settings().subsample_rows, seed)
    model, scaler = standardised_for(model, rows, overview)
    if at is not None:
        refuse_other_columns(at, model.columns)
        at = coded(at, model.levels)[0] if model.levels else at
    for doubt in doubts(model, _some_inputs(rows, overview), rows.n_rows, _y_range(overview)):
        warnings.warn(f"{doubt.sentence} {doubt.remedy}", PriorWarning, stacklevel=callers_level())
    if at is None:
        at = _some_inputs(rows, overview)
        at = at[np.unique(np.linspace(0, len(at) - 1, min(len(at), 200)).astype(int))]
    drawn = scaler.inverse_y(draws_from_prior(model, scaler.transform_X(at), n_draws, seed, include_noise))
    return drawn if model.target_transform is None else model.target_transform.original(drawn)


def resume(
    run_dir: str | Path,
    rows: RowSource | None = None,
    *,
    strict: bool = False,
    progress: bool | Progress = False,
    processes: Processes = SingleProcess(),
    **changes: Any,
) -> Posterior:
    """Go on with a fit from its run directory.

    Parameters
    ----------
    run_dir
        The directory. With several processes only rank 0 needs to see it.
    rows
        For a run that was begun with arrays of several processes, or whose files have moved: the same rows again.
    strict, progress
        As in `fit`.
    processes
        From `join`. Rows on disk are divided again, so their number may be another one than before.
    changes
        Settings such as max_minutes or target_ess.
    """
    changes, old = split_old_arguments(changes)
    processes = old.get("ranks") or processes
    if rows is not None and "ranks" in old:
        rows = rows.among(processes, shared=False)
    processes = processes if rows is None else rows.processes
    with RunStore.open(run_dir, processes) as store:
        spec = FitSpec.load(store, rows, processes, changes)
        posterior = run(spec, store, progress)
    return enforce_verdict(posterior, strict)


def update(
    posterior: Posterior,
    X: Any,
    y: Any = None,
    *,
    noise_variance: Any = None,
    old_rows: Any = None,
    strict: bool = False,
    progress: bool | Progress = False,
    **settings: Any,
) -> Posterior:
    """The posterior with new rows: by weights where these can be trusted, else by a new fit of all rows.

    Parameters
    ----------
    posterior
        Of `fit`, or of an earlier update.
    X, y, noise_variance
        The new rows alone; see `Posterior.update`.
    old_rows
        All rows that the posterior has seen: a tuple (X, y) or (X, y, noise_variance), a row source, or the run
        directory of the fit. Used only if weights cannot be trusted, or if the inducing points miss the new rows.
    strict, progress
        As in `fit`, for the new fit.
    settings
        Fields of `Settings` for the new fit, by default those of the run directory; the model stays as it is. It starts
        from the inducing points that are there, unless they miss the new rows.

    Raises
    ------
    UnreliableWeightsError
        If weights cannot be trusted and there are no old rows. Other rows than the posterior has seen are refused.
    """
    if other := [name for name in _KEPT if name in settings]:
        listed = ", ".join(f"{name}=" for name in other)
        raise InputError(
            f"update keeps the model and method of the posterior: leave out {listed}, or fit all rows again"
        )
    refuse_other_columns(X, posterior.model.columns)
    rows = as_rows(X, y, noise_variance, posterior.model.levels)
    updated = posterior.update(rows, strict=old_rows is None)
    updates = updated.updates
    if old_rows is None or updates is None or not (updates.problem or updates.uncovered):
        return updated
    reason = updates.problem or "the inducing points missed new rows"
    old, earlier = _old_rows(old_rows, posterior.model)
    posterior.refuse_other_rows(old)
    settings = {**earlier, **settings}
    fitted = _fitted_again(posterior, _joined(old, rows, posterior.model), not updates.uncovered, settings, progress)
    note = f"Fitted again with all {old.n_rows + rows.n_rows} rows, because {reason}."
    return enforce_verdict(dataclasses.replace(fitted, notes=(*fitted.notes, note)), strict)


def _fitted_again(
    posterior: Posterior, rows: RowSource, from_Z: bool, settings: dict[str, Any], progress: bool | Progress
) -> Posterior:
    """A fit of these rows with the model and method of a posterior, from its Z if that has the size wanted."""
    conditional, method = posterior.conditional, METHODS[posterior.method]
    kept: dict[str, Any] = {"jitter": posterior.jitter}
    # Re-weighted draws may predict by the exact GP: its inputs are the rows, and Z is where the fit ended.
    path = posterior.Z_path if isinstance(conditional, ExactConditional) else None
    Z = posterior.Z if path is None else posterior.scaler.inverse_X(path[-1])
    if method.sparse:
        kept["n_inducing"] = len(Z)
    if conditional.n_draws > 1:
        kept["predictive_draws"] = conditional.n_draws
    chosen = Settings.of(kept | settings)
    start = from_Z and method.sparse and not conditional.inputs_vary and chosen.n_inducing in (len(Z), AUTO)
    model = posterior.model.given or posterior.model
    spec = FitSpec.of(posterior.method, model, rows, chosen, Z if start else None)
    with RunStore.create(None, spec) as store:
        return run(spec, store, progress)


def _joined(old: RowSource, new: RowSource, model: Model) -> ArrayRows:
    """Both as arrays; where one knows the noise of its rows, that of the others is unknown and adds nothing."""
    D, tables = old.n_columns, [rows.read(0, rows.n_rows) for rows in (old, new)]
    X, y = (np.concatenate([table[:, columns] for table in tables]) for columns in (slice(0, D), D))
    v = None
    if old.noise_column is not None or new.noise_column is not None:
        v = np.concatenate([t[:, D + 1] if t.shape[1] > D + 1 else np.zeros(len(t)) for t in tables])
    levels = {model.columns[i]: of_column for i, of_column in model.levels.items()}
    return ArrayRows(X, y, old.columns, noise_variance=v, levels=levels)


def _old_rows(old_rows: Any, model: Model) -> tuple[RowSource, dict[str, Any]]:
    """The rows that a posterior has seen, and the settings of its run directory if that is where they are."""
    settings: dict[str, Any] = {}
    if isinstance(old_rows, str | Path):
        with RunStore.open(old_rows) as store:
            spec = FitSpec.load(store, None, SingleProcess(), {})
        rows, settings = (
            spec.rows,
            {field.name: getattr(spec.settings, field.name) for field in dataclasses.fields(Settings)},
        )
    elif isinstance(old_rows, RowSource):
        rows = old_rows
    elif isinstance(old_rows, tuple | list) and len(old_rows) in (2, 3):
        rows = as_rows(*old_rows, categories=model.levels)
    else:
        raise InputError(
            "old_rows are (X, y) or (X, y, noise_variance), rows such as open_rows(path, target), or a run directory"
        )
    if rows.n_columns != model.n_columns:
        raise InputError(f"old_rows have {rows.n_columns} columns, but the model was fitted to {model.n_columns}")
    if rows.processes.size > 1 or 8 * rows.n_rows * len(rows.names) > rows.memory:
        raise InputError("old_rows must fit in memory: fit a table of all rows, old and new, with Z=posterior.Z")
    refuse_other_levels(rows.levels, model.levels, rows.columns, "old rows")
    return rows.but(model.columns), settings


@dataclasses.dataclass(frozen=True)
class FitSpec:
    """Everything that determines a fit."""

    method: str
    model: Model  # for standardised data
    scaler: Standardiser
    settings: Settings
    rows: RowSource
    subsample: np.ndarray | None  # some of the rows, target last, in their own units
    Z: np.ndarray | None  # inducing inputs to start from, standardised
    findings: tuple[Finding, ...] = ()  # on numbers and priors that the data cannot speak of

    @classmethod
    def of(
        cls, method: str, model: Model, rows: RowSource, settings: Settings, Z: Any = None, resumable: bool = False
    ) -> "FitSpec":
        """Check the request, read the rows once, and standardise. The model and Z are in the units of the data."""
        chosen, rows = method_named(method), rows_for(model, rows)
        chosen.check(settings, model.likelihood, rows, resumable)
        overview = rows.overview(settings.subsample_rows, settings.seed)
        model, scaler = standardised_for(model, rows, overview)
        chosen.check_model(model, overview, settings.schedule)
        found = doubts(model, _some_inputs(rows, overview), rows.n_rows, _y_range(overview))
        findings = tuple(Finding(d.code, False, d.sentence, d.remedy) for d in found)
        if Z is not None:
            Z = coded(Z, model.levels)[0] if model.levels else Z
            try:
                Z = scaler.transform_X(np.asarray(Z, float))
            except (TypeError, ValueError) as error:
                raise InputError(f"Z is no table of {model.n_columns} columns of numbers ({error})") from None
            if model.levels:
                checked_codes(Z, model.levels, model.columns, "inducing inputs")
        return cls(method, model, scaler, settings, rows, overview.subsample, Z, findings)

    @property
    def processes(self) -> Processes:
        """Those that fit together."""
        return self.rows.processes

    @property
    def n_inducing(self) -> int:
        """M that was asked for; where it is chosen by the fit, a middling one, for the size of blocks."""
        return _size(self.settings) if self.Z is None else len(self.Z)

    def problem(self) -> Problem:
        """Standardised rows, in memory or where the source keeps them, and a subsample if the method needs one."""
        rows, settings, scaler = self.rows, self.settings, self.scaler
        data, subsample = rows.dataset(scaler, self.n_inducing), None
        begins_on_subsample = METHODS[self.method].collapsed and settings.uses_subsample(rows.n_rows)
        if self.subsample is not None and (begins_on_subsample or not data.local):
            X, y, v = scaler.transform_rows(self.subsample)
            subsample = Dataset.of(X, y, block_rows_for(self.n_inducing), v).representing(rows.n_rows)
        return Problem(self.model, data, scaler, settings, self.method, Z=self.Z, subsample=subsample)

    def header(self) -> dict[str, Any]:
        """All but the arrays, as JSON."""
        header = {"method": self.method, "model": describe_model(self.model), "settings": self.settings.as_json()}
        header["own_steps"] = True
        header["findings"] = [finding._asdict() for finding in self.findings]
        rows = self.rows.describe()
        return header | ({"rows": rows, "memory": self.rows.memory, "total": self.rows.n_rows} if rows else {})

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that a run directory keeps."""
        arrays = self.rows.arrays() | dataclasses.asdict(self.scaler)
        if self.subsample is not None and not self.rows.in_memory:  # drawing it again would take a pass
            arrays["sample"] = self.subsample
        return arrays if self.Z is None else arrays | {"Z": self.Z}

    @classmethod
    def load(
        cls, store: RunStore, rows: RowSource | None, processes: Processes, changes: Mapping[str, Any]
    ) -> "FitSpec":
        """The spec in a run directory, with some settings changed. Rows are found where they were, or given."""
        arrays = processes.on_leader(store.arrays) or {}
        header, scaler, n_inducing = processes.all_gather(processes.on_leader(lambda: _shared_part(store, arrays)))[0]
        if "rows" not in header and processes.size > 1:
            raise InputError("this run keeps its rows in its directory: resume it with one process")
        model = restore_model(header["model"])
        settings = Settings.restored(header["settings"]).but(**changes)
        if not processes.is_leader:  # Z is the leader's alone
            settings = settings.but(n_inducing=n_inducing)
        if "rows" not in header:
            rows = ArrayRows(arrays["X"], arrays["y"], model.columns, noise_variance=arrays.get("noise_variance"))
        elif rows is None:
            rows = open_source(header["rows"], header["memory"], processes)
        if rows.n_rows != header.get("total", rows.n_rows):
            raise InputError(
                f"the run was begun with {header['total']} rows, here are {rows.n_rows}: give the rows of every "
                "process again, as rows="
            )
        rows = rows_for(model, rows)
        METHODS[header["method"]].check(settings, model.likelihood, rows, resumable=True)
        subsample = arrays.get("sample")
        if rows.in_memory:
            subsample = rows.overview(settings.subsample_rows, settings.seed).subsample
        findings = tuple(Finding(**finding) for finding in header.get("findings", ()))
        standardiser = Standardiser(**scaler)
        refuse_other_levels(rows.levels, model.levels, rows.columns, "rows")
        model = model.restored_for(standardiser)
        return cls(header["method"], model, standardiser, settings, rows, subsample, arrays.get("Z"), findings)


def rows_for(model: Model, rows: RowSource) -> RowSource:
    """The rows as the model takes them: with the logarithm of y, where its transform is of that."""
    transform = model.target_transform
    return rows.with_log_target() if transform is not None and transform.of_log else rows


def standardised_for(model: Model, rows: RowSource, overview: Overview) -> tuple[Model, Standardiser]:
    """The model for these rows, standardised, and how: columns of categories have levels now, and stay as they are."""
    scaler = overview.standardiser(model.likelihood)
    spoken_of = {rows.columns[i] for i in model.levels}
    words = [name for name in rows.levels if name not in spoken_of]
    if words:
        raise InputError(about_words(words[0]))
    if model.levels:
        X = _some_inputs(rows, overview)
        found = {i: known or _levels(rows, i, overview) for i, known in model.levels.items()}

        def with_levels(kernel: Any) -> Kernel:
            return kernel.with_levels(found) if isinstance(kernel, Categorical) else kernel

        def with_pivots(kernel: Any) -> Kernel:
            return kernel.with_pivots(X, y, found) if isinstance(kernel, Categorical) else kernel

        model = model.with_leaves(with_levels)
        refuse_other_levels(rows.levels, model.levels, rows.columns, "rows")
        extremes = np.stack([overview.low, overview.high, overview.odd])  # of all rows, not of a subsample
        checked_codes(extremes, model.levels, model.columns, "rows")
        scaler = scaler.leaving(model.levels)
        table = rows.read(0, rows.n_rows) if overview.subsample is None else overview.subsample
        y = table[:, rows.n_columns]  # its logarithm, where the transform is of that
        some = np.linspace(0, len(y) - 1, min(len(y), PIVOT_ROWS)).astype(int)
        X, y = scaler.transform_X(X[some]), scaler.transform_y(y[some])
        model = model.with_leaves(with_pivots)
    return model.for_data(scaler), scaler


def _levels(rows: RowSource, column: int, overview: Overview) -> tuple[str, ...]:
    """The levels of a column: those of its words, else one for each code up to the largest."""
    if rows.columns[column] in rows.levels:
        return rows.levels[rows.columns[column]]
    if overview.high[column] > 1e6:
        raise InputError(
            f"the column {rows.columns[column]!r} holds {overview.high[column]:g}: in arrays of numbers give its "
            "categories as codes 0, 1, ..."
        )
    return tuple(str(code) for code in range(max(int(overview.high[column]), 0) + 1))


def _y_range(overview: Overview) -> tuple[float, float]:
    return float(overview.low[-1]), float(overview.high[-1])


def _some_inputs(rows: RowSource, overview: Overview) -> np.ndarray:
    """Inputs of some rows, or of all, in their own units."""
    if overview.subsample is not None:
        return overview.subsample[:, : rows.n_columns]
    return rows.arrays()["X"]


def _size(settings: Settings) -> int:
    return _MIDDLING if isinstance(settings.n_inducing, str) else settings.n_inducing


def _shared_part(store: RunStore, arrays: Mapping[str, np.ndarray]) -> list[Any]:
    """What every process needs of a run directory: header, scaler and M, as JSON."""
    header = store.header
    try:
        if "jitter" in header:  # earlier versions have it beside the settings
            header["settings"] = header["settings"] | {"jitter": header["jitter"]}
        if "own_steps" not in header and method_named(header["method"]).module == "svgp":
            # Earlier versions made five steps of Adam for each of these.
            header["settings"] = header["settings"] | {"steps": 5 * header["settings"]["steps"]}
        described = (
            restore_model(header["model"]),
            method_named(header["method"]),
            Settings.restored(header["settings"]),
        )
        scaler = {field.name: np.asarray(arrays[field.name]).tolist() for field in dataclasses.fields(Standardiser)}
        return [header, scaler, len(arrays["Z"]) if "Z" in arrays else _size(described[2])]
    except (KeyError, TypeError) as error:
        path = getattr(store.directory, "path", "the directory")
        raise RunDirectoryError(f"{path} does not describe a fit that this version knows: {error}") from error


def run(spec: FitSpec, store: RunStore, progress: bool | Progress) -> Posterior:
    """Run the method. With several processes, rank 0 runs it and the others follow its evaluations."""
    clear_unused_programs()
    processes, method = spec.processes, METHODS[spec.method]
    with shown(progress if processes.is_leader else False) as listener:
        problem = spec.problem()
        shared = shared_work(problem, spec.n_inducing)

        def work() -> Posterior:
            context = FitContext(problem, store, listener, spec.findings)
            return examined(method.run(problem, context), problem, context)

        return processes.lead(work, shared)


def shared_work(problem: Problem, n_inducing: int) -> SharedWork[Posterior]:
    """The programs that sum over rows, and how a posterior gets to the other processes."""
    target = CollapsedTarget(problem.model, problem.data, problem.jitter)
    programs = {"evaluate": target.evaluate, "inducing_posterior": target.inducing_posterior}
    sizes = problem.model.n_theta, n_inducing, problem.model.n_columns
    return SharedWork(
        programs, *sizes, to_bytes=model_bytes, from_bytes=lambda content: model_from_bytes(content).posterior
    )


def enforce_verdict(posterior: Posterior, strict: bool) -> Posterior:
    """The posterior; a bad verdict is a warning, or under `strict` an error."""
    verdict = posterior.verdict
    if verdict is not None and not verdict.ok:
        if strict:
            verdict.raise_if_bad()
        warnings.warn(str(verdict), ConvergenceWarning, stacklevel=callers_level())
    return posterior


def as_likelihood(value: str | Likelihood | None) -> Likelihood:
    """A likelihood by name, or as it is; None is Gaussian."""
    if isinstance(value, Likelihood):
        return value
    if value is None:
        return Gaussian()
    if isinstance(value, Prior):
        raise InputError(f"{value} is a prior: take the likelihood from integrand.likelihoods, or a name")
    return likelihood_named(value)


def split_old_arguments(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings, and the arguments of an earlier version, each with a DeprecationWarning. None is not given."""
    old = {name: value for name, value in arguments.items() if name in _INSTEAD}
    for name in old:
        warnings.warn(f"{name}= is deprecated: {_INSTEAD[name]}", DeprecationWarning, stacklevel=callers_level())
    settings = {name: value for name, value in arguments.items() if name not in old}
    return settings, {name: value for name, value in old.items() if value is not None}


def rows_of_old_arguments(X: Any, y: Any, old: Mapping[str, Any]) -> RowSource:
    """The rows that `fit` was given by `columns`, `scaler`, `memory`, `ranks` and `seen`."""
    columns, scaler, processes = (old.get(name) for name in ("columns", "scaler", "ranks"))
    if isinstance(X, RowSource):
        rows = as_rows(X, y)
        rows = rows if processes is None else rows.among(processes, shared="seen" not in old)
    elif processes is None:
        return ArrayRows(X, y, columns, scaler)
    else:
        X, y = processes.on_all(lambda: checked_rows(X, y))
        rows = MappedRows(X, y, columns, processes=processes, shared=False)
    return rows.but(columns, old.get("memory"), scaler)
