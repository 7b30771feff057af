"""The command ``list``, which shows attacks, defences and so on, and the command ``data`` for the datasets at hand."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from leakgauge.cli.common import AsJson, app, screen, show
from leakgauge.core.errors import UnknownName
from leakgauge.core.text import json_text

KINDS = ("attacks", "datasets", "defences", "metrics", "models")


@app.command("list")
def list_names(
    kind: Annotated[str | None, typer.Argument(help=f"One of: {', '.join(KINDS)}.")] = None, as_json: AsJson = False
) -> None:
    """List the attacks, datasets, defences, metrics and models of Leakgauge."""
    from leakgauge import attacks, data, models
    from leakgauge.evaluation import metrics
    from leakgauge.federation import defences

    if kind is not None and kind not in KINDS:
        raise UnknownName("kind of thing", kind, KINDS)
    tables: dict[str, dict[str, str]] = {
        "attacks": {name: spec.summary for name, spec in attacks.ATTACKS.items()},
        "datasets": {name: f"{source.summary} [{source.origin}]" for name, source in data.DATASETS.items()},
        "defences": {name: _summary(factory) for name, factory in defences.DEFENCES.items()},
        "metrics": {name: metric.description for name, metric in metrics.METRICS.items()},
        "models": {
            **{name: _summary(factory) for name, factory in models.MODELS.items()},
            "module:factory": "your own: any importable function that returns an nn.Module",
        },
    }
    chosen = {title: tables[title] for title in (KINDS if kind is None else (kind,))}
    if as_json:
        print(json_text(chosen))
        return
    for title, entries in chosen.items():
        screen.print(title, style="bold")
        for name, text in entries.items():
            screen.print(f"  {escape(name):<24} {escape(text)}", soft_wrap=True)


@app.command()
def data(
    name: Annotated[str | None, typer.Argument(help="A dataset to load and describe.")] = None,
    folder: Annotated[Path | None, typer.Option(help="A data folder instead of LEAKGAUGE_DATA.")] = None,
    split: Annotated[str | None, typer.Option(help="The part of the dataset.")] = None,
    download: Annotated[bool, typer.Option(help="Whether to download what is missing.")] = True,
) -> None:
    """Show where each dataset is found on this machine, or load one dataset and describe it."""
    from leakgauge.data import DATASETS, load, locate

    if name is None:
        rows = [["dataset", "found", "where"]]
        for key in DATASETS:
            places = [place for place in locate(key, folder) if place.found]
            first = places[0] if places else locate(key, folder)[-1]
            word = "no" if not places else "by download" if first.place == "download" else "yes"
            rows.append([key, word, f"{first.place}: {first.detail}"])
        show(rows)
        return
    for place in locate(name, folder):
        screen.print(f"{'found' if place.found else 'not':>6}  {escape(place.place)}: {escape(place.detail)}")
    loaded = load(name, split=split, folder=folder, download=download)
    spec = loaded.spec
    screen.print(f"{escape(name)}: {len(loaded):,} samples of shape {spec.shape}")
    screen.print("regression" if spec.classes is None else f"{spec.classes} classes")
    if loaded.groups is not None:
        screen.print(f"{len(loaded.groups.unique()):,} owners (writers, people or clients)")
    if loaded.sensitive:
        screen.print(f"sensitive column: {escape(loaded.sensitive)}")


def _summary(thing: object) -> str:
    """Return the first line of the docstring of a class or function."""
    return (inspect.getdoc(thing) or "").partition("\n")[0].rstrip(":")
