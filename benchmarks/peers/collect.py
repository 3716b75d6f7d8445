"""From result files to the page: Markdown tables, a CSV for each measure, figures, and what they were made with."""

import csv
import json
from pathlib import Path

import machine as facts
import rows as R
from contestants import CONTESTANTS
from figures import draw_all
from neighbours import BUSY_CORES
from rows import Row, Table
from summary import COLUMNS, summary_cells
from tables import gradient_table, growth_table
from tables_accuracy import accuracy_table
from tables_hyper import hyperposterior_table
from tables_ml2 import ml2_table
from tables_product import product_table

TABLES = (gradient_table, ml2_table, hyperposterior_table, product_table, accuracy_table, growth_table)
_ALSO = {"hyperposterior": ["agreement"]}


def collect(rows: list[Row], out: Path, profile: str, planned: int) -> None:
    """Write README.md, the CSV files and figures to `out`; measures without rows are left out.

    `planned` is how many jobs the profile has.
    """
    out.mkdir(parents=True, exist_ok=True)
    if not rows:
        print("there are no results yet")
        return
    tables = [table for make in TABLES if (table := make(rows)).records]
    drawn = draw_all(rows, out)
    for table in tables:
        _write_csv(out / f"{table.name}.csv", table.records)
    noted = out / "machine.json"
    machine = json.loads(noted.read_text()) if noted.exists() else facts.machine()
    (out / "README.md").write_text(_page(rows, tables, drawn, machine, profile, planned))
    print(f"wrote {out}: {len(rows)} rows, {len(tables)} tables, {len(drawn)} figures")


def _write_csv(path: Path, records: list[Row]) -> None:
    columns = list(dict.fromkeys(key for record in records for key in record))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)


def _page(
    rows: list[Row], tables: list[Table], drawn: list[str], machine: dict[str, str], profile: str, planned: int
) -> str:
    links = "../../benchmarks.md" if profile != "full" else "../benchmarks.md"
    parts = [
        "# Side by side with what people use today",
        "Each package in its own process and pinned environment, on the same cores, data, M, kernel, priors and Z (but "
        "for our whole product, which has its own defaults), one "
        f"after the other in turns; what costs what in this library alone is [on another page]({links}). Medians over "
        "processes, least and most in brackets where there are several (in table 1, between what the middle 80 % of "
        f"calls are); a dash where nothing was run. These are {len(rows)} of the {planned} jobs of the profile.",
    ]
    if profile != "full":
        parts.append(
            f"**This is the `{profile}` profile: fewer data sets, repeats and draws than the published tables.**"
        )
    cells = summary_cells(rows)
    if cells:
        notation = links.replace("benchmarks.md", "notation.md")
        about = (
            "A *bar* is what this library set out to reach, an *aim* what it hoped for; *met* goes by the worst of the "
            "ratios. θ are the hyperparameters, Z the M inducing inputs, ML-II the search for the θ and Z with the "
            f"highest bound ([notation]({notation})), ESS the effective number of draws; the *whole product* is a "
            "default fit of ours."
        )
        parts.append(f"## In short\n\n{about}\n\n" + markdown(COLUMNS, cells, right=False))
    parts += [_caveats(rows), *(_section(table, drawn) for table in tables), _how(rows, machine, profile)]
    return "\n\n".join(parts) + "\n"


def _caveats(rows: list[Row]) -> str:
    names = R.ordered(map(R.name, rows))
    cells = [[R.predictor_label(c), CONTESTANTS[c].caveat or "the same model"] for c in names]
    about = "## Who takes part\n\nWhat differs from the model, or from the way of fitting it, that the others have."
    return about + "\n\n" + markdown(["", "what to know"], cells)


def _section(table: Table, drawn: list[str]) -> str:
    parts = [f"## {table.title}", table.about]
    figures = [f for f in (table.name, *_ALSO.get(table.name, [])) if f in drawn]
    parts += [f"![{table.title}]({figure}.png)" for figure in figures]
    for heading, columns, cells in table.parts:
        parts += ([f"**{heading}**"] if heading else []) + [markdown(columns, cells)]
    if table.remarks:
        parts.append("Not finished: " + "; ".join(table.remarks) + ".")
    parts.append(f"All rows: [{table.name}.csv]({table.name}.csv).")
    return "\n\n".join(parts)


def _how(rows: list[Row], machine: dict[str, str], profile: str) -> str:
    versions = facts.versions(rows)
    machine = {name: fact for name, fact in machine.items() if name != "processor"}  # each measure has its own
    option = "" if profile == "full" else " QUICK=1" if profile == "quick" else f" (run.py --profile {profile})"
    return "\n\n".join(
        [
            "## How these were made",
            f"`make bench-peers{option}`, {facts.dates(rows)}. A run of the driver begins with a small job in each "
            "environment that nobody times: the files of its packages are then in memory, and what "
            "PyTensor and Numba compile is on disk, as for table 3 is what ours does (elsewhere what it keeps on "
            "disk is switched off). A job is a fresh process on a warm machine. A run can be made in "
            "pieces (`python benchmarks/peers/run.py --measures … --only …`): what is compared by its seconds "
            "is a group, whose jobs run in turns; which rows were added later the CSV files tell, with commit "
            "and time of each. Of each it is noted how many of its "
            f"cores other processes kept busy; more than {BUSY_CORES:g} and the row is called busy (in the CSV "
            "files too). A commit that ends in `-dirty` had changes that were not committed.",
            markdown(
                ["machine", ""],
                [*map(list, machine.items()), ["neighbours", facts.busy(rows)]],
            ),
            markdown(["measure", "processor; when; commits"], [*map(list, facts.sources(rows).items())]),
            markdown(["environment", "packages"], [[name, packages] for name, packages in versions.items()]),
        ]
    )


def markdown(columns: list[str], cells: list[list[str]], right: bool = True) -> str:
    """A table; columns beyond the first two, if any, are numbers and go to the right with the second."""
    rule = ["---", *["--:"] * (len(columns) - 1)] if right and len(columns) > 2 else ["---"] * len(columns)
    lines = [columns, rule, *cells]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
