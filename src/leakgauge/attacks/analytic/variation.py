"""The sample with the least total variation among the solutions of linear equations for its patches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

#: The largest number of steps in one round of the search for the solution of the least total variation.
SMOOTHING_STEPS = 100
#: The smallest difference of two pixels that counts in each round of this search, in the model's units.
SMALLEST_DIFFERENCES = (0.1, 0.01, 0.001, 0.001, 0.001)
#: A value for each two neighbouring pixels, down and across.
Differences = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class FreeDirections:
    """The directions that the equations leave free. A change of the patches is ``over_patches @ part @ over_pixels``.

    Args:
        over_patches: A basis with orthonormal columns, (patches, m), or ``None`` for the identity.
        over_pixels: A basis with orthonormal rows, (n, pixels of a patch), or ``None`` for the identity.
    """

    over_patches: Tensor | None = None
    over_pixels: Tensor | None = None

    def change(self, part: Tensor) -> Tensor:
        """Return a change of the patches.

        Args:
            part: The coordinates of the change, (m, n).
        """
        part = part if self.over_patches is None else self.over_patches @ part
        return part if self.over_pixels is None else part @ self.over_pixels

    def coordinates(self, patches: Tensor) -> Tensor:
        """Return the coordinates of the projection of patches.

        Args:
            patches: A value for each pixel of each patch.
        """
        patches = patches if self.over_patches is None else self.over_patches.T @ patches
        return patches if self.over_pixels is None else patches @ self.over_pixels.T


def least_variation(patches: Tensor, free: FreeDirections, pixels: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the solution of the equations with the least total variation, as a flat sample.

    The total variation is minimised over the directions that the equations leave free. Each round of the minimisation
    solves a least-squares problem with new weights. For samples that are not images, the result is the solution with
    the least norm.

    Args:
        patches: A solution of the equations, (patches, pixels of a patch).
        free: The directions that the equations leave free.
        pixels: For each pixel of a patch, its index in the flattened sample, (patches, pixels of a patch).
        shape: The shape of a sample.
    """

    def image(patches: Tensor) -> Tensor:
        return patches.new_zeros(pixels.numel()).index_put((pixels.flatten(),), patches.flatten()).reshape(shape)

    def slope(patches: Tensor) -> Tensor:
        return free.coordinates(_variation_slope(image(patches), weights).flatten()[pixels])

    weights: Differences = (patches.new_ones(()), patches.new_ones(()))
    for smallest in SMALLEST_DIFFERENCES if len(shape) == 3 and free.coordinates(patches).numel() else ():
        change = conjugate_gradients(lambda part: slope(free.change(part)), -slope(patches), SMOOTHING_STEPS)
        patches = patches + free.change(change)
        down, across = (part.square().mean(0) for part in _differences(image(patches)))
        weights = ((down + smallest**2).rsqrt(), (across + smallest**2).rsqrt())
    return image(patches).flatten()


def _differences(image: Tensor) -> Differences:
    """Return the differences of vertical neighbours and of horizontal neighbours among the pixels."""
    return image[:, 1:] - image[:, :-1], image[..., 1:] - image[..., :-1]


def _variation_slope(image: Tensor, weights: Differences) -> Tensor:
    """Return half of the gradient of a weighted sum of the squared differences between neighbouring pixels."""
    slope = torch.zeros_like(image)
    down, across = (difference * weight for difference, weight in zip(_differences(image), weights, strict=True))
    slope[:, 1:] += down
    slope[:, :-1] -= down
    slope[..., 1:] += across
    slope[..., :-1] -= across
    return slope


def conjugate_gradients(operator: Callable[[Tensor], Tensor], target: Tensor, steps: int) -> Tensor:
    """Solve ``operator(x) = target`` for a symmetric, positive operator (Hestenes and Stiefel 1952).

    Args:
        operator: The linear operator.
        target: The right-hand side of the equation.
        steps: The largest number of steps.
    """
    solution, rest = torch.zeros_like(target), target.clone()
    direction, size = rest.clone(), float(rest.square().sum())
    first = size
    for _ in range(steps):
        if size <= 1e-16 * first:
            break
        image = operator(direction)
        curvature = float((direction * image).sum())
        if curvature <= 0:
            break
        solution = solution + (size / curvature) * direction
        rest = rest - (size / curvature) * image
        previous, size = size, float(rest.square().sum())
        direction = rest + (size / previous) * direction
    return solution
