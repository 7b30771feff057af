"""The exceptions Leakgauge raises on purpose.

Each message says what is wrong, why, and what to do next, so that the command line can print it as it is.

::

    LeakgaugeError
    ├── InvalidInput        an argument, tensor or recipe cannot be used (also a ValueError)
    │   └── UnknownName     a name that is not in a table; lists the valid ones (also a KeyError)
    ├── MissingKnowledge    the attack needs something this observation does not hold
    ├── FileError           a file cannot be read or written
    │   ├── CorruptFile     truncated, altered, foreign, or holding impossible values
    │   └── FutureVersion   written by a newer Leakgauge
    ├── DataNotFound        a dataset is neither on this machine nor downloadable
    ├── MissingExtra        an optional dependency is not installed (also an ImportError)
    └── TasksFailed         some tasks of a sweep failed, the others are done
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


class LeakgaugeError(Exception):
    """Base of every exception that Leakgauge raises on purpose."""


class InvalidInput(LeakgaugeError, ValueError):
    """An argument, tensor or recipe cannot be used."""


class UnknownName(InvalidInput, KeyError):
    """A name that is not in a table of names."""

    def __init__(self, kind: str, name: object, valid: Iterable[str]) -> None:
        names = sorted(valid)
        near = difflib.get_close_matches(str(name), names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        self.message = f"there is no {kind} {name!r}{hint} (known: {', '.join(names)})"
        super().__init__(self.message)

    def __str__(self) -> str:  # KeyError would print the repr
        return self.message


class MissingKnowledge(LeakgaugeError):
    """An attack needs something that the observation does not hold."""


class FileError(LeakgaugeError):
    """A file cannot be read or written."""


class CorruptFile(FileError):
    """A file is truncated, altered, foreign, or holds impossible values."""


class FutureVersion(FileError):
    """A file was written by a newer version of Leakgauge."""


class DataNotFound(LeakgaugeError):
    """A dataset is neither on this machine nor downloadable."""


class MissingExtra(LeakgaugeError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            f'{what} needs the package {package!r}, which is not installed; run: pip install "leakgauge[{extra}]"'
        )


class TasksFailed(LeakgaugeError):
    """Some tasks of a sweep failed; the others are done. ``failures`` holds a sentence for each, by its name."""

    def __init__(self, failures: Mapping[str, str], total: int) -> None:
        self.failures = dict(failures)
        alike: dict[str, list[str]] = {}
        for name, problem in failures.items():
            alike.setdefault(problem, []).append(name)
        lines = [
            f"  {names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}: {problem}"
            for problem, names in alike.items()
        ]
        rest = "; the others are done" if len(failures) < total else ""
        super().__init__("\n".join([f"{len(failures)} of {total} tasks failed{rest}:", *lines]))


def printable(text: str, longest: int = 300) -> str:
    """A text that may come from a file, without what could steer a terminal, and not endless."""
    clean = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text[: longest + 1])
    return clean if len(clean) <= longest else f"{clean[:longest]}..."
