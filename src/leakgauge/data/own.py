"""Loaders for your own data: a folder of pictures, an npz file or a CSV table.

A loaded dataset holds samples without normalisation. The inputs of the model are normalised with a mean and a standard
deviation. By default, both are computed from the data. Use ``mean=0, std=1`` for a model that takes samples without
normalisation.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import replace
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
from leakgauge.data.csv_columns import (
    MOST_CLASSES,
    Missing,
    Types,
    numeric_columns,
    sign_of,
    target_of,
    without_missing,
)
from leakgauge.data.csv_notes import notes_of, target_note
from leakgauge.data.csv_numbers import DecimalSign
from leakgauge.data.csv_table import check_columns, read_table
from leakgauge.data.dataset import MOST_VALUES, Dataset
from leakgauge.data.formats import corrupt, open_npz, reading
from leakgauge.data.npz_samples import Kind, to_samples

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
Statistic = float | Sequence[float] | None
#: The names by which Pillow knows the formats of these files.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
#: The limits of the height and the width of a picture.
SIDE = Limit(1, 10_000, whole=True)
#: The number of values of which mean and deviation are computed at a time.
AT_A_TIME = 2**20


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
    kind: Kind | None = None,
    time_axis: int | None = None,
    classes: int | None = None,
    mean: Statistic = None,
    std: Statistic = None,
) -> Dataset:
    """Load an npz file with two arrays, the samples and their targets.

    Samples are pictures, series or rows of a table. Pictures are bytes or values in [0, 1], and their shape is N x
    height x width, with colours first or last. Rows of a table have the shape N x columns. Series have the shape N x
    time x channels or N x channels x time, and keep it. An array of three dimensions holds series if its values are not
    bytes, not all in [0, 1], and its last two sizes differ. Otherwise it holds grey pictures.

    The targets are one of four kinds, by their type and shape:

    - Whole numbers, one for each sample, are classes.
    - Whole numbers in an array of more dimensions are classes in each place, such as those of a mask.
    - Zeros and ones in an array of more dimensions are several labels, or masks of one object.
    - All other numbers are those of a regression, which may have several for each sample.

    Args:
        path: The path of the file.
        inputs: The name of the array of samples.
        targets: The name of the array of targets.
        kind: ``"picture"`` or ``"series"``. By default, the type, the shape and the values decide. Series of one
            channel may have the shape N x time.
        time_axis: The dimension of a series along which time runs, 0 for time x channels and 1 for channels x time.
            The default is the longer one.
        classes: The number of classes, of a sample or in each place of a mask. The default is the largest target plus
            one, but at least 2.
        mean: The mean for the normalisation, as one value or as one value for each colour, channel or column. The
            default is computed from the data.
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
    samples = to_samples(file, raw_samples, kind, time_axis)
    if raw_targets.ndim > 1 and raw_targets.shape[1:] != (1,):
        labels, class_count, in_each_place = _several(file, raw_targets, len(samples.values), classes), None, classes
    else:
        labels, class_count = _to_targets(file, raw_targets, len(samples.values), classes)
        in_each_place = None
    spec = _spec(samples.values, class_count, bounded=samples.pixels, mean=mean, std=std, time_axis=samples.time_axis)
    spec = replace(spec, target_values=in_each_place)
    return Dataset(samples.values, labels, spec, name=file.stem, notes=samples.notes)


