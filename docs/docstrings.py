"""A Griffe extension that turns the Sphinx markup of docstrings into Markdown.

Docstrings name other objects with Sphinx roles, write formulas in TeX, draw tables with rulers of ``=``, and show code
after a line ``::`` or as doctests. The site is built from Markdown, so these are translated when the package is loaded.
The file hooks.py draws the formulas.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

#: A role with its target: the kind is group 1, the target group 2.
ROLE = re.compile(r":(class|func|meth|mod|data|attr|exc):`([^`]+)`")
#: A formula within a sentence.
INLINE_FORMULA = re.compile(r":math:`([^`]+)`")
#: A formula of its own, with the indented lines that continue it.
FORMULA = re.compile(
    r"^(?P<indent> *)\.\. math::(?P<first>.*)(?P<rest>(?:\n(?P=indent) +\S.*|\n *(?=\n(?P=indent) +\S))*)", re.MULTILINE
)
#: A line that ends in two colons, before an indented block of code.
LITERAL_BLOCK = re.compile(r"^(?P<before>.*?)::\n(?P<blank>\s*\n)(?P<code>(?:(?: {4,}.*|[ \t]*)\n?)+)", re.MULTILINE)

#: A doctest: lines from the first prompt to the next empty line.
DOCTEST = re.compile(r"^(?P<indent> *)>>> .*(?:\n *\S.*)*", re.MULTILINE)

#: A simple table: a ruler, lines, and a ruler, with another ruler below the header where there is one.
TABLE = re.compile(r"^ *=+(?: +=+)+\n(?: *\S.*\n|\n(?= +\S))+? *=+(?: +=+)+(?=\n\s*\n|\s*\Z)", re.MULTILINE)


class SphinxMarkup(griffe.Extension):
    """Rewrites every docstring of a package once all of its modules are loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite the docstrings of a package."""
        self._rewrite(pkg)

    def _rewrite(self, item: griffe.Object) -> None:
        if item.docstring:
            text = to_markdown(item.docstring.value, item)
            if item.is_class and any(str(base).endswith("NamedTuple") for base in item.bases):
                text = text.replace("Args:\n", "Attributes:\n")  # Griffe finds no parameters of a named tuple
            item.docstring.value = text
        for member in item.members.values():
            if not member.is_alias:
                self._rewrite(member)


def to_markdown(text: str, item: griffe.Object) -> str:
    """Return a docstring as Markdown.

    Args:
        text: The docstring.
        item: The object that it describes. Short names are looked up from here.
    """
    text = TABLE.sub(_table, text)
    text = FORMULA.sub(_formula, text)
    text = INLINE_FORMULA.sub(lambda match: rf"\({_one_line(match[1])}\)", text)
    text = LITERAL_BLOCK.sub(_literal_block, text)
    text = DOCTEST.sub(_doctest, text)
    return ROLE.sub(lambda match: _reference(match[1], match[2], item), text)


def _one_line(formula: str) -> str:
    return " ".join(formula.split())


def _table(match: re.Match[str]) -> str:
    lines = match[0].splitlines()
    starts = [column.start() for column in re.finditer("=+", lines[0])]
    ends = [*starts[1:], None]
    rows: list[list[str]] = []
    header = 0
    for line in lines[1:-1]:
        if re.fullmatch("[ =]+", line):
            header = len(rows)
            continue
        cells = [line[start:end].strip().replace("|", "\\|") for start, end in zip(starts, ends, strict=True)]
        if cells[0]:
            rows.append([cell.removeprefix("\\") for cell in cells])
        else:
            rows[-1] = [f"{above} {below}".strip() for above, below in zip(rows[-1], cells, strict=True)]
    if not header:
        rows.insert(0, [""] * len(starts))
    rows.insert(1, ["---"] * len(starts))
    indent = " " * starts[0]
    return "\n".join(f"{indent}| {' | '.join(row)} |" for row in rows) + "\n"


def _formula(match: re.Match[str]) -> str:
    formula = _one_line(match["first"] + " " + match["rest"])
    return f"{match['indent']}\\[{formula}\\]\n"


def _literal_block(match: re.Match[str]) -> str:
    code = textwrap.dedent(match["code"]).strip("\n")
    language = "python" if re.search(r"^(from|import|>>>) |\w\(", code) else "text"
    before = match["before"].rstrip()
    heading = f"{before}:\n\n" if before else ""
    return f"{heading}```{language}\n{code}\n```\n\n"


def _doctest(match: re.Match[str]) -> str:
    indent = match["indent"]
    return f"{indent}```pycon\n{match[0]}\n{indent}```"


def _reference(kind: str, target: str, item: griffe.Object) -> str:
    """Return a link to an object, or its name alone where no page describes it."""
    short = target.startswith("~")
    target = target.removeprefix("~")
    name = target.rsplit(".", 1)[-1] if short else target
    call = "()" if kind in ("func", "meth") else ""
    return f'<autoref optional identifier="{_path(target, item)}"><code>{name}{call}</code></autoref>'


def _path(target: str, item: griffe.Object) -> str:
    """Return the full path of a name that may be relative to an object."""
    first, dot, rest = target.partition(".")
    try:
        return item.resolve(first) + dot + rest
    except griffe.NameResolutionError:
        return target
