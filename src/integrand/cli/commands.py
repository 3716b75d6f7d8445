"""What the commands do: tables in, models and tables out."""

import dataclasses
import glob
import json
import math
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import typer

from integrand.cli.options import emit, say
from integrand.data.categories import unknown_rows
from integrand.data.checks import logarithms
from integrand.data.parquet import open_rows
from integrand.data.processes import Processes, SingleProcess
from integrand.data.sources import MEMORY, ArrayRows, RowSource
from integrand.data.tables import (
    PARQUET,
    WRITTEN,
    DateRule,
    Selection,
    TableBlock,
    block_writer,
    check_written,
    column_names,
    leave_out,
    read_table,
    table_blocks,
)
from integrand.errors import InputError, PriorWarning, UnreliableWeightsError, counted
from integrand.files import check_output
from integrand.kernels import Kernel, parse_kernel, parse_value
from integrand.likelihoods import Gaussian
from integrand.methods.fit import FitSpec, Settings, as_likelihood, prior_predictive, resume, run, update
from integrand.methods.table import METHODS, default_bound, default_method, method_named
from integrand.metrics import evaluate, joint_nlpd
from integrand.model import Model
from integrand.posterior.extrapolation import outside_text
from integrand.posterior.leave_one_out import LeaveOneOut
from integrand.posterior.mixture import checked_levels
from integrand.posterior.posterior import Posterior
from integrand.storage.model_file import SavedModel, load_model, save_model
from integrand.storage.run_store import RunStore
from integrand.transforms import as_transform
from integrand.units import values

# Rows whose components for 400 draws are kept between the columns of a prediction.
_ROWS_AT_ONCE = 10_000
# Parameters in Python whose flags have other names, and those that have no flag.
_PARAMETERS = {"inducing": "n_inducing", "draws": "n_draws", "noise_column": "noise_variance"}
_PYTHON_ONLY = {"Z", "mean", "noise"}
# Columns that are named after a fit.
_MOST_NAMES = 20


def fit_table(
    data: Path,
    target: str,
    *,
    kernel: str,
    record: dict[str, Any],
    columns: Selection | None = None,
    memory: int = MEMORY,
    processes: Processes = SingleProcess(),
    **arguments: Any,
) -> tuple[Posterior, dict[str, Any]]:
    """Fit the table; the record says what a model file needs beyond the posterior."""
    likelihood = as_likelihood(arguments["likelihood"])
    arguments["method"] = arguments["method"] or default_method(likelihood)
    run_dir, progress, bound = (arguments.pop(name) for name in ("run_dir", "progress", "bound"))
    transform = arguments.pop("target_transform", None)
    noise_column = arguments.pop("noise_column", None)
    record = record | {"target": target, "kernel": kernel, "data": data.name, "settings": dict(arguments)}
    tree, columns = parse_kernel(kernel), columns or Selection()
    noise, mean = _value(arguments.pop("noise", None)), _value(arguments.pop("mean", None))
    record |= {} if noise_column is None else {"noise_column": noise_column}
    method, priors = arguments.pop("method"), arguments.pop("priors")
    del arguments["likelihood"]
    settings = Settings.of(arguments)
    method_named(method).check(settings, likelihood, resumable=run_dir is not None)  # before a large table is read
    rows, dates = _rows(data, target, columns, memory, processes, noise_column, tree)
    check_logarithms(data, target, rows, transform)
    model = Model(tree, rows.columns, noise, mean, priors, likelihood, bound or default_bound(method), transform)
    spec = FitSpec.of(method, model, rows, settings, resumable=run_dir is not None)
    for finding in spec.findings if processes.is_leader else ():
        print(f"integrand: {finding.sentence} {finding.remedy}", file=sys.stderr)
    overview = spec.rows.overview(settings.subsample_rows, settings.seed)
    record |= {"dates": [dataclasses.asdict(rule) for rule in dates], "ids": list(columns.ids)}
    record |= {"ranges": np.stack([overview.low, overview.high], axis=1)[:-1].tolist(), "n_rows": rows.n_rows}
    with RunStore.create(run_dir, spec, record) as store:
        return run(spec, store, progress), record


