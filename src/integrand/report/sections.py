"""The sections of a report, each made from the same subject; None where a posterior has nothing to say."""

import os
import sys
from collections.abc import Callable, Iterable
from html import escape
from typing import Any, NamedTuple

import numpy as np

from integrand.data.checks import checked_variances
from integrand.errors import InputError, counted
from integrand.files import atomic_write
from integrand.likelihoods import Gaussian
from integrand.methods.table import METHODS
from integrand.posterior.posterior import Posterior
from integrand.report import figures, tables
from integrand.report.figures import coded_rows, own_noise, worst_mixed
from integrand.report.html import bullets, definitions, document, key, paragraph, picture, section, table
from integrand.report.style import BLUE, CHAIN_COLOURS, GREY, SKY, VERMILION, number, share_heights, shortened

# Anchor, heading, content.
Section = tuple[str, str, str]

# Panels of one kind; further hyperparameters are in the table.
_MOST_MARGINALS, _MOST_TRACES, _MOST_SLICES = 40, 12, 8
_MOST_NAMES = 40

_PAPER = """@inproceedings{lalchand2022sparse,
  title     = {Sparse Gaussian Process Hyperparameters: Optimize or Integrate?},
  author    = {Lalchand, Vidhi and Bruinsma, Wessel P. and Burt, David R. and Rasmussen, Carl E.},
  booktitle = {Advances in Neural Information Processing Systems 35 (NeurIPS 2022)},
  year      = {2022}
}"""


class Subject(NamedTuple):
    """What the page is about."""

    posterior: Posterior
    X: np.ndarray | None  # data to hold predictions against
    y: np.ndarray | None
    noise_variance: np.ndarray | None  # known, of each of these rows
    held_out: bool
    n_rows: int | None  # that the model was fitted to
    target: str
    settings: Any
    version: str
    words: Callable[[str], str] = str  # puts remedies into the words of an interface

    def said(self, finding: Any) -> str:
        """A finding with what to do about it."""
        return f"{finding.sentence} {self.words(finding.remedy)}".rstrip()


def _verdict(s: Subject) -> Section:
    verdict = s.posterior.verdict
    if verdict is None or not verdict.sampled:
        word, kind = "• Optimised, not sampled", "plain"
        lines = [
            "This method returns one value for each hyperparameter. There are no chains to judge, and the predictive "
            "intervals leave out the uncertainty about the hyperparameters: they may be too narrow."
        ]
        remedies = ["Fit with method sgpr-hmc to integrate over the hyperparameters, and compare."]
        if verdict is not None:
            remedies = [*map(s.said, verdict.on_draws), *remedies]
            word, kind = (word, kind) if verdict.ok else ("✕ Not to be trusted yet", "bad")
    else:
        word, kind = ("✓ Converged", "good") if verdict.ok else ("✕ Not to be trusted yet", "bad")
        if verdict.ok and verdict.on_draws:
            word, kind = "! Converged, with remarks", "warn"
        lines, remedies = [verdict.headline.partition(": ")[2]], list(map(s.said, verdict.on_draws))
    boxes = _box(word, kind, lines, remedies)
    if verdict is not None and verdict.model_headline:
        head, _, said = verdict.model_headline.partition(":")
        mark, kind = ("! ", "warn") if verdict.on_model else ("✓ ", "good")
        said = said.strip()
        boxes += _box(mark + head, kind, [said[:1].upper() + said[1:]] if said else [], map(s.said, verdict.on_model))
    notes = "<h3>Notes of the fit</h3>" + bullets(s.posterior.notes) if s.posterior.notes else ""
    argument = paragraph(_argument(s.posterior)) if tables.is_sampled(s.posterior) else ""
    return "verdict", "Verdict", f"{boxes}{argument}{notes}"


def _box(word: str, kind: str, lines: Iterable[str], remedies: Iterable[str]) -> str:
    listed = list(remedies)
    content = [f'<p class="word">{escape(word)}</p>', *map(paragraph, lines), bullets(listed) if listed else ""]
    return f'<div class="verdict {kind}" role="note">{"".join(content)}</div>'


