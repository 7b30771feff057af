"""The parts that all commands use: the app, the common options, and functions that print results."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from leakgauge.core.errors import InvalidInput, printable
from leakgauge.core.text import clean, json_text

if TYPE_CHECKING:
    from leakgauge.runtime import Watch
    from leakgauge.workflows.result import WorkflowResult


class _Commands(TyperGroup):
    """The commands. Typer itself ends without a word after Ctrl-C, so that another exception takes its place."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command of the command line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None


app = typer.Typer(
    cls=_Commands,
    help="Measure how much of clients' data can be rebuilt from the updates that they send.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class _Screen(Console):
    """A terminal. Control characters in texts are replaced, because texts may come from files of strangers."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text with its markup as a styled text."""
        return super().render_str(clean(text), **options)


screen = _Screen()

_OUTPUT = typer.Option("--output", "-o", help="Folder for the page, the figures and the cache.")
Output = Annotated[Path, _OUTPUT]
FailIf = Annotated[
    list[str] | None,
    typer.Option(help="A limit, such as 'recovered > 0.05', 'idlg.psnr > 20' or 'leaks'. May be repeated."),
]
Junit = Annotated[Path | None, typer.Option(help="Write the limits as JUnit XML to this file.")]
Redact = Annotated[str, typer.Option(help="none shows clients' samples. omit neither shows nor stores them.")]
Engine = Annotated[str, typer.Option(help="Where tasks run: auto, in-process, processes, ray or ray:ADDRESS.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Tasks at a time, one core each.", show_default="all cores")]
Device = Annotated[str | None, typer.Option(help="Where attacks compute: cpu, cuda, cuda:1.")]
Budget = Annotated[str | None, typer.Option(help="The time that the audit may take, such as 90s, 10m or 1h, or none.")]
Public = Annotated[
    str | None,
    typer.Option(help="Public data of the attacker: a number of your samples, a dataset, .npz, .csv, folder, or none."),
]
Seed = Annotated[int, typer.Option(min=-(2**63), max=2**63 - 1, help="The same seed gives the same result.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from leakgauge import __version__

        print(f"leakgauge {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def command_line() -> str:
    """Return the command line as the user typed it."""
    return "leakgauge " + " ".join(sys.argv[1:])


@contextmanager
def watching(quiet: bool) -> Iterator[Watch | None]:
    """Yield a listener that shows progress on standard error, or ``None`` for a quiet command."""
    if quiet:
        yield None
        return
    from leakgauge.runtime import display

    with display.watching() as watch:
        yield watch


def show(rows: Sequence[Sequence[str]], colours: Sequence[str] = ()) -> None:
    """Print a table. Markup in the texts is shown as it is, because the texts may come from files.

    Args:
        rows: The rows of the table. The first row holds the headings.
        colours: The colour of the last cell in each row below the headings.
    """
    head, *body = rows
    table = Table(padding=(0, 1))
    for place, name in enumerate(head):
        # Names of attacks, in the table with colours, are ours and short. Other cells may come from files.
        table.add_column(name, overflow="fold", no_wrap=bool(colours) and place == 0)
    for number, row in enumerate(body):
        cells = list(map(escape, row))
        if colours:
            cells[-1] = f"[{colours[number]}]{cells[-1]}[/{colours[number]}]"
        table.add_row(*cells)
    screen.print(table)


def present(
    result: WorkflowResult, tables: Sequence[Sequence[Sequence[str]]], summary: str, *, quiet: bool, as_json: bool
) -> None:
    """Print the result of a command, and exit with the exit code of the result.

    Args:
        result: The result to print.
        tables: Tables that are printed before the table of all attacks and verdicts.
        summary: The verdict as a sentence.
        quiet: Whether only errors are printed.
        as_json: Whether JSON is printed instead of tables.
    """
    from leakgauge.reports.findings import brief_table, document

    if as_json:
        print(json_text({**document(result), "page": None if result.page is None else str(result.page)}))
    elif not quiet:
        for rows in tables:
            if len(rows) > 1:
                show(rows)
        if any(finding.measures for finding in result.findings):
            show(brief_table(result.findings), [finding.verdict.colour for finding in result.findings])
        for one in result.checks:
            if one.failed:
                screen.print(f"limit broken: {escape(one.sentence())}", style="bold red", soft_wrap=True)
        screen.print(f"verdict: {result.verdict}", style=f"bold {result.verdict.colour}")
        screen.print(escape(printable(summary, longest=2000)), soft_wrap=True)
        if result.page is not None:
            screen.print(f"page: {escape(str(result.page))}", soft_wrap=True)
    if result.failed is not None:
        complain(str(result.failed))
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def settings(pairs: list[str] | None) -> dict[str, Any]:
    """Convert texts of the form ``key=value`` to a dictionary. Values are read as JSON, or else kept as text."""
    values: dict[str, Any] = {}
    for pair in pairs or ():
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise InvalidInput(f"a setting is written key=value, not {pair!r}")
        if key in values:
            raise InvalidInput(f"the setting {key!r} is given twice. Give it once")
        try:
            values[key] = json.loads(value)
        except ValueError:
            values[key] = value
        except RecursionError as problem:
            raise InvalidInput(f"the lists of the setting {key!r} are nested too deeply") from problem
    return values


def complain(sentence: str) -> int:
    """Print an error message on standard error, and return the exit code 2."""
    lines = [printable(line, longest=2000) for line in sentence.splitlines()]  # a file name may contain anything
    print("leakgauge:", "\n".join(lines), file=sys.stderr)
    return 2
