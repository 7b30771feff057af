r"""Coordinates of a sample, of which there are few if the update of a dense first layer spans the samples.

The update of a dense layer is a sum of terms :math:`\delta_i [x_i, 1]^T`, also after several steps of SGD. If the layer
gets the samples, every :math:`[x_i, 1]` lies in the row space of the update. A sample then has as many coordinates as
the client has samples, minus one. Otherwise, its coordinates are its values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.analytic.dense import DenseChain, DoesNotFit, augmented
from leakgauge.attacks.analytic.layer_span import rank_of
from leakgauge.attacks.analytic.levenberg import plane_directions
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import mixes_linearly

#: The smallest ratio of the last singular value of the samples and the first one of the noise.
GAP = 100.0
#: The standard deviation of a pixel of a random start.
CONTRAST = 0.3


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The map from coordinates to the model's inputs, ``origin + coordinates @ basis``.

    Args:
        shape: The shape of a sample.
        count: The number of coordinates of a sample.
        origin: The flattened input whose coordinates are zero.
        basis: The flattened directions of the coordinates, (coordinates, values). ``None`` if the coordinates are the
            values themselves.
    """

    shape: tuple[int, ...]
    count: int
    origin: Tensor
    basis: Tensor | None = None

    def inputs(self, coordinates: Tensor) -> Tensor:
        """Return the model's inputs, one for each row of coordinates.

        Args:
            coordinates: The coordinates, one row for each sample.
        """
        flat = coordinates if self.basis is None else coordinates @ self.basis
        return (self.origin + flat).reshape(len(coordinates), *self.shape)

    def random(self, samples: int, data: DataSpec, draw: torch.Generator) -> Tensor:
        """Return the coordinates of random samples, which are about as large as those of real samples.

        Args:
            samples: The number of samples.
            data: The description of the samples.
            draw: The random generator.
        """
        if self.basis is None and data.bounded:
            pixels = torch.rand(samples, *self.shape, generator=draw, dtype=torch.double).to(self.origin)
            return data.normalise(pixels).flatten(1)
        size = CONTRAST / (sum(data.std) / len(data.std)) if data.bounded else 1.0
        spread = 1.0 if self.basis is None else math.sqrt(self.origin.numel() / max(1, self.count))
        return size * spread * torch.randn(samples, self.count, generator=draw, dtype=torch.double).to(self.origin)


def coordinates_of(observation: Observation) -> Coordinates:
    """Return coordinates of samples, in the span of the first layer's update if this update shows the span.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    shape, values = observation.data.shape, math.prod(observation.data.shape)
    plain = Coordinates(shape, values, torch.zeros(values, dtype=torch.double, device=observation.device))
    decays = bool(observation.training.weight_decay) and observation.kind == "weights"
    if decays or not mixes_linearly(observation):
        return plain
    try:
        chain = DenseChain(observation)
    except DoesNotFit:
        return plain
    assert chain.entrance is not None
    rows = augmented({name: value.double() for name, value in observation.difference().items()}, chain.first)
    directions = _row_space(rows, observation)
    if directions is None:
        return plain
    last = directions[:, -1]
    moves = plane_directions(last).T @ directions[:, :-1]
    scale, order = chain.entrance.scale, chain.entrance.order
    origin, basis = plain.origin.clone(), plain.origin.new_zeros(len(moves), values)
    origin[order] = (last @ directions[:, :-1] / last.square().sum() - chain.entrance.shift) / scale
    basis[:, order] = moves / scale
    return Coordinates(shape, len(moves), origin, basis)


def _row_space(rows: Tensor, observation: Observation) -> Tensor | None:
    """Return an orthonormal basis of the rows, or ``None`` if it is not clearly separated from noise."""
    samples = observation.training.samples or 0
    precision = torch.finfo(next(iter(observation.sent.values())).dtype).eps
    rank = rank_of(rows, precision)
    sizes, right = torch.linalg.svd(rows, full_matrices=False)[1:]
    if not 0 < rank <= samples or rank >= len(sizes) or float(sizes[rank - 1]) < GAP * float(sizes[rank]):
        return None
    basis = right[:rank]
    return basis if float(basis[:, -1].norm()) > 1e-6 else None
