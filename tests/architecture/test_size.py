"""What a reader has to hold in mind: files, parameters, and the files that one fit runs through."""

import ast
import json
import subprocess
import sys

from source import MODULES, ROOT

MAX_FILES = 138
MAX_PARAMETERS, MAX_LONG_SIGNATURES = 8, 7
MAX_FILES_OF_A_FIT = 52


def long_signatures(code: str) -> list[str]:
    """Functions with more than MAX_PARAMETERS parameters, without `self` and `cls`."""
    names = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            a = node.args
            parameters = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
            if len([p for p in parameters if p.arg not in ("self", "cls")]) > MAX_PARAMETERS:
                names.append(node.name)
    return names


def test_files():
    assert len(MODULES) <= MAX_FILES


def test_few_functions_have_many_parameters():
    found = [(m, name) for m, path in MODULES.items() for name in long_signatures(path.read_text(encoding="utf-8"))]
    assert len(found) <= MAX_LONG_SIGNATURES, found


def test_a_long_signature_would_be_seen():
    assert long_signatures("def f(self, a, b, c, d, e, *f, g, **h): ...") == []
    assert long_signatures("def f(a, b, c, d, e, *f, g, h, **i): ...") == ["f"]


def test_a_default_fit_runs_through_few_files():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "trace_fit.py"), "--json"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout)["files"]
    assert "methods/sgpr_hmc.py" in files
    assert len(files) <= MAX_FILES_OF_A_FIT, files
