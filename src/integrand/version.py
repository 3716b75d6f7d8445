"""The version, in a file of its own that every room may import."""

__version__ = "0.1.0"
