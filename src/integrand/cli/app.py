"""The commands of `integrand`, with their flags and exit codes.

Exit codes: 0 ok, 2 the user's mistake (one line), 3 not converged under --strict, 4 another process was lost under
--distributed, 130 interrupted.
"""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from integrand.cli.options import (
    AsJson,
    Coordinator,
    Data,
    Dates,
    Distributed,
    Drop,
    Features,
    Ids,
    Import,
    Kernel,
    Likelihood,
    Mean,
    Noise,
    NoiseColumn,
    Priors,
    Processes,
    Rank,
    Rows,
    Seed,
    Sep,
    Set,
    Target,
    Timeout,
    Transform,
    emit,
    guarded,
    import_modules,
    inducing_points,
    selection,
)
from integrand.errors import InputError
from integrand.priors import DEFAULT

app = typer.Typer(
    help="Fully Bayesian sparse Gaussian process regression: optimise or integrate?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from integrand.version import __version__

        print(f"integrand {__version__}")
        raise typer.Exit()


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version and stop")
    ] = False,
) -> None:
    pass


def command(function: Callable) -> Callable:
    """A command whose mistakes of the user are one line, which names its flags."""

    def words(message: str) -> str:
        from integrand.cli.commands import in_flags

        return in_flags(message, function)

    return app.command()(guarded(function, words))


@command
def fit(
    data: Rows,
    target: Target,
    out: Annotated[Path, typer.Option("--out", help="the model file to write, exactly this path")],
    features: Features = None,
    drop: Drop = None,
    ids: Ids = None,
    dates: Dates = None,
    sep: Sep = None,
    method: Annotated[
        str | None,
        typer.Option(help="see `integrand methods`; default: sgpr-hmc, or joint-hmc where the likelihood needs it"),
    ] = None,
    sampler: Annotated[
        str, typer.Option(help="default, nuts, hmc, mala, metropolis, slice, nested or sghmc; see `integrand methods`")
    ] = "default",
    likelihood: Likelihood = "gaussian",
    kernel: Kernel = "rbf",
    noise: Noise = None,
    mean: Mean = None,
    modules: Import = None,
    priors: Priors = DEFAULT,
    bound: Annotated[
        str | None, typer.Option(help="collapsed bound: titsias or tight; default: that of the method")
    ] = None,
    target_transform: Transform = None,
    inducing: Annotated[str, typer.Option(help="number of inducing points, or auto: the fit chooses")] = "100",
    max_inducing: Annotated[int, typer.Option(help="inducing points of `--inducing auto` at most")] = 500,
    chains: Annotated[int, typer.Option(help="chains")] = 4,
    target_ess: Annotated[float, typer.Option(help="effective sample size to reach")] = 400.0,
    max_minutes: Annotated[float | None, typer.Option(help="stop drawing after this many minutes")] = None,
    max_draws: Annotated[int, typer.Option(help="draws of each chain at most")] = 5_000,
    seed: Seed = 0,
    more: Set = None,
    strict: Annotated[bool, typer.Option("--strict", help="exit code 3 unless it converged")] = False,
    run_dir: Annotated[Path | None, typer.Option(help="keep state here, for `integrand resume`")] = None,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress bars")] = False,
    noise_column: NoiseColumn = None,
    memory: Annotated[
        int, typer.Option(help="MB that the rows may take; a larger Parquet table is read at every pass")
    ] = 1024,
    distributed: Distributed = False,
    coordinator: Coordinator = None,
    processes: Processes = None,
    rank: Rank = None,
    timeout: Timeout = 300.0,
) -> None:
    """Fit a GP to a table and write a model file."""
    from integrand.cli.commands import finish_fit, fit_table, flag_words, parsed_settings
    from integrand.cli.supervisor import Joining, joined

    import_modules(modules)
    group = joined(out, Joining(coordinator, processes, rank, timeout) if distributed else None)
    posterior, record = fit_table(
        data,
        target,
        columns=selection(features, drop, ids, dates, sep),
        noise_column=noise_column,
        memory=memory * 2**20,
        processes=group,
        method=method,
        sampler=sampler,
        likelihood=likelihood,
        kernel=kernel,
        noise=noise,
        mean=mean,
        priors=priors,
        bound=bound,
        target_transform=target_transform,
        run_dir=run_dir,
        progress=not (quiet or as_json),
        record={"out": str(out.resolve())},
        n_inducing=inducing_points(inducing),
        max_inducing=max_inducing,
        chains=chains,
        target_ess=target_ess,
        max_minutes=max_minutes,
        max_draws=max_draws,
        seed=seed,
        **parsed_settings(more, fit),
    )
    group.leave()
    if group.is_leader:
        finish_fit(posterior, record, out, strict, as_json, flag_words(fit))


