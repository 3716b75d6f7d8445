"""Fully Bayesian sparse Gaussian process regression: optimise or integrate?

Importing this package changes no JAX flag (only `join` does, to make several processes one) and loads neither
matplotlib, ArviZ nor nutpie.
"""

import importlib
from typing import TYPE_CHECKING, Any

from integrand.bounds.collapsed import collapsed_bound
from integrand.bounds.exact import log_marginal_likelihood
from integrand.bounds.upper import upper_bound
from integrand.data.dataset import Dataset
from integrand.data.disk import MappedRows, open_rows
from integrand.distributed.ranks import join
from integrand.errors import (
    ConvergenceWarning,
    DataSourceError,
    DistributedError,
    InputError,
    IntegrandError,
    ModelFileError,
    NotConvergedError,
    NumericalError,
    RunDirectoryError,
)
from integrand.gp import GP
from integrand.kernels import (
    RBF,
    Constant,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    RationalQuadratic,
)
from integrand.linalg import Jitter
from integrand.methods.fitting import fit, resume
from integrand.methods.table import METHODS
from integrand.model import Model
from integrand.posterior.modelfile import load_model, save_model
from integrand.posterior.posterior import Posterior
from integrand.priors import (
    Beta,
    Exponential,
    Gamma,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    LogNormal,
    Normal,
    PooledInverseGamma,
    Prior,
    StudentT,
    Uniform,
    Weibull,
    on_variance,
)
from integrand.version import __version__

if TYPE_CHECKING:
    from integrand.classifier import SparseGPClassifier
    from integrand.estimator import SparseGPRegressor

__all__ = [
    "GP",
    "METHODS",
    "RBF",
    "Beta",
    "Constant",
    "ConvergenceWarning",
    "DataSourceError",
    "Dataset",
    "DistributedError",
    "Exponential",
    "Gamma",
    "HalfCauchy",
    "HalfNormal",
    "InputError",
    "IntegrandError",
    "InverseGamma",
    "Jitter",
    "Kernel",
    "Linear",
    "LogNormal",
    "MappedRows",
    "Matern12",
    "Matern32",
    "Matern52",
    "Model",
    "ModelFileError",
    "Normal",
    "NotConvergedError",
    "NumericalError",
    "Periodic",
    "Polynomial",
    "PooledInverseGamma",
    "Posterior",
    "Prior",
    "RationalQuadratic",
    "RunDirectoryError",
    "SparseGPClassifier",
    "SparseGPRegressor",
    "StudentT",
    "Uniform",
    "Weibull",
    "__version__",
    "collapsed_bound",
    "fit",
    "join",
    "load_model",
    "log_marginal_likelihood",
    "on_variance",
    "open_rows",
    "resume",
    "save_model",
    "upper_bound",
]


def __getattr__(name: str) -> Any:
    """The estimators on first use: they bring scikit-learn, which nothing else here needs."""
    homes = {"SparseGPClassifier": "classifier", "SparseGPRegressor": "estimator"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(f"integrand.{homes[name]}"), name)
    return globals()[name]
