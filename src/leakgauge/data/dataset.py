"""The class for a dataset, and for the part of a dataset that one client holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import InvalidInput

#: The number of different whole numbers above which the entries of a target are numbers and not classes.
MOST_VALUES = 256


class _Samples:
    """The samples of a dataset. Pictures of bytes are kept as bytes, and become floats when they are asked for."""

    def __get__(self, dataset: Dataset | None, owner: type[Dataset]) -> Tensor:
        if dataset is None:
            raise AttributeError("inputs")
        stored: Tensor = dataset.__dict__["inputs"]
        return stored.float().div_(255) if stored.dtype == torch.uint8 else stored

    def __set__(self, dataset: Dataset, value: Tensor) -> None:
        dataset.__dict__["inputs"] = value


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and their targets, either of a whole dataset or of one client.

    :meth:`share` makes the dataset of a client, which holds some samples of this dataset. The larger dataset is the
    client's population. The client's chance level is computed from the population's other samples.

    Args:
        inputs: The samples without normalisation, as pixels in [0, 1] or as table values in their own units. Pictures
            may be given as bytes (``torch.uint8``). They are kept as bytes, which takes a quarter of the memory, and
            ``inputs`` and the datasets of clients return them as pixels.
        targets: One target for each sample, which is the index of a class, one or several numbers, several labels of 0
            and 1, or a mask.
        spec: The shape and the normalisation of one sample. If it has no classes and does not describe the targets,
            their shape and the number of their values are added to it.
        name: The name of the dataset or of the client.
        groups: For each sample, the index of the person or device that it belongs to, such as the writer of a digit.
        group_names: The names of these people or devices, in the order of the indices in ``groups``.
        sensitive: The name of the column that attribute inference tries to recover.
        population: The larger dataset from which the samples of a client were taken. :meth:`share` sets it.
        rows: The indices of the client's samples in ``population``. :meth:`share` sets it.
        target: The name of what a model predicts.
        words: A dictionary from the name of the target, or of a table's column, to the words for its values 0, 1 and so
            on.
        notes: Sentences about how the data was read, such as the types of a table's columns.
    """

    inputs: Tensor
    targets: Tensor
    spec: DataSpec
    name: str = "data"
    groups: Tensor | None = None
    group_names: tuple[str, ...] = ()
    sensitive: str | None = None
    population: Dataset | None = field(default=None, repr=False)
    rows: Tensor | None = field(default=None, repr=False)
    target: str = "target"
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for name in ("inputs", "targets"):
            object.__setattr__(self, name, self._checked_tensor(name))
        stored = self._stored
        if tuple(stored.shape[1:]) != self.spec.shape:
            raise InvalidInput(
                f"{self.name}: samples have shape {tuple(stored.shape[1:])}, not {self.spec.shape} as described"
            )
        if len(self.targets) != len(stored):
            raise InvalidInput(f"{self.name}: {len(stored)} samples but {len(self.targets)} targets")
        bytes_of_pictures = stored.dtype == torch.uint8 and self.spec.is_image and self.spec.bounded
        if not stored.is_floating_point() and not bytes_of_pictures:
            raise InvalidInput(
                f"{self.name}: samples must be floats (pixels in [0, 1]), not {stored.dtype}. "
                "Convert token ids and other whole numbers with inputs.float(), and round them in the model"
            )
        if self.targets.is_complex() or (len(self) and not self.targets.numel()):
            raise InvalidInput(f"{self.name}: each sample needs a target, which is a class or real numbers")
        if self.targets.shape[1:].numel() > 0 and self.targets.dim() > 1 and not self.spec.target_shape:
            object.__setattr__(self, "spec", self._spec_with_targets())
        if self.population is not None:
            return  # the samples of a share were checked when the population was made
        self._check_values()
        self._check_classes()
        self._check_groups()
        if self.sensitive is not None and self.sensitive not in self.spec.columns:
            raise InvalidInput(
                f"{self.name}: the sensitive column {self.sensitive!r} is not among the columns "
                f"({', '.join(self.spec.columns) or 'the spec names none'})"
            )

    @property
    def _stored(self) -> Tensor:
        """The samples as they are kept, which may be bytes."""
        stored: Tensor = self.__dict__["inputs"]
        return stored

    def _checked_tensor(self, name: str) -> Tensor:
        """Return the samples or the targets without a gradient, if they are a plain tensor with values."""
        value = self.__dict__[name]
        if not isinstance(value, Tensor):
            raise InvalidInput(f"{self.name}: {name} must be a torch.Tensor, not {type(value).__name__}")
        if value.is_meta or value.layout != torch.strided:
            kind = "on the device meta" if value.is_meta else "sparse"
            raise InvalidInput(f"{self.name}: {name} must be a dense tensor with values, but it is {kind}")
        if value.dim() == 0:
            raise InvalidInput(f"{self.name}: {name} must have one entry for each sample, but it is a single number")
        return value.detach()

    def _spec_with_targets(self) -> DataSpec:
        """Return the description of the data with the shape and the number of values of the targets."""
        if self.spec.classes is not None:
            raise InvalidInput(
                f"{self.name}: targets have shape {tuple(self.targets.shape)}, but classes are one for each sample. "
                "Set classes=None for several labels or masks"
            )
        values = self.spec.target_values or values_of(self.targets)
        return replace(self.spec, target_shape=tuple(self.targets.shape[1:]), target_values=values)

    def _check_values(self) -> None:
        if self.targets.is_floating_point() and not bool(torch.isfinite(self.targets).all()):
            raise InvalidInput(f"{self.name}: targets hold NaN or Inf. Clean or impute them first.")
        stored = self._stored
        if stored.dtype == torch.uint8:
            return
        if not bool(torch.isfinite(stored).all()):
            raise InvalidInput(f"{self.name}: samples hold NaN or Inf. Clean or impute them first.")
        if self.spec.bounded and len(self) and (stored.min() < 0 or stored.max() > 1):
            raise InvalidInput(
                f"{self.name}: pixels must lie in [0, 1], but run from {float(stored.min()):g} to "
                f"{float(stored.max()):g}. Divide by 255, or describe the data with bounded=False."
            )

    def _check_classes(self) -> None:
        if self.spec.classes is None or not len(self):
            return
        if self.spec.classes < 2:
            raise InvalidInput(f"{self.name}: there is one class, so there is nothing to tell apart. Give at least two")
        if self.targets.is_floating_point() or self.targets.dtype == torch.bool:
            raise InvalidInput(f"{self.name}: class labels must be whole numbers, not {self.targets.dtype}")
        if int(self.targets.min()) < 0 or int(self.targets.max()) >= self.spec.classes:
            raise InvalidInput(
                f"{self.name}: labels run from {int(self.targets.min())} to {int(self.targets.max())}, "
                f"but there are {self.spec.classes} classes"
            )

    def _check_groups(self) -> None:
        if self.groups is None:
            return
        if self.groups.shape != (len(self),) or self.groups.is_floating_point():
            raise InvalidInput(f"{self.name}: groups must be one whole number for each of {len(self)} samples")
        if not len(self):
            return
        first, last, names = int(self.groups.min()), int(self.groups.max()), len(self.group_names)
        if first < 0:
            raise InvalidInput(f"{self.name}: groups must count from 0, but the smallest is {first}")
        if names and last >= names:
            raise InvalidInput(f"{self.name}: there is a group {last}, but {names} group names")

    def __len__(self) -> int:
        return len(self._stored)

    def share(self, rows: Sequence[int] | Tensor, name: str | None = None) -> Dataset:
        """Return the dataset of one client, which holds some samples of this dataset.

        Args:
            rows: The indices of the client's samples in this dataset.
            name: The name of the client. The default is the name of this dataset.
        """
        index = torch.as_tensor(rows, dtype=torch.long)
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= len(self)):
            raise InvalidInput(
                f"{self.name} has rows 0 to {len(self) - 1}, but rows {int(index.min())} to {int(index.max())} "
                "were requested"
            )
        origin, origin_rows = (self, index) if self.rows is None else (self.population, self.rows[index])
        return Dataset(
            self._stored[index],
            self.targets[index],
            self.spec,
            name or self.name,
            None if self.groups is None else self.groups[index],
            self.group_names,
            self.sensitive,
            origin,
            origin_rows,
            self.target,
            self.words,
        )

    def others(self, limit: int = 512, seed: int = 0) -> Dataset | None:
        """Return samples of the client's population that the client does not hold, or ``None`` if there are none.

        The population is the larger dataset from which the client's samples were taken.

        Args:
            limit: The largest number of samples to return. If there are more, ``limit`` of them are drawn at random.
            seed: The seed of the random draw.
        """
        if self.population is None or self.rows is None:
            return None
        outside = torch.ones(len(self.population), dtype=torch.bool)
        outside[self.rows] = False
        rows = outside.nonzero().flatten()
        if not len(rows):
            return None
        chosen = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:limit]]
        return self.population.share(chosen.sort().values)


Dataset.inputs = _Samples()  # type: ignore[assignment]  # a descriptor that returns tensors


def values_of(targets: Tensor) -> int | None:
    """Return the number of values that each entry of the targets can have, or ``None`` if the entries are numbers.

    Whole numbers below :data:`MOST_VALUES` are classes, and floats of 0 and 1 only are labels.

    >>> values_of(torch.tensor([[0, 3], [1, 0]])), values_of(torch.tensor([[0.0, 1.0]])), values_of(torch.ones(1) / 2)
    (4, 2, None)

    Args:
        targets: The targets of all samples.
    """
    if not targets.numel():
        return None
    if targets.dtype == torch.bool:
        return 2
    low, high = targets.min().item(), targets.max().item()
    if targets.is_floating_point():
        return 2 if bool(((targets == 0) | (targets == 1)).all()) else None
    return max(2, int(high) + 1) if low >= 0 and high < MOST_VALUES else None
