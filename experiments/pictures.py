"""The figures of the suites, made from their results."""

from collections.abc import Callable

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from experiments.one_dimension import truth
from experiments.paper_numbers import printed
from experiments.suite_results import ALL_SPLITS, Mean, Results
from integrand.report.style import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, SKY, VERMILION, panels, styled

COLOURS = {
    "GPR + HMC": INK,
    "SGPR": ORANGE,
    "SGPR + HMC": BLUE,
    "SVGP": GREEN,
    "JointHMC": PURPLE,
    "FBGP": VERMILION,
    "SGPR + HMC, fixed Z": SKY,
}
_MORE = (BLUE, GREEN, PURPLE, VERMILION, SKY)


@styled
def nlpd_bars(results: Results, metrics: tuple[str, ...] = ("joint_nlpd", "nlpd"), reference: str = "") -> Figure:
    """Mean and standard error of each method on each data set; crosses: the paper's.

    Hollow marks have fewer splits than the reference: its mean plus the difference on the splits of both.
    """
    several = [d for d in results.datasets if sum(bool(results.of(d, arm.name)) for arm in results.arms) > 1]
    datasets = several or results.datasets  # a data set with one method has nothing to compare
    axes = panels(len(metrics) * len(datasets), None, (2.1, 2.0), len(datasets))
    titles = {"joint_nlpd": "NLPD as in the paper", "nlpd": "NLPD of the mixture", "rmse": "RMSE"}
    for i, metric in enumerate(metrics):
        for j, dataset in enumerate(datasets):
            ax = axes[i * len(datasets) + j]
            for k, arm in enumerate(results.arms):
                mean = _on_all_splits(results, dataset, arm.name, metric, reference)
                if mean is not None:
                    colour = COLOURS.get(arm.name, _MORE[k % len(_MORE)])
                    inside = colour if mean.n >= ALL_SPLITS else "white"
                    ax.errorbar(k, mean.value, mean.error, fmt="o", ms=4, color=colour, mfc=inside, capsize=2)
                theirs = printed(results.paper_table, dataset, arm.paper, metric)
                if theirs is not None:
                    ax.errorbar(k + 0.25, theirs.value, theirs.error or 0.0, fmt="x", ms=4, lw=0.7, color=GREY)
            labels = [a.name.replace("SGPR + HMC, ", "") if i == len(metrics) - 1 else "" for a in results.arms]
            ax.set_xticks(range(len(results.arms)), labels)
            ax.tick_params(axis="x", rotation=90)
            ax.set_xlim(-0.5, len(results.arms) - 0.5)
            ax.set_title(dataset if i == 0 else "")
            if j == 0:
                ax.set_ylabel(titles[metric])
    figure = axes[0].get_figure()
    hollow = "hollow: fewer than ten splits"
    if reference:
        hollow += f", the mean of {reference} and the difference to it on the same splits"
    figure.supxlabel(f"means and standard errors; {hollow}; crosses: the paper's", fontsize=7)
    return figure


def _on_all_splits(results: Results, dataset: str, arm: str, metric: str, reference: str) -> Mean | None:
    """The mean over splits; with fewer than the reference, its mean plus the paired difference."""
    own, base = results.mean(dataset, arm, metric), results.mean(dataset, reference, metric)
    if own is None or base is None or own.n >= base.n:
        return own
    paired = results.paired(dataset, arm, reference, metric)
    return None if paired is None else Mean(base.value + paired.value, paired.error, own.n)


@styled
def ridge(results: Results) -> Figure:
    """The log likelihood over (lengthscale, scale), where optimisers end, and draws."""
    (result,) = results.of("ridge", "ridge").values()
    ax = panels(1, None, (5.2, 3.8))[0]
    surface = np.array(result["surface"], float)
    length, scale = np.exp(result["log_lengthscale"]), np.exp(result["log_scale"])
    top = np.nanmax(surface)
    levels = top - np.array([50.0, 20.0, 10.0, 5.0, 2.0, 1.0, 0.5, 0.2, 0.0])
    levels[-1] += 1e-9
    shades = mpl.colormaps["Blues_r"](np.linspace(0.0, 1.0, len(levels) - 1))
    filled = ax.contourf(length, scale, np.maximum(surface, levels[0]), levels=levels, colors=shades)
    bar = ax.get_figure().colorbar(filled, ax=ax, label="log likelihood below its top")
    bar.set_ticks(list(levels[:-1]), labels=[f"-{top - level:g}" for level in levels[:-1]])
    draws = np.array(result["sampled"])
    ax.plot(draws[:, 0], draws[:, 1], ".", ms=2.5, color=INK, alpha=0.4, label="draws of the posterior")
    marks = {"Adam": ("o", GREEN, "ML-II, 200 steps of Adam"), "L-BFGS": ("D", ORANGE, "ML-II, L-BFGS")}
    for name, (mark, colour, label) in marks.items():
        ends = np.array([optimum["end"] for optimum in result["optima"] if optimum["optimiser"] == name])
        places = len({tuple(end) for end in np.round(np.log(ends), 2).tolist()})
        label += f" from {len(ends)} starts: {places} place{'s' if places > 1 else ''}"
        ax.plot(ends[:, 0], ends[:, 1], mark, ms=5, color=colour, mec="white", label=label)
    ax.plot(
        result["truth"]["lengthscale"], result["truth"]["scale"], "P", ms=9, color=VERMILION, mec="white", label="truth"
    )
    ax.set(xscale="log", yscale="log", xlabel="lengthscale", ylabel="scale (signal's standard deviation)")
    ax.set_xlim(length[0], length[-1])
    ax.set_ylim(scale[0], scale[-1])
    figure = ax.get_figure()
    figure.legend(loc="outside lower center", ncols=1)
    return figure


