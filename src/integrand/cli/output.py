"""What commands print on standard output."""

import json
from typing import Any

from integrand.plain import plain


def emit(as_json: bool, facts: dict[str, Any], text: str) -> None:
    """Print facts as one JSON object, or text for people."""
    print(json.dumps(plain(facts), allow_nan=False) if as_json else text)
