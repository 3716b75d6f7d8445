"""Constraints that install the oldest versions that pyproject.toml allows: `python scripts/oldest.py > oldest.txt`.

Every lower bound `>=` of the library, its extras and the group `dev` becomes `==`. `make test-oldest` installs with
them and runs the default suite.
"""

import re
import tomllib
from pathlib import Path


def oldest(project: dict) -> list[str]:
    """One constraint for each requirement that has a lower bound."""
    extras = project["project"]["optional-dependencies"].values()
    lists = [project["project"]["dependencies"], *extras, project["dependency-groups"]["dev"]]
    found = (re.match(r"([\w-]+)>=([\d.]+)", requirement) for requirements in lists for requirement in requirements)
    return sorted({f"{match[1]}=={match[2]}" for match in found if match})


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    print("\n".join(oldest(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8")))))
