"""Reports on results, with HTML pages, pictures and plots for people, and JSON and CSV files for programs."""

from leakgauge.reports.curves import course, loss_curves, running_minimum, stacked
from leakgauge.reports.page import Page, Section, write_page
from leakgauge.reports.pictures import contact_sheet, iterates_of, progress_strip, to_png
from leakgauge.reports.scatter import scatter

__all__ = [
    "Page",
    "Section",
    "contact_sheet",
    "course",
    "iterates_of",
    "loss_curves",
    "progress_strip",
    "running_minimum",
    "scatter",
    "stacked",
    "to_png",
    "write_page",
]
