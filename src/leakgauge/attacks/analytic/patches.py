r"""APRIL, which solves for the patches of one sample from the gradient of a vision transformer.

Lu, Zhang, Zhao, He, Cheng, "APRIL: Finding the Achilles' Heel on Privacy for Vision Transformers", CVPR 2022.

A vision transformer cuts a sample into patches :math:`p_t` and converts each patch to a token
:math:`z_t = W p_t + b + e_t`. Let :math:`g_t = \partial\ell / \partial z_t` be the gradient at a token. Then

.. math::
    \frac{\partial\ell}{\partial W} = \sum_t g_t p_t^\top, \qquad
    \frac{\partial\ell}{\partial b} = \sum_t g_t, \qquad
    \frac{\partial\ell}{\partial e_t} = g_t.

If the positions :math:`e_t` are trained, the server sees every :math:`g_t`. The first equation is then linear in the
patches. The second equation contains no patch, so it shows whether the message is free of noise.

- The equations determine all patches if the :math:`g_t` are linearly independent. This is possible for at most
  ``width`` patches. If the tokens enter layer norms, it is possible for at most ``width - 1`` patches, because the
  entries of each :math:`g_t` then add up to zero. With more patches, the attack returns the solution with the least
  total variation, which is not exact.
- After local training on one sample, the equations still hold. Every step adds :math:`\sum_t g_t p_t^\top` with the
  same patches, so the equations hold for the sums over all steps, also with momentum. They do not hold for optimisers
  such as Adam.
- If the client has several samples, the server sees only the sum of the samples' :math:`g_t`, so the attack does not
  apply.
- If the positions are fixed, the server does not see the :math:`g_t`, so the attack does not apply. The paper then
  matches gradients by optimisation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.attacks.analytic.replay import Replay, label_of_one, replay
from leakgauge.attacks.analytic.tokens import PatchLayer, PositionParameter, find_patch_layer, find_positions
from leakgauge.attacks.analytic.variation import FreeDirections, least_variation
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import mixes_linearly
from leakgauge.core.params import Params
from leakgauge.core.progress import Report

#: The patches are called exact up to this estimated error, in units of one grey level of 256.
LARGEST_ERROR = 0.25
#: A direction is lost in noise if its estimated error is above this, in the model's units.
LOST_IN_NOISE = 0.2


@dataclass(frozen=True, eq=False)
class Equations:
    """The linear equations ``token_gradients.T @ patches = weight`` for the unknown patches.

    Args:
        token_gradients: The gradient at the token of each patch, (patches, width).
        weight: The gradient of the patch layer's weights, (width, pixels of a patch).
        bias: The gradient of the patch layer's bias, (width,). ``None`` if the layer has no bias.
        precision: The relative rounding error of the message.
    """

    token_gradients: Tensor
    weight: Tensor
    bias: Tensor | None
    precision: float


@dataclass(frozen=True, eq=False)
class Solution:
    """The patches that solve the equations, and numbers that check the solution without the true patches.

    Args:
        patches: The solution with the least norm, (patches, pixels of a patch).
        free: A basis of the directions that the equations do not determine, (patches, directions).
        residual: The relative residual of the equations.
        error: The estimated error of one pixel, in the model's units. The error is infinite if no equation is left from
            which it can be estimated.
    """

    patches: Tensor
    free: Tensor
    residual: float
    error: float


def solve(equations: Equations) -> Solution:
    """Solve the equations by least squares. Directions of the solution that the noise hides are left out.

    The noise is estimated from the equations of the bias, which contain no unknown patches, and from the residuals of
    the other equations.
    """
    gradients, weight = equations.token_gradients, equations.weight
    left, sizes, right = torch.linalg.svd(gradients, full_matrices=True)
    largest = float(sizes[0]) if len(sizes) else 0.0
    rank = int((sizes > equations.precision * largest).sum())
    noise = _noise(equations, right[:rank])
    lost = max(equations.precision * largest, 0.0 if math.isinf(noise) else noise / LOST_IN_NOISE)
    rank = int((sizes > lost).sum())
    known = (right[:rank] @ weight) / sizes[:rank, None]
    patches = left[:, :rank] @ known
    error = noise * float((sizes[:rank] ** -2).mean().sqrt())
    return Solution(patches, left[:, rank:], _residual(equations, patches), error if rank else math.inf)


def _noise(equations: Equations, right: Tensor) -> float:
    """Return the root mean square of the noise in one equation, estimated from equations that the patches do not need.

    The result is infinite if there is no such equation.

    Args:
        equations: The linear equations for the patches, and the gradient of the bias.
        right: An orthonormal basis of the span of the token gradients, (rank, width).
    """
    width = equations.token_gradients.shape[1]
    estimates = []
    if equations.bias is not None:
        rest = equations.bias - equations.token_gradients.sum(0)
        estimates.append(math.sqrt(float(rest.square().mean())))
    if len(right) < width:
        rest = equations.weight - right.T @ (right @ equations.weight)
        estimates.append(math.sqrt(float(rest.square().sum()) / ((width - len(right)) * rest.shape[1])))
    return max(estimates, default=math.inf)


def _residual(equations: Equations, patches: Tensor) -> float:
    """Return the length of the residual of all equations, as a share of the length of the gradients."""
    parts = [(equations.weight, equations.token_gradients.T @ patches)]
    if equations.bias is not None:
        parts.append((equations.bias, equations.token_gradients.sum(0)))
    rest = sum(float((seen - predicted).square().sum()) for seen, predicted in parts)
    whole = sum(float(seen.square().sum()) for seen, _ in parts)
    return math.sqrt(rest / whole) if whole else math.inf


@dataclass(frozen=True)
class PatchEquations(Attack):
    """The attack that solves for the patches of one sample. See :func:`april`."""

    uses_defences: ClassVar[bool] = False

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Reconstruct the only sample of the client."""
        observation.training.need("samples")
        layer, positions, reason = _layers(observation)
        if layer is None or positions is None:
            raise MissingKnowledge(f"april() does not apply, because it is {reason}. Use inverting_gradients() instead")
        solution = solve(_equations(observation, layer, positions))
        data, dtype = observation.data, observation.sent[layer.weight].dtype
        free = FreeDirections(over_patches=solution.free)
        sample = least_variation(solution.patches, free, layer.pixels, data.shape).reshape(1, *data.shape)
        seen = data.denormalise(sample.to(dtype))
        check = replay(observation, sample)
        return Reconstruction(
            samples=seen.clamp(0, 1) if data.bounded else seen,
            labels=label_of_one(observation) if check.label is None else check.label,
            outcome=_outcome(solution, check, _words(solution, layer, positions), max(data.std)),
            loss=solution.residual,
        )


