"""Loaders for your own data: a folder of pictures, an npz file or a CSV table.

A loaded dataset holds samples without normalisation. The inputs of the model are normalised with a mean and a standard
deviation. By default, both are computed from the data. Use ``mean=0, std=1`` for a model that takes samples without
normalisation.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakgauge.core.checks import finite
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import FileError, InvalidInput, shown
from leakgauge.core.files import regular_file
from leakgauge.core.limits import Limit
from leakgauge.data.csv_table import MOST_CLASSES, check_columns, numeric_columns, read_table, target_of
from leakgauge.data.dataset import Dataset
from leakgauge.data.formats import corrupt, open_npz, reading

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
Statistic = float | Sequence[float] | None
#: The names by which Pillow knows the formats of these files.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
#: The limits of the height and the width of a picture.
SIDE = Limit(1, 10_000, whole=True)


def from_images(
    folder: str | Path,
    *,
    size: Sequence[int] | None = None,
    grey: bool = False,
    mean: Statistic = None,
    std: Statistic = None,
) -> Dataset:
    """Load pictures from a folder that has one subfolder for each class.

    The subfolders are sorted by name. The class of a picture is the index of its subfolder in this order.

    Args:
        folder: The folder with the subfolders.
        size: The (height, width) to which all pictures are scaled. By default, pictures are not scaled, and all must
            have the same size.
        grey: Whether the pictures are converted to grey.
        mean: The mean for the normalisation, as one value or as one value for each colour. The default is computed from
            the data.
        std: The standard deviation for the normalisation, in the same form. The default is computed from the data.
    """
    root, scale = Path(folder), _checked_size(size)
    with reading(root, "a folder of pictures"):
        if not root.is_dir():
            raise FileError(f"{root}: there is no such folder of pictures")
        classes = sorted(path for path in root.iterdir() if path.is_dir())
    files = [(path, label) for label, class_folder in enumerate(classes) for path in _picture_files(class_folder)]
    if not files:
        loose = " (there are pictures, but in no folder of their class)" if _picture_files(root) else ""
        raise FileError(f"{root}: holds no pictures in folders named by their class, such as {root}/cat/1.png{loose}")
    empty = next((folder for folder in classes if not _picture_files(folder)), None)
    if empty is not None:
        raise InvalidInput(f"{empty}: holds no pictures. Add some, or remove this folder, because each one is a class")
    if len(classes) < 2:
        raise InvalidInput(f"{root}: holds one class, {classes[0].name}. Add a folder for at least one other class")
    pictures: list[NDArray[Any]] = []
    for path, _ in files:
        pictures.append(_read_picture(path, scale, grey))
        if pictures[-1].shape != pictures[0].shape:
            raise InvalidInput(
                f"{path}: has {_size_of(pictures[-1])}, but {files[0][0].name} has {_size_of(pictures[0])}. "
                "Give size = [height, width] to scale all pictures."
            )
    inputs = torch.from_numpy(np.stack(pictures))
    targets = torch.tensor([label for _, label in files])
    spec = _spec(inputs, len(classes), bounded=True, mean=mean, std=std)
    return Dataset(inputs, targets, spec, name=root.name)


def from_npz(
    path: str | Path,
    *,
    inputs: str = "x",
    targets: str = "y",
    classes: int | None = None,
    mean: Statistic = None,
    std: Statistic = None,
) -> Dataset:
    """Load an npz file with two arrays, the samples and their targets.

    Samples are pictures or rows of a table. Pictures are bytes or values in [0, 1], and their shape is N x height x
    width, with colours first or last. Rows of a table have the shape N x columns. Targets of an integer type are
    classes. Targets of a floating-point type are those of a regression.

    Args:
        path: The path of the file.
        inputs: The name of the array of samples.
        targets: The name of the array of targets.
        classes: The number of classes. The default is the largest target plus one, but at least 2.
        mean: The mean for the normalisation, as one value or as one value for each colour or column. The default is
            computed from the data.
        std: The standard deviation for the normalisation, in the same form. The default is computed from the data.
    """
    file = Path(path)
    if classes is not None:
        Limit(2, MOST_CLASSES, whole=True).checked("classes", classes)
    expected = f"an npz file with plain arrays named {inputs} and {targets}"
    regular_file(file)
    with reading(file, expected), file.open("rb") as stream:
        arrays = open_npz(stream, file, (inputs, targets), expected)
    raw_samples, raw_targets = arrays[inputs], arrays[targets]
    samples, bounded = _to_samples(file, raw_samples)
    labels, class_count = _to_targets(file, raw_targets, len(samples), classes)
    spec = _spec(samples, class_count, bounded=bounded, mean=mean, std=std)
    return Dataset(samples, labels, spec, name=file.stem)


def from_csv(
    path: str | Path,
    *,
    target: str,
    sensitive: str | None = None,
    regression: bool | None = None,
    mean: Statistic = None,
    std: Statistic = None,
) -> Dataset:
    """Load a CSV table with a header.

    Columns of numbers are not changed. This also holds for numbers that are codes of categories. Write such codes as
    words, such as c1. A column of words becomes several columns of 0 and 1, one for each different word. A column that
    mixes numbers and words raises an error.

    Args:
        path: The path of the file.
        target: The name of the column to predict.
        sensitive: The name of the column that attribute inference tries to recover. The column holds 0 and 1, or two
            different words.
        regression: ``True`` if the target is a number to predict, and ``False`` if it is a class. By default, the
            target is a class if the column holds words, or at most 100 different whole numbers.
        mean: The mean for the normalisation, as one value or as one value for each column. The default is computed from
            the data.
        std: The standard deviation for the normalisation, in the same form. The default is computed from the data.
    """
    file = Path(path)
    table = read_table(file)
    check_columns(file, table, target, sensitive)
    target_values, are_classes = target_of(file, target, table.pop(target), regression)
    columns = numeric_columns(file, table, sensitive)
    if sensitive is not None and (sensitive not in columns or set(columns[sensitive]) - {0.0, 1.0}):
        raise InvalidInput(f"{file}: the sensitive column {sensitive!r} must hold 0 and 1, or two words")
    samples = torch.tensor(list(columns.values()), dtype=torch.float32).T.contiguous()
    kind = np.int64 if are_classes else np.float32
    targets, class_count = _to_targets(file, np.array(target_values).astype(kind), len(samples), None)
    spec = _spec(samples, class_count, bounded=False, mean=mean, std=std, columns=tuple(columns))
    return Dataset(samples, targets, spec, name=file.stem, sensitive=sensitive)


def _picture_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES)


def _checked_size(size: object) -> tuple[int, int] | None:
    if size is None:
        return None
    if not isinstance(size, Sequence) or isinstance(size, str) or len(size) != 2:
        raise InvalidInput(f"size must be two whole numbers, [height, width], not {shown(size)}")
    height, width = (int(SIDE.checked("each number of size", value)) for value in size)
    return height, width


def _read_picture(path: Path, size: tuple[int, int] | None, grey: bool) -> NDArray[Any]:
    """Read a picture, and return an array of shape (channels, height, width) with values in [0, 1]."""
    from PIL import Image

    content = regular_file(path).read_bytes()
    with reading(path, "a picture"), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        # Other formats may start other programs.
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        if max(image.size) > SIDE.most:
            raise corrupt(path, f"has {image.size[1]} x {image.size[0]} pixels", f"at most {SIDE.most:,} on each side")
        picture = image.convert("L" if grey else "RGB")
        if size is not None:
            picture = picture.resize((size[1], size[0]), Image.Resampling.BICUBIC)
    pixels: NDArray[Any] = np.asarray(picture, dtype=np.float32) / 255
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def _size_of(picture: NDArray[Any]) -> str:
    return f"{picture.shape[1]} x {picture.shape[2]} pixels"


def _to_samples(file: Path, values: NDArray[np.generic]) -> tuple[Tensor, bool]:
    """Convert an array to samples, with bytes scaled to [0, 1]. Also return whether the samples are pixels."""
    if values.ndim == 0 or not values.size:
        raise corrupt(file, f"holds samples of shape {tuple(values.shape)}", "at least one sample with a value")
    if values.dtype == np.uint8:
        samples = torch.from_numpy(values.astype(np.float32) / 255)
    elif np.issubdtype(values.dtype, np.number) and not np.issubdtype(values.dtype, np.complexfloating):
        with np.errstate(over="ignore"):  # a value that becomes infinite is refused later
            samples = torch.from_numpy(values.astype(np.float32))
    else:
        raise corrupt(file, f"holds samples of type {values.dtype}", "bytes or numbers")
    if samples.dim() == 3:
        samples = samples.unsqueeze(1)
    elif samples.dim() == 4 and samples.shape[1] not in (1, 3) and samples.shape[-1] in (1, 3):
        samples = samples.permute(0, 3, 1, 2).contiguous()
    elif samples.dim() not in (2, 4):
        raise corrupt(file, f"holds samples of shape {tuple(values.shape)}", "N x columns, or N x pictures")
    pixels = samples.dim() == 4 and samples.numel() > 0 and bool(samples.min() >= 0) and bool(samples.max() <= 1)
    return samples, pixels


def _to_targets(
    file: Path, values: NDArray[np.generic], samples: int, classes: int | None
) -> tuple[Tensor, int | None]:
    """Convert an array to targets. Also return the number of classes, which is ``None`` for a regression."""
    if values.shape != (samples,):
        raise corrupt(file, f"holds targets of shape {tuple(values.shape)}", f"one for each of {samples} samples")
    if np.issubdtype(values.dtype, np.integer) or values.dtype == np.bool_:
        if classes is None and int(values.max()) >= MOST_CLASSES:
            raise corrupt(file, f"holds the class {values.max()}", f"classes 0, 1, 2 and so on, below {MOST_CLASSES:,}")
        if classes is not None and int(values.max()) >= classes:
            raise corrupt(file, f"holds the class {values.max()}", f"classes 0 to {classes - 1}")
        return torch.from_numpy(values.astype(np.int64)), classes or max(2, int(values.max()) + 1)
    if classes is not None:
        raise corrupt(file, f"holds targets of type {values.dtype}", "whole numbers, because classes is given")
    if not np.issubdtype(values.dtype, np.floating):
        raise corrupt(file, f"holds targets of type {values.dtype}", "whole numbers for classes, or floats")
    with np.errstate(over="ignore"):
        numbers = torch.from_numpy(values.astype(np.float32))
    if not bool(numbers.isfinite().all()):
        raise InvalidInput(f"{file}: targets hold NaN or Inf. Clean or impute them first.")
    return numbers, None


def _spec(
    inputs: Tensor,
    classes: int | None,
    *,
    bounded: bool,
    mean: Statistic,
    std: Statistic,
    columns: tuple[str, ...] = (),
) -> DataSpec:
    """Return the shape and the normalisation of the samples. A missing mean or std is computed from the samples."""
    if not bool(inputs.isfinite().all()):
        raise InvalidInput("samples hold NaN or Inf. Clean or impute them first.")
    other_dimensions = [dimension for dimension in range(inputs.dim()) if dimension != 1]
    means, deviations = inputs.double().mean(other_dimensions), inputs.double().std(other_dimensions, correction=0)
    deviations[deviations == 0] = 1
    return DataSpec(
        tuple(inputs.shape[1:]),
        classes,
        _statistic(mean, means),
        _statistic(std, deviations),
        bounded=bounded,
        columns=columns,
    )


def _statistic(given: Statistic, computed: Tensor) -> tuple[float, ...]:
    if given is None:
        return tuple(computed.tolist())
    numbers = given if isinstance(given, (list, tuple)) else [given]
    return tuple(float(finite("each number of mean and std", value)) for value in numbers)
