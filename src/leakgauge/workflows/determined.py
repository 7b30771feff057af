"""Whether a message may determine the client's samples, so that no failed attack shows that they are safe."""

from __future__ import annotations

import math
from collections.abc import Sequence

from leakgauge.attacks.analytic.named_words import names_words
from leakgauge.attacks.inversion.known_defences import known_defences
from leakgauge.core.observation import Observation
from leakgauge.evaluation.support import MAY_DETERMINE, MAY_DETERMINE_CAPTURE
from leakgauge.federation.defence import Defence, clients_in_a_sum
from leakgauge.federation.defences import DEFENCES
from leakgauge.workflows.scenario import Scenario

#: The defences that remove information from all numbers of a message, so that counting its numbers shows nothing.
LOSSY = ("gaussian_noise", "laplacian_noise", "dpsgd", "quantisation", "mixup")


def may_determine(scenario: Scenario, chain: Sequence[Defence]) -> str:
    """Return the reason why the first client's message may determine its samples, or the empty text.

    A message without noise may determine the samples if it has at least as many numbers that are not zero as the
    samples have. It also does if it names the client's words.

    Args:
        scenario: The set-up.
        chain: The defences of the client.
    """
    if any(defence.name in LOSSY for defence in chain):
        return ""
    message, _ = scenario.observe(0, tuple(chain))
    return message_determines(message, clients_in_a_sum(chain) * scenario.samples)


def capture_determines(message: Observation, samples: int | None) -> str:
    """Return the reason why a captured message may determine the client's samples, or the empty text.

    A defence that removes information counts only if the capture or the user names it. Otherwise, nobody knows whether
    a stronger attack finds the samples.

    Args:
        message: The client's message (gradient or weights), as the server sees it.
        samples: The number of the client's samples, or ``None`` if it is unknown.
    """
    lossy = {DEFENCES[name].__name__ for name in LOSSY}
    if any(defence.name in lossy for defence in known_defences(message)):
        return ""
    reason = message_determines(message, samples)
    return MAY_DETERMINE_CAPTURE if reason == MAY_DETERMINE else reason


def message_determines(message: Observation, samples: int | None) -> str:
    """Return the reason why a message without noise may determine the client's samples, or the empty text.

    Args:
        message: The client's message (gradient or weights), as the server sees it.
        samples: The number of samples behind the message, or ``None`` if it is unknown.
    """
    numbers = sum(int(value.count_nonzero()) for value in message.difference().values())
    if samples is not None and numbers >= samples * math.prod(message.data.shape):
        return MAY_DETERMINE
    return names_words(message)
