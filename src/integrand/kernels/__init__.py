"""Covariance functions as immutable trees."""

from integrand.kernels.base import Kernel, Product, Sum
from integrand.kernels.linear import Constant, Linear, Polynomial
from integrand.kernels.stationary import RBF, Matern12, Matern32, Matern52, Periodic, RationalQuadratic

__all__ = [
    "RBF",
    "Constant",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Polynomial",
    "Product",
    "RationalQuadratic",
    "Sum",
]
