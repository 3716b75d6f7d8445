"""Kernels: covariance functions as immutable trees of named parts."""

from integrand.kernels.base import Kernel, LeafKernel, Product, Sum, hyperparameter
from integrand.kernels.categorical import Categorical
from integrand.kernels.linear import Constant, Linear, Polynomial
from integrand.kernels.registry import kernel_named, parse_kernel, parse_value, register_kernel, registered_kernels
from integrand.kernels.stationary import (
    RBF,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    StationaryKernel,
    distance_root,
)

__all__ = [
    "RBF",
    "Categorical",
    "Constant",
    "Kernel",
    "LeafKernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Polynomial",
    "Product",
    "RationalQuadratic",
    "StationaryKernel",
    "Sum",
    "distance_root",
    "hyperparameter",
    "kernel_named",
    "parse_kernel",
    "parse_value",
    "register_kernel",
    "registered_kernels",
]