def _equations(observation: Observation, layer: PatchLayer, positions: PositionParameter) -> Equations:
    bias = observation.model.get_submodule(layer.name).bias
    has_bias = isinstance(bias, Tensor) and bias.requires_grad
    names = (layer.weight, positions.name, *((layer.bias,) if has_bias else ()))
    update = without_decay(observation, names)
    return Equations(
        positions.token_gradients(update, layer),
        update[layer.weight].flatten(1),
        update[layer.bias] if has_bias else None,
        torch.finfo(observation.sent[layer.weight].dtype).eps,
    )


def without_decay(observation: Observation, names: tuple[str, ...]) -> Params:
    """Return the update of some parameters in double precision, without the effect of known weight decay.

    For one local step, the effect is computed exactly. For several steps, it is approximated by the effect on the mean
    of the sent and the returned weights.

    Args:
        observation: The message of the client.
        names: The names of the parameters.
    """
    difference, training = observation.difference(), observation.training
    update = {name: difference[name].double() for name in names}
    settings = (training.lr, training.epochs, training.batch_size)
    if observation.returned is None or not training.weight_decay or None in settings:
        return update
    decay = training.need("lr") * training.weight_decay * training.applied_gradients
    share = 0.0 if training.steps == 1 else 0.5
    return {
        name: change - decay * torch.lerp(observation.sent[name], observation.returned[name], share).double()
        for name, change in update.items()
    }


