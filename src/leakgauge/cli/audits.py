"""The commands demo, audit and frontier, which attack simulated clients, and init, which writes a configuration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from leakgauge.cli.common import (
    AsJson,
    Budget,
    Device,
    Engine,
    FailIf,
    Jobs,
    Junit,
    Output,
    Public,
    Quiet,
    Redact,
    Seed,
    app,
    command_line,
    complain,
    present,
    screen,
    watching,
)

_CONTINUES = "Finished work is kept, and the same command goes on from there"
Columns = Annotated[list[str] | None, typer.Option(help="A column of this type in a .csv. May be repeated.")]


@app.command()
def demo(
    output: Output = Path("demo-output"),
    clients: Annotated[int, typer.Option(min=1, max=100, help="How many clients to attack.")] = 4,
    seed: Seed = 0,
    redact: Redact = "none",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Audit example clients, with and without a defence. Each client sends the gradient of one handwritten digit."""
    from leakgauge.workflows.demo import write_demo
    from leakgauge.workflows.result import check_redact

    check_redact(redact)

    config = write_demo(output, clients=clients, seed=seed)
    if not quiet and not as_json:
        screen.print(f"configuration: {escape(str(config))}", soft_wrap=True)
    audit(config, output, redact=redact, as_json=as_json, quiet=quiet)


