"""What commands share: options by name, and errors as one line with an exit code.

What commands print on standard output.
"""

import functools
import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from integrand.data.tables import Selection
from integrand.errors import DistributedError, InputError, IntegrandError
from integrand.files import plain

Data = Annotated[Path, typer.Argument(help="CSV, gzip CSV or Parquet file", show_default=False)]


Rows = Annotated[
    Path,
    typer.Argument(help="CSV, gzip CSV or Parquet file, or many: a directory or a pattern", show_default=False),
]


Target = Annotated[str, typer.Option("--target", help="column to predict")]


Kernel = Annotated[
    str,
    typer.Option(
        help="names, + and *, fields in the units of the columns: \"rbf(active='temp') + periodic(period=1)*rbf\""
    ),
]


Noise = Annotated[str | None, typer.Option(help="standard deviation in the units of y, or a prior: 'at_most(0.5)'")]


Mean = Annotated[
    str | None, typer.Option(help="level of the function in the units of y, or a prior; default: the mean of y")
]


Priors = Annotated[str, typer.Option(help="of what is left open: paper, scaled or pooled (docs/guides/priors.md)")]


Likelihood = Annotated[str, typer.Option(help="gaussian, student-t, bernoulli or poisson")]


NoiseColumn = Annotated[
    str | None,
    typer.Option("--noise-column", help="column with the known variance of each row's noise, in squared units of y"),
]


Transform = Annotated[
    str | None, typer.Option(help="for a skewed target: log or box-cox (positive numbers alone), or sinh-arcsinh")
]


AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]


Seed = Annotated[int, typer.Option("--seed", help="same seed, same result (of a fit that was not interrupted)")]


Features = Annotated[
    list[str] | None, typer.Option("--features", help="columns to use, comma-separated or repeated; default: all")
]


Drop = Annotated[list[str] | None, typer.Option("--drop", help="columns to leave out, comma-separated or repeated")]


Ids = Annotated[
    list[str] | None, typer.Option("--id", help="columns that name the rows: no inputs, kept in predictions")
]


Dates = Annotated[
    list[str] | None,
    typer.Option("--dates", help="columns of dates, each as name or name:unit; days since the first date by default"),
]


Sep = Annotated[
    str | None, typer.Option("--sep", help="what separates columns of a CSV file; default: seen in its first lines")
]


def selection(
    features: list[str] | None,
    drop: list[str] | None,
    ids: list[str] | None,
    dates: list[str] | None,
    sep: str | None,
    kernel_flag: str = "--kernel",
) -> Selection:
    """The columns that the flags choose."""

    def names(values: list[str] | None) -> tuple[str, ...]:
        return tuple(name.strip() for value in values or () for name in value.split(",") if name.strip())

    return Selection(names(features), names(drop), names(ids), names(dates), sep, kernel_flag)


def import_modules(names: list[str] | None) -> None:
    """Import modules, by name or as a file such as `mykernels.py`, from the working directory or where Python looks."""
    for name in names or ():
        module = name.removesuffix(".py")
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise InputError(f"--import {name}: it needs the module {error.name!r}, which is not there") from error
            raise InputError(f"--import {name}: there is no module {module!r} here or in Python's path") from None
        except IntegrandError:
            raise
        except Exception as error:
            raise InputError(f"--import {name}: {type(error).__name__}: {error}") from error


Import = Annotated[
    list[str] | None,
    typer.Option("--import", help="module with kernels, priors or likelihoods of yours, such as mykernels; repeatable"),
]


Distributed = Annotated[bool, typer.Option("--distributed", help="fit with other processes (docs/guides/many-rows.md)")]


Coordinator = Annotated[
    str | None, typer.Option(help="address of rank 0, such as node1:7800; default: INTEGRAND_COORDINATOR, or detected")
]


Processes = Annotated[int | None, typer.Option(help="how many there are; default: INTEGRAND_PROCESSES, or detected")]


Rank = Annotated[int | None, typer.Option(help="which one this is, from 0; default: INTEGRAND_RANK, or detected")]


Timeout = Annotated[float, typer.Option(help="seconds of silence after which another process is given up")]


def inducing_points(text: str) -> int | str:
    """`--inducing`: a number, or auto."""
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--inducing must be a whole number or auto, not {text!r}") from None


def guarded(function: Callable, words: Callable[[str], str] = str) -> Callable:
    """Turn the library's errors into one line on standard error and exit code 2, or 4 for the loss of a process.

    `words` puts a message into the words of the command.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # verdicts are printed, not warned of
                return function(*args, **kwargs)
        except DistributedError as error:
            from integrand.cli.supervisor import LOST, leave

            print(f"integrand: {error}", file=sys.stderr)
            leave(LOST)
        except IntegrandError as error:
            from integrand.cli.supervisor import leave
            from integrand.data.processes import leave_with_error

            print(f"integrand: {words(str(error))}", file=sys.stderr)
            if leave_with_error(str(error)):
                leave(2)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            print("integrand: interrupted", file=sys.stderr)
            raise typer.Exit(130) from None

    return wrapped


Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="another setting of `integrand.fit`, such as target_accept=0.9; repeatable"),
]


def say(remarks: Iterable[str]) -> None:
    """Print what is worth saying on the way, on standard error."""
    for remark in remarks:
        print(f"integrand: {remark}", file=sys.stderr, flush=True)


def emit(as_json: bool, facts: dict[str, Any], text: str) -> None:
    """Print facts as one JSON object, or text for people."""
    print(json.dumps(plain(facts), allow_nan=False) if as_json else text)
