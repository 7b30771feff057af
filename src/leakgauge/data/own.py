"""Loaders for your own data: a folder of pictures, an npz file or a CSV table.

A loaded dataset holds samples without normalisation. The inputs of the model are normalised with a mean and a standard
deviation. By default, both are computed from the data. Use ``mean=0, std=1`` for a model that takes samples without
normalisation.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import FileError, InvalidInput, UnknownName
from leakgauge.data.dataset import Dataset
from leakgauge.data.formats import corrupt, read_bytes, reading

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
Statistic = float | Sequence[float] | None
#: A target with more different whole numbers than this is a quantity and not a class.
MANY = 100

_Table = dict[str, list[str]]


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
    root = Path(folder)
    if not root.is_dir():
        raise FileError(f"{root}: there is no such folder of pictures")
    classes = sorted(path for path in root.iterdir() if path.is_dir())
    files = [(path, label) for label, class_folder in enumerate(classes) for path in _picture_files(class_folder)]
    if not files:
        loose = " (there are pictures, but in no folder of their class)" if _picture_files(root) else ""
        raise FileError(f"{root}: holds no pictures in folders named by their class, such as {root}/cat/1.png{loose}")
    pictures: list[NDArray[Any]] = []
    for path, _ in files:
        pictures.append(_read_picture(path, size, grey))
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
    expected = f"an npz file with plain arrays named {inputs} and {targets}"
    with reading(file, expected), file.open("rb") as stream:
        archive = np.load(stream, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise corrupt(file, "is a single array", expected)
        with archive:
            for name in (inputs, targets):
                if name not in archive:
                    raise UnknownName(f"array in {file} called", name, list(archive))
            raw_samples, raw_targets = archive[inputs], archive[targets]
    if len(raw_samples) == 0:
        raise corrupt(file, "holds no samples", "at least one")
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

    Columns of numbers are not changed. A column of words becomes several columns of 0 and 1, one for each different
    word.

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
    table = _read_table(file)
    _check_columns(file, table, target, sensitive)
    target_values = np.array(_numbers_or_codes(table.pop(target)))
    columns = _numeric_columns(table, sensitive)
    if sensitive is not None and (sensitive not in columns or set(columns[sensitive]) - {0.0, 1.0}):
        raise InvalidInput(f"{file}: the sensitive column {sensitive!r} must hold 0 and 1, or two words")
    samples = torch.tensor(list(columns.values()), dtype=torch.float32).T.contiguous()
    kind = np.int64 if _are_classes(target_values, regression) else np.float32
    targets, class_count = _to_targets(file, target_values.astype(kind), len(samples), None)
    spec = _spec(samples, class_count, bounded=False, mean=mean, std=std, columns=tuple(columns))
    return Dataset(samples, targets, spec, name=file.stem, sensitive=sensitive)


def _picture_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES)


def _read_picture(path: Path, size: Sequence[int] | None, grey: bool) -> NDArray[Any]:
    """Read a picture, and return an array of shape (channels, height, width) with values in [0, 1]."""
    from PIL import Image

    with reading(path, "a picture"):
        image = Image.open(io.BytesIO(path.read_bytes())).convert("L" if grey else "RGB")
    if size is not None:
        image = image.resize((int(size[1]), int(size[0])), Image.Resampling.BICUBIC)
    pixels: NDArray[Any] = np.asarray(image, dtype=np.float32) / 255
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def _size_of(picture: NDArray[Any]) -> str:
    return f"{picture.shape[1]} x {picture.shape[2]} pixels"


def _read_table(file: Path) -> _Table:
    """Read a CSV file, and return a dictionary from column names to columns. Raise an error if a value is empty."""
    expected = "a CSV table with a header"
    content = read_bytes(file, expected)
    with reading(file, expected):
        lines = list(csv.reader(io.StringIO(content.decode("utf-8-sig"))))
    if len(lines) < 2:
        raise corrupt(file, f"holds {len(lines)} lines", "a header and at least one row")
    header, rows = [name.strip() for name in lines[0]], [row for row in lines[1:] if row]
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise corrupt(
                file, f"line {number} has {len(row)} values", f"{len(header)}, one for each column of the header"
            )
    table = {name: [row[place].strip() for row in rows] for place, name in enumerate(header)}
    for name, column in table.items():
        if "" in column:
            raise InvalidInput(
                f"{file}: line {column.index('') + 2} has no {name!r}. Fill it in, or leave the row out."
            )
    return table


def _check_columns(file: Path, table: _Table, target: str, sensitive: str | None) -> None:
    for role, column in (("target", target), ("sensitive", sensitive)):
        if column is not None and column not in table:
            raise UnknownName(f"column in {file} for {role}", column, table)
    if sensitive == target:
        raise InvalidInput(f"{file}: {target!r} cannot be both the target and the sensitive column")
    if len(table) == 1:
        raise InvalidInput(f"{file}: there is no column beside the target {target!r}")


def _numeric_columns(table: _Table, sensitive: str | None) -> dict[str, list[float]]:
    """Convert all columns of a table to numbers.

    A column of words becomes several columns of 0 and 1, one for each different word. A sensitive column with two
    different words becomes a single column of 0 and 1.
    """
    columns: dict[str, list[float]] = {}
    for name, column in table.items():
        numbers = _numbers(column)
        words = sorted(set(column))
        if numbers is not None:
            columns[name] = numbers
        elif name == sensitive and len(words) == 2:
            columns[name] = [float(value == words[1]) for value in column]
        else:
            columns |= {f"{name}={word}": [float(value == word) for value in column] for word in words}
    return columns


def _are_classes(values: NDArray[np.float64], regression: bool | None) -> bool:
    """Return whether the targets are classes, and not numbers to predict.

    Targets that are not whole numbers are never classes. For whole numbers, the user's ``regression`` decides. If it is
    ``None``, targets with at most 100 different values are classes.
    """
    if regression is True or not bool(np.all(values == np.round(values))):
        return False
    return regression is False or len(np.unique(values)) <= MANY


def _to_samples(file: Path, values: NDArray[np.generic]) -> tuple[Tensor, bool]:
    """Convert an array to samples, with bytes scaled to [0, 1]. Also return whether the samples are pixels."""
    if values.dtype == np.uint8:
        samples = torch.from_numpy(values.astype(np.float32) / 255)
    elif np.issubdtype(values.dtype, np.number) and not np.issubdtype(values.dtype, np.complexfloating):
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
        labels = torch.from_numpy(values.astype(np.int64))
        return labels, classes or max(2, int(labels.max()) + 1 if samples else 2)
    if not np.issubdtype(values.dtype, np.floating):
        raise corrupt(file, f"holds targets of type {values.dtype}", "whole numbers for classes, or floats")
    return torch.from_numpy(values.astype(np.float32)), None


def _numbers(column: list[str]) -> list[float] | None:
    """Convert a column of text to numbers. Return ``None`` if the column holds words."""
    try:
        return [float(value) for value in column]
    except ValueError:
        return None


def _numbers_or_codes(column: list[str]) -> list[float]:
    """Convert a column of text to numbers. A word becomes its index in the sorted list of the column's words."""
    numbers = _numbers(column)
    words = sorted(set(column))
    return numbers if numbers is not None else [float(words.index(word)) for word in column]


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
    return (float(given),) if isinstance(given, (int, float)) else tuple(float(value) for value in given)
