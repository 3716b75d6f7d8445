"""Results as JSON can hold them."""

import math
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Dictionaries, lists, text and numbers only. JSON has no NaN or infinity: null stands for them."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
