"""The command line. After a mistake of the user, the program prints one sentence and exits with code 2.

Each module of this package defines some commands, which are registered when the module is imported. A command imports
other modules only when it runs, so that ``leakgauge --help`` does not import torch.
"""

from __future__ import annotations

import atexit
import os
import sys

import typer

from leakgauge.cli import audits, benchmarks, captures, listing, model_checks
from leakgauge.cli.common import app, complain, screen
from leakgauge.cli.interrupts import whole_imports
from leakgauge.cli.streams import flush, tolerant_streams
from leakgauge.core.errors import LeakgaugeError, TasksFailed
from leakgauge.core.exits import no_exit, seal
from leakgauge.runtime import memory

__all__ = ["app", "audits", "benchmarks", "captures", "listing", "main", "model_checks", "screen"]


def main() -> None:
    """Run the command line, and exit with the exit code of the command."""
    memory.reuse()
    with tolerant_streams():
        code = _exit_code()
    atexit.register(seal, code)  # runs before whatever the user's code registered
    sys.exit(code)


def _exit_code() -> int:
    """Run the command, print its error if there is one, and return the exit code.

    Only a broken limit has the exit code 1, and only finished work has the exit code 0. An exit that the user's code
    makes is an error.
    """
    try:
        with no_exit(), whole_imports():
            code: int | None = app(standalone_mode=False)
            flush()
            return code or 0
    except TasksFailed as problem:
        if os.environ.get("LEAKGAUGE_DEBUG"):
            raise
        complain(f"{problem}\n(LEAKGAUGE_DEBUG=1 shows the traceback of the first)")
        return 3
    except LeakgaugeError as problem:
        return complain(str(problem))
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted")
        return 130
    except BaseException as problem:  # user code may raise anything, and Python's own exit code is 1
        return complain(_words(problem))


def _words(problem: BaseException) -> str:
    """Return the error message for a wrong command line, or for an unexpected error, which is a bug."""
    if hasattr(problem, "format_message"):  # the class of Typer's own errors depends on the version of Typer
        return str(problem.format_message())
    if os.environ.get("LEAKGAUGE_DEBUG"):
        raise problem
    text = str(problem).partition("\n")[0] or "no message"
    return f"{type(problem).__name__}: {text} (unexpected: please report it; LEAKGAUGE_DEBUG=1 shows the traceback)"
