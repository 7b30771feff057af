"""The exceptions that Leakgauge raises on purpose.

Each message explains what is wrong, why, and what to do next. The command line prints it unchanged.

::

    LeakgaugeError
    ├── InvalidInput        an argument, tensor or recipe cannot be used (also a ValueError)
    │   └── UnknownName     a name that is not in a table of names (also a KeyError)
    ├── MissingKnowledge    an attack needs something that the observation does not hold
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
    """A name that is not in a table of names. The message lists the valid names and suggests the nearest.

    Args:
        kind: What the name stands for, such as "model".
        name: The unknown name.
        valid: The names that exist.
    """

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
    """An optional dependency is not installed.

    Args:
        feature: The feature that needs the package, as the subject of the message.
        package: The missing package.
        extra: The extra of Leakgauge that installs the package.
    """

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the package {package!r}, which is not installed. "
            f"In a checkout of Leakgauge, run: {install_line(extra)}"
        )


class TasksFailed(LeakgaugeError):
    """Some tasks of a sweep failed. The others are done.

    Args:
        failures: A sentence for each failed task, by the task's name.
        total: The number of all tasks.
    """

    def __init__(self, failures: Mapping[str, str], total: int) -> None:
        self.failures = dict(failures)
        tasks_by_problem: dict[str, list[str]] = {}
        for name, problem in failures.items():
            tasks_by_problem.setdefault(problem, []).append(name)
        lines = [
            f"  {names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}: {problem}"
            for problem, names in tasks_by_problem.items()
        ]
        rest = ", the others are done" if len(failures) < total else ""
        super().__init__("\n".join([f"{len(failures)} of {total} tasks failed{rest}:", *lines]))


def install_line(extra: str) -> str:
    """Return the command that installs an extra from a checkout of Leakgauge.

    >>> print(install_line("search"))
    pip install -c constraints.txt ".[search]"
    """
    return f'pip install -c constraints.txt ".[{extra}]"'


def printable(text: str, longest: int = 300) -> str:
    """Replace control characters in a text from a file, and shorten it, so that a terminal can print it safely.

    Args:
        text: The text.
        longest: The number of characters after which the text is cut.
    """
    clean = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text[: longest + 1]
    )
    return clean if len(clean) <= longest else f"{clean[:longest]}..."