def _argument(posterior: Posterior) -> str:
    """Whether the optimised point represents the posterior, in a sentence."""
    label, entries = tables.optimum_label(posterior), tables.entries(posterior)
    entries = [e for e in entries if ".weights[" not in f".{e.name}"]  # one correlation has many weights
    outside = [e.name for e in entries if not e.quantile(0.05) <= e.optimum <= e.quantile(0.95)]
    if not outside:
        return f"The {label} point lies within the central 90 % interval of every hyperparameter."
    more = f" and {len(outside) - 4} more" if len(outside) > 4 else ""
    listed = ", ".join(shortened(name, 40) for name in outside[:4])
    return (
        f"The {label} point lies outside the central 90 % posterior interval of {len(outside)} of {len(entries)} "
        f"hyperparameters ({listed}{more}): one point does not represent the posterior there."
    )


def _fitted(s: Subject) -> Section:
    p, model = s.posterior, s.posterior.model
    names = ", ".join(model.columns[:_MOST_NAMES]) + (", …" if model.n_columns > _MOST_NAMES else "")
    summary = METHODS[p.method].summary if p.method in METHODS else ""
    pairs = {"Method": f"<code>{escape(p.method)}</code>: {escape(summary)}"}
    given = model.given or model
    pairs["Kernel"] = f"<code>{escape(str(given.kernel))}</code>"
    if model.likelihood.has_noise:
        pairs["Noise"] = f"<code>{escape(str(given.noise))}</code>"
    pairs["Mean"] = f"<code>{escape(str(given.mean))}</code>"
    if not isinstance(model.likelihood, Gaussian):
        pairs["Likelihood"] = f"<code>{escape(repr(model.likelihood))}</code>"
    if p.evidence is not None:
        label = "Log evidence, a lower bound" if p.evidence_is_bound else "Log evidence"
        pairs[label] = f"{p.evidence[0]:.2f} ± {p.evidence[1]:.2g} (standardised data)"
    if s.n_rows is not None:
        since = "" if p.updates is None else f", {p.updates.n_rows} of them new since the fit"
        pairs["Rows"] = f"{s.n_rows:,}".replace(",", "\u202f") + since
    pairs["Columns"] = f"{model.n_columns}: {escape(names)}"
    transform, target = model.target_transform, escape(s.target)
    standardised = f"log {target}" if transform is not None and transform.of_log else target
    moments = f"mean {number(p.scaler.y_mean, 4)}, standard deviation {number(p.scaler.y_sd, 4)}"
    pairs["Target"] = f"{standardised} ({moments if model.likelihood.standardises_y else 'not standardised'})"
    if transform is not None:
        pairs["Transform of the target"] = f"<code>{transform.name}</code>"
    if p.Z_path is not None:
        pairs["Inducing inputs"] = str(len(p.Z))
    if tables.is_sampled(p):
        pairs["Draws"] = f"{counted(len(p.chains.x), 'chain')} of {counted(p.chains.n_draws, 'draw')}"
    pairs["Time"] = f"{number(sum(p.seconds.values()))} s"
    note = (
        "Numbers and priors are in the units of the data. Those inside standardised(...) are for standardised data: "
        "zero mean, unit variance."
    )
    return "fitted", "What was fitted", definitions(pairs) + paragraph(note, "note")


