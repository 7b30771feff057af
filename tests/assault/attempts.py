"""Run a wrong command line in this process, and say how it ended. No attack is run: the first one counts as accepted."""

import contextlib
import io
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from leakgauge import cli

#: The functions with which the attacks of a command begin. A wrong input must be refused before.
WORK = (
    "leakgauge.workflows.audit.run.run_tasks",
    "leakgauge.workflows.frontier.run_cached",
    "leakgauge.workflows.attack_captures.run_tasks",
    "leakgauge.workflows.infer_captures.run.run_tasks",
    "leakgauge.reproduction.runner.run_cached",
    "leakgauge.reproduction.speed.measure_speed",
)
#: The seconds of CPU after which a refusal counts as hanging.
PATIENCE = 20.0
#: The wording of errors that nobody foresaw.
UNFORESEEN = ("Traceback (most recent call last)", "unexpected: please report it")
MOST_LINES = 12


class Accepted(BaseException):
    """The work of a command has begun."""


class Hanging(BaseException):
    """A command did not end in time."""


@dataclass(frozen=True)
class Attempt:
    """How a command ended.

    Args:
        ending: ``"refused"``, ``"accepted"``, ``"unexpected"``, ``"hanging"``, ``"raised"`` or ``"ended"``.
        code: The exit code.
        output: The standard output.
        errors: The standard error.
    """

    ending: str
    code: int
    output: str
    errors: str

    @property
    def sentence(self) -> str:
        """The last line of the errors, shortened."""
        return self.errors.strip()[-700:]


def attempt(words: Sequence[object], folder: Path, *, work: bool = False) -> Attempt:
    """Run ``leakgauge`` with the given words.

    Args:
        words: The words of the command line.
        folder: The working directory.
        work: Whether attacks are run.
    """
    output, errors = io.StringIO(), io.StringIO()
    ending, code = "ended", 0
    with _in(folder), _limited(PATIENCE), contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(sys, "argv", ["leakgauge", *map(str, words)]))
        stack.enter_context(patch.object(cli.screen, "_file", output))
        stack.enter_context(patch.object(cli.screen, "_width", 200))
        for name in () if work else WORK:
            stack.enter_context(patch(name, _accept))
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(errors))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # those of a user's own code
        warnings.filterwarnings("error", module="leakgauge")
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        except Accepted:
            ending = "accepted"
        except Hanging:
            ending = "hanging"
        except Exception as problem:
            ending = "raised"
            errors.write(repr(problem))
    text = errors.getvalue()
    if any(one in text + output.getvalue() for one in UNFORESEEN):
        ending = "unexpected"
    elif ending == "ended" and code == 2:
        ending = "refused"
    return Attempt(ending, code, output.getvalue(), text)


def _accept(*values: object, **named: object) -> None:
    raise Accepted


@contextlib.contextmanager
def _in(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise :class:`Hanging` inside the ``with`` block after so many seconds of CPU, or as many of waiting times six."""

    def stop(number: int, frame: object) -> None:
        raise Hanging

    before = [signal.signal(kind, stop) for kind in (signal.SIGALRM, signal.SIGVTALRM)]
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 6 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for kind, handler in zip((signal.SIGALRM, signal.SIGVTALRM), before, strict=True):
            signal.signal(kind, handler)
