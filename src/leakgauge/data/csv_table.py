"""The reader of CSV tables, which refuses whatever would silently become other data than the user has."""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path

from leakgauge.core.errors import InvalidInput, UnknownName, shown
from leakgauge.data.formats import corrupt, read_bytes, reading

#: The columns of a table by name, as text.
Table = dict[str, list[str]]
#: A target with more different whole numbers than this is a quantity and not a class.
MANY = 100
#: A column with more different words than this has no categories, but names of rows.
MOST_WORDS = 1000
#: The largest number of classes.
MOST_CLASSES = 100_000
#: The largest number that single precision can hold.
LARGEST = 3.4e38
#: The first characters of a row that show which separator a table has instead of the comma.
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
#: Words that stand for a missing value in a column of numbers, or for a number that is not finite.
_MISSING = {"na", "n/a", "nan", "null", "none", "nil", "missing", "unknown", "?", "-", "--", ".", "#n/a", "inf", "-inf"}


def read_table(file: Path) -> Table:
    """Read a CSV file with a header, and return its columns. Raise an error if a value is missing.

    Args:
        file: The path of the file, which is separated by commas.
    """
    expected = "a CSV table with a header"
    content = read_bytes(file, expected)
    with reading(file, expected):
        lines = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    rows = [(number, row) for number, row in enumerate(lines, 1) if any(cell.strip() for cell in row)]
    if len(rows) < 2:
        raise corrupt(file, f"holds {len(rows)} lines", "a header and at least one row")
    (_, first), *rows = rows
    header = [name.strip() for name in first]
    _check_header(file, header)
    for number, row in rows:
        if len(row) != len(header):
            raise corrupt(
                file, f"line {number} has {len(row)} values", f"{len(header)}, one for each column of the header"
            )
        for name, cell in zip(header, row, strict=True):
            if not cell.strip():
                raise InvalidInput(f"{file}: line {number} has no {name!r}. Fill it in, or leave the row out.")
    return {name: [row[place].strip() for _, row in rows] for place, name in enumerate(header)}


def _check_header(file: Path, header: list[str]) -> None:
    for sign, name in _OTHER_SEPARATORS.items():
        if len(header) == 1 and sign in header[0]:
            raise corrupt(file, f"is separated by {name}", "commas between columns, and points in decimal numbers")
    for name in header:
        if not name or not name.isprintable():
            raise corrupt(file, f"has a column called {shown(name)}", "a printable name for each column in line 1")
        if header.count(name) > 1:
            raise InvalidInput(f"{file}: the column {name!r} is there twice. Rename or remove one of the two.")
    if all(_NUMBER.fullmatch(name) for name in header):
        raise corrupt(file, f"begins with numbers ({', '.join(header)[:60]})", "the names of the columns in line 1")


def check_columns(file: Path, table: Table, target: str, sensitive: str | None) -> None:
    """Raise an error if the target or the sensitive column is missing, or if there is no other column.

    Args:
        file: The path of the file, for error messages.
        table: The columns.
        target: The name of the column to predict.
        sensitive: The name of the sensitive column, if there is one.
    """
    for role, column in (("target", target), ("sensitive", sensitive)):
        if column is not None and column not in table:
            raise UnknownName(f"column in {file} for {role}", column, table)
    if sensitive == target:
        raise InvalidInput(f"{file}: {target!r} cannot be both the target and the sensitive column")
    if len(table) == 1:
        raise InvalidInput(f"{file}: there is no column beside the target {target!r}")


def numbers_of(file: Path, name: str, column: list[str]) -> list[float] | None:
    """Convert a column of text to numbers. Return ``None`` if no value of the column is a number.

    A column that mixes numbers and words raises an error, because it could be either numbers with missing values or
    codes of categories.

    Args:
        file: The path of the file, for error messages.
        name: The name of the column.
        column: The values as text.
    """
    words = [value for value in column if not _NUMBER.fullmatch(value) and value.lower() not in ("inf", "-inf", "nan")]
    if len(words) == len(column):
        return None
    if words:
        kind = "stands for a missing value" if words[0].lower() in _MISSING else "is a word"
        raise InvalidInput(
            f"{file}: the column {name!r} holds numbers, but {shown(words[0])} (line {column.index(words[0]) + 2}) "
            f"{kind}. Fill in or leave out rows without a number, or write all codes of categories as words, such as c1"
        )
    numbers = [float(value) for value in column]
    for place, number in enumerate(numbers):
        if not math.isfinite(number) or abs(number) > LARGEST:
            raise InvalidInput(
                f"{file}: line {place + 2} has the {name} {column[place]}, which is not a number that can be computed "
                "with. Correct it, or leave the row out."
            )
    return numbers


def numeric_columns(file: Path, table: Table, sensitive: str | None) -> dict[str, list[float]]:
    """Convert all columns of a table to numbers.

    A column of words becomes several columns of 0 and 1, one for each different word. A sensitive column with two
    different words becomes a single column of 0 and 1.

    Args:
        file: The path of the file, for error messages.
        table: The columns.
        sensitive: The name of the sensitive column, if there is one.
    """
    columns: dict[str, list[float]] = {}
    for name, column in table.items():
        numbers = numbers_of(file, name, column)
        words = sorted(set(column))
        if numbers is not None:
            made = {name: numbers}
        elif name == sensitive and len(words) == 2:
            made = {name: [float(value == words[1]) for value in column]}
        else:
            _check_words(file, name, words)
            made = {f"{name}={word}": [float(value == word) for value in column] for word in words}
        for one in made:
            if one in columns:
                raise InvalidInput(f"{file}: two columns would be called {one!r}. Rename the column {name!r}.")
        columns |= made
    return columns


def _check_words(file: Path, name: str, words: list[str]) -> None:
    if len(words) > MOST_WORDS:
        raise InvalidInput(
            f"{file}: the column {name!r} holds {len(words):,} different words, such as {shown(words[0])}, and "
            f"categories have at most {MOST_WORDS:,}. Leave the column out, or group its words"
        )


def _check_classes(file: Path, name: str, numbers: list[float]) -> None:
    if not 0 <= min(numbers) <= max(numbers) < MOST_CLASSES:
        raise InvalidInput(
            f"{file}: the classes of the target {name!r} run from {min(numbers):g} to {max(numbers):g}. "
            "Number them 0, 1, 2 and so on, or write them as words, or set regression = true"
        )


def target_of(file: Path, name: str, column: list[str], regression: bool | None) -> tuple[list[float], bool]:
    """Convert the target to numbers. Also return whether they are classes.

    A word becomes its index in the sorted list of the column's words.

    Args:
        file: The path of the file, for error messages.
        name: The name of the target.
        column: The values as text.
        regression: Whether the target is a number to predict, as in :func:`leakgauge.data.from_csv`.
    """
    numbers = numbers_of(file, name, column)
    if numbers is None:
        words = sorted(set(column))
        _check_words(file, name, words)
        if regression:
            raise InvalidInput(f"{file}: the target {name!r} holds words, so it is no regression. Leave regression out")
        places = {word: float(place) for place, word in enumerate(words)}
        return [places[value] for value in column], True
    whole = all(number == round(number) for number in numbers)
    if regression is False and not whole:
        raise InvalidInput(f"{file}: the target {name!r} holds fractions, so it is no class. Leave regression out")
    if regression is False or (regression is None and whole and len(set(numbers)) <= MANY):
        _check_classes(file, name, numbers)
    if regression is None:
        return numbers, whole and len(set(numbers)) <= MANY
    return numbers, not regression
