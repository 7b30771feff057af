"""Commands that run a federation of their own: an audit of a set-up, and the frontier of its defences."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from leakgauge.cli.common import Engine, Jobs, app, command_line, complain, screen


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for the audit.")] = Path("demo-output"),
    clients: Annotated[int, typer.Option(min=1, max=100, help="How many clients to attack.")] = 4,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
) -> None:
    """Audit clients that send the gradient of one digit each, with and without a defence."""
    from leakgauge.workflows.demo import write_demo

    config = write_demo(output, clients=clients, seed=seed)
    screen.print(f"configuration: {escape(str(config))}", soft_wrap=True)
    audit(config, output)


@app.command()
def audit(
    config: Annotated[Path, typer.Argument(help="A TOML file: model, data, recipe; leakgauge init writes one.")],
    output: Annotated[Path, typer.Option(help="Folder for the page, the figures and finished work.")] = Path("audit"),
    fail_if: Annotated[
        list[str] | None, typer.Option(help="A limit: 'recovered > 0.05', 'idlg.psnr > 20'; may be given again.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the limits as JUnit XML to this file.")] = None,
    redact: Annotated[str, typer.Option(help="Clients' samples in the page: none, blur or omit them.")] = "none",
    engine: Engine = "auto",
    jobs: Jobs = None,
) -> None:
    """Audit a set-up: what can be rebuilt from what its clients send? Exits with 1 if a limit is broken."""
    from leakgauge.core.container import write_atomically
    from leakgauge.reports.audit import by_defence, write_audit
    from leakgauge.runtime import check_engine
    from leakgauge.runtime.display import watching
    from leakgauge.workflows.audit import checks_of, read_audit, read_condition, run_audit, to_junit
    from leakgauge.workflows.scenario import read_toml

    check_engine(engine, jobs)
    plan = read_audit(read_toml(config), str(config))
    limits = fail_if or []
    for text in limits:
        read_condition(text, list(plan.attacks))
    screen.print(f"first look, before any attack: [bold]{plan.first_look.risk} risk[/bold]")
    for finding in plan.first_look.findings:
        screen.print(f"  {escape(finding.sentence)}", style="dim", soft_wrap=True)
    with watching() as watch:
        found = run_audit(plan, output / "store", engine=engine, jobs=jobs, watch=watch)
    if not found.results:
        raise found.failed or typer.Exit(130)
    table = Table("attack", "defence", "attacker", "PSNR (chance)", "clients", "verdict", padding=(0, 1))
    for (attack, title, knows), group in found.groups().items():
        figures, verdict = found.figures(group), found.verdict(group)
        psnr = f"{figures['psnr'].mean:.1f} ({figures['psnr'].chance:.1f})" if "psnr" in figures else "-"
        colour = "red" if verdict == "recovers data" else "green"
        who = "knows the defence" if knows else ""
        table.add_row(escape(attack), escape(title), who, psnr, str(len(group)), f"[{colour}]{verdict}[/{colour}]")
    screen.print(table)
    checks = checks_of(found, limits)
    for one in checks:
        if one.failed:
            screen.print(f"limit broken: {escape(one.sentence())}", style="bold red", soft_wrap=True)
    if junit is not None:
        write_atomically(junit, to_junit(checks))
    page = write_audit(found, output, command=command_line(), redact=redact, checks=checks)  # type: ignore[arg-type]
    screen.print(f"[bold]{escape(by_defence(found))}[/bold]\npage: {escape(str(page))}", soft_wrap=True)
    if any(one.failed for one in checks) and found.failed is not None:
        complain(str(found.failed))
    elif not found.complete:
        raise found.failed or typer.Exit(130)
    if any(one.failed for one in checks):
        raise typer.Exit(1)


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("audit.toml"),
    model: Annotated[str | None, typer.Option(help="A model's name, or module:factory.")] = None,
    data: Annotated[str | None, typer.Option(help="A dataset's name, a folder of pictures, .npz or .csv.")] = None,
    sends: Annotated[str, typer.Option(help="What clients send: weights or gradient.")] = "weights",
    samples: Annotated[int, typer.Option(min=1, help="Samples of a client.")] = 10,
    lr: Annotated[float, typer.Option(help="The clients' learning rate.")] = 0.01,
    epochs: Annotated[int, typer.Option(min=1, help="Local epochs.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size.")] = 10,
) -> None:
    """Write a commented configuration for an audit, from flags or by asking."""
    from leakgauge.workflows.audit.template import write_template

    asking = sys.stdin.isatty()
    if model is None:
        model = typer.prompt("model (a name, or module:factory)") if asking else "lenet"
    if data is None:
        data = typer.prompt("data (a name, a folder of pictures, .npz or .csv)") if asking else "mnist5k"
    written = write_template(
        path, model=model, data=data, sends=sends, samples=samples, lr=lr, epochs=epochs, batch_size=batch_size
    )
    screen.print(f"written: {escape(str(written))}; now run: leakgauge audit {escape(str(written))}", soft_wrap=True)


@app.command()
def frontier(
    config: Annotated[Path, typer.Argument(help="A TOML file: set-up, attack and defences.")],
    output: Annotated[Path, typer.Option(help="Folder for the table, the figure and the page.")] = Path("frontier"),
    engine: Engine = "auto",
    jobs: Jobs = None,
) -> None:
    """Draw what each defence buys and what it costs: leakage against accuracy."""
    from leakgauge.runtime import check_engine
    from leakgauge.runtime.display import watching
    from leakgauge.workflows.frontier import measure_frontier, read_plan, write_frontier
    from leakgauge.workflows.scenario import read_toml

    check_engine(engine, jobs)
    plan = read_plan(read_toml(config), str(config))
    points = []
    try:
        with watching() as watch:
            for point in measure_frontier(plan, folder=output / "store", engine=engine, jobs=jobs, watch=watch):
                points.append(point)
                screen.print(escape(point.sentence(plan)), style="red" if point.leaks else "green", soft_wrap=True)
    finally:  # what was measured is kept, whatever ends the run
        if points:
            order = list(plan.chains)
            points.sort(key=lambda point: order.index(point.title))
            page = write_frontier(points, plan, output, command_line())
            screen.print(f"page: {escape(str(page))}", soft_wrap=True)
