"""What experiments and benchmark drivers import from the library exists. Most of them import inside functions."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted([*(ROOT / "experiments").glob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])


def imported(path):
    """(module, name) of each import from the library; name is None where a module is imported."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == "integrand")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "integrand":
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_import_from_the_library_exists(path):
    for module, name in imported(path):
        assert name is None or hasattr(importlib.import_module(module), name), f"{module} has no {name}"
