"""The trials of a search, and the file that keeps them: plain JSON lines, one added whenever a trial ends.

The first line says which search it is. A line that was not written to its end, because the machine went down in the
middle of it, is dropped; its trial is run again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from leakgauge.core.container import Location, write_atomically
from leakgauge.core.errors import CorruptFile, FileError, FutureVersion

VERSION = 1
Numbers = dict[str, float]
State = Literal["done", "cut short", "failed"]


@dataclass(frozen=True)
class Trial:
    """One evaluation of the objective.

    ``curve`` is ``{step: value}`` on the way. ``value`` is the last of these where the trial was cut short, and NaN
    where it failed.
    """

    number: int
    numbers: Numbers
    value: float
    curve: dict[int, float] = field(default_factory=dict)
    state: State = "done"


def done(trials: Iterable[Trial]) -> list[Trial]:
    """Those that ran to their end."""
    return [trial for trial in trials if trial.state == "done"]


class TrialFile:
    """The trials of one search on disk. ``search`` describes it in plain JSON, and must be that of the file."""

    def __init__(self, path: Location, search: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.trials: list[Trial] = []
        lines = self._lines()
        if lines:
            self._check_head(lines[0], search)
        else:
            lines = [json.dumps({"leakgauge": "search", "version": VERSION, **search})]
        for number, line in enumerate(lines[1:], start=2):
            try:
                self.trials.append(_from_json(json.loads(line), search["ranges"]))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
                raise CorruptFile(
                    f"{self.path}: line {number} is no trial of this search ({problem}); the file was altered: "
                    "delete that line, or search into another file"
                ) from problem
        write_atomically(self.path, "".join(f"{line}\n" for line in lines).encode())

    def append(self, trial: Trial) -> None:
        """Add a trial; it is on disk when this returns."""
        content = asdict(trial) | {"value": None if math.isnan(trial.value) else trial.value}
        try:
            with self.path.open("ab", buffering=0) as file:
                file.write(f"{json.dumps(content, allow_nan=False)}\n".encode())
                os.fsync(file.fileno())
        except OSError as problem:
            raise FileError(f"{self.path}: cannot be written: {problem.strerror or problem}") from problem

    def _lines(self) -> list[str]:
        """The lines that were written to their end."""
        try:
            text = self.path.read_bytes().decode()
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as problem:  # a ValueError is a name that no file can have, or no text
            raise FileError(
                f"{self.path}: cannot be read: {getattr(problem, 'strerror', None) or problem}"
            ) from problem
        lines = text.split("\n")
        return lines[:-1] or lines  # without any line end, it is no file of ours: let the head's check say so

    def _check_head(self, line: str, search: Mapping[str, Any]) -> None:
        try:
            head = json.loads(line)
        except (ValueError, RecursionError):
            head = None
        if not isinstance(head, dict) or head.get("leakgauge") != "search":
            raise CorruptFile(f"{self.path}: this is no file of a search, and is left as it is; choose another name")
        if head.get("version") != VERSION:
            raise FutureVersion(
                f"{self.path}: written in version {head.get('version')!r} of the format; this Leakgauge reads "
                f"{VERSION}: upgrade it"
            )
        for name, value in search.items():
            if head.get(name) != value:
                raise FileError(
                    f"{self.path}: holds another search: its {name} is {head.get(name)!r}, not {value!r}; "
                    "use the same to go on with it, or search into another file"
                )


def _from_json(content: Mapping[str, Any], ranges: Mapping[str, Mapping[str, Any]]) -> Trial:
    trial = Trial(
        content["number"],
        {name: float(value) for name, value in content["numbers"].items()},
        math.nan if content["value"] is None else float(content["value"]),
        {int(step): float(value) for step, value in content["curve"].items()},
        content["state"],
    )
    if type(trial.number) is not int or trial.number < 0 or trial.state not in get_args(State):
        raise ValueError(f"trial {trial.number!r} is {trial.state!r}")
    if trial.numbers.keys() != ranges.keys():
        raise ValueError(f"its numbers are {', '.join(trial.numbers)}")
    for name, value in trial.numbers.items():
        if not ranges[name]["low"] <= value <= ranges[name]["high"]:
            raise ValueError(f"its {name} is {value}")
    values = [*trial.curve.values(), *([] if trial.state == "failed" else [trial.value])]
    if not all(map(math.isfinite, values)) or (trial.state == "cut short" and not trial.curve):
        raise ValueError("a value is missing or infinite")
    return trial