def from_csv(  # noqa: PLR0913
    path: str | Path,
    *,
    target: str,
    sensitive: str | None = None,
    regression: bool | None = None,
    categories: Sequence[str] = (),
    numbers: Sequence[str] = (),
    ignore: Sequence[str] = (),
    missing: Missing = "drop",
    missing_words: Sequence[str] | None = None,
    separator: str | None = None,
    decimal: DecimalSign | None = None,
    encoding: str = "utf-8",
    mean: Statistic = None,
    std: Statistic = None,
) -> Dataset:
    """Load a CSV table with a header.

    A column is one of numbers if all of its values are numbers, and one of categories if none is. A column of
    categories becomes several columns of 0 and 1, one for each different word. A column that mixes numbers and words
    raises an error, unless it is named in ``categories``. The ``notes`` of the dataset state what was found.

    A value is missing if its cell is empty, or holds ``?`` or one of the words NA, N/A, NaN and null in small or
    capital letters. In a column of numbers, the words none, nil, missing and unknown, dashes and a point stand for a
    missing value too.

    Args:
        path: The path of the file.
        target: The name of the column to predict.
        sensitive: The name of the column that attribute inference tries to recover. The column holds 0 and 1, or two
            different words.
        regression: ``True`` if the target is a number to predict, and ``False`` if it is a class. By default, the
            target is a class if the column holds words, or at most 100 different whole numbers.
        categories: The names of columns of categories, also if their values are numbers, such as codes.
        numbers: The names of columns of numbers.
        ignore: The names of columns to leave out.
        missing: The rule for missing values. ``"drop"`` leaves out rows with a missing value. ``"fill"`` replaces a
            missing number by the median of its column, and makes a missing category the category ``missing``.
            ``"refuse"`` raises an error. Rows without a target are always left out or refused.
        missing_words: The words for a missing value in every column. They replace those above.
        separator: The character between columns, which is ``","``, ``";"``, ``"|"`` or ``"tab"``. By default, it is
            the one that divides every line alike.
        decimal: The decimal sign. By default, the one that a column of numbers shows.
        encoding: The encoding of the file, such as ``"cp1252"``.
        mean: The mean for the normalisation, as one value or as one value for each column. The default is computed from
            the data.
        std: The standard deviation for the normalisation, in the same form. The default is computed from the data.
    """
    file, types = Path(path), Types(categories, numbers, ignore, missing_words)
    read = read_table(file, separator, encoding)
    check_columns(read, target, sensitive, {"categories": categories, "numbers": numbers, "ignore": ignore})
    read = read.without(ignore)
    read = replace(read, decimal=decimal or sign_of(read, types))
    kinds = {name: types.kind_of(read, name) for name in read.columns}
    table = without_missing(read, kinds, types, missing, target)
    quantity = True if regression is None and target in numbers else regression
    target_values, classes, are_classes = target_of(table, target, kinds[target], quantity)
    columns, words = numeric_columns(table.without([target]), kinds, sensitive)
    if sensitive is not None and (sensitive not in columns or set(columns[sensitive]) - {0.0, 1.0}):
        raise InvalidInput(f"{file}: the sensitive column {sensitive!r} must hold 0 and 1, or two words")
    samples = torch.tensor(list(columns.values()), dtype=torch.float32).T.contiguous()
    kind = np.int64 if are_classes else np.float32
    targets, class_count = _to_targets(file, np.array(target_values).astype(kind), len(samples), None)
    spec = _spec(samples, class_count, bounded=False, mean=mean, std=std, columns=tuple(columns))
    about = target_note(target, class_count, classes, named=regression is not None)
    notes = (*notes_of(read, table, kinds, types, missing, target), about)
    words |= {target: classes} if classes else {}
    return Dataset(samples, targets, spec, name=file.stem, sensitive=sensitive, target=target, words=words, notes=notes)


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
    """Read a picture, and return an array of bytes of shape (channels, height, width)."""
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
    pixels: NDArray[Any] = np.asarray(picture, dtype=np.uint8)
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def _size_of(picture: NDArray[Any]) -> str:
    return f"{picture.shape[1]} x {picture.shape[2]} pixels"


def _to_targets(
    file: Path, values: NDArray[np.generic], samples: int, classes: int | None
) -> tuple[Tensor, int | None]:
    """Convert an array to targets. Also return the number of classes, which is ``None`` for a regression."""
    values = values[:, 0] if values.ndim == 2 and values.dtype.kind in "iub" else values  # a column of classes
    _check_count(file, values, samples)
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
    return _to_numbers(file, values), None


