"""Data of your own: a folder of pictures, an npz file, a CSV table, or a function that returns a dataset.

Samples are kept as a person sees them. The mean and deviation that lead to the model's inputs are the data's own,
unless others are given: ``mean=0, std=1`` for a model that takes samples as they are.
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

from leakgauge.core.errors import FileError, InvalidInput, UnknownName
from leakgauge.core.observation import DataSpec
from leakgauge.data.dataset import Dataset
from leakgauge.data.formats import corrupt, read_bytes, reading

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
Statistic = float | Sequence[float] | None
#: Whole numbers with more different values than this are a quantity, not classes.
MANY = 100


def from_images(
    folder: str | Path,
    *,
    size: Sequence[int] | None = None,
    grey: bool = False,
    mean: Statistic = None,
    std: Statistic = None,
) -> Dataset:
    """A folder with one folder of pictures a class; the classes are numbered in the order of their names.

    Pictures must have one size, unless ``size = [height, width]`` is given, to which they are scaled.
    """
    from PIL import Image

    root = Path(folder)
    if not root.is_dir():
        raise FileError(f"{root}: there is no such folder of pictures")
    classes = sorted(path for path in root.iterdir() if path.is_dir())
    files = [(path, label) for label, one in enumerate(classes) for path in _pictures(one)]
    if not files:
        loose = " (there are pictures, but in no folder of their class)" if _pictures(root) else ""
        raise FileError(f"{root}: holds no pictures in folders named by their class, such as {root}/cat/1.png{loose}")
    pictures = []
    for path, _ in files:
        with reading(path, "a picture"):
            image = Image.open(io.BytesIO(path.read_bytes())).convert("L" if grey else "RGB")
        if size is not None:
            image = image.resize((int(size[1]), int(size[0])), Image.Resampling.BICUBIC)
        pixels = np.asarray(image, dtype=np.float32) / 255
        pictures.append(pixels[None] if grey else pixels.transpose(2, 0, 1))
        if pictures[-1].shape != pictures[0].shape:
            raise InvalidInput(
                f"{path}: is {_of(pictures[-1])}, {files[0][0].name} {_of(pictures[0])}; "
                "give size = [height, width] to scale all to"
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
    """An npz file with two plain arrays, the samples and their targets.

    Samples are pictures (N x height x width, with colours first or last), of bytes or of numbers in [0, 1]; or rows of
    a table (N x columns). Whole numbers as targets are classes, others a regression.
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
            samples, labels = archive[inputs], archive[targets]
    if len(samples) == 0:
        raise corrupt(file, "holds no samples", "at least one")
    values, bounded = _as_samples(file, samples)
    found, number = _as_targets(file, labels, len(values), classes)
    return Dataset(values, found, _spec(values, number, bounded=bounded, mean=mean, std=std), name=file.stem)


