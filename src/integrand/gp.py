"""A Gaussian process whose hyperparameters are all numbers."""

from typing import Any, NamedTuple

from integrand.errors import InputError
from integrand.kernels.base import Kernel

# A log density below this is that of a transform far from all use: its gradient would leave the range of numbers.
LEAST_TRANSFORMED = -1e30

# The collapsed bounds: that of Titsias (2009), which the paper has, and the tighter one of Titsias (2025).
BOUNDS = ("titsias", "tight")


class GP(NamedTuple):
    """y = f(x) + ε with f ~ GP(mean, kernel) and ε ~ N(0, noise²); the paper's equation (1) has mean 0.

    The bounds take one of these.
    """

    kernel: Kernel
    noise: Any  # standard deviation of the observations
    mean: Any = 0.0  # the constant that f varies around
    transform: Any = None  # g of a transformed target, g(y) = f(x) + ε; None leaves y as it is

    def residuals(self, y: Any) -> Any:
        """y - mean, or g(y) - mean."""
        return (y if self.transform is None else self.transform(y)) - self.mean


def check_bound(name: str) -> str:
    """The name of a collapsed bound, as it is."""
    if name not in BOUNDS:
        raise InputError(f"bound must be one of {', '.join(BOUNDS)}, not {name!r}")
    return name
