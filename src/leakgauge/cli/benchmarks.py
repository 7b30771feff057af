"""The command that runs the papers' tables, or measures the speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from leakgauge.cli.common import Engine, Jobs, app, command_line, screen
from leakgauge.core.errors import InvalidInput, UnknownName

if TYPE_CHECKING:
    from leakgauge.reproduction.runner import Figure


@app.command()
def bench(
    context: typer.Context,
    paper: Annotated[str | None, typer.Argument(help="Whose tables (dlf), or: speed.")] = None,
    row: Annotated[str | None, typer.Option(help="A row, or a table: table1/femnist-10x5x50, table1.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be given again.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="On how many clients.", show_default="the row's")] = None,
    skip: Annotated[int, typer.Option(min=0, help="Leave out the first so many clients.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Attack steps instead of the row's own.")] = None,
    short: Annotated[bool, typer.Option("--short", help="The row's short setting: fewer steps or clients.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures.")] = 0,
    engine: Engine = "auto",
    jobs: Jobs = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    names: Annotated[bool, typer.Option("--list", help="Name the rows and their methods.")] = False,
    save: Annotated[bool, typer.Option(help="Add the figures to the benchmark's results.csv.")] = True,
    store: Annotated[Path | None, typer.Option(help="Keep what tasks give in this folder, and go on there.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Folder for pictures of what came back.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How often to measure; for speed only.")] = 3,
) -> None:
    """Run a paper's tables: the published figure, ours with a 95% interval, chance and cost.

    Or measure the speed: what a step of an attack costs, beside the client's own training.
    """
    from leakgauge.reproduction.rows import find_rows, papers
    from leakgauge.reproduction.runner import keep, run_rows
    from leakgauge.runtime import check_engine
    from leakgauge.runtime.display import watching

    if paper == "speed":
        others = {
            "row",
            "method",
            "clients",
            "skip",
            "steps",
            "short",
            "seed",
            "engine",
            "jobs",
            "save",
            "store",
            "pictures",
        }
        _refuse(context, paper, others)
        _bench_speed(repeats, as_json=as_json, names=names)
        return
    known = [*papers(), "speed"]
    if paper is None and names:
        screen.print("\n".join(known))
        return
    if paper is None:
        raise InvalidInput(f"which benchmark? There are: {', '.join(known)}")
    if paper not in known:
        raise UnknownName("benchmark", paper, known)
    _refuse(context, paper, {"repeats"})
    check_engine(engine, jobs)
    rows = find_rows(paper, row)
    if names:
        for one in rows:
            screen.print(f"{one.name}  [dim]{escape(', '.join(one.methods))}[/dim]", soft_wrap=True)
        return
    command = command_line()
    with watching() as watch:
        for figure in run_rows(
            rows,
            methods=method or (),
            clients=clients,
            skip=skip,
            steps=steps,
            seed=seed,
            engine=engine,
            jobs=jobs,
            watch=watch,
            pictures=pictures,
            short=short,
            folder=store,
        ):
            if save:
                keep(figure, command)
            if as_json:
                print(json.dumps(figure.to_json()), flush=True)
            else:
                _show(figure)


def _refuse(context: typer.Context, benchmark: str, names: set[str]) -> None:
    """Refuse options that were given and that belong to another benchmark."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in names and source is not None and source.name == "COMMANDLINE":
            words = "/".join((*option.opts, *option.secondary_opts))
            raise InvalidInput(f"leakgauge bench {benchmark} has no option {words}")


def _bench_speed(repeats: int, *, as_json: bool, names: bool) -> None:
    from leakgauge.reproduction.speed import FIGURES, measure_speed

    if names:
        for name, meaning in FIGURES.items():
            screen.print(f"{name}  [dim]{escape(meaning)}[/dim]", soft_wrap=True)
        return
    found = measure_speed(repeats=repeats).to_json()
    if as_json:
        print(json.dumps(found), flush=True)
        return
    table = Table("figure", "value", "what it is", padding=(0, 1))
    for name, meaning in FIGURES.items():
        table.add_row(name, f"{found[name]:.3g}", escape(meaning))
    screen.print(table)
    seconds = ", ".join(f"{name} {value:.3g}" for name, value in found["seconds"].items())
    screen.print(f"one thread, {repeats} turns, medians; CPU seconds: {seconds}", style="dim", soft_wrap=True)


def _show(figure: Figure) -> None:
    """One method of one row as a small table."""
    screen.print(f"[bold]{escape(figure.row.name)}[/bold] {escape(figure.method.name)}", highlight=False)
    screen.print(
        f"  {figure.clients} clients, {figure.steps} steps, {figure.seconds:.1f} seconds a client", style="dim"
    )
    table = Table("metric", "ours", "95% interval", "published", "chance", padding=(0, 1))
    for name, value in figure.ours.items():
        interval = "-" if value.low is None or value.high is None else f"{value.low:.4g} to {value.high:.4g}"
        published = str(figure.method.published.get(name, "-"))
        chance = f"{figure.chance[name]:.4g}" if name in figure.chance else "-"
        table.add_row(name, f"{value.mean:.4g}", interval, published, chance)
    screen.print(table)
