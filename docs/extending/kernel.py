"""A kernel to copy: Cauchy, whose correlations fall like a power of the distance.

A stationary kernel says how its covariance depends on e = -r²/2, where r is the distance in units of the lengthscales.
`StationaryKernel` brings the fields `lengthscale` and `scale`, active columns, names and gradients. Another kernel
derives from `LeafKernel` and writes `__call__`, `gram` and `diagonal`, as `Linear` in `integrand/kernels/linear.py`.

The decorator is all that it takes to save, load, resume and name the kernel:

    fit(X, y, Cauchy() + Linear())
    integrand fit table.csv --target y --out model.integrand --import mykernels --kernel "cauchy + linear"

`covariance` needs a finite derivative at e = 0. Take roots by `distance_root`, and set `kinked = True` for a kernel
with a kink there, as the Matérn kernels in `integrand/kernels/stationary.py` do.

`hyperparameter(default=...)` takes the prior of a field that the user leaves out. It is one such as
`LogNormal(0.0, 0.5)`, or a function of the number of columns that returns one: `lambda n_columns: Gamma(2.0, 1.0)`.
The default is for standardised data, in which y and each column have a standard deviation of one. What a user writes is
in the units of the data: declare `unit="x"` or `unit="y"` for a field that has one.

Import this module before you load a file that uses the kernel. `tests/contracts/test_kernels.py` runs the contract of
the library's kernels and of this one.
"""

from typing import Any

from integrand import LogNormal, register_kernel
from integrand.kernels import StationaryKernel, hyperparameter


@register_kernel
class Cauchy(StationaryKernel):
    """scale² / (1 + r²/2)^power."""

    # Its prior if the user gives none. The unit of a number without one is "1", which is the default.
    power: Any = hyperparameter(default=LogNormal(0.0, 0.5))

    def covariance(self, e):
        """scale² (1 - e)^(-power), for an array of exponents e = -r²/2."""
        return self.scale**2 * (1.0 - e) ** -self.power
