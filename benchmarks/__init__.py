"""Drivers of the benchmarks: speed and memory of this library, and comparisons with other packages."""
