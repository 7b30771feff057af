"""The linear equations for the patches of one sample, from the spans of patches and of tokens.

The equations are explained at the top of :mod:`leakgauge.attacks.analytic.token_spans`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.analytic.layer_span import first_noise
from leakgauge.attacks.analytic.token_inputs import Probe, TokenInputs
from leakgauge.attacks.analytic.tokens import PatchLayer
from leakgauge.core.params import Params

#: A direction is lost in noise if its estimated error is above this, in the model's units.
LOST_IN_NOISE = 0.2
#: Singular values up to this many times the rounding of the message are zero.
ROUNDING = 10.0
#: Singular values of the tokens' gradient up to this many times the noise are noise.
NOISE = 3.0


@dataclass(frozen=True, eq=False)
class Known:
    """The knowledge about the tokens that an attacker has before it solves for the patches.

    Args:
        layer: The layer that embeds the patches.
        inputs: The layers that see every token, and what they see.
        probe: The forward passes of the model.
        kernel: The weights of the patch layer, (width, pixels of a patch).
        bias: The bias of the patch layer, or zeros.
        biased: Whether the bias is trained.
    """

    layer: PatchLayer
    inputs: TokenInputs
    probe: Probe
    kernel: Tensor
    bias: Tensor
    biased: bool

    @property
    def patches(self) -> int:
        """The number of patches."""
        return len(self.layer.pixels)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters whose gradients are used."""
        seeing = [name for one in self.inputs.layers for name in (one.weight, one.bias) if name]
        return (self.layer.weight, *((self.layer.bias,) if self.biased else ()), *seeing)

    def patch_gradient(self, update: Params) -> Tensor:
        """Return the gradient of the patch layer as one matrix, with the bias in the last column if there is one.

        Args:
            update: The update of all parameters.
        """
        weights = update[self.layer.weight].flatten(1)
        return torch.cat([weights, update[self.layer.bias][:, None]], 1) if self.biased else weights


@dataclass(frozen=True, eq=False)
class Solution:
    """The patches, and numbers that check them without the true patches.

    Args:
        patches: The solution with the least norm, (patches, pixels of a patch).
        inverse_factors: The unknown ``omega`` of each patch, or ``None`` if it is not determined.
        free: A basis with orthonormal rows of the directions of a patch that the equations leave free.
        unknowns: The number of unknown directions of a patch.
        error: The estimated error of one pixel in the worst patch, in the model's units. It is infinite if no equation
            is left from which it can be estimated.
    """

    patches: Tensor
    inverse_factors: Tensor | None
    free: Tensor
    unknowns: int
    error: float


def solve(known: Known, update: Params, lost: float = LOST_IN_NOISE) -> Solution:
    """Solve the equations of all patches by least squares.

    Args:
        known: The layers of the model, and what they see.
        update: The gradient, or what is nearest to it, in double precision.
        lost: The estimated error of a direction, in the model's units, from which on it is left free.
    """
    precision = torch.finfo(known.probe.observation.sent[known.layer.weight].dtype).eps
    origin, basis = patch_span(known.patch_gradient(update), known.patches, precision, biased=known.biased)
    complement = complement_of_tokens(known.inputs, update)
    columns, targets = _equations(known, origin, basis, complement)
    left, sizes, right = torch.linalg.svd(columns, full_matrices=columns.shape[0] < columns.shape[1])
    rank = int((sizes > ROUNDING * precision * sizes[0]).sum())
    to_pixels = right[:, : basis.shape[1]] @ basis.T
    noise = _noise(targets, left[:, :rank])
    worst = float(noise.max()) if len(noise) else math.inf
    if not math.isinf(worst):
        rank = int((sizes > worst / lost).sum())
    coordinates = -(left[:, :rank].T @ targets) / sizes[:rank, None]
    unknown = (right[:rank].T @ coordinates).T
    spread = math.sqrt(float((to_pixels[:rank].square().sum(1) / sizes[:rank].square()).sum()) / basis.shape[0])
    hidden = to_pixels[rank:]
    has_factor = columns.shape[1] > basis.shape[1]
    return Solution(
        origin + unknown[:, : basis.shape[1]] @ basis.T,
        unknown[:, -1] if has_factor and rank == columns.shape[1] else None,
        torch.linalg.qr(hidden.T)[0].T if len(hidden) else hidden,
        basis.shape[1],
        worst * spread if rank else math.inf,
    )


