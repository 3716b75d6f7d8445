"""The table of hyperposteriors at fixed Z: effective draws a second, and whether all draw from the same posterior."""

from statistics import median

import rows as R
from agreement import MIXED, REFERENCE, agreement, mixed
from contestants import CONTESTANTS
from rows import Row, Table
from tables import identity

OURS_FIXED, OURS_COLD = "integrand-fixed-z", "integrand-fixed-z-cold"
TARGET_ESS = 400.0


def ess_per_second(row: Row) -> float:
    return R.ess(row) / row["result"]["seconds"]


def seconds_to_ess(row: Row, target: float = TARGET_ESS) -> float:
    """Seconds at which this run would have had the target: what is not sampling as it was, draws in proportion."""
    result, numbers = row["result"], row["judged"]
    setup, tune = result["seconds"] - result["sampling_seconds"], result["tune"]
    needed = numbers["draws"] * target / max(R.ess(row), 1e-9)
    return setup + result["sampling_seconds"] * (tune + needed) / (tune + numbers["draws"])


def hyperposterior_table(rows: list[Row]) -> Table:
    rows = R.of(rows, "hyperposterior")
    columns = ["", "seconds", "draws", "min ESS", "R-hat", "ESS / s", "ours is x", "largest \\|z\\|", "rms z"]
    columns += ["p of χ²", "MB"]
    parts = []
    for p in R.datasets(rows):
        some = R.where(rows, problem=p)
        ours = R.middle(mixed(R.where(some, contestant=OURS_FIXED)), ess_per_second)
        reference = R.done(R.where(some, contestant=REFERENCE))
        cells = []
        for c in R.ordered(map(R.name, some)):
            mine = R.where(some, contestant=c)
            none = [R.label(c), R.why(mine), *["-"] * (len(columns) - 2)]
            cells.append(_cells(c, mine, ours, reference) if R.done(mine) else none)
        parts.append((R.title(p), columns, cells))
    about = (
        "Posterior of θ at fixed Z (the same Z, M = 100) under the priors of the paper: Gamma(2, 1) on lengthscales, "
        "half-Cauchy(1) on the standard deviations of signal and noise; the same jitter of 1e-6. Four chains on two "
        "cores; each process has one BLAS thread; nothing is predicted. Seconds count from the start of the process. "
        "Ours ends at an ESS of 400; the others have a number of draws and a budget of minutes, both our "
        "choice (tuning + "
        f"draws of a chain): {_budgets(rows)}. ESS is the least of bulk and tail over log hyperparameters "
        "(rank-normalised, "
        f"Vehtari et al. 2021), R-hat the largest of all runs (above {MIXED} a run is not compared, for its ESS means "
        "nothing). z compares posterior means of log θ over all repeats with PyMC's (its own "
        f"NUTS), in units of both Monte Carlo errors, without runs whose R-hat is above {MIXED}; χ² is their sum of "
        "squares, and its p would be uniform if the posteriors are the same and hyperparameters independent. Pyro's "
        "NUTS on the exact GP is another posterior; who is slow is not asked for on every set. What PyTensor, Numba "
        "and this library compile they keep on disk, where a run that nobody times has put it; a fit of data of "
        "another shape finds nothing there (the row `nothing on disk`), and the others keep nothing by default. MB is "
        "the peak memory of all processes of a job together; pages that forked chains share count for each."
    )
    records = [_record(r, rows) for r in rows]
    return Table("hyperposterior", "3. Hyperposterior at fixed Z", about, parts, records, R.failures(rows))


def _cells(
    contestant: str, mine: list[Row], ours: tuple[float, float, float] | None, reference: list[Row]
) -> list[str]:
    """A line of the table, of runs of which some ended well."""
    good = R.done(mine)
    return [
        R.label(contestant),
        R.spread(R.middle(good, lambda r: r["result"]["seconds"])),
        _draws(good),
        R.spread(R.middle(good, R.ess)),
        f"{max(r['judged']['r_hat'] for r in good):.3f}",
        R.spread(R.middle(good, ess_per_second)),
        _times_ours(ours, good),
        *_agreement_cells(contestant, good, reference),
        R.number(median(r["peak_mb"] for r in good)),
    ]


def _budgets(rows: list[Row]) -> str:
    """Steps of tuning, draws and minutes that each has."""
    found = {}
    for c in R.ordered(map(R.name, rows)):
        options = R.where(rows, contestant=c)[0]["job"]["options"]
        if "tune" in options:
            found[R.label(c)] = f"{options['tune']} + {options['draws']}, {options['cap'] / 60.0:.3g} min"
    return "; ".join(f"{label} {budget}" for label, budget in found.items())


def _times_ours(ours: tuple[float, float, float] | None, mine: list[Row]) -> str:
    rate = R.middle(mixed(mine), ess_per_second)
    if rate is None:
        return "not converged"
    return f"{ours[0] / rate[0]:.1f}" if ours and rate[0] > 0 else "-"


def _draws(good: list[Row]) -> str:
    one = good[0]["judged"]
    capped = any(r["result"].get("capped") for r in good)
    return f"{one['chains']} x {one['draws']}" + (", capped" if capped else "")


def _agreement_cells(contestant: str, good: list[Row], reference: list[Row]) -> list[str]:
    if contestant == REFERENCE:
        return ["reference", "", ""]
    if not CONTESTANTS[contestant].same_model:
        return ["another model", "", ""]
    if not reference:
        return ["-", "-", "-"]
    found = agreement(good, reference)
    if found is None:
        return ["not converged", "", ""]
    return [f"{found.largest:.2f} of {len(found.z)}", f"{found.rms:.2f}", f"{found.p:.2g}"]


def _record(row: Row, rows: list[Row]) -> Row:
    record = identity(row)
    if row["status"] == "done":
        numbers, result = row["judged"], row["result"]
        record |= {key: numbers[key] for key in ("chains", "draws", "ess_bulk", "ess_tail", "r_hat")}
        record |= {"seconds": result["seconds"], "sampling_seconds": result["sampling_seconds"], "tune": result["tune"]}
        record |= {"ess_per_second": ess_per_second(row), "divergences": result.get("divergences")}
        for key in ("log_mean", "log_sd", "mcse"):
            record[key] = " ".join(f"{v:.5g}" for v in numbers[key])
        reference = R.done(R.where(rows, problem=R.problem(row), contestant=REFERENCE))
        found = agreement([row], reference) if CONTESTANTS[R.name(row)].same_model else None
        if found is not None and R.name(row) != REFERENCE:
            record |= {"z": " ".join(f"{v:.2f}" for v in found.z), "chi2": found.chi2, "p": found.p}
    return record
