"""The rows of a table on a page: the true row, the rebuilt row and a guess, with the cells that came back marked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.table_rows import decimals_of, features_of, number_text, records_of
from leakgauge.core.text import clean
from leakgauge.evaluation.metrics.tables import TOLERANCE, exact_rows, right_features
from leakgauge.reports.page import Section

#: The number of rows that are shown, the best recovered first.
SHOWN = 12
#: The largest number of columns that are shown.
MOST_COLUMNS = 30
#: The largest number of characters of a cell.
LONGEST = 40


@dataclass(frozen=True)
class Line:
    """One line of the table on a page.

    Args:
        cells: The texts of the cells.
        right: Whether each cell is right. It is empty for a true row.
    """

    cells: list[str]
    right: list[bool]


@dataclass(frozen=True, eq=False)
class Rebuilt:
    """Rebuilt rows of a table, and the true rows where they are known.

    Args:
        spec: The description of the data.
        rebuilt: The rebuilt rows, (N, columns), in their own units. NaN stands for none.
        original: The true row of each rebuilt row, or ``None`` if the true rows are not known.
        guess: The mean of other rows, (columns,), which is a guess without the message.
        targets: The true targets, (N,).
        labels: The targets that the attack inferred, (N,). NaN stands for none.
        target: The name of the target.
        words: A dictionary from the target, and from columns of 0 and 1, to the words for their values.
        target_std: The standard deviation of the target in a regression.
    """

    spec: DataSpec
    rebuilt: Tensor
    original: Tensor | None = None
    guess: Tensor | None = None
    targets: Tensor | None = None
    labels: Tensor | None = None
    target: str = "target"
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    target_std: float = 0.0

    def section(self, heading: str, sentence: str) -> Section:
        """Return a section of a page with the best recovered rows, or with the first rows if no true row is known.

        Args:
            heading: The heading.
            sentence: What was attacked, and how.
        """
        order = torch.arange(len(self.rebuilt))
        if self.original is not None:
            correct = right_features(self.rebuilt, self.original, self.spec)
            order = correct.double().mean(1).argsort(descending=True, stable=True)
            sentence = f"{sentence} {self._sentence(correct, self.original)}"
        kinds = self._lines(order[:SHOWN])
        names = [name for name, _, _ in features_of(self.spec)]
        shown = names[:MOST_COLUMNS]
        table = [["row", "", *shown, *([self.target] if self._has_targets else [])]]
        marked: dict[tuple[int, int], str] = {}
        for place in range(min(len(order), SHOWN)):
            for number, (kind, lines) in enumerate(kinds.items()):
                line = lines[place]
                kept = [*range(len(shown)), *range(len(names), len(line.cells))]
                mark = "guessed" if kind == "guess" else "back"
                marked |= {
                    (len(table), 2 + at): mark for at, cell in enumerate(kept) if line.right and line.right[cell]
                }
                table.append(["" if number else str(place + 1), kind, *(line.cells[cell] for cell in kept)])
        more = [] if shown == names else [f"The table shows the first {len(shown)} of {len(names)} columns."]
        cells = [[_cut(cell) for cell in line] for line in table]
        return Section(
            heading, (sentence, *more), cells, marked=marked, grouped=len(kinds), shows_samples=bool(len(order))
        )

    @property
    def _has_targets(self) -> bool:
        return self.targets is not None or self.labels is not None

    def _lines(self, order: Tensor) -> dict[str, list[Line]]:
        """Return the lines of each kind, which are true, rebuilt and guessed rows."""
        like = self.rebuilt if self.original is None else self.original
        true = None if self.original is None else self.original[order]
        rows = {} if true is None else {"true": true}
        rows["rebuilt"] = self.rebuilt[order]
        if self.guess is not None:
            rows["guess"] = self.guess.expand_as(rows["rebuilt"])
        lines: dict[str, list[Line]] = {}
        for kind, samples in rows.items():
            texts = records_of(samples, self.spec, like=like, words=self.words)
            right: list[list[bool]] = [[]] * len(order)
            if true is not None and kind != "true":
                right = right_features(samples, true, self.spec).tolist()
            lines[kind] = [
                self._with_target(kind, row, Line(cells, correct))
                for row, cells, correct in zip(order.tolist(), texts, right, strict=True)
            ]
        return lines

    def _with_target(self, kind: str, row: int, line: Line) -> Line:
        """Return a line with the target of a row, if targets are known."""
        if not self._has_targets:
            return line
        true = math.nan if self.targets is None else float(self.targets[row])
        inferred = math.nan if self.labels is None else float(self.labels[row])
        value = {"true": true, "rebuilt": inferred}.get(kind, math.nan)
        known = self.labels if self.targets is None else self.targets
        decimals = 0 if known is None else decimals_of(known)
        tolerance = TOLERANCE * self.target_std if self.spec.classes is None else 0.0
        right = kind == "rebuilt" and abs(inferred - true) <= tolerance
        text = number_text(value, decimals, self.words.get(self.target, ()))
        return Line([*line.cells, text], [*line.right, right] if line.right else [])

    def _sentence(self, right: Tensor, original: Tensor) -> str:
        """Return how many rows and values came back, also beside a guess."""
        whole, count = int(right.all(1).sum()), len(right)
        exact = int(exact_rows(self.rebuilt, original, self.spec).sum())
        share = f"{float(right.double().mean()):.0%} of all values are right"
        if self.guess is not None:
            guessed = right_features(self.guess.expand_as(original), original, self.spec)
            share += f" (the guess: {float(guessed.double().mean()):.0%})"
        return (
            f"{whole} of {count} rows came back with every value right, {exact} of them as exact copies, and {share}. "
            f"A category is right if it is the same. A number is right within {TOLERANCE} standard deviations. Right "
            "values are marked."
        )


def _cut(cell: str) -> str:
    text = clean(cell)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
