"""What the commands do: tables in, models and tables out."""

import glob
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import typer

from integrand.cli.output import emit
from integrand.cli.stream import block_writer, parquet_blocks
from integrand.cli.table import Table, read_table
from integrand.data.disk import PARQUET, RowsOnDisk, open_rows
from integrand.distributed.layout import overview, own_part
from integrand.distributed.ranks import Ranks
from integrand.errors import InputError
from integrand.kernels import RBF, Matern12, Matern32, Matern52, RationalQuadratic
from integrand.likelihoods import Gaussian
from integrand.methods.fitting import MEMORY, checked_request, fit, resume
from integrand.methods.problem import Settings
from integrand.metrics import evaluate, joint_nlpd
from integrand.posterior.modelfile import SavedModel, load_model, save_model
from integrand.posterior.posterior import Posterior
from integrand.posterior.predictive import MOST_JOINT_ROWS
from integrand.posterior.storage import RunDirectory

KERNELS = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rq": RationalQuadratic,
}
# Rows whose components for 400 draws are kept between the columns of a prediction.
_ROWS_AT_ONCE = 10_000


def check_output(path: Path) -> None:
    """Refuse a place that cannot be written before hours are spent on what goes there."""
    parent = path.resolve().parent
    if path.is_dir():
        raise InputError(f"--out {path} is a directory: name a file")
    if not parent.is_dir():
        raise InputError(f"--out {path}: there is no directory {parent}")
    if not os.access(parent, os.W_OK):
        raise InputError(f"--out {path}: the directory {parent} cannot be written")


def fit_table(
    data: Path,
    target: str,
    *,
    kernel: str,
    record: dict[str, Any],
    memory: int = MEMORY,
    ranks: Ranks | None = None,
    **arguments: Any,
) -> tuple[Posterior, dict[str, Any]]:
    """Fit the table; the record says what a model file needs beyond the posterior."""
    if kernel not in KERNELS:
        raise InputError(f"there is no kernel {kernel!r}: choose from {', '.join(KERNELS)}")
    settings = {name: value for name, value in arguments.items() if name not in ("progress", "run_dir")}
    tried = {name: value for name, value in settings.items() if name not in ("method", "likelihood", "priors")}
    checked_request(arguments["method"], arguments["likelihood"], arguments["run_dir"] is not None, tried)
    record = record | {"target": target, "kernel": kernel, "data": data.name, "settings": settings}
    rows = ranks.all_or_none(lambda: _rows(data, target, memory, True)) if ranks else _rows(data, target, memory, False)
    if rows is None:
        X, y, names = read_table(data).split(target)
        record |= {"ranges": _ranges(X.min(axis=0), X.max(axis=0)), "n_rows": len(y)}
        return fit(X, y, KERNELS[kernel](), columns=names, record=record, **arguments), record
    part = own_part(rows, ranks, divided=False)
    seen = overview(part, ranks, Settings.sample_rows, arguments["seed"])
    record |= {"ranges": _ranges(seen.whole.low[:-1], seen.whole.high[:-1]), "n_rows": seen.whole.n_rows}
    arguments |= {"ranks": ranks, "memory": memory, "seen": seen}
    return fit(part, None, KERNELS[kernel](), record=record, **arguments), record


def _rows(data: Path, target: str, memory: int, distributed: bool) -> RowsOnDisk | None:
    """A table that is not to be read as a whole: for several processes, in several files, or too large for memory."""
    several = data.is_dir() or glob.has_magic(str(data))
    if not several and data.suffix not in PARQUET:
        if distributed:
            raise InputError(f"{data}: several processes read Parquet files, of which each takes its part: convert it")
        return None
    if not (several or distributed) and not data.exists():
        return None  # `read_table` has the message
    rows = open_rows(data, target)
    return rows if several or distributed or 8 * rows.n_rows * (rows.n_columns + 2) > memory else None


def _ranges(low: np.ndarray, high: np.ndarray) -> list[list[float]]:
    return [[float(a), float(b)] for a, b in zip(low, high, strict=True)]


def resume_run(
    run_dir: Path, changes: dict[str, Any], progress: bool, ranks: Ranks | None = None
) -> tuple[Posterior, dict[str, Any]]:
    """Go on with a run under changed settings (None: unchanged), and the record that `fit_table` left there."""
    record = {}
    if ranks is None or ranks.leads:
        with RunDirectory.open(run_dir) as run:
            record = run.header.get("record") or {}
        if "target" not in record:
            raise InputError(f"{run_dir} was not made by `integrand fit`: resume it with integrand.resume in Python")
    wanted = {name: value for name, value in changes.items() if value is not None}
    return resume(run_dir, progress=progress, ranks=ranks, **wanted), record


