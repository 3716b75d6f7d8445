"""Figures of the chains themselves: traces and ranks."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import binom, rankdata

from integrand.errors import InputError
from integrand.posterior.posterior import Posterior
from integrand.report.style import CHAIN_COLOURS, GREY, INK, PALE, panels, shortened, styled
from integrand.report.tables import Entry, entries, is_sampled

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
    worst, found = worst_mixed(posterior, 12), {e.name: e for e in entries(posterior)}
    for name in names or ():
        if name not in found:
            raise InputError(f"there is no hyperparameter {name!r}")
    return [found[name] for name in (worst if names is None else names)]
