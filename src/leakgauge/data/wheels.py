"""Functions that find data files in other installed packages. The packages are not imported."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from leakgauge.core.errors import MissingExtra
from leakgauge.data.dataset_source import PackageFile, Source


def find(file: PackageFile) -> Path | None:
    """Return the path of a data file in an installed package, or ``None`` if the package or the file is missing."""
    spec = find_spec(file.package)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder, file.path)
        if path.is_file():
            return path
    return None


def require(source: Source) -> Path:
    """Return the path of a dataset's file in an installed package.

    If the package or the file is missing, raise an error with the command that installs the package.
    """
    assert source.package_file is not None
    path = find(source.package_file)
    if path is None:
        raise MissingExtra(f"the dataset {source.name!r}", source.package_file.package, "datasets")
    return path
