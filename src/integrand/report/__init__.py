"""Figures, tables and one self-contained HTML page about a fit. The only room that imports matplotlib."""

from integrand.report import figures, tables
from integrand.report.html import report_html, write_report

__all__ = ["figures", "report_html", "tables", "write_report"]
