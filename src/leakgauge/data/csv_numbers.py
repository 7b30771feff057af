"""Numbers in the text of a table, with decimal points or decimal commas, and with signs between thousands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from leakgauge.core.errors import InvalidInput

DecimalSign = Literal[".", ","]
#: The signs that may stand between thousands, beside the point or the comma.
_GAPS = " '\u2019\u00a0\u202f"


def _pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    point, group = re.escape(decimal), rf"[{re.escape(thousands + _GAPS)}]\d{{3}}"
    plain = rf"(\d+{point}?\d*|{point}\d+)([eE][+-]?\d+)?"
    return re.compile(rf"[+-]?({plain}|\d{{1,3}}({group})+({point}\d*)?)", re.ASCII)


_STYLES: dict[DecimalSign, re.Pattern[str]] = {".": _pattern(".", ","), ",": _pattern(",", ".")}
#: The other decimal sign, which may stand between thousands.
OTHER_SIGN: dict[DecimalSign, DecimalSign] = {".": ",", ",": "."}


def is_number(cell: str, decimal: DecimalSign = ".") -> bool:
    """Return whether a text is a number.

    Args:
        cell: The text.
        decimal: The decimal sign.

    >>> [is_number(cell) for cell in ("1.5", "-2e3", "1,234.5", "1.5.2", "NA")]
    [True, True, True, False, False]
    >>> [is_number(cell, ",") for cell in ("1,5", "1.234,5", "1.5")]
    [True, True, False]
    """
    return _STYLES[decimal].fullmatch(cell) is not None


def to_number(cell: str, decimal: DecimalSign = ".") -> float:
    """Convert the text of a number.

    Args:
        cell: The text, for which :func:`is_number` is true.
        decimal: The decimal sign.

    >>> to_number("1.234,5", ","), to_number("1,234.5"), to_number("12 000")
    (1234.5, 1234.5, 12000.0)
    """
    for gap in _GAPS + OTHER_SIGN[decimal]:
        cell = cell.replace(gap, "")
    return float(cell.replace(decimal, "."))


def decimal_sign(file: Path, columns: Mapping[str, Sequence[str]]) -> DecimalSign:
    """Return the decimal sign of a table.

    A column shows the sign if all of its cells are numbers with this sign, and not all with the other one. Raise an
    error if two columns show different signs, or if commas may be decimal signs as well as signs between thousands.

    Args:
        file: The path of the file, for error messages.
        columns: A dictionary from the names of columns to their cells. Cells without a value are left out.
    """
    shows: dict[DecimalSign, str] = {}
    unclear = None
    for name, cells in columns.items():
        fits = [sign for sign in _STYLES if cells and all(is_number(cell, sign) for cell in cells)]
        if len(fits) == 1:
            shows.setdefault(fits[0], name)
        elif fits and any("," in cell for cell in cells):
            unclear = name
    if len(shows) == 2:
        raise InvalidInput(
            f"{file}: the column {shows[',']!r} has decimal commas, and {shows['.']!r} has decimal points. "
            'Name the sign with the option decimal = "," or decimal = "."'
        )
    if not shows and unclear is not None:
        cell = next(cell for cell in columns[unclear] if "," in cell)
        raise InvalidInput(
            f"{file}: the commas in the column {unclear!r}, such as in {cell!r}, may be decimal signs or stand between "
            'thousands. Name the decimal sign with the option decimal = "," or decimal = "."'
        )
    return next(iter(shows), ".")
