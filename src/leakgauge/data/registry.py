"""The table of all datasets, and functions that load or find a dataset by its name."""

from __future__ import annotations

from typing import Any

from leakgauge.core.discovery import modules_of
from leakgauge.core.errors import UnknownName
from leakgauge.core.option_check import check_options
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import Source
from leakgauge.data.locations import Folder
from leakgauge.data.where import Place, places_of


def discover() -> dict[str, Source]:
    """Return a dictionary from names to the :class:`Source` objects of all datasets, in the order of listings."""
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
        folder: The data folder, which has one subfolder for each dataset. If it is given, files are read only from
            there.
        download: Whether missing files may be downloaded. ``LEAKGAUGE_OFFLINE=1`` forbids all downloads.
        options: Further arguments of the dataset's own loader, such as ``by_writer`` for MNIST.
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
    check_options(name, source.loader, options)
    return source.loader(**options)


def locate(name: str, folder: Folder = None) -> list[Place]:
    """Return the places where :func:`load` searches for a dataset, in the order of the search. Download nothing.

    If a dataset can be downloaded, the last place is the server. For a server, ``found`` means that downloads are
    allowed.

    Args:
        name: A name from :data:`DATASETS`.
        folder: The data folder. The default is the folder in the environment variable ``LEAKGAUGE_DATA``.
    """
    return places_of(_source(name), folder)


def _source(name: str) -> Source:
    if name not in DATASETS:
        raise UnknownName("dataset", name, DATASETS)
    return DATASETS[name]
