"""The reader of CSV tables, which refuses whatever would silently become other data than the user has."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from leakgauge.core.errors import InvalidInput, UnknownName, shown
from leakgauge.data.csv_numbers import DecimalSign, is_number
from leakgauge.data.formats import corrupt, read_bytes, reading

#: The characters that may separate columns, with their names.
SEPARATORS = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas"}
#: The number of lines that show which separator a table has.
_SAMPLE = 200


@dataclass(frozen=True)
class Table:
    """The columns of a CSV file as text.

    Args:
        file: The path of the file.
        columns: A dictionary from the name of each column to its cells, without blanks around them. Cells may be empty.
        lines: The number of the file's line of each row.
        separator: The character that separates columns.
        decimal: The decimal sign of numbers.
        left_out: A dictionary from columns to the number of rows that were left out, because this was their first
            column without a value.
    """

    file: Path
    columns: dict[str, list[str]] = field(repr=False)
    lines: list[int] = field(repr=False)
    separator: str = ","
    decimal: DecimalSign = "."
    left_out: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    def without(self, names: Sequence[str]) -> Table:
        """Return the table without some columns."""
        return replace(self, columns={name: cells for name, cells in self.columns.items() if name not in names})

    def only(self, rows: Sequence[int], left_out: dict[str, int]) -> Table:
        """Return the table with some of its rows.

        Args:
            rows: The indices of the rows.
            left_out: The number of the other rows, by the column because of which they were left out.
        """
        columns = {name: [cells[row] for row in rows] for name, cells in self.columns.items()}
        return replace(self, columns=columns, lines=[self.lines[row] for row in rows], left_out=left_out)


def read_table(file: Path, separator: str | None = None, encoding: str = "utf-8") -> Table:
    """Read a CSV file with a header, and return its columns.

    Args:
        file: The path of the file.
        separator: The character that separates columns, or "tab". By default, it is the one that divides every line
            alike.
        encoding: The encoding of the text.
    """
    if separator is not None and separator not in (*SEPARATORS, "tab"):
        raise InvalidInput(f'separator must be ",", ";", "|" or "tab", not {shown(separator)}')
    expected = "a CSV table with a header"
    content = read_bytes(file, expected)
    with reading(file, f"{expected} in {encoding} (name another one with the option encoding, such as 'cp1252')"):
        text = content.decode("utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding)
    with reading(file, expected):
        chosen = _separator_of(text) if separator is None else separator.replace("tab", "\t")
        lines = list(_rows(text, chosen))
    if len(lines) < 2:
        raise corrupt(file, f"holds {len(lines)} lines", "a header and at least one row")
    (_, first), *rows = lines
    header = [name.strip() for name in first]
    _check_header(file, header, chosen)
    for number, row in rows:
        if len(row) != len(header):
            words = f"{len(header)}, one for each column of the header (separated by {SEPARATORS[chosen]})"
            raise corrupt(file, f"line {number} has {len(row)} values", words)
    columns = {name: [row[place].strip() for _, row in rows] for place, name in enumerate(header)}
    return Table(file, columns, [number for number, _ in rows], chosen)


def _rows(text: str, separator: str) -> itertools.filterfalse[tuple[int, list[str]]]:
    """Return an iterator over the lines that are not blank, each with its number."""
    lines = enumerate(csv.reader(io.StringIO(text, newline=""), delimiter=separator), 1)
    return itertools.filterfalse(lambda line: not any(cell.strip() for cell in line[1]), lines)


def _separator_of(text: str) -> str:
    """Return the separator that divides every line into the same number of columns, and into the most.

    If no separator does, the comma is returned, and the line that does not fit is named later.
    """
    sizes = {}
    for separator in SEPARATORS:
        counts = {len(row) for _, row in itertools.islice(_rows(text, separator), _SAMPLE)}
        if len(counts) == 1:
            sizes[separator] = counts.pop()
    if max(sizes.values(), default=1) > 1:
        return max(sizes, key=lambda separator: sizes[separator])
    header = text.lstrip().partition("\n")[0]
    return max(reversed(SEPARATORS), key=header.count)


def _check_header(file: Path, header: list[str], separator: str) -> None:
    if len(header) == 1:
        others = [name for sign, name in SEPARATORS.items() if sign != separator and sign in header[0]]
        if others:
            raise corrupt(file, f"seems to be separated by {others[0]}", f"{SEPARATORS[separator]}, as separator says")
    for name in header:
        if not name or not name.isprintable():
            raise corrupt(file, f"has a column called {shown(name)}", "a printable name for each column in line 1")
        if "=" in name:
            raise InvalidInput(f"{file}: the column {name!r} has the sign = in its name. Rename it")
        if header.count(name) > 1:
            raise InvalidInput(f"{file}: the column {name!r} is there twice. Rename or remove one of the two.")
    if all(is_number(name) for name in header):
        raise corrupt(file, f"begins with numbers ({', '.join(header)[:60]})", "the names of the columns in line 1")


def check_columns(table: Table, target: str, sensitive: str | None, roles: dict[str, Sequence[str]]) -> None:
    """Raise an error if a named column is missing or has two types, or if there is no column beside the target.

    Args:
        table: The columns.
        target: The name of the column to predict.
        sensitive: The name of the sensitive column, if there is one.
        roles: The names of the columns of each type that the user named: ``categories``, ``numbers`` and ``ignore``.
    """
    file = table.file
    named = {"target": [target], "sensitive": [] if sensitive is None else [sensitive], **roles}
    for role, columns in named.items():
        for column in columns:
            if column not in table.columns:
                raise UnknownName(f"column in {file} for {role}", column, table.columns)
    for first, second in itertools.combinations(roles, 2):
        for column in roles[first]:
            if column in roles[second]:
                raise InvalidInput(f"{file}: the column {column!r} is in both {first} and {second}. Name it in one")
    if sensitive == target:
        raise InvalidInput(f"{file}: {target!r} cannot be both the target and the sensitive column")
    for role in ("target", "sensitive"):
        for column in named[role]:
            if column in roles["ignore"]:
                raise InvalidInput(f"{file}: {column!r} is the {role} column, so it cannot be ignored")
    if not table.columns.keys() - {target, *roles["ignore"]}:
        raise InvalidInput(f"{file}: there is no column beside the target {target!r}")