def from_csv(
    path: str | Path,
    *,
    target: str,
    sensitive: str | None = None,
    regression: bool | None = None,
    mean: Statistic = None,
    std: Statistic = None,
) -> Dataset:
    """A table with a header. Columns of numbers stay, those of words become one column a word, 0 or 1.

    The ``target`` is a class if it holds words or few different whole numbers, unless ``regression`` says otherwise.
    ``sensitive`` names the column that an attribute attack is after: numbers 0 and 1, or two words.
    """
    file = Path(path)
    text = read_bytes(file, "a CSV table with a header")
    with reading(file, "a CSV table with a header"):
        rows = list(csv.reader(io.StringIO(text.decode("utf-8-sig"))))
    if len(rows) < 2:
        raise corrupt(file, f"holds {len(rows)} lines", "a header and at least one row")
    head, body = [name.strip() for name in rows[0]], [row for row in rows[1:] if row]
    for line, row in enumerate(body, 2):
        if len(row) != len(head):
            raise corrupt(file, f"line {line} has {len(row)} values", f"{len(head)}, one for each column of the header")
    table = {name: [row[place].strip() for row in body] for place, name in enumerate(head)}
    for name, column in table.items():
        if "" in column:
            raise InvalidInput(f"{file}: line {column.index('') + 2} has no {name!r}; fill it in, or leave the row out")
    for what, chosen in (("target", target), ("sensitive", sensitive)):
        if chosen is not None and chosen not in table:
            raise UnknownName(f"column in {file} for {what}", chosen, head)
    if sensitive == target:
        raise InvalidInput(f"{file}: {target!r} cannot be both the target and the sensitive column")
    labels = np.array(_encoded(table.pop(target)))
    if not table:
        raise InvalidInput(f"{file}: there is no column beside the target {target!r}")
    columns: dict[str, list[float]] = {}
    for name, column in table.items():
        numbers = _numbers(column)
        words = sorted(set(column))
        if numbers is not None:
            columns[name] = numbers
        elif name == sensitive and len(words) == 2:
            columns[name] = [float(word == words[1]) for word in column]
        else:
            columns |= {f"{name}={word}": [float(one == word) for one in column] for word in words}
    if sensitive is not None and (sensitive not in columns or set(columns[sensitive]) - {0.0, 1.0}):
        raise InvalidInput(f"{file}: the sensitive column {sensitive!r} must hold 0 and 1, or two words")
    values = torch.tensor(list(columns.values()), dtype=torch.float32).T.contiguous()
    whole = regression is not True and bool(np.all(labels == np.round(labels)))
    few = whole and (regression is False or len(np.unique(labels)) <= MANY)
    found, number = _as_targets(file, labels.astype(np.int64 if few else np.float32), len(values), None)
    spec = _spec(values, number, bounded=False, mean=mean, std=std, columns=tuple(columns))
    return Dataset(values, found, spec, name=file.stem, sensitive=sensitive)


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES)


def _of(picture: NDArray[Any]) -> str:
    return f"{picture.shape[1]} x {picture.shape[2]} pixels"


def _as_samples(file: Path, values: NDArray[np.generic]) -> tuple[Tensor, bool]:
    """Samples as a person sees them, and whether they are pixels."""
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


def _as_targets(file: Path, values: NDArray[np.generic], count: int, classes: int | None) -> tuple[Tensor, int | None]:
    if values.shape != (count,):
        raise corrupt(file, f"holds targets of shape {tuple(values.shape)}", f"one for each of {count} samples")
    if np.issubdtype(values.dtype, np.integer) or values.dtype == np.bool_:
        found = torch.from_numpy(values.astype(np.int64))
        return found, classes or max(2, int(found.max()) + 1 if count else 2)
    if not np.issubdtype(values.dtype, np.floating):
        raise corrupt(file, f"holds targets of type {values.dtype}", "whole numbers for classes, or floats")
    return torch.from_numpy(values.astype(np.float32)), None


def _numbers(column: list[str]) -> list[float] | None:
    try:
        return [float(value) for value in column]
    except ValueError:
        return None


def _encoded(column: list[str]) -> list[float]:
    """Numbers as they are; words by their place in the order of all words."""
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
    """The description of samples, with the data's own statistics where none are given."""
    if not bool(inputs.isfinite().all()):
        raise InvalidInput("samples hold NaN or Inf; clean or impute them first")
    shape = tuple(inputs.shape[1:])
    along = [dimension for dimension in range(inputs.dim()) if dimension != 1]
    means, spreads = inputs.double().mean(along), inputs.double().std(along, correction=0)
    spreads[spreads == 0] = 1
    return DataSpec(
        shape,
        classes,
        _given(mean, means),
        _given(std, spreads),
        bounded=bounded,
        columns=columns,
    )


def _given(value: Statistic, own: Tensor) -> tuple[float, ...]:
    if value is None:
        return tuple(own.tolist())
    return (float(value),) if isinstance(value, (int, float)) else tuple(float(one) for one in value)
