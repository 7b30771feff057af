"""The description of one sample: its shape, its classes and its normalisation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from leakgauge.core.checks import is_finite
from leakgauge.core.errors import InvalidInput, shown
from leakgauge.core.limits import CLASSES, LONGEST_NAME, MEAN, SIZE, STD, check_shape, check_text


@dataclass(frozen=True)
class DataSpec:
    """The shape of one sample, its target, and the normalisation of the model's inputs.

    Samples are stored without normalisation, as pixels in [0, 1] or as table values in their own units. The input of a
    model is ``(sample - mean) / std``.

    Args:
        shape: The shape of one sample, which is (channels, height, width) for an image and (columns,) for a row of a
            table.
        classes: The number of classes, or ``None`` for a regression.
        mean: The mean of the samples, as one number or as one number for each channel or column.
        std: The standard deviation of the samples, as one number or as one number for each channel or column.
        bounded: Whether all values lie in [0, 1], as pixels do.
        columns: The names of a table's columns. A name such as ``job=clerk`` marks a one-hot column of the feature
            ``job``.
    """

    shape: tuple[int, ...]
    classes: int | None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    bounded: bool = True
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("shape", "mean", "std", "columns"):
            values = getattr(self, name)
            if not isinstance(values, (tuple, list)):
                raise InvalidInput(f"{name} must be a tuple, not {shown(values)}")
            object.__setattr__(self, name, tuple(values))
        self._check_shape()
        self._check_statistics()
        if not isinstance(self.bounded, bool):
            raise InvalidInput(f"bounded must be True or False, not {shown(self.bounded)}")
        if self.columns and len(self.columns) != self.shape[0]:
            raise InvalidInput(f"{len(self.columns)} column names for {self.shape[0]} columns")
        if not all(isinstance(column, str) for column in self.columns):
            raise InvalidInput(f"column names must be texts, not {shown(self.columns)}")
        for column in self.columns:
            check_text("the name of a column", column, LONGEST_NAME)

    def _check_shape(self) -> None:
        """Check ``shape`` and ``classes``, and convert both to plain integers, so that they can be saved as JSON."""
        if not self.shape:
            raise InvalidInput("a sample's shape must have at least one size, such as (columns,)")
        sizes = tuple(int(SIZE.checked("each size of a sample's shape", size)) for size in self.shape)
        check_shape(sizes)
        object.__setattr__(self, "shape", sizes)
        if self.classes is not None:
            classes = int(CLASSES.checked("classes (None for a regression)", self.classes))
            object.__setattr__(self, "classes", classes)

    def _check_statistics(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.shape[0]):
                raise InvalidInput(
                    f"{name} has {len(values)} values. Give one value, or one for each of the {self.shape[0]} "
                    f"{'channels' if self.is_image else 'columns'}."
                )
            if not all(is_finite(value) for value in values):
                raise InvalidInput(f"{name} must be finite numbers, not {shown(values)}")
        if any(value <= 0 for value in self.std):
            raise InvalidInput(f"std must be positive, not {shown(self.std)}. Use 1 for a constant column.")
        for name, limit in (("mean", MEAN), ("std", STD)):
            for value in getattr(self, name):
                limit.checked(name, value)

    @property
    def is_image(self) -> bool:
        """Whether a sample is an image of shape (channels, height, width)."""
        return len(self.shape) == 3

    @property
    def one_hot_groups(self) -> dict[str, list[int]]:
        """The indices of the columns that are named ``feature=value``, grouped by feature.

        >>> DataSpec((3,), 2, bounded=False, columns=("age", "sex=f", "sex=m")).one_hot_groups
        {'sex': [1, 2]}
        """
        groups: dict[str, list[int]] = {}
        for column, name in enumerate(self.columns):
            feature, separator, _ = name.partition("=")
            if separator:
                groups.setdefault(feature, []).append(column)
        return groups

    def _statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        shape = (-1,) + (1,) * (len(self.shape) - 1)
        return like.new_tensor(self.mean).reshape(shape), like.new_tensor(self.std).reshape(shape)

    def normalise(self, samples: Tensor) -> Tensor:
        """Convert samples to inputs of the model. Return ``(samples - mean) / std``."""
        mean, std = self._statistics(samples)
        return (samples - mean) / std

    def denormalise(self, inputs: Tensor) -> Tensor:
        """Convert inputs of the model back to samples. Return ``inputs * std + mean``."""
        mean, std = self._statistics(inputs)
        return inputs * std + mean