def show_prior(
    data: Path,
    target: str,
    columns: Selection,
    given: dict[str, Any],
    n_draws: int,
    seed: int,
    out: Path | None,
) -> None:
    """Print the model in both units, and quantiles of y under the priors beside those of the data."""
    if out is not None:
        check_written(out)
        check_output(out)
    tree, (noise, mean) = parse_kernel(given["kernel"]), (_value(given[name]) for name in ("noise", "mean"))
    rows, _ = _rows(data, target, columns, MEMORY, SingleProcess(), None, tree)
    likelihood, transform = as_likelihood(given["likelihood"]), given["target_transform"]
    check_logarithms(data, target, rows, transform)
    model = Model(tree, rows.columns, noise, mean, given["priors"], likelihood, target_transform=transform)
    spec = FitSpec.of("ml2" if model.likelihood == Gaussian() else "svgp", model, rows, Settings())
    print(spec.model)
    for finding in spec.findings:
        print(f"! {finding.sentence} {finding.remedy}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PriorWarning)  # printed above
        draws = prior_predictive(model, rows, n_draws=n_draws, seed=seed)
    levels = (0.05, 0.25, 0.5, 0.75, 0.95)
    print(f"\n{target:<12}" + "".join(f"{f'{p:.0%}':>10}" for p in levels))
    observed = rows.arrays()["y"] if rows.in_memory else spec.subsample[:, -1] if spec.subsample is not None else []
    if not rows.in_memory and model.target_transform is not None:
        observed = model.target_transform.original(np.asarray(observed))
    for name, numbers in (("in the data", observed), ("a priori", draws)):
        if len(numbers):
            print(f"{name:<12}" + "".join(f"{q:>10.4g}" for q in np.quantile(numbers, levels)))
    if out is not None:
        with block_writer(out) as write:
            write({f"row{i}": column for i, column in enumerate(draws.T)})


def _value(text: str | None) -> Any:
    """What --noise or --mean says: a number, a prior, or nothing."""
    return None if text is None else parse_value(text)


def _rows(
    data: Path,
    target: str,
    columns: Selection,
    memory: int,
    processes: Processes,
    noise_column: str | None,
    kernel: Kernel,
) -> tuple[RowSource, tuple[DateRule, ...]]:
    """The rows of a table. One file that fits in memory is read as a whole; else rows stay in their Parquet files."""
    several, parquet = data.is_dir() or glob.has_magic(str(data)), data.suffix in PARQUET
    if processes.size > 1 and not several and not parquet:
        raise InputError(f"{data}: several processes read Parquet files, of which each takes its part: convert it")
    if (several or processes.size > 1) and columns.chooses:
        raise InputError("--features, --drop, --id and --dates are for one file and one process: choose columns before")
    if several or (parquet and not columns.chooses and (processes.size > 1 or data.exists())):
        named = {key: levels for key, levels in kernel.category_levels().items() if isinstance(key, str)}
        opened: dict[str, Any] = {"memory": memory, "processes": processes, "noise_column": noise_column}
        try:
            rows = open_rows(data, target, categories=named, **opened)
        except InputError as error:
            found = re.search(r"column '(.*)' is not numeric", str(error))
            if several or found is None:
                raise
            raise InputError(f"{data}: {found[0]}: {leave_out(found[1])}") from None
        if several or processes.size > 1 or 8 * rows.n_rows * (rows.n_columns + 2) > memory:
            return rows, ()
    return chosen_rows(data, target, columns, noise_column, kernel.category_levels())


def chosen_rows(
    data: Path,
    target: str,
    columns: Selection,
    noise_column: str | None,
    categories: Mapping[int | str, Sequence[str] | None],
) -> tuple[ArrayRows, tuple[DateRule, ...]]:
    """The rows of a table in memory, with their known noise, and how dates became numbers."""
    table, v = read_table(data, columns.sep), None
    if noise_column is not None:
        if noise_column in (target, *columns.features, *columns.ids, *columns.drop):
            raise InputError(f"--noise-column {noise_column}: this column is the target or under another flag")
        v = table.variances(noise_column)
        columns = dataclasses.replace(columns, drop=(*columns.drop, noise_column))
    chosen = table.choose(target, columns, categories)
    say(chosen.remarks)
    return ArrayRows(chosen.X, chosen.y, chosen.names, noise_variance=v, levels=chosen.levels), chosen.dates


def check_logarithms(data: Path, target: str, rows: RowSource, transform: str | None) -> None:
    """Refuse rows in memory whose target has no logarithm, where the transform takes one; others when they are read."""
    made = as_transform(transform)
    if made is not None and made.of_log and rows.in_memory:
        try:
            logarithms(rows.arrays()["y"], f"column {target!r}", lambda row: f"{data}, row {row + 1}")
        except InputError as error:
            text = str(error).replace("this target_transform", f"--target-transform {made.name}")
            raise InputError(text.replace("the target_transform sinh", "--target-transform sinh")) from None


def resume_run(
    run_dir: Path, changes: dict[str, Any], progress: bool, processes: Processes = SingleProcess()
) -> tuple[Posterior, dict[str, Any]]:
    """Go on with a run under changed settings (None: unchanged), and the record that `fit_table` left there."""
    with RunStore.open(run_dir, processes) as store:
        record = processes.on_leader(lambda: _record(run_dir, store)) or {}
    wanted = {name: value for name, value in changes.items() if value is not None}
    record |= {"settings": record.get("settings", {}) | wanted}
    return resume(run_dir, progress=progress, processes=processes, **wanted), record


def _record(run_dir: Path, store: RunStore) -> dict[str, Any]:
    record = store.header.get("record") or {}
    if "target" not in record:
        raise InputError(f"{run_dir} was not made by `integrand fit`: resume it with integrand.resume in Python")
    return record


def flag_words(*commands: Callable) -> Callable[[str], str]:
    """Put remedies into the words of these commands: `n_inducing=200` becomes `--inducing 200`.

    A setting without a flag of its own becomes `--set name=value`; what only Python has is left as it is.
    """
    flags = {name: flag for command in commands for name, flag in flags_of(command).items()}
    settings = {field.name for field in dataclasses.fields(Settings)} if "more" in flags else set()

    def flag(match: re.Match[str]) -> str:
        name, value = match["name"], match["value"]
        if name in flags:
            return f"`{flags[name]}`" if value is None else "`{} {}`".format(flags[name], value.strip('"'))
        if name in settings:
            return f"`--set {name}=...`" if value is None else f"`--set {name}={value}`"
        return f"{match[0]} (in Python)" if name in _PYTHON_ONLY else match[0]

    return lambda remedy: re.sub(r"`(?P<name>[A-Za-z_]+)(=(?P<value>[^`]*))?`", flag, remedy)


def flags_of(command: Callable) -> dict[str, str]:
    """The flags of a command by the names of what they set in Python."""
    flags = {}
    for name, parameter in signature(command).parameters.items():
        declared = [d for m in getattr(parameter.annotation, "__metadata__", ()) for d in m.param_decls or ()]
        named = next((d for d in declared if d.startswith("--")), "--" + name.replace("_", "-"))
        flags[_PARAMETERS.get(name, name)] = named
    return flags


def in_flags(message: str, command: Callable) -> str:
    """A message of the library with flags of the command in the place of parameters: `n_inducing must be ...`."""
    name, space, rest = flag_words(command)(message).partition(" ")
    return (flags_of(command).get(name, name) if rest.startswith("must ") else name) + space + rest


def parsed_settings(texts: list[str] | None, command: Callable) -> dict[str, Any]:
    """Settings given as name=value; values are JSON, or else text."""
    settings, flags = {}, flags_of(command)
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set {text}: write name=value, such as --set target_accept=0.9")
        if name in flags:
            raise InputError(f"--set {text}: this has a flag of its own, {flags[name]}")
        try:
            settings[name] = json.loads(value)
        except json.JSONDecodeError:
            settings[name] = value
    return settings


def finish_fit(
    posterior: Posterior, record: dict[str, Any], out: Path, strict: bool, as_json: bool, words: Callable[[str], str]
) -> None:
    """Save the model whatever the verdict, say how it went, and exit 3 or 130 if that was asked for or happened."""
    save_model(
        posterior,
        out,
        feature_ranges=np.array(record["ranges"]),
        target_name=record["target"],
        settings=record["settings"] | {"kernel": record["kernel"]},
        extra={name: record[name] for name in ("data", "n_rows", "dates", "ids", "noise_column") if name in record},
    )
    verdict = posterior.verdict
    said = "Optimised." if verdict is None else verdict.text(words)
    facts = fit_facts(posterior, out, words) | {"rows": record["n_rows"], "columns": list(posterior.model.columns)}
    emit(as_json, facts, f"{_fitted_on(record, posterior)}\n{said}\nWritten to {out}")
    if verdict is not None and "interrupted" in verdict.codes:
        raise typer.Exit(130)
    if strict and verdict is not None and not verdict.ok:
        print("integrand: not converged (--strict)", file=sys.stderr)
        raise typer.Exit(3)


def _fitted_on(record: dict[str, Any], posterior: Posterior) -> str:
    """A line on the rows and columns of a fit, and on the rows since."""
    dates = {rule["column"]: str(DateRule(**rule)) for rule in record.get("dates", ())}
    names = [dates.get(name, name) for name in posterior.model.columns]
    shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    since = 0 if posterior.updates is None else posterior.updates.n_rows
    rows = f"{record['n_rows'] - since:,}".replace(",", " ") + (" row" if record["n_rows"] - since == 1 else " rows")
    more = f"; updated with {counted(since, 'row')}" if since else ""
    return f"Fitted on {rows}, {counted(len(names), 'column')}: {shown}{more}"


def fit_facts(posterior: Posterior, out: Path, words: Callable[[str], str] = str) -> dict[str, Any]:
    """A fit as JSON."""
    facts: dict[str, Any] = {"model": str(out), "method": posterior.method, "ok": True, "codes": []}
    if METHODS[posterior.method].collapsed:
        facts["bound"] = posterior.model.bound
    if posterior.model.target_transform is not None:
        facts["target_transform"] = posterior.model.target_transform.name
    if posterior.verdict is not None:
        facts |= {
            "ok": posterior.verdict.ok,
            "codes": list(posterior.verdict.codes),
            "verdict": posterior.verdict.text(words),
            "findings": [
                f._asdict() | {"remedy": words(f.remedy), "about": about}
                for about, found in (("draws", posterior.verdict.on_draws), ("model", posterior.verdict.on_model))
                for f in found
            ],
        }
    if posterior.sparseness is not None:
        facts["sparseness"] = {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in posterior.sparseness._asdict().items()
        }
    if posterior.verdict is not None and posterior.verdict.sampled:
        numbers = posterior.verdict.convergence
        facts |= {
            "r_hat": float(numbers.r_hat.max()),
            "ess_bulk": float(numbers.ess_bulk.min()),
            "ess_tail": float(numbers.ess_tail.min()),
            "divergences": posterior.verdict.divergences,
        }
    names = posterior.model.names
    flat = posterior.inferred_in_original_units(posterior.theta)
    means = np.concatenate([v.mean(axis=(0, 1)).reshape(-1) for v in flat.values()]) if flat else np.zeros(0)
    facts["hyperparameters"] = dict(zip(names, map(float, means), strict=True))
    facts["fixed"] = {v.name: float(v.original) for v in values(posterior.model) if v.fixed}
    if posterior.evidence is not None:
        facts["log_evidence"], facts["log_evidence_error"] = posterior.evidence
        facts["log_evidence_is_bound"] = posterior.evidence_is_bound
    facts["seconds"] = dict(posterior.seconds)
    facts["counts"] = dict(posterior.counts)
    return facts


def predict_table(
    model: Path, data: Path, out: Path | None, quantiles: str, samples: int, seed: int, sep: str | None
) -> None:
    """Predictions for each row of a table, in blocks of rows, behind the columns that name the rows."""
    levels = _levels(quantiles)
    if samples < 0:
        raise InputError(f"--samples must not be negative, not {samples}")
    if out is not None:
        check_written(out)
        check_output(out)
    saved, rng = _loaded(model), np.random.default_rng(seed)
    outside: list[np.ndarray] = []
    unknown: dict[str, int] = {}
    names, known = [*saved.feature_names], saved.extra.get("noise_column")
    if known and known not in column_names(data, sep):
        without = "sd_y and the quantiles are without the known noise"
        print(f"integrand: {data} has no column {known!r}: {without}", file=sys.stderr)
        known = None

    def predicted(block: TableBlock) -> dict[str, np.ndarray]:
        X = block.X[:, : len(names)]
        outside.append(saved.posterior.outside(X) > 1.0)
        for name, count in unknown_rows(X, saved.posterior.model.levels, names).items():
            unknown[name] = unknown.get(name, 0) + count
        return block.ids | _predict(saved, X, levels, samples, rng, block.X[:, -1] if known else None)

    ids = (saved.extra or {}).get("ids", ())
    wanted = [*names, known] if known else names
    categories = _category_levels(saved)
    blocks = map(
        predicted, table_blocks(data, wanted, _ROWS_AT_ONCE, dates=_dates(saved), ids=ids, sep=sep, levels=categories)
    )
    if out is not None:
        with block_writer(out) as write:
            for block in blocks:
                write(block)
    else:
        import pandas as pd

        for i, block in enumerate(blocks):
            pd.DataFrame(block).to_csv(sys.stdout, index=False, header=i == 0)
    if outside and (text := outside_text(np.concatenate(outside), saved.feature_names)):
        print(f"integrand: {text}", file=sys.stderr)
    for name, count in unknown.items():
        text = f"{counted(count, 'row')} of categories that the fit did not know, in {name}: predicted by the prior"
        print(f"integrand: {text}", file=sys.stderr)


def _loaded(model: Path) -> SavedModel:
    """A model file; a table in its place is named."""
    if model.is_file() and model.name.lower().endswith(WRITTEN):
        raise InputError(f"{model} is a table, not a model file: the model comes first, as in predict MODEL {model}")
    return load_model(model)


def _category_levels(saved: SavedModel) -> dict[str, tuple[str, ...]]:
    """The levels of the columns that hold categories, by name."""
    return {saved.feature_names[i]: levels for i, levels in saved.posterior.model.levels.items()}


def _predict(
    saved: SavedModel, X: np.ndarray, levels: list[float], samples: int, rng: np.random.Generator, known: Any
) -> dict[str, np.ndarray]:
    y = saved.posterior.predict(X, include_noise=True, noise_variance=known)
    columns = {"mean": y.mean, "sd_f": y.latent().sd, "sd_y": y.sd}
    if levels:
        columns |= {f"q{p:g}": q for p, q in zip(levels, y.quantile(np.array(levels)), strict=True)}
    if samples:
        columns |= {f"s{i}": draw for i, draw in enumerate(y.sample(rng, samples))}
    return columns


def _levels(text: str) -> list[float]:
    try:
        levels = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"--quantiles {text!r}: give numbers such as 0.05,0.5,0.95") from None
    return checked_levels(levels, "--quantiles").tolist()


