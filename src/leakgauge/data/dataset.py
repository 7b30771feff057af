"""Samples with their targets, and how to take a client's share of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples as a person sees them (``spec`` says how the model wants them) and their targets.

    ``groups`` names the natural owner of each row (a writer, a person). ``sensitive`` is the column that an
    attribute attack is after. A client's share, made by :meth:`share`, remembers what it was taken from:
    the other samples there are what its chance level is computed with.
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

    def __post_init__(self) -> None:
        if tuple(self.inputs.shape[1:]) != self.spec.shape:
            raise InvalidInput(
                f"{self.name}: samples have shape {tuple(self.inputs.shape[1:])}, described as {self.spec.shape}"
            )
        if len(self.targets) != len(self.inputs):
            raise InvalidInput(f"{self.name}: {len(self.inputs)} samples but {len(self.targets)} targets")
        if not self.inputs.is_floating_point():
            raise InvalidInput(f"{self.name}: samples must be floats (pixels in [0, 1]), not {self.inputs.dtype}")
        if self.population is not None:
            return  # a share of samples that were checked already
        if not bool(torch.isfinite(self.inputs).all()):
            raise InvalidInput(f"{self.name}: samples hold NaN or Inf; clean or impute them first")
        if self.spec.bounded and len(self) and (self.inputs.min() < 0 or self.inputs.max() > 1):
            raise InvalidInput(
                f"{self.name}: pixels must lie in [0, 1], found {float(self.inputs.min()):g} to "
                f"{float(self.inputs.max()):g}; divide by 255, or describe the data with bounded=False"
            )
        if self.spec.classes is not None and len(self):
            if self.targets.is_floating_point():
                raise InvalidInput(f"{self.name}: class labels must be whole numbers, not {self.targets.dtype}")
            if int(self.targets.min()) < 0 or int(self.targets.max()) >= self.spec.classes:
                raise InvalidInput(
                    f"{self.name}: labels run from {int(self.targets.min())} to {int(self.targets.max())}, "
                    f"but there are {self.spec.classes} classes"
                )

        self._check_groups()
        if self.sensitive is not None and self.sensitive not in self.spec.columns:
            raise InvalidInput(
                f"{self.name}: the sensitive column {self.sensitive!r} is not among the columns "
                f"({', '.join(self.spec.columns) or 'the spec names none'})"
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
            raise InvalidInput(f"{self.name}: groups count from 0; found {first}")
        if names and last >= names:
            raise InvalidInput(f"{self.name}: there is a group {last}, but {names} group names")

    def __len__(self) -> int:
        return len(self.inputs)

    def share(self, rows: Sequence[int] | Tensor, name: str | None = None) -> Dataset:
        """The given rows as a client's share, which knows the rest as its population."""
        index = torch.as_tensor(rows, dtype=torch.long)
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= len(self)):
            raise InvalidInput(
                f"{self.name} has rows 0 to {len(self) - 1}; asked for {int(index.min())} to {int(index.max())}"
            )
        origin, origin_rows = (self, index) if self.rows is None else (self.population, self.rows[index])
        return Dataset(
            self.inputs[index],
            self.targets[index],
            self.spec,
            name or self.name,
            None if self.groups is None else self.groups[index],
            self.group_names,
            self.sensitive,
            origin,
            origin_rows,
        )

    def others(self, limit: int = 512, seed: int = 0) -> Dataset | None:
        """Up to ``limit`` samples of the population outside this share; ``None`` if there are none."""
        if self.population is None or self.rows is None:
            return None
        outside = torch.ones(len(self.population), dtype=torch.bool)
        outside[self.rows] = False
        rows = outside.nonzero().flatten()
        if not len(rows):
            return None
        chosen = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:limit]]
        return self.population.share(chosen.sort().values)
