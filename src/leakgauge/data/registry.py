"""The table of all datasets, and the functions that load or locate the dataset with a given name."""

from __future__ import annotations

from typing import Any

from leakgauge.core.discovery import modules_of
from leakgauge.core.errors import UnknownName
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import Source
from leakgauge.data.locations import Folder
from leakgauge.data.where import Place, places_of


def discover() -> dict[str, Source]:
    """Return a dictionary from names to all :class:`Source` objects of this package, in the order of listings."""
    sources: dict[str, Source] = {}
    for module in modules_of("leakgauge.data", without=__name__):
        for value in vars(module).values():
            if isinstance(value, Source) and sources.setdefault(value.name, value) is not value:
                raise ValueError(f"{module.__name__} declares a second dataset called {value.name!r}")
    return dict(sorted(sources.items(), key=lambda item: (item[1].position, item[0])))


DATASETS: dict[str, Source] = discover()
"""A dictionary from names to all datasets."""


def load(
    name: str, *, split: str | None = None, folder: Folder = None, download: bool = True, **options: Any
) -> Dataset:
    """Load the dataset with the given name.

    Args:
        name: A name from :data:`DATASETS`.
        split: The split to load. The default is the training split, or all data if the dataset has no splits.
        folder: A data folder. If it is given, no other place is tried.
        download: Whether a download is allowed. ``LEAKGAUGE_OFFLINE=1`` forbids it everywhere.
        options: The options of the dataset. The docstring of the dataset's module explains them.
    """
    source = _source(name)
    if split is not None and split not in source.splits:
        raise UnknownName(f"split of {name}", split, source.splits)
    accepted = source.arguments
    if folder is not None:
        options["folder"] = folder
    for option in options:
        if option not in accepted:
            raise UnknownName(f"option of {name}", option, (*source.options, *({"folder"} & set(accepted))))
    if "split" in accepted:
        options["split"] = split or source.splits[0]
    if "download" in accepted:
        options["download"] = download
    return source.loader(**options)


def locate(name: str, folder: Folder = None) -> list[Place]:
    """Return the places where :func:`load` looks for a dataset, in the order of the search. Nothing is downloaded.

    If a dataset can be downloaded, the last place is the server. The attribute ``found`` of the server means that the
    download is allowed.

    Args:
        name: A name from :data:`DATASETS`.
        folder: A data folder, instead of ``LEAKGAUGE_DATA``.
    """
    return places_of(_source(name), folder)


def _source(name: str) -> Source:
    if name not in DATASETS:
        raise UnknownName("dataset", name, DATASETS)
    return DATASETS[name]
