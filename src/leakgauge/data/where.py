"""The places where Leakgauge searches for a dataset, with a sentence about each place."""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

from leakgauge.core.errors import install_line
from leakgauge.data import locations, wheels
from leakgauge.data.dataset_source import PackageFile, Source
from leakgauge.data.locations import Folder


class Place(NamedTuple):
    """One place where Leakgauge searches for a dataset.

    Args:
        place: A short name for the place, such as "folder", "cache" or "download".
        found: Whether the dataset is there. For a download, whether downloads are allowed.
        detail: A sentence about the place, such as the path of the file.
    """

    place: str
    found: bool
    detail: str


def places_of(source: Source, folder: Folder = None) -> list[Place]:
    """Return the places where Leakgauge searches for a dataset, in the order of the search.

    Args:
        source: The dataset.
        folder: The data folder. The default is the folder in the environment variable ``LEAKGAUGE_DATA``.
    """
    if source.origin == "generated":
        return [Place("generated", True, "generated from a seed")]
    places = []
    if source.remotes:
        places.append(_folder(source, folder))
    if source.package_file is not None:
        places.append(_package(source.package_file))
    elif source.origin == "installed":
        places.append(Place("scikit-learn", find_spec("sklearn") is not None, "comes with Leakgauge"))
    if source.remotes:
        places += [_cache(source), _server(source)]
    return places


def _folder(source: Source, folder: Folder) -> Place:
    base = locations.root(folder)
    if base is None:
        return Place("folder", False, "LEAKGAUGE_DATA is not set")
    files = locations.find(source.name, source.files, folder)
    if not files:
        return Place("folder", False, f"{base / source.name} has no {' or '.join(source.files)}")
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return Place("folder", True, f"{files[0]}{more}")


def _package(file: PackageFile) -> Place:
    path = wheels.find(file)
    if path is None:
        advice = f"not installed. In a checkout of Leakgauge, run: {install_line('datasets')}"
        return Place(f"package {file.package}", False, advice)
    note = f" ({file.note})" if file.note else ""
    return Place(f"package {file.package}", True, f"{path}{note}")


def _cache(source: Source) -> Place:
    base = locations.cache() / source.name
    present = [file for file in source.remotes if (base / file).is_file()]
    detail = f"{base} has {len(present)} of {len(source.remotes)} files" if present else f"{base} is empty"
    return Place("cache", bool(present), detail)


def _server(source: Source) -> Place:
    hosts = ", ".join(sorted({remote.url.split("/")[2] for remote in source.remotes.values()}))
    permission = "forbidden by LEAKGAUGE_OFFLINE" if locations.offline() else "allowed"
    return Place("download", not locations.offline(), f"{permission}; from {hosts}")