def _hyperparameters(s: Subject) -> Section | None:
    p, label, entries = s.posterior, tables.optimum_label(s.posterior), tables.entries(s.posterior)
    words = {"name": "hyperparameter", "unit": "unit", "value": "value", "standardised": "standardised"}
    rows = [{k: _shown(k, row[k]) for k in words} for row in tables.fixed_values(p)]
    caption = "Fixed, not inferred: in the units of the data, and standardised."
    fixed = table(caption, words, rows, ("name", "unit")) if rows else ""
    if not entries:
        return ("hyperparameters", "Hyperparameters", fixed) if fixed else None
    sampled, images = tables.is_sampled(p), []
    for e in entries[:_MOST_MARGINALS]:
        alt = f"{e.name}: {label} at {number(e.optimum)}"
        if sampled:
            q5, q50, q95 = map(number, e.quantile([0.05, 0.5, 0.95]))
            alt = f"Posterior of {e.name}: median {q50}, 90 % interval {q5} to {q95}; {label} at {number(e.optimum)}"
        images.append(picture(figures.hyperposterior(p, [e.name], legend=False)[0], alt, e.name))
    marks = {"posterior": f"background: {SKY}", "90 % interval, median": f"border-bottom: 4px solid {BLUE}"}
    marks = (marks if sampled else {}) | {"prior": f"border-bottom: 2px dashed {GREY}"}
    marks[f"{label} point"] = f"border-bottom: 3px solid {VERMILION}"
    text = (
        f"Where the {label} point sits in the tail, or beyond it, optimising picked a value that the posterior as a "
        "whole does not support; a wide posterior is uncertainty that optimising leaves out."
        if sampled
        else f"The {label} point and the priors. This method does not say how uncertain the values are."
    )
    columns = {"name": "hyperparameter", "unit": "unit", "optimum": label}
    if sampled:
        columns = {"name": "hyperparameter", "mean": "mean", "sd": "sd", "q5": "5 %", "q50": "50 %", "q95": "95 %"}
        columns |= {"optimum": label, "r_hat": "R-hat", "ess_bulk": "ESS bulk", "ess_tail": "ESS tail"}
        # The figures name the units; the table has to where a number is not in the units of the data after all.
        if any(e.unit == "standardised" or "transformed" in e.unit for e in entries):
            columns["unit"] = "unit"
    priors = {"name": "hyperparameter", "prior": "prior", "standardised_prior": "the same, standardised"}
    made = tables.hyperparameters(p)
    transformed = "" if p.model.target_transform is None else ", and of the transformed target"
    listed = "".join(
        table(caption, chosen, [{k: _shown(k, row[k]) for k in chosen} for row in made], ("name", "unit", *priors))
        for caption, chosen in (
            (f"Hyperparameters in the units of the data{transformed}.", columns),
            (f"Priors in the units of the data{transformed}, and of standardised data.", priors),
        )
    )
    content = paragraph(text) + key(marks) + _grid("small", images) + listed + fixed
    return "hyperparameters", "Hyperparameters", content


def _relevance(s: Subject) -> Section | None:
    rows = tables.relevances(s.posterior)
    if len(rows) < 2:
        return None
    listed = ", ".join(f"{row['label']} {number(float(np.median(row['draws'])), 2)}" for row in rows[:10])
    image = picture(figures.relevance(s.posterior), f"Inverse lengthscales, largest first (medians): {listed}")
    text = (
        "The shorter its lengthscale, in standard deviations of the column, the more the function bends along it. A "
        "column with a nearly linear effect has a long lengthscale and may matter all the same: see the slices."
    )
    return "relevance", "Relevance of the columns", paragraph(text) + _grid("large", [image])


def _slices(s: Subject) -> Section:
    p, names = s.posterior, s.posterior.model.columns
    if len(names) == 1:
        ax: Any = figures.plot(p, s.X, s.y)
        ax.set_ylabel(shortened(s.target, 40))
        image = picture(ax, f"Prediction of {s.target} along {names[0]}")
        text = f"The prediction of {s.target}, with the inducing inputs below."
        return "slices", "The prediction", paragraph(text) + _grid("whole", [image])
    columns = tables.relevant_columns(p, _MOST_SLICES)
    made = [figures.slices(p, s.X, s.y, columns=[c], legend=False)[0] for c in columns]
    share_heights(made)
    images = []
    for c, ax in zip(columns, made, strict=True):
        ax.set(xlabel="", ylabel=shortened(s.target, 24))
        images.append(
            picture(ax, f"Prediction of {s.target} along {names[c]}, other columns at their medians", names[c])
        )
    name = "f" if isinstance(p.model.likelihood, Gaussian) else "the mean"
    marks = {f"median of {name}": f"border-bottom: 3px solid {BLUE}", f"50 % of {name}": f"background: {BLUE}a0"}
    marks |= {
        f"95 % of {name}": f"background: {SKY}60",
        f"95 % of new observations{own_noise(s.posterior)}": f"border-bottom: 2px dotted {GREY}",
    }
    where = "the data" if s.X is not None else "the inducing inputs"
    text = f"The prediction of {s.target} along one column at a time, all others at the medians of {where}; "
    text += "ticks below are the column's values."
    if s.y is not None:
        text += " Dots are the data, whose other columns are not at their medians."
    return "slices", "Slices of the prediction", paragraph(text) + key(marks) + _grid("small", images)