def _dates(saved: SavedModel) -> list[DateRule]:
    """How the dates of a table become what the model was fitted to."""
    return [DateRule(**rule) for rule in (saved.extra or {}).get("dates", ())]


def _with_target(
    saved: SavedModel, data: Path, target: str | None, sep: str | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Inputs, target, and the known noise variance of each row if the model was fitted with one."""
    table = read_table(data, sep)
    name = target or saved.target_name
    if name is None:
        raise InputError("the model does not say what it predicts: give --target")
    if name in (saved.feature_names or ()):
        raise InputError(f"--target {name}: this column is an input of the model: leave --target out, or name another")
    known = saved.extra.get("noise_column")
    v = None if known is None else table.variances(known)
    return table.columns(saved.feature_names, _dates(saved), _category_levels(saved)), table.target(name), v


def update_table(
    model: Path,
    data: Path,
    target: str | None,
    old_rows: Path | None,
    sep: str | None,
    out: Path,
    progress: bool,
    words: Callable[[str], str],
) -> tuple[Posterior, SavedModel, int]:
    """A model with the new rows of a table, what its file held, and how many rows are new."""
    check_output(out)
    saved = _loaded(model)
    fields = {field.name for field in dataclasses.fields(Settings)}
    settings = {name: value for name, value in saved.settings.items() if name in fields}
    X, y, v = _with_target(saved, data, target, sep)
    old: Any = old_rows
    if old_rows is not None and not old_rows.is_dir():
        old = tuple(a for a in _with_target(saved, old_rows, target, sep) if a is not None)
    try:
        posterior = update(saved.posterior, X, y, noise_variance=v, old_rows=old, progress=progress, **settings)
    except UnreliableWeightsError as error:
        raise UnreliableWeightsError(_in_words(str(error), words)) from None
    return posterior, saved, len(y)


def finish_update(
    posterior: Posterior,
    saved: SavedModel,
    n_rows: int,
    out: Path,
    as_json: bool,
    words: Callable[[str], str],
) -> None:
    """Save the updated model and say how it went."""
    total = saved.extra.get("n_rows")
    extra = saved.extra if total is None else saved.extra | {"n_rows": total + n_rows}
    save_model(posterior, out, target_name=saved.target_name, settings=saved.settings, extra=extra)
    verdict, updates = posterior.verdict, posterior.updates
    said = "Optimised." if verdict is None else _in_words(verdict.text(), words)
    facts = fit_facts(posterior, out, words) | {"new_rows": n_rows, "fitted_again": updates is None}
    if updates is not None:
        facts |= {"k_hat": None if updates.too_few else updates.k_hat, "effective_draws": updates.effective}
    done = f"{posterior.notes[-1]}\n" if updates is None else ""
    done += f"{_fitted_on(extra, posterior)}\n" if "n_rows" in extra else ""
    emit(as_json, facts, f"{done}{said}\nWritten to {out}")


def _in_words(text: str, words: Callable[[str], str]) -> str:
    """A text that names `integrand.update` and its parameters, for the command line."""
    return words(text).replace("`integrand.update`", "`integrand update`")


def evaluate_table(model: Path, data: Path, target: str | None, joint: bool, sep: str | None) -> dict[str, float]:
    """Metrics of a model on a table with the target; `joint` adds the density of all rows together."""
    saved = _loaded(model)
    X, y, v = _with_target(saved, data, target, sep)
    total: dict[str, float] = {}
    for i in range(0, len(y), _ROWS_AT_ONCE):  # every metric but the joint one is a mean over rows
        block = slice(i, i + _ROWS_AT_ONCE)
        known = None if v is None else v[block]
        predictive = saved.posterior.predict(X[block], include_noise=True, noise_variance=known)
        scores = evaluate(predictive.mixture(), y[block])
        scores["rmse"] = scores["rmse"] ** 2
        for name, value in scores.items():
            total[name] = total.get(name, 0.0) + float(value) * len(y[block]) / len(y)
    total["rmse"] = float(np.sqrt(total["rmse"]))
    if joint:
        densities = saved.posterior.predict(X, include_noise=True, noise_variance=v).joint_log_density(y)
        total["joint_nlpd"] = float(joint_nlpd(densities, len(y)))
    return total


def leave_one_out_table(model: Path, data: Path, target: str | None, sep: str | None) -> LeaveOneOut:
    """Leave-one-out of a model, from the table that it was fitted to."""
    saved = _loaded(model)
    return saved.posterior.loo(*_with_target(saved, data, target, sep))


def write_model_report(
    model: Path, data: Path | None, target: str | None, out: Path, sep: str | None, words: Callable[[str], str]
) -> None:
    """The HTML report of a saved model."""
    from integrand.report import write_report

    check_output(out)
    saved = _loaded(model)
    rows = None if data is None else _with_target(saved, data, target, sep)
    n_rows = (saved.extra or {}).get("n_rows")
    name = target or saved.target_name or "y"
    try:
        how = {"n_rows": n_rows, "settings": saved.settings, "words": lambda text: _in_words(text, words)}
        write_report(out, saved.posterior, data=rows, target=name, **how)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}") from error
