r"""Token spans, an attack that solves for the patches of one sample of a transformer whose positions are fixed.

A vision transformer converts each patch :math:`p_t` to :math:`z_t = E p_t + b`, adds a known position, and mostly
normalises the sum. The first attention layer (or any dense layer that sees every token) gets

.. math:: u_t = s + r_t\,(M z_t + a_t),

where only the factor :math:`r_t > 0` and the patch are unknown (:mod:`leakgauge.attacks.analytic.token_inputs`). Let
:math:`g_t` and :math:`d_t` be the gradients at :math:`z_t` and at the layer's outputs. The message holds

.. math::
    [\partial\ell/\partial E \mid \partial\ell/\partial b] = \sum_t g_t\,[p_t, 1]^\top, \qquad
    [\partial\ell/\partial W \mid \partial\ell/\partial b_W] = \sum_t d_t\,[u_t, 1]^\top,

the second one for the queries, keys and values together, with one more term for each other token. So every
:math:`[p_t, 1]` lies in the row space of the first matrix, and every :math:`[u_t, 1]` in that of the second. With
:math:`p_t = m + B y_t` for a point and a basis of the first row space, with :math:`\omega_t = 1/r_t`, and with the
projection :math:`N` onto the complement of the second row space, the second condition is linear:

.. math:: N\,\big[ M (E (m + B y_t) + b) + a_t + \omega_t s,\; \omega_t \big] = 0.

It is a least-squares problem for :math:`(y_t, \omega_t)` with the same matrix for every patch. No gradient at a token
is needed.

- The equations determine the patches if the layer is wider than the number of tokens plus the dimension of the patches
  (or of their span), and if the positions are linearly independent beside the embedded patches. Positions drawn at
  random or trained before are. Sines and cosines of few frequencies are not, above all in two dimensions: these
  equations then leave directions free. If those are the lesser part, the attack returns the solution with the least
  total variation, which is not exact.
- The known factor :math:`r_t` of the solution must be :math:`1/\omega_t`. This checks every patch. The whole message,
  computed again from the sample, must be the observed message. This checks everything.
- After several local steps on one sample, the equations hold only nearly, because the tokens move with the weights.
  The difference between the client's steps and as many steps at the sent weights is computed from the solution and
  subtracted from the message. This is repeated as long as the replayed message gets closer.

It is related to APRIL (Lu et al. 2022), which needs trained positions. We know of no earlier description.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.attacks.analytic.dense import DoesNotFit
from leakgauge.attacks.analytic.layer_span import first_noise
from leakgauge.attacks.analytic.replay import Replay, label_of_one, message_of, replay
from leakgauge.attacks.analytic.token_inputs import Probe, TokenInputs, factors_at, find_token_inputs
from leakgauge.attacks.analytic.tokens import PatchLayer, find_patch_layer, find_positions
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
#: The largest relative error of a patch's factor in an exact solution.
SAME_FACTOR = 1e-2
#: A direction is lost in noise if its estimated error is above this, in the model's units.
LOST_IN_NOISE = 0.2
#: The largest share of free directions with which the attack is tried.
MOST_FREE = 0.5
#: The smallest share of the tokens that the span must hold.
SMALLEST_SPAN = 0.75
#: The largest number of corrections for the movement of the weights in several local steps.
CORRECTIONS = 12
#: A correction must lower the distance of the replayed message by this factor.
PROGRESS = 0.8


@dataclass(frozen=True, eq=False)
class Known:
    """What the attacker knows about the tokens before it solves for the patches.

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


@dataclass(frozen=True, eq=False)
class Checked:
    """A solution with its checks.

    Args:
        solution: The solution of the equations.
        sample: The sample in the model's units, as a batch of one.
        factors: The largest relative error of a patch's factor, or 0 if the equations hold none.
        check: The message of a client with this sample.
    """

    solution: Solution
    sample: Tensor
    factors: float
    check: Replay


