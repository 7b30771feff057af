"""The HTML page of a report. It is a single file, which loads nothing from the network and can be printed.

Tables can be sorted. The page has light and dark colours.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leakgauge.core.own_files import write_own
from leakgauge.core.text import clean
from leakgauge.evaluation.verdict import Verdict


@dataclass(frozen=True)
class Section:
    """A section of a report page.

    Args:
        heading: The heading.
        sentences: The paragraphs below the heading.
        table: The rows of a table. The first row holds the headings.
        marked: A dictionary from places (row, column) in the table to ``"back"`` for a value that came back, or
            ``"guessed"`` for a value that a guess has right. The headings are row 0.
        grouped: The number of rows that belong together, so that a reader cannot sort them. 0 means that rows can be
            sorted.
        picture: The bytes of a PNG picture.
        shows_samples: Whether the picture or the table shows clients' samples or reconstructions of them.
        alt: The description of the picture for people who cannot see it.
        code: A command or other text, which is shown without changes.
    """

    heading: str
    sentences: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()
    marked: Mapping[tuple[int, int], str] = field(default_factory=dict)
    grouped: int = 0
    picture: bytes | None = None
    shows_samples: bool = False
    alt: str = ""
    code: str = ""

    @property
    def picture_data(self) -> str:
        """The picture as Base64 text, so that it can be part of the HTML file."""
        return base64.b64encode(self.picture or b"").decode()


@dataclass(frozen=True)
class Page:
    """The content of a report page, which begins with the verdict.

    Args:
        title: The title.
        verdict: The verdict, which sets the colour of the page.
        summary: The verdict as a sentence.
        sections: The sections below the verdict.
    """

    title: str
    verdict: Verdict
    summary: str
    sections: Sequence[Section] = field(default_factory=tuple)

    @property
    def shows_samples(self) -> bool:
        """Whether a picture or a table on the page shows clients' samples or reconstructions of them."""
        return any(section.shows_samples for section in self.sections)


def write_page(page: Page, path: str | Path) -> Path:
    """Write the page as one HTML file, and return the path of the file.

    Args:
        page: The content of the page.
        path: The file to write.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("leakgauge.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=lambda value: clean(value) if isinstance(value, str) else value,
    )
    target = Path(path)
    write_own(target, environment.get_template("page.html").render(page=page).encode())
    return target
