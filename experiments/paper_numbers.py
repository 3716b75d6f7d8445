"""The numbers printed in the paper, from the CSV files in `paper/`.

V. Lalchand, W. P. Bruinsma, D. R. Burt and C. E. Rasmussen, "Sparse Gaussian Process Hyperparameters: Optimize or
Integrate?", NeurIPS 2022.

- `tables.csv`: RMSE table (appendix), NLPDs behind the bar charts, ablation of Z, seconds of training, Elevators
  against M, the one-dimensional example. `dataset` is M for Elevators. A missing standard error was not printed. The
  bar charts print none either: those of their NLPDs are from `benchmarks_nlpd_main.csv` of the authors' repository
  (vr308/Generalised-Gaussian-Processes, commit 4e671f3), of SGPR + HMC from the paper's ablation.
- `nuts_summary.csv`: the appendix's summaries of NUTS on split 4, in standardised units.

The paper's Boston is the damaged table (`boston_as_published` here). Its NLPD is the mean over draws of the joint
density of the test set (`joint_nlpd`); on Elevators the mean over draws and points (`expected_nlpd`).
"""

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

PAPER = Path(__file__).parent / "paper"


class Printed(NamedTuple):
    """A number of the paper and its standard error, where one was printed."""

    value: float
    error: float | None


@cache
def _tables() -> dict[tuple[str, str, str, str], Printed]:
    return {
        (row["table"], row["dataset"], row["column"], row["metric"]): Printed(
            float(row["value"]), float(row["standard_error"]) if row["standard_error"] else None
        )
        for row in _rows("tables.csv")
    }


def printed(table: str, dataset: str, column: str, metric: str) -> Printed | None:
    """A number of a table, None if it was not printed. The paper has the damaged Boston, not the correct one."""
    if dataset == "boston":
        return None
    return _tables().get((table, dataset.removesuffix("_as_published"), column, metric))


@cache
def nuts_summary(dataset: str) -> dict[str, dict[str, float]]:
    """The appendix's summary: hyperparameter to mean, sd, interval, Monte Carlo errors and effective sample sizes."""
    name = dataset.removesuffix("_as_published")
    return {
        row["hyper"]: {k: float(v) for k, v in row.items() if k not in ("dataset", "hyper")}
        for row in _rows("nuts_summary.csv")
        if row["dataset"] == name
    }


def _rows(name: str) -> list[dict[str, str]]:
    text = (PAPER / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
