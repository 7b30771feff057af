"""Classes that describe where the files of a dataset are and which function loads them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from leakgauge.data.dataset import Dataset

Origin = Literal["installed", "folder or download", "generated"]


@dataclass(frozen=True)
class Remote:
    """A file on a server.

    Args:
        url: The address of the file.
        checksum: The checksum of the file, as ``"algorithm:hex digits"``.
    """

    url: str
    checksum: str


@dataclass(frozen=True)
class PackageFile:
    """A data file inside an installed package. The file is read, but the package is not imported.

    Args:
        package: The name of the package, as it is imported.
        path: The path of the file inside the package. If the dataset has several files, this is one of them.
        note: A remark about the file, such as which part of the dataset the file holds.
    """

    package: str
    path: str
    note: str = ""


@dataclass(frozen=True, eq=False)
class Source:
    """A dataset that :func:`leakgauge.data.load` can load.

    Each module with a dataset defines a ``Source`` at its top level, where the registry finds it.

    Args:
        name: The name of the dataset. Its files are in the subfolder of the data folder that has the same name.
        summary: A description of the dataset in one line, for listings.
        origin: Where the data comes from, which is ``"installed"``, ``"folder or download"`` or ``"generated"``.
        loader: The function that returns the dataset. It may have the arguments ``split``, ``folder`` and ``download``.
            Its other arguments are the options of the dataset.
        splits: The names of the splits. The first one is the default.
        files: Glob patterns for the dataset's files in a data folder. Only the first pattern that matches a file is
            used.
        remotes: A dictionary from file names to the files that can be downloaded.
        package_file: The file of an installed package that holds the dataset, or ``None``.
        position: The position in listings. Lower positions come first. Datasets with equal positions are sorted by
            name.
    """

    name: str
    summary: str
    origin: Origin
    loader: Callable[..., Dataset]
    splits: tuple[str, ...] = ("all",)
    files: tuple[str, ...] = ()
    remotes: dict[str, Remote] = field(default_factory=dict)
    package_file: PackageFile | None = None
    position: int = 1000

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of all arguments of the loader."""
        return tuple(inspect.signature(self.loader).parameters)

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the dataset's options, which are the loader's arguments except split, folder and download."""
        return tuple(name for name in self.arguments if name not in ("split", "folder", "download"))
