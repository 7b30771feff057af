"""The description of one sample: its shape, its classes and its normalisation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from leakgauge.core.checks import is_finite
from leakgauge.core.errors import InvalidInput, shown
from leakgauge.core.limits import CLASSES, LONGEST_NAME, MEAN, SIZE, STD, check_shape, check_text


class NotSaid(tuple[float, ...]):
    """A default of :class:`DataSpec` that nobody has stated. It equals the plain tuple of its values."""

    __slots__ = ()


@dataclass(frozen=True)
class DataSpec:
    """The shape of one sample, its target, and the normalisation of the model's inputs.

    Samples are stored without normalisation, as pixels in [0, 1] or as table values in their own units. The input of a
    model is ``(sample - mean) / std``. Without ``mean`` and ``std``, the inputs are the samples themselves.

    Recorders of real federations refuse a description without ``mean`` and ``std``, because a wrong normalisation makes
    attacks fail. For them, state ``mean=(0,), std=(1,)`` if the app does not normalise.

    Args:
        shape: The shape of one sample, which is (channels, height, width) for an image and (columns,) for a row of a
            table. A series is (time, channels), (channels, time) or (time,).
        classes: The number of classes, if the target of a sample is one class. ``None`` for all other targets, such as
            the numbers of a regression, several labels, or a mask.
        mean: The mean of the samples, as one number or as one number for each channel or column.
        std: The standard deviation of the samples, as one number or as one number for each channel or column.
        bounded: Whether all values lie in [0, 1], as pixels do.
        columns: The names of a table's columns. A name such as ``job=clerk`` marks a one-hot column of the feature
            ``job``.
        target_shape: The shape of one target, which is () for one class or number, (labels,) for several labels, and
            (height, width) for a mask.
        target_values: The number of values that each entry of a target can have, if ``classes`` is ``None``. It is 2
            for several yes-or-no labels and for masks of one object, and the number of classes for masks of several
            objects. ``None`` means that the entries are numbers.
        time_axis: The dimension of a series along which time runs, which is 0 for (time, channels) and for (time,), and
            1 for (channels, time). ``None`` for all other samples.
    """

    shape: tuple[int, ...]
    classes: int | None
    mean: tuple[float, ...] = NotSaid((0.0,))
    std: tuple[float, ...] = NotSaid((1.0,))
    bounded: bool = True
    columns: tuple[str, ...] = ()
    target_shape: tuple[int, ...] = ()
    target_values: int | None = None
    time_axis: int | None = None

    def __post_init__(self) -> None:
        for name in ("shape", "mean", "std", "columns", "target_shape"):
            values = getattr(self, name)
            if not isinstance(values, (tuple, list)):
                raise InvalidInput(f"{name} must be a tuple, not {shown(values)}")
            if not isinstance(values, NotSaid):
                object.__setattr__(self, name, tuple(values))
        self._check_shape()
        self._check_time()
        self._check_targets()
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

    def _check_time(self) -> None:
        """Check ``time_axis``, which only series of one or several channels have."""
        valid = {1: (0,), 2: (0, 1)}.get(len(self.shape), ())
        if self.time_axis is None or (type(self.time_axis) is int and self.time_axis in valid):
            return
        raise InvalidInput(
            f"time_axis must be 0 for series of shape (time, channels) or (time,), and 1 for (channels, time), not "
            f"{shown(self.time_axis)} for samples of shape {self.shape}"
        )

    def _check_targets(self) -> None:
        """Check ``target_shape`` and ``target_values``, and convert both to plain integers."""
        sizes = tuple(int(SIZE.checked("each size of a target's shape", size)) for size in self.target_shape)
        check_shape(sizes)
        object.__setattr__(self, "target_shape", sizes)
        if self.target_values is not None:
            values = int(CLASSES.checked("target_values (None for numbers)", self.target_values))
            object.__setattr__(self, "target_values", values)
        if self.classes is not None and (sizes or self.target_values is not None):
            raise InvalidInput(
                "classes are for one class of each sample. For several labels or masks, set classes=None and "
                "target_values to the number of values of each entry."
            )

    def _check_statistics(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.channels):
                raise InvalidInput(
                    f"{name} has {len(values)} values. Give one value, or one for each of the {self.channels} "
                    f"{'columns' if len(self.shape) == 1 else 'channels'}."
                )
            if not all(is_finite(value) for value in values):
                raise InvalidInput(f"{name} must be finite numbers, not {shown(values)}")
        if any(value <= 0 for value in self.std):
            raise InvalidInput(f"std must be positive, not {shown(self.std)}. Use 1 for a constant column.")
        for name, limit in (("mean", MEAN), ("std", STD)):
            for value in getattr(self, name):
                limit.checked(name, value)

    @property
    def says_normalisation(self) -> bool:
        """Whether ``mean`` and ``std`` were stated. Otherwise, they are the defaults 0 and 1.

        >>> DataSpec((1, 8, 8), 10).says_normalisation, DataSpec((1, 8, 8), 10, (0,), (1,)).says_normalisation
        (False, True)
        """
        return not isinstance(self.mean, NotSaid) and not isinstance(self.std, NotSaid)

    @property
    def is_image(self) -> bool:
        """Whether a sample is an image of shape (channels, height, width)."""
        return len(self.shape) == 3

    @property
    def is_series(self) -> bool:
        """Whether a sample is a series in time, of one or of several channels."""
        return self.time_axis is not None

    @property
    def channels(self) -> int:
        """The number of channels or columns, each of which may have its own mean and standard deviation."""
        if self.time_axis is not None and len(self.shape) == 1:
            return 1
        return self.shape[self._channel_axis]

    @property
    def _channel_axis(self) -> int:
        """The dimension of a sample that counts its channels or columns."""
        return 1 if self.time_axis == 0 and len(self.shape) > 1 else 0

    @property
    def outputs(self) -> int:
        """The number of outputs, or of output channels, that a model for these targets usually has.

        >>> DataSpec((3, 8, 8), None, target_shape=(8, 8), target_values=4).outputs
        4
        """
        if self.classes is not None:
            return self.classes
        if self.target_values is not None and self.target_values > 2:
            return self.target_values
        return self.target_shape[0] if len(self.target_shape) in (1, 3) else 1

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

    def statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the standard deviation, in shapes that fit a sample.

        Args:
            like: A tensor with the precision and the device of the result.
        """
        shape = [1] * len(self.shape)
        shape[self._channel_axis] = -1
        return like.new_tensor(self.mean).reshape(shape), like.new_tensor(self.std).reshape(shape)

    def normalise(self, samples: Tensor) -> Tensor:
        """Convert samples to inputs of the model. Return ``(samples - mean) / std``."""
        mean, std = self.statistics(samples)
        return (samples - mean) / std

    def denormalise(self, inputs: Tensor) -> Tensor:
        """Convert inputs of the model back to samples. Return ``inputs * std + mean``."""
        mean, std = self.statistics(inputs)
        return inputs * std + mean