@command
def prior(
    data: Rows,
    target: Target,
    features: Features = None,
    drop: Drop = None,
    ids: Ids = None,
    dates: Dates = None,
    sep: Sep = None,
    kernel: Kernel = "rbf",
    noise: Noise = None,
    mean: Mean = None,
    priors: Priors = DEFAULT,
    likelihood: Likelihood = "gaussian",
    target_transform: Transform = None,
    draws: Annotated[int, typer.Option(help="draws from the priors")] = 200,
    out: Annotated[Path | None, typer.Option("--out", help="CSV or Parquet file for the draws, a row for each")] = None,
    seed: Seed = 0,
    modules: Import = None,
) -> None:
    """Show the priors in both units, and what they say of y before the fit."""
    from integrand.cli.commands import show_prior

    import_modules(modules)
    columns = selection(features, drop, ids, dates, sep)
    given = {"kernel": kernel, "noise": noise, "mean": mean, "priors": priors, "likelihood": likelihood}
    given |= {"target_transform": target_transform}
    show_prior(data, target, columns, given, draws, seed, out)


@command
def methods(as_json: AsJson = False) -> None:
    """List the methods: what each does, its samplers, and whether it takes other likelihoods than Gaussian noise."""
    from integrand.methods.table import METHODS

    facts = {
        name: {
            "summary": m.summary,
            "samplers": list(m.samplers) if m.draws else [],
            "any_likelihood": m.any_likelihood,
        }
        for name, m in METHODS.items()
    }
    lines = []
    for name, m in METHODS.items():
        lines.append(f"{name:<18} {m.summary}" + (" (the default)" if name == "sgpr-hmc" else ""))
        more = [f"samplers {', '.join(m.samplers)}"] if len(m.samplers) > 1 else []
        more += ["any likelihood"] if m.any_likelihood else []
        lines += [f"{'':<18}   {'; '.join(more)}"] if more else []
    emit(as_json, facts, "\n".join(lines))