def finish_fit(posterior: Posterior, record: dict[str, Any], out: Path, strict: bool, as_json: bool) -> None:
    """Save the model whatever the verdict, say how it went, and exit 3 or 130 if that was asked for or happened."""
    save_model(
        posterior,
        out,
        feature_ranges=np.array(record["ranges"]),
        target_name=record["target"],
        settings=record["settings"] | {"kernel": record["kernel"]},
        extra={"data": record["data"], "n_rows": record["n_rows"]},
    )
    emit(as_json, fit_facts(posterior, out), f"{posterior.verdict or 'Optimised.'}\nModel: {out}")
    judged = posterior.verdict
    if judged is not None and "interrupted" in judged.codes:
        raise typer.Exit(130)
    if strict and judged is not None and not judged.ok:
        print("integrand: not converged (--strict)", file=sys.stderr)
        raise typer.Exit(3)


def fit_facts(posterior: Posterior, out: Path) -> dict[str, Any]:
    """A fit as JSON."""
    facts: dict[str, Any] = {"model": str(out), "method": posterior.method, "ok": True, "codes": []}
    if posterior.verdict is not None:
        facts |= {
            "ok": posterior.verdict.ok,
            "codes": list(posterior.verdict.codes),
            "verdict": str(posterior.verdict),
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
    flat = {p.name: posterior.theta_original[p.name] for p in posterior.model.parameters}
    means = np.concatenate([v.mean(axis=(0, 1)).reshape(-1) for v in flat.values()]) if flat else np.zeros(0)
    facts["hyperparameters"] = dict(zip(names, map(float, means), strict=True))
    if posterior.evidence is not None:
        facts["log_evidence"], facts["log_evidence_error"] = posterior.evidence
    facts["seconds"] = dict(posterior.seconds)
    facts["counts"] = dict(posterior.counts)
    return facts


def _inputs(saved: SavedModel, table: Table) -> np.ndarray:
    return table.columns(saved.posterior.model.columns)


def predict_table(model: Path, data: Path, out: Path | None, quantiles: str, samples: int, seed: int) -> None:
    """Predictions for each row of a table, in blocks of rows."""
    levels = _levels(quantiles)
    if samples < 0:
        raise InputError(f"--samples must not be negative, not {samples}")
    if out is not None:
        check_output(out)
    saved, rng = load_model(model), np.random.default_rng(seed)
    blocks = (_predict(saved, X, levels, samples, rng) for X in _input_blocks(saved, data))
    if out is not None:
        with block_writer(out) as write:
            for block in blocks:
                write(block)
    else:
        import pandas as pd

        for i, block in enumerate(blocks):
            pd.DataFrame(block).to_csv(sys.stdout, index=False, header=i == 0)


def _input_blocks(saved: SavedModel, data: Path) -> Iterator[np.ndarray]:
    """The inputs of a table, a block of rows at a time; Parquet is read that way, too."""
    if data.suffix in PARQUET and data.is_file():
        yield from parquet_blocks(data, saved.posterior.model.columns, _ROWS_AT_ONCE)
        return
    X = _inputs(saved, read_table(data))
    for i in range(0, len(X), _ROWS_AT_ONCE):
        yield X[i : i + _ROWS_AT_ONCE]


def _predict(saved: SavedModel, X: np.ndarray, levels: list[float], samples: int, rng) -> dict[str, np.ndarray]:
    y = saved.posterior.predict(X, include_noise=True)
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
    if any(not 0.0 < p < 1.0 for p in levels):
        raise InputError(f"--quantiles {text!r}: each must lie between 0 and 1")
    return levels


def _with_target(saved: SavedModel, data: Path, target: str | None) -> tuple[np.ndarray, np.ndarray]:
    table = read_table(data)
    name = target or saved.target_name
    if name is None:
        raise InputError("the model does not say what it predicts: give --target")
    return _inputs(saved, table), table.columns([name])[:, 0]


def evaluate_table(model: Path, data: Path, target: str | None) -> dict[str, float]:
    """Metrics of a model on a table with the target."""
    saved = load_model(model)
    X, y = _with_target(saved, data, target)
    total: dict[str, float] = {}
    for i in range(0, len(y), _ROWS_AT_ONCE):  # every metric but the joint one is a mean over rows
        block = slice(i, i + _ROWS_AT_ONCE)
        scores = evaluate(saved.posterior.predict(X[block], include_noise=True).mixture(), y[block])
        scores["rmse"] = scores["rmse"] ** 2
        for name, value in scores.items():
            total[name] = total.get(name, 0.0) + float(value) * len(y[block]) / len(y)
    total["rmse"] = float(np.sqrt(total["rmse"]))
    if len(y) <= MOST_JOINT_ROWS and isinstance(saved.posterior.model.likelihood, Gaussian):
        joint = saved.posterior.predict(X, include_noise=True).joint_log_density(y)
        total["joint_nlpd"] = float(joint_nlpd(joint, len(y)))
    else:
        total["joint_nlpd"] = float("nan")  # too many rows for one covariance, or no closed form
    return total


def write_model_report(model: Path, data: Path | None, target: str | None, out: Path) -> None:
    """The HTML report of a saved model."""
    from integrand.report.html import write_report

    check_output(out)
    saved = load_model(model)
    rows = None if data is None else _with_target(saved, data, target)
    n_rows = (saved.extra or {}).get("n_rows")
    name = target or saved.target_name or "y"
    try:
        write_report(out, saved.posterior, data=rows, target=name, n_rows=n_rows, settings=saved.settings)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}") from error
