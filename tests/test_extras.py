"""A small core, and extras that are named when something of them is missing; what the wheel holds."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

import integrand
from integrand import MissingPackageError
from integrand.data.parquet import open_rows
from integrand.data.tables import read_table
from integrand.errors import import_quietly
from integrand.infer.blackjax_kernels import kernel_named

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONAL = ("nutpie", "blackjax", "arviz", "matplotlib", "typer", "rich", "pandas", "pyarrow", "xarray", "polars")


def names(requirements):
    return {re.split(r"[<>=\[ ]", text)[0] for text in requirements}


def test_all_is_every_extra():
    extras = PROJECT["optional-dependencies"]
    assert set(extras) == {"samplers", "report", "cli", "arrow", "all"}
    (everything,) = extras["all"]
    assert set(re.findall(r"\w+", everything.partition("[")[2])) == set(extras) - {"all"}


def test_what_is_in_an_extra_is_not_in_the_core():
    extras = [names(requirements) for name, requirements in PROJECT["optional-dependencies"].items() if name != "all"]
    assert not names(PROJECT["dependencies"]) & set().union(*extras)


@pytest.mark.slow
def test_the_core_fits_predicts_and_saves_alone(tmp_path):
    code = f"""
import sys
sys.modules.update(dict.fromkeys({OPTIONAL}))  # as if they were not installed
import numpy as np
from integrand import SparseGPRegressor

x = np.random.default_rng(0).uniform(0.0, 1.0, (30, 1))
y = np.sin(6.0 * x[:, 0]) + 0.1 * np.random.default_rng(1).standard_normal(30)
gp = SparseGPRegressor(n_inducing=6, chains=2, target_ess=20, random_state=0, progress=True).fit(x, y)
gp.save("model.integrand")
mean, sd = SparseGPRegressor.load("model.integrand").predict(x, return_std=True)
assert abs(mean - y).max() < 1.0 and gp.posterior_.verdict is not None
print("done")
"""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert run.stdout == "done\n", run.stderr


@pytest.fixture
def without(monkeypatch):
    return lambda package: monkeypatch.setitem(sys.modules, package, None)


X = np.linspace(0.0, 1.0, 12)[:, None]


@pytest.mark.parametrize(
    ("package", "extra", "settings"),
    [
        ("nutpie", "samplers", {"sampler": "nuts"}),
        ("nutpie", "samplers", {"method": "joint-hmc"}),
        ("nutpie", "samplers", {"method": "fbgp"}),
        ("nutpie", "samplers", {"schedule": "paper"}),
        ("nutpie", "samplers", {"subsample": True, "subsample_rows": 8}),
        ("blackjax", "samplers", {"sampler": "slice"}),
        ("blackjax", "samplers", {"method": "bsgp"}),
    ],
)
def test_a_sampler_that_is_missing_is_named_before_the_fit(package, extra, settings, without):
    without(package)
    with pytest.raises(MissingPackageError, match=rf"needs the package {package}: pip install 'integrand\[{extra}\]'$"):
        integrand.fit(X, np.sin(X[:, 0]), n_inducing=3, progress=Unreached(), **settings)


class Unreached(integrand.progress.Silent):
    def phase(self, name):
        raise AssertionError(f"the fit has begun: {name}")


def test_files_that_need_an_extra(tmp_path, without):
    (tmp_path / "rows.csv").write_text("a,y\n1,2\n3,4\n")
    (tmp_path / "rows.parquet").write_bytes(b"")
    without("pyarrow")
    for read in (lambda path: open_rows(path, target="y"), read_table):
        with pytest.raises(MissingPackageError, match=r"rows.parquet needs the package pyarrow.*integrand\[arrow\]"):
            read(tmp_path / "rows.parquet")
    without("pandas")
    with pytest.raises(MissingPackageError, match=r"integrand\[cli\]"):
        read_table(tmp_path / "rows.csv")


def test_kernels_of_blackjax(without):
    without("blackjax")
    with pytest.raises(MissingPackageError, match=r"the sampler mala needs the package blackjax"):
        kernel_named.__wrapped__("mala")


@pytest.mark.parametrize(
    ("package", "code", "message"),
    [
        ("matplotlib", "import integrand.report", "a report needs the package matplotlib: "),
        ("typer", "from integrand.cli import main; main()", "integrand: the command line needs the package typer: "),
    ],
)
def test_the_last_line_names_the_extra(package, code, message):
    code = f"import sys; sys.modules[{package!r}] = None; {code}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode != 0
    assert message in run.stderr.splitlines()[-1]
    assert "pip install 'integrand[" in run.stderr.splitlines()[-1]
    if package == "typer":
        assert len(run.stderr.splitlines()) == 1


# --- the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


def test_the_wheel_is_small_and_holds_only_the_library(wheel):
    assert wheel.stat().st_size < 1_000_000
    files = zipfile.ZipFile(wheel).namelist()
    info = f"integrand-{integrand.__version__}.dist-info"
    assert {name.split("/")[0] for name in files} == {"integrand", info}
    assert {Path(name).suffix for name in files if name.startswith("integrand/")} == {".py", ".css", ".typed"}
    assert not [name for name in files if "experiments" in name or "benchmarks" in name or "test" in name]


@pytest.mark.slow
def test_the_wheel_runs_the_first_example_in_an_empty_environment(wheel, tmp_path):
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## A first fit")[1]
    code = re.findall(r"```python\n(.*?)```", section, re.S)[0]
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "empty"], check=True)
    python = tmp_path / "empty" / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", wheel], check=True)
    run = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("Converged: ")
    installed = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout.lower()
    assert not names(installed.splitlines()) & set(OPTIONAL)


def test_a_package_that_fails_on_its_first_import_of_a_day_is_imported_again(tmp_path, monkeypatch):
    """As ArviZ 0.x does when another process writes the same file at the same moment."""
    stamp = tmp_path / "stamp"
    fails_once = "if not p.exists():\n    p.touch(); p.with_name('gone').stat()"
    code = f"import pathlib; p = pathlib.Path({str(stamp)!r})\n{fails_once}"
    (tmp_path / "announces_itself.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert import_quietly("announces_itself").p == stamp
