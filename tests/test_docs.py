"""The documents fit the repository: links lead somewhere, every page is in the navigation, versions agree."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import leakgauge

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<path>[^)\s#]*)(?:#(?P<anchor>[^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def name_of(document):
    return str(document.relative_to(ROOT))


def anchors(document):
    headings = HEADING.findall(re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document):
    for link in LINK.finditer(CODE.sub("", document.read_text())):
        if re.match(r"[a-z]+:", link["path"]):
            continue
        target = (document.parent / link["path"]).resolve() if link["path"] else document
        assert target.exists(), f"{name_of(document)} links to {link['path']}, which does not exist"
        if link["anchor"] and target.suffix == ".md":
            assert link["anchor"] in anchors(target), (
                f"{name_of(document)}: no heading #{link['anchor']} in {target.name}"
            )


def test_every_page_is_in_the_navigation():
    def pages(entry):
        if isinstance(entry, str):
            yield entry
        else:
            for child in entry.values() if isinstance(entry, dict) else entry:
                yield from pages(child)

    named = set(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")} <= named


def test_every_room_is_on_the_map():
    source = ROOT / "src" / "leakgauge"
    rooms = {str(package.parent.relative_to(source)) for package in source.glob("*/**/__init__.py")}
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    assert {room for room in rooms if f"`{room}/`" not in contributing} == set()


def test_the_version_is_the_same_everywhere():
    version = leakgauge.__version__
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == version
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert re.search(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == version
