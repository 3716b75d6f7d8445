"""Fully Bayesian sparse Gaussian process regression: optimise or integrate?

Importing this package changes no JAX flag (only `join` does, to make several processes one) and loads neither
matplotlib, ArviZ nor nutpie.
"""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from integrand.bounds.collapsed import collapsed_bound
from integrand.bounds.exact import log_marginal_likelihood
from integrand.bounds.upper import upper_bound
from integrand.data.dataset import Dataset
from integrand.data.parquet import open_rows
from integrand.data.processes import join
from integrand.data.sources import ArrayRows, MappedRows
from integrand.errors import (
    ConvergenceWarning,
    DataSourceError,
    DistributedError,
    ExtrapolationWarning,
    InputError,
    IntegrandError,
    KnownNoiseWarning,
    MissingPackageError,
    ModelFileError,
    NotConvergedError,
    NumericalError,
    PriorWarning,
    RunDirectoryError,
    UnknownCategoryWarning,
    UnregisteredError,
    UnreliableWeightsError,
)
from integrand.gp import GP
from integrand.kernels import (
    RBF,
    Categorical,
    Constant,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    RationalQuadratic,
    parse_kernel,
    register_kernel,
)
from integrand.likelihoods import register_likelihood
from integrand.linalg import Jitter
from integrand.methods.fit import fit, prior_predictive, resume, update
from integrand.methods.table import METHODS
from integrand.model import Model
from integrand.posterior.posterior import Posterior, compare
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
    StudentTPrior,
    Uniform,
    Weibull,
    at_least,
    at_most,
    between,
    on_variance,
    register_prior,
    rescaled,
    standardised,
)
from integrand.storage.model_file import load_model, save_model
from integrand.version import __version__

if TYPE_CHECKING:
    from integrand.estimators import SparseGPClassifier, SparseGPRegressor
    from integrand.report import plot

__all__ = [
    "GP",
    "METHODS",
    "RBF",
    "ArrayRows",
    "Beta",
    "Categorical",
    "Constant",
    "ConvergenceWarning",
    "DataSourceError",
    "Dataset",
    "DistributedError",
    "Exponential",
    "ExtrapolationWarning",
    "Gamma",
    "HalfCauchy",
    "HalfNormal",
    "InputError",
    "IntegrandError",
    "InverseGamma",
    "Jitter",
    "Kernel",
    "KnownNoiseWarning",
    "Linear",
    "LogNormal",
    "MappedRows",
    "Matern12",
    "Matern32",
    "Matern52",
    "MissingPackageError",
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
    "PriorWarning",
    "RationalQuadratic",
    "RunDirectoryError",
    "SparseGPClassifier",
    "SparseGPRegressor",
    "StudentTPrior",
    "Uniform",
    "UnknownCategoryWarning",
    "UnregisteredError",
    "UnreliableWeightsError",
    "Weibull",
    "__version__",
    "at_least",
    "at_most",
    "between",
    "collapsed_bound",
    "compare",
    "fit",
    "join",
    "load_model",
    "log_marginal_likelihood",
    "on_variance",
    "open_rows",
    "parse_kernel",
    "plot",
    "prior_predictive",
    "register_kernel",
    "register_likelihood",
    "register_prior",
    "rescaled",
    "resume",
    "save_model",
    "standardised",
    "update",
    "upper_bound",
]


# Names of earlier versions, and what to write now.
_DEPRECATED = {"StudentT": "StudentTPrior"}


# Names on first use, and their modules: they bring scikit-learn and matplotlib.
_LATER = {
    "SparseGPClassifier": "integrand.estimators",
    "SparseGPRegressor": "integrand.estimators",
    "plot": "integrand.report",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Names of `_LATER` on first use; and names of earlier versions with a warning."""
    if name in _LATER:
        globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
        return globals()[name]
    if name in _DEPRECATED:
        current = _DEPRECATED[name]
        warnings.warn(f"integrand.{name} is now integrand.{current}: write {current}", DeprecationWarning, stacklevel=2)
        return globals()[current]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
