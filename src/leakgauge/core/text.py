"""Functions that make texts of strangers safe for a terminal, a page, XML, JSON and a table.

Titles, names of clients and file names may hold anything. Each output passes through one of these functions.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leakgauge.core.errors import printable

#: The characters with which a formula begins in a spreadsheet.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def clean(text: str) -> str:
    r"""Replace the control characters in a text, such as escape sequences of terminals, but keep its line breaks.

    >>> clean("first\nsecond \x1b[31m")
    'first\nsecond �[31m'
    """
    return text if text.isprintable() else "\n".join(printable(line, longest=None) for line in text.split("\n"))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON text without control characters in its texts.

    Args:
        value: The value, which consists of dictionaries, lists, texts and numbers.
        indent: The number of spaces for each level, or ``None`` for a single line.
    """
    return json.dumps(_cleaned(value), indent=indent)


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as the text of a CSV file that a spreadsheet opens without running a formula.

    Args:
        rows: The rows. Each row holds one value for each column.
    """
    text = io.StringIO()
    csv.writer(text).writerows([csv_cell(value) for value in row] for row in rows)
    return text.getvalue()


def csv_cell(value: Any) -> Any:
    """Return a value for a cell of a CSV file. A text that a spreadsheet takes for a formula gets an apostrophe.

    >>> [csv_cell(value) for value in ("=1+1", "-1.5", -1.5, "noise", "-")]
    ["'=1+1", '-1.5', -1.5, 'noise', '-']
    """
    if not isinstance(value, str):
        return value
    text = printable(value, longest=None)
    start = text.lstrip()
    return f"'{text}" if start.startswith(_FORMULA) and len(start) > 1 and not _is_number(start) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(key) if isinstance(key, str) else key: _cleaned(item) for key, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, (list, tuple)) else value
