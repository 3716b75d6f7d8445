"""What commands print on standard output."""

import json
import math
from typing import Any


def emit(as_json: bool, facts: dict[str, Any], text: str) -> None:
    """Print facts as one JSON object, or text for people."""
    print(json.dumps(_plain(facts), allow_nan=False) if as_json else text)


def _plain(value: Any) -> Any:
    """JSON has no NaN or infinity: null stands for them."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
