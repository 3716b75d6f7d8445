"""What all figures share: colours, type, and how several panels find their place."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, Locator, NullFormatter

P = ParamSpec("P")
R = TypeVar("R")

# Okabe and Ito's palette, which people with any kind of colour vision can tell apart.
BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY = "#CC79A7", "#56B4E9"
GREY, PALE, INK = "#767676", "#d4d4d4", "#2b2b2b"
CHAIN_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION)
# Beyond this number of points, marks are stored as pixels within a vector figure.
RASTER_POINTS = 800

_STYLE: Any = {
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.labelsize": 8.5,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.7,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "axes.formatter.limits": (-4, 5),
    "axes.formatter.useoffset": False,
    "hatch.linewidth": 0.6,
}


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """Draw in this package's style and leave matplotlib's settings as they were."""

    @functools.wraps(function)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        with mpl.rc_context(_STYLE):
            return function(*args, **kwargs)

    return drawn


def one_panel(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """The given axes, or those of a new figure of `size` inches."""
    ax = Figure(figsize=size, layout="constrained").add_subplot() if ax is None else ax
    _tidy(ax)
    return ax


def panels(n: int, ax: Axes | None, size: tuple[float, float], most_columns: int = 4) -> np.ndarray:
    """`n` axes in a grid, each of `size` inches: in a new figure, or in the place of the given axes."""
    columns = min(n, most_columns)
    rows = -(-n // columns)
    if ax is None:
        figure = Figure(figsize=(columns * size[0], rows * size[1]), layout="constrained")
        grid = figure.add_gridspec(rows, columns)
    elif n == 1:
        _tidy(ax)
        return np.array([ax])
    else:
        figure, place = ax.get_figure(), ax.get_subplotspec()
        box = ax.get_position()
        ax.remove()
        if place is None:
            edges = {"left": box.x0, "right": box.x1, "bottom": box.y0, "top": box.y1}
            grid = figure.add_gridspec(rows, columns, **edges)  # pyright: ignore[reportOptionalMemberAccess]
        else:
            grid = place.subgridspec(rows, columns)
    made = np.array([figure.add_subplot(grid[i // columns, i % columns]) for i in range(n)])  # pyright: ignore
    for panel in made:
        _tidy(panel)
    return made


def share_heights(axes: Iterable[Axes]) -> None:
    """Give all panels the same range of heights, so that they can be compared."""
    axes = list(axes)
    limits = np.array([ax.get_ylim() for ax in axes])
    for ax in axes:
        ax.set_ylim(limits[:, 0].min(), limits[:, 1].max())


def shortened(text: str, most: int = 26) -> str:
    """`text`, its middle left out if it is long: names tend to differ at their ends."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[-tail:]}"


def spans_decades(values: Any, decades: float = 2.0) -> bool:
    """Whether most of these values are positive and far enough apart for a logarithmic axis."""
    low, high = np.quantile(values, [0.02, 0.98])
    return bool(np.min(values) > 0.0 and np.log10(high / low) > decades)


class _FewDecades(Locator):
    """Places for labels of a logarithmic axis: powers of ten, or 1, 2 and 5 of each where fewer than two are shown."""

    def __init__(self, most: int = 4):
        self.most = most

    def __call__(self) -> np.ndarray:
        """Those within what is shown."""
        return self.tick_values(*self.axis.get_view_interval())  # pyright: ignore[reportOptionalMemberAccess]

    def tick_values(self, vmin: float, vmax: float) -> np.ndarray:
        """Those between two values."""
        low, high = sorted((vmin, vmax))
        powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
        for places in (powers, np.outer(powers, [1.0, 2.0, 5.0]).ravel(), np.linspace(low, high, 3)):
            shown = places[(places >= low) & (places <= high)]
            if len(shown) > 1:
                break
        return shown[:: -(-len(shown) // self.most) or 1]


def log_axis(axis: Axis) -> None:
    """Make an axis logarithmic, with few labels, so that they do not overlap in a small panel."""
    axis.axes.set(**{"xscale" if axis is axis.axes.xaxis else "yscale": "log"})
    axis.set_major_locator(_FewDecades())
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _decade(value)))


def _decade(value: float) -> str:
    power = float(np.log10(value))
    if 1e-3 <= value < 1e5 or not power.is_integer():
        return number(value, 1)
    return rf"$10^{{{power:.0f}}}$"


def number(value: float, digits: int = 3) -> str:
    """A number for people: a few significant digits, an exponent only where it helps."""
    if not np.isfinite(value):
        return "∞" if value > 0 else ("-∞" if value < 0 else "n/a")
    if value == 0.0:
        return "0"
    size = int(np.floor(np.log10(abs(float(f"{value:.{digits - 1}e}")))))
    if -4 <= size < 6:
        return f"{value:.{max(digits - 1 - size, 0)}f}"
    return f"{value:.{digits - 1}e}"


def _tidy(ax: Axes) -> None:
    # Ticks are made when the figure is drawn, outside of the style's scope: they have to be told now.
    ax.tick_params(labelsize=8, color=GREY, labelcolor=INK, width=0.7, length=3)
