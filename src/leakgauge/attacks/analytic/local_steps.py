r"""Corrections for the movement of the weights in several local steps on one sample.

An attack that solves one gradient exactly solves the sum :math:`m` of several steps only roughly. Let :math:`S(x)` be
the message of a client with the sample :math:`x`, and :math:`n\,g(x)` the message of as many steps at the sent weights.
Both are known functions. If :math:`\Phi` solves one gradient, the sample is a fixed point of

.. math:: x \mapsto \Phi\big(m - S(x) + n\,g(x)\big).

The iteration is accelerated as by Anderson (1965), because it converges slowly where the weights move far. The replayed
message :math:`S(x)` shows which iterate is the best. In the message's rounding, it stops to improve.

Everything is computed in double precision. In single precision, the rounding of :math:`S(x)` differs from iterate to
iterate, and a combination of nearly equal iterates amplifies it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.analytic.replay import Replay, message_of, replay, work_of_gradient
from leakgauge.attacks.analytic.whole_message import in_double
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params
from leakgauge.core.progress import Report

#: The largest number of iterations.
ITERATIONS = 40
#: The largest number of multiplications in all iterations.
MOST_WORK = 1_000_000_000_000
#: The iterations end if the replayed message has not come closer for this many.
PATIENCE = 6
#: The number of earlier iterates that an accelerated step combines.
MEMORY = 6
#: The share of the differences' length that damps the combination.
DAMPING = 1e-6


@dataclass(frozen=True, eq=False)
class Iterate:
    """One sample of the iteration.

    Args:
        sample: The sample in the model's units, as a batch of one.
        check: The message of a client with this sample.
    """

    sample: Tensor
    check: Replay


def corrected(
    observation: Observation,
    update: Params,
    start: Iterate,
    solve: Callable[[Params], Tensor],
    report: Report,
) -> tuple[Iterate, Params]:
    """Return the sample whose replayed message is the nearest, and the update that is corrected with it.

    Args:
        observation: The client's message after local training on one sample.
        update: The part of the message that ``solve`` needs, in double precision.
        start: The solution without corrections, whose message could be replayed.
        solve: The function that solves one gradient for the sample.
        report: A function ``report(step, total, loss)`` that shows progress.
    """
    observation = in_double(observation)
    start = Iterate(start.sample, replay(observation, start.sample))
    best, current, since = start, start, 0
    samples: list[Tensor] = []
    moves: list[Tensor] = []
    steps = int(observation.training.need("epochs")) + 1
    iterations = min(ITERATIONS, int(MOST_WORK / max(1, steps * work_of_gradient(observation))))
    for number in range(iterations):
        if current.check.message is None or since > PATIENCE:
            break
        solved = solve(_still(observation, update, current))
        samples.append(current.sample.flatten())
        moves.append((solved - current.sample).flatten())
        sample = accelerated(samples[-MEMORY:], moves[-MEMORY:]).reshape(solved.shape)
        current = Iterate(sample, replay(observation, sample))
        report(number + 1, iterations, current.check.residual)
        since = 0 if current.check.residual < best.check.residual else since + 1
        best = min(best, current, key=lambda iterate: iterate.check.residual)
    return best, _still(observation, update, best)


def accelerated(samples: list[Tensor], moves: list[Tensor]) -> Tensor:
    """Return the next point of a fixed-point iteration, from the last points (Anderson 1965, type II).

    The combination of the points is the one whose combined move is the smallest.

    Args:
        samples: The last points, the newest at the end.
        moves: For each point, the vector to its image.
    """
    plain = samples[-1] + moves[-1]
    if len(samples) == 1:
        return plain
    points, steps = torch.stack(samples, 1).diff(dim=1), torch.stack(moves, 1).diff(dim=1)
    square = steps.T @ steps
    square = square + DAMPING * square.diagonal().max() * torch.eye(
        len(square), dtype=square.dtype, device=square.device
    )
    factors = torch.linalg.lstsq(square, (steps.T @ moves[-1])[:, None]).solution[:, 0]
    following: Tensor = plain - (points + steps) @ factors
    return following


def _still(observation: Observation, update: Params, iterate: Iterate) -> Params:
    """Return the update of as many steps at the sent weights, if the client's sample is that of an iterate."""
    check = iterate.check
    assert check.message is not None
    assert check.label is not None
    like = next(iter(observation.sent.values()))
    gradient = message_of(observation, iterate.sample.to(like), check.label, one_gradient=True)
    length = observation.training.need("lr") * observation.training.applied_gradients
    return {name: value - check.message[name] + length * gradient[name] for name, value in update.items()}
