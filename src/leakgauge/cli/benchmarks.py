"""The command bench, which reproduces tables of papers, writes a page about each paper, or measures speed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from leakgauge.cli.common import Engine, Jobs, Quiet, Seed, app, command_line, screen, show, watching
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.text import json_text

if TYPE_CHECKING:
    from leakgauge.reproduction.results import RowResult
    from leakgauge.reproduction.rows import Row
    from leakgauge.reproduction.runner import Choice

#: The largest number of clients of a row.
MOST = 100_000
#: The options of ``leakgauge bench speed``. All other options are for papers only.
SPEED_OPTIONS = {"repeats", "as_json", "quiet", "names"}


@app.command()
def bench(  # noqa: PLR0913
    context: typer.Context,
    paper: Annotated[str | None, typer.Argument(help="The paper, such as dlf, or speed.")] = None,
    row: Annotated[
        str | None, typer.Option(help="A row, a table or a pattern: table1/femnist-10x5x50, table1.")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Run only this method. May be repeated.")] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Number of attacked clients.", show_default="the row's")
    ] = None,
    skip: Annotated[int, typer.Option(min=0, max=MOST, help="Leave out this many clients at the beginning.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Attack steps.", show_default="the method's")] = None,
    short: Annotated[bool, typer.Option("--short", help="Use the row's short setting, if it has one.")] = False,
    seed: Seed = 0,
    engine: Engine = "auto",
    jobs: Jobs = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for finished tasks, which are not run again.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Folder for pictures of the reconstructions.")] = None,
    save: Annotated[bool, typer.Option(help="Append the results to the paper's results.csv.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    quiet: Quiet = False,
    names: Annotated[bool, typer.Option("--list", help="List the rows and their methods.")] = False,
    readme: Annotated[bool, typer.Option("--readme", help="Write the papers' pages from the saved results.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Number of turns, for speed only.")] = 3,
) -> None:
    """Reproduce a paper's tables, and print our figures, the published figures, the chance levels and the times.

    With the word speed in place of a paper, compare the time of an attack step with the time of the client's training.
    """
    if readme:
        _write_pages(quiet=quiet)
    elif paper == "speed":
        _refuse(context, paper, {option.name or "" for option in context.command.params} - SPEED_OPTIONS)
        _measure_speed(repeats, as_json=as_json, quiet=quiet, names=names)
    else:
        rows = _find_rows(context, paper, row, names=names)
        if not names:
            from leakgauge.reproduction.runner import Choice

            choice = Choice(method or (), clients, skip, steps, seed, short, pictures)
            _run(rows, choice, engine=engine, jobs=jobs, cache=cache, save=save, as_json=as_json, quiet=quiet)


def _write_pages(*, quiet: bool) -> None:
    from leakgauge.reproduction.readme import write_pages

    changed = write_pages()
    if not quiet:
        for path in changed:
            screen.print(f"written: {escape(str(path))}", soft_wrap=True)
        if not changed:
            screen.print("All pages are current.")


def _find_rows(context: typer.Context, paper: str | None, pattern: str | None, *, names: bool) -> list[Row]:
    """Return the rows of a paper's tables. Each row is one setting of a table.

    If ``--list`` was given, print the names of the rows, or the names of the papers if no paper was given.
    """
    from leakgauge.reproduction.rows import find_rows, papers

    known = [*papers(), "speed"]
    if paper is None:
        if not names:
            raise InvalidInput(f"which benchmark? Name one of: {', '.join(known)}")
        screen.print("\n".join(known))
        return []
    if paper not in known:
        raise UnknownName("benchmark", paper, known)
    _refuse(context, paper, {"repeats"})
    rows = find_rows(paper, pattern)
    if names:
        for row in rows:
            screen.print(f"{row.name}  [dim]{escape(', '.join(row.methods))}[/dim]", soft_wrap=True)
    return rows


def _refuse(context: typer.Context, benchmark: str, names: set[str]) -> None:
    """Raise an error if the user gave one of the options in ``names``, which this benchmark does not have."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.param_type_name == "option" and option.name in names and source and source.name == "COMMANDLINE":
            words = "/".join((*option.opts, *option.secondary_opts))
            raise InvalidInput(f"leakgauge bench {benchmark} has no option {words}")


def _run(
    rows: list[Row],
    choice: Choice,
    *,
    engine: str,
    jobs: int | None,
    cache: Path | None,
    save: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run rows of a paper's tables. Print and save each result as soon as it is complete."""
    from leakgauge.core.container import output_folder
    from leakgauge.reproduction.results import check_saving, save_result
    from leakgauge.reproduction.runner import run_rows
    from leakgauge.runtime import check_engine

    check_engine(engine, jobs)
    for folder in filter(None, (cache, choice.pictures)):
        output_folder(folder)
    if save:
        check_saving(row.folder for row in rows)
    command = command_line()
    with watching(quiet) as watch:
        for result in run_rows(rows, choice, engine=engine, jobs=jobs, watch=watch, cache=cache):
            if save:
                save_result(result, command)
            if as_json:
                print(json_text(result.to_json()), flush=True)
            elif not quiet:
                _show_result(result)


def _show_result(result: RowResult) -> None:
    """Print the result of one attack method for one row of a paper's table."""
    screen.print(f"[bold]{escape(result.row.name)}[/bold] {escape(result.method.name)}", highlight=False)
    screen.print(
        f"  {result.clients} clients, {result.steps} steps, {result.seconds:.1f} seconds a client", style="dim"
    )
    lines = [["metric", "ours", "95% interval", "published", "chance"]]
    for name, measure in result.measures.items():
        published = str(result.row.published(result.method).get(name, "-"))
        chance = "-" if measure.chance is None else f"{measure.chance:.4g}"
        lines.append([name, f"{measure.value:.4g}", measure.interval(), published, chance])
    show(lines)


def _measure_speed(repeats: int, *, as_json: bool, quiet: bool, names: bool) -> None:
    from leakgauge.reproduction.speed import FIGURES, measure_speed

    if names:
        for name, meaning in FIGURES.items():
            screen.print(f"{name}  [dim]{escape(meaning)}[/dim]", soft_wrap=True)
        return
    speed = measure_speed(repeats=repeats).to_json()
    if as_json:
        print(json_text(speed), flush=True)
    elif not quiet:
        head = ["figure", "value", "meaning"]
        show([head, *([name, f"{speed[name]:.3g}", meaning] for name, meaning in FIGURES.items())])
        seconds = ", ".join(f"{name} {value:.3g}" for name, value in speed["seconds"].items())
        screen.print(f"one thread, {repeats} turns, medians, CPU seconds: {seconds}", style="dim", soft_wrap=True)
