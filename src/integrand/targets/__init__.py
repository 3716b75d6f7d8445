"""Log densities over the unconstrained hyperparameters φ (and u or Z), compiled once for each model and shape."""

from integrand.compilation import compile_seconds, trace_counts
from integrand.infer.base import Counter
from integrand.targets.collapsed import BoundWithPosterior, CollapsedTarget
from integrand.targets.evaluation import Evaluation, density, gp_at, likelihood, penalised
from integrand.targets.exact import ExactTarget
from integrand.targets.joint import JointTarget

__all__ = [
    "BoundWithPosterior",
    "CollapsedTarget",
    "Counter",
    "Evaluation",
    "ExactTarget",
    "JointTarget",
    "compile_seconds",
    "density",
    "gp_at",
    "likelihood",
    "penalised",
    "trace_counts",
]
