"""A Gaussian process whose hyperparameters are all numbers."""

from typing import Any, NamedTuple

from integrand.kernels.base import Kernel


class GP(NamedTuple):
    """y = f(x) + ε with f ~ GP(mean, kernel) and ε ~ N(0, noise²); the paper's equation (1) has mean 0.

    The bounds take one of these.
    """

    kernel: Kernel
    noise: Any  # standard deviation of the observations
    mean: Any = 0.0  # the constant that f varies around
