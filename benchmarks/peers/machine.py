"""Facts of the machine and of the packages that a reader needs to judge numbers, and nothing that names the machine."""

import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def machine() -> dict[str, str]:
    """Processor, cores, memory, system and Python; no host name."""
    facts = {"cores allowed": str(len(os.sched_getaffinity(0)))}
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        facts = {"processor": models[0] if models else platform.machine()} | facts
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return facts | {"memory": f"{memory:.0f} GB", "system": platform.system(), "Python": platform.python_version()}


def revision(root: Path) -> str:
    """The commit that was measured."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def versions(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Packages by contestant's worker, as the workers themselves reported them."""
    found: dict[str, set[str]] = {}
    for row in rows:
        for package, version in row.get("result", {}).get("versions", {}).items():
            found.setdefault(package, set()).add(version)
    return {package: " / ".join(sorted(found[package])) for package in sorted(found)}


def commits(rows: Iterable[dict[str, Any]]) -> str:
    """Those that were measured: pieces of a run may be of several."""
    return ", ".join(sorted({row["commit"] for row in rows if "commit" in row})) or "-"


def load(rows: Iterable[dict[str, Any]]) -> str:
    """The load of the machine in the minute before a job: near 1 on a machine that does nothing else."""
    found = sorted(row["load"] for row in rows if "load" in row)
    return f"median {found[len(found) // 2]:.1f}, most {found[-1]:.1f}" if found else "-"


def dates(rows: Iterable[dict[str, Any]]) -> str:
    """First and last day of measuring."""
    days = sorted({row["when"][:10] for row in rows if "when" in row})
    return "-" if not days else days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
