"""Inversions that adapt to the defences that the attacker knows.

===================================  =============================================================================
known defence                        adaptation
===================================  =============================================================================
random pruning of the update         only the entries that pruning keeps are compared
random pruning of gradients          the prediction is multiplied by the average share of entries that pruning keeps
clipping, DP-SGD                     only the direction of the update is used, also for the labels
noise of a known size                priors get more weight if a larger share of the update is noise
secure aggregation                   none, because the training settings already describe all clients together
===================================  =============================================================================
"""

from __future__ import annotations

from dataclasses import replace

from leakgauge.attacks.base import Attack
from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.known_defences import (
    CLIPPING,
    kept_share,
    known_defences,
    noise_share,
    pruned_updates,
)
from leakgauge.attacks.inversion.objectives import Adapted
from leakgauge.attacks.inversion.priors import Prior, SquaredVariation, TotalVariation
from leakgauge.core.observation import Observation

#: The factor by which the weight of total variation grows if the whole update is noise.
SMOOTHER = 30.0


def adapted(attack: Inversion, observation: Observation) -> Inversion:
    """Return a version of the attack that is adapted to the defences that the attacker knows.

    Args:
        attack: The attack before the adaptation.
        observation: The message of the client.
    """
    defences = known_defences(observation)
    if not defences:
        return attack
    plain = attack.matching.objective
    objective = Adapted(
        plain,
        masked=pruned_updates(defences),
        free_scale=any(defence.name in CLIPPING for defence in defences),
        share=kept_share(defences),
    )
    noise = noise_share(observation, defences)
    if noise > 0:
        attack = replace(attack, priors=tuple(_weighted(prior, 1 + SMOOTHER * noise) for prior in attack.priors))
    return attack if objective == Adapted(plain) else attack.with_settings(objective=objective)


def adapts(attack: Attack, observation: Observation) -> bool:
    """Return whether an attack adapts to the defences that the attacker knows.

    For an attack that is not an :class:`~leakgauge.attacks.inversion.attack.Inversion`, the result is true, unless the
    attack sets ``uses_defences = False``.

    Args:
        attack: The attack to check.
        observation: The message of the client.
    """
    if isinstance(attack, Inversion):
        return adapted(attack, observation) != attack
    return bool(getattr(attack, "uses_defences", True))


def _weighted(prior: Prior, factor: float) -> Prior:
    if isinstance(prior, (TotalVariation, SquaredVariation)):
        return replace(prior, weight=factor * prior.weight)
    return prior