def solve(known: Known, update: Params) -> Solution:
    """Solve the equations of all patches by least squares.

    Args:
        known: The layers of the model, and what they see.
        update: The gradient, or what is nearest to it, in double precision.
    """
    precision = torch.finfo(known.probe.observation.sent[known.layer.weight].dtype).eps
    origin, basis = patch_span(known.patch_gradient(update), known.patches, precision, biased=known.biased)
    complement = complement_of_tokens(known.inputs, update)
    columns, targets = _equations(known, origin, basis, complement)
    left, sizes, right = torch.linalg.svd(columns, full_matrices=False)
    rank = int((sizes > 10 * precision * sizes[0]).sum())
    to_pixels = right[:, : basis.shape[1]] @ basis.T
    noise = _noise(targets, left[:, :rank])
    worst = float(noise.max()) if len(noise) else math.inf
    if not math.isinf(worst):
        rank = int((sizes > worst / LOST_IN_NOISE).sum())
    coordinates = -(left[:, :rank].T @ targets) / sizes[:rank, None]
    unknown = (right[:rank].T @ coordinates).T
    spread = math.sqrt(float((to_pixels[:rank].square().sum(1) / sizes[:rank].square()).sum()) / basis.shape[0])
    lost = to_pixels[rank:]
    has_factor = columns.shape[1] > basis.shape[1]
    return Solution(
        origin + unknown[:, : basis.shape[1]] @ basis.T,
        unknown[:, -1] if has_factor and rank == len(sizes) else None,
        torch.linalg.qr(lost.T)[0].T if len(lost) else lost,
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
    """Return an orthonormal basis of the complement of the span of all tokens, (directions, size of a row).

    Args:
        inputs: The layers that see every token, and what they see.
        update: The gradient, or what is nearest to it, in double precision.
    """
    right = torch.linalg.svd(_evened(inputs.gradient(update)), full_matrices=True)[2]
    return right[inputs.rows :]


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
    return (rest.square().sum(0) / spare).sqrt()


@dataclass(frozen=True)
class TokenSpans(Attack):
    """The attack that solves for the patches from the spans of patches and tokens. See :func:`token_spans`."""

    uses_defences: ClassVar[bool] = False

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Reconstruct the only sample of the client."""
        observation.training.need("samples")
        try:
            known = _known(observation)
        except DoesNotFit as reason:
            raise MissingKnowledge(f"token_spans() does not apply: {reason}. Use inverting_gradients() instead") from None
        update = {name: observation.difference()[name].double() for name in known.names}
        result = _checked(known, solve(known, update))
        if observation.kind == "weights" and result.check.message is not None:
            result = self._corrected(known, update, result, report)
        data = observation.data
        seen = data.denormalise(result.sample.to(observation.sent[known.layer.weight].dtype))
        return Reconstruction(
            samples=seen.clamp(0, 1) if data.bounded else seen,
            labels=label_of_one(observation) if result.check.label is None else result.check.label,
            outcome=_outcome(known, result),
            loss=result.check.residual,
        )

    def _corrected(self, known: Known, update: Params, result: Checked, report: Report) -> Checked:
        """Return the solution after corrections for the movement of the weights in the local steps."""
        observation = known.probe.observation
        for number in range(CORRECTIONS):
            check = result.check
            if check.message is None or check.label is None:
                break
            inputs = result.sample.to(observation.sent[known.layer.weight])
            gradient = message_of(observation, inputs, check.label, one_gradient=True)
            still = observation.training.need("lr") * observation.training.applied_gradients
            moved = {name: update[name] - check.message[name] + still * gradient[name] for name in known.names}
            better = _checked(known, solve(known, moved))
            report(number + 1, CORRECTIONS, better.check.residual)
            if better.check.residual < result.check.residual:
                slow = better.check.residual > PROGRESS * result.check.residual
                result = better
                if not slow:
                    continue
            break
        return result


def _checked(known: Known, solution: Solution) -> Checked:
    """Return a solution as a sample, with its checks."""
    observation = known.probe.observation
    free = FreeDirections(over_pixels=solution.free)
    shape = observation.data.shape
    sample = least_variation(solution.patches, free, known.layer.pixels, shape).reshape(1, *shape)
    return Checked(solution, sample, _wrong_factors(known, solution), replay(observation, sample))


def _wrong_factors(known: Known, solution: Solution) -> float:
    """Return the largest relative error of the factors, or 0 if the equations do not hold them."""
    if solution.inverse_factors is None or len(solution.free):
        return 0.0
    factors = factors_at(known.probe, known.inputs, solution.patches @ known.kernel.T + known.bias)
    return float((factors * solution.inverse_factors - 1).abs().max())


def _outcome(known: Known, result: Checked) -> Outcome:
    """Return how the attack ended. It has converged if all checks at the top of this module hold."""
    solution, free = result.solution, len(result.solution.free)
    names = ", ".join(layer.module for layer in known.inputs.layers)
    words = f"{known.patches} patches solved from the spans of {known.layer.name or 'the model'} and {names}"
    error = 255 * max(known.probe.observation.data.std) * solution.error
    if math.isinf(error):
        return Outcome("finished", 0, f"{words}, no equation is left to check them")
    if free:
        reason = f"since {free} of {solution.unknowns} directions of a patch are chosen by the least total variation"
        return Outcome("finished", 0, f"{words}, not exact, {reason}")
    if error > LARGEST_ERROR:
        return Outcome("finished", 0, f"{words}, not exact, with an estimated error of {error:.2g} grey levels")
    if result.factors > SAME_FACTOR:
        reason = f"since the length of a token is wrong by {100 * result.factors:.2g}%"
        return Outcome("finished", 0, f"{words}, not exact, {reason}")
    if not result.check.agrees:
        return Outcome("finished", 0, f"{words}, not exact, since {result.check}")
    sentence = f"{words}, exact, with an estimated error of {error:.1g} grey levels, {result.check}"
    return Outcome("converged", 0, sentence)


def _known(observation: Observation) -> Known:
    """Return the layers and what they see.

    Raises:
        DoesNotFit: If the attack does not apply. The text is the reason.
    """
    samples = observation.training.samples
    if samples != 1:
        count = "the number of samples is unknown" if samples is None else f"{samples} samples have one span"
        raise DoesNotFit(f"made for one sample, and {count}")
    if not mixes_linearly(observation):
        raise DoesNotFit("made for gradients and SGD, and the steps of Adam are no sums of gradients")
    layer = find_patch_layer(observation)
    if layer is None:
        raise DoesNotFit("made for vision transformers, and no trained layer of this model embeds separate patches")
    if find_positions(observation, layer) is not None and len(layer.pixels) < layer.width:
        raise DoesNotFit("made for fixed positions, and april solves models with trained ones")
    inputs, probe = find_token_inputs(observation, layer)
    size = inputs.matrix.shape[0]
    if inputs.rows >= size:
        raise DoesNotFit(f"{inputs.rows} tokens of the width {size} span every direction, so their span shows nothing")
    module = observation.model.get_submodule(layer.name)
    kernel = observation.sent[layer.weight].double().flatten(1)
    has_bias = isinstance(module.bias, Tensor)
    bias = (observation.sent[layer.bias] if layer.bias in observation.sent else module.bias) if has_bias else None
    zeros = kernel.new_zeros(len(kernel))
    biased = isinstance(module.bias, Tensor) and module.bias.requires_grad
    return Known(layer, inputs, probe, kernel, zeros if bias is None else bias.detach().double(), biased)


def fits(observation: Observation) -> Fit:
    """Decide whether the attack applies. It needs one sample, known positions, and tokens wider than their number.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    try:
        known = _known(observation)
        update = {name: observation.difference()[name].double() for name in known.names}
        _check_span(known, update)
        solution = solve(known, update)
    except DoesNotFit as reason:
        return Fit(False, str(reason))
    free, unknowns = len(solution.free), solution.unknowns
    if free > MOST_FREE * unknowns:
        reason = f"the equations leave {free} of {unknowns} directions of a patch free"
        return Fit(False, f"made for positions that differ in many directions, and {reason}")
    if free:
        return Fit(True, f"for one sample in patches with fixed positions; {free} of {unknowns} directions stay free")
    return Fit(True, "one sample in patches with fixed positions")


def _check_span(known: Known, update: Params) -> None:
    """Raise an error if the gradients of too few tokens reach the layers that see them."""
    gradient = _evened(known.inputs.gradient(update))
    values = torch.linalg.svdvals(gradient)
    rank = int((values > 3 * values[min(known.inputs.rows, first_noise(gradient, values))]).sum())
    if rank < SMALLEST_SPAN * known.patches:
        raise DoesNotFit(f"the gradients of {known.inputs.rows} tokens have the rank {rank}, so most tokens are unseen")


def token_spans() -> TokenSpans:
    """Solve for the patches of one sample of a vision transformer with fixed positions, in closed form.

    The row space of the patch layer's gradient holds every patch. The row space of the gradient of the first queries,
    keys and values holds every normalised token. Both conditions together are linear equations for each patch. The
    attack checks the solution. The layers are recognised by what they compute and not by their names. The attack has
    no options. It does not apply to several samples.
    """
    return TokenSpans()


SPECS = (
    AttackSpec(
        name="token_spans",
        factory=token_spans,
        summary="Token spans (ours): the patches of one sample of a vision transformer with fixed positions.",
        fits=fits,
        cost=Cost.INSTANT,
        rank=11,
        audit={},
        exact=True,
    ),
)
