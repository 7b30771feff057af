"""A page is self-contained, and its texts are escaped."""

from html.parser import HTMLParser

import pytest

from leakgauge.core.errors import FileError
from leakgauge.evaluation.verdict import Verdict
from leakgauge.reports import Page, Section, write_page

PAGE = Page(
    title="A <title>",
    verdict=Verdict.RECOVERS_DATA,
    summary="It leaks & badly.",
    sections=(
        Section("Table", table=(("a", "b"), ("1", "<script>alert(1)</script>"))),
        Section("Picture", ("A sentence.",), picture=b"\x89PNG", alt='a "picture"', code="x < y"),
    ),
)


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.addresses = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]


def test_the_page_loads_nothing_from_anywhere_and_runs_only_its_own_sorting(tmp_path):
    page = Links()
    page.feed(write_page(PAGE, tmp_path / "page.html").read_text())
    assert page.addresses == ["data:image/png;base64,iVBORw=="]
    assert page.tags.count("script") == 1
    assert page.tags.count("td") == 2


def test_texts_are_escaped(tmp_path):
    text = write_page(PAGE, tmp_path / "page.html").read_text()
    assert "A &lt;title&gt;" in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert "It leaks &amp; badly." in text


def test_control_characters_are_replaced_and_lines_of_code_are_kept(tmp_path):
    hostile = "\x1b[2J\x00\u202e\udc80"
    section = Section(hostile, [hostile], [[hostile], [hostile]], alt=hostile, code=f"first\n{hostile}")
    text = write_page(Page(hostile, Verdict.RECOVERS_DATA, hostile, [section]), tmp_path / "page.html").read_text()
    assert text.count("\N{REPLACEMENT CHARACTER}[2J") == 8
    assert "<pre>first\n" in text
    assert text.replace("\n", "").isprintable()


def test_the_verdict_shows_its_colour_by_what_was_found(tmp_path):
    for verdict in Verdict:
        text = write_page(Page("t", verdict, "v"), tmp_path / "a.html").read_text()
        assert f'class="verdict {verdict.colour}"' in text
        assert str(verdict) in text


def test_a_page_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be written"):
        write_page(PAGE, tmp_path / "file" / "page.html")


def test_every_page_limits_its_verdict_to_the_attacks_that_were_tried(tmp_path):
    text = write_page(PAGE, tmp_path / "page.html").read_text()
    assert text.index("It leaks") < text.index("This verdict is about these attacks only.") < text.index("Table")
