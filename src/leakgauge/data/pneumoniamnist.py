"""PneumoniaMNIST of MedMNIST v2: chest X-rays of children, 28 x 28 (Yang et al. 2023)."""

from __future__ import annotations

from leakgauge.core.data_spec import DataSpec
from leakgauge.data import locations
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import Remote, Source
from leakgauge.data.formats import read_npz, require_bytes, require_labels, to_pixels
from leakgauge.data.locations import Folder


def load(split: str = "train", *, folder: Folder = None, download: bool = True) -> Dataset:
    """Load the X-rays of one split. Class 0 is normal, and class 1 is pneumonia.

    The mean and the standard deviation are those that MedMNIST uses.

    Args:
        split: "train", "val" or "test".
        folder: The data folder, which has one subfolder for each dataset. If it is given, files are read only from
            there.
        download: Whether missing files may be downloaded.
    """
    [path] = locations.obtain(SOURCE, folder, download)
    names = f"{split}_images", f"{split}_labels"
    arrays = read_npz(path, {names[0]: (None, 28, 28), names[1]: (None, 1)})
    images = require_bytes(path, names[0], arrays[names[0]])
    targets = require_labels(path, arrays[names[1]][:, 0], len(images), classes=2)
    return Dataset(to_pixels(images), targets, DataSpec((1, 28, 28), 2, (0.5,), (0.5,)), name="pneumoniamnist")


SOURCE = Source(
    "pneumoniamnist",
    "5,856 chest X-rays, 28 x 28, 2 classes",
    "folder or download",
    load,
    splits=("train", "val", "test"),
    files=("pneumoniamnist.npz", "pneumoniamnist_28.npz"),
    remotes={
        "pneumoniamnist.npz": Remote(
            "https://zenodo.org/records/10519652/files/pneumoniamnist.npz?download=1",
            "md5:28209eda62fecd6e6a2d98b1501bb15f",
        ),
    },
    position=120,
)
