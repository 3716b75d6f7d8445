"""The name that `integrand.estimators` had before; it goes with the next version."""

import importlib
import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    value = getattr(importlib.import_module("integrand.estimators"), name)
    advice = f"write from integrand.estimators import {name}"
    warnings.warn(f"integrand.estimator is now integrand.estimators: {advice}", DeprecationWarning, stacklevel=2)
    return value
