"""The few ratios that the tables are read for, each with its bar and whether it is met."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.peers import rows as R
from benchmarks.peers.contestants import CONTESTANTS, OURS
from benchmarks.peers.judge import LEAST_P, REFERENCE, agreement, mixed
from benchmarks.peers.rows import Row
from benchmarks.peers.tables_posterior import OURS_COLD, OURS_FIXED, ess_per_second, seconds, seconds_to_ess
from benchmarks.peers.tables_time import median_ms, ml2_target, seconds_to_target

COLUMNS = ["measure", "what", "seen", "bar", "met"]

# Packages that have a bar each, in their default form; PyMC also in the form that nutpie uses.
_PACKAGES = {
    "GPflow": ("gpflow",),
    "GPyTorch": ("gpytorch",),
    "PyMC": ("pymc", "pymc-z"),
    "PyMC by Numba": ("pymc-numba",),
}
_LARGE = ("synthetic-10000", "synthetic-100000")
# The bar is the time of GPflow's ML-II on the first, twice that on the others.
_SHORT, _LONG = ("boston", "energy", "yacht"), ("concrete", "winered")


@dataclass(frozen=True)
class Bar:
    """The value that a ratio should reach, and an aim beyond it."""

    reach: float
    aim: float | None = None
    at_least: bool = True

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.reach:g}" + (f", aim {self.aim:g}" if self.aim is not None else "")

    def met(self, ratios: Iterable[float]) -> str:
        """Whether the worst ratio meets the bar. A ratio that is missing on our side counts as infinitely bad."""
        values = list(ratios)
        worst = min(values) if self.at_least else max(values)

        def good(limit: float) -> bool:
            return worst >= limit if self.at_least else worst <= limit

        if not good(self.reach):
            return "**no**"
        return "yes" if self.aim is None else "yes, and the aim" if good(self.aim) else "yes, not the aim"


def summary_cells(rows: list[Row]) -> list[list[str]]:
    """The lines of the table; those without results are left out."""
    lines = [*_gradient_lines(R.of(rows, "gradient")), *_hyper_lines(R.of(rows, "hyperposterior"))]
    lines += _product_lines(*(R.of(rows, m) for m in ("product", "ml2", "hyperposterior")))
    return [[cell.replace("|", "\\|") for cell in line] for line in lines if line]


def _line(measure: str, what: str, ratios: dict[str, float], bar: Bar | None, seen: str = "") -> list[str]:
    if not ratios:
        return []
    return [measure, what, seen or _listed(ratios), str(bar or "-"), bar.met(ratios.values()) if bar else "-"]


def _listed(ratios: dict[str, float]) -> str:
    return ", ".join(f"{place} {ratio:.2f}" for place, ratio in ratios.items())


def _range(ratios: dict[str, float]) -> str:
    """The lowest and the highest ratio, each with its place."""
    if not ratios:
        return ""
    low, high = min(ratios, key=lambda k: ratios[k]), max(ratios, key=lambda k: ratios[k])
    first = f"{ratios[low]:.2f} ({low})"
    return first if len(ratios) == 1 else f"{first} to {ratios[high]:.2f} ({high})"


def _gradient_lines(rows: list[Row]) -> list[list[str]]:
    small = [r for r in rows if not R.problem(r).startswith("synthetic")]
    large = [r for r in rows if R.problem(r) in _LARGE]
    others = {"GPflow compiled by XLA": ("gpflow-xla",), "GPJax and naive NumPyro": ("gpjax", "numpyro")}
    lines = [
        _gradient_line(f"data sets: time of {who}", small, names, Bar(2.5, 4.0)) for who, names in _PACKAGES.items()
    ]
    lines += [_gradient_line(f"data sets: time of {who}", small, names, None) for who, names in others.items()]
    return [*lines, _gradient_line("N = 10⁴ and 10⁵: time of anyone", large, tuple(CONTESTANTS), Bar(1.3))]


def _gradient_line(what: str, rows: list[Row], names: tuple[str, ...], bar: Bar | None) -> list[str]:
    """A line with one core and two cores apart, because a second thread slows some packages down."""
    by_cores = {f"{n} core{'s' if n > 1 else ''}": _times(R.where(rows, cores=n), names) for n in (1, 2)}
    ratios = {f"{place}, {cores}": ratio for cores, times in by_cores.items() for place, ratio in times.items()}
    seen = "; ".join(f"{cores}: {_range(times)}" for cores, times in by_cores.items() if times)
    return _line("1", f"gradient, {what} over ours", ratios, bar, seen)


def _times(rows: list[Row], names: tuple[str, ...]) -> dict[str, float]:
    """Their time over ours, by place; 0 where ours is missing."""
    ratios = {}
    for problem, name in sorted({(R.problem(r), R.name(r)) for r in rows}):
        if name not in names or name == OURS:
            continue
        some = R.where(rows, problem=problem)
        mine, other = (R.middle(R.where(some, contestant=c), median_ms) for c in (OURS, name))
        place = f"{R.bound_label(name)}, {R.title(problem)}"
        if other:
            ratios[place if mine else f"{place}: ours failed"] = other[0] / mine[0] if mine else 0.0
    return ratios


def _hyper_lines(rows: list[Row]) -> list[list[str]]:
    bar = Bar(5.0, 10.0)
    better, both = "ESS a second: ours over the better of PyMC's NUTS and nutpie", ("pymc", "pymc-nutpie")

    def to_the_ess(row: Row) -> float:
        return 1.0 / seconds_to_ess(row)

    def line(
        what: str,
        names: tuple[str, ...],
        bar: Bar | None,
        rate: Callable[[Row], float] = ess_per_second,
        ours: str = OURS_FIXED,
    ):
        ratios = _rates(rows, names, rate, ours)
        return _line("3", what, ratios, bar, ", ".join(filter(None, (_listed(ratios), _left_out(rows, names)))))

    return [
        line(better, both, bar),
        line("ESS a second: ours over PyMC's NUTS", ("pymc",), bar),
        line("ESS a second: ours with nothing on disk over the better of both", both, None, ours=OURS_COLD),
        line("seconds to an ESS of 400: the better of both over ours", both, None, to_the_ess),
        _agreement_line(rows),
    ]


def _left_out(rows: list[Row], names: tuple[str, ...]) -> str:
    """The packages that are not compared on a data set, because the chains of all their runs disagree."""
    left_out = []
    for p in R.datasets(rows):
        for c in names:
            some = R.done(R.where(rows, problem=p, contestant=c))
            if some and not mixed(some):
                left_out.append(f"{R.label(c)} on {R.title(p)} (R-hat {min(r['judged']['r_hat'] for r in some):.2f})")
    return f"without {', '.join(left_out)}" if left_out else ""


def _rates(rows: list[Row], names: tuple[str, ...], rate: Callable[[Row], float], ours: str) -> dict[str, float]:
    """Our rate over the best of theirs that mixed, by data set; 0 where ours is missing."""
    ratios = {}
    for p in R.datasets(rows):
        rates = [R.middle(mixed(R.where(rows, problem=p, contestant=c)), rate) for c in names]
        best = max((rate[0] for rate in rates if rate), default=0.0)
        mine = R.middle(mixed(R.where(rows, problem=p, contestant=ours)), rate)
        if best > 0.0:
            ratios[R.title(p)] = mine[0] / best if mine else 0.0
    return ratios


def _agreement_line(rows: list[Row]) -> list[str]:
    cells, agree = [], True
    for p in R.datasets(rows):
        mine, theirs = (R.done(R.where(rows, problem=p, contestant=c)) for c in (OURS_FIXED, REFERENCE))
        if not mine or not theirs:
            continue
        result = agreement(mine, theirs)
        cells.append(f"{R.title(p)} {result or 'not converged'}")
        agree = agree and result is not None and result.p >= LEAST_P
    if not cells:
        return []
    what = "posterior means against PyMC's NUTS: the largest z-score of how many, and χ²"
    return ["3", what, "; ".join(cells), f"p ≥ {LEAST_P:g} everywhere", "yes" if agree else "**no**"]


def _product_lines(ours: list[Row], ml2: list[Row], hyper: list[Row]) -> list[list[str]]:
    what = "seconds: ours, integrated, over "

    def line(about: str, theirs: Callable[[str], float | None], bar: Bar | None, names: tuple[str, ...] = ()):
        ratios, cells = {}, []
        for p in R.datasets(ours):
            other, own = theirs(p), R.where(ours, problem=p)
            if other is None or (names and R.title(p) not in names):
                continue
            short, base = R.short_of(own), R.middle(own, seconds)
            ratios[R.title(p)] = base[0] / other if base and not short else math.inf
            cells.append(f"{R.title(p)} {short or f'{ratios[R.title(p)]:.2f}'}")
        return _line("4", what + about, ratios, bar, ", ".join(cells))

    def middle_of(rows: list[Row], name: str, value: Callable[[Row], float]) -> Callable[[str], float | None]:
        def middle(p: str) -> float | None:
            some = R.middle(R.where(rows, problem=p, contestant=name), value)
            return some[0] if some else None

        return middle

    def to_target(name: str) -> Callable[[str], float | None]:
        def seconds_of(p: str) -> float | None:
            some = R.where(ml2, problem=p)
            times = seconds_to_target(R.where(some, contestant=name), ml2_target(some))
            return times[0] if times else None

        return seconds_of

    def steps(name: str) -> str:
        given = {str(r["job"]["options"]["steps"]) for r in R.where(ml2, contestant=name)}
        return " or ".join(sorted(given))

    gpflow = middle_of(ml2, "gpflow", seconds)
    to_its_end = f"GPflow's ML-II (to its end, {steps('gpflow')} steps at most, a number that we chose)"
    adam = f"GPyTorch's ML-II ({steps('gpytorch')} steps of Adam, a number that we chose)"
    return [
        line(to_its_end, gpflow, Bar(1.0, at_least=False), _SHORT),
        line(to_its_end, gpflow, Bar(2.0, 1.0, at_least=False), _LONG),
        line("GPflow's ML-II when it was at the target of table 2", to_target("gpflow"), None),
        line(adam, middle_of(ml2, "gpytorch", seconds), Bar(1.0, at_least=False)),
        line("GPyTorch's ML-II when it was at the target of table 2", to_target("gpytorch"), None),
        line("PyMC's NUTS at fixed Z to an ESS of 400", middle_of(mixed(hyper), "pymc", seconds_to_ess), None),
        line(
            "PyMC with nutpie at fixed Z to an ESS of 400", middle_of(mixed(hyper), "pymc-nutpie", seconds_to_ess), None
        ),
    ]