def _against_data(s: Subject) -> Section | None:
    if s.X is None or s.y is None:
        return None
    X, y = tables.some_rows(s.X, s.y)
    v = None if s.noise_variance is None else tables.some_rows(s.X, s.noise_variance)[1]
    what = "rows that took no part in the fit" if s.held_out else "rows given to this report"
    text = f"{len(y)} of {len(s.y)} {what}, evenly spaced." if len(y) < len(s.y) else f"All {len(y)} {what}."
    if not s.held_out:
        text += _left_out(s) or (
            " If the model was fitted to them, these numbers flatter it: hold rows out to judge predictions."
        )
    rows = tables.metrics(s.posterior, X, y, v)
    scores = {row["metric"]: number(row["value"]) for row in rows}
    shown = [{**row, "value": scores[row["metric"]]} for row in rows]
    images = [
        picture(
            figures.predicted_against_observed(s.posterior, X, y, noise_variance=v),
            f"Predicted against observed {s.target}; 95 % intervals hold {scores['coverage_95']} of the rows",
        ),
        picture(
            figures.coverage(s.posterior, X, y, noise_variance=v),
            f"Coverage: 50 % intervals hold {scores['coverage_50']} of the rows",
        ),
        picture(
            figures.pit(s.posterior, X, y, noise_variance=v),
            "Histogram of probability integral transforms, flat if calibrated",
        ),
    ]
    columns = {"metric": "metric", "value": "value", "meaning": "meaning"}
    listed = table("Scores of the predictions, in the units of the target.", columns, shown, ("metric", "meaning"))
    return "data", "Predictions against data", paragraph(text) + _grid("large three", images) + listed


def _left_out(s: Subject) -> str:
    """Leave-one-out, where the rows are those of the fit and θ was drawn."""
    if not tables.is_sampled(s.posterior) or len(s.X) > tables.MOST_LEFT_OUT:  # pyright: ignore[reportArgumentType]
        return ""
    try:
        return (
            " They are the rows of the fit: scores below flatter the model, and leave-one-out does not. "
            f"{s.posterior.loo(s.X, s.y, s.noise_variance)}"
        )
    except InputError:  # other rows, or a method that would have to refit
        return ""


def _sampling(s: Subject) -> Section | None:
    p = s.posterior
    if not tables.is_sampled(p):
        return None
    names = worst_mixed(p, _MOST_TRACES)
    text = "Chains that agree look alike: overlapping traces without a trend, and ranks that stay flat within the band."
    if len(names) < p.model.n_theta:
        text += f" Shown are the {len(names)} of {p.model.n_theta} hyperparameters with the largest R-hat."
    marks = {f"chain {k + 1}": f"background: {CHAIN_COLOURS[k % len(CHAIN_COLOURS)]}" for k in range(len(p.chains.x))}
    traced = [picture(figures.traces(p, [n])[0], f"Trace of {n} by chain", n) for n in names]
    ranked = [picture(figures.ranks(p, [n])[0], f"Rank histogram of {n} by chain", n) for n in names]
    columns = {"chain": "chain", "draws": "draws", "divergences": "divergences", "e_bfmi": "E-BFMI"}
    columns |= {"acceptance": "acceptance", "steps": "steps a draw", "step_size": "step size"}
    rows = [{k: _shown(k, row[k]) for k in columns} for row in tables.sampler(p)]
    parts = ["<h3>Traces</h3>", key(marks), _grid("small", traced), "<h3>Ranks</h3>", _grid("small", ranked)]
    return "sampling", "Sampling", "".join([paragraph(text), *parts, table("The sampler, by chain.", columns, rows)])


def _bound(s: Subject) -> Section | None:
    p, images = s.posterior, []
    if len(p.history) > 1:
        last = p.history[-1]
        images.append(
            picture(figures.bound_history(p), f"Bound over time; the last value is {number(last.bound, 6)} nats")
        )
    if p.Z_path is not None:
        alt = f"Inducing inputs in the two most relevant columns, over {len(p.Z_path) - 1} rounds"
        images.append(
            picture(figures.inducing_path(p, None if s.X is None else tables.some_rows(s.X, s.X[:, 0])[0]), alt)
        )
    text = "Inducing inputs are shown in the two most relevant columns."
    if len(p.history) > 1 and tables.is_sampled(p):
        text = (
            "The lower bound on the log marginal likelihood is higher at its maximum than averaged over draws: what "
            "matters is that the average has stopped rising. "
        ) + text
    return ("bound", "Bound and inducing inputs", paragraph(text) + _grid("large", images)) if images else None


