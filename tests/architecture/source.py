"""The source as a graph: its modules, and which of them each one imports."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"


def module_name(path: Path) -> str:
    """The dotted name of a file in `src`."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((SOURCE / "integrand").rglob("*.py"))}


def imports_of(path: Path, modules: dict[str, Path]) -> set[str]:
    """Modules of this library that a file imports, at its top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner in modules else node.module or "")
    return names & set(modules)


def import_graph(modules: dict[str, Path]) -> dict[str, set[str]]:
    """The imports of each module."""
    return {name: imports_of(path, modules) for name, path in modules.items()}
