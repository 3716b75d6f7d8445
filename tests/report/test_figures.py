import dataclasses
import io
import itertools
import sys
import warnings
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import integrand
from integrand.errors import InputError
from integrand.kernels import RBF, Linear, Periodic
from integrand.methods.fit import fit
from integrand.priors import Gamma, InverseGamma, Normal, Uniform, on_variance
from integrand.report import figures, style, tables

BY_POSTERIOR = ["hyperposterior", "relevance", "bound_history", "inducing_path", "slices"]
BY_CHAINS = ["traces", "ranks"]
BY_DATA = ["predicted_against_observed", "calibration", "pit", "coverage"]


def drawn(made):
    """Every panel of the answer, after its figure has been drawn."""
    panels = np.atleast_1d(np.asarray(made, dtype=object))
    assert all(isinstance(panel, Axes) for panel in panels)
    panels[0].figure.savefig(io.BytesIO(), format="svg")
    return panels


def call(name, posterior, rows, **options):
    return getattr(figures, name)(posterior, *(rows if name in BY_DATA else ()), **options)


# ---- all of them


@pytest.mark.parametrize("name", BY_POSTERIOR + BY_DATA)
def test_draws_an_optimised_posterior(name, optimised, rows):
    drawn(call(name, optimised, rows))


@pytest.mark.parametrize("name", BY_POSTERIOR)
def test_draws_one_column(name, one_column):
    drawn(getattr(figures, name)(one_column))


@pytest.mark.parametrize("name", BY_POSTERIOR + BY_CHAINS + BY_DATA)
@pytest.mark.parametrize("place", ["subplot", pytest.param("free", marks=pytest.mark.slow)])
def test_draws_where_it_is_told_to(name, place, sampled, rows):
    figure = Figure(figsize=(8, 8))
    ax = figure.add_subplot(2, 2, 3) if place == "subplot" else figure.add_axes((0.1, 0.1, 0.5, 0.4))
    box = ax.get_position()
    panels = drawn(call(name, sampled, rows, ax=ax))
    assert all(panel.figure is figure for panel in panels)
    for panel in panels:
        inside = panel.get_position()
        assert inside.x0 >= box.x0 - 1e-9
        assert inside.x1 <= box.x1 + 1e-9
        assert inside.y1 <= box.y1 + 1e-9


def test_each_draws_a_sampled_posterior_and_matplotlib_stays_as_it_was(sampled, rows):
    before = dict(mpl.rcParams)
    for name in BY_POSTERIOR + BY_CHAINS + BY_DATA:
        assert name in figures.__all__
        assert len(drawn(call(name, sampled, rows))) >= 1
    assert dict(mpl.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


@pytest.mark.parametrize("name", BY_CHAINS)
def test_one_point_has_no_chains(name, optimised):
    with pytest.raises(InputError, match="no chains"):
        getattr(figures, name)(optimised)


def test_slices_take_names_and_without_rows_the_range_of_the_fit(sampled):
    name = sampled.model.columns[1]
    (panel,) = drawn(figures.slices(sampled, columns=[name]))
    np.testing.assert_allclose(panel.get_xlim(), sampled.ranges[1], atol=0.05 * np.ptp(sampled.ranges[1]))
    with pytest.raises(InputError, match="no column 'nothing': choose from "):
        figures.slices(sampled, columns=["nothing"])


# ---- what they show


def test_the_optimum_stands_where_it_is_in_the_units_of_the_data(sampled):
    e = next(e for e in tables.entries(sampled) if e.name == "noise")
    near = dataclasses.replace(e, optimum=float(np.median(e.draws)))
    ax = Figure().add_subplot()
    figures._marginal(ax, near, "ML-II", True)
    lines = {line.get_label(): line for line in ax.lines}
    assert lines["ML-II"].get_xdata()[0] == near.optimum


def test_an_optimum_far_away_becomes_an_arrow(sampled):
    e = dataclasses.replace(tables.entries(sampled)[0], optimum=1e6)
    ax = Figure().add_subplot()
    figures._marginal(ax, e, "ML-II", True)
    assert [t.get_text() for t in ax.texts] == ["ML-II 1.00e+06"]
    assert ax.get_xlim()[1] < 1e4


@pytest.mark.parametrize(
    "prior",
    [Gamma(2, 1), InverseGamma(3, 2), Uniform(0.5, 2.0), Normal(0, 1), on_variance(Gamma(2, 1))],
    ids=repr,
)
def test_the_prior_of_an_entry_is_a_density(prior):
    e = tables.Entry("p", prior, "", np.ones((1, 1)), 1.0, 7.0, 3.0)
    grid = np.linspace(-200.0, 400.0, 200_001)
    density = e.prior_density(grid)
    assert np.all(density >= 0)
    assert np.trapezoid(density, grid) == pytest.approx(1.0, abs=5e-3)
    below = np.trapezoid(np.where(grid <= e.prior_median, density, 0.0), grid)
    assert below == pytest.approx(0.5, abs=5e-3)


@pytest.mark.slow
def test_relevance_is_sorted_and_needs_a_lengthscale_for_each_column(sampled, rows):
    medians = [np.median(row["draws"]) for row in tables.relevances(sampled)]
    assert medians == sorted(medians, reverse=True)
    same = fit(*rows, RBF(ard=False), method="ml2", steps=3, n_inducing=5)
    with pytest.raises(InputError, match="ard=True"):
        figures.relevance(same)
    drawn(figures.slices(same))
    assert tables.hyperparameters(same)[0]["unit"] == "standardised"


@pytest.mark.slow
def test_many_hyperparameters_and_a_composite_kernel():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 12)), rng.standard_normal(40)
    kernel = RBF(name="trend") + Periodic(period=Gamma(2, 1), active=(0,)) + Linear(ard=True)
    posterior = fit(X, y, kernel, mean=Normal(0, 1), method="ml2", steps=3, n_inducing=5)
    assert posterior.model.n_theta >= 25
    assert len(drawn(figures.hyperposterior(posterior))) == posterior.model.n_theta
    drawn(figures.relevance(posterior))


