"""What a person looks at: pictures and one self-contained page."""

from leakscope.report.page import Page, Section, write_page
from leakscope.report.pictures import contact_sheet, to_png

__all__ = ["Page", "Section", "contact_sheet", "to_png", "write_page"]