def _words(solution: Solution, layer: PatchLayer, positions: PositionParameter) -> str:
    """Return a sentence about the equations."""
    names = f"{layer.name or 'the model'} and {positions.name}"
    residual = f"relative residual {solution.residual:.1g}"
    return f"{len(layer.pixels)} patches solved from the gradients of {names}, {residual}"


def _outcome(solution: Solution, check: Replay, words: str, contrast: float) -> Outcome:
    """Return how the attack ended.

    It has converged if all patches are determined, their estimated error is small, and the client's message, computed
    again from the sample, is the observed message.

    Args:
        solution: The solution of the equations.
        check: The message of a client with the rebuilt sample.
        words: A sentence about the equations.
        contrast: The factor that converts an error in the model's input units to a share of the range of pixels.
    """
    count, free = solution.patches.shape[0], solution.free.shape[1]
    if free == count:
        return Outcome(
            "finished", 0, f"{words}, not exact, since no gradient of the positions is larger than the noise"
        )
    error = 255 * contrast * solution.error
    if math.isinf(error):
        return Outcome("finished", 0, f"{words}, no equation is left to check them")
    if error > LARGEST_ERROR:
        return Outcome(
            "finished", 0, f"{words}, not exact, with an estimated error of at least {error:.2g} grey levels"
        )
    if free:
        reason = f"since {free} of {count} directions are chosen by the least total variation"
        return Outcome("finished", 0, f"{words}, not exact, {reason}")
    if not check.agrees:
        return Outcome("finished", 0, f"{words}, not exact, since {check}")
    sentence = f"{words}, exact, with an estimated error of {error:.1g} grey levels, {check}"
    return Outcome("converged", 0, sentence)


def _layers(observation: Observation) -> tuple[PatchLayer | None, PositionParameter | None, str]:
    """Return the patch layer and the position parameter, or the reason why the attack does not apply."""
    samples = observation.training.samples
    if samples is None:
        return None, None, "made for one sample, and the number of samples is unknown"
    if samples != 1:
        return None, None, f"made for one sample, and the positions of {samples} samples share one gradient"
    if not mixes_linearly(observation):
        return None, None, "made for gradients and SGD, and the steps of Adam are no sums of gradients"
    layer = find_patch_layer(observation)
    if layer is None:
        return None, None, "made for vision transformers, and no trained layer of this model embeds separate patches"
    positions = find_positions(observation, layer)
    if positions is not None and not bool(observation.difference()[positions.name].any()):
        return layer, None, "made for trained positions, and no gradient reaches those of this model"
    if positions is None:
        reason = "made for trained positions, and no trained parameter of this model is added to its patches"
        return layer, None, f"{reason}, so the gradient at each token is not seen"
    count = len(layer.pixels)
    if count >= layer.width:
        reason = f"{count} patches and a width of {layer.width} leave some of it undetermined"
        return layer, positions, f"for one sample in patches with trained positions; {reason}"
    return layer, positions, "exact for one sample in patches with trained positions"


def fits(observation: Observation) -> Fit:
    """Decide whether the attack applies. It needs one sample of a vision transformer with trained positions."""
    _, positions, reason = _layers(observation)
    return Fit(positions is not None, reason)


def april() -> PatchEquations:
    """Solve for the patches of one sample of a vision transformer with trained positions (APRIL, Lu et al. 2022).

    The gradient of the positions shows the gradient at each token. The gradient of the patch layer's weights is a sum
    with one term for each token. This term is the gradient at the token times the patch. The sum is a linear equation
    for the patches, which the attack solves. The layers are recognised by what they compute and not by their names, so
    any module works. The attack has no options. It does not apply to several samples or to fixed positions.
    """
    return PatchEquations()


SPECS = (
    AttackSpec(
        name="april",
        factory=april,
        summary="APRIL (Lu et al. 2022): the patches of one sample of a vision transformer, in closed form.",
        fits=fits,
        cost=Cost.INSTANT,
        rank=10,
        audit={},
        exact=True,
    ),
)
