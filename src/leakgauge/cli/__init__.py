"""The command line. After a mistake of the user, the program prints one sentence and exits with code 2.

Each module of this package defines some commands, which are registered when the module is imported. A command imports
other modules only when it runs, so that ``leakgauge --help`` does not import torch.
"""

from __future__ import annotations

import os
import sys

import typer

from leakgauge.cli import audits, benchmarks, captures, listing
from leakgauge.cli.common import app, complain, screen
from leakgauge.core.errors import LeakgaugeError, TasksFailed
from leakgauge.runtime import memory

__all__ = ["app", "audits", "benchmarks", "captures", "listing", "main", "screen"]


def main() -> None:
    """Run the command line, and exit with the exit code of the command."""
    memory.reuse()
    try:
        code = app(standalone_mode=False)
    except TasksFailed as problem:
        if os.environ.get("LEAKGAUGE_DEBUG"):
            raise
        complain(f"{problem}\n(LEAKGAUGE_DEBUG=1 shows the traceback of the first)")
        code = 3
    except LeakgaugeError as problem:
        code = complain(str(problem))
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted")
        code = 130
    except Exception as problem:
        code = complain(_words(problem))
    sys.exit(code)


def _words(problem: Exception) -> str:
    """Return the error message for a wrong command line, or for an unexpected error, which is a bug."""
    if hasattr(problem, "format_message"):  # the class of Typer's own errors depends on the version of Typer
        return str(problem.format_message())
    if os.environ.get("LEAKGAUGE_DEBUG"):
        raise problem
    text = str(problem).partition("\n")[0] or "no message"
    return f"{type(problem).__name__}: {text} (unexpected: please report it; LEAKGAUGE_DEBUG=1 shows the traceback)"