def test_names_that_are_not_there(sampled):
    for figure in (figures.hyperposterior, figures.traces, figures.ranks):
        with pytest.raises(InputError, match="'nothing'"):
            figure(sampled, ["nothing"])


def test_thinned_rows_and_short_text():
    X, y = tables.some_rows(np.arange(5000.0)[:, None], np.arange(5000.0), 100)
    assert len(X) == len(y) == 100
    assert y[0] == 0
    assert y[-1] == 4999
    assert style.shortened("x" * 100, 20).count("x") == 19
    assert style.shortened("short") == "short"
    shown = [style.number(v) for v in (0.0, 1.0, 99.96, 12345.0, 1.5e7, 2e-7, np.inf, np.nan, -0.25)]
    assert shown == ["0", "1.00", "100", "12345", "1.50e+07", "2.00e-07", "∞", "n/a", "-0.250"]


# ---- tables


def test_table_of_hyperparameters(sampled, optimised):
    rows = tables.hyperparameters(sampled)
    assert [row["name"] for row in rows] == list(sampled.model.names)
    noise = rows[-1]
    draws = sampled.theta_original["noise"]
    assert noise["mean"] == pytest.approx(draws.mean())
    assert noise["q5"] < noise["q50"] < noise["q95"]
    assert noise["r_hat"] == sampled.verdict.convergence.r_hat[-1]
    assert "r_hat" not in tables.hyperparameters(optimised)[0]
    only = tables.hyperparameters(optimised)[-1]
    assert only["optimum"] == pytest.approx(float(optimised.theta_original["noise"][0, 0]))


def test_other_tables(sampled, optimised, rows):
    assert sum(row["share"] for row in tables.timings(sampled)) == pytest.approx(1.0)
    assert len(tables.sampler(sampled)) == 2
    assert tables.sampler(optimised) == []
    scores = {row["metric"]: row["value"] for row in tables.metrics(sampled, *rows)}
    assert scores["rmse"] < np.std(rows[1])
    asked = {row["setting"]: row["value"] for row in tables.settings(sampled, {"n_inducing": 8})}
    assert asked["n_inducing"] == 8
    assert asked["method"] == "sgpr-hmc"


# ---- plot, and what the axes show


