"""Result files as rows, and the small statistics and formats that all tables share."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from contestants import CONTESTANTS

Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table of the page: `records` go to NAME.csv in full, `parts` to the page as they are."""

    name: str
    title: str
    about: str
    parts: list[tuple[str, list[str], list[list[str]]]]  # heading, columns, cells
    records: list[Row] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def read(results: Path) -> list[Row]:
    """All rows below a directory, in a stable order."""
    return [json.loads(path.read_text()) for path in sorted(results.rglob("*.json"))]


def of(rows: Iterable[Row], measure: str) -> list[Row]:
    return [r for r in rows if r["job"]["measure"] == measure]


def problem(row: Row) -> str:
    return row["job"]["problem"]


def name(row: Row) -> str:
    return row["job"]["contestant"]


def ordered(values: Iterable[str]) -> list[str]:
    """Contestants in the order of their table."""
    present = set(values)
    return [c for c in CONTESTANTS if c in present]


def datasets(rows: Iterable[Row]) -> list[str]:
    """Problems: data sets by name, then synthetic ones by size."""

    def order(text: str) -> tuple[bool, str, int]:
        dataset, _, number = text.rpartition("-")
        return dataset == "synthetic", dataset, int(number)

    return sorted({problem(r) for r in rows}, key=order)


def title(text: str) -> str:
    """`yacht` for yacht-0, `N = 10 000` for synthetic-10000."""
    dataset, _, number = text.rpartition("-")
    return f"N = {int(number):,}".replace(",", " ") if dataset == "synthetic" else dataset


def label(contestant: str) -> str:
    return CONTESTANTS[contestant].label


def predictor_label(contestant: str) -> str:
    """The label, the priors of θ, and whether what predicts is another model than what was fitted."""
    one = CONTESTANTS[contestant]
    priors = f"priors `{one.priors}`" if one.priors else ""
    also = ", ".join(filter(None, (priors, one.as_predictor or ("" if one.same_model else "another model"))))
    return f"{one.label} ({also})" if also else one.label


def bound_label(contestant: str) -> str:
    return CONTESTANTS[contestant].bound_label


def done(rows: Iterable[Row]) -> list[Row]:
    return [r for r in rows if r["status"] == "done"]


def where(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Rows whose job has these values."""
    return [r for r in rows if all(r["job"][key] == value for key, value in wanted.items())]


def middle(rows: Iterable[Row], value: Callable[[Row], float]) -> tuple[float, float, float] | None:
    """Median, least and most over repeats that ended well; None without any."""
    found = [value(r) for r in done(rows)]
    return (median(found), min(found), max(found)) if found else None


def ess(row: Row) -> float:
    """The effective sample size of a run: the least of bulk and tail over the logs of hyperparameters."""
    return min(row["judged"]["ess_bulk"], row["judged"]["ess_tail"])


def short_of(rows: Iterable[Row]) -> str:
    """Of our own whole fits: how many did not get to R-hat and ESS; "" if all did."""
    rows = list(rows)
    missed = [r for r in rows if r["status"] != "done" or not r["result"]["reached"]]
    return f"not reached ({len(missed)} of {len(rows)})" if missed else ""


def number(value: float | None, digits: int = 3) -> str:
    """So many significant digits, no exponent where it can be helped."""
    if value is None or value != value:
        return "-"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:.{digits}g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.0e}"


def spread(found: tuple[float, float, float] | None, digits: int = 3) -> str:
    """Median, with least and most where there are several."""
    if found is None:
        return "-"
    middle_value, least, most = found
    if least == most:
        return number(middle_value, digits)
    return f"{number(middle_value, digits)} ({number(least, digits)} to {number(most, digits)})"


def why(rows: Iterable[Row]) -> str:
    """In place of a number: what happened instead; a dash where nothing was run."""
    told = ("gave up", "out of memory")  # their reason says more: which budget it was
    reasons = [r["reason"] if r["status"] in told else r["status"] for r in rows if r["status"] != "done"]
    return reasons[0] if reasons else "-"


def failures(rows: Iterable[Row], named: Callable[[str], str] = label) -> list[str]:
    """A sentence for each row that did not end well."""
    return sorted(
        {
            f"{named(name(r))} on {title(problem(r))}: {r['status']}" + (f" ({r['reason']})" if r["reason"] else "")
            for r in rows
            if r["status"] != "done"
        }
    )
