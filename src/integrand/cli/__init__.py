"""The command line: `integrand demo | fit | resume | predict | evaluate | report | compare | methods`."""

import sys

from integrand.errors import MissingPackageError, need


def main() -> None:
    """Entry point of the `integrand` command."""
    try:
        need("typer", "cli", "the command line")
    except MissingPackageError as error:
        print(f"integrand: {error}", file=sys.stderr)
        sys.exit(2)
    from integrand.cli.app import app

    app()
