"""The few ratios that the tables are read for, each with where it is worst for this library."""

from collections.abc import Callable

import rows as R
from contestants import CONTESTANTS, OURS
from rows import Row
from tables import _median_ms
from tables_posterior import REFERENCE, ess_per_second, z_scores


def summary_cells(rows: list[Row]) -> list[list[str]]:
    """Measure, what is compared, and the worst and best of it; measures without results are left out."""
    gradients = R.of(rows, "gradient")
    small = [r for r in gradients if not R.problem(r).startswith("synthetic")]
    large = [r for r in gradients if R.problem(r).startswith("synthetic")]
    hyper, ml2, ours = (R.of(rows, m) for m in ("hyperposterior", "ml2", "product"))
    found = [
        ("1", "gradient, data sets: time of GPflow, GPyTorch and PyMC over ours", _gradients(small, _BIG_THREE)),
        (
            "1",
            "gradient, data sets: time of GPJax and naive NumPyro over ours",
            _gradients(small, ("gpjax", "numpyro")),
        ),
        ("1", "gradient, synthetic: time of anyone over ours", _gradients(large, tuple(CONTESTANTS))),
        ("3", "ESS a second: ours over PyMC's NUTS", _rates(hyper, "pymc")),
        ("3", "ESS a second: ours over PyMC with nutpie", _rates(hyper, "pymc-nutpie")),
        ("3", "posterior means against PyMC: largest |z| of ours", _largest_z(hyper)),
        ("4", "seconds: ours, integrated, over GPflow's ML-II", _product(ours, ml2, "gpflow")),
        ("4", "seconds: ours, integrated, over GPyTorch's ML-II", _product(ours, ml2, "gpytorch")),
    ]
    return [[measure, what.replace("|", "\\|"), seen] for measure, what, seen in found if seen]


_BIG_THREE = ("gpflow", "gpytorch", "pymc", "pymc-z")


def _range(ratios: dict[str, float]) -> str:
    """Least and most, each with its place."""
    if not ratios:
        return ""
    least, most = min(ratios, key=lambda k: ratios[k]), max(ratios, key=lambda k: ratios[k])
    first = f"{ratios[least]:.2f} ({least})"
    return first if len(ratios) == 1 else f"{first} to {ratios[most]:.2f} ({most})"


def _ratios(
    theirs: list[Row], ours: list[Row], value: Callable[[Row], float], place: Callable[[Row], str]
) -> dict[str, float]:
    found = {}
    for key in sorted({(R.problem(r), r["job"]["cores"], R.name(r)) for r in theirs}):
        mine = R.middle(R.where(ours, problem=key[0], cores=key[1]), value)
        other_rows = R.where(theirs, problem=key[0], cores=key[1], contestant=key[2])
        other = R.middle(other_rows, value)
        if mine and other and mine[0] > 0:
            found[place(other_rows[0])] = other[0] / mine[0]
    return found


def _gradients(rows: list[Row], names: tuple[str, ...]) -> str:
    def place(r: Row) -> str:
        cores = r["job"]["cores"]
        return f"{R.bound_label(R.name(r))}, {R.title(R.problem(r))}, {cores} core{'s' if cores > 1 else ''}"

    theirs = [r for r in rows if R.name(r) in names and R.name(r) != OURS]
    return _range(_ratios(theirs, R.where(rows, contestant=OURS), _median_ms, place))


def _rates(rows: list[Row], name: str) -> str:
    ours, theirs = R.where(rows, contestant="integrand-fixed-z"), R.where(rows, contestant=name)
    ratios = _ratios(theirs, ours, ess_per_second, lambda r: R.title(R.problem(r)))
    return _range({place: 1.0 / ratio for place, ratio in ratios.items() if ratio > 0})


def _product(ours: list[Row], ml2: list[Row], name: str) -> str:
    theirs = R.where(ml2, contestant=name)
    ratios = _ratios(theirs, ours, lambda r: r["result"]["seconds"], lambda r: R.title(R.problem(r)))
    return ", ".join(f"{place} {1.0 / ratio:.2f}" for place, ratio in sorted(ratios.items()))


def _largest_z(rows: list[Row]) -> str:
    cells = []
    for p in R.datasets(rows):
        mine, theirs = (R.done(R.where(rows, problem=p, contestant=c)) for c in ("integrand-fixed-z", REFERENCE))
        if mine and theirs:
            z = z_scores(mine[0], theirs[0])
            cells.append(f"{R.title(p)} {max(map(abs, z)):.2f} of {len(z)}")
    return ", ".join(cells)
