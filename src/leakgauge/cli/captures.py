"""The commands attack and infer, which read captures.

A capture is a file that holds what a server saw of one client in one round. It was recorded from a federation or saved
by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from leakgauge.cli.common import (
    AsJson,
    Device,
    Engine,
    FailIf,
    Jobs,
    Junit,
    Output,
    Quiet,
    Redact,
    Seed,
    app,
    command_line,
    present,
    screen,
    settings,
    watching,
)
from leakgauge.core.errors import InvalidInput, printable

Option = Annotated[list[str] | None, typer.Option(help="A setting of the attack, such as steps=500. May be repeated.")]
Model = Annotated[str | None, typer.Option(help="Your own model: module:factory.")]
ModelOption = Annotated[list[str] | None, typer.Option(help="A setting of your model, such as classes=10.")]
Know = Annotated[list[str] | None, typer.Option(help="More of the recipe, such as lr=0.1. May be repeated.")]
Client = Annotated[str | None, typer.Option(help="Only this client's captures.")]
Data = Annotated[
    Path | None, typer.Option(help="The clients' own data: CLIENT.npz of one client, or a folder with one for each.")
]

Key = Annotated[Path | None, typer.Option(help="The private key, if the kept samples are encrypted.")]


@app.command()
def attack(  # noqa: PLR0913
    observations: Annotated[Path, typer.Argument(help="A saved observation, or a folder of them.")],
    name: Annotated[str, typer.Option("--attack", "-a", help="The attack. See: leakgauge list attacks.")] = (
        "inverting_gradients"
    ),
    option: Option = None,
    model: Model = None,
    model_option: ModelOption = None,
    know: Know = None,
    client: Client = None,
    data: Data = None,
    key: Key = None,
    output: Output = Path("reconstructions"),
    seed: Seed = 0,
    fail_if: FailIf = None,
    junit: Junit = None,
    redact: Redact = "none",
    engine: Engine = "auto",
    jobs: Jobs = None,
    device: Device = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Attack captures, which are recorded client updates. Pass --data to score. Results of earlier runs are reused."""
    from leakgauge.reports.captures import captures_table, refused_sentences, summary
    from leakgauge.workflows.attack_captures import attack as run

    with watching(quiet) as watch:
        result = run(
            observations, name, output, options=settings(option), model=model,
            model_options=_of_model(model, model_option), know=settings(know), client=client, data=data, key=key,
            seed=seed,
            fail_if=fail_if or (), junit=junit,
            redact=redact, engine=engine, jobs=jobs, device=device, watch=watch,  # type: ignore[arg-type]
            command=command_line(),
        )  # fmt: skip
    if not quiet and not as_json:
        for reason in refused_sentences(result.refused):
            screen.print(f"refused: {escape(reason)}", style="yellow", soft_wrap=True)
        for note in result.notes:
            screen.print(escape(printable(note, longest=1000)), style="yellow", soft_wrap=True)
    present(result, [captures_table(result, brief=True)], summary(result), quiet=quiet, as_json=as_json)


