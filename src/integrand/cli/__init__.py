"""The command line: `integrand demo | fit | resume | predict | evaluate | report | compare | methods | reproduce`."""
