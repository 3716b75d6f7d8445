"""Figures that hold predictions against data: predicted against observed, and calibration."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from integrand.data.checked import checked_rows
from integrand.metrics import calibration as coverage_table
from integrand.posterior.posterior import Posterior
from integrand.report.style import BLUE, GREY, PALE, RASTER_POINTS, SKY, VERMILION, one_panel, panels, styled


@styled
def predicted_against_observed(
    posterior: Posterior, X: Any, y: Any, *, level: float = 0.95, ax: Axes | None = None
) -> Axes:
    """Predictive mean and central interval of y at each row of X (T, D), against the observed y (T,)."""
    X, y = checked_rows(X, y)
    predicted = posterior.predict(X, include_noise=True)
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
    ax.set(xlabel="observed", ylabel="predicted")
    ax.legend(loc="upper left", handletextpad=0.2)
    return ax


@styled
def calibration(posterior: Posterior, X: Any, y: Any, *, ax: Axes | None = None) -> np.ndarray:
    """Two panels: `pit` and `coverage`."""
    made = panels(2, ax, (3.5, 3.2))
    pit(posterior, X, y, ax=made[0])
    coverage(posterior, X, y, ax=made[1])
    return made


@styled
def pit(posterior: Posterior, X: Any, y: Any, *, ax: Axes | None = None) -> Axes:
    """Histogram of F_t(y_t), flat if the predictions are calibrated, with the 95 % band of chance."""
    X, y = checked_rows(X, y)
    values = posterior.predict(X, include_noise=True).cdf(y)
    bins = int(np.clip(len(y) // 10, 4, 10))
    ax = one_panel(ax, (3.5, 3.2))
    spread = 1.96 * np.sqrt((bins - 1) / len(y))
    ax.axhspan(max(1 - spread, 0), 1 + spread, color=PALE, alpha=0.7, lw=0, label="expected by chance (95 %)")
    ax.axhline(1, color=GREY, lw=1, ls=(0, (4, 2)))
    ax.hist(values, bins, range=(0, 1), density=True, color=SKY, edgecolor=BLUE, alpha=0.7, lw=0.8)
    ax.set(xlim=(0, 1), xlabel="probability integral transform", ylabel="density")
    ax.set_ylim(top=1.25 * ax.get_ylim()[1])
    ax.legend(loc="upper center")
    return ax


@styled
def coverage(posterior: Posterior, X: Any, y: Any, *, ax: Axes | None = None) -> Axes:
    """Share of rows inside their central intervals against the intervals' level, with the 95 % band of chance."""
    X, y = checked_rows(X, y)
    table = coverage_table(posterior.predict(X, include_noise=True).mixture(), y, np.linspace(0.02, 0.98, 49))
    level, spread = table["level"], 1.96 * table["standard_error"]
    ax = one_panel(ax, (3.5, 3.2))
    band = np.clip(level - spread, 0, 1), np.clip(level + spread, 0, 1)
    ax.fill_between(level, *band, color=PALE, alpha=0.7, lw=0, label="expected by chance (95 %)")
    ax.plot([0, 1], [0, 1], color=GREY, lw=1, ls=(0, (4, 2)))
    ax.plot(level, table["coverage"], color=BLUE, lw=1.8)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="level of the interval", ylabel="share of rows inside")
    ax.legend(loc="upper left")
    return ax
