"""What all commands share: where they are listed, what they print on, and words that are read alike."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from leakgauge.core.errors import InvalidInput, printable

app = typer.Typer(
    help="How much of your clients' data can be rebuilt from the updates they send.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
screen = Console()
Engine = Annotated[
    str, typer.Option(help="Where it runs: in-process, processes, ray, ray:ADDRESS; auto takes processes if that pays.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Tasks at a time, one core each.", show_default="all cores")]


def command_line() -> str:
    """The command as it was given, for the record."""
    return "leakgauge " + " ".join(sys.argv[1:])


def show(head: list[str], rows: list[list[str]]) -> None:
    """Print a table of texts, which may come from files."""
    table = Table(*head, padding=(0, 1))
    for row in rows:
        table.add_row(*map(escape, row))
    screen.print(table)


def settings(pairs: list[str] | None) -> dict[str, Any]:
    """``key=value`` words as a dict; a value is read as JSON, or else is a text."""
    found: dict[str, Any] = {}
    for pair in pairs or ():
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise InvalidInput(f"a setting is written key=value, not {pair!r}")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def complain(sentence: str) -> int:
    """Say what is wrong, and give the exit code for it."""
    lines = [printable(line, longest=2000) for line in sentence.splitlines()]  # a file's name may hold anything
    print("leakgauge:", "\n".join(lines), file=sys.stderr)
    return 2
