"""The figures of the page, one function each; a figure without data is not drawn."""

from pathlib import Path

import rows as R
from agreement import REFERENCE, mixed
from agreement import agreement as agreement_of
from contestants import OURS
from rows import Row
from tables import median_ms
from tables_accuracy import LIKE_FOR_LIKE, less_ours, like_for_like
from tables_hyper import ess_per_second, seconds_to_ess
from tables_product import seconds

_COLOURS = {"integrand": "#0b5fa5", "gpflow": "#d95f02", "gpytorch": "#7f3c8d", "pyro": "#b07aa1", "pymc": "#3a923a"}
_COLOURS |= {"gpjax": "#c43c39", "numpyro": "#8c8c8c", "sklearn": "#b8a100"}
_HATCHES = {"gpytorch-slow": "///", "pymc-nutpie": "///", "pymc-z": "\\\\\\", "gpflow-sgpmc": "///"}
_HATCHES |= {"pymc-numba": "...", "gpflow-xla": "..."}


# Bars that differ by more than this have a log scale: below it they can stand on zero.
_LOG_FROM = 10.0


def draw_all(rows: list[Row], out: Path) -> list[str]:
    """Write every figure that there are rows for; returns their names."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 130})
    drawn = []
    for name, draw in (
        ("gradient", gradient),
        ("ml2", ml2),
        ("hyperposterior", hyperposterior),
        ("agreement", agreement),
        ("product", product),
        ("accuracy", accuracy),
        ("growth", growth),
    ):
        figure = draw(pyplot, rows)
        if figure is not None:
            figure.savefig(out / f"{name}.png", bbox_inches="tight")
            pyplot.close(figure)
            drawn.append(name)
    return drawn


def _plain(text: str) -> str:
    """A label without the page's marks."""
    return text.replace("`", "")


