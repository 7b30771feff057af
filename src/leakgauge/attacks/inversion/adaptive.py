"""The attacker who knows the defence: an inversion that allows for it.

===================================  =============================================================================
known of the client                  what the attack does
===================================  =============================================================================
pruning of the update, at random     compares only the numbers that were sent
pruning of gradients, at random      scales its prediction to what is left on average
clipping, DP-SGD                     asks for the direction only, whatever the length, and counts labels likewise
noise, of a known size               trusts its priors more, the more of the update is noise
secure aggregation                   nothing to do: the recipe says that the update is of all clients' samples
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

#: How much more total variation counts when all of an update is noise.
SMOOTHER = 30.0


def adapted(attack: Inversion, observation: Observation) -> Inversion:
    """The attack with allowance for the defences that an observation grants the knowledge of."""
    defences = known_defences(observation)
    if not defences:
        return attack
    objective = Adapted(
        attack.objective,
        masked=pruned_updates(defences),
        free_scale=any(one.name in CLIPPING for one in defences),
        share=kept_share(defences),
    )
    noise = noise_share(observation, defences)
    priors = tuple(_trusted(prior, 1 + SMOOTHER * noise) for prior in attack.priors)
    changed = replace(attack, priors=priors) if noise > 0 else attack
    plain = Adapted(attack.objective)
    return changed if objective == plain else replace(changed, objective=objective)


def adapts(attack: Attack, observation: Observation) -> bool:
    """Whether an attack does anything else for knowing the defences that an observation grants the knowledge of."""
    return not isinstance(attack, Inversion) or adapted(attack, observation) != attack


def _trusted(prior: Prior, factor: float) -> Prior:
    if isinstance(prior, (TotalVariation, SquaredVariation)):
        return replace(prior, weight=factor * prior.weight)
    return prior
