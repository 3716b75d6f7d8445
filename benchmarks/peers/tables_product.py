"""The table of the whole product: ours with θ integrated beside what others take for the optimum, or at fixed Z."""

from collections.abc import Callable

import rows as R
from agreement import mixed
from contestants import CONTESTANTS, OURS
from profiles import ML2
from rows import Row, Table
from tables import identity
from tables_hyper import seconds_to_ess
from tables_ml2 import ml2_target, seconds_to_target, target_cell

PRODUCT_ML2 = (*(c for c in ML2 if c != OURS), OURS)  # ours last: it is what a fit could have stopped at
PRODUCT_NUTS = ("pymc", "pymc-nutpie")


def seconds(row: Row) -> float:
    return row["result"]["seconds"]


def product_table(rows: list[Row]) -> Table:
    ours, ml2, hyper = (R.of(rows, m) for m in ("product", "ml2", "hyperposterior"))
    problems = R.datasets(ours)
    own = ["**integrand `sgpr-hmc`, θ integrated**", *(_own_cell(R.where(ours, problem=p)) for p in problems)]
    lines = [own]
    for c in PRODUCT_ML2:
        lines += _line(R.where(ml2, contestant=c), ours, problems, f"{R.label(c)}, ML-II", _to_the_end)
    for c in PRODUCT_ML2:
        if CONTESTANTS[c].same_model:
            what = f"{R.label(c)}, ML-II, to the target of table 2"
            lines += _line(R.where(ml2, contestant=c), ours, problems, what, _to_the_target(ml2))
    for c in PRODUCT_NUTS:
        lines += _line(R.where(hyper, contestant=c), ours, problems, f"{R.label(c)}, Z fixed, to ESS 400", _to_the_ess)
    about = (
        "Seconds of a fresh process on two cores. Ours is the default fit, with its default priors, θ integrated and "
        "Z moved, until R-hat ≤ 1.01 and bulk and tail ESS ≥ 400 for every hyperparameter; where one of its "
        "runs did not, the cell has that instead of a ratio. Against it: what others take for the optimum "
        "alone (table 2, "
        "until the optimiser ends, and until the target there, `never` if not every repeat got to it), and PyMC at "
        "fixed Z until an ESS of 400 (table 3, draws in proportion; a run with R-hat above 1.05 is not compared). "
        "After the colon: ours over theirs."
    )
    parts = [("", ["", *map(R.title, problems)], lines)]
    records = [_record(r) for r in ours]
    return Table("product", "4. The whole product", about, parts, records, R.failures(ours))


Found = tuple[tuple[float, float, float] | None, str]  # median, least and most; what to say instead


def _to_the_end(mine: list[Row]) -> Found:
    return R.middle(mine, seconds), R.why(mine)


def _to_the_ess(mine: list[Row]) -> Found:
    converged = mixed(mine)
    return R.middle(converged, seconds_to_ess), "not converged" if R.done(mine) else R.why(mine)


def _to_the_target(ml2: list[Row]) -> Callable[[list[Row]], Found]:
    def found(mine: list[Row]) -> Found:
        if not R.done(mine):
            return None, R.why(mine)
        target = ml2_target(R.where(ml2, problem=R.problem(mine[0])))
        return seconds_to_target(mine, target), target_cell(mine, target)

    return found


def _line(
    theirs: list[Row], ours: list[Row], problems: list[str], what: str, value: Callable[[list[Row]], Found]
) -> list[list[str]]:
    """One line of the table; none for those who did not take part."""
    if not theirs:
        return []
    cells = [what]
    for p in problems:
        own = R.where(ours, problem=p)
        found, instead = value(R.where(theirs, problem=p))
        if found is None:
            cells.append(instead)
            continue
        base, short = R.middle(own, seconds), R.short_of(own)
        share = f": **{base[0] / found[0]:.2f}**" if base and not short else f"; ours {short}" if short else ""
        cells.append(R.spread(found) + share)
    return [cells]


def _own_cell(rows: list[Row]) -> str:
    found, short = R.middle(rows, seconds), R.short_of(rows)
    if found is None:
        return R.why(rows)
    return f"{R.spread(found)}, {short}" if short else R.spread(found)


def _record(row: Row) -> Row:
    record = identity(row)
    if row["status"] == "done":
        numbers, result = row["judged"], row["result"]
        record |= {"seconds": result["seconds"], "reached": result["reached"], "gradients": result["gradients"]}
        record |= {key: numbers[key] for key in ("draws", "ess_bulk", "ess_tail", "r_hat", "rmse", "nlpd")}
        record |= {f"s_{key.replace(' ', '_')}": value for key, value in result["spent"].items()}
    return record
