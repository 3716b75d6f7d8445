"""`python -m integrand.cli`."""

from integrand.cli.app import main

main()
