"""One HTML page that opens from disk: no network, prints well, dark and light; its tables sort."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leakgauge.core.container import write_atomically


@dataclass(frozen=True)
class Section:
    """A part of the page: a heading, sentences, a table (its first row is the head), a PNG picture."""

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
    """A page: what was found in one sentence, and the parts that show it; ``leaks`` is ``None`` where that is open."""

    title: str
    verdict: str
    leaks: bool | None
    sections: Sequence[Section] = field(default_factory=tuple)


def write_page(page: Page, path: str | Path) -> Path:
    """Write the page as one self-contained file; return its path."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("leakgauge.reports"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    target = Path(path)
    write_atomically(target, environment.get_template("page.html").render(page=page).encode())
    return target
