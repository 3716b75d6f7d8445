"""What holds for the package as a whole: no flags changed, quick to import, and nothing from outside."""

import ast
import os
import re
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
HEAVY = ("matplotlib", "arviz", "nutpie", "sklearn", "pandas", "blackjax", "typer")


def run(code):
    """Output of a fresh interpreter, without the tests' hooks."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- the user's process stays as it was

FLAGS = """
import threading
import jax
import numpy as np

def thread_state():
    context = {name: getattr(jax.config, name) for name in jax.config.values if hasattr(jax.config, name)}
    return context, str(jax.numpy.zeros(1).dtype)

before, before_here = dict(jax.config.values), thread_state()
assert before_here[1] == "float32"
import os
environment = dict(os.environ)

import integrand as ig

def call():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 2))
    y = np.sin(X[:, 0])
    data = ig.Dataset.of(X, y, 8)
    gp = ig.GP(ig.RBF(1.0, 1.0), 0.1)
    Z = X[:5]
    results = [
        ig.collapsed_bound(gp, Z, data),
        ig.upper_bound(gp, Z, data),
        ig.log_marginal_likelihood(gp, X, y),
    ]
    assert all(r.dtype == "float64" for r in results), [r.dtype for r in results]
    try:
        ig.Dataset.of(X, y[:3])
    except ig.InputError:
        pass

seen = []
def in_thread():
    try:
        state = thread_state()
        call()
        seen.append((state, thread_state()))
    except BaseException as error:
        seen.append(error)

call()
threads = [threading.Thread(target=in_thread) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

assert len(seen) == 2
for entry in seen:
    if isinstance(entry, BaseException):
        raise entry
    assert entry[0] == entry[1] == before_here
assert thread_state() == before_here
changed = {k for k in before | jax.config.values if before.get(k, "new") != jax.config.values.get(k, "gone")}
assert not changed, changed
assert dict(os.environ) == environment
print("unchanged")
"""


def test_importing_and_calling_leaves_every_jax_flag_as_it_was():
    assert run(FLAGS).strip() == "unchanged"


@pytest.mark.slow
def test_the_flags_of_a_user_with_float64_stay_too():
    code = """
import jax
jax.config.update("jax_enable_x64", True)
before = dict(jax.config.values)
import numpy as np, integrand as ig
X = np.random.default_rng(0).standard_normal((30, 2))
ig.collapsed_bound(ig.GP(ig.RBF(1.0, 1.0), 0.1), X[:3], ig.Dataset.of(X, X[:, 0]))
assert dict(jax.config.values) == before and jax.numpy.zeros(1).dtype == "float64"
"""
    run(code)


# ---- importing


def test_import_pulls_in_nothing_heavy():
    code = "import sys; from integrand import RBF, Gamma; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = set(run(code).split())
    assert "jax" in loaded
    assert not loaded & {*HEAVY, "numpyro"}


@pytest.mark.slow
def test_import_takes_at_most_three_times_as_long_as_jax():
    def seconds(statement):  # of the processor: others may use it, too
        return float(run(f"import time; {statement}; print(time.process_time())"))

    pairs = [(seconds("import jax"), seconds("from integrand import RBF, Gamma")) for _ in range(3)]
    assert statistics.median(ours / jax for jax, ours in pairs) <= 3.0


def test_every_public_name_exists():
    import integrand

    assert sorted(integrand.__all__) == sorted(set(integrand.__all__))
    assert all(hasattr(integrand, name) for name in integrand.__all__)


def test_version_is_that_of_the_project():
    import integrand

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert integrand.__version__ == project["version"]


# ---- what the library does without; the direction of its own imports is in `architecture/test_direction.py`


def test_the_library_needs_neither_the_experiments_nor_the_benchmarks():
    outside = {}
    for path in sorted((SOURCE / "integrand").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(module.split(".")[0] in ("experiments", "benchmarks", "results") for module in modules):
                outside[path.name] = modules
    assert not outside


# ---- files


def test_no_paths_of_a_machine_in_tracked_files():
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git work tree")
    own = re.compile(r"(?<![\w.])/(?:home|Users|root|work)/\w")
    guilty = []
    for name in filter(None, listing.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and path.stat().st_size < 5_000_000:
            text = path.read_bytes().decode("utf-8", errors="ignore")
            guilty += [f"{name}: {match[0]}" for match in own.finditer(text)]
    assert not guilty


def test_dir_lists_every_name():
    import integrand

    assert set(integrand.__all__) <= set(dir(integrand))
    assert {"SparseGPRegressor", "plot"} <= set(dir(integrand))
