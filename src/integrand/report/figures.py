"""Figures about a posterior, each usable on its own: they take a `Posterior`, and return matplotlib axes.

Without `ax` a new figure is made (never one of pyplot's; save it by ``axes.figure.savefig(path)``). Figures of several
panels return an array of axes; given `ax`, they divide its place among the panels.


Figures of the chains themselves: traces and ranks.

Figures that hold predictions against data: predicted against observed, and calibration.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.ticker import MaxNLocator
from scipy.stats import binom, rankdata

from integrand.data.categories import coded
from integrand.data.checks import checked_rows
from integrand.errors import InputError
from integrand.likelihoods import Gaussian
from integrand.metrics import calibration as coverage_table
from integrand.posterior.posterior import Posterior
from integrand.report.style import (
    BLUE,
    CHAIN_COLOURS,
    GREY,
    INK,
    ORANGE,
    PALE,
    RASTER_POINTS,
    SKY,
    VERMILION,
    log_axis,
    number,
    one_panel,
    panels,
    share_heights,
    shortened,
    spans_decades,
    styled,
)
from integrand.report.tables import Entry, entries, is_sampled, optimum_label, relevances, relevant_columns, some_rows

__all__ = [
    "bound_history",
    "calibration",
    "coverage",
    "hyperposterior",
    "inducing_path",
    "pit",
    "plot",
    "predicted_against_observed",
    "ranks",
    "relevance",
    "slices",
    "traces",
]


@styled
def hyperposterior(
    posterior: Posterior, names: Sequence[str] | None = None, *, ax: Axes | None = None, legend: bool = True
) -> np.ndarray:
    """Marginal posterior of each hyperparameter in the units of the data, its prior, and the optimised point.

    Parameters
    ----------
    names
        Entries of `posterior.model.names`; all by default.
    legend
        Whether to draw a legend above the panels.
    """
    by_name = {e.name: e for e in entries(posterior)}
    unknown = [name for name in names or () if name not in by_name]
    if unknown or not by_name:
        raise InputError(f"there is no hyperparameter {unknown[0]!r}" if unknown else "nothing was inferred")
    chosen = list(by_name.values()) if names is None else [by_name[name] for name in names]
    made = panels(len(chosen), ax, (2.25, 1.8))
    label = optimum_label(posterior)
    for panel, e in zip(made, chosen, strict=True):
        _marginal(panel, e, label, is_sampled(posterior))
    if legend:
        handles, labels = made[0].get_legend_handles_labels()
        if ax is None:
            made[0].figure.legend(handles, labels, loc="outside upper center", ncols=4)
        else:
            made[0].legend(handles, labels)
    return made


def _marginal(ax: Axes, e: Entry, label: str, sampled: bool) -> None:
    """A marginal, on a logarithmic axis if it spans decades; heights are then densities of the logarithm."""
    decades = sampled and e.offset == 0.0 and spans_decades(e.draws, 1.0)
    low, high = _log_range(e) if decades else _range(e, sampled)
    if sampled:
        edges = np.geomspace(low, high, 37) if decades else np.linspace(low, high, 37)
        counts = np.histogram(e.draws.ravel(), edges)[0]
        heights = counts / (e.draws.size * np.diff(np.log(edges) if decades else edges))
        ax.stairs(heights, edges, fill=True, color=SKY, alpha=0.55, lw=0, label="posterior")
        q5, q50, q95 = e.quantile([0.05, 0.5, 0.95])
        base = ax.get_xaxis_transform()
        ax.plot([q5, q95], [0.025, 0.025], color=BLUE, lw=3, transform=base, label="90 % interval, median")
        ax.plot(q50, 0.025, "o", ms=5.5, mfc="white", mec=BLUE, mew=1.5, transform=base, zorder=5)
    grid = np.geomspace(low, high, 300) if decades else np.linspace(low, high, 300)
    density = e.prior_density(grid) * (grid if decades else 1.0)
    ax.plot(grid, density, color=GREY, lw=1.1, ls=(0, (4, 2)), label="prior")
    # A prior that is high where the posterior is not must not flatten the posterior.
    top = np.max(heights) if sampled else np.max(density)
    ax.set_ylim(0.0, 1.12 * top if top > 0 else 1.0)
    if low <= e.optimum <= high:
        ax.axvline(e.optimum, color=VERMILION, lw=1.8, label=label)
    else:
        right = e.optimum > high
        ax.plot([], [], color=VERMILION, lw=1.8, label=label)
        ax.annotate(
            f"{label} {number(e.optimum)}",
            (1.0 if right else 0.0, 0.8),
            (0.8 if right else 0.2, 0.8),
            xycoords="axes fraction",
            color=VERMILION,
            ha="right" if right else "left",
            va="center",
            fontsize=8,
            arrowprops={"arrowstyle": "-|>", "color": VERMILION, "lw": 1.8, "shrinkA": 2, "shrinkB": 0},
        )
    if decades:
        log_axis(ax.xaxis)
    else:
        ax.locator_params(axis="x", nbins=4)
    ax.set(xlim=(low, high), yticks=[])
    ax.spines["left"].set_visible(False)
    ax.set_title(shortened(e.name, 32), parse_math=False)
    ax.set_xlabel(shortened(e.unit, 32), parse_math=False)


def _range(e: Entry, sampled: bool) -> tuple[float, float]:
    """What a marginal shows: nearly all draws, and the optimised point if it is not far away."""
    if sampled:
        low, high = e.quantile([0.002, 0.998])
        pad = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
        low, high = low - pad, high + pad
        if low - 0.6 * (high - low) < e.optimum < high + 0.6 * (high - low):
            low, high = min(low, e.optimum - pad), max(high, e.optimum + pad)
    else:
        median, optimum = abs(e.prior_median - e.offset) or e.factor, abs(e.optimum - e.offset)
        reach = max(3.5 * median, 1.2 * optimum if optimum < 8.0 * median else 0.0)
        low, high = e.offset - reach, e.offset + reach
    floor = e.offset if e.prior.positive else -np.inf
    return max(low, floor), high


def _log_range(e: Entry) -> tuple[float, float]:
    """What a marginal on a logarithmic axis shows: nearly all draws, and the optimised point within two decades."""
    low, high = e.quantile([0.002, 0.998])
    if low / 100.0 < e.optimum < high * 100.0:
        low, high = min(low, e.optimum), max(high, e.optimum)
    pad = (high / low) ** 0.06
    return low / pad, high * pad


@styled
def relevance(posterior: Posterior, *, most: int = 30, ax: Axes | None = None) -> Axes:
    """Relevance of the columns: 1 / lengthscale in standardised units with 50 and 90 % intervals, sorted."""
    rows = relevances(posterior)[:most]
    if not rows:
        raise InputError("this kernel has no lengthscale of its own for each column (ard=True), so none stands out")
    ax = one_panel(ax, (4.6, 0.9 + 0.25 * len(rows)))
    label = optimum_label(posterior)
    for i, row in enumerate(rows):
        q5, q25, q50, q75, q95 = np.quantile(row["draws"], [0.05, 0.25, 0.5, 0.75, 0.95])
        if is_sampled(posterior):
            ax.plot([q5, q95], [i, i], color=BLUE, lw=1.3, label="" if i else "90 % interval")
            ax.plot([q25, q75], [i, i], color=BLUE, lw=4, label="" if i else "50 % interval")
            ax.plot(q50, i, "o", ms=5, mfc="white", mec=BLUE, mew=1.3, zorder=4)
        ax.plot(row["optimum"], i, "D", ms=5, color=VERMILION, zorder=5, clip_on=False, label="" if i else label)
    ax.set_yticks(range(len(rows)), [shortened(row["label"], 24) for row in rows], parse_math=False)
    ax.set(ylim=(len(rows) - 0.4, -0.6), xlabel="1 / lengthscale (standardised)")
    middles = np.array([np.median(row["draws"]) for row in rows])
    if spans_decades(middles, 1.3):
        log_axis(ax.xaxis)
    else:
        ax.set_xlim(left=0.0)
    ax.grid(axis="y", color=PALE, lw=0.5)
    ax.tick_params(axis="y", length=0)
    ax.set_title("Relevance of the columns", pad=24)
    ax.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=3, columnspacing=1.4)
    return ax


@styled
def bound_history(posterior: Posterior, *, ax: Axes | None = None) -> Axes:
    """The lower bound on the log marginal likelihood over time: at one θ while optimising, then averaged over draws."""
    if not posterior.history:
        raise InputError("this posterior has no history of the bound")
    ax = one_panel(ax, (4.2, 3.2))
    optimised = [b for b in posterior.history if b.phase != "round"]
    rounds = [b for b in posterior.history if b.phase == "round"]
    if optimised:
        style = "o-" if len(optimised) < 30 else "-"
        label = f"at the {optimum_label(posterior)} point"
        ax.plot([b.seconds for b in optimised], [b.bound for b in optimised], style, color=VERMILION, ms=4, label=label)
    if rounds:
        seconds, bounds, errors = (np.array([getattr(b, k) for b in rounds]) for k in ("seconds", "bound", "error"))
        ax.errorbar(
            seconds, bounds, errors, fmt="s-", color=BLUE, ms=4, capsize=3, label="averaged over draws (± 1 s.e.)"
        )
    ax.margins(x=0.1, y=0.15)
    bounds = np.array([b.bound for b in posterior.history])
    floor = bounds[-1] - max(20.0, 5.0 * (bounds[-1] - np.median(bounds)))
    if bounds.min() < floor:  # the first steps are far below all others
        ax.set_ylim(floor, bounds.max() + 0.06 * (bounds.max() - floor))
    ax.set(xlabel="seconds since the start", ylabel="bound (nats)", title="The bound over time")
    ax.legend(loc="best")
    return ax


@styled
def inducing_path(
    posterior: Posterior, X: Any = None, *, columns: tuple[int, int] | None = None, ax: Axes | None = None
) -> Axes:
    """Where the inducing inputs moved: from the warm start (hollow) to the end (full), over the data if given.

    Drawn for two columns, by default the most relevant ones; against the round where there is but one column.
    """
    if posterior.Z_path is None:
        raise InputError(f"{posterior.method} has no inducing inputs that could move")
    path = posterior.scaler.inverse_X(posterior.Z_path)
    names = posterior.model.columns
    ax = one_panel(ax, (4.2, 3.4))
    if path.shape[2] == 1:
        rounds = np.broadcast_to(np.arange(len(path))[:, None], path.shape[:2])
        route, labels = np.stack([path[..., 0], rounds], axis=-1), (names[0], "round")
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        a, b = columns or relevant_columns(posterior, 2)
        route, labels = path[..., [a, b]], (names[a], names[b])
        if X is not None:
            X = np.asarray(coded(X, posterior.model.levels)[0], float)
            ax.plot(X[:, a], X[:, b], ".", ms=3, mew=0, color=GREY, alpha=0.45, rasterized=len(X) > RASTER_POINTS)
            ax.plot([], [], ".", color=GREY, label="data")
    if len(route) > 1:
        ax.add_collection(LineCollection(list(route.transpose(1, 0, 2)), colors=ORANGE, lw=1.1, zorder=3))
        ax.plot(*route[0].T, "o", ms=4, mfc="none", mec=INK, mew=0.7, label="after the warm start", zorder=3)
    ax.plot(*route[-1].T, "o", ms=4.5, color=BLUE, mec="white", mew=0.5, label="at the end", zorder=4)
    for axis, values in ((ax.xaxis, route[..., 0]), (ax.yaxis, route[..., 1])):
        if path.shape[2] > 1 and spans_decades(values):
            log_axis(axis)
    ax.set_xlabel(shortened(labels[0], 40), parse_math=False)
    ax.set_ylabel(shortened(labels[1], 30), parse_math=False)
    ax.set_title("Inducing inputs", pad=24)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, columnspacing=1.2, handletextpad=0.2)
    return ax


@styled
def slices(
    posterior: Posterior,
    X: Any = None,
    y: Any = None,
    *,
    columns: Sequence[int | str] | None = None,
    ax: Axes | None = None,
    legend: bool = True,
) -> np.ndarray:
    """The prediction along one column at a time, the others at their medians: median, 50 and 95 % bands.

    The bands are those of f, or of the mean of y where y is counts or classes. Dotted lines hold 95 % of new
    observations. Medians and ranges are those of X (N, D), else of the inducing inputs; with y (N,) its values are
    shown, though the other columns of these rows are not at their medians.
    """
    points = posterior.Z if X is None else np.asarray(coded(X, posterior.model.levels)[0], float)
    names = list(posterior.model.columns)
    chosen = relevant_columns(posterior, 4) if columns is None else [_column(c, names) for c in columns]
    made = panels(len(chosen), ax, (2.4, 2.0))
    for panel, column in zip(made, chosen, strict=True):
        levels, at_medians = posterior.model.levels, np.median(points, axis=0)
        at_medians[list(levels)] = np.round(at_medians[list(levels)])
        grid = (
            np.arange(float(len(levels[column])))
            if column in levels
            else _grid(panel, _places(posterior, X, points, column))
        )
        at = np.tile(at_medians, (len(grid), 1))
        at[:, column] = grid
        if y is not None:
            _dots(panel, points[:, column], np.asarray(y, float))
        _bands(panel, posterior, grid, at)
        _rug(panel, points[(points[:, column] >= grid[0]) & (points[:, column] <= grid[-1]), column])
        panel.set_xlabel(shortened(posterior.model.columns[column], 32), parse_math=False)
    made[0].set_ylabel("y" if y is not None or not _gaussian(posterior) else "f")
    share_heights(made)
    if legend and ax is None:
        made[0].figure.legend(*made[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    elif legend:
        made[0].legend()
    return made


def _column(column: int | str, names: list[str]) -> int:
    """The number of a column, given that or its name."""
    if isinstance(column, str) and column not in names:
        raise InputError(f"there is no column {column!r}: choose from {', '.join(names)}")
    return names.index(column) if isinstance(column, str) else column


def _gaussian(posterior: Posterior) -> bool:
    return isinstance(posterior.model.likelihood, Gaussian)


def _places(posterior: Posterior, X: Any, points: np.ndarray, column: int) -> np.ndarray:
    """Values along a column: those of the rows, or without rows the range that the fit had."""
    return points[:, column] if X is not None or posterior.ranges is None else posterior.ranges[column]


def _grid(ax: Axes, values: np.ndarray, beyond: float = 0.0, n: int = 80) -> np.ndarray:
    """Places along a column from its 1 to its 99 % quantile, evenly in the logarithm if the values span decades."""
    low, high = np.quantile(values, [0.01, 0.99]) if beyond == 0.0 else (values.min(), values.max())
    if not high > low:
        low, high = low - 1.0, high + 1.0
    if spans_decades(values):
        log_axis(ax.xaxis)
        grid = np.geomspace(low, high, n)
    else:
        pad = beyond * (high - low)
        grid = np.linspace(low - pad, high + pad, n)
        ax.locator_params(axis="x", nbins=5)
    ax.set_xlim(grid[0], grid[-1])
    return grid


def _dots(ax: Axes, x: np.ndarray, y: np.ndarray, most: int = 1_000) -> None:
    """Some of the data."""
    x, y = some_rows(x, y, most)
    size, alpha = (5.0, 0.8) if len(x) <= 200 else (3.0, 0.5)
    ax.plot(x, y, ".", ms=size, mew=0, color=GREY, alpha=alpha, rasterized=len(x) > RASTER_POINTS, label="data")


def _bands(ax: Axes, posterior: Posterior, grid: np.ndarray, at: np.ndarray) -> None:
    """Median and bands of the mean of y given f, and the lines that hold 95 % of new observations."""
    own = np.zeros(len(at)) if posterior.known_noise else None  # known noise is of rows, not of a place
    predicted = posterior.predict(at, include_noise=True, noise_variance=own)
    likelihood = posterior.model.likelihood
    q = predicted.latent().quantile(np.array([0.025, 0.25, 0.5, 0.75, 0.975]))
    name = "f"
    if not _gaussian(posterior):
        name, noise = "the mean of y", float(np.mean(np.sqrt(predicted.components()[2])))
        q = np.asarray(likelihood.marginal_mean(q, np.zeros_like(q), noise))  # a quantile of f gives that of the mean
    ax.fill_between(grid, q[0], q[4], color=SKY, alpha=0.35, lw=0, label=f"95 % of {name}")
    ax.fill_between(grid, q[1], q[3], color=BLUE, alpha=0.4, lw=0, label=f"50 % of {name}")
    ax.plot(grid, q[2], color=BLUE, lw=1.6, label="median")
    if likelihood.largest != 1.0:  # of two classes an interval says nothing
        for bound in predicted.interval(0.95):
            ax.plot(grid, bound, color=GREY, lw=1, ls=":")
        ax.plot([], [], color=GREY, lw=1, ls=":", label=f"95 % of y{own_noise(posterior)}")


def own_noise(posterior: Posterior) -> str:
    """What a place without a row leaves out of the spread of new observations."""
    return ", without known noise" if posterior.known_noise else ""


def coded_rows(posterior: Posterior, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Checked rows, with codes in the place of the categories that the model knows."""
    return checked_rows(coded(X, posterior.model.levels)[0], y)