def _log(axis) -> None:
    """Ticks at 1, 2 and 5 in plain numbers: many ranges here are within a decade."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_formatter(NullFormatter())


def _style(contestant: str) -> dict[str, str]:
    family = next(name for name in _COLOURS if contestant.startswith(name))
    return {"color": _COLOURS[family], "hatch": _HATCHES.get(contestant, ""), "edgecolor": "white"}


def _colour(contestant: str) -> str:
    return _style(contestant)["color"]


def _bars(axes, groups: list[str], values: dict[str, list[float | None]], label: str, names=R.label) -> None:
    """Grouped bars, one group for each problem, on a log scale if they need one; None leaves a gap."""
    width = 0.8 / max(len(values), 1)
    for k, (contestant, heights) in enumerate(values.items()):
        places = [(g + (k - 0.5 * (len(values) - 1)) * width, h) for g, h in enumerate(heights) if h is not None]
        if places:
            x, h = zip(*places, strict=True)
            axes.bar(x, h, width, label=_plain(names(contestant)), **_style(contestant))
    axes.set_xticks(range(len(groups)), [R.title(g) for g in groups])
    known = [v for found in values.values() for v in found if v]
    if known and max(known) > _LOG_FROM * min(known):
        axes.set_yscale("log")
    axes.set_ylabel(label)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)


def _legend(figure, axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = min(3, max(len(labels), 1))
    figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=columns, frameon=False)


def _medians(rows: list[Row], problems: list[str], value) -> dict[str, list[float | None]]:
    found = {}
    for c in R.ordered(map(R.name, rows)):
        middles = [R.middle(R.where(rows, contestant=c, problem=p), value) for p in problems]
        found[c] = [m[0] if m else None for m in middles]
    return found


def gradient(pyplot, rows: list[Row]):
    rows = R.of(rows, "gradient")
    problems = [p for p in R.datasets(rows) if R.where(rows, problem=p, cores=1)]
    if not R.done(rows) or not problems:
        return None
    figure, panels = pyplot.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
    for axes, cores in zip(panels, (1, 2), strict=True):
        _bars(axes, problems, _medians(R.where(rows, cores=cores), problems, median_ms), "ms", R.bound_label)
        axes.set_title(f"Value and gradient of the bound, {cores} core{'s' if cores > 1 else ''}", loc="left")
    _legend(figure, panels[0])
    return figure


def ml2(pyplot, rows: list[Row]):
    rows = R.done(R.of(rows, "ml2"))
    problems = R.datasets(rows)
    if not problems:
        return None
    figure, panels = pyplot.subplots(
        1, len(problems), figsize=(3.0 * len(problems) + 1.5, 3.4), squeeze=False, layout="constrained"
    )
    for axes, p in zip(panels[0], problems, strict=True):
        names = [c for c in R.ordered(map(R.name, rows)) if c != "sklearn"]
        some = [r for c in names for r in R.where(rows, problem=p, repeat=0, contestant=c)]
        best = max(r["result"]["bound"] for r in some) if some else 0.0
        for r in some:
            points = r["result"]["trajectory"]
            gaps = [max(best - b, 0.0) + 0.1 for _, b in points]
            style = "--" if R.name(r) == "gpytorch-slow" else "-"
            axes.plot(
                [t for t, _ in points], gaps, style, color=_colour(R.name(r)), label=_plain(R.label(R.name(r))), lw=1.5
            )
        axes.set(xscale="log", yscale="log", title=R.title(p), xlabel="seconds since the process began")
        _log(axes.xaxis)
        axes.grid(alpha=0.25)
    panels[0][0].set_ylabel("nats below the best bound (+ 0.1)")
    _legend(figure, panels[0][0])
    return figure


def hyperposterior(pyplot, rows: list[Row]):
    rows = mixed(R.done(R.of(rows, "hyperposterior")))
    problems = R.datasets(rows)
    if not problems:
        return None
    figure, axes = pyplot.subplots(figsize=(9, 3.6), layout="constrained")
    _bars(axes, problems, _medians(rows, problems, ess_per_second), "min ESS a second")
    axes.set_title("Hyperposterior at fixed Z, fresh process included", loc="left")
    _legend(figure, axes)
    return figure


def agreement(pyplot, rows: list[Row]):
    """Every z-score, beside where 95 % of them should be."""
    rows = R.done(R.of(rows, "hyperposterior"))
    problems = [p for p in R.datasets(rows) if R.where(rows, problem=p, contestant=REFERENCE)]
    names = [c for c in R.ordered(map(R.name, rows)) if c not in (REFERENCE, "pyro-exact")]
    if not problems or not names:
        return None
    figure, axes = pyplot.subplots(figsize=(9, 3.2), layout="constrained")
    axes.axhspan(-1.96, 1.96, color="#dddddd", alpha=0.6, lw=0)
    for k, c in enumerate(names):
        points = []
        for g, p in enumerate(problems):
            mine, theirs = (R.where(rows, problem=p, contestant=name) for name in (c, REFERENCE))
            found = agreement_of(mine, theirs)
            if found is not None:
                place = g + (k - 0.5 * (len(names) - 1)) * 0.15
                points += [(place, z) for z in found.z]
        if points:
            axes.plot(*zip(*points, strict=True), "o", ms=4, alpha=0.7, color=_colour(c), label=_plain(R.label(c)))
    axes.set_xticks(range(len(problems)), [R.title(p) for p in problems])
    axes.set_ylabel("z of posterior means of log θ")
    axes.set_title("Against PyMC's NUTS: each point a hyperparameter, grey where 95 % should lie", loc="left")
    _legend(figure, axes)
    return figure


def product(pyplot, rows: list[Row]):
    ours = R.of(rows, "product")
    problems = R.datasets(R.done(ours))
    if not problems:
        return None

    reached = [r for p in problems if not R.short_of(R.where(ours, problem=p)) for r in R.where(ours, problem=p)]
    values = _medians(reached, problems, seconds)
    values |= {c: v for c, v in _medians(R.of(rows, "ml2"), problems, seconds).items() if c != OURS}
    hyper = [r for r in mixed(R.of(rows, "hyperposterior")) if R.name(r) in ("pymc", "pymc-nutpie")]
    values |= _medians(hyper, problems, seconds_to_ess)
    figure, axes = pyplot.subplots(figsize=(9, 3.6), layout="constrained")
    _bars(axes, problems, values, "seconds")
    title = "Ours, integrated, against ML-II of the others; PyMC at fixed Z to an ESS of 400"
    axes.set_title(title, loc="left")
    _legend(figure, axes)
    return figure


def accuracy(pyplot, rows: list[Row]):
    """Mean difference of nlpd to ours on the same splits, with its standard error."""
    from statistics import mean, stdev

    rows = R.done(R.of(rows, "accuracy"))
    sets = [d for d in sorted({R.problem(r).rpartition("-")[0] for r in rows}) if like_for_like(_of(rows, d))]
    if not sets:
        return None
    figure, panels = pyplot.subplots(1, len(sets), figsize=(4.8 * len(sets), 3.4), squeeze=False, layout="constrained")
    for axes, dataset in zip(panels[0], sets, strict=True):
        some = _of(rows, dataset)
        ours = like_for_like(some)
        found = {c: less_ours(R.where(some, contestant=c), ours) for c in R.ordered(map(R.name, some))[::-1]}
        found = {c: d for c, d in found.items() if d and c != LIKE_FOR_LIKE}
        axes.axvline(0.0, color=_colour(LIKE_FOR_LIKE), lw=1)
        for k, (c, differences) in enumerate(found.items()):
            error = stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
            axes.errorbar(mean(differences), k, xerr=error, fmt="o", color=_colour(c), capsize=3)
        labels = [f"{_plain(R.predictor_label(c))} ({len(d)})" for c, d in found.items()]
        axes.set_yticks(range(len(labels)), labels)
        axes.set(xlabel="nlpd less ours (sgpr-hmc, priors paper), same splits", title=f"{dataset} (splits in brackets)")
        axes.grid(axis="x", alpha=0.25)
    return figure


def _of(rows: list[Row], dataset: str) -> list[Row]:
    return [r for r in rows if R.problem(r).rpartition("-")[0] == dataset]


def growth(pyplot, rows: list[Row]):
    rows = [r for r in R.where(R.of(rows, "gradient"), cores=2) if R.problem(r).startswith("synthetic")]
    if not R.done(rows):
        return None
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    problems = R.datasets(rows)
    for axes, value, label in (
        (panels[0], median_ms, "ms a gradient"),
        (panels[1], lambda r: r["peak_mb"], "peak MB"),
    ):
        for c, heights in _medians(rows, problems, value).items():
            points = [(int(p.rpartition("-")[2]), h) for p, h in zip(problems, heights, strict=True) if h is not None]
            if points:
                style = ":" if c == "pymc-z" else "--" if c in _HATCHES else "-"
                axes.plot(*zip(*points, strict=True), "o" + style, color=_colour(c), label=R.bound_label(c), ms=4)
        axes.set(xscale="log", yscale="log", xlabel="N (M = 200, D = 8)", ylabel=label)
        axes.grid(alpha=0.25)
    _legend(figure, panels[0])
    return figure
