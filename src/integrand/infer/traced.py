"""A log density in a form that JAX can trace, for samplers whose loop runs inside XLA."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Traced(NamedTuple):
    """log_prior(x, data) and log_likelihood(x, data), apart because nested sampling needs both; their sum is sampled.

    The functions are hashable and stay the same for equal models, and `data` (a pytree of arrays) is handed to them as
    an argument, so that compiled programs are found again for other data of the same shape.
    """

    log_prior: Callable[[Any, Any], Any]
    log_likelihood: Callable[[Any, Any], Any]
    data: Any
