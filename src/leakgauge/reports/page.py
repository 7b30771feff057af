"""One self-contained HTML page: no network, dark and light, printable, with tables that sort."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leakgauge.core.container import write_atomically
from leakgauge.evaluation.verdict import Verdict


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Args:
        heading: The heading.
        sentences: Paragraphs below the heading.
        table: Rows of cells. The first row is the head.
        picture: A PNG picture.
        alt: The description of the picture for people who cannot see it.
        code: Text that is shown as it is.
    """

    heading: str
    sentences: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()
    picture: bytes | None = None
    alt: str = ""
    code: str = ""

    @property
    def picture_data(self) -> str:
        """The picture as text that fits into the page."""
        return base64.b64encode(self.picture or b"").decode()


@dataclass(frozen=True)
class Page:
    """A page that leads with the verdict.

    Args:
        title: The title.
        verdict: The verdict, which sets the colour of the page.
        summary: The verdict in words.
        sections: The parts that show it.
    """

    title: str
    verdict: Verdict
    summary: str
    sections: Sequence[Section] = field(default_factory=tuple)


def write_page(page: Page, path: str | Path) -> Path:
    """Write the page as one file, and return its path.

    Args:
        page: The page.
        path: The file to write.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("leakgauge.reports"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    target = Path(path)
    write_atomically(target, environment.get_template("page.html").render(page=page).encode())
    return target
