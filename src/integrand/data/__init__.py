"""Rows in, sums out: datasets, scaling, splits and named data sets."""
