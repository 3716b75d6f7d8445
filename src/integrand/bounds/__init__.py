"""Bounds on log p(y | θ) as pure functions of a GP, inducing inputs and data."""
