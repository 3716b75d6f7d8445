"""The name that `integrand.storage.model_file` had before; it goes with the next version."""

import importlib
import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    value = getattr(importlib.import_module("integrand.storage.model_file"), name)
    advice = f"write from integrand.storage.model_file import {name}"
    warnings.warn(
        f"integrand.posterior.modelfile is now integrand.storage.model_file: {advice}", DeprecationWarning, stacklevel=2
    )
    return value
