"""What commands share: options by name, and errors as one line with an exit code."""

import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from integrand.errors import DistributedError, IntegrandError

Data = Annotated[Path, typer.Argument(help="CSV, gzip CSV or Parquet file", show_default=False)]
Rows = Annotated[
    Path,
    typer.Argument(help="CSV, gzip CSV or Parquet file, or many: a directory or a pattern", show_default=False),
]
Target = Annotated[str, typer.Option("--target", help="column to predict")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]
Seed = Annotated[int, typer.Option("--seed", help="same seed, same result (of a fit that was not interrupted)")]


Distributed = Annotated[bool, typer.Option("--distributed", help="fit with other processes (docs/scale.md)")]
Coordinator = Annotated[
    str | None, typer.Option(help="address of rank 0, such as node1:7800; default: INTEGRAND_COORDINATOR, or detected")
]
Processes = Annotated[int | None, typer.Option(help="how many there are; default: INTEGRAND_PROCESSES, or detected")]
Rank = Annotated[int | None, typer.Option(help="which one this is, from 0; default: INTEGRAND_RANK, or detected")]
Timeout = Annotated[float, typer.Option(help="seconds of silence after which another process is given up")]


def guarded(function: Callable) -> Callable:
    """Turn the library's errors into one line on standard error and exit code 2, or 4 for the loss of a process."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # verdicts are printed, not warned of
                return function(*args, **kwargs)
        except DistributedError as error:
            from integrand.cli.together import LOST, leave

            print(f"integrand: {error}", file=sys.stderr)
            leave(LOST)
        except IntegrandError as error:
            from integrand.cli.together import leave
            from integrand.distributed.ranks import leave_together

            print(f"integrand: {error}", file=sys.stderr)
            if leave_together(str(error)):
                leave(2)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            print("integrand: interrupted", file=sys.stderr)
            raise typer.Exit(130) from None

    return wrapped
