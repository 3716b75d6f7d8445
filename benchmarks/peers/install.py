"""Make the peers' environments, each from its requirement file."""

import subprocess
import sys
from pathlib import Path

from contestants import ENVIRONMENTS

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"


def install(venvs: Path) -> list[str]:
    """Make what is missing, was not finished or has other pins by now; returns those that could not be made."""
    failed = []
    for name in ENVIRONMENTS:
        requirements, python = REQUIREMENTS / f"{name}.txt", venvs / name / "bin" / "python"
        stamp, wanted = venvs / name / ".installed", requirements.read_text()
        # The stamp is written last: an environment without it is one that was interrupted.
        if python.exists() and stamp.exists() and stamp.read_text() == wanted:
            continue
        print(f"making the environment of {name}", flush=True)
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(venvs / name)], check=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "-r", str(requirements)], check=True)
            stamp.write_text(wanted)
        except (subprocess.CalledProcessError, OSError) as error:
            code = getattr(error, "returncode", type(error).__name__)
            print(f"the environment of {name} could not be made ({code}): what it prints is above", file=sys.stderr)
            failed.append(name)
    return failed
