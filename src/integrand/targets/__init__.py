"""Log densities over the unconstrained hyperparameters φ (and u or Z), compiled once for each model and shape."""

from integrand.targets.collapsed import CollapsedTarget, Factored
from integrand.targets.exact import ExactTarget
from integrand.targets.joint import JointTarget
from integrand.targets.program import (
    Counter,
    Evaluation,
    compile_seconds,
    density,
    gp_at,
    likelihood,
    penalised,
    traces,
)

__all__ = [
    "CollapsedTarget",
    "Counter",
    "Evaluation",
    "ExactTarget",
    "Factored",
    "JointTarget",
    "compile_seconds",
    "density",
    "gp_at",
    "likelihood",
    "penalised",
    "traces",
]
