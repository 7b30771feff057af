r"""The guess as a candidate of every inversion, so that an attacker never ends below it.

An attacker who ends with samples that are no better than a guess would send the guess. It cannot compare samples with
the truth, but it can compare how well both explain a message that holds noise, or that was pruned or quantised. With
:math:`n` entries that were sent, and with the cosines :math:`c` and :math:`c_0` between these entries and their
predictions for the samples and for the guess, the log-likelihoods with Gaussian noise of unknown size differ by

.. math:: \frac n2 \log \frac{1 - c_0^2}{1 - c^2}.

Samples of :math:`d` values that were fitted to noise reach a difference of about :math:`d / 2`, and predict a second
message with the same content worse by as much. The samples are therefore returned if the difference is above :math:`d`
(Akaike 1974). Otherwise the attack has failed, and its outcome is ``"failed"``. For a message without noise nothing is
compared, because all of its entries are exact.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakgauge.attacks.inversion.compression import pruning_of
from leakgauge.attacks.inversion.free_targets import Targets, values_of
from leakgauge.attacks.inversion.noise_level import noise_in
from leakgauge.attacks.inversion.solve import Solution
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params

if TYPE_CHECKING:
    from leakgauge.attacks.inversion.attack import Inversion

#: The logit of a certain label, beside others of zero.
CERTAIN = 100.0
#: The outcome if the guess explains the message as well as the samples do.
NOT_BETTER = (
    "the attack failed, and a blind guess is returned (the samples explain the message no better than the guess does, "
    "beyond what fits the noise)"
)


def with_guess(attack: Inversion, observation: Observation, solution: Solution, targets: Targets) -> Solution:
    """Return the solution, or the guess if the message is explained as well by it.

    The guess is a constant sample at the mean of the data, or mid-grey if the mean is unknown.

    Args:
        attack: The inversion.
        observation: The message of the client.
        solution: The best solution of the inversion.
        targets: The targets of the samples.
    """
    pruned = pruning_of(observation)
    if solution.outcome.kind == "interrupted" or (pruned is None and noise_in(observation) <= 0):
        return solution
    blind = {**solution.variables, "inputs": torch.zeros_like(solution.variables["inputs"])}
    sent = None if pruned is None else pruned.sent
    entries, cosine = _explained(attack, observation, solution.variables, targets, sent)
    _, without = _explained(attack, observation, blind, targets, sent)
    gain = entries / 2 * math.log(max(1e-12, 1 - without**2) / max(1e-12, 1 - cosine**2))
    if gain > solution.variables["inputs"].numel():
        return solution
    return replace(solution, variables=blind, outcome=Outcome("failed", solution.outcome.step, NOT_BETTER))


def _explained(
    attack: Inversion, observation: Observation, variables: Params, targets: Targets, sent: Params | None
) -> tuple[int, float]:
    """Return the number of entries that were sent, and the cosine between them and their predictions."""
    client = attack.client(observation, targets)
    data, given = attack.space.units(observation.data), observation.data
    inputs = variables["inputs"]
    seen = inputs if data is given else given.normalise(data.denormalise(inputs))
    free = "labels" in client.extra
    known, values = values_of(targets), dict(variables)
    if "labels" in values and not values["labels"].is_floating_point():  # certain labels of a search of arrangements
        values["labels"] = values["labels"].to(inputs) * (CERTAIN if free else 1.0)
    if "labels" in values and not free:
        known = values["labels"]
    predicted = client(seen, known, **{name: values[name] for name in client.extra})
    observed = observation.difference()
    one, other = (_joined(tree, sent) for tree in (observed, predicted))
    length = float(one.norm() * other.norm())
    cosine = float(one @ other) / length if length > 0 else 0.0
    return int((one != 0).sum()), max(0.0, cosine) if math.isfinite(cosine) else 0.0


def _joined(tree: Params, sent: Params | None) -> Tensor:
    """Return the entries of a message that were sent, as one vector with zeros in place of the others."""
    parts = (value if sent is None else value * sent[name] for name, value in tree.items())
    return torch.cat([part.detach().double().reshape(-1) for part in parts])
