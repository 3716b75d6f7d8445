"""Make the page from rows: Markdown tables, a CSV for each measure, figures, and how they were made."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.peers import rows as R
from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.figures import draw_all
from benchmarks.peers.plan import UNTIMED
from benchmarks.peers.rows import BUSY_CORES, UNKNOWN, Row, Table, is_busy
from benchmarks.peers.summary import COLUMNS, summary_cells
from benchmarks.peers.tables_posterior import accuracy_table, hyperposterior_table, product_table
from benchmarks.peers.tables_time import gradient_table, growth_table, ml2_table

TABLES = (gradient_table, ml2_table, hyperposterior_table, product_table, accuracy_table, growth_table)
_ALSO = {"hyperposterior": ["agreement"]}


def write_page(rows: list[Row], out: Path, profile: str, planned: int, machine: dict[str, str]) -> None:
    """Write peers.md to `out`, and figures and CSV files to `out`/peers; git ignores the CSV files.

    Measures without rows are left out.

    `planned` is the number of jobs of the profile, `machine` the facts of the machine.
    """
    folder = out / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    if not rows:
        print("there are no results yet")
        return
    tables = [table for make in TABLES if (table := make(rows)).records]
    drawn = draw_all(rows, folder)
    for table in tables:
        _write_csv(folder / f"{table.name}.csv", table.records)
    (out / "peers.md").write_text(_page(rows, tables, drawn, machine, profile, planned))
    print(f"wrote {out / 'peers.md'}: {len(rows)} rows, {len(tables)} tables, {len(drawn)} figures")


def _write_csv(path: Path, records: list[Row]) -> None:
    columns = list(dict.fromkeys(key for record in records for key in record))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)


def _page(
    rows: list[Row], tables: list[Table], drawn: list[str], machine: dict[str, str], profile: str, planned: int
) -> str:
    full = profile == "full"  # the other profiles write beside their scratch files, where the docs are not
    parts = [
        "# Side by side with what people use today",
        "Each job runs in its own process and pinned environment. All packages have the same cores, data, M, kernel, "
        "priors and Z; only our whole product has its own defaults. Jobs that are compared run one after the other, in "
        "turns. Numbers are medians over processes, with minimum and maximum in brackets. A dash means that nothing "
        "was run.",
        f"These are {len(rows)} of the {planned} jobs of the profile."
        + (" What costs what in this library alone is [on another page](speed.md)." if full else ""),
    ]
    if not full:
        parts.append(
            f"**This is the `{profile}` profile: fewer data sets, repeats and draws than the published tables.**"
        )
    cells = summary_cells(rows)
    if cells:
        about = (
            "- A *bar* is what this library set out to reach, an *aim* what it hoped for. The worst ratio decides "
            "whether a bar is *met*.\n"
            "- θ are the hyperparameters, Z the M inducing inputs"
            + (" ([notation](../reference/notation.md))" if full else "")
            + ". *ML-II* is the search for the θ and Z with the highest bound.\n"
            "- *ESS* is the effective sample size. The *whole product* is a default fit of this library."
        )
        parts.append(f"## In short\n\n{about}\n\n" + markdown(COLUMNS, cells, right=False))
    parts += [_caveats(rows), *(_section(table, drawn) for table in tables), _how(rows, machine, profile)]
    return "\n\n".join(parts) + "\n"


def _caveats(rows: list[Row]) -> str:
    names = R.ordered(map(R.name, rows))
    cells = [[R.predictor_label(c), CONTESTANTS[c].caveat or "the same model"] for c in names]
    about = "## Who takes part\n\nWhere the model or the fit of a package differs from that of the others."
    return about + "\n\n" + markdown(["", "what to know"], cells)


def _section(table: Table, drawn: list[str]) -> str:
    parts = [f"## {table.title}", table.about]
    figures = [f for f in (table.name, *_ALSO.get(table.name, [])) if f in drawn]
    parts += [f"![{table.title}](peers/{figure}.png)" for figure in figures]
    for heading, columns, cells in table.parts:
        parts += ([f"**{heading}**"] if heading else []) + [markdown(columns, cells)]
    if table.remarks:
        parts.append("Not finished:\n\n" + "\n".join(f"- {remark}" for remark in table.remarks))
    return "\n\n".join(parts)


def _how(rows: list[Row], machine: dict[str, str], profile: str) -> str:
    facts = {name: fact for name, fact in machine.items() if name != "processor"}  # each measure has its own
    command = {"full": "make bench-peers", "quick": "make bench-peers QUICK=1"}
    made_by = command.get(profile, f"python -m benchmarks.peers --profile {profile}")
    about = [
        "A run begins with a small job in each environment, which is not timed. Package files are then in memory, and "
        "compiled code of PyTensor and Numba is on disk. For table 3 so is ours; elsewhere our cache is off.",
        "A job is a fresh process on a warm machine.",
        "A run can be made in pieces (`python -m benchmarks.peers --measures … --only …`). Jobs that are compared by "
        "their seconds form a group and run in turns.",
        "`python -m benchmarks.peers --collect` also writes a CSV file for each measure. It has commit and time.",
        f"A row is called busy if other processes used more than {BUSY_CORES:g} of its cores.",
        "A commit that ends in `-dirty` had changes that were not committed.",
    ]
    return "\n\n".join(
        [
            "## How these were made",
            f"`{made_by}`, {dates(rows)}.\n\n" + "\n".join(f"- {line}" for line in about),
            markdown(["machine", ""], [*map(list, facts.items()), ["neighbours", busy(rows)]]),
            markdown(["measure", "processor; when; commits"], [*map(list, sources(rows).items())]),
            markdown(["environment", "packages"], [*map(list, versions(rows).items())]),
        ]
    )


def markdown(columns: list[str], cells: list[list[str]], right: bool = True) -> str:
    """A Markdown table. With more than two columns, all but the first are numbers, aligned right."""
    rule = ["---", *["--:"] * (len(columns) - 1)] if right and len(columns) > 2 else ["---"] * len(columns)
    lines = [columns, rule, *cells]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def sources(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """For each measure the processors, the first and last minute, and the commits of its rows."""
    by_measure: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_measure.setdefault(row["job"]["measure"], []).append(row)
    return {measure: _source(some) for measure, some in by_measure.items()}


def _source(rows: list[dict[str, Any]]) -> str:
    where = " / ".join(sorted({row.get("processor", UNKNOWN) for row in rows}))
    times = sorted(row["when"] for row in rows if "when" in row)
    span = f"{times[0]} to {times[-1]} (UTC)" if times else UNKNOWN
    return f"{where}; {span}; {commits(rows)}"


def versions(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The packages of each environment, as its workers reported them."""
    by_environment: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        packages = by_environment.setdefault(CONTESTANTS[row["job"]["contestant"]].environment, {})
        for package, version in row.get("result", {}).get("versions", {}).items():
            packages.setdefault(package, set()).add(version)
    return {
        environment: ", ".join(f"{package} {' / '.join(sorted(numbers))}" for package, numbers in packages.items())
        for environment, packages in sorted(by_environment.items())
        if packages
    }


def busy(rows: Iterable[dict[str, Any]]) -> str:
    """The number of timed rows that other processes disturbed, in words."""
    timed = [row for row in rows if row.get("job", {}).get("measure") not in UNTIMED]
    known = [row for row in timed if row["status"] == "done" and row.get("others") is not None]
    if not known:
        return "-"
    disturbed = [row for row in known if is_busy(row)]
    if not disturbed:
        return f"none of {len(known)} rows was made on a busy machine"
    made = "1 row was" if len(disturbed) == 1 else f"{len(disturbed)} rows were"
    highest = max(row["others"] for row in disturbed)
    which = "; ".join(row["job"]["key"] for row in disturbed)
    return f"**{made} made on a busy machine** (of {len(known)}; others kept up to {highest:.1f} cores busy): {which}"


def commits(rows: Iterable[dict[str, Any]]) -> str:
    """The measured commits; pieces of a run may have different ones."""
    return ", ".join(sorted({row["commit"] for row in rows if "commit" in row})) or "-"


def dates(rows: Iterable[dict[str, Any]]) -> str:
    """First and last day of the measurements."""
    days = sorted({row["when"][:10] for row in rows if "when" in row})
    return "-" if not days else days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
