"""Commands on captures: what was recorded from a federation, or saved by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from leakgauge.cli.common import app, command_line, screen, settings, show
from leakgauge.core.errors import InvalidInput


@app.command()
def attack(
    observations: Annotated[Path, typer.Argument(help="A saved observation, or a folder of them.")],
    name: Annotated[str, typer.Option("--attack", "-a", help="Which attack; see: leakgauge list attacks.")] = (
        "inverting_gradients"
    ),
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="A setting: steps=500.")] = None,
    model: Annotated[str | None, typer.Option(help="Your own model: module:factory.")] = None,
    model_option: Annotated[list[str] | None, typer.Option(help="Its settings: classes=10.")] = None,
    know: Annotated[list[str] | None, typer.Option(help="More of the recipe: lr=0.1; may be given again.")] = None,
    client: Annotated[str | None, typer.Option(help="Only this client's captures.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="To score: a client's samples (.npz), or a folder with CLIENT.npz for each.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for the reconstructions.")] = Path("reconstructions"),
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    device: Annotated[str | None, typer.Option(help="Where to compute: cpu, cuda, cuda:1.")] = None,
) -> None:
    """Attack saved observations; no truth needed, and scored with it. Finished ones are not attacked again."""
    from leakgauge import attacks, models
    from leakgauge.core import observation_file
    from leakgauge.core.container import output_folder
    from leakgauge.workflows import attack_captures as captured

    attacker = attacks.build(name, **settings(option))
    own = None if model is None else models.build(model, **settings(model_option))
    truths = None if data is None else captured.ClientData(data)
    _check_device(device)
    files, found = observation_file.observation_files(observations), []
    output_folder(output)
    options: dict[str, Any] = {"model": own, "knowing": settings(know), "client": client, "data": truths}
    for one in captured.attack_captures(files, attacker, output, seed=seed, device=device, **options):
        found.append(one)
        if one.result is not None and one.result.outcome.kind == "interrupted":
            break
    refused = captured.refused_of(found)
    if not any(one.result is not None for one in found):
        raise InvalidInput(refused[0] if refused else f"there are no captures of a client called {client!r}")
    head, *rows = captured.rows_of(found, brief=True)
    show(head, rows)
    for sentence in refused:
        screen.print(f"refused: {escape(sentence)}", style="yellow", soft_wrap=True)
    page = captured.write_captured(found, output, attacker, command_line())
    screen.print(f"[bold]{escape(captured.verdict_of(found)[0])}[/bold]", soft_wrap=True)
    screen.print(f"reconstructions: {escape(str(output))}\npage: {escape(str(page))}", soft_wrap=True)
    if rows and found[-1].result is not None and found[-1].result.outcome.kind == "interrupted":
        raise typer.Exit(130)
    if refused:
        raise typer.Exit(2)


@app.command()
def infer(
    observations: Annotated[Path, typer.Argument(help="A folder of captures: many rounds of one client or more.")],
    method: Annotated[str, typer.Option(help="How to rebuild a client's model: lmra, learned, secant, ...")] = "lmra",
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="A setting of it: steps=200.")] = None,
    model: Annotated[str | None, typer.Option(help="Your own model: module:factory.")] = None,
    model_option: Annotated[list[str] | None, typer.Option(help="Its settings: classes=10.")] = None,
    know: Annotated[list[str] | None, typer.Option(help="More of the recipe: lr=0.1; may be given again.")] = None,
    client: Annotated[str | None, typer.Option(help="Only this client's captures.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="The records to ask about: a client's (.npz), or a folder with CLIENT.npz each.")
    ] = None,
    sensitive: Annotated[str | None, typer.Option(help="The column of these that is hidden, and inferred.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for the models and the page.")] = Path("inferred"),
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
) -> None:
    """Rebuild clients' own models from many rounds, infer a hidden column, and who holds a record."""
    from leakgauge import models
    from leakgauge.attacks import local_model
    from leakgauge.core import observation_file
    from leakgauge.core.errors import printable
    from leakgauge.workflows import attack_captures as captured
    from leakgauge.workflows import infer_captures as inferring

    attack = local_model.build(method, **settings(option))
    own = None if model is None else models.build(model, **settings(model_option))
    found = inferring.infer_captures(
        observation_file.observation_files(observations), attack, output, model=own, knowing=settings(know), client=client,
        data=None if data is None else captured.ClientData(data), sensitive=sensitive, seed=seed,
    )  # fmt: skip
    for head, *rows in (inferring.models_table(found, brief=True), inferring.figures_table(found, brief=True)):
        if rows:
            show(head, rows)
    for sentence in inferring.sentences(found):
        screen.print(escape(sentence), style="yellow" if sentence.startswith("refused") else "dim", soft_wrap=True)
    page = inferring.write_inferred(found, output, command_line())
    verdict = printable(found.verdict()[0], longest=1000)
    screen.print(f"[bold]{escape(verdict)}[/bold]\npage: {escape(str(page))}", soft_wrap=True)
    if found.refused:
        raise typer.Exit(2)


def _check_device(device: str | None) -> None:
    if device is None:
        return
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        raise InvalidInput(f"cannot compute on {device!r}: {str(problem).splitlines()[0]}") from problem