@styled
def plot(model: Any, X: Any = None, y: Any = None, *, ax: Axes | None = None) -> Axes | np.ndarray:
    """The fitted function: with one column data, median, bands and inducing inputs; else the slices along columns.

    Parameters
    ----------
    model
        A fitted estimator, or what `integrand.fit` returned.
    X, y
        Rows with their observations, to show beside the prediction.
    ax
        Where to draw; by default in a new figure, which is `.figure` of what this returns.

    Returns
    -------
    Axes, or for several columns an array of them.
    """
    posterior = getattr(model, "posterior_", model)
    if hasattr(model, "estimators_"):
        raise InputError(
            "with more than two classes each has a model of its own: plot one of them, as in "
            "plot(clf.estimators_[0], X, y == clf.classes_[0]). predict_proba has the probabilities of all"
        )
    if not isinstance(posterior, Posterior):
        raise InputError(f"plot takes a fitted model, not {type(model).__name__}: fit it first")
    if X is not None and y is not None:
        X, y = coded_rows(posterior, X, getattr(model, "_coded", np.asarray)(np.asarray(y)))  # labels of a classifier
    elif X is not None or y is not None:
        raise InputError("plot takes rows with their observations: give both X and y, or neither")
    if posterior.model.n_columns > 1:
        return slices(posterior, X, y, ax=ax)
    ax = one_panel(ax, (6.4, 3.6))
    values = _places(posterior, X, posterior.Z, 0) if X is None else np.concatenate([X[:, 0], posterior.Z[:, 0]])
    grid = _grid(ax, values, beyond=0.05, n=200)
    if X is not None and y is not None:
        _dots(ax, X[:, 0], y)
    _bands(ax, posterior, grid, grid[:, None])
    if posterior.Z_path is not None:
        Z = posterior.Z[:, 0]
        marks = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 5}
        ax.plot(Z, np.zeros_like(Z), "|", color=VERMILION, ms=9, mew=1.4, label="inducing inputs", **marks)
    ax.set_xlabel(shortened(posterior.model.columns[0], 60), parse_math=False)
    ax.set(ylabel="y", title="Prediction")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax


def _rug(ax: Axes, values: np.ndarray, most: int = 250) -> None:
    """Ticks at some of the values along the foot, as one line with gaps: hundreds of marks would be a large file."""
    some = np.unique(values)
    some = some[np.linspace(0, len(some) - 1, min(most, len(some))).astype(int)]
    x, height = np.repeat(some, 3), np.tile([0.0, 0.04, np.nan], len(some))
    ax.plot(x, height, color=INK, lw=0.5, alpha=0.5, transform=ax.get_xaxis_transform())


_RASTER_DRAWS = 3_000


@styled
def traces(posterior: Posterior, names: Sequence[str] | None = None, *, ax: Axes | None = None) -> np.ndarray:
    """Draws of each hyperparameter by chain, in the units of the data; marks below are divergent draws.

    Parameters
    ----------
    names
        Entries of `posterior.model.names`; by default the 12 with the largest R-hat.
    """
    chosen = _chosen(posterior, names)
    made = panels(len(chosen), ax, (2.4, 1.65))
    for panel, e in zip(made, chosen, strict=True):
        for k, chain in enumerate(e.draws):
            colour = CHAIN_COLOURS[k % len(CHAIN_COLOURS)]
            raster = e.draws.size > _RASTER_DRAWS
            panel.plot(chain, color=colour, lw=0.6, alpha=0.8, rasterized=raster, label=f"chain {k + 1}")
        diverging = np.flatnonzero(posterior.chains.diverging.any(axis=0))
        foot = panel.get_xaxis_transform()
        panel.plot(diverging, np.full(len(diverging), 0.02), "|", color=INK, ms=7, transform=foot)
        panel.margins(x=0.01)
        panel.set_title(shortened(e.name, 34), parse_math=False)
        panel.set_xlabel("draw")
        panel.locator_params(nbins=4)
    return made


