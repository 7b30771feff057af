"""PneumoniaMNIST of MedMNIST v2: chest X-rays of children, 28 x 28 (Yang et al. 2023)."""

from __future__ import annotations

from leakgauge.core.observation import DataSpec
from leakgauge.data import locations
from leakgauge.data.dataset import Dataset
from leakgauge.data.formats import read_npz, require_bytes, require_labels, to_pixels
from leakgauge.data.locations import Folder

PATTERNS = ("pneumoniamnist.npz", "pneumoniamnist_28.npz")


def load(split: str = "train", *, folder: Folder = None, download: bool = True) -> Dataset:
    """The X-rays of one split; class 0 is normal, class 1 pneumonia. Normalised as MedMNIST does."""
    [path] = locations.obtain("pneumoniamnist", PATTERNS, "pneumoniamnist.npz", folder, download)
    names = f"{split}_images", f"{split}_labels"
    arrays = read_npz(path, {names[0]: (None, 28, 28), names[1]: (None, 1)})
    images = require_bytes(path, names[0], arrays[names[0]])
    targets = require_labels(path, arrays[names[1]][:, 0], len(images), classes=2)
    return Dataset(to_pixels(images), targets, DataSpec((1, 28, 28), 2, (0.5,), (0.5,)), name="pneumoniamnist")
