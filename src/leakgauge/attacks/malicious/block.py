"""A block with traps that a malicious server adds to an architecture, in the way of Fowl et al. 2022.

A server that chooses the architecture needs no place for traps in the model of the clients. It adds a block of two
dense layers between the sample and the outputs. The block sees the sample itself, so that nothing has to pass it on.
For one gradient, its share of the outputs is small, so that the loss and the accuracy stay as they were.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from leakgauge.attacks.analytic.dense import DoesNotFit
from leakgauge.attacks.malicious.layout import dummies, size_of
from leakgauge.core.checks import whole_number
from leakgauge.core.seeding import seeded

#: The number of traps of a block.
UNITS = 1024


class AddedBlock(nn.Module):
    """A model with a block of traps beside it, whose outputs are added. See :func:`with_added_block`.

    Args:
        model: The honest model.
        shape: The shape of one sample.
        outputs: The shape of the model's outputs for one sample.
        units: The number of traps.
        factor: The factor of the samples that the traps see.
    """

    def __init__(
        self, model: nn.Module, shape: tuple[int, ...], outputs: tuple[int, ...], units: int, factor: float
    ) -> None:
        super().__init__()
        self.outputs, self.factor = outputs, factor
        self.rows = nn.Linear(size_of(shape), units)
        self.activation = nn.ReLU()
        self.back = nn.Linear(units, size_of(outputs))
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the model, and those of the block added to them."""
        added = self.back(self.activation(self.rows(self.factor * inputs.flatten(1))))
        outputs: Tensor = self.model(inputs)
        both: Tensor = outputs + added.reshape(-1, *self.outputs)
        return both


def with_added_block(
    model: nn.Module, shape: tuple[int, ...], *, units: int = UNITS, factor: float = 1.0, seed: int = 0
) -> AddedBlock:
    """Return a copy of a model with a block of traps beside it. Its weights are then planted by :func:`.plant.plant`.

    Args:
        model: The honest model. It must return one tensor.
        shape: The shape of one sample.
        units: The number of traps.
        factor: The factor of the samples that the traps see. A small one keeps the thresholds where they are over
            several local steps.
        seed: The seed of the block's weights, before traps are planted.
    """
    whole_number("the units of an added block", units)
    with torch.no_grad():
        outputs = copy.deepcopy(model).eval()(dummies(model, shape))
    if not isinstance(outputs, Tensor):
        raise DoesNotFit(f"the model returns a {type(outputs).__name__}, to which a block cannot add")
    with seeded(seed, "added block"):
        block = AddedBlock(copy.deepcopy(model), tuple(shape), tuple(outputs.shape[1:]), units, factor)
    like = next(model.parameters())
    return block.to(like.device, like.dtype)
