"""Environments of the peers: what is there, what is made again, and what happens if one cannot be made. No network."""

import subprocess
import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
sys.path.insert(0, str(PEERS))

import install  # noqa: E402
import run  # noqa: E402
from contestants import ENVIRONMENTS  # noqa: E402


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Stands in for venv and pip: environments whose name is in `broken` fail."""
    calls, broken = [], set()

    def pretended(command, check):
        assert check
        calls.append(command)
        if "venv" in command:
            python = Path(command[-1]) / "bin" / "python"
            (python.parent.parent / ".installed").unlink(missing_ok=True)
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()
        elif Path(command[-1]).stem in broken:
            raise subprocess.CalledProcessError(7, command)

    monkeypatch.setattr(install.subprocess, "run", pretended)
    return tmp_path, calls, broken


def test_what_is_installed_is_left_alone_and_what_was_interrupted_is_made_again(made):
    venvs, calls, _ = made
    assert install.install(venvs) == []
    assert len(calls) == 2 * len(ENVIRONMENTS)
    calls.clear()
    assert install.install(venvs) == []
    assert calls == []
    (venvs / "gpjax" / ".installed").unlink()  # python is there, the end of pip was not seen
    (venvs / "pymc" / ".installed").write_text("other pins")
    assert install.install(venvs) == []
    assert [Path(c[-1]).stem for c in calls] == ["gpjax", "gpjax", "pymc", "pymc"]


def test_one_that_cannot_be_made_does_not_keep_the_others_from_it(made, monkeypatch, capsys):
    venvs, _, broken = made
    broken.add("gpflow")
    monkeypatch.setattr(sys, "argv", ["run.py", "--install", "--venvs", str(venvs)])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == "without an environment: gpflow"  # a sentence is a code that is not zero
    assert "the environment of gpflow could not be made (7)" in capsys.readouterr().err
    stamps = {path.parent.name for path in venvs.glob("*/.installed")}
    assert stamps == set(ENVIRONMENTS) - {"gpflow"}
