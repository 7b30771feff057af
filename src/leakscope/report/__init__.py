"""What a person looks at: pictures and one self-contained page."""

from leakscope.report.curves import loss_curves, running_minimum
from leakscope.report.page import Page, Section, write_page
from leakscope.report.pictures import contact_sheet, iterates_of, progress_strip, to_png
from leakscope.report.scatter import scatter

__all__ = [
    "Page",
    "Section",
    "contact_sheet",
    "iterates_of",
    "loss_curves",
    "progress_strip",
    "running_minimum",
    "scatter",
    "to_png",
    "write_page",
]
