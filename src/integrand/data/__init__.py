"""Rows in, sums out: datasets and scaling."""
