"""Facts of the machine and of the packages that a reader needs to judge numbers, and nothing that names the machine."""

import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from contestants import CONTESTANTS
from neighbours import is_busy
from plan import UNTIMED

UNKNOWN = "unknown"


def machine() -> dict[str, str]:
    """Processor, cores, memory, system and Python; no host name."""
    facts = {"cores allowed": str(len(os.sched_getaffinity(0)))}
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        facts = {"processor": processor_named(cpuinfo.read_text())} | facts
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return facts | {"memory": f"{memory:.0f} GB", "system": platform.system(), "Python": platform.python_version()}


def processor_named(cpuinfo: str) -> str:
    """Name, family and model of the first processor: virtual machines of several generations share a name."""
    known: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        known.setdefault(key.strip(), value.strip())
    numbers = ", ".join(
        f"{word} {known[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in known
    )
    return known.get("model name", platform.machine()) + (f" ({numbers})" if numbers else "")


def sources(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Where and when the rows of each measure were made: processors, first and last minute, commits."""
    by_measure: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_measure.setdefault(row["job"]["measure"], []).append(row)
    return {measure: _source(some) for measure, some in by_measure.items()}


def _source(rows: list[dict[str, Any]]) -> str:
    where = " / ".join(sorted({row.get("processor", UNKNOWN) for row in rows}))
    times = sorted(row["when"] for row in rows if "when" in row)
    span = f"{times[0]} to {times[-1]} (UTC)" if times else UNKNOWN
    return f"{where}; {span}; {commits(rows)}"


def revision(root: Path) -> str:
    """The commit that was measured; `-dirty` if the library or its benchmarks are not as it has them."""

    def said(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = said("status", "--porcelain", "--", "src", "benchmarks")
        return said("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN


def versions(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Packages of each environment, as the workers themselves reported them."""
    found: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        packages = found.setdefault(CONTESTANTS[row["job"]["contestant"]].environment, {})
        for package, version in row.get("result", {}).get("versions", {}).items():
            packages.setdefault(package, set()).add(version)
    return {
        environment: ", ".join(f"{package} {' / '.join(sorted(seen))}" for package, seen in packages.items())
        for environment, packages in sorted(found.items())
        if packages
    }


def busy(rows: Iterable[dict[str, Any]]) -> str:
    """How many rows that ended well have such neighbours; those that nobody times do not count."""
    timed = [row for row in rows if row.get("job", {}).get("measure") not in UNTIMED]
    told = [row for row in timed if row["status"] == "done" and row.get("others") is not None]
    if not told:
        return "-"
    found = [row for row in told if is_busy(row)]
    if not found:
        return f"none of {len(told)} rows was made on a busy machine"
    made = "1 row was" if len(found) == 1 else f"{len(found)} rows were"
    most = max(row["others"] for row in found)
    which = ", ".join(row["job"]["key"] for row in found)
    return f"**{made} made on a busy machine** (of {len(told)}; others kept up to {most:.1f} cores busy): {which}"


def commits(rows: Iterable[dict[str, Any]]) -> str:
    """Those that were measured: pieces of a run may be of several."""
    return ", ".join(sorted({row["commit"] for row in rows if "commit" in row})) or "-"


def dates(rows: Iterable[dict[str, Any]]) -> str:
    """First and last day of measuring."""
    days = sorted({row["when"][:10] for row in rows if "when" in row})
    return "-" if not days else days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
