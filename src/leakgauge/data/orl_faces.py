"""AT&T / ORL faces: 40 people with 10 grey pictures each, 112 x 92 (Samaria and Harter 1994).

The subfolder ``orl_faces`` of the data folder holds one of these:

- the file ``orl_faces.npz`` with the arrays ``x`` and ``y``.
- the archive ``att_faces.zip`` of AT&T.
- the files ``s1/1.pgm`` to ``s40/10.pgm``, extracted from that archive.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch

from leakgauge.core.data_spec import DataSpec
from leakgauge.data import locations
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import Remote, Source
from leakgauge.data.formats import (
    Bytes,
    corrupt,
    read_bytes,
    read_npz,
    read_pgm,
    reading,
    require_bytes,
    require_labels,
    to_pixels,
)
from leakgauge.data.locations import Folder

PEOPLE, PICTURES = 40, 10
FULL_SIZE, LMRA_SIZE = (112, 92), (80, 70)

_MEMBERS = [f"s{person}/{picture}.pgm" for person in range(1, PEOPLE + 1) for picture in range(1, PICTURES + 1)]


def load(*, folder: Folder = None, download: bool = True, full_size: bool = False) -> Dataset:
    """Load the faces. The index of the person is both the label and the group of a face.

    Args:
        folder: The data folder, which has one subfolder for each dataset. If it is given, files are read only from
            there.
        download: Whether missing files may be downloaded.
        full_size: Whether the faces have 112 x 92 pixels. By default, they have 80 x 70 pixels, as in Local Model
            Reconstruction Attacks (LMRA; Driouich et al.).
    """
    [path] = locations.obtain(SOURCE, folder, download)
    if path.suffix == ".npz":
        arrays = read_npz(path, {"x": (None, *FULL_SIZE), "y": (None,)})
        images, labels = require_bytes(path, "x", arrays["x"]), arrays["y"]
    else:
        images, labels = _read_pictures(path), np.repeat(np.arange(PEOPLE), PICTURES)
    targets = require_labels(path, labels, len(images), PEOPLE)
    inputs = to_pixels(images)
    if not full_size:
        inputs = torch.nn.functional.interpolate(
            inputs, LMRA_SIZE, mode="bilinear", align_corners=False, antialias=True
        ).clamp_(0, 1)
    return Dataset(
        inputs,
        targets,
        DataSpec((1, *(FULL_SIZE if full_size else LMRA_SIZE)), PEOPLE),
        name="orl_faces",
        groups=targets,
        group_names=tuple(f"s{person}" for person in range(1, PEOPLE + 1)),
    )


def _read_pictures(path: Path) -> Bytes:
    """Return all pictures of AT&T's archive, which may be packed or extracted."""
    if path.suffix == ".pgm":
        base = path.parent.parent
        pictures = [read_pgm(read_bytes(base / member, "a PGM picture"), base / member) for member in _MEMBERS]
    else:
        with reading(path, "a zip archive with s1/1.pgm to s40/10.pgm"), zipfile.ZipFile(path) as archive:
            # In some archives, the people's folders are inside another folder.
            names = {"/".join(name.split("/")[-2:]): name for name in archive.namelist()}
            pictures = [read_pgm(archive.read(names[member]), path / member) for member in _MEMBERS]
    wrong = next((index for index, picture in enumerate(pictures) if picture.shape != FULL_SIZE), None)
    if wrong is not None:
        height, width = pictures[wrong].shape
        raise corrupt(path, f"{_MEMBERS[wrong]} is {height} x {width}", "112 x 92")
    return np.stack(pictures)


SOURCE = Source(
    "orl_faces",
    "400 faces of 40 people, 80 x 70 or 112 x 92",
    "folder or download",
    load,
    files=("orl_faces.npz", "att_faces.zip", "s1/1.pgm"),
    remotes={
        "att_faces.zip": Remote(
            "http://www.idiap.ch/software/bob/data/bob/att_faces.zip", "md5:6efb25cb0d40755e9492b9c012e3348d"
        ),
    },
    position=100,
)
