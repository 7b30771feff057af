"""Data files in other installed packages, found without importing those packages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from leakgauge.core.errors import MissingExtra
from leakgauge.data.dataset_source import PackageFile, Source


def find(file: PackageFile) -> Path | None:
    """Return the path of a file in an installed package, or ``None`` if the package or the file is missing."""
    spec = find_spec(file.package)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder, file.path)
        if path.is_file():
            return path
    return None


def require(source: Source) -> Path:
    """Return the path of a dataset's file in an installed package.

    If the package is missing, raise an error with the command that installs it.
    """
    assert source.package_file is not None
    path = find(source.package_file)
    if path is None:
        raise MissingExtra(f"the dataset {source.name!r}", source.package_file.package, "datasets")
    return path
