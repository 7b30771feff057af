"""The exceptions that Leakgauge raises on purpose.

Each message explains what is wrong, why, and what to do next. The command line prints the message unchanged.

::

    LeakgaugeError
    ├── InvalidInput        an argument, tensor or setting cannot be used (also a ValueError)
    │   └── UnknownName     a name, such as that of a model, does not exist (also a KeyError)
    ├── MissingKnowledge    an observation lacks a fact that an attack needs, such as the labels
    ├── FileError           a file cannot be read or written
    │   ├── CorruptFile     a file is truncated or altered, or holds other content than expected
    │   └── FutureVersion   a file was written by a newer Leakgauge
    ├── DataNotFound        a dataset is not on this machine and cannot be downloaded
    ├── MissingExtra        an optional dependency is not installed (also an ImportError)
    ├── CodeExited          the user's code ended the process, as sys.exit does
    ├── EngineUnavailable   no task can run, because the engine cannot be started or reached
    └── TasksFailed         some of many tasks failed, and the others are done
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

#: The number of characters after which a wrong value is cut in an error message.
LONGEST_SHOWN = 500


class LeakgaugeError(Exception):
    """The base of every exception that Leakgauge raises on purpose."""


class InvalidInput(LeakgaugeError, ValueError):
    """The error for an argument, a tensor or a training setting that cannot be used."""


class UnknownName(InvalidInput, KeyError):
    """The error for a name that does not exist, such as the name of a model.

    The message lists the valid names and suggests the most similar name.

    Args:
        kind: A word for the named thing, such as "model". The error message contains it.
        name: The unknown name.
        valid: The names that exist.
    """

    def __init__(self, kind: str, name: object, valid: Iterable[str]) -> None:
        names = sorted(valid)
        near = difflib.get_close_matches(shown(name).strip("'"), names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        self.message = f"there is no {kind} {shown(name)}{hint} (known: {', '.join(names)})"
        super().__init__(self.message)

    def __str__(self) -> str:  # KeyError would print the repr
        return self.message


class MissingKnowledge(LeakgaugeError):
    """The error for an observation that lacks a fact that the attack needs, such as the labels."""


class FileError(LeakgaugeError):
    """The error for a file that cannot be read or written."""


class CorruptFile(FileError):
    """The error for a file that is truncated or altered, or that holds other content than expected."""


class FutureVersion(FileError):
    """The error for a file that a newer version of Leakgauge wrote."""


class DataNotFound(LeakgaugeError):
    """The error for a dataset that is not on this machine and cannot be downloaded."""


class MissingExtra(LeakgaugeError, ImportError):
    """The error for an optional dependency that is not installed.

    Args:
        feature: The feature that needs the package, in words. The error message begins with these words.
        package: The name of the missing package.
        extra: The name of the group of optional dependencies ("extra") that contains the package.
    """

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the package {package!r}, which is not installed. "
            f"In a checkout of Leakgauge, run: {install_line(extra)}"
        )


class CodeExited(LeakgaugeError):
    """The error for code of the user that ended the process, as ``sys.exit`` does, so that nothing was measured."""


class EngineUnavailable(LeakgaugeError):
    """The error for an engine that cannot be started or reached, such as a Ray cluster, so that no task can run."""


class TasksFailed(LeakgaugeError):
    """The error for a run of many tasks in which some tasks failed. All other tasks are done.

    Args:
        failures: A dictionary from the name of each failed task to one sentence about its failure.
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
    """Return the command that installs a group of optional dependencies ("extra") in a checkout of Leakgauge.

    >>> print(install_line("search"))
    pip install -c constraints.txt ".[search]"
    """
    return f'pip install -c constraints.txt ".[{extra}]"'


def printable(text: str, longest: int | None = 300) -> str:
    """Replace control characters in a text and shorten the text, so that a terminal can print the text safely.

    Args:
        text: The text to print, which may come from a file.
        longest: The number of characters after which the text is cut. ``None`` keeps the whole text.
    """
    if longest is not None and len(text) > longest:
        text = f"{text[:longest]}..."
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def shown(value: object) -> str:
    """Return the ``repr`` of a value for an error message, which is cut if it is very long.

    Args:
        value: Any value, such as one from a file.
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or a list in a list in a list ...
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