def _several(file: Path, values: NDArray[np.generic], samples: int, classes: int | None) -> Tensor:
    """Convert an array with several entries for each sample to targets, such as several labels or a mask.

    Several labels of 0 and 1 become floats, which losses for several labels need. Other whole numbers are classes.
    """
    _check_count(file, values, samples)
    if values.dtype.kind not in "iufb":
        raise corrupt(file, f"holds targets of type {values.dtype}", "whole numbers for classes, or floats")
    if values.dtype.kind == "f":
        if classes is not None:
            raise corrupt(file, f"holds targets of type {values.dtype}", "whole numbers, because classes is given")
        return _to_numbers(file, values)
    low, high = int(values.min()), int(values.max())
    if classes is not None and not 0 <= low <= high < classes:
        raise corrupt(file, f"holds classes from {low} to {high}", f"classes 0 to {classes - 1}")
    labels = values.ndim == 2 and low >= 0 and high <= 1 and classes is None
    return torch.from_numpy(values.astype(np.float32 if labels or low < 0 or high >= MOST_VALUES else np.int64))


def _check_count(file: Path, values: NDArray[np.generic], samples: int) -> None:
    if values.ndim == 0 or len(values) != samples or not values.size:
        raise corrupt(file, f"holds targets of shape {tuple(values.shape)}", f"one for each of {samples} samples")


def _to_numbers(file: Path, values: NDArray[np.generic]) -> Tensor:
    with np.errstate(over="ignore"):
        numbers = torch.from_numpy(values.astype(np.float32))
    if not bool(numbers.isfinite().all()):
        raise InvalidInput(f"{file}: targets hold NaN or Inf. Clean or impute them first.")
    return numbers


def _spec(
    inputs: Tensor,
    classes: int | None,
    *,
    bounded: bool,
    mean: Statistic,
    std: Statistic,
    columns: tuple[str, ...] = (),
    time_axis: int | None = None,
) -> DataSpec:
    """Return the shape and the normalisation of the samples. A missing mean or std is computed from the samples."""
    channels = 1 if time_axis is None else 1 + (1 - time_axis if inputs.dim() > 2 else inputs.dim())
    means, deviations = _moments(inputs, channels)
    if not bool(means.isfinite().all()):
        raise InvalidInput("samples hold NaN or Inf. Clean or impute them first.")
    deviations[deviations == 0] = 1
    return DataSpec(
        tuple(inputs.shape[1:]),
        classes,
        _statistic(mean, means),
        _statistic(std, deviations),
        bounded=bounded,
        columns=columns,
        time_axis=time_axis,
    )


def _moments(inputs: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of each channel, in double precision, from a part of it at a time.

    Args:
        inputs: The samples. Bytes are pixels times 255.
        channels: The dimension of the channels. If there is no such dimension, all values are one channel.
    """
    others = [dimension for dimension in range(inputs.dim()) if dimension != channels]
    shape = [size if dimension == channels else 1 for dimension, size in enumerate(inputs.shape)]
    means, squares = torch.zeros(2, *shape, dtype=torch.double)
    parts = inputs.split(max(1, AT_A_TIME // max(1, inputs[0].numel())))
    values = inputs.numel() / means.numel()
    for part in parts:
        means += _pixels(part).double().sum(others, keepdim=True)
    means /= values
    for part in parts:
        squares += (_pixels(part).double() - means).square_().sum(others, keepdim=True)
    return means.flatten(), (squares / values).sqrt().flatten()


def _pixels(samples: Tensor) -> Tensor:
    return samples.float().div_(255) if samples.dtype == torch.uint8 else samples


def _statistic(given: Statistic, computed: Tensor) -> tuple[float, ...]:
    if given is None:
        return tuple(computed.reshape(-1).tolist())
    numbers = given if isinstance(given, (list, tuple)) else [given]
    return tuple(float(finite("each number of mean and std", value)) for value in numbers)
