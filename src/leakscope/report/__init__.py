"""What a person looks at: pictures and one self-contained page."""

from leakscope.report.curves import course, loss_curves, running_minimum, stacked
from leakscope.report.page import Page, Section, write_page
from leakscope.report.pictures import contact_sheet, iterates_of, progress_strip, to_png
from leakscope.report.scatter import scatter

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
