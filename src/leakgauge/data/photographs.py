"""Eight colour photographs from the package scikit-image, in the size that is usual for ImageNet (224 x 224)."""

from __future__ import annotations

import io

import numpy as np
import torch

from leakgauge.core.data_spec import DataSpec
from leakgauge.data import wheels
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import PackageFile, Source
from leakgauge.data.formats import read_bytes, reading, to_pixels

FILES = (
    "astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "ihc.png", "motorcycle_left.png",
    "retina.jpg", "rocket.jpg",
)  # fmt: skip
#: The mean and the standard deviation of ImageNet's pixels.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load(*, size: int = 224) -> Dataset:
    """Load the photographs. Each photograph is a class of its own.

    Args:
        size: The height and width in pixels. The middle square of each photograph is scaled to this size.
    """
    from PIL import Image

    folder = wheels.require(SOURCE).parent
    pictures = []
    for name in FILES:
        content = read_bytes(folder / name, "a photograph")
        with reading(folder / name, "a photograph"):
            image = Image.open(io.BytesIO(content)).convert("RGB")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        square = image.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BICUBIC)
        pictures.append(np.asarray(square).transpose(2, 0, 1))
    inputs = to_pixels(np.stack(pictures))
    spec = DataSpec((3, size, size), len(FILES), MEAN, STD)
    return Dataset(inputs, torch.arange(len(FILES)), spec, name="photographs")


SOURCE = Source(
    "photographs",
    "8 photographs, 3 x 224 x 224 (extra: datasets)",
    "installed",
    load,
    package_file=PackageFile("skimage", "data/coffee.png"),
    position=50,
)