def _record(s: Subject) -> Section:
    rows = [
        {"phase": r["phase"], "seconds": number(r["seconds"]), "share": f"{r['share']:.0%}"}
        for r in tables.timings(s.posterior)
    ]
    spent = table("Where the time went.", {"phase": "phase", "seconds": "seconds", "share": "share"}, rows, ("phase",))
    rows = [
        {"setting": r["setting"], "value": _shown("", r["value"])} for r in tables.settings(s.posterior, s.settings)
    ]
    configuration = table("Settings and counts.", {"setting": "setting", "value": "value"}, rows, ("setting", "value"))
    return "record", "Timings and settings", f'<div class="tables">{spent}{configuration}</div>'


def _cite(s: Subject) -> Section:
    text = (
        "Lalchand, V., Bruinsma, W. P., Burt, D. R. and Rasmussen, C. E. (2022). Sparse Gaussian Process "
        "Hyperparameters: Optimize or Integrate? Advances in Neural Information Processing Systems 35 (NeurIPS 2022)."
    )
    software = (
        f"The integrand developers. integrand: fully Bayesian sparse Gaussian process regression, version {s.version}."
    )
    return "cite", "How to cite", paragraph(text) + paragraph(software) + f"<pre>{escape(_PAPER)}</pre>"


SECTIONS: tuple[Callable[[Subject], Section | None], ...] = (
    _verdict,
    _fitted,
    _hyperparameters,
    _relevance,
    _slices,
    _against_data,
    _sampling,
    _bound,
    _record,
    _cite,
)


def _grid(kind: str, images: list[str]) -> str:
    return f'<div class="{kind}">{"".join(images)}</div>'


def _shown(column: str, value: Any) -> str:
    """A cell: R-hat with three decimals, sample sizes as whole numbers, other numbers with three digits."""
    if column == "r_hat":
        return f"{value:.3f}"
    if column in ("ess_bulk", "ess_tail"):
        return f"{value:.0f}"
    return number(value) if isinstance(value, float) else ("none" if value is None else str(value))


def report_html(
    posterior: Posterior,
    *,
    data: tuple[Any, ...] | None = None,
    held_out: bool = False,
    title: str | None = None,
    target: str = "y",
    n_rows: int | None = None,
    settings: Any = None,
    words: Callable[[str], str] = str,
) -> str:
    """The page as text.

    Parameters
    ----------
    data
        X (T, D) and y (T,) to hold predictions against, and behind them the known noise variance of each row if there
        is one; at most 1000 rows of them, evenly spaced, are used.
    held_out
        Whether these rows took no part in the fit. If they did, the page says that they flatter it.
    title
        Heading of the page.
    target
        Name of what is predicted.
    n_rows
        Number of rows that the model was fitted to, if known; by default that of `data`, unless it was held out.
    settings
        `Settings` of the fit or a mapping, for the table of settings.
    words
        Puts remedies, which are in the words of Python, into those of another interface.
    """
    X, y = (None, None) if data is None else coded_rows(posterior, *data[:2])
    v = None if data is None or y is None or len(data) < 3 or data[2] is None else checked_variances(data[2], len(y))
    if X is not None and v is None and posterior.known_noise:
        posterior.predict(X[:1], include_noise=True)  # warns, once and not at every figure
        v = np.zeros(len(X))
    n_rows = len(X) if n_rows is None and X is not None and not held_out else n_rows
    version = getattr(sys.modules["integrand"], "__version__", "unknown")
    subject = Subject(posterior, X, y, v, held_out, n_rows, target, settings, version, words)
    heading = title or f"Sparse Gaussian process for {target}"
    made_sections = [made for make in SECTIONS if (made := make(subject))]
    links = "".join(f'<li><a href="#{anchor}">{escape(name)}</a></li>' for anchor, name, _ in made_sections)
    return document(
        heading,
        [
            f"<header><h1>{escape(heading)}</h1>",
            paragraph(f"integrand {version}: {posterior.method}", "lead"),
            f'</header><nav aria-label="Contents"><ul>{links}</ul></nav><main>',
            *(section(anchor, name, content) for anchor, name, content in made_sections),
            "</main>",
        ],
    )


def write_report(path: str | os.PathLike[str], posterior: Posterior, **options: Any) -> None:
    """Write `report_html(posterior, **options)` to `path`: as a whole, or not at all."""
    content = report_html(posterior, **options).encode("utf-8")
    try:
        atomic_write(path, lambda stream: stream.write(content))
    except OSError as error:
        advice = "make room or make its directory writable, or choose another path"
        raise InputError(f"cannot write {path}: {error.strerror or error}; {advice}") from error
