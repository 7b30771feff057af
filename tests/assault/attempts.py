"""Run a wrong command line in this process without any attack, and return how it ended."""

import contextlib
import io
import os
import signal
import sys
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


class Accepted(BaseException):
    """The error for a command whose work has begun."""


class Hanging(BaseException):
    """The error for a command that did not end in time."""


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


def attempt(words: Sequence[object], folder: Path) -> Attempt:
    """Run ``leakgauge`` with the given words.

    Args:
        words: The words of the command line.
        folder: The working directory.
    """
    output, errors = io.StringIO(), io.StringIO()
    ending, code = "ended", 0
    with _in(folder), limited(), without_work(), contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(sys, "argv", ["leakgauge", *map(str, words)]))
        stack.enter_context(patch.object(cli.screen, "_file", output))
        stack.enter_context(patch.object(cli.screen, "_width", 200))
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(errors))
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
    # The command line turns whatever is raised inside it into a sentence, also the marks of this module.
    if f"{Accepted.__name__}: " in text:
        ending = "accepted"
    elif f"{Hanging.__name__}: " in text:
        ending = "hanging"
    elif any(one in text + output.getvalue() for one in UNFORESEEN):
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
def limited(seconds: float = PATIENCE) -> Iterator[None]:
    """Raise :class:`Hanging` inside the ``with`` block after so many seconds of CPU, or 30 times as many of waiting.

    Args:
        seconds: The seconds of CPU.
    """

    def stop(number: int, frame: object) -> None:
        raise Hanging(f"no end after {seconds:.0f} seconds of CPU")

    before = [signal.signal(kind, stop) for kind in (signal.SIGALRM, signal.SIGPROF)]
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 30 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for kind, handler in zip((signal.SIGALRM, signal.SIGPROF), before, strict=True):
            signal.signal(kind, handler)


@contextlib.contextmanager
def without_work() -> Iterator[None]:
    """Raise :class:`Accepted` inside the ``with`` block when attacks would begin. Warnings of our own are errors."""
    with contextlib.ExitStack() as stack:
        for name in WORK:
            stack.enter_context(patch(name, _accept))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # those of a user's own code
        warnings.filterwarnings("error", module="leakgauge")
        yield
