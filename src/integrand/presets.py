"""Named sets of priors for the fields that a kernel leaves open. Inputs and outputs are standardised."""

import math
from collections.abc import Callable

from integrand.errors import InputError
from integrand.priors import Gamma, HalfCauchy, LogNormal, Normal, PooledInverseGamma, Prior

# Each rule gives the prior of a field of a kernel that sees this many columns.
Rule = Callable[[int], Prior]

# Priors that the presets share: the paper says nothing of these fields.
_COMMON: dict[str, Rule] = {
    "scale": lambda n_columns: HalfCauchy(1.0),
    "noise": lambda n_columns: HalfCauchy(1.0),
    "alpha": lambda n_columns: LogNormal(0.0, 1.0),
    "period": lambda n_columns: LogNormal(0.0, 1.0),
    "offset": lambda n_columns: HalfCauchy(1.0),
    "mean": lambda n_columns: Normal(0.0, 1.0),
}

# What a model has if nothing else is asked for. In the suite `priors` (docs/results/README.md) it is worse than ML-II
# on none of five sets, where `paper` is on one, and converges where `scaled` does not.
DEFAULT = "pooled"

PRESETS: dict[str, dict[str, Rule]] = {
    # The paper's code block: Gamma(2, 1) on lengthscales, half-Cauchy(1) on the standard deviations.
    "paper": _COMMON | {"lengthscale": lambda n_columns: Gamma(2.0, 1.0)},
    # Hvarfner, Hellsten & Nardi (2024): lengthscales that grow with the number of columns.
    "scaled": _COMMON
    | {"lengthscale": lambda n_columns: LogNormal(math.sqrt(2.0) + 0.5 * math.log(n_columns), math.sqrt(3.0))},
    # Distances grow with the root of the number of columns; what is long among lengthscales is learned.
    "pooled": _COMMON
    | {"lengthscale": lambda n_columns: PooledInverseGamma(2.0, 2.0, 2.0 / (3.0 * math.sqrt(n_columns)))},
}


def preset_prior(preset: str, field: str, n_columns: int) -> Prior:
    """The prior that a preset gives to a field of a kernel with this many columns."""
    if preset not in PRESETS:
        raise InputError(f"there is no preset {preset!r} of priors: choose one of {', '.join(PRESETS)}")
    if field not in PRESETS[preset]:
        raise InputError(f"the preset {preset!r} has no prior for {field!r}: give a number or a prior")
    return PRESETS[preset][field](n_columns)
