"""Fully Bayesian sparse Gaussian process regression: optimise or integrate?

Importing this package changes no JAX flag and loads neither matplotlib, ArviZ nor nutpie.
"""

from integrand.bounds.collapsed import collapsed_bound
from integrand.bounds.exact import log_marginal_likelihood
from integrand.bounds.upper import upper_bound
from integrand.data.dataset import Dataset
from integrand.errors import (
    DataSourceError,
    InputError,
    IntegrandError,
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
from integrand.model import Model
from integrand.priors import (
    Beta,
    Exponential,
    Gamma,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    LogNormal,
    Normal,
    Prior,
    StudentT,
    Uniform,
    Weibull,
    on_variance,
)

__version__ = "0.1.0"

__all__ = [
    "GP",
    "RBF",
    "Beta",
    "Constant",
    "DataSourceError",
    "Dataset",
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
    "Matern12",
    "Matern32",
    "Matern52",
    "Model",
    "Normal",
    "NotConvergedError",
    "NumericalError",
    "Periodic",
    "Polynomial",
    "Prior",
    "RationalQuadratic",
    "RunDirectoryError",
    "StudentT",
    "Uniform",
    "Weibull",
    "collapsed_bound",
    "log_marginal_likelihood",
    "on_variance",
    "upper_bound",
]
