"""The functions that load the data that a TOML document names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from leakgauge.core.errors import InvalidInput, shown
from leakgauge.core.option_check import check_options
from leakgauge.data import Dataset, from_csv, from_images, from_npz, load
from leakgauge.models.factories import current_directory_importable, explained, find_factory


def _from_factory(name: str, **options: Any) -> Any:
    with current_directory_importable():
        factory = find_factory(name, "factory of data")
        with explained(f"the factory {shown(name)}"):
            return factory(**options)


#: The functions that load data, by the key in ``[data]``.
SOURCES: dict[str, Callable[..., Any]] = {
    "name": load,
    "images": from_images,
    "npz": from_npz,
    "csv": from_csv,
    "factory": _from_factory,
}


def load_data(source: str, name: str, options: Mapping[str, Any]) -> Dataset:
    """Load a dataset, and raise an error if it has no samples.

    Args:
        source: The key of the source in ``[data]``, such as ``"npz"``.
        name: The name of the dataset, or its path.
        options: The options of the source.
    """
    if source in ("images", "npz", "csv"):
        check_options(source, partial(SOURCES[source], name), options)
    dataset = SOURCES[source](name, **options)
    if not isinstance(dataset, Dataset):
        raise InvalidInput(f"{name} must return a leakgauge.Dataset, not {type(dataset).__name__}")
    if not len(dataset):
        raise InvalidInput(f"{name} has no samples. Name data with at least a few samples for each client")
    return dataset
