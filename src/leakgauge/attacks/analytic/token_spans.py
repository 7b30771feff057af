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
  subtracted from the message, in turn with the solution (:mod:`leakgauge.attacks.analytic.local_steps`).

It is related to APRIL (Lu et al. 2022), which needs trained positions. We know of no earlier description.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.attacks.analytic.dense import DoesNotFit
from leakgauge.attacks.analytic.local_steps import Iterate, corrected
from leakgauge.attacks.analytic.patches import without_decay
from leakgauge.attacks.analytic.replay import Replay, label_of_one, replay
from leakgauge.attacks.analytic.token_equations import LOST_IN_NOISE, Known, Solution, rank_of_tokens, solve
from leakgauge.attacks.analytic.token_inputs import factors_at, find_token_inputs
from leakgauge.attacks.analytic.tokens import find_patch_layer, find_positions
from leakgauge.attacks.analytic.variation import FreeDirections, least_variation
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import mixes_linearly
from leakgauge.core.progress import Report

#: The patches are called exact up to this estimated error, in units of one grey level of 256.
LARGEST_ERROR = 0.25
#: The estimated error from which on a direction of a patch is lost, after several local steps. It falls in corrections.
LOST_IN_STEPS = 1.0
#: The largest relative error of a patch's factor in an exact solution.
SAME_FACTOR = 1e-2
#: The share of free directions from which on the attack is not tried.
TOO_FREE = 0.25
#: The smallest share of the tokens that the span must hold.
SMALLEST_SPAN = 0.75
#: The same after several local steps, where the movement of the weights looks like noise.
SMALLEST_SPAN_OF_STEPS = 0.4


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


@dataclass(frozen=True)
class TokenSpans(Attack):
    """The attack that solves for the patches from the spans of patches and tokens. See :func:`token_spans`."""

    uses_defences: ClassVar[bool] = False

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Reconstruct the only sample of the client."""
        observation.training.need("samples")
        try:
            known, solution = _start(observation)
        except DoesNotFit as reason:
            raise MissingKnowledge(
                f"token_spans() does not apply: {reason}. Use inverting_gradients() instead"
            ) from None
        result = _checked(known, solution)
        if _moves(observation) and result.check.message is not None:
            result = _corrected(known, result, report)
        data = observation.data
        seen = data.denormalise(result.sample.to(observation.sent[known.layer.weight].dtype))
        return Reconstruction(
            samples=seen.clamp(0, 1) if data.bounded else seen,
            labels=label_of_one(observation) if result.check.label is None else result.check.label,
            outcome=_outcome(known, result),
            loss=result.check.residual,
        )


def _checked(known: Known, solution: Solution) -> Checked:
    """Return a solution as a sample, with its checks."""
    sample = _sample(known, solution)
    return Checked(solution, sample, _wrong_factors(known, solution), replay(known.probe.observation, sample))


def _moves(observation: Observation) -> bool:
    """Return whether the client takes several local steps, or an unknown number of them."""
    return observation.kind == "weights" and observation.training.epochs != 1


def _corrected(known: Known, result: Checked, report: Report) -> Checked:
    """Return the solution after corrections for the movement of the weights in the local steps."""
    observation = known.probe.observation
    update = {name: observation.difference()[name].double() for name in known.names}
    start = Iterate(result.sample, result.check)
    best, still = corrected(
        observation, update, start, lambda moved: _sample(known, solve(known, moved, LOST_IN_STEPS)), report
    )
    better = _checked(known, solve(known, still, LOST_IN_STEPS))
    if better.check.residual > best.check.residual:
        better = Checked(better.solution, best.sample, better.factors, best.check)
    return better


def _sample(known: Known, solution: Solution) -> Tensor:
    """Return a solution as a sample in the model's units, as a batch of one."""
    shape = known.probe.observation.data.shape
    free = FreeDirections(over_pixels=solution.free)
    return least_variation(solution.patches, free, known.layer.pixels, shape).reshape(1, *shape)


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
    if free:
        reason = f"since {free} of {solution.unknowns} directions of a patch are chosen by the least total variation"
        return Outcome("finished", 0, f"{words}, not exact, {reason}")
    if math.isinf(error):
        return Outcome("finished", 0, f"{words}, no equation is left to check them")
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
    try:
        inputs, probe = find_token_inputs(observation, layer)
    except DoesNotFit:
        raise
    except Exception as problem:  # a user's model may refuse other tokens or double precision in any way
        reason = f"a forward pass on chosen tokens in double precision fails ({type(problem).__name__})"
        raise DoesNotFit(f"made for transformers that accept any tokens, and {reason}") from problem
    size = inputs.matrix.shape[0]
    if inputs.rows >= inputs.directions().shape[1]:
        raise DoesNotFit(f"{inputs.rows} tokens of the width {size} span every direction, so their span shows nothing")
    kernel = observation.sent[layer.weight].double().flatten(1)
    bias: Tensor | None = getattr(observation.model.get_submodule(layer.name), "bias", None)
    if bias is None:
        return Known(layer, inputs, probe, kernel, torch.zeros_like(kernel[:, 0]), biased=False)
    sent = observation.sent.get(layer.bias, bias).detach().double()
    return Known(layer, inputs, probe, kernel, sent, biased=bias.requires_grad)


def fits(observation: Observation) -> Fit:
    """Decide whether the attack applies. It needs one sample, known positions, and tokens wider than their number.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    try:
        _, solution = _start(observation)
    except DoesNotFit as reason:
        return Fit(False, str(reason))
    free, unknowns = len(solution.free), solution.unknowns
    if free:
        return Fit(True, f"for one sample in patches with fixed positions; {free} of {unknowns} directions stay free")
    if _moves(observation):
        return Fit(True, "one sample in patches with fixed positions, exact if the local steps are small")
    return Fit(True, "one sample in patches with fixed positions")


def _start(observation: Observation) -> tuple[Known, Solution]:
    """Return the layers, and the solution for one gradient.

    Raises:
        DoesNotFit: If the attack does not apply. The text is the reason.
    """
    known = _known(observation)
    update = without_decay(observation, known.names)
    rank = rank_of_tokens(known.inputs, update)
    if rank < (SMALLEST_SPAN_OF_STEPS if _moves(observation) else SMALLEST_SPAN) * known.patches:
        raise DoesNotFit(f"the gradients of {known.inputs.rows} tokens have the rank {rank}, so most tokens are unseen")
    solution = solve(known, update, LOST_IN_STEPS if _moves(observation) else LOST_IN_NOISE)
    free, unknowns = len(solution.free), solution.unknowns
    if free >= TOO_FREE * unknowns:
        reason = f"the equations leave {free} of {unknowns} directions of a patch free"
        raise DoesNotFit(f"made for positions that differ in many directions, and {reason}")
    return known, solution


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
