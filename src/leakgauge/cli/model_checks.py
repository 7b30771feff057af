"""The command check-model, with which a client looks at the model that it received."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from leakgauge.cli.common import AsJson, Quiet, app, screen, settings
from leakgauge.core.errors import InvalidInput, printable
from leakgauge.core.text import json_text


@app.command("check-model")
def check_model(
    model: Annotated[str, typer.Argument(help="A capture, or the agreed model: a name or module:factory.")],
    weights: Annotated[
        Path | None, typer.Option(help="The received weights: .safetensors, .npz, or a state dict of torch.save.")
    ] = None,
    model_option: Annotated[
        list[str] | None, typer.Option(help="A setting of the agreed model, such as classes=10. May be repeated.")
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(help="Your own samples and targets as .npz, to watch layers on.")
    ] = None,
    shape: Annotated[str | None, typer.Option(help="The shape of a sample, such as 1,28,28, without own ones.")] = None,
    digest: Annotated[
        str | None, typer.Option(help="The digest that another client got. Another one is refused.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Look for known manipulations in a received model, before training on it. Exits with 1 if there is a sign."""
    from leakgauge.workflows.received_files import check_received

    result = check_received(
        model, options=settings(model_option), weights=weights, samples=samples, shape=_sizes(shape)
    )
    other = digest is not None and digest.strip().lower() != result.digest
    if as_json:
        signs = [vars(one) for one in result.signs]
        document = {
            "refused": result.refused or other,
            "signs": signs,
            "digest": result.digest,
            "same_digest": None if digest is None else not other,
            "figures": dict(result.figures),
            "hints": list(result.hints),
            "seconds": round(result.seconds, 3),
        }
        print(json_text(document))
    elif not quiet:
        for sentence in result.sentences:
            style = "bold red" if sentence in {one.sentence for one in result.signs} else None
            screen.print(escape(printable(sentence, longest=1000)), style=style, soft_wrap=True)
        if other:
            words = "Another client got other weights in this round, so the server did not send all the same."
            screen.print(words, style="bold red", soft_wrap=True)
    if result.refused or other:
        raise typer.Exit(1)


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(size) for size in text.split(",")]
    except ValueError as problem:
        raise InvalidInput(
            f"--shape is written as whole numbers with commas, such as 1,28,28, not {text!r}"
        ) from problem
