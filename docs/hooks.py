"""Hooks of the site's build: pages from outside ``docs/``, formulas as MathML, and a check of every page.

A page must load nothing from the network, and must show neither Sphinx markup nor TeX. Otherwise the build fails.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
#: Pages of the site that live elsewhere in the repository: the path there, and the path on the site.
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
OUTSIDE |= {"benchmarks/README.md": "benchmarks/index.md", "benchmarks/NOTES.md": "benchmarks/notes.md"}
#: The pages of the papers for the navigation, each with its title.
PAPERS: list[dict[str, str]] = []
for _page in sorted(ROOT.glob("benchmarks/*/*.md"), key=lambda page: (page.parent, page.name != "README.md", page)):
    _paper, _notes = _page.parent.name, "" if _page.name == "README.md" else f"-{_page.stem.lower()}"
    OUTSIDE[f"benchmarks/{_paper}/{_page.name}"] = f"benchmarks/{_paper}{_notes}.md"
    _title = _paper.upper() + _notes.replace("-", " ")
    PAPERS.append({_title: f"benchmarks/{_paper}{_notes}.md"})
OUTSIDE = {path: page for path, page in OUTSIDE.items() if (ROOT / path).exists()}

#: The page of an audit, on the site where it has been put there.
EXAMPLE_AUDIT = "example/audit.html"

LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
IMAGE = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
#: A directive for every public module of a package: ``::: leakgauge.core.*``.
EVERY_MODULE = re.compile(r"^::: (?P<package>[\w.]+)\.\*$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)
#: Something that a browser would load while it opens a page.
LOADED = re.compile(r"<(?:script|img|iframe|link|source)\b[^>]*?(?:src|href)=\"?(?:https?:)?//[^\"> ]*", re.IGNORECASE)
EXAMPLE = re.compile(r"<pre.*?</pre>", re.DOTALL)
UNDRAWN = re.compile(r"<m[a-z]+>[^<]*\\[^<]*</m[a-z]+>")
SPHINX = re.compile(r":(?:class|func|meth|mod|data|attr|exc|math):(?:`|<code>)|\.\. math::")

#: The faults for which a build fails.
CHECKS = (
    ("loads something from the network", LOADED),
    ("shows Sphinx markup", SPHINX),
    ("has a formula with a command that was not drawn", UNDRAWN),
)


def on_config(config: Any) -> Any:
    """Put every page of a paper into the navigation."""
    overview = [page for path, page in OUTSIDE.items() if path in ("benchmarks/README.md", "benchmarks/NOTES.md")]
    for entry in config.nav:
        if "Benchmarks" in entry:
            entry["Benchmarks"] = [*overview[:1], *entry["Benchmarks"], *PAPERS, *overview[1:]]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that live outside ``docs/``."""
    for path, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at pages of the site. A link to any other file of the repository becomes text."""
    home = next((path for path, where in OUTSIDE.items() if where == page.file.src_uri), f"docs/{page.file.src_uri}")
    code: list[str] = []

    def hide(match: re.Match[str]) -> str:
        code.append(match[0])
        return f"\x02{len(code) - 1}\x03"

    def relink(match: re.Match[str]) -> str:
        target = match["target"]
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
        where = OUTSIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if where is None:
            return match["text"]
        relative = posixpath.relpath(where, posixpath.dirname(page.file.src_uri) or ".")
        mark, anchor = "!" if match[0].startswith("!") else "", match.groupdict().get("anchor") or ""
        return f"{mark}[{match['text']}]({relative}{anchor})"

    if home == "docs/example.md" and (ROOT / "docs" / EXAMPLE_AUDIT).exists():
        markdown += f"\n## The whole page\n\n[The page of this audit]({EXAMPLE_AUDIT}) as `make demo` writes it.\n"
    text = CODE.sub(hide, EVERY_MODULE.sub(_every_module, markdown))
    text = IMAGE.sub(relink, LINK.sub(relink, text))
    return re.sub("\x02(\\d+)\x03", lambda match: code[int(match[1])], text)


def _every_module(match: re.Match[str]) -> str:
    folder = ROOT / "src" / match["package"].replace(".", "/")
    modules = sorted(file.stem for file in folder.glob("*.py") if not file.stem.startswith("_"))
    return "\n\n".join(f"::: {match['package']}.{module}" for module in modules)


def on_page_content(html: str, **_: Any) -> str:
    """Draw formulas as MathML, which browsers show without a script."""
    return FORMULA.sub(_mathml, html)


def _mathml(match: re.Match[str]) -> str:
    tex = html.unescape(match["tex"]).replace(r"\arg", r"\operatorname{arg}")
    drawn = convert(tex, display="block" if match["tag"] == "div" else "inline")
    return f'<div class="formula">{drawn}</div>' if match["tag"] == "div" else drawn


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Fail the build if a page loads something from the network or shows Sphinx markup."""
    text = EXAMPLE.sub("", output)
    for fault, pattern in CHECKS:
        match = pattern.search(text)
        if match:
            passage = text[max(0, match.start() - 80) : match.end() + 80]
            raise PluginError(f"{page.file.src_uri} {fault}: {passage!r}")
    return output
