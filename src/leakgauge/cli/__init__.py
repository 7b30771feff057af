"""The command line. A mistake is one clear sentence and exit code 2, never a traceback.

Each file holds the commands of one kind. Importing it registers them. Commands import what they need when they run, so
that ``leakgauge --help`` does not import torch.
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
    """Run the command line."""
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
    """Return the words of a mistake on the command line, or those of a bug."""
    if hasattr(problem, "format_message"):  # Typer's own errors come in a class that depends on its version
        return str(problem.format_message())
    if os.environ.get("LEAKGAUGE_DEBUG"):
        raise problem
    text = str(problem).partition("\n")[0] or "no message"
    return f"{type(problem).__name__}: {text} (unexpected: please report it; LEAKGAUGE_DEBUG=1 shows the traceback)"
