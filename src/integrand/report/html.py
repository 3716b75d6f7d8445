"""One self-contained HTML page about a fit: what was fitted, whether to trust it, and what it says."""

import os
import sys
from html import escape
from typing import Any

from integrand.data.checked import checked_rows
from integrand.files import atomic_write
from integrand.posterior.posterior import Posterior
from integrand.report.page import document, paragraph, section
from integrand.report.sections import SECTIONS, Subject


def report_html(
    posterior: Posterior,
    *,
    data: tuple[Any, Any] | None = None,
    held_out: bool = False,
    title: str | None = None,
    target: str = "y",
    n_rows: int | None = None,
    settings: Any = None,
) -> str:
    """The page as text.

    Parameters
    ----------
    data
        X (T, D) and y (T,) to hold predictions against; at most 1000 rows of them, evenly spaced, are used.
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
    """
    X, y = (None, None) if data is None else checked_rows(*data)
    n_rows = len(X) if n_rows is None and X is not None and not held_out else n_rows
    version = getattr(sys.modules["integrand"], "__version__", "unknown")
    subject = Subject(posterior, X, y, held_out, n_rows, target, settings, version)
    heading = title or f"Sparse Gaussian process for {target}"
    sections = [made for make in SECTIONS if (made := make(subject))]
    links = "".join(f'<li><a href="#{anchor}">{escape(name)}</a></li>' for anchor, name, _ in sections)
    return document(
        heading,
        [
            f"<header><h1>{escape(heading)}</h1>",
            paragraph(f"integrand {version}: {posterior.method}", "lead"),
            f'</header><nav aria-label="Contents"><ul>{links}</ul></nav><main>',
            *(section(anchor, name, content) for anchor, name, content in sections),
            "</main>",
        ],
    )


def write_report(path: str | os.PathLike[str], posterior: Posterior, **options: Any) -> None:
    """Write `report_html(posterior, **options)` to `path`: as a whole, or not at all."""
    content = report_html(posterior, **options).encode("utf-8")
    atomic_write(path, lambda stream: stream.write(content))
