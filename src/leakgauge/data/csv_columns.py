"""The types of a table's columns, the rule for missing values, and the columns of numbers that a model sees."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from leakgauge.core.errors import InvalidInput, shown
from leakgauge.data.csv_numbers import OTHER_SIGN, DecimalSign, decimal_sign, is_number, to_number
from leakgauge.data.csv_table import Table

Kind = Literal["number", "category"]
Missing = Literal["drop", "fill", "refuse"]
#: A target with more different whole numbers than this is a quantity and not a class.
MANY = 100
#: A column with more different words than this has no categories, but names of rows.
MOST_WORDS = 1000
#: The largest number of classes.
MOST_CLASSES = 100_000
#: The largest number that single precision can hold.
LARGEST = 3.4e38
#: The words for a missing value, in small letters.
MISSING = ("", "?", "na", "n/a", "#n/a", "nan", "null")
#: Further words for a missing value in columns of numbers, where they can be no category.
MISSING_NUMBER = ("none", "nil", "missing", "unknown", "-", "--", ".")
#: The category of a missing value that is filled in.
FILLED = "missing"
_INFINITE = ("inf", "+inf", "-inf", "infinity", "-infinity")


@dataclass(frozen=True)
class Types:
    """The types of columns that the user named, and the words that stand for a missing value.

    Args:
        categories: The names of columns whose values are categories, even if they are numbers.
        numbers: The names of columns whose values are numbers.
        ignored: The names of columns that were left out.
        missing_words: The words for a missing value in every column. With ``None``, they are those of :data:`MISSING`,
            and in columns of numbers also those of :data:`MISSING_NUMBER`.
    """

    categories: Sequence[str] = ()
    numbers: Sequence[str] = ()
    ignored: Sequence[str] = ()
    missing_words: Sequence[str] | None = None

    def is_missing(self, cell: str, kind: Kind) -> bool:
        """Return whether a cell of a column holds no value."""
        word = cell.lower()
        if self.missing_words is not None:
            return not word or word in {one.strip().lower() for one in self.missing_words}
        return word in MISSING or (kind == "number" and word in MISSING_NUMBER)

    def kind_of(self, table: Table, name: str) -> Kind:
        """Return the type of a column, which is the named one, or else follows from its cells.

        A column is one of numbers if all of its values are numbers, and one of categories if none is. A column that
        mixes numbers and words raises an error, because it could be either.

        Args:
            table: The table.
            name: The name of the column.
        """
        distinct = Counter(table.columns[name])
        if name in self.categories:
            _check_any(table, name, any(not self.is_missing(cell, "category") for cell in distinct))
            return "category"
        values = [cell for cell in distinct if not self.is_missing(cell, "number")]
        words = [cell for cell in values if not is_number(cell, table.decimal) and cell.lower() not in _INFINITE]
        other = OTHER_SIGN[table.decimal]
        if words and all(is_number(cell, other) for cell in words):
            raise InvalidInput(
                f"{table.file}: the column {name!r} holds numbers such as {shown(words[0])}, but the decimal sign "
                f"of this table is {table.decimal!r}. Change the option decimal, or name the column in categories"
            )
        if len(words) == len(values) and name not in self.numbers:
            _check_any(table, name, any(not self.is_missing(cell, "category") for cell in distinct))
            return "category"
        if words:
            line = table.lines[table.columns[name].index(words[0])]
            advice = "" if name in self.numbers else ", or name the column in categories if its numbers are codes"
            raise InvalidInput(
                f"{table.file}: the column {name!r} holds numbers, but {shown(words[0])} (line {line}) is a word. "
                f"Correct it, list it in missing_words if it stands for a missing value{advice}"
            )
        _check_any(table, name, bool(values))
        return "number"


def sign_of(table: Table, types: Types) -> DecimalSign:
    """Return the decimal sign that the columns of numbers show.

    Args:
        table: The table.
        types: The types of columns that the user named.
    """
    cells = {name: set(cells) for name, cells in table.columns.items() if name not in types.categories}
    values = {name: [cell for cell in some if not types.is_missing(cell, "number")] for name, some in cells.items()}
    return decimal_sign(table.file, values)


def _check_any(table: Table, name: str, any_value: bool) -> None:
    if not any_value:
        raise InvalidInput(f"{table.file}: the column {name!r} holds no value. Leave it out with ignore = [{name!r}]")


def without_missing(table: Table, kinds: dict[str, Kind], types: Types, rule: Missing, target: str) -> Table:
    """Return the table without missing values.

    Args:
        table: The table.
        kinds: The type of each column.
        types: The words for a missing value.
        rule: ``"drop"`` leaves out rows with a missing value. ``"fill"`` replaces a missing number by the median of its
            column, and a missing category by a category of its own. ``"refuse"`` raises an error. Rows without a target
            are left out under both other rules.
        target: The name of the target.
    """
    gaps: dict[str, set[int]] = {}
    for name, cells in table.columns.items():
        missing = {cell for cell in set(cells) if types.is_missing(cell, kinds[name])}
        gaps[name] = {row for row, cell in enumerate(cells) if cell in missing} if missing else set()
    if rule == "refuse":
        _refuse(table, gaps)
    dropping = {target: gaps[target]} if rule == "fill" else gaps
    left_out: dict[str, int] = {}
    dropped: set[int] = set()
    for name, rows in dropping.items():
        if rows - dropped:
            left_out[name] = len(rows - dropped)
        dropped |= rows
    if len(dropped) == len(table):
        worst = max(dropping, key=lambda name: len(dropping[name]))
        raise InvalidInput(
            f"{table.file}: no row has a value in every column. The column {worst!r} lacks most "
            f'({len(dropping[worst])} of {len(table)}). Set missing = "fill", or leave columns out with ignore'
        )
    if rule == "fill":
        filled = {name: _filled(table, name, kinds[name], gaps[name]) for name in table.columns if name != target}
        table = replace(table, columns=table.columns | filled)
    return table.only([row for row in range(len(table)) if row not in dropped], left_out) if dropped else table


def _refuse(table: Table, gaps: dict[str, set[int]]) -> None:
    for name, rows in gaps.items():
        if rows:
            row = min(rows)
            cell = table.columns[name][row]
            raise InvalidInput(
                f"{table.file}: line {table.lines[row]} has no {name!r}{f' ({shown(cell)})' if cell else ''}. "
                'Fill it in, leave the row out, or set missing = "drop" or missing = "fill"'
            )


def _filled(table: Table, name: str, kind: Kind, gaps: set[int]) -> list[str]:
    cells = table.columns[name]
    if not gaps:
        return cells
    present = [cell for row, cell in enumerate(cells) if row not in gaps and cell.lower() not in _INFINITE]
    instead = FILLED
    if kind == "number":
        if not present:
            return cells  # infinite numbers only, which are refused later
        instead = sorted(present, key=lambda cell: to_number(cell, table.decimal))[(len(present) - 1) // 2]
    return [instead if row in gaps else cell for row, cell in enumerate(cells)]


def numbers_of(table: Table, name: str) -> list[float]:
    """Convert a column of numbers. A number that is not finite, or too large to compute with, raises an error.

    Args:
        table: The table, without missing values.
        name: The name of the column.
    """
    numbers = []
    for line, cell in zip(table.lines, table.columns[name], strict=True):
        number = to_number(cell, table.decimal) if is_number(cell, table.decimal) else math.inf
        if not math.isfinite(number) or abs(number) > LARGEST:
            raise InvalidInput(
                f"{table.file}: line {line} has the {name} {cell}, which is not a number that can be computed with. "
                "Correct it, or leave the row out."
            )
        numbers.append(number)
    return numbers


def words_of(table: Table, name: str) -> list[str]:
    """Return the different words of a column in their order. Words that are numbers are in the order of numbers.

    Args:
        table: The table, without missing values.
        name: The name of the column.
    """
    words = set(table.columns[name])
    if len(words) > MOST_WORDS:
        raise InvalidInput(
            f"{table.file}: the column {name!r} holds {len(words):,} different words, such as {shown(min(words))}, and "
            f"categories have at most {MOST_WORDS:,}. Leave the column out with ignore = [{name!r}], or group its words"
        )
    numeric = all(is_number(word, table.decimal) for word in words)
    return sorted(words, key=lambda word: (to_number(word, table.decimal) if numeric else 0.0, word))


def numeric_columns(
    table: Table, kinds: dict[str, Kind], sensitive: str | None
) -> tuple[dict[str, list[float]], dict[str, tuple[str, ...]]]:
    """Convert all columns of a table to numbers. Also return the words of columns that hold 0 and 1 for two words.

    A column of categories becomes several columns of 0 and 1, one for each different word. A sensitive column with two
    different words becomes a single column of 0 and 1.

    Args:
        table: The table, without missing values and without the target.
        kinds: The type of each column.
        sensitive: The name of the sensitive column, if there is one.
    """
    columns: dict[str, list[float]] = {}
    pairs: dict[str, tuple[str, ...]] = {}
    for name, cells in table.columns.items():
        if kinds[name] == "number":
            made = {name: numbers_of(table, name)}
        elif len(words := words_of(table, name)) == 2 and name == sensitive:
            made = {name: [float(cell == words[1]) for cell in cells]}
            pairs[name] = tuple(words)
        else:
            made = {f"{name}={word}": [float(cell == word) for cell in cells] for word in words}
        columns |= made
    return columns, pairs


def target_of(
    table: Table, name: str, kind: Kind, regression: bool | None
) -> tuple[list[float], tuple[str, ...], bool]:
    """Convert the target to numbers. Also return the words of its classes, and whether it has classes.

    A word becomes its index in the order of the column's words.

    Args:
        table: The table, without missing values.
        name: The name of the target.
        kind: The type of the target.
        regression: Whether the target is a number to predict, as in :func:`leakgauge.data.from_csv`.
    """
    if kind == "category":
        words = words_of(table, name)
        if regression:
            raise InvalidInput(
                f"{table.file}: the target {name!r} holds words, so it is no regression. Leave regression out"
            )
        places = {word: float(place) for place, word in enumerate(words)}
        return [places[cell] for cell in table.columns[name]], tuple(words), True
    numbers = numbers_of(table, name)
    whole = all(number == round(number) for number in numbers)
    if regression is False and not whole:
        raise InvalidInput(
            f"{table.file}: the target {name!r} holds fractions, so it is no class. Leave regression out"
        )
    classes = regression is False or (regression is None and whole and len(set(numbers)) <= MANY)
    if classes:
        _check_classes(table.file, name, numbers)
    return numbers, (), classes


def _check_classes(file: Path, name: str, numbers: Sequence[float]) -> None:
    if not 0 <= min(numbers) <= max(numbers) < MOST_CLASSES:
        raise InvalidInput(
            f"{file}: the classes of the target {name!r} run from {min(numbers):g} to {max(numbers):g}. "
            f"Number them 0, 1, 2 and so on, or set categories = [{name!r}], or set regression = true"
        )
