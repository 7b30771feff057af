r"""The kinds of targets that an attack can optimise, and the free variables that stand for them.

An attack that cannot read the targets off the message optimises them beside the samples. The variables :math:`z` are
free numbers. A head turns them into targets that the loss accepts and that can be differentiated:

===================  =======================================================================  =====================
head                 targets                                                                  from
===================  =======================================================================  =====================
:class:`Classes`     :math:`\mathrm{softmax}(z)`, the probabilities of the sample's classes   DLG, Zhu et al. 2019
:class:`OneHot`      the same, where the client's own targets are rows of probabilities       as above
:class:`Places`      the same in each place of a mask                                         ours
:class:`YesNo`       :math:`\sigma(z)`, the probability of each label, or of each pixel       ours
:class:`Numbers`     :math:`c + s\,z`, with a centre and a scale from the message             ours
===================  =======================================================================  =====================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Head(Protocol):
    """A kind of targets, and the free variables that stand for them."""

    @property
    def variables(self) -> tuple[int, ...]:
        """The shape of the variables of one sample."""

    @property
    def shared(self) -> tuple[int, ...]:
        """The shape of the variables that are read from the message, which are equal in all places of a mask."""

    def targets(self, variables: Tensor) -> Tensor:
        """Return the targets for the loss, which can be differentiated.

        Args:
            variables: The variables of all samples.
        """
        ...

    def decided(self, variables: Tensor) -> Tensor:
        """Return the targets in the form of the client's own targets, such as classes instead of probabilities.

        Args:
            variables: The variables of all samples.
        """
        ...


@dataclass(frozen=True)
class Classes:
    """One class of each sample. The variables are its logits.

    Args:
        classes: The number of classes.
    """

    classes: int

    @property
    def variables(self) -> tuple[int, ...]:
        """The shape of the variables of one sample."""
        return (self.classes,)

    @property
    def shared(self) -> tuple[int, ...]:
        """The shape of the variables that are read from the message."""
        return (self.classes,)

    def targets(self, variables: Tensor) -> Tensor:
        """Return the probabilities of the classes."""
        return variables.softmax(-1)

    def decided(self, variables: Tensor) -> Tensor:
        """Return the most likely classes."""
        return variables.argmax(-1)


@dataclass(frozen=True)
class OneHot(Classes):
    """One class of each sample, where the client's own targets are rows with a single 1."""

    def decided(self, variables: Tensor) -> Tensor:
        """Return rows with a 1 at the most likely class."""
        return torch.nn.functional.one_hot(variables.argmax(-1), self.classes).to(variables.dtype)


@dataclass(frozen=True)
class Places:
    """One class in each place of a mask. The variables are its logits, with the classes in the first dimension.

    Args:
        classes: The number of classes.
        shape: The shape of the mask.
    """

    classes: int
    shape: tuple[int, ...]

    @property
    def variables(self) -> tuple[int, ...]:
        """The shape of the variables of one sample."""
        return (self.classes, *self.shape)

    @property
    def shared(self) -> tuple[int, ...]:
        """The shape of the variables that are read from the message. All places have the same classes."""
        return (self.classes, *[1] * len(self.shape))

    def targets(self, variables: Tensor) -> Tensor:
        """Return the probabilities of the classes, (samples, classes, places), as cross-entropy takes them."""
        return variables.softmax(1)

    def decided(self, variables: Tensor) -> Tensor:
        """Return the most likely class in each place."""
        return variables.argmax(1)


@dataclass(frozen=True)
class YesNo:
    """Labels of 0 and 1, such as several labels of a sample or the mask of one object. The variables are logits.

    Args:
        shape: The shape of one target.
    """

    shape: tuple[int, ...]

    @property
    def variables(self) -> tuple[int, ...]:
        """The shape of the variables of one sample."""
        return self.shape

    @property
    def shared(self) -> tuple[int, ...]:
        """The shape of the variables that are read from the message. All places of a mask have the same value."""
        return _shared(self.shape)

    def targets(self, variables: Tensor) -> Tensor:
        """Return the probabilities of the labels."""
        return variables.sigmoid()

    def decided(self, variables: Tensor) -> Tensor:
        """Return 1 for each label that is more likely than not, and 0 for the others."""
        return (variables > 0).to(variables.dtype)


@dataclass(frozen=True, eq=False)
class Numbers:
    """The numbers of a regression. The variables are numbers with a common centre and scale.

    Args:
        shape: The shape of one target.
        centre: The value of a variable of 0, in the units of the targets.
        scale: The size of one unit of the variables, in the units of the targets.
    """

    shape: tuple[int, ...]
    centre: Tensor | float = 0.0
    scale: Tensor | float = 1.0

    @property
    def variables(self) -> tuple[int, ...]:
        """The shape of the variables of one sample."""
        return self.shape

    @property
    def shared(self) -> tuple[int, ...]:
        """The shape of the variables that are read from the message."""
        return _shared(self.shape)

    def targets(self, variables: Tensor) -> Tensor:
        """Return the numbers."""
        return self.centre + self.scale * variables

    def decided(self, variables: Tensor) -> Tensor:
        """Return the numbers."""
        return self.targets(variables)


def _shared(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of values that are equal in all places of a mask. Several labels or channels keep their own."""
    if len(shape) < 2:
        return shape
    return (1, 1) if len(shape) == 2 else (shape[0], *[1] * (len(shape) - 1))
