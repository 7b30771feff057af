"""Large pictures on a coarse grid, which is refined later.

An optimisation of each pixel of a large picture takes many steps before neighbouring pixels agree. On a coarse grid
each value is a patch of the picture, so that brightness and large shapes come first. The picture of a grid is its
bilinear interpolation, which has a derivative.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor

from leakgauge.attacks.inversion.optimisers import SGD, Adam
from leakgauge.attacks.inversion.solve import Descent
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.params import Params

#: The shorter side of a picture from which the picture counts as large.
LARGE = 96
#: The smallest shorter side of a coarse grid.
SMALLEST = 28


@dataclass(frozen=True)
class Grid:
    """The grid on which pictures are optimised.

    Args:
        shape: The shape of a whole sample.
        factor: The number of pixels that one value of the grid covers in each direction. With 1, the grid is the sample
            itself.
    """

    shape: tuple[int, ...]
    factor: int = 1

    @classmethod
    def of(cls, data: DataSpec) -> Grid:
        """Return the coarse grid of large pictures, or the grid of whole samples for all other data.

        Args:
            data: The description of the data.
        """
        factor = 1
        if data.is_image and min(data.shape[-2:]) >= LARGE:
            while min(data.shape[-2:]) // (2 * factor) >= SMALLEST:
                factor *= 2
        return cls(data.shape, factor)

    def thinned(self, inputs: Tensor) -> Tensor:
        """Return values on the grid from whole samples of independent random values, such as a random start.

        Args:
            inputs: The samples, with any number of leading dimensions.
        """
        return inputs if self.factor == 1 else inputs[..., :: self.factor, :: self.factor]

    def whole(self, variables: Params) -> Params:
        """Return variables with whole samples, from variables with samples on the grid.

        Args:
            variables: The variables of an optimisation. Whole samples are returned unchanged.
        """
        inputs = variables["inputs"]
        if tuple(inputs.shape[-len(self.shape) :]) == self.shape:
            return variables
        return {**variables, "inputs": self._enlarged(inputs)}

    def _enlarged(self, inputs: Tensor) -> Tensor:
        flat = inputs.reshape(-1, *inputs.shape[-3:])
        size = list(self.shape[-2:])
        whole: Tensor = F.interpolate(flat, size=size, mode="bilinear", align_corners=False)
        return whole.reshape(*inputs.shape[:-2], *size)

    def refining(self, descent: Descent) -> Descent:
        """Return the settings of the optimisation of whole samples that starts from samples on the grid.

        A single pixel needs smaller steps than a patch, or the steps add noise that has to vanish again.

        Args:
            descent: The settings of an optimisation on the grid.
        """
        optimiser = descent.optimiser
        if self.factor == 1 or not isinstance(optimiser, Adam | SGD):
            return descent
        return replace(descent, optimiser=replace(optimiser, lr=optimiser.lr / self.factor))
