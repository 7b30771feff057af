"""The samples of an npz file, which are pictures, series or rows of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakgauge.core.errors import InvalidInput, UnknownName, shown
from leakgauge.data.formats import corrupt

Kind = Literal["picture", "series"]
KINDS: tuple[str, ...] = get_args(Kind)


class Samples(NamedTuple):
    """Samples and what they are.

    Args:
        values: The samples, (N, *shape). Pictures of bytes stay bytes.
        pixels: Whether the samples are pictures with values in [0, 1].
        time_axis: The dimension of a series along which time runs, or ``None`` if the samples are no series.
        notes: Sentences about how the array was read.
    """

    values: Tensor
    pixels: bool = False
    time_axis: int | None = None
    notes: tuple[str, ...] = ()


def to_samples(file: Path, values: NDArray[Any], kind: str | None = None, time_axis: int | None = None) -> Samples:
    """Convert an array to samples.

    Args:
        file: The path of the file, for error messages.
        values: The array.
        kind: ``"picture"`` or ``"series"``. By default, the type, the shape and the values decide.
        time_axis: The dimension of a series along which time runs. The default is the longer one.
    """
    if kind is not None and kind not in KINDS:
        raise UnknownName("kind of samples", kind, KINDS)
    if values.ndim == 0 or not values.size:
        raise corrupt(file, f"holds samples of shape {values.shape}", "at least one sample with a value")
    if not np.issubdtype(values.dtype, np.number) or np.issubdtype(values.dtype, np.complexfloating):
        raise corrupt(file, f"holds samples of type {values.dtype}", "bytes or numbers")
    if kind == "series" or (kind is None and _look_like_series(values)):
        return _series(file, values, time_axis, guessed=kind is None)
    if time_axis is not None:
        raise InvalidInput(f'{file}: time_axis is for series, but these are none. Add kind = "series", or leave it out')
    return _pictures_or_rows(file, values, kind)


def _look_like_series(values: NDArray[Any]) -> bool:
    """Return whether an array holds series, and no pictures of bytes, of values in [0, 1] or of equal sides."""
    if values.ndim != 3 or values.dtype == np.uint8 or values.shape[1] == values.shape[2]:
        return False
    return not bool((values >= 0).all() and (values <= 1).all())


def _series(file: Path, values: NDArray[Any], time_axis: int | None, *, guessed: bool) -> Samples:
    if values.ndim not in (2, 3):
        raise corrupt(file, f"holds samples of shape {values.shape}", "N x time x channels, or N x time, for series")
    shape = values.shape[1:]
    axis = int(np.argmax(shape)) if time_axis is None else time_axis
    if type(axis) is not int or not 0 <= axis < len(shape):
        raise InvalidInput(f"{file}: time_axis must be a dimension of one series, 0 or 1, not {shown(time_axis)}")
    channels = shape[1 - axis] if len(shape) == 2 else 1
    of_channels = f"{channels} channel{'s' * (channels != 1)}"
    order = " as (time, channels)" if axis == 0 else " as (channels, time)"
    note = f"{file.name}: samples are series of {shape[axis]} steps with {of_channels}{order * (len(shape) == 2)}."
    if guessed:
        note += ' If they are pictures, set kind = "picture".'
    return Samples(_numbers(values), time_axis=axis, notes=(note,))


def _pictures_or_rows(file: Path, values: NDArray[Any], kind: str | None) -> Samples:
    if values.dtype == np.uint8:
        samples = torch.from_numpy(values) if values.ndim in (3, 4) else _numbers(values / np.float32(255))
    else:
        samples = _numbers(values)
    if samples.dim() == 3:
        samples = samples.unsqueeze(1)
    elif samples.dim() == 4 and samples.shape[1] not in (1, 3) and samples.shape[-1] in (1, 3):
        samples = samples.permute(0, 3, 1, 2).contiguous()
    elif samples.dim() not in (2, 4) or (samples.dim() == 2 and kind == "picture"):
        expected = "N x height x width for pictures" if kind else "N x columns, or N x pictures or series"
        raise corrupt(file, f"holds samples of shape {values.shape}", expected)
    in_range = samples.dtype == torch.uint8 or (bool(samples.min() >= 0) and bool(samples.max() <= 1))
    pixels = samples.dim() == 4 and in_range
    notes: tuple[str, ...] = ()
    if kind is None and values.ndim == 3 and values.dtype != np.uint8 and values.shape[1] != values.shape[2]:
        notes = (f'{file.name}: samples are grey pictures. If they are series, set kind = "series".',)
    return Samples(samples, pixels, notes=notes)


def _numbers(values: NDArray[Any]) -> Tensor:
    with np.errstate(over="ignore"):  # a value that becomes infinite is refused later
        return torch.from_numpy(values.astype(np.float32))
