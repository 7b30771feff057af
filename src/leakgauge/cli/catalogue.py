"""Commands that tell what there is."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from leakgauge.cli.common import app, screen
from leakgauge.core.errors import UnknownName

KINDS = ("attacks", "datasets", "defences", "metrics", "models")


@app.command("list")
def list_names(kind: Annotated[str | None, typer.Argument(help=f"One of: {', '.join(KINDS)}.")] = None) -> None:
    """What there is: attacks, datasets, defences, metrics, models."""
    from leakgauge import attacks, data, models
    from leakgauge.evaluation import metrics
    from leakgauge.federation import defences

    if kind is not None and kind not in KINDS:
        raise UnknownName("kind of thing", kind, KINDS)
    tables: dict[str, dict[str, str]] = {
        "attacks": {key: _summary(factory) for key, factory in attacks.ATTACKS.items()},
        "datasets": {key: f"{source.summary} [{source.origin}]" for key, source in data.DATASETS.items()},
        "defences": {key: _summary(factory) for key, factory in defences.DEFENCES.items()},
        "metrics": {key: metric.description for key, metric in metrics.METRICS.items()},
        "models": {
            **{key: _summary(factory) for key, factory in models.MODELS.items()},
            "module:factory": "your own: any importable function that returns an nn.Module",
        },
    }
    for title in KINDS if kind is None else (kind,):
        screen.print(title, style="bold")
        for key, text in tables[title].items():
            screen.print(f"  {escape(key):<20} {escape(text)}", soft_wrap=True)


@app.command()
def data(
    name: Annotated[str | None, typer.Argument(help="A dataset: load it and say what is in it.")] = None,
    folder: Annotated[Path | None, typer.Option(help="A data folder instead of LEAKGAUGE_DATA.")] = None,
    split: Annotated[str | None, typer.Option(help="Which part of it.")] = None,
    download: Annotated[bool, typer.Option(help="Whether the network may be asked.")] = True,
) -> None:
    """Where each dataset would be found on this machine; with a name, load it and describe it."""
    from leakgauge.data import DATASETS, load, locate

    if name is None:
        table = Table("dataset", "found", "where")
        for key in DATASETS:
            places = [place for place in locate(key, folder) if place.found]
            first = places[0] if places else locate(key, folder)[-1]
            word = "no" if not places else "by download" if first.place == "download" else "yes"
            table.add_row(key, word, escape(f"{first.place}: {first.detail}"))
        screen.print(table)
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
    """The first line of a docstring; for an attack, of the paper's file."""
    module = inspect.getmodule(thing)
    where = module if module is not None and ".attacks." in module.__name__ else thing
    return (inspect.getdoc(where) or "").partition("\n")[0].rstrip(":")
