"""Functions that find data files in other installed packages. The packages are not imported."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leakgauge.core.errors import DataNotFound, MissingExtra
from leakgauge.data.dataset_source import PackageFile, Source
from leakgauge.data.formats import reading


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


def scikit_learn_table(name: str, *, delimiter: str | None = ",", skip: int = 0) -> NDArray[np.float64]:
    """Return the numbers in a data file of scikit-learn. The import of scikit-learn would take seconds.

    Args:
        name: The name of the file.
        delimiter: The text between two numbers. ``None`` means blanks.
        skip: The number of lines before the first number.
    """
    path = find(PackageFile("sklearn", f"datasets/data/{name}"))
    if path is None:
        raise DataNotFound(
            f"the installed scikit-learn does not hold the file datasets/data/{name}. Install scikit-learn again, "
            "or another version of it."
        )
    with reading(path, "a table of numbers"):
        return np.loadtxt(path, delimiter=delimiter, skiprows=skip)
