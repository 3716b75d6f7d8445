"""Figures, tables and one self-contained HTML page about a fit. The only room that imports matplotlib."""

from integrand.errors import need

need("matplotlib", "report", "a report")

from integrand.report import figures, tables  # noqa: E402
from integrand.report.figures import plot  # noqa: E402
from integrand.report.sections import report_html, write_report  # noqa: E402

__all__ = ["figures", "plot", "report_html", "tables", "write_report"]