@app.command()
def audit(  # noqa: PLR0913
    config: Annotated[Path, typer.Argument(help="A TOML file: model, data, recipe. leakgauge init writes one.")],
    output: Output = Path("audit"),
    fail_if: FailIf = None,
    junit: Junit = None,
    redact: Redact = "none",
    engine: Engine = "auto",
    jobs: Jobs = None,
    device: Device = None,
    budget: Budget = None,
    public: Public = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Attack simulated clients, and measure how much of their data is recovered. Exit with 1 if a limit is broken."""
    from leakgauge.core.own_files import check_output
    from leakgauge.reports.audit import by_defence
    from leakgauge.reports.meaning import why
    from leakgauge.runtime import check_engine
    from leakgauge.workflows.audit import FILES, read_audit
    from leakgauge.workflows.audit import audit as run
    from leakgauge.workflows.documents import read_toml
    from leakgauge.workflows.public_samples import with_public
    from leakgauge.workflows.result import check_redact

    check_engine(engine, jobs)
    check_redact(redact)
    check_output(output, FILES, junit)
    plan = read_audit(*with_public((read_toml(config), str(config)), public))
    if not quiet and not as_json:
        for sentence in plan.scenario.dataset.notes:
            screen.print(escape(sentence), style="yellow" if sentence.startswith("Warning") else "dim", soft_wrap=True)
        screen.print(f"first look, before any attack: [bold]{plan.first_look.risk} risk[/bold]")
        for sentence in (plan.scenario.model_state, *(reason.sentence for reason in plan.first_look.reasons)):
            screen.print(f"  {escape(sentence)}", style="dim", soft_wrap=True)
        screen.print(f"  {escape(plan.self_tested)}", style="dim", soft_wrap=True)
    with watching(quiet) as watch:
        result = run(
            plan, output, fail_if=fail_if or (), junit=junit, redact=redact, engine=engine, jobs=jobs,  # type: ignore[arg-type]
            device=device, budget=budget, watch=watch, command=command_line(),
        )  # fmt: skip
    if not result.results:
        complain(f"interrupted before an attack had a result. {_CONTINUES}")
        raise typer.Exit(130)
    if not result.complete and result.failed is None:
        complain(f"interrupted. What was finished is shown. {_CONTINUES}")
    reasons = why(result)
    summary = f"{by_defence(result)}{f'. {reasons}' if reasons else ''}"
    present(result, [], summary, quiet=quiet, as_json=as_json)


@app.command()
def forget(
    folder: Annotated[Path, typer.Argument(help="A folder that a command wrote to (--output), or a cache.")],
    quiet: Quiet = False,
) -> None:
    """Remove clients' samples from a folder of results: pictures, pages, reconstructions, and samples in the cache."""
    from leakgauge.workflows.forget import forget as run

    result = run(folder)
    if quiet:
        return
    for path in result.removed:
        screen.print(f"removed: {escape(str(path))}", soft_wrap=True)
    for path in result.left:
        screen.print(f"left, because Leakgauge did not write it: {escape(str(path))}", style="yellow", soft_wrap=True)
    count = len(result.removed)
    screen.print(f"{count} file{'s' * (count != 1)} held samples. Figures are kept." if count else "no samples found")


@app.command()
def init(  # noqa: PLR0913
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("audit.toml"),
    model: Annotated[str | None, typer.Option(help="A model's name, or module:factory.")] = None,
    data: Annotated[str | None, typer.Option(help="A dataset's name, a folder of pictures, .npz or .csv.")] = None,
    sends: Annotated[str, typer.Option(help="What clients send: weights or gradient.")] = "weights",
    samples: Annotated[int, typer.Option(min=1, help="Samples of a client.")] = 10,
    lr: Annotated[float, typer.Option(help="The clients' learning rate.")] = 0.01,
    epochs: Annotated[int, typer.Option(min=1, help="Local epochs.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size.")] = 10,
    target: Annotated[str | None, typer.Option(help="The column of a .csv to predict.")] = None,
    sensitive: Annotated[str | None, typer.Option(help="The sensitive column of a .csv.")] = None,
    categories: Columns = None,
    numbers: Columns = None,
    ignore: Columns = None,
) -> None:
    """Write a commented configuration file for an audit, from options or from answers to questions.

    With a .csv and --target, also print how its columns are read. --categories, --numbers and --ignore change that.
    """
    from leakgauge.workflows.audit.template import write_template

    asking = sys.stdin.isatty()
    if model is None:
        model = typer.prompt("model (a name, or module:factory)") if asking else "lenet"
    if data is None:
        data = typer.prompt("data (a name, a folder of pictures, .npz or .csv)") if asking else "mnist5k"
    columns = {"target": target, "sensitive": sensitive, "categories": categories, "numbers": numbers, "ignore": ignore}
    options = {name: value for name, value in columns.items() if value}
    for sentence in _read_csv(data, options):
        screen.print(escape(sentence), style="yellow" if sentence.startswith("Warning") else "dim", soft_wrap=True)
    recipe = {"samples": samples, "lr": lr, "epochs": epochs, "batch_size": batch_size}
    written = escape(str(write_template(path, model=model, data=data, sends=sends, options=options, **recipe)))
    screen.print(f"written: {written}\nnow run: leakgauge audit {written}", soft_wrap=True)


def _read_csv(data: str, options: dict[str, Any]) -> tuple[str, ...]:
    """Return sentences about how a CSV table is read with the given types of its columns."""
    from leakgauge.core.errors import InvalidInput
    from leakgauge.data import from_csv
    from leakgauge.workflows.audit.template import source_of

    if not options:
        return ()
    if source_of(data) != "csv":
        names = ", ".join(f"--{name}" for name in options)
        raise InvalidInput(f"{names}: only a .csv has columns to name, and {data} is none")
    if "target" not in options:
        raise InvalidInput("Name the column to predict with --target")
    return from_csv(data, **options).notes


@app.command()
def frontier(  # noqa: PLR0913
    config: Annotated[Path, typer.Argument(help="A TOML file: set-up, attack and defences.")],
    output: Output = Path("frontier"),
    fail_if: FailIf = None,
    junit: Junit = None,
    engine: Engine = "auto",
    jobs: Jobs = None,
    device: Device = None,
    public: Public = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare defences by what an attacker still recovers and by the accuracy that each defence costs."""
    from leakgauge.reports.frontier import sentence
    from leakgauge.workflows.frontier import frontier as run

    with watching(quiet) as watch:
        result = run(
            config, output, fail_if=fail_if or (), junit=junit, engine=engine, jobs=jobs, device=device, public=public,
            watch=watch, command=command_line(),
        )  # fmt: skip
    if not result.points:
        raise typer.Exit(130)
    if not quiet and not as_json:
        for point in result.points:
            screen.print(escape(sentence(point, result.plan)), style=point.verdict.colour, soft_wrap=True)
    present(
        result, [], f"{len(result.points)} of {len(result.plan.chains)} defences measured", quiet=quiet, as_json=as_json
    )
