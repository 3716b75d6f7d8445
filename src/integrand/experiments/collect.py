"""Tables (Markdown and CSV) and figures of whatever results there are."""

import csv
import io
from pathlib import Path

from integrand.experiments.results import Results
from integrand.experiments.store import Store
from integrand.experiments.suites import PROTOCOLS, SUITES, Suite
from integrand.experiments.table import Table
from integrand.experiments.tables import TABLES
from integrand.files import atomic_write

# Methods that optimise a bound which knows no prior.
_WITHOUT_PRIORS = ("ml2", "svgp")


def collect(store: Store, docs: Path) -> list[Path]:
    """Write a page for each suite and protocol with any result, its tables as CSV and its figure; what was written."""
    docs.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for suite in SUITES.values():
        for protocol in PROTOCOLS:
            results = Results.read(store, suite, protocol)
            if results.found:
                written += _write(suite, results, docs)
    return written


def _write(suite: Suite, results: Results, docs: Path) -> list[Path]:
    name = suite.name if results.protocol == "default" else f"{suite.name}-{results.protocol}"
    tables, written = TABLES[suite.name](results), []
    for table in tables:
        path = docs / "csv" / f"{name}-{table.name}.csv"
        path.parent.mkdir(exist_ok=True)
        _put(path, _csv(table).encode())
        written.append(path)
    page = [f"# `{suite.name}`, protocol `{results.protocol}`", "", suite.about[0].upper() + suite.about[1:] + ".", ""]
    page += [_made(suite, results), ""]
    if (figure := _figure(suite, results)) is not None:
        path = docs / f"{name}.png"
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=130)
        _put(path, stream.getvalue())
        written.append(path)
        page += [f"![{suite.about}]({path.name})", ""]
    page += [table.markdown() for table in tables]
    path = docs / f"{name}.md"
    _put(path, "\n".join(page).rstrip().encode() + b"\n")
    return [*written, path]


def _made(suite: Suite, results: Results) -> str:
    """The command, versions and dates behind a page."""
    made = [r["made"] for split in results.found.values() for r in split.values()]
    versions = sorted({m["version"] for m in made})
    commits = sorted({m.get("commit") or "not recorded" for m in made})
    dates = sorted({m["date"] for m in made})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    protocol = "" if results.protocol == "default" else f" --protocol {results.protocol}"
    caps = sorted({text for arm in results.arms for text in _caps(results, arm.name)})
    capped = f" Most minutes of a fit: {', '.join(caps)}." if caps else ""
    drawn = {arm.name: arm.priors for arm in results.arms if arm.method not in _WITHOUT_PRIORS}
    kinds = sorted(set(drawn.values()))
    of_each = [f"`{kind}` ({', '.join(name for name, p in drawn.items() if p == kind)})" for kind in kinds]
    priors = f" Priors of θ: {'; '.join(of_each) if len(kinds) > 1 else f'`{kinds[0]}`'}." if kinds else ""
    return (
        f"Made by `integrand reproduce {suite.name}{protocol}` and `integrand reproduce --collect`; version "
        f"{', '.join(versions)} (commits: {', '.join(commits)}), {when}, {len(made)} fits.{priors}{capped}"
    )


def _caps(results: Results, arm: str) -> list[str]:
    """The caps on time that an arm's fits were given, and how many had each if not all the same."""
    given = [
        r["made"]["settings"].get("max_minutes")
        for (_, name), splits in results.found.items()
        for r in splits.values()
        if name == arm
    ]
    counts = {cap: given.count(cap) for cap in sorted(c for c in set(given) if c is not None)}
    return [f"{arm}: {cap:g}" + (f" ({n} of {len(given)} fits)" if n < len(given) else "") for cap, n in counts.items()]


def _figure(suite: Suite, results: Results):
    from integrand.experiments.pictures import FIGURES

    return FIGURES[suite.name](results) if suite.name in FIGURES else None


def _csv(table: Table) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.header)
    writer.writerows(table.rows)
    return stream.getvalue()


def _put(path: Path, content: bytes) -> None:
    atomic_write(path, lambda stream: stream.write(content))
