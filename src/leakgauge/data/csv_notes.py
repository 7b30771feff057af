"""Sentences about how a CSV table was read: its types, its missing values, and columns that are worth a second look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakgauge.core.errors import printable
from leakgauge.data.csv_columns import FILLED, Kind, Missing, Types
from leakgauge.data.csv_table import SEPARATORS, Table

#: A column of more categories than this is worth a warning.
WIDE = 50
#: A column of numbers with at most this many different whole numbers may hold codes of categories.
FEW = 20
#: The largest number of columns that a sentence names.
_NAMED = 40
#: The largest number of classes that a sentence names. The words of more classes may be names of people.
_CLASSES = 10


def notes_of(
    read: Table, table: Table, kinds: dict[str, Kind], types: Types, rule: Missing, target: str
) -> Iterator[str]:
    """Yield sentences about a table and the types of its columns.

    Args:
        read: The table as it is in the file, with missing values.
        table: The table without missing values.
        kinds: The type of each column.
        types: The types of columns that the user named.
        rule: The rule for missing values.
        target: The name of the target.
    """
    decimals = {",": "decimal commas", ".": "decimal points"}[table.decimal]
    yield f"{len(table):,} rows, separated by {SEPARATORS[table.separator]}, with {decimals}."
    yield from _missing(read, table, kinds, types, rule, target)
    inputs = [name for name in table.columns if name != target]
    for kind, title in (("number", "Numbers"), ("category", "Categories")):
        names = [name for name in inputs if kinds[name] == kind]
        words = [name if kind == "number" else f"{name} ({_count(table, name):,} values)" for name in names]
        if words:
            yield f"{title}: {_listed(words)}."
    if types.ignored:
        yield f"Left out, as ignore says: {_listed(types.ignored)}."
    codes = [name for name in inputs if kinds[name] == "number" and name not in types.numbers and _few(table, name)]
    if codes:
        yield (
            f"{_listed(codes)}: few different whole numbers, used as numbers. If they are codes, name these columns in "
            "categories. If not, name them in numbers."
        )
    for name in inputs:
        count = _count(table, name)
        if kinds[name] == "category" and count > WIDE:
            yield (
                f"Warning: {name} holds {count:,} different values, so it becomes {count:,} columns of 0 and 1. If "
                "these are names, dates or identifiers, leave the column out with ignore. If they are numbers with "
                "units, remove the units."
            )
        elif kinds[name] == "category" and name not in types.categories and _begin_with_digits(table, name):
            yield (
                f"{name}: its categories begin with digits. If they are numbers with units, remove the units. If not, "
                "name this column in categories."
            )
        elif count == 1:
            yield f"{name} holds one value only."


def target_note(name: str, classes: int | None, words: Sequence[str], *, named: bool) -> str:
    """Return a sentence about the target.

    Args:
        name: The name of the target.
        classes: The number of classes, or ``None`` for a regression.
        words: The words of the classes, if they have words.
        named: Whether the user named the type of the target.
    """
    if classes is None:
        return printable(f"Target: {name}, a number.")
    if words:
        listed = f" ({_listed(words)})" if len(words) <= _CLASSES else ""
        return printable(f"Target: {name}, {classes} classes{listed}.")
    advice = "" if named else " If it is a quantity, set regression = true."
    return printable(f"Target: {name}, the classes 0 to {classes - 1}.{advice}")


def _missing(
    read: Table, table: Table, kinds: dict[str, Kind], types: Types, rule: Missing, target: str
) -> Iterator[str]:
    if table.left_out:
        number = len(read) - len(table)
        columns = _listed([f"{name} ({count:,})" for name, count in table.left_out.items()])
        much = "Warning: " if number > len(read) / 10 else ""
        yield f"{much}{number:,} of {len(read):,} rows were left out, because they have no value in {columns}."
    if rule == "fill":
        gaps = {
            name: sum(types.is_missing(cell, kinds[name]) for cell in read.columns[name])
            for name in read.columns
            if name != target
        }
        filled = [f"{name} ({count:,})" for name, count in gaps.items() if count]
        if filled:
            yield f"Missing values were filled in {_listed(filled)}: with the median, or as the category {FILLED!r}."


def _count(table: Table, name: str) -> int:
    return len(set(table.columns[name]))


def _few(table: Table, name: str) -> bool:
    words = set(table.columns[name])
    return 2 < len(words) <= FEW and all(word.lstrip("+-").isdigit() for word in words)


def _begin_with_digits(table: Table, name: str) -> bool:
    return all(word[:1].isdigit() for word in set(table.columns[name]))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return printable(", ".join(names[:_NAMED]) + more)