@app.command()
def infer(  # noqa: PLR0913
    observations: Annotated[Path, typer.Argument(help="A folder of captures with many rounds.")],
    method: Annotated[str, typer.Option(help="How to rebuild a client's model: auto, lmra, secant, ...")] = "auto",
    option: Option = None,
    model: Model = None,
    model_option: ModelOption = None,
    know: Know = None,
    client: Client = None,
    data: Data = None,
    key: Key = None,
    sensitive: Annotated[str | None, typer.Option(help="The column that is hidden from the attacker.")] = None,
    output: Output = Path("inferred"),
    seed: Seed = 0,
    fail_if: FailIf = None,
    junit: Junit = None,
    engine: Engine = "auto",
    jobs: Jobs = None,
    device: Device = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Rebuild the clients' own models from many rounds, infer a hidden column, and find the owners of records."""
    from leakgauge.reports.inference import models_table, sentences
    from leakgauge.workflows.infer_captures import infer as run

    with watching(quiet) as watch:
        result = run(
            observations, method, output, options=settings(option), model=model,
            model_options=_of_model(model, model_option), know=settings(know), client=client, data=data, key=key,
            sensitive=sensitive, seed=seed, fail_if=fail_if or (),
            junit=junit, engine=engine, jobs=jobs, device=device, watch=watch, command=command_line(),
        )  # fmt: skip
    if not quiet and not as_json:
        for sentence in sentences(result):
            style = "yellow" if sentence.startswith("refused") else "dim"
            screen.print(escape(sentence), style=style, soft_wrap=True)
    present(result, [models_table(result, brief=True)], result.sentence(), quiet=quiet, as_json=as_json)


def _of_model(model: str | None, pairs: list[str] | None) -> dict[str, Any]:
    """Return the settings of the user's own model. Without such a model, there can be none."""
    if pairs and model is None:
        raise InvalidInput("--model-option needs --model, because captures hold the settings of Leakgauge's own models")
    return settings(pairs)


@app.command("import")
def import_(
    exchange: Annotated[Path, typer.Argument(help="A folder of sent and returned weights, as docs/flower.md shows.")],
    model: Annotated[str, typer.Option(help="Your own model: module:factory.")],
    model_option: ModelOption = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for the captures.")] = Path("captures"),
    run: Annotated[str | None, typer.Option(help="The name of the run. By default, the first free number.")] = None,
    quiet: Quiet = False,
) -> None:
    """Turn weights that any framework wrote to files into captures."""
    from leakgauge.workflows.import_exchange import import_exchange

    options = _of_model(model, model_option)
    result = import_exchange(exchange, output, model=model, model_options=options, run=run)
    if not quiet:
        for reason in result.refused:
            screen.print(f"refused: {escape(reason)}", style="yellow", soft_wrap=True)
        screen.print(f"captures: {len(result.files)} in {escape(str(result.files[0].parent))}", soft_wrap=True)
    if result.refused:
        raise typer.Exit(2)


@app.command("watch")
def watch_(  # noqa: PLR0913
    observations: Annotated[Path, typer.Argument(help="The folder of a running federation's captures.")],
    name: Annotated[str, typer.Option("--attack", "-a", help="The attack. See: leakgauge list attacks.")] = (
        "inverting_gradients"
    ),
    option: Option = None,
    model: Model = None,
    model_option: ModelOption = None,
    know: Know = None,
    data: Data = None,
    key: Key = None,
    output: Output = Path("watched"),
    seed: Seed = 0,
    fail_if: FailIf = None,
    every: Annotated[float, typer.Option(help="The seconds between two looks at the folder.")] = 5.0,
    idle: Annotated[float | None, typer.Option(help="End after so many seconds without new captures.")] = None,
    engine: Engine = "auto",
    jobs: Jobs = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Follow a running federation: one page says which clients leak, from which round on. A broken limit ends it."""
    from leakgauge.workflows.watch_captures import watch as follow

    states = follow(
        observations, name, output, options=settings(option), model=model,
        model_options=_of_model(model, model_option), know=settings(know), data=data, key=key, seed=seed,
        fail_if=fail_if or (), every=every, idle=idle, engine=engine, jobs=jobs, device=device,
        command=command_line(), note=lambda text: screen.print(escape(text), style="yellow", soft_wrap=True),
    )  # fmt: skip
    state = None
    for state in states:
        if not quiet:
            screen.print(f"{escape(state.sentence)} page: {escape(str(state.page))}", soft_wrap=True)
        broken = [check.sentence() for check in state.result.checks if check.broken]
        if broken:
            screen.print(f"limit broken: {escape(broken[0])}", style="bold red", soft_wrap=True)
            raise typer.Exit(1)
    unmeasured = [] if state is None else [check.sentence() for check in state.result.checks if check.failed]
    if unmeasured:
        screen.print(f"limit not measured: {escape(unmeasured[0])}", style="bold red", soft_wrap=True)
        raise typer.Exit(1)
