"""The declaration of a dataset, which is part of the dataset's file."""

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
    """A data file inside an installed package, which is read without importing that package.

    Args:
        package: The name of the package, as it is imported.
        path: The path of the file inside the package. Where there are several files, one of them.
        note: Words about the file, such as the part of the dataset that it holds.
    """

    package: str
    path: str
    note: str = ""


@dataclass(frozen=True, eq=False)
class Source:
    """A dataset that :func:`leakgauge.data.load` can load.

    A dataset's file declares one at the top level. The registry finds it there.

    Args:
        name: The name of the dataset, which is also the name of its folder in a data folder.
        summary: The dataset in one line, for listings.
        origin: Where the data comes from.
        loader: The function that returns the dataset. It may have the arguments ``split``, ``folder`` and
            ``download``. Its other arguments are the options of the dataset.
        splits: The names of the parts. The first one is the default.
        files: The patterns of the files in a data folder. The first pattern that matches is used.
        remotes: The files that can be downloaded, by file name.
        package_file: The file of an installed package that holds the dataset.
        position: The place in listings. Lower numbers come first, equal numbers are sorted by name.
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
        """The names of the dataset's options: the loader's arguments without split, folder and download."""
        return tuple(name for name in self.arguments if name not in ("split", "folder", "download"))
