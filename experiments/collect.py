"""Make pages, one CSV table and figures from the results of the suites."""

import csv
import io
from pathlib import Path

from experiments.store import Store
from experiments.suite_results import Results
from experiments.suites import PROTOCOLS, SUITES, Suite
from experiments.tables import TABLES, Table
from integrand.files import atomic_write

# Methods whose bound has no prior.
_WITHOUT_PRIORS = ("ml2", "svgp")


def collect(store: Store, docs: Path) -> list[Path]:
    """Write a page and a figure for each suite and protocol with any result, and all tables to tables.csv.

    Returns the files that were written.
    """
    docs.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    cells: list[list[str]] = []
    for suite in SUITES.values():
        for protocol in PROTOCOLS:
            results = Results.read(store, suite, protocol)
            if results.by_arm:
                name = suite.name if protocol == "default" else f"{suite.name}-{protocol}"
                tables = TABLES[suite.name](results)
                written += _write_page(name, suite, results, tables, docs)
                cells += [line for table in tables for line in _long(name, table)]
    if written:
        written.append(docs / "tables.csv")
        _put(written[-1], _csv([["page", "table", "row", "column", "value"], *cells]).encode())
    return written


def _write_page(name: str, suite: Suite, results: Results, tables: list[Table], docs: Path) -> list[Path]:
    written = []
    page = [f"# `{suite.name}`, protocol `{results.protocol}`", "", suite.about[0].upper() + suite.about[1:] + ".", ""]
    page += [_provenance(suite, results), ""]
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


def _provenance(suite: Suite, results: Results) -> str:
    """The command, versions and dates behind a page."""
    made = [r["made"] for splits in results.by_arm.values() for r in splits.values()]
    versions = sorted({m["version"] for m in made})
    commits = sorted({m.get("commit") or "not recorded" for m in made})
    dates = sorted({m["date"] for m in made})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    protocol = "" if results.protocol == "default" else f" --protocol {results.protocol}"
    limits = sorted({text for arm in results.arms for text in _time_limits(results, arm.name)})
    limited = f" Most minutes of a fit: {', '.join(limits)}." if limits else ""
    drawn = {arm.name: arm.priors for arm in results.arms if arm.method not in _WITHOUT_PRIORS}
    kinds = sorted(set(drawn.values()))
    by_kind = [f"`{kind}` ({', '.join(name for name, p in drawn.items() if p == kind)})" for kind in kinds]
    priors = f" Priors of θ: {'; '.join(by_kind) if len(kinds) > 1 else f'`{kinds[0]}`'}." if kinds else ""
    return (
        f"Made by `python -m experiments {suite.name}{protocol}` and `python -m experiments --collect`; version "
        f"{', '.join(versions)} (commits: {', '.join(commits)}), {when}, {len(made)} fits.{priors}{limited}"
    )


def _time_limits(results: Results, arm: str) -> list[str]:
    """The limits on minutes that an arm's fits had, with the number of fits where they differ."""
    limits = [
        r["made"]["settings"].get("max_minutes")
        for (_, name), splits in results.by_arm.items()
        for r in splits.values()
        if name == arm
    ]
    counts = {limit: limits.count(limit) for limit in sorted(c for c in set(limits) if c is not None)}
    total = len(limits)
    return [f"{arm}: {limit:g}" + (f" ({n} of {total} fits)" if n < total else "") for limit, n in counts.items()]


def _figure(suite: Suite, results: Results):
    from experiments.pictures import FIGURES

    return FIGURES[suite.name](results) if suite.name in FIGURES else None


def _long(page: str, table: Table) -> list[list[str]]:
    """The cells of a table, one per line: page, table, number of the row, column, value."""
    return [
        [page, table.name, str(k), column, value]
        for k, row in enumerate(table.rows)
        for column, value in zip(table.header, row, strict=True)
    ]


def _csv(rows: list[list[str]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def _put(path: Path, content: bytes) -> None:
    atomic_write(path, lambda stream: stream.write(content))