@styled
def ranks(posterior: Posterior, names: Sequence[str] | None = None, *, ax: Axes | None = None) -> np.ndarray:
    """Histograms of the ranks of each chain's draws among all draws: flat, within the band, if the chains agree.

    The band holds 95 % of the bars of independent draws; dependent draws leave it more often.
    """
    chosen = _chosen(posterior, names)
    made = panels(len(chosen), ax, (2.4, 1.9))
    n_chains, n = posterior.chains.x.shape[:2]
    bins = int(np.clip(n // 10, 2, 20))
    low, high = (binom.ppf(p, n, 1.0 / bins) * bins / n for p in (0.025, 0.975))
    edges = np.linspace(0.0, 1.0, bins + 1)
    for panel, e in zip(made, chosen, strict=True):
        share = (rankdata(e.draws).reshape(n_chains, n) - 0.5) / e.draws.size
        for k in range(n_chains):
            heights = np.histogram(share[k], edges)[0] * bins / n
            floor, colour = n_chains - 1 - k, CHAIN_COLOURS[k % len(CHAIN_COLOURS)]
            scale = 0.9 / max(2.0, high, heights.max())
            panel.fill_between([0, 1], floor + scale * low, floor + scale * high, color=PALE, alpha=0.7, lw=0)
            panel.stairs(floor + scale * heights, edges, baseline=floor, fill=True, color=colour, alpha=0.75, lw=0)
            panel.plot([0, 1], [floor + scale] * 2, color=GREY, lw=0.8, ls=(0, (4, 2)))
        panel.set_yticks(np.arange(n_chains) + 0.45, [str(k) for k in range(n_chains, 0, -1)])
        panel.set(xlim=(0, 1), ylim=(0, n_chains), ylabel="chain", xlabel="rank among all draws")
        panel.set_xticks([0, 0.5, 1], ["lowest", "middle", "highest"])
        panel.tick_params(axis="y", length=0)
        panel.set_title(shortened(e.name, 34), parse_math=False)
    return made


def worst_mixed(posterior: Posterior, n: int) -> list[str]:
    """Names of the `n` hyperparameters with the largest R-hat, in the order of the model."""
    if posterior.verdict is None or not is_sampled(posterior):
        raise InputError(f"{posterior.method} gave one point here, and no chains to look at: sample with sgpr-hmc")
    worst = np.argsort(-posterior.verdict.convergence.r_hat, kind="stable")[:n]
    return [posterior.model.names[i] for i in np.sort(worst)]


def _chosen(posterior: Posterior, names: Sequence[str] | None) -> list[Entry]:
    worst, by_name = worst_mixed(posterior, 12), {e.name: e for e in entries(posterior)}
    for name in names or ():
        if name not in by_name:
            raise InputError(f"there is no hyperparameter {name!r}")
    return [by_name[name] for name in (worst if names is None else names)]


@styled
def predicted_against_observed(
    posterior: Posterior,
    X: Any,
    y: Any,
    *,
    level: float = 0.95,
    ax: Axes | None = None,
    noise_variance: Any = None,
) -> Axes:
    """Predictive mean and central interval of y at each row of X (T, D), against the observed y (T,)."""
    X, y = coded_rows(posterior, X, y)
    predicted = posterior.predict(X, include_noise=True, noise_variance=noise_variance)
    mean, (lower, upper) = predicted.mean, predicted.interval(level)
    out = (y < lower) | (y > upper)
    ax = one_panel(ax, (3.5, 3.2))
    raster = len(y) > RASTER_POINTS
    ends = float(min(y.min(), mean.min())), float(max(y.max(), mean.max()))
    ax.plot(ends, ends, color=GREY, lw=1, ls=(0, (4, 2)))
    for some, colour, marker, text in (
        (~out, BLUE, "o", f"inside the {100 * level:g} % interval"),
        (out, VERMILION, "D", f"outside: {int(out.sum())} of {len(y)} ({100 * np.mean(out):.1f} %)"),
    ):
        ax.vlines(y[some], lower[some], upper[some], color=colour, lw=0.7, alpha=0.25, rasterized=raster)
        ax.plot(y[some], mean[some], marker, ms=3, mew=0, color=colour, alpha=0.8, label=text, rasterized=raster)
    ax.set(xlabel="observed", ylabel="predicted", title="Predicted against observed")
    ax.legend(loc="upper left", handletextpad=0.2)
    return ax


@styled
def calibration(
    posterior: Posterior, X: Any, y: Any, *, ax: Axes | None = None, noise_variance: Any = None
) -> np.ndarray:
    """Two panels: `pit` and `coverage`."""
    made = panels(2, ax, (3.5, 3.2))
    pit(posterior, X, y, ax=made[0], noise_variance=noise_variance)
    coverage(posterior, X, y, ax=made[1], noise_variance=noise_variance)
    return made


@styled
def pit(posterior: Posterior, X: Any, y: Any, *, ax: Axes | None = None, noise_variance: Any = None) -> Axes:
    """Histogram of F_t(y_t), flat if the predictions are calibrated, with the 95 % band of chance."""
    X, y = coded_rows(posterior, X, y)
    predicted = posterior.predict(X, include_noise=True, noise_variance=noise_variance)
    below, above = predicted.cdf(np.nextafter(y, -np.inf)), predicted.cdf(y)
    bins = int(np.clip(len(y) // 10, 4, 10))
    ax = one_panel(ax, (3.5, 3.2))
    spread = 1.96 * np.sqrt((bins - 1) / len(y))
    ax.axhspan(max(1 - spread, 0), 1 + spread, color=PALE, alpha=0.7, lw=0, label="expected by chance (95 %)")
    ax.axhline(1, color=GREY, lw=1, ls=(0, (4, 2)))
    # An observation of a discrete y fills the step of F evenly (Czado, Gneiting and Held, 2009).
    edges, wide = np.linspace(0.0, 1.0, bins + 1), above - below > 1e-9
    shares = np.where(wide, (edges[:, None] - below) / np.where(wide, above - below, 1.0), edges[:, None] > above)
    inner = np.clip(shares, 0.0, 1.0).mean(axis=1)[1:-1]
    heights = bins * np.diff(inner, prepend=0.0, append=1.0)
    ax.stairs(heights, edges, fill=True, facecolor=SKY, edgecolor=BLUE, alpha=0.7, lw=0.8)
    ax.set(xlim=(0, 1), xlabel="probability integral transform", ylabel="density", title="Calibration: PIT")
    ax.set_ylim(top=1.25 * ax.get_ylim()[1])
    ax.legend(loc="upper center")
    return ax


@styled
def coverage(posterior: Posterior, X: Any, y: Any, *, ax: Axes | None = None, noise_variance: Any = None) -> Axes:
    """Share of rows inside their central intervals against the intervals' level, with the 95 % band of chance."""
    X, y = coded_rows(posterior, X, y)
    predicted = posterior.predict(X, include_noise=True, noise_variance=noise_variance)
    table = coverage_table(predicted.mixture(), y, np.linspace(0.02, 0.98, 49))
    level, spread = table["level"], 1.96 * table["standard_error"]
    ax = one_panel(ax, (3.5, 3.2))
    band = np.clip(level - spread, 0, 1), np.clip(level + spread, 0, 1)
    ax.fill_between(level, *band, color=PALE, alpha=0.7, lw=0, label="expected by chance (95 %)")
    ax.plot([0, 1], [0, 1], color=GREY, lw=1, ls=(0, (4, 2)))
    ax.plot(level, table["coverage"], color=BLUE, lw=1.8)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="level of the interval", ylabel="share of rows inside")
    ax.set_title("Calibration: coverage")
    ax.legend(loc="upper left")
    return ax