def test_one_column_is_plotted_with_its_data_and_inducing_inputs(one_column, one_column_rows):
    X, y = one_column_rows
    ax = integrand.plot(one_column, X, y)
    drawn(ax)
    shown = {line.get_label(): line for line in ax.get_lines()}
    np.testing.assert_array_equal(shown["data"].get_ydata(), y)
    np.testing.assert_allclose(np.sort(shown["inducing inputs"].get_xdata()), np.sort(one_column.Z[:, 0]))
    grid = np.asarray(shown["median"].get_xdata())
    assert grid.min() < X.min()
    assert grid.max() > X.max()
    median = one_column.predict(grid[:, None], include_noise=False).quantile(0.5)
    np.testing.assert_allclose(shown["median"].get_ydata(), median, rtol=1e-9)


def test_several_columns_are_plotted_as_slices_and_mistakes_are_sentences(sampled, rows):
    assert len(drawn(integrand.plot(SimpleNamespace(posterior_=sampled), *rows))) == 2
    with pytest.raises(InputError, match="give both X and y"):
        integrand.plot(sampled, rows[0])
    with pytest.raises(InputError, match="a fitted model, not str"):
        integrand.plot("model")


def test_axes_are_logarithmic_where_values_span_decades(sampled, rows):
    assert style.spans_decades(np.geomspace(0.01, 100.0, 50))
    assert not style.spans_decades(np.linspace(0.0, 100.0, 50))
    X = rows[0].copy()
    X[:, 1] = np.geomspace(0.01, 1000.0, len(X))
    panels = figures.slices(sampled, X, columns=[0, 1])
    assert [panel.get_xscale() for panel in drawn(panels)] == ["linear", "log"]
    noise = sampled.chains.x.copy()
    noise[..., -1] = np.random.default_rng(0).normal(0.0, 2.0, noise.shape[:2])
    wide = dataclasses.replace(sampled, chains=sampled.chains._replace(x=noise))
    panel = drawn(figures.hyperposterior(wide, ["noise"]))[0]
    assert panel.get_xscale() == "log"
    bars = panel.patches[0].get_data()
    share = np.sum(bars.values * np.diff(np.log(bars.edges)))  # a density of the logarithm
    assert 0.97 < share <= 1.0 + 1e-9


@pytest.mark.slow
def test_slices_of_counts_show_their_mean_and_their_pit_can_be_flat():
    rng = np.random.default_rng(1)
    X = rng.uniform(-2.0, 2.0, (60, 1))
    y = rng.poisson(np.exp(2.0 + 0.5 * X[:, 0])).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", integrand.ConvergenceWarning)  # so few steps are enough to draw
        posterior = fit(X, y, method="svgp", likelihood="poisson", n_inducing=5, steps=600)
    panel = drawn(figures.slices(posterior, X, y))[0]
    median = next(line for line in panel.get_lines() if line.get_label() == "median")
    grid = np.asarray(median.get_xdata())
    f = posterior.predict(grid[:, None], include_noise=False).quantile(0.5)
    np.testing.assert_allclose(median.get_ydata(), np.exp(f), rtol=1e-6)
    bars = figures.pit(posterior, X, y).patches[-1].get_data()
    assert np.sum(bars.values * np.diff(bars.edges)) == pytest.approx(1.0)
    exact = np.zeros(len(bars.values))
    below, above = (posterior.predict(X, include_noise=True).cdf(value) for value in (y - 1.0, y))
    for low, high in zip(below, above, strict=True):
        overlap = np.minimum(high, bars.edges[1:]) - np.maximum(low, bars.edges[:-1])
        exact += np.clip(overlap, 0.0, None) / (high - low)
    np.testing.assert_allclose(bars.values, exact * len(exact) / len(y), rtol=1e-6)


@pytest.mark.parametrize(("low", "high"), [(1e-6, 1e3), (150.0, 6e3), (2.1, 4.9), (3.0, 40.0), (1e5, 1e9)])
def test_a_logarithmic_axis_has_few_labels(low, high):
    ax = Figure(figsize=(2.4, 2.0)).add_subplot()
    style.log_axis(ax.xaxis)
    ax.set_xlim(low, high)
    canvas = FigureCanvasAgg(ax.figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = [label.get_window_extent(renderer) for label in ax.get_xticklabels(which="both") if label.get_text()]
    places = [box for box in boxes if ax.bbox.x0 - 20 <= box.x0 <= ax.bbox.x1]
    assert 2 <= len(places) <= 4
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(places))