@styled
def example(results: Results) -> Figure:
    """The paper's six panels: three fits, functions of the mixture, and two hyperposteriors."""
    fits = {}
    for name in ("SGPR", "SGPR + HMC", "JointHMC"):
        splits = results.of("synthetic", name)
        if splits:
            fits[name] = splits[min(splits)]
    both = {"SGPR", "SGPR + HMC"} <= set(fits)
    axes = panels(len(fits) + 3 * both, None, (3.1, 2.3), 3)
    for ax, (name, result) in zip(axes, fits.items(), strict=False):
        _fit(ax, result, COLOURS[name])
        scores = result["scores"]
        ax.set(title=f"{name}: RMSE {scores['rmse']:.3f}, NLPD {scores['nlpd']:.3f}", xlabel="x", ylabel="y")
    axes[0].legend(loc="upper right", fontsize=6)
    if both:
        _hyperparameters(axes[len(fits) :], fits["SGPR + HMC"], fits["SGPR"])
    figure = axes[0].get_figure()
    figure.supxlabel("the first draw of the data; RMSE and NLPD (of the mixture) are those of this draw", fontsize=7)
    return figure


def _hyperparameters(axes, hmc: dict, point: dict) -> None:
    """Functions of the mixture, and two hyperposteriors with the optimum of SGPR."""
    axes[0].plot(hmc["X"], hmc["y"], ".", ms=1.5, color=PALE)
    axes[0].plot(hmc["grid"], np.array(hmc["functions"]).T, lw=0.7, color=BLUE, alpha=0.6)
    axes[0].set(title="functions drawn from the mixture", ylim=(-4, 4), xlabel="x", ylabel="y")
    for ax, name in zip(axes[1:], ("lengthscale", "noise"), strict=True):
        ax.hist(hmc[name], bins=40, density=True, color=SKY, label="draws")
        value = point["hyperparameters"][_label(point, name)]["value"]
        ax.axvline(value, color=ORANGE, lw=1.5, label="SGPR")
        ax.set(title=name, yticks=[])
    axes[2].axvline(0.4, color=VERMILION, lw=1.0, ls=(0, (4, 2)), label="truth")
    axes[2].legend(fontsize=7)


def _label(result: dict, name: str) -> str:
    return next(label for label in result["hyperparameters"] if label.startswith(name))


def _fit(ax, result: dict, colour: str) -> None:
    grid, mean, sd = (np.array(result[key]) for key in ("grid", "mean", "sd_y"))
    ax.plot(result["X"], result["y"], ".", ms=1.5, color=PALE, label="data")
    ax.fill_between(grid, mean - 2 * sd, mean + 2 * sd, color=colour, alpha=0.2, lw=0, label="mean ± 2 sd of y")
    ax.plot(grid, mean, color=colour, lw=1.2)
    ax.plot(grid, truth(grid), color=INK, lw=0.8, ls=(0, (4, 2)), label="truth")
    ax.plot(result["Z"], np.full(len(result["Z"]), -3.8), "|", color=INK, ms=5, label="Z")
    ax.set_ylim(-4, 4)


@styled
def against_m(results: Results) -> Figure:
    """RMSE and NLPD on Elevators against M; dashed is the paper's."""
    axes = panels(2, None, (3.4, 2.6))
    for ax, metric in zip(axes, ("rmse", "expected_nlpd"), strict=True):
        for method, colour, paper in (("SGPR + HMC", BLUE, "sgpr-hmc"), ("JointHMC", PURPLE, "joint-hmc")):
            arms = [arm for arm in results.arms if arm.name.startswith(f"{method},")]
            means = [(arm.n_inducing, results.mean("elevators", arm.name, metric)) for arm in arms]
            known = [(m, mean) for m, mean in means if mean is not None]
            ax.errorbar(
                [m for m, _ in known],
                [mean.value for _, mean in known],
                [mean.error for _, mean in known],
                fmt="o-",
                ms=4,
                color=colour,
                mfc=colour if all(mean.n >= ALL_SPLITS for _, mean in known) else "white",
                label=method,
            )
            theirs = [(m, printed("elevators", str(m), paper, metric)) for m in (100, 200, 300, 400, 500)]
            pairs = [(m, p.value) for m, p in theirs if p is not None]
            ax.plot(*zip(*pairs, strict=True), ls=(0, (4, 2)), lw=0.9, color=colour, label=f"{method}, paper")
        ax.set(xlabel="M", title={"rmse": "RMSE", "expected_nlpd": "NLPD, mean over draws"}[metric])
    axes[0].legend()
    figure = axes[0].get_figure()
    figure.supxlabel("hollow: fewer than ten splits", fontsize=7)
    return figure


FIGURES: dict[str, Callable[[Results], Figure]] = {
    "ridge": ridge,
    "synthetic-1d": example,
    "uci": lambda results: nlpd_bars(results, reference="SGPR + HMC"),
    "ablation": nlpd_bars,
    "more-inducing": lambda results: nlpd_bars(results, reference="SGPR + HMC"),
    "tight-bound": lambda results: nlpd_bars(results, ("rmse", "nlpd"), reference="SGPR + HMC, titsias"),
    "priors": lambda results: nlpd_bars(results, ("rmse", "nlpd"), reference="SGPR"),
    "elevators": against_m,
}
