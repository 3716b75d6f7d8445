"""The tutorials run, and the README's example is the first of them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


# The README's example, below, is the first of them in short.
@pytest.mark.parametrize("name", [pytest.param("first_fit", marks=pytest.mark.slow), "composite_kernel"])
def test_tutorial_runs_and_converges(name):
    script = ROOT / "docs" / "tutorials" / f"{name}.py"
    result = subprocess.run([sys.executable, "-W", "error::UserWarning", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "Converged" in result.stdout


def test_readme_shows_what_its_example_prints(tmp_path):
    section = (ROOT / "README.md").read_text().split("## A first fit")[1]
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", section, re.S)[:2]
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    # The verdict's numbers depend on the processor's rounding; what was predicted does not, to a unit.
    assert result.stdout.startswith("Converged: R-hat at most 1.0")
    shown, seen = (re.findall(r"\d+\.\d*", text.split("divergences.")[1]) for text in (printed, result.stdout))
    assert len(shown) == len(seen) > 10
    assert all(abs(float(a) - float(b)) < 3.0 for a, b in zip(shown, seen, strict=True))
