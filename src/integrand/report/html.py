"""The parts of an HTML page: escaped text, tables, and figures within the page. Nothing is loaded from outside."""

import base64
import io
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_CODE = re.compile(r"`([^`]+)`")
_PATH, _LONG_NUMBER = re.compile(rb' d="[^"]*"'), re.compile(rb"(\d\.\d\d)\d+")
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def document(title: str, body: Iterable[str]) -> str:
    """A whole page, with its style sheet."""
    style = files("integrand.report").joinpath("page.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<title>{escape(title)}</title><link rel="icon" href="data:,"><style>{style}</style></head><body>',
            *body,
            "</body></html>\n",
        ]
    )


def section(anchor: str, heading: str, *content: str) -> str:
    """A section with its heading."""
    return "\n".join([f'<section id="{anchor}"><h2>{escape(heading)}</h2>', *content, "</section>"])


def sentence(text: str) -> str:
    """Plain text; what stands in backquotes is code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{sentence(text)}</p>' if kind else f"<p>{sentence(text)}</p>"


def bullets(lines: Iterable[str]) -> str:
    """A list of plain sentences."""
    return "<ul>" + "".join(f"<li>{sentence(line)}</li>" for line in lines) + "</ul>"


def definitions(pairs: Mapping[str, str]) -> str:
    """Terms and their values; values are HTML."""
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{v}</dd>" for k, v in pairs.items()) + "</dl>"


def table(caption: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], text: Sequence[str] = ()) -> str:
    """Rows of strings; `columns` maps their keys to headings, `text` are the keys that are words and not numbers."""

    def kind(key: str) -> str:
        return ' class="text"' if key in text else ""

    head = "".join(f'<th scope="col"{kind(key)}>{escape(label)}</th>' for key, label in columns.items())
    lines = ["".join(f"<td{kind(key)}>{escape(str(row[key]))}</td>" for key in columns) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption><span>{escape(caption)}</span></caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def key(entries: Mapping[str, str]) -> str:
    """What the marks of a figure mean; the values are styles of the swatches."""
    items = "".join(f'<li><i style="{style}"></i>{escape(label)}</li>' for label, style in entries.items())
    return f'<ul class="key" aria-hidden="true">{items}</ul>'


def picture(ax: Axes, alt: str, caption: str = "") -> str:
    """The figure of `ax` as an image within the page; with a caption, which replaces the panel's title."""
    if caption:
        ax.set_title("")
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    width, height = (round(96 * side) for side in figure.get_size_inches())
    legend = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure>{legend}<img alt="{escape(alt)}" width="{width}" height="{height}" src="{_data(figure)}"></figure>'


def _data(figure: Figure) -> str:
    """The figure as SVG in a data address; the same figure gives the same text."""
    stream = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "integrand"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # names in scripts that the font does not have
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, dpi=150, metadata=metadata)
    # Hundredths of a point are finer than any screen, and shorter than what matplotlib writes.
    slim = _PATH.sub(lambda path: _LONG_NUMBER.sub(rb"\1", path[0]), stream.getvalue())
    return "data:image/svg+xml;base64," + base64.b64encode(slim).decode("ascii")