def patch_span(gradient: Tensor, patches: int, precision: float, *, biased: bool) -> tuple[Tensor, Tensor]:
    """Return a point and an orthonormal basis of the affine space that holds every patch.

    If there are at least as many patches as directions, the whole space is returned.

    Args:
        gradient: The gradient of the patch layer. The last column belongs to the bias, if there is one.
        patches: The number of patches.
        precision: The relative rounding error of the message.
        biased: Whether the layer has a trained bias.
    """
    pixels = gradient.shape[1] - biased
    if patches >= gradient.shape[1]:
        return gradient.new_zeros(pixels), torch.eye(pixels, dtype=gradient.dtype, device=gradient.device)
    _, sizes, right = torch.linalg.svd(_evened(gradient), full_matrices=False)
    rank = min(patches, int((sizes > precision * sizes[0]).sum()))
    rows = right[:rank]
    if not biased:
        return gradient.new_zeros(pixels), rows.T
    last = rows[:, -1]
    point = last @ rows / last.square().sum().clamp_min(1e-300)
    turned = torch.linalg.qr(torch.cat([last[:, None], torch.eye(rank, dtype=rows.dtype, device=rows.device)], 1))[0]
    return point[:-1], torch.linalg.qr((turned[:, 1:].T @ rows)[:, :-1].T)[0]


def complement_of_tokens(inputs: TokenInputs, update: Params) -> Tensor:
    """Return an orthonormal basis of what is orthogonal to all tokens, among the rows that the layers can see.

    Args:
        inputs: The layers that see every token, and what they see.
        update: The gradient, or what is nearest to it, in double precision.
    """
    possible = inputs.directions()
    gradient = _evened(inputs.gradient(update)) @ possible
    wide = gradient.shape[0] < gradient.shape[1]
    right = torch.linalg.svd(gradient, full_matrices=wide)[2]
    rest: Tensor = right[inputs.rows :] @ possible.T
    return rest


def _evened(gradient: Tensor) -> Tensor:
    """Return a gradient whose rows have the length 1. Rounding errors are then about equal in all rows."""
    lengths = gradient.norm(dim=1, keepdim=True)
    return gradient / torch.where(lengths > 0, lengths, 1.0)


def _equations(known: Known, origin: Tensor, basis: Tensor, complement: Tensor) -> tuple[Tensor, Tensor]:
    """Return the matrix of the equations and the constant part of each patch, (equations, patches).

    The unknowns are the coordinates of a patch in the basis, and then the inverse factor, if it occurs.
    """
    inputs = known.inputs
    constant = (known.kernel @ origin + known.bias) @ inputs.matrix.T + inputs.offsets
    columns = (inputs.matrix @ known.kernel) @ basis
    one = constant.new_ones(len(constant), 1) if not inputs.normalised else constant.new_zeros(len(constant), 1)
    shift = inputs.shift[:, None]
    if inputs.biased:
        constant = torch.cat([constant, one], 1)
        columns = torch.cat([columns, columns.new_zeros(1, columns.shape[1])])
        shift = torch.cat([shift, shift.new_ones(1, 1)])
    if inputs.normalised and bool(shift.any()):
        columns = torch.cat([columns, shift], 1)
    return complement @ columns, complement @ constant.T


def _noise(targets: Tensor, left: Tensor) -> Tensor:
    """Return the root mean square of the residuals of each patch, per equation that is left. None may be left."""
    spare = targets.shape[0] - left.shape[1]
    if spare <= 0:
        return targets.new_zeros(0)
    rest = targets - left @ (left.T @ targets)
    sizes: Tensor = (rest.square().sum(0) / spare).sqrt()
    return sizes


def rank_of_tokens(inputs: TokenInputs, update: Params) -> int:
    """Return the number of singular values above the noise in the gradient of the layers that see every token.

    Args:
        inputs: The layers that see every token, and what they see.
        update: The gradient, or what is nearest to it, in double precision.
    """
    gradient = _evened(inputs.gradient(update))
    values = torch.linalg.svdvals(gradient)
    return int((values > NOISE * values[min(inputs.rows, first_noise(gradient, values))]).sum())