@command
def resume(
    run_dir: Annotated[Path, typer.Argument(help="run directory of an interrupted fit", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", help="model file; default: that of the fit")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="stop drawing after this many minutes")] = None,
    max_draws: Annotated[int | None, typer.Option(help="draws of each chain at most, those on disk included")] = None,
    target_ess: Annotated[float | None, typer.Option(help="effective sample size to reach")] = None,
    modules: Import = None,
    strict: Annotated[bool, typer.Option("--strict", help="exit code 3 unless it converged")] = False,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress bars")] = False,
    distributed: Distributed = False,
    coordinator: Coordinator = None,
    processes: Processes = None,
    rank: Rank = None,
    timeout: Timeout = 300.0,
) -> None:
    """Go on with a fit that was interrupted, killed, or ended by its budget; settings are those of the fit."""
    from integrand.cli.commands import finish_fit, flag_words, resume_run
    from integrand.cli.supervisor import Joining, joined

    import_modules(modules)
    group = joined(out, Joining(coordinator, processes, rank, timeout) if distributed else None)
    changes = {"max_minutes": max_minutes, "max_draws": max_draws, "target_ess": target_ess}
    posterior, record = resume_run(run_dir, changes, not (quiet or as_json), group)
    group.leave()
    if group.is_leader:
        finish_fit(posterior, record, Path(out or record["out"]), strict, as_json, flag_words(fit))


@command
def update(
    model: Annotated[Path, typer.Argument(help="model file", show_default=False)],
    data: Annotated[Path, typer.Argument(help="table with the new rows alone", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="the model file to write, exactly this path")],
    target: Annotated[str | None, typer.Option("--target", help="column of y; default: that of the fit")] = None,
    old_rows: Annotated[
        Path | None,
        typer.Option(help="all rows so far, a table or the run directory of the fit: for a new fit if weights fail"),
    ] = None,
    sep: Sep = None,
    modules: Import = None,
    as_json: AsJson = False,
) -> None:
    """Condition a model on new rows, without the old ones, and say whether its draws can still be trusted."""
    from integrand.cli.commands import finish_update, flag_words, update_table

    import_modules(modules)
    words = flag_words(fit, update)
    posterior, saved, n_rows = update_table(model, data, target, old_rows, sep, out, not as_json, words)
    finish_update(posterior, saved, n_rows, out, as_json, words)


@command
def predict(
    model: Annotated[Path, typer.Argument(help="model file", show_default=False)],
    data: Data,
    out: Annotated[
        Path | None, typer.Option("--out", help="CSV or Parquet file; default: CSV on standard output")
    ] = None,
    quantiles: Annotated[str, typer.Option(help="comma-separated, such as 0.05,0.5,0.95")] = "0.05,0.5,0.95",
    samples: Annotated[int, typer.Option(help="also this many draws of y for each row")] = 0,
    sep: Sep = None,
    seed: Annotated[int, typer.Option("--seed", help="of the draws of --samples")] = 0,
    modules: Import = None,
) -> None:
    """Predict: mean, standard deviation of f and of y, and quantiles of y, for each row."""
    from integrand.cli.commands import predict_table

    import_modules(modules)
    predict_table(model, data, out, quantiles, samples, seed, sep)


@command
def evaluate(
    model: Annotated[Path, typer.Argument(help="model file", show_default=False)],
    data: Data,
    target: Annotated[
        str | None, typer.Option("--target", help="column to compare with; default: that of the fit")
    ] = None,
    joint: Annotated[
        bool, typer.Option("--joint", help="also the density of all rows together, as in the paper (slow)")
    ] = False,
    sep: Sep = None,
    loo: Annotated[
        bool, typer.Option("--loo", help="the rows are those of the fit: also score each one from the others")
    ] = False,
    modules: Import = None,
    as_json: AsJson = False,
) -> None:
    """Compare predictions with what was observed: rmse, nlpd, crps, coverage."""
    from integrand.cli.commands import evaluate_table, leave_one_out_table

    import_modules(modules)
    facts = evaluate_table(model, data, target, joint, sep)
    text = "\n".join(f"{name:<14} {value:10.4f}" for name, value in facts.items())
    if loo:
        result = leave_one_out_table(model, data, target, sep)
        facts, text = facts | {"loo": result.facts()}, f"{text}\n\n{result}"
    emit(as_json, facts, text)


@command
def report(
    model: Annotated[Path, typer.Argument(help="model file", show_default=False)],
    data: Annotated[Path | None, typer.Option("--data", help="table with the target, for calibration")] = None,
    target: Annotated[str | None, typer.Option("--target", help="default: that of the fit")] = None,
    out: Annotated[Path, typer.Option("--out", help="HTML file to write")] = Path("report.html"),
    sep: Sep = None,
    modules: Import = None,
) -> None:
    """Write a self-contained HTML report of a fitted model."""
    from integrand.cli.commands import flag_words, write_model_report

    import_modules(modules)
    write_model_report(model, data, target, out, sep, flag_words(fit, update))
    print(out)


@command
def compare(
    data: Data,
    target: Target,
    methods: Annotated[
        str | None,
        typer.Option(
            help="comma-separated; the first is the one to beat; default: ml2,map,sgpr-hmc, or svgp,joint-hmc where "
            "the likelihood needs it"
        ),
    ] = None,
    likelihood: Likelihood = "gaussian",
    kernels: Annotated[
        str, typer.Option(help="rank kernels by leave-one-out: 'rbf, matern32, rbf + periodic*rbf'")
    ] = "",
    priors: Annotated[str, typer.Option(help="rank presets of priors by leave-one-out: 'paper, pooled'")] = "",
    bound: Annotated[
        str | None, typer.Option(help="collapsed bound: titsias or tight; default: that of the method")
    ] = None,
    target_transform: Transform = None,
    folds: Annotated[int, typer.Option(help="folds of the cross-validation")] = 5,
    inducing: Annotated[int, typer.Option(help="number of inducing points")] = 100,
    target_ess: Annotated[float, typer.Option(help="effective sample size to reach")] = 400.0,
    max_minutes: Annotated[float | None, typer.Option(help="minutes for each fit")] = None,
    features: Features = None,
    drop: Drop = None,
    ids: Ids = None,
    dates: Dates = None,
    sep: Sep = None,
    noise_column: NoiseColumn = None,
    seed: Seed = 0,
    modules: Import = None,
    as_json: AsJson = False,
) -> None:
    """Optimise or integrate? Which kernel, which priors? Answer in a sentence.

    Methods are cross-validated. Kernels and priors are ranked by leave-one-out, with one fit for each.
    """
    from integrand.cli.compare import ToCompare, compare_models, compare_table

    import_modules(modules)
    columns = selection(features, drop, ids, dates, sep, kernel_flag="--kernels")
    settings = {"n_inducing": inducing, "target_ess": target_ess, "max_minutes": max_minutes, "seed": seed}
    model = {"bound": bound, "target_transform": target_transform}
    table = ToCompare(data, target, columns, noise_column, likelihood, settings, model)
    if kernels or priors:
        facts, text = compare_models(table, kernels, priors, methods)
    else:
        facts, text = compare_table(table, methods, folds)
    emit(as_json, facts, text)


@command
def demo(
    out: Annotated[Path, typer.Option("--out", help="directory for the model and the report")] = Path("integrand-demo"),
    quick: Annotated[bool, typer.Option("--quick", help="fewer inducing points and draws")] = False,
) -> None:
    """Fit an embedded data set by ML-II and by integration, compare them, and write a report."""
    from integrand.cli.demo import run_demo

    run_demo(out, quick)


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@guarded
def reproduce(context: typer.Context) -> None:
    """Say where the paper's experiments are now: outside the installed library."""
    again = shlex.join(["python", "-m", "experiments", *context.args])
    raise InputError(f"`reproduce` is not part of the installed library; in a clone of its repository run: {again}")
