"""`python -m integrand.cli`."""

from integrand.cli import main

main()
